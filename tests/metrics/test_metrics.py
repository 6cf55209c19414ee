"""EV's metrics: hand-worked examples, agreement with pytrec_eval and ranx, ties, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import pytrec_eval

from vdr.errors import BadInput
from vdr.evaluation.metrics import avg4, macro, score_task
from vdr.evaluation.run_files import Run


def draw(seed: int, queries: int = 60, pages: int = 40) -> tuple[dict, dict]:
    rng = np.random.default_rng(seed)
    qrels, run = {}, {}
    for q in range(queries):
        grades = rng.choice([0, 1, 2, 3], pages, p=[0.8, 0.1, 0.05, 0.05])
        grades[rng.integers(pages)] = 1
        qrels[f"q{q}"] = {f"p{j}": int(g) for j, g in enumerate(grades) if g or rng.random() < 0.3}
        order = rng.permutation(pages)[: rng.integers(1, pages)]
        run[f"q{q}"] = {f"p{j}": float(s) for j, s in zip(order, rng.permutation(len(order)), strict=True)}
    return qrels, run


def test_a_graded_example_by_hand():
    qrels = {"q": {"a": 3, "b": 1, "c": 1, "d": 0}}
    run = {"q": {"x": 9.0, "a": 8.0, "d": 7.0, "b": 6.0}}  # hits at ranks 2 (grade 3) and 4 (grade 1); c is missed
    got = score_task(run, qrels, (1, 5)).means
    dcg = 7 / math.log2(3) + 1 / math.log2(5)
    ideal = 7 + 1 / math.log2(3) + 1 / math.log2(4)
    assert got["ndcg@5"] == pytest.approx(100 * dcg / ideal)
    assert got["recall@5"] == pytest.approx(100 * 2 / 3)
    assert got["map@5"] == pytest.approx(100 * (1 / 2 + 2 / 4) / 3)
    assert got["mrr@5"] == pytest.approx(50)
    assert got["ndcg@1"] == got["recall@1"] == got["map@1"] == got["mrr@1"] == 0


def test_map_is_divided_by_the_smaller_of_k_and_the_relevant():
    """Ten relevant pages, a perfect top five: 100 here, 50 in trec_eval's map_cut."""
    qrels = {"q": {f"p{i}": 1 for i in range(10)}}
    run = {"q": {f"p{i}": 10.0 - i for i in range(5)}}
    assert score_task(run, qrels, (5,)).means["map@5"] == pytest.approx(100)
    assert score_task(run, qrels, (10,)).means["map@10"] == pytest.approx(50)
    trec = pytrec_eval.RelevanceEvaluator(qrels, {"map_cut.5"}).evaluate(run)["q"]["map_cut_5"]
    assert trec == pytest.approx(0.5)


def test_map_and_mrr_coincide_where_the_paper_says_so():
    qrels, run = draw(1)
    got = score_task(run, qrels)
    assert np.allclose(got.values["map@1"], got.values["mrr@1"])
    single = {q: {max(grades, key=grades.get): 1} for q, grades in qrels.items()}
    one = score_task(run, single)
    for k in (1, 5, 10):
        assert np.allclose(one.values[f"map@{k}"], one.values[f"mrr@{k}"])


@pytest.mark.parametrize("seed", range(3))
def test_agreement_with_pytrec_eval_where_definitions_agree(seed):
    qrels, run = draw(seed)
    ours = score_task(run, qrels)
    gains = {q: {p: 2**g - 1 for p, g in grades.items()} for q, grades in qrels.items()}
    linear = pytrec_eval.RelevanceEvaluator(gains, {"ndcg_cut.1,5,10"}).evaluate(run)
    plain = pytrec_eval.RelevanceEvaluator(qrels, {"recall.1,5,10", "map_cut.1,5,10"}).evaluate(run)
    for row, q in enumerate(ours.queries):
        relevant = sum(g > 0 for g in qrels[q].values())
        for k in (1, 5, 10):
            assert ours.values[f"ndcg@{k}"][row] == pytest.approx(100 * linear[q][f"ndcg_cut_{k}"])
            assert ours.values[f"recall@{k}"][row] == pytest.approx(100 * plain[q][f"recall_{k}"])
            rescaled = plain[q][f"map_cut_{k}"] * relevant / min(k, relevant)
            assert ours.values[f"map@{k}"][row] == pytest.approx(100 * rescaled)
            cut = {q: dict(sorted(run[q].items(), key=lambda item: -item[1])[:k])}
            trec = pytrec_eval.RelevanceEvaluator({q: qrels[q]}, {"recip_rank"}).evaluate(cut)
            assert ours.values[f"mrr@{k}"][row] == pytest.approx(100 * trec[q]["recip_rank"])


def test_agreement_with_ranx_where_definitions_agree(monkeypatch):
    # Its loops as plain Python: on sixty queries they take a moment, their compilation takes a minute.
    numba = pytest.importorskip("numba", reason="numba, which ranx needs, is not installed")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    ranx = pytest.importorskip("ranx", reason="ranx is not installed")
    qrels, run = draw(5)
    positive = {q: {p: g for p, g in grades.items() if g > 0} for q, grades in qrels.items()}
    names = ["ndcg_burges@10", "recall@10", "mrr@10"]
    theirs = ranx.evaluate(ranx.Qrels(positive), ranx.Run(run), names)
    ours = score_task(run, qrels).means
    for mine, name in zip(("ndcg@10", "recall@10", "mrr@10"), names, strict=True):
        assert ours[mine] == pytest.approx(100 * theirs[name])


def test_ties_follow_the_stated_rule_and_names_decide_not_insertion():
    qrels = {"q": {"b": 1}}
    for order in (["a", "b", "c"], ["c", "b", "a"]):
        got = score_task({"q": dict.fromkeys(order, 1.0)}, qrels, (1, 5)).means
        assert got["mrr@5"] == pytest.approx(50)
        assert got["mrr@1"] == 0


def test_a_query_without_hits_counts_zero_and_stays_in_the_mean():
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}}
    assert score_task({"q1": {"a": 1.0}}, qrels, (1,)).means["ndcg@1"] == pytest.approx(50)
    assert score_task({"q1": {"a": 1.0}, "q2": {}}, qrels, (1,)).means["recall@1"] == pytest.approx(50)


def test_run_objects_and_dictionaries_agree():
    qrels, run = draw(7)
    ranked = {q: sorted(hits.items(), key=lambda item: (-item[1], item[0])) for q, hits in run.items()}
    a, b = score_task(Run("t", ranked), qrels), score_task(run, qrels)
    assert all(np.array_equal(a.values[name], b.values[name]) for name in a.values)


def test_cutoffs_beyond_the_corpus():
    assert score_task({"q": {"a": 1.0}}, {"q": {"a": 2}}, (100,)).means["ndcg@100"] == pytest.approx(100)


@pytest.mark.parametrize("bad", ["empty", "stranger", "nan", "twice", "cutoff", "none"])
def test_bad_input_is_refused(bad):
    qrels, run, cutoffs = {"q": {"a": 1}}, {"q": {"a": 1.0}}, (1,)
    if bad == "empty":
        qrels = {"q": {"a": 0}}
    elif bad == "stranger":
        run = {"other": {"a": 1.0}}
    elif bad == "nan":
        run = {"q": {"a": float("nan")}}
    elif bad == "twice":
        run = Run("t", {"q": [("a", 2.0), ("a", 1.0)]})
    elif bad == "cutoff":
        cutoffs = (0,)
    else:
        qrels = {}
    with pytest.raises(BadInput):
        score_task(run, qrels, cutoffs)


def test_averages():
    tasks = {"a": {"ndcg@10": 10.0}, "b": {"ndcg@10": 30.0}}
    assert macro(tasks) == {"ndcg@10": 20.0}
    suites = {name: {"ndcg@10": value} for name, value in zip("wxyz", (10, 20, 30, 40), strict=True)}
    assert avg4(suites) == 25
    with pytest.raises(BadInput):
        avg4(tasks)
    with pytest.raises(BadInput):
        macro({})
