"""The recorded run that is kept with the code: whole, in agreement with pytrec_eval, and what the committed table
says."""

from __future__ import annotations

import pandas as pd
import pytest

from vdr.evaluation.evaluate import AGREEMENT, load_scores
from vdr.evaluation.metrics_wt import agreement_with_pytrec_eval
from vdr.evaluation.run_files import read_run
from vdr.report.make import make_table1, table1_of
from vdr.report.record import open_record
from vdr.study.catalogue import load_tables
from vdr.study.settings import repository_root

ROOT = repository_root() / "outputs" / "recorded" / "mini"
pytestmark = pytest.mark.skipif(not (ROOT / "record.json").is_file(), reason="no recorded run yet")


def test_every_run_file_agrees_with_pytrec_eval():
    record, checked = open_record(ROOT), 0
    for run in record.runs:
        scores = load_scores(record.root / run.place)
        for suite, content in scores["suites"].items():
            for name, entry in content["datasets"].items():
                facts = entry["recorded_run_file"]
                found = read_run(record.root / run.place / suite / f"{name}.trec.gz", sha256=facts["sha256"])
                assert agreement_with_pytrec_eval(found, record.qrels(suite, name), scores["cutoff"]) <= AGREEMENT
                checked += 1
    assert checked >= len(record.runs)


def test_scores_of_the_record_follow_from_its_run_files():
    record = open_record(ROOT)
    again, stored = record.scores(), record.scores(recompute=False)
    pd.testing.assert_frame_equal(again, stored, rtol=0, atol=1e-9)


def test_the_committed_table_is_what_the_record_gives(tmp_path):
    make_table1(ROOT, tmp_path)
    for file in ("wt-table1.csv", "wt-table1.md", "wt-table1.pedigree.json", "wt-claims.csv"):
        name = f"tables/{file}"
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), name


def test_the_record_holds_what_table_1_needs_and_is_small():
    record, table = open_record(ROOT), load_tables()["wt-table1"]
    made = table1_of(record)
    assert set(made.table["arm"]) == set(table.arms)
    assert {run.arm for run in record.runs} >= set(table.arms)
    assert sum(facts["bytes"] for facts in record.meta["files"].values()) < 12_000_000
    assert str(repository_root()) not in (ROOT / "record.json").read_text()
