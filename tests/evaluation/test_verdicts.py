"""Seed-paired changes and verdicts, and WT's own tables recomputed from its Table 7 and Table 11."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

import pandas as pd
import pytest

from vdr.errors import BadInput
from vdr.evaluation.verdicts import paired_changes, summarise, verdict
from vdr.report.reference import paper_table1, verify_reference, wt_runs, wt_tables


def half_up(value: float, digits: int = 1) -> float:
    return float(Decimal(str(round(float(value), 9))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([0.1, 0.2, 3.0], "stable +"),
        ([-0.1, -0.2], "stable -"),
        ([0.1, -0.2, 3.0], "sign flips"),
        ([0.0, 0.1, 0.2], "sign flips"),
        ([0.0, 0.0], "sign flips"),
        ([-0.0, -0.1], "sign flips"),
        ([1.0], "one seed"),
    ],
)
def test_verdicts(changes, expected):
    assert verdict(changes) == expected


@pytest.mark.parametrize("changes", [[], [math.nan, 1.0], [math.inf]])
def test_a_verdict_needs_finite_changes(changes):
    with pytest.raises(BadInput):
        verdict(changes)


def scores(rows: list[tuple[str, str, int, float]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["arm", "suite", "seed", "value"])


def test_changes_pair_by_seed_and_not_by_position():
    table = scores([("N", "v", 2, 10.0), ("N", "v", 0, 20.0), ("baseline", "v", 0, 19.0), ("baseline", "v", 2, 4.0)])
    row = summarise(table).set_index(["arm", "suite"]).loc[("N", "v")]
    assert row["seeds"] == [0, 2]
    assert row["changes"] == [1.0, 6.0]
    assert (row["mean"], row["change"], row["verdict"]) == (15.0, 3.5, "stable +")
    base = summarise(table).set_index(["arm", "suite"]).loc[("baseline", "v")]
    assert math.isnan(base["change"])
    assert base["verdict"] == ""


def test_an_arm_with_fewer_seeds_is_paired_at_its_own_seeds():
    table = scores(
        [("baseline", "v", s, v) for s, v in enumerate((1.0, 2.0, 30.0))] + [("X", "v", 0, 2.0), ("X", "v", 1, 4.0)]
    )
    row = summarise(table).set_index("arm").loc["X"]
    assert (row["change"], row["verdict"]) == (1.5, "stable +")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("N", "v", 0, 1.0)], "no 'baseline' at seed 0"),
        ([("baseline", "v", 0, 1.0), ("baseline", "v", 0, 1.0)], "given twice"),
        ([("baseline", "v", 0, math.nan)], "not finite"),
    ],
)
def test_unpaired_doubled_or_broken_scores_are_refused(rows, text):
    with pytest.raises(BadInput, match=text):
        paired_changes(scores(rows))


def test_reference_files_are_what_they_were():
    assert set(verify_reference()) == {"wt_runs_per_seed.csv", "wt_tables.json", "evie_tables.json"}


def recomputed(recipe: str) -> pd.DataFrame:
    runs = wt_runs()
    return summarise(runs[runs["recipe"] == recipe]).set_index(["arm", "suite"])


def test_table_1_recomputed_from_table_7s_seeds():
    paper, rows = paper_table1(), recomputed("three_epochs")
    off = []
    for arm in ("baseline", "N", "S", "D", "A"):
        for suite in ("vidore_v1", "vidore_v2", "vidore_v3"):
            cell, row = paper[(arm, suite)], rows.loc[(arm, suite)]
            assert half_up(row["mean"]) == cell["mean"], (arm, suite)
            if arm == "baseline":
                continue
            if half_up(row["change"]) != cell["change"]:
                off.append((arm, suite, half_up(row["change"]), cell["change"]))
            # Two means of values rounded to 0.1, then the printed change's own rounding: 0.15 at most.
            assert abs(row["change"] - cell["change"]) <= 0.15
            assert row["verdict"] == cell["verdict"], (arm, suite)
    assert off == [("N", "vidore_v1", 1.3, 1.4)]  # the paper subtracted before rounding


def test_verdicts_and_changes_of_tables_8_and_9_recomputed():
    tables, short = wt_tables(), {"vidore_v1": "v1", "vidore_v2": "v2", "vidore_v3": "v3"}
    for recipe, name in (("one_epoch", "table8_one_epoch_deltas"), ("three_epochs", "table9_three_epoch_deltas")):
        rows = recomputed(recipe)
        for arm, suites in tables[name].items():
            for suite, column in short.items():
                row = rows.loc[(arm, suite)]
                assert len(row["changes"]) == len(suites[column])
                for ours, printed in zip(row["changes"], suites[column], strict=True):
                    assert abs(ours - printed) <= 0.1 + 0.05 + 1e-9
    assert recomputed("one_epoch").loc[("A+D", "vidore_v3"), "verdict"] == "stable -"


def test_table_2_and_3_changes_recomputed_from_table_11():
    rows, tables = recomputed("three_epochs"), wt_tables()
    names = {
        "N-mined (ranks 1-4)": "N-mined",
        "N-rank (ranks 4-20)": "N-rank",
        "N-band (ranks 21-100)": "N-band",
        "N-perc (0.95)": "N-perc-0.95",
        "N-perc (0.864, rate-matched)": "N-perc-0.864",
    }
    for printed, arm in names.items():
        for at, suite in enumerate(("vidore_v1", "vidore_v2", "vidore_v3"), 1):
            assert abs(rows.loc[(arm, suite), "change"] - tables["table2_controls"][printed][at]) <= 0.15
    for printed, arm in {"S-flat": "S-flat", "S-masked": "S-masked", "S-partition": "S-partition"}.items():
        for at, suite in enumerate(("vidore_v1", "vidore_v2", "vidore_v3")):
            assert abs(rows.loc[(arm, suite), "change"] - tables["table3_targets"][printed][at]) <= 0.15
    assert rows.loc[("S-flat", "vidore_v2"), "verdict"] == "stable -"


def test_paper_table_1_states_what_the_paper_states():
    paper = paper_table1()
    assert len(paper) == 20
    assert paper[("A", "vidore_v2")] == {"mean": 55.1, "change": -0.1, "verdict": "sign flips"}
    assert paper[("D", "vidore_v1")]["verdict"] == "sign flips"
    assert paper[("N", "jina_vdr")] == {"mean": 81.8, "change": 2.8, "verdict": ""}
    assert paper[("baseline", "vidore_v3")] == {"mean": 47.4, "change": None, "verdict": ""}
