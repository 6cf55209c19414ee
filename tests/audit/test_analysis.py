"""The rules of WT App. K on a worked example computed by hand, and the paper's published figures where they can be
recomputed."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.inter_rater import cohens_kappa

from vdr.audit.agreement import binary_table, cluster_share, cohen, kappa_of_tables
from vdr.audit.analysis import analyse_relevance, annotator_table, hedge_by_breadth, with_decisions, write_result
from vdr.audit.evidence import analyse_evidence
from vdr.audit.judgements import Study, load_released, write_problems
from vdr.audit.plan import Plan, default_plan_text, load_plan
from vdr.audit.report import render_text, table13_pairings, write_report
from vdr.errors import BadInput

PAIRS = """query_id,page_id,role,rank,score
q1,a,mined,1,1.0
q1,b,mined,2,0.5
q1,c,mined,3,0.2
q1,d,mined,4,0
q2,e,mined,1,0.9
q2,f,mined,2,0.5
q2,g,mined,3,0.5
q2,h,mined,4,0
q3,L,labelled,0,0.9
q3,i,mined,1,1.0
q3,j,mined,2,0.6
q3,k,mined,3,0.1
"""
QUERIES = "query_id,breadth\nq1,specific\nq2,broad\nq3,specific\n"
GRADES = {
    ("v1", "q1"): "a3 b2 c1 d0",
    ("v2", "q1"): "a2 b1 c1 dx",
    ("v2", "q2"): "e3 f0 g0 h0",
    ("v3", "q2"): "e2 f2 g1 h2",
    ("v1", "q3"): "L3 i2 j0 k0",
    ("v3", "q3"): "L1 i3 jx k2",
}
SECONDS = {"v1": 10, "v2": 20, "v3": 30}


def judgement_rows() -> list[str]:
    return [
        f"{who},{query},{mark[0]},{mark[1]},{SECONDS[who]}"
        for (who, query), marks in GRADES.items()
        for mark in marks.split()
    ]


def write_csvs(tmp_path, rows: list[str] | None = None, header: str = "annotator,query_id,page_id,grade,seconds"):
    (tmp_path / "pairs.csv").write_text(PAIRS)
    (tmp_path / "queries.csv").write_text(QUERIES)
    (tmp_path / "judgements.csv").write_text("\n".join([header, *(judgement_rows() if rows is None else rows)]) + "\n")
    return tmp_path / "judgements.csv", tmp_path / "pairs.csv", tmp_path / "queries.csv"


@pytest.fixture
def study(tmp_path) -> Study:
    loaded, problems = load_released(*write_csvs(tmp_path))
    assert problems == []
    return loaded


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> dict:
    loaded, _ = load_released(*write_csvs(tmp_path_factory.mktemp("worked")))
    return analyse_relevance(loaded)


def test_an_undefined_kappa_is_null_in_the_file_and_a_word_in_the_tables(tmp_path):
    # v1 and v2 share q1 only and call all of it relevant: their κ is 0/0. The other two pairings have one.
    same = {("v1", "q1"): "a3 b2 c3 d2", ("v2", "q1"): "a2 b2 c2 d3"}
    rows = [
        f"{who},{query},{mark[0]},{mark[1]},5"
        for (who, query), marks in (GRADES | same).items()
        for mark in marks.split()
    ]
    loaded, _ = load_released(*write_csvs(tmp_path, rows))
    result = analyse_relevance(loaded)
    files = write_report(result, tmp_path / "out")
    assert write_report(result, tmp_path / "out") == files

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    read = json.loads(files[0].read_text(), parse_constant=refuse)
    assert read == json.loads(json.dumps(result, allow_nan=False))
    kappas = {(row["a"], row["b"]): row["kappa"] for row in read["pairings"]}
    assert kappas["v1", "v2"] is None
    assert kappas["v2", "v3"] == pytest.approx(0.2)
    assert read["headline"]["human_human_kappa"]["undefined"] == ["v1–v2"]
    for shown in (table13_pairings(result), table13_pairings(read)):
        assert shown.set_index("pairing")["κ"].to_dict()["v1–v2"] == "undefined"
    assert "v1–v2,4,undefined" in (tmp_path / "out" / "tables" / "wt-table13-pairings.csv").read_text()
    assert render_text(read) == render_text(result)
    write_result(tmp_path / "again.json", {"a": [float("nan"), {"b": np.float64("nan")}], "c": 1.5})
    assert json.loads((tmp_path / "again.json").read_text(), parse_constant=refuse) == {
        "a": [None, {"b": None}],
        "c": 1.5,
    }


def test_precision_and_miss(result):
    head = result["headline"]
    assert head["precision"]["value"] == pytest.approx(8 / 13)
    assert head["precision"]["n"] == 13
    assert head["precision_specific"]["value"] == pytest.approx(5 / 7)
    assert head["precision_broad"]["value"] == pytest.approx(3 / 6)
    assert (head["miss"]["value"], head["miss"]["n"]) == (pytest.approx(2 / 7), 7)


def test_interval_is_the_cluster_percentile(result):
    # Three clusters with shares 3/4, 3/6, 2/3: each alone makes up a whole draw with probability 1/27 = 3.7 %, more
    # than the
    # 2.5 % of a tail, so the 95 % interval is exactly the lowest and the highest share.
    assert result["headline"]["precision"]["low"] == pytest.approx(0.5)
    assert result["headline"]["precision"]["high"] == pytest.approx(0.75)


def test_relevant_per_query_drops_whole_views_with_x(result):
    relevant = result["headline"]["relevant_per_query"]
    # v1/q1 sees 2, v2/q1 is dropped (x on d), v2/q2 sees 1, v3/q2 sees 3.
    assert relevant["value"] == pytest.approx(2.0)
    assert (relevant["n"], relevant["clusters"], relevant["views_dropped"], relevant["of"]) == (3, 2, 1, 4)


def test_kappas(result):
    pairs = {(row["a"], row["b"]): row for row in result["pairings"]}
    assert pairs["v1", "v2"]["kappa"] == pytest.approx(0.4)
    assert pairs["v1", "v2"]["n"] == 3
    assert pairs["v2", "v3"]["kappa"] == pytest.approx(0.2)
    assert pairs["v1", "v3"]["kappa"] == pytest.approx(0.0)
    assert pairs["v1", "v3"]["n"] == 2  # the labelled page is left out, and the page v3 could not judge
    human = result["headline"]["human_human_kappa"]
    assert (human["value"], human["n"], human["pairings"]) == (pytest.approx(0.2), 9, 3)
    teacher = result["headline"]["teacher_human_kappa"]
    assert (teacher["value"], teacher["n"]) == (pytest.approx(0.3), 20)


def test_annotators(result):
    rows = {row["annotator"]: row for row in result["annotators"]}
    assert rows["v1"]["relevant"] == pytest.approx(3 / 7)
    assert rows["v2"]["relevant"] == pytest.approx(2 / 7)
    assert rows["v3"]["relevant"] == pytest.approx(5 / 6)
    assert [rows[name]["agrees_with_teacher"] for name in ("v1", "v2", "v3")] == pytest.approx([6 / 7, 4 / 7, 3 / 6])
    assert [rows[name]["cannot_judge"] for name in ("v1", "v2", "v3")] == pytest.approx([0, 1 / 8, 1 / 8])
    assert [(rows[n]["gold_relevant"], rows[n]["gold_judged"]) for n in ("v1", "v2", "v3")] == [(1, 1), (0, 0), (0, 1)]
    assert [rows[name]["median_seconds"] for name in ("v1", "v2", "v3")] == [10, 20, 30]


def test_thresholds_and_hedge(result):
    cuts = {row["cut"]: row for row in result["thresholds"]}
    assert cuts["≥0.5"]["precision"]["value"] == pytest.approx(8 / 13)
    assert cuts[">0.5"]["precision"]["value"] == pytest.approx(6 / 7)
    assert cuts[">0.5"]["miss"]["value"] == pytest.approx(4 / 13)
    assert cuts["≥1"]["precision"]["value"] == pytest.approx(1.0)
    assert cuts["≥1"]["miss"]["value"] == pytest.approx(6 / 16)
    assert (result["hedge"]["value"], result["hedge"]["n"]) == (pytest.approx(2 / 6), 6)


def test_leave_one_out(result):
    rows = {row["dropped"]: row for row in result["leave_one_out"]}
    # Without v3: q1 3/4, q2 v2's e R, f N, g N = 1/3, q3 v1's i R, j N = 1/2.
    assert rows["v3"]["precision"] == pytest.approx(5 / 9)
    assert rows["v3"]["relevant_per_query"] == pytest.approx(1.5)
    assert len(rows) == 3


def test_hedges_by_breadth(result):
    table = result["post_hoc"]["hedge_by_breadth"]
    assert table["hedge"] == {"broad": 1, "queries": 2}
    assert table["no_hedge"] == {"broad": 0, "queries": 1}
    assert table["p"] == pytest.approx(1.0)


def test_breadth_must_be_frozen_and_complete(study):
    study.breadth_frozen = False
    with pytest.raises(BadInput, match="not frozen before"):
        analyse_relevance(study)
    assert "precision_broad" not in analyse_relevance(study, without_breadth=True)["headline"]
    study.breadth_frozen = True
    study.queries.loc[0, "breadth"] = ""
    with pytest.raises(BadInput, match="q1"):
        analyse_relevance(study)


def test_missing_judgements_are_refused_or_counted(tmp_path):
    study, problems = load_released(*write_csvs(tmp_path, judgement_rows()[:-1]))
    assert problems == []
    with pytest.raises(BadInput, match="v3, query q3, page k"):
        analyse_relevance(study)
    assert analyse_relevance(study, partial=True)["missing"] == 1


@pytest.mark.parametrize(
    ("row", "field", "what"),
    [
        ("v1,q9,a,3,4", "query_id", "unknown query"),
        ("v1,q2,a,3,4", "page_id", "not shown"),
        ("v3,q1,a,4,4", "grade", "unknown grade '4'"),
        ("v1,q1,a,3,4", "page_id", "same judgement as row 1"),
        (",q1,a,3,4", "annotator", "unknown annotator"),
        ("v3,q1,a,3,minus", "seconds", "no number"),
    ],
)
def test_bad_rows_are_listed(tmp_path, row, field, what):
    study, problems = load_released(*write_csvs(tmp_path, [*judgement_rows(), row]))
    assert [(p.file, p.row, p.field) for p in problems] == [("judgements.csv", 25, field)]
    assert what in problems[0].what
    assert study.judgements.empty  # nothing is analysed from a file with problems
    write_problems(problems, tmp_path / "problems.csv")
    assert len(pd.read_csv(tmp_path / "problems.csv")) == 1


def test_strangers_and_mixed_designs_are_listed(tmp_path):
    paths = write_csvs(tmp_path)
    _, problems = load_released(*paths, annotators=["v1", "v2"])
    assert {p.field for p in problems} == {"annotator"}
    assert len(problems) == 8
    rows = [f"{row},{'s1' if index < 5 else 's2'}" for index, row in enumerate(judgement_rows())]
    paths = write_csvs(tmp_path, rows, "annotator,query_id,page_id,grade,seconds,study")
    _, problems = load_released(*paths)
    assert [(p.row, p.field) for p in problems] == [(6, "study")]


def test_bad_pairs_are_listed(tmp_path):
    judgements, pairs, queries = write_csvs(tmp_path)
    pairs.write_text(PAIRS.replace("q1,a,mined,1,1.0", "q1,a,gold,first,1.7"))
    _, problems = load_released(judgements, pairs, queries)
    assert sorted(p.field for p in problems if p.file == "pairs.csv") == ["rank", "role", "score"]
    for rank in ("--5", "²", "1.5", "1_0", "nan", ""):
        pairs.write_text(PAIRS.replace("q1,a,mined,1,1.0", f"q1,a,mined,{rank},1.0"), encoding="utf-8")
        _, problems = load_released(judgements, pairs, queries)
        assert [p.field for p in problems if p.file == "pairs.csv"] == ["rank"], rank


def test_missing_column_is_one_line(tmp_path):
    judgements, pairs, queries = write_csvs(tmp_path)
    pairs.write_text("query_id,page_id\nq1,a\n")
    with pytest.raises(BadInput, match="role"):
        load_released(judgements, pairs, queries)


# --- the paper's own figures
# -------------------------------------------------------------------------------------------------


def test_papers_mean_kappa():
    """WT Table 13's ten pairings give the 0.41 of Table 4, and their sizes its 161."""
    kappas = [0.85, 0.87, 0.00, 0.33, -0.13, 0.16, 0.53, 0.65, 0.44, 0.39]
    sizes = [17, 18, 14, 18, 15, 17, 17, 17, 11, 17]
    assert round(float(np.mean(kappas)), 2) == 0.41
    assert sum(sizes) == 161


def test_papers_fisher_exact():
    """WT §8: 69 % of the hedging queries are broad against 22 % of the others, 17 of 50 broad: 9 of 13 and 8 of 37; p
    = 0.005."""
    queries = pd.DataFrame(
        {
            "hedge": [True] * 13 + [False] * 37,
            "breadth": ["broad"] * 9 + ["specific"] * 4 + ["broad"] * 8 + ["specific"] * 29,
        }
    )
    table = hedge_by_breadth(queries)
    assert round(table["hedge"]["broad"] / table["hedge"]["queries"], 2) == 0.69
    assert round(table["no_hedge"]["broad"] / table["no_hedge"]["queries"], 2) == 0.22
    assert round(table["p"], 3) == 0.005


def test_papers_outliers(study):
    """WT App. K names the annotators at 81 % and 11 % as beyond three MADs, and nobody else: the MAD is the normal-
    scaled one."""
    rates = [47, 11, 38, 67, 81, 50, 51, 45, 35, 44]
    rows = [
        {"annotator": f"v{i + 1:02d}", "grade": "2" if k < rate else "0", "seconds": 1.0, "role": "mined", "score": 1.0}
        for i, rate in enumerate(rates)
        for k in range(100)
    ]
    study.judgements = pd.DataFrame(rows)
    table = annotator_table(with_decisions(study), study.plan)
    assert table["annotator"][table["outlier"]].tolist() == ["v02", "v05"]


def test_papers_evidence_table(tmp_path):
    """EV §6.3: 92.67, 80.67 and 95.67 % of 300 each, 0.67 % between full and none; the counts 278, 242, 287 and 2, 2
    give them."""
    counts = {"full": {"full": 278, "partial": 20, "none": 2}, "partial": {"full": 29, "partial": 242, "none": 29}}
    counts["none"] = {"full": 2, "partial": 11, "none": 287}
    pairs, rows = [], []
    for tier, row in counts.items():
        for label, number in row.items():
            for k in range(number):
                page = f"{tier}-{label}-{k}"
                pairs.append(f"q,{page},mined,-1,,{tier}")
                rows += [f"a,q,{page},{label},1", f"b,q,{page},{label},1", f"c,q,{page},{'none' if k % 2 else label},1"]
    judgements, pair_file, queries = write_csvs(tmp_path, rows)
    pair_file.write_text("query_id,page_id,role,rank,score,tier\n" + "\n".join(pairs) + "\n")
    queries.write_text("query_id,breadth\nq,\n")
    study, problems = load_released(judgements, pair_file, queries, scale="evidence")
    assert problems == []
    tiers = analyse_evidence(study)["tiers"]
    assert [round(100 * tiers[t]["agreement"], 2) for t in ("full", "partial", "none")] == [92.67, 80.67, 95.67]
    assert round(100 * tiers["full"]["shares"]["none"], 2) == round(100 * tiers["none"]["shares"]["full"], 2) == 0.67
    assert tiers["full"]["low"] < tiers["full"]["agreement"] < tiers["full"]["high"]


def test_three_different_labels_have_no_majority(tmp_path):
    rows = [f"{who},q,p,{label},1" for who, label in zip("abc", ("full", "partial", "none"), strict=True)]
    judgements, pair_file, queries = write_csvs(tmp_path, rows)
    pair_file.write_text("query_id,page_id,role,rank,score,tier\nq,p,mined,-1,,full\n")
    queries.write_text("query_id,breadth\nq,\n")
    study, _ = load_released(judgements, pair_file, queries, scale="evidence")
    full = analyse_evidence(study)["tiers"]["full"]
    assert (full["shares"]["no majority"], full["agreement"]) == (1.0, 0.0)


# --- estimators
# ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_vector_kappa_equals_statsmodels(pairs):
    table = binary_table(*np.array(pairs).T)
    mine, point = kappa_of_tables(table[None])[0], cohen(table)
    assert (point is None) == bool(np.isnan(mine))
    if point is not None:
        assert mine == pytest.approx(point, abs=1e-12)
        assert point == pytest.approx(float(cohens_kappa(table, return_results=False)))


def test_share_without_clusters():
    empty = cluster_share(np.array([]), np.array([]), resamples=100, level=0.95, seed=0)
    assert (empty["value"], empty["n"]) == (None, 0)
    one = cluster_share(np.array([1]), np.array([2]), resamples=100, level=0.95, seed=0)
    assert (one["value"], one["low"]) == (0.5, None)


def test_same_seed_same_interval(study):
    assert analyse_relevance(study) == analyse_relevance(study)


def test_plan_is_strict():
    assert isinstance(load_plan(), Plan)
    with pytest.raises(BadInput, match="resamples"):
        load_plan(default_plan_text().replace("resamples: 10000", "resamples: many"))
    with pytest.raises(BadInput, match="no analysis is called"):
        load_plan(default_plan_text().replace("  precision: share", "  precisely: share"))
