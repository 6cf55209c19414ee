"""Exact search, the tie rule and run files."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdr.corpus.qrels import read_qrels, write_qrels
from vdr.errors import BadInput, DamagedArtefact
from vdr.evaluation.run_files import Run, read_run, write_run
from vdr.evaluation.search import rank_scores, search
from vdr.kernels.reference import maxsim_search as reference_search
from vdr.models.vectors import VectorSet, read_vectors, write_vectors


def ragged(rng: np.random.Generator, names: list[str], width: int = 8, longest: int = 6, dtype=np.float32) -> VectorSet:
    lengths = rng.integers(1, longest + 1, len(names))
    vectors = rng.standard_normal((int(lengths.sum()), width)).astype(dtype)
    return VectorSet(names, vectors, np.concatenate([[0], lengths.cumsum()]).astype(np.int64))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 15), st.integers(1, 20), st.integers(1, 40))
def test_search_agrees_with_the_reference_at_any_block_size(seed, n_queries, n_pages, depth, block):
    rng = np.random.default_rng(seed)
    queries = ragged(rng, [f"q{i}" for i in range(n_queries)])
    pages = ragged(rng, [f"p{i}" for i in rng.permutation(n_pages)])
    found = search(queries, pages, depth=depth, query_vectors_per_block=block).run
    expected = reference_search(queries.vectors, queries.offsets, pages.vectors, pages.offsets)
    for row, name in zip(expected, queries.ids, strict=True):
        hits = found.rankings[name]
        best = sorted(zip(pages.ids, row, strict=True), key=lambda hit: (-np.float32(hit[1]), hit[0]))
        assert len(hits) == min(depth, n_pages)
        np.testing.assert_allclose([s for _, s in hits], [s for _, s in best[: len(hits)]], rtol=1e-5, atol=1e-5)
        scores = dict(zip(pages.ids, row, strict=True))
        np.testing.assert_allclose([scores[p] for p, _ in hits], [s for _, s in hits], rtol=1e-5, atol=1e-5)


def test_a_constant_scorer_ranks_by_page_id_and_counts_its_ties():
    names = ["p10", "p9", "p1", "p02"]
    pages = VectorSet(names, np.ones((4, 3), np.float32), np.arange(5))
    queries = VectorSet(["q"], np.ones((2, 3), np.float32), np.array([0, 2]))
    found = search(queries, pages, depth=3)
    assert [page for page, _ in found.run.rankings["q"]] == ["p02", "p1", "p10"]  # string order, not numbers' order
    assert {score for _, score in found.run.rankings["q"]} == {6.0}
    assert (found.ties, found.cut_in_tie) == (2, 1)


def test_the_tie_rule_does_not_depend_on_storage_order():
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.standard_normal((5, 4)).astype(np.float32), 3, axis=0)
    names = [f"p{i:02d}" for i in range(15)]
    queries = VectorSet(["q"], rng.standard_normal((3, 4)).astype(np.float32), np.array([0, 3]))
    expected = search(queries, VectorSet(names, vectors, np.arange(16)), depth=7).run.rankings
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(15)
        mixed = VectorSet([names[i] for i in order], vectors[order], np.arange(16))
        assert search(queries, mixed, depth=7).run.rankings == expected


def test_depth_beyond_the_corpus_gives_every_page_and_an_empty_page_is_no_hit():
    pages = VectorSet(["a", "empty", "b"], np.eye(2, dtype=np.float32), np.array([0, 1, 1, 2]))
    queries = VectorSet(["q"], np.array([[1.0, 0.0]], np.float32), np.array([0, 1]))
    assert search(queries, pages, depth=100).run.rankings == {"q": [("a", 1.0), ("b", 0.0)]}


def test_negative_similarities_stay_negative_beside_longer_pages():
    pages = VectorSet(["long", "short"], -np.ones((5, 2), np.float32), np.array([0, 4, 5]))
    queries = VectorSet(["q"], np.ones((1, 2), np.float32), np.array([0, 1]))
    assert search(queries, pages, depth=2).run.rankings == {"q": [("long", -2.0), ("short", -2.0)]}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(bad):
    with pytest.raises(BadInput, match="NaN or infinite"):
        rank_scores(np.array([0.0, bad, 1.0], np.float32), 2)


def test_vectors_survive_the_disk_and_faults_are_named(tmp_path):
    rng = np.random.default_rng(1)
    pages, queries = ragged(rng, ["a", "b"], dtype=np.float16), ragged(rng, ["q"], dtype=np.float16)
    pages = VectorSet(
        pages.ids, pages.vectors, pages.offsets, np.ones(len(pages.vectors), bool), np.array([[1, 2], [2, 1]])
    )
    write_vectors(tmp_path / "one", pages, queries)
    write_vectors(tmp_path / "two", pages, queries)
    for name in ("pages.safetensors", "queries.safetensors", "ids.json", "grid.npy"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    again, _ = read_vectors(tmp_path / "one")
    np.testing.assert_array_equal(again.vectors, pages.vectors)
    np.testing.assert_array_equal(again.grid, pages.grid)

    with pytest.raises(BadInput, match="more than once"):
        write_vectors(tmp_path / "three", VectorSet(["a", "a"], pages.vectors, pages.offsets), queries)
    broken = pages.vectors.copy()
    broken[-1, 0] = np.nan
    with pytest.raises(BadInput, match="'b' are not finite"):
        write_vectors(tmp_path / "three", VectorSet(pages.ids, broken, pages.offsets), queries)
    file = tmp_path / "one" / "pages.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(DamagedArtefact, match="cannot be read"):
        read_vectors(tmp_path / "one")


def test_empty_sides_and_unlike_widths_are_refused():
    one = VectorSet(["x"], np.ones((1, 2), np.float32), np.array([0, 1]))
    none = VectorSet([], np.ones((0, 2), np.float32), np.array([0]))
    wide = VectorSet(["x"], np.ones((1, 3), np.float32), np.array([0, 1]))
    for queries, pages, text in ((one, none, "no pages"), (none, one, "no queries"), (wide, one, "wide")):
        with pytest.raises(BadInput, match=text):
            search(queries, pages, depth=1)


RUN = Run("arm-seed-0", {"q2": [("b", 1.5), ("a", 0.1), ("c", 0.1)], "q1": [("a", 1 / 3)]})


@pytest.mark.parametrize("name", ["x.trec", "x.trec.gz"])
def test_a_run_file_gives_back_the_run_and_the_same_bytes(tmp_path, name):
    run = Run(RUN.tag, {q: [(p, float(np.float32(s))) for p, s in hits] for q, hits in RUN.rankings.items()})
    written = write_run(tmp_path / name, run)
    assert read_run(tmp_path / name, sha256=str(written["sha256"])).rankings == run.rankings
    assert written["lines"] == 4
    before = (tmp_path / name).read_bytes()
    write_run(tmp_path / name, Run(run.tag, dict(reversed(run.rankings.items()))))
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("q Q0 a 1 1.0 t\nq Q0 b 2 0.5 t", "cut off"),
        ("q Q0 a 1 1.0 t\nq Q0 b 2 0.5\n", "line 2"),
        ("q Q0 a 1 nan t\n", "line 1"),
        ("q Q0 a 1 one t\n", "line 1"),
        ("q Q0 a 2 1.0 t\n", "line 1"),
        ("q QQ a 1 1.0 t\n", "line 1"),
        ("q Q0 a 1 1.0 t\nq Q0 a 2 0.5 t\n", "ranks page 'a' twice"),
        ("q Q0 a 1 0.5 t\nq Q0 b 2 1.0 t\n", "out of order"),
        ("q Q0 b 1 0.5 t\nq Q0 a 2 0.5 t\n", "out of order"),
    ],
)
def test_a_damaged_run_file_is_named(tmp_path, text, complaint):
    path = tmp_path / "x.trec"
    path.write_text(text)
    with pytest.raises(DamagedArtefact, match=complaint) as caught:
        read_run(path)
    assert "x.trec" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_or_changed_compressed_run_is_refused(tmp_path):
    path = tmp_path / "x.trec.gz"
    written = write_run(path, Run("t", {"q": [("a", 1.0), ("b", 0.5)]}))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(DamagedArtefact, match="cannot be read"):
        read_run(path)
    path.write_bytes(gzip.compress(b"q Q0 a 1 1.0 t\n"))  # cut at a line's end: only the hash can tell
    with pytest.raises(DamagedArtefact, match="hash"):
        read_run(path, sha256=str(written["sha256"]))
    with pytest.raises(BadInput, match="missing"):
        read_run(tmp_path / "y.trec.gz")


def test_ids_that_a_run_file_cannot_carry_are_refused(tmp_path):
    with pytest.raises(BadInput, match="white space"):
        write_run(tmp_path / "x.trec", Run("t", {"q": [("page 1", 1.0)]}))
    with pytest.raises(BadInput, match="white space"):
        write_run(tmp_path / "x.trec", Run("t", {"": [("p", 1.0)]}))
    assert not (tmp_path / "x.trec").exists()


def test_qrels_survive_the_disk_and_faults_are_named(tmp_path):
    qrels = {"q2": {"a": 3, "b": 0}, "q1": {"é": 1}}
    write_qrels(tmp_path / "q.tsv.gz", qrels)
    assert read_qrels(tmp_path / "q.tsv.gz") == qrels
    (tmp_path / "q.tsv").write_text("query_id\tpage_id\tgrade\nq\ta\t1\nq\ta\t2\n")
    with pytest.raises(DamagedArtefact, match="line 3: query 'q' judges page 'a' twice"):
        read_qrels(tmp_path / "q.tsv")
    (tmp_path / "q.tsv").write_text("q\ta\t1\n")
    with pytest.raises(DamagedArtefact, match="header"):
        read_qrels(tmp_path / "q.tsv")
