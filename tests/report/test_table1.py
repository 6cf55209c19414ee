"""Table 1: the paper's own from its seeds, a fresh one from runs, its files, figure, pedigree and comparison."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from vdr.errors import BadInput
from vdr.report.collect import copy_record
from vdr.report.figures import change_figure, save
from vdr.report.make import Table1, compare_records, findings, make_table1, table1_of
from vdr.report.reference import paper_table1, wt_runs
from vdr.report.table1 import TAIL, build_table, explain_cell, overview, printed, render_text

HEAD = ["arm", "suite", "seed_0", "seed_1", "seed_2"]


def test_the_papers_own_runs_give_the_papers_own_table():
    runs = wt_runs()
    runs = runs[runs["recipe"] == "three_epochs"]
    suites = ["vidore_v1", "vidore_v2", "vidore_v3"]
    table = build_table(
        runs, arms=["baseline", "N", "S", "D", "A"], suites=suites, paper=paper_table1(), paper_suites={}
    )
    assert list(table.columns) == HEAD + TAIL
    text = printed(table)
    assert (text["mean"] == text["paper_mean"]).all()
    assert (text["verdict"] == text["paper_verdict"]).all()
    apart = text[text["change"] != text["paper_change"]]
    assert apart[["arm", "suite", "change", "paper_change"]].values.tolist() == [["N", "vidore_v1", "+1.3", "+1.4"]]


def test_columns_rows_and_numbers(study):
    made = table1_of(study.record)
    table = made.table
    assert list(table.columns) == HEAD + TAIL
    assert list(zip(table["arm"], table["suite"], strict=True)) == [
        (arm, suite) for arm in ("baseline", "N", "S", "D", "A") for suite in ("v1", "v2", "v3", "jina")
    ]
    rows = table.set_index(["arm", "suite"])
    seeds = ["seed_0", "seed_1", "seed_2"]
    for arm, suite in rows.index:
        row = rows.loc[(arm, suite)]
        assert row["mean"] == pytest.approx(sum(row[s] for s in seeds) / 3)
        if arm == "baseline":
            assert math.isnan(row["change"])
            continue
        deltas = [row[s] - rows.loc[("baseline", suite), s] for s in seeds]
        assert row["change"] == pytest.approx(sum(deltas) / 3)
        flips = not (all(d > 0 for d in deltas) or all(d < 0 for d in deltas))
        assert (row["verdict"] == "sign flips") == flips
    assert rows.loc[("N", "v2"), "paper_change"] == 7.4
    assert rows.loc[("A", "v2"), "paper_verdict"] == "sign flips"
    assert rows.loc[("N", "jina"), "paper_verdict"] == ""


def test_files_are_complete_standalone_and_the_same_twice(study, tmp_path):
    for place in ("one", "two"):
        make_table1(study.record.root, tmp_path / place)
    names = sorted(p.relative_to(tmp_path / "one").as_posix() for p in (tmp_path / "one").rglob("*") if p.is_file())
    assert names == ["figures/wt-table1-changes.png", "tables/wt-claims.csv"] + [
        f"tables/wt-table1.{k}" for k in ("csv", "html", "md", "pedigree.json")
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    csv = pd.read_csv(tmp_path / "one" / "tables" / "wt-table1.csv")
    assert list(csv.columns) == HEAD + TAIL
    assert len(csv) == 20
    markdown = (tmp_path / "one" / "tables" / "wt-table1.md").read_text()
    assert "Vectors are random: a test." in markdown
    assert "Hardware: " in markdown
    assert "Seeds: 0, 1, 2" in markdown
    html = (tmp_path / "one" / "tables" / "wt-table1.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", html)  # nothing is fetched from elsewhere
    assert "prefers-color-scheme: dark" in html
    assert "Vectors are random: a test." in html
    tags = _Tags()
    tags.feed(html)
    assert tags.open == []
    assert len(tags.alternatives) == 1
    assert "N on v2" in tags.alternatives[0]
    assert "(paper +7.4)" in tags.alternatives[0]


class _Tags(HTMLParser):
    """Checks that tags close in order, and keeps the alternative texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.alternatives: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.alternatives.append(dict(attrs)["alt"])
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_cell_leads_to_its_runs(study, tmp_path):
    made = make_table1(study.record.root, tmp_path)
    pedigree = json.loads((tmp_path / "tables" / "wt-table1.pedigree.json").read_text())
    cells = pedigree["cells"]
    for row in made.table.to_dict("records"):
        for column in [*HEAD[2:], *TAIL]:
            value = row[column]
            if value != "" and (isinstance(value, str) or not math.isnan(value)):
                assert f"{row['arm']}/{row['suite']}/{column}" in cells
    cell = cells["N/v2/seed_1"]
    assert pedigree["runs"][cell["run"]]["key"] == study.runs[("N", 1)].key
    name = "runs/N/seed-1/v2/forms.trec.gz"
    assert cell["run_files"] == {name: study.record.meta["files"][name]["sha256"]}
    text = explain_cell(pedigree, "N", "v2", "change")
    for part in ("N/v2/seed_0 − baseline/v2/seed_0", "N-seed-2", "baseline-seed-1", "from corpus"):
        assert part in text
    assert "WT Table 1" in explain_cell(pedigree, "N", "v2", "paper_mean")
    with pytest.raises(BadInput, match="no cell N/v9/mean"):
        explain_cell(pedigree, "N", "v9", "mean")


def test_missing_runs_are_an_error_and_fewer_seeds_are_not(study, tmp_path):
    some = {k: v for k, v in study.runs.items() if k[0] != "S"}
    record = study.record_of(tmp_path / "record", study.store, some)
    with pytest.raises(BadInput, match="no run of S on v1 and 3 more"):
        make_table1(record.root, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    lone = {k: v for k, v in study.runs.items() if k != ("S", 2)}
    table = table1_of(study.record_of(tmp_path / "record", study.store, lone)).table.set_index(["arm", "suite"])
    assert math.isnan(table.loc[("S", "v1"), "seed_2"])
    unpaired = {k: v for k, v in study.runs.items() if k != ("baseline", 2)}
    with pytest.raises(BadInput, match="no 'baseline' at seed 2"):
        table1_of(study.record_of(tmp_path / "record", study.store, unpaired))


def test_the_terminal_form_shows_both(study):
    made = table1_of(study.record)
    text = render_text(made.table, made.record.notes)
    assert "| N " in text
    assert "(62.6)" in text
    assert "(+7.4)" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("|")) < 130
    assert list(overview(made.table)["arm"]) == ["baseline", "N", "S", "D", "A"]


def test_a_change_that_rounds_to_zero_has_no_sign():
    table = pd.DataFrame(
        [{"arm": "A", "suite": "v", "seed_0": 1.0, "mean": 1.0, "change": -0.04, "verdict": "stable -"}]
    )
    table = table.assign(paper_mean=math.nan, paper_change=math.nan, paper_verdict="")
    assert printed(table).iloc[0].tolist() == ["A", "v", "1.0", "1.0", "0.0", "stable −", "–", "–", "–"]


def test_the_figure_shows_every_seed(study, tmp_path):
    made = table1_of(study.record)
    figure = change_figure(made.table, made.paper_seeds)
    assert [axis.get_title() for axis in figure.axes] == ["v1", "v2", "v3", "jina"]
    assert [len(axis.patches) for axis in figure.axes] == [4, 4, 4, 4]
    dots = sum(len(c.get_offsets()) for c in figure.axes[1].collections)
    assert dots == 4 * 3 + 4 + 4 * 3  # our seeds, the paper's means, the paper's seeds
    svg = save(figure, tmp_path / "f.svg").read_bytes()
    assert svg == save(change_figure(made.table, made.paper_seeds), tmp_path / "g.svg").read_bytes()


def test_a_fresh_run_is_compared_with_the_recorded_one(study, tmp_path):
    recorded = copy_record(study.record.root, tmp_path / "recorded")
    same = compare_records(study.record.root, recorded.root)
    assert same.identical
    assert same.text() == "Fresh run against the recorded one: identical (all 60 run files and 96 cells)."
    swapped = dict(study.runs)
    swapped[("N", 0)], swapped[("N", 1)] = swapped[("N", 1)], swapped[("N", 0)]
    other = study.record_of(tmp_path / "other", study.store, swapped)
    apart = compare_records(other.root, recorded.root)
    assert not apart.identical
    assert apart.run_files == (52, 60)
    assert re.search(r"largest difference \d+\.\d\d points \(N, ", apart.text())
    assert "2 of 15 runs were made from other settings" in apart.text()
    fewer = study.record_of(tmp_path / "fewer", study.store, {k: v for k, v in study.runs.items() if k != ("A", 2)})
    assert "in one of the two only: A/v1/seed_2" in compare_records(fewer.root, recorded.root).text()


def test_findings_are_sentences_from_the_numbers():
    rows = [
        ("baseline", "v2", 50.0, 50.0, float("nan"), "", float("nan")),
        ("N", "v2", 51.0, 54.0, 2.5, "stable +", 7.4),
        ("A", "v2", 51.0, 49.5, 0.25, "sign flips", -0.1),
        ("baseline", "v3", 40.0, 40.0, float("nan"), "", float("nan")),
        ("N", "v3", 39.0, 38.0, -1.5, "stable -", 4.5),
        ("A", "v3", 40.0, 39.0, -0.5, "sign flips", -0.3),
    ]
    columns = ["arm", "suite", "seed_0", "seed_1", "change", "verdict", "paper_change"]
    made = Table1(pd.DataFrame(rows, columns=columns), None, None)
    assert findings(made).splitlines() == [
        "N: stable + on v2, stable - on v3; the mean change has the paper's sign on 1 of 2 suites.",
        "A: stable on no suite; the mean change has the paper's sign on 1 of 2 suites.",
        "Order of the mean changes on v2: N > A; in the paper: N > A.",
        "Order of the mean changes on v3: A > N; in the paper: N > A.",
        "The seeds' changes of one arm lie up to 3.0 points apart (N on v2), 1.2 in the median.",
    ]
