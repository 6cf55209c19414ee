"""nDCG@5 by hand, against pytrec_eval, and on inputs that trip evaluators."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from vdr.errors import BadInput, DamagedArtefact
from vdr.evaluation import metrics_wt
from vdr.evaluation.evaluate import evaluate, load_scores, macro_average, score_run
from vdr.evaluation.metrics_wt import agreement_with_pytrec_eval, check_qrels, ndcg, ndcg_per_query, tie_bounds
from vdr.evaluation.run_files import Run, read_run
from vdr.models.vectors import VectorSet, write_vectors


def test_graded_gains_by_hand():
    grades = {"a": 3, "b": 2, "c": 1, "z": 0, "y": -1}
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert ndcg(["c", "x", "a"], grades, 5) == pytest.approx((1 + 3 / 2) / ideal, abs=1e-12)
    assert ndcg(["y", "a"], grades, 5) == pytest.approx((3 / math.log2(3)) / ideal, abs=1e-12)
    assert ndcg(["a", "b", "c"], grades, 5) == 1.0
    exponential = 7 + 3 / math.log2(3) + 1 / 2
    assert ndcg(["c", "x", "a"], grades, 5, "exponential") == pytest.approx((1 + 7 / 2) / exponential, abs=1e-12)
    assert ndcg(["x", "y", "z", "w", "v", "a"], grades, 5) == 0.0
    assert ndcg(["c", "x", "a"], grades, 2) == pytest.approx(1 / (3 + 2 / math.log2(3)), abs=1e-12)


def test_the_ideal_counts_all_judged_pages_up_to_k():
    grades = {f"p{i}": 1 for i in range(8)}
    perfect = sum(1 / math.log2(r + 1) for r in range(1, 6))
    assert ndcg(["p0"], grades, 5) == pytest.approx(1 / perfect, abs=1e-12)
    assert ndcg([f"p{i}" for i in range(5)], grades, 5) == 1.0


qrels_and_runs = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(qrels_and_runs, st.booleans())
def test_agreement_with_pytrec_eval_on_random_runs(seed, many_ties):
    rng = np.random.default_rng(seed)
    pages = [f"p{i:02d}" for i in range(30)]
    qrels, rankings = {}, {}
    for q in range(6):
        judged = rng.choice(pages, size=rng.integers(1, 12), replace=False)
        qrels[f"q{q}"] = {str(p): int(g) for p, g in zip(judged, rng.integers(0, 4, len(judged)), strict=True)}
        qrels[f"q{q}"][str(judged[0])] = 1
        scores = rng.integers(0, 4, 30) if many_ties else rng.standard_normal(30)
        hits = sorted(zip(pages, scores.astype(float), strict=True), key=lambda hit: (-hit[1], hit[0]))
        if rng.random() < 0.8:
            rankings[f"q{q}"] = hits[: rng.integers(1, 30)]
    run = Run("t", rankings)
    assert agreement_with_pytrec_eval(run, qrels, 5) < 1e-9
    if not many_ties:  # without ties the file's own scores lead pytrec_eval to the same numbers
        evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.5"})
        theirs = evaluator.evaluate({q: dict(hits) for q, hits in rankings.items()})
        for query, score in ndcg_per_query(run, qrels, 5).items():
            assert score == pytest.approx(theirs[query]["ndcg_cut_5"] if query in theirs else 0.0, abs=1e-9)
    low, high, touched = tie_bounds(run, qrels, 5)
    mean = metrics_wt.mean_over_queries(ndcg_per_query(run, qrels, 5))
    assert low - 1e-9 <= mean <= high + 1e-9
    assert (touched == 0) == (high - low < 1e-12)


def test_a_constant_scorer_gets_no_credit_for_insertion_order():
    hits = [(f"p{i}", 1.0) for i in range(9)]
    run, qrels = Run("t", {"q": hits}), {"q": {"p7": 1}}
    low, high, touched = tie_bounds(run, qrels, 5)
    assert (low, high, touched) == (0.0, 100.0, 1)
    entry = score_run(run, qrels, k=5)
    assert entry["ndcg_at_5"] == 0.0
    assert entry["ties"] == 8


def test_queries_without_hits_count_zero():
    run = Run("t", {"q1": [("a", 1.0)], "q2": []})
    entry = score_run(run, {q: {"a": 1} for q in ("q1", "q2", "q3", "q4")}, k=5)
    assert entry["ndcg_at_5"] == 25.0
    assert entry["queries_without_hits"] == 3


@pytest.mark.parametrize(
    ("qrels", "queries", "pages", "text"),
    [
        ({}, [], ["a"], "no queries"),
        ({"q1": {"a": 1}}, ["q1", "q2"], ["a"], "1 of 2 queries have no relevant page"),
        ({"q1": {"a": 0}}, ["q1"], ["a"], "no relevant page"),
        ({"q1": {}}, ["q1"], ["a"], "no relevant page"),
        ({"q1": {"a": 1}, "q9": {"a": 1}}, ["q1"], ["a"], "unknown queries, e.g. 'q9'"),
        ({"q1": {"a": 1, "b": 0}}, ["q1"], ["a"], "outside the corpus, e.g. 'b'"),
        ({"q1": {"a": 1}}, ["q1"], ["a", "a"], "more than once"),
    ],
)
def test_qrels_that_cannot_be_scored_are_refused(qrels, queries, pages, text):
    with pytest.raises(BadInput, match=text) as caught:
        check_qrels(qrels, queries, pages, "suite/set")
    assert str(caught.value).startswith("suite/set")


def test_a_run_that_answers_unknown_queries_is_refused():
    with pytest.raises(BadInput, match="without qrels"):
        score_run(Run("t", {"q1": [("a", 1.0)], "q7": [("a", 1.0)]}), {"q1": {"a": 1}}, k=5)


def test_a_disagreement_with_pytrec_eval_stops_the_evaluation(monkeypatch):
    monkeypatch.setattr("vdr.evaluation.evaluate.agreement_with_pytrec_eval", lambda run, qrels, k: 0.01)
    with pytest.raises(DamagedArtefact, match="differs from pytrec_eval"):
        score_run(Run("t", {"q1": [("a", 1.0)]}), {"q1": {"a": 1}}, k=5)


def small_suite(seed: int = 0):
    """Two data sets of one suite and their vectors; the first page of each query is the nearest by construction."""
    rng = np.random.default_rng(seed)
    datasets, vectors = [], {}
    for name in ("forms", "tables"):
        pages = [f"{name}-p{i}" for i in range(12)]
        page_vectors = rng.standard_normal((24, 8)).astype(np.float32)
        page_set = VectorSet(pages, page_vectors, np.arange(0, 25, 2))
        queries = [f"{name}-q{i}" for i in range(5)]
        noise = 0.8 * rng.standard_normal((10, 8)).astype(np.float32)
        query_set = VectorSet(queries, page_vectors[:10] + noise, np.arange(0, 11, 2))
        qrels = {q: {pages[i]: 2, pages[i + 1]: 1} for i, q in enumerate(queries)}
        datasets.append(
            SimpleNamespace(
                suite="near", name=name, pages=SimpleNamespace(ids=pages), queries={q: q for q in queries}, qrels=qrels
            )
        )
        vectors[("near", name)] = (page_set, query_set)
    return datasets, vectors


def test_evaluate_writes_the_same_bytes_twice_and_every_run_agrees_with_pytrec_eval(tmp_path):
    datasets, vectors = small_suite()
    for (suite, name), (pages, queries) in vectors.items():
        write_vectors(tmp_path / "vectors" / suite / name, pages, queries)
    measures: dict[str, object] = {}
    first = evaluate(
        tmp_path / "vectors",
        datasets,
        tmp_path / "one",
        tag="n-seed-0",
        depth=7,
        in_domain={"near": ["forms"]},
        measures=measures,
    )
    evaluate(vectors, datasets, tmp_path / "two", tag="n-seed-0", depth=7, in_domain={"near": ["forms"]})
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*") if p.is_file())
    assert [str(f) for f in files] == ["near/forms.trec.gz", "near/tables.trec.gz", "scores.json"]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert load_scores(tmp_path / "one", verify_runs=True) == first
    sets = first["suites"]["near"]["datasets"]
    assert (sets["forms"]["in_domain"], sets["tables"]["in_domain"]) == (True, False)
    assert first["suites"]["near"]["in_domain"] == "some"
    assert first["suites"]["near"]["ndcg_at_5"] == pytest.approx(
        (sets["forms"]["ndcg_at_5"] + sets["tables"]["ndcg_at_5"]) / 2
    )
    assert measures["near.ndcg_at_5"] == first["suites"]["near"]["ndcg_at_5"]
    for data in datasets:
        run = read_run(tmp_path / "one" / "near" / f"{data.name}.trec.gz")
        assert agreement_with_pytrec_eval(run, data.qrels, 5) < 1e-9
        assert {len(hits) for hits in run.rankings.values()} == {7}
    assert 20 < first["suites"]["near"]["ndcg_at_5"] < 100


def test_evaluate_refuses_what_does_not_belong_together(tmp_path):
    datasets, vectors = small_suite()
    with pytest.raises(BadInput, match="no data set"):
        evaluate(vectors, [], tmp_path, tag="t")
    pages, queries = vectors[("near", "forms")]
    other = dict(vectors)
    other[("near", "forms")] = (VectorSet(["x", *pages.ids[1:]], pages.vectors, pages.offsets), queries)
    with pytest.raises(DamagedArtefact, match=r"near/forms.*'forms-p0'"):
        evaluate(other, datasets, tmp_path, tag="t")
    with pytest.raises(BadInput, match="given twice"):
        evaluate(vectors, [datasets[0], datasets[0]], tmp_path, tag="t")
    with pytest.raises(BadInput, match="no data sets"):
        macro_average({}, "ndcg_at_5")


def test_damaged_scores_and_run_files_are_found(tmp_path):
    datasets, vectors = small_suite()
    evaluate(vectors, datasets, tmp_path, tag="t", depth=5)
    run = tmp_path / "near" / "forms.trec.gz"
    tables = (tmp_path / "near" / "tables.trec.gz").read_bytes()
    run.write_bytes(tables)
    with pytest.raises(DamagedArtefact, match="hash"):
        load_scores(tmp_path, verify_runs=True)
    (tmp_path / "scores.json").write_text("{")
    with pytest.raises(DamagedArtefact, match="scores cannot be read"):
        load_scores(tmp_path)
