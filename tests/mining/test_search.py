import numpy as np
import pandas as pd
import pytest

from vdr.errors import BadInput, DamagedArtefact
from vdr.mining import mine_pools, read_pools
from vdr.mining import search as search_module
from vdr.study.sections.mining import MiningSettings


class Ragged:
    def __init__(self, ids, items):
        self.ids = list(ids)
        self.vectors = np.concatenate(items).astype(np.float32)
        self.offsets = np.concatenate([[0], np.cumsum([len(i) for i in items])]).astype(np.int64)


def maxsim(q, p):
    return float((q.astype(np.float64) @ p.astype(np.float64).T).max(1).sum())


@pytest.fixture
def corpus():
    rng = np.random.default_rng(3)
    ids = [f"p{i:02d}" for i in rng.permutation(30)]
    pages = [rng.normal(size=(rng.integers(2, 6), 8)).astype(np.float32) for _ in ids]
    queries = [rng.normal(size=(rng.integers(1, 4), 8)).astype(np.float32) for _ in range(7)]
    rows = pd.DataFrame(
        {
            "row_id": [11, 3, 5, 7, 9, 1, 20, 21],
            "query_id": ["q0", "q1", "q2", "q3", "q4", "q5", "q6", "q6"],
            "page_id": [ids[i] for i in (0, 1, 2, 3, 4, 5, 6, 7)],
        }
    )
    return (
        Ragged(ids, pages),
        Ragged([f"q{i}" for i in range(7)], queries),
        rows,
        dict(zip(ids, pages, strict=True)),
        queries,
    )


def mine(tmp_path, corpus, name="out", **settings):
    pages, queries, rows = corpus[:3]
    measures = {}
    mine_pools(pages, queries, rows, MiningSettings(**settings), tmp_path / name, measures)
    return read_pools(tmp_path / name), measures


def expected(corpus, pool):
    _, _, rows, pages, queries = corpus
    out = {}
    for row in rows.itertuples():
        scores = {page: maxsim(queries[int(row.query_id[1:])], v) for page, v in pages.items()}
        ranked = sorted(scores, key=lambda p: (-scores[p], p))
        out[row.row_id] = ranked[:pool], ranked.index(row.page_id) + 1, scores[row.page_id]
    return out


@pytest.mark.parametrize("depth", [30, 5000])
def test_full_depth_is_exact_search(tmp_path, corpus, depth):
    pools, measures = mine(tmp_path, corpus, pool=10, depth=depth, shard_rows=3)
    truth = expected(corpus, 10)
    assert list(pools["row_id"]) == sorted(truth)
    for pool in pools.itertuples():
        ranked, at, score = truth[pool.row_id]
        assert list(pool.candidates) == ranked
        assert pool.labelled_rank == (at if at <= 10 else -1)
        assert pool.labelled_score == pytest.approx(score, rel=1e-5)
    assert measures["labelled_page_found"] == sum(at <= 10 for _, at, _ in truth.values())
    assert measures["rows_with_a_shorter_pool"] == 0


def test_repeated_queries_are_rows_with_pools_of_their_own(tmp_path, corpus):
    pools, _ = mine(tmp_path, corpus, pool=10)
    twins = pools[pools["row_id"].isin([20, 21])]
    assert len(twins) == 2
    assert list(twins.iloc[0]["candidates"]) == list(twins.iloc[1]["candidates"])
    assert twins.iloc[0]["labelled_score"] != twins.iloc[1]["labelled_score"]


def test_first_stage_cuts_by_cosine_of_the_single_vectors(tmp_path, corpus):
    pages, queries, rows, vectors, multi = corpus
    rng = np.random.default_rng(0)
    page_single, query_single = rng.normal(size=(30, 5)), rng.normal(size=(7, 5))
    mine_pools(
        pages,
        queries,
        rows,
        MiningSettings(depth=6, pool=100),
        tmp_path / "o",
        measures := {},
        page_single=page_single,
        query_single=query_single,
    )
    pools = read_pools(tmp_path / "o").set_index("row_id")
    unit = page_single / np.linalg.norm(page_single, axis=1, keepdims=True)
    for row in rows.itertuples():
        q = int(row.query_id[1:])
        first = {pages.ids[i] for i in np.argsort(-(unit @ query_single[q]))[:6]}
        scores = {p: maxsim(multi[q], vectors[p]) for p in first}
        pool = pools.loc[row.row_id]
        assert list(pool.candidates) == sorted(first, key=lambda p: (-scores[p], p))
        # The labelled page's score is known even where the first stage lost it.
        assert pool.labelled_score == pytest.approx(maxsim(multi[q], vectors[row.page_id]), rel=1e-5)
    assert measures["rows_with_a_shorter_pool"] == len(rows)


def test_mean_vectors_stand_in_for_single_vectors(tmp_path, corpus):
    pages, queries, rows = corpus[:3]
    mine_pools(pages, queries, rows, MiningSettings(depth=6), tmp_path / "a", {})
    mine_pools(
        pages,
        queries,
        rows,
        MiningSettings(depth=6),
        tmp_path / "b",
        {},
        page_single=search_module.mean_vectors(pages),
        query_single=search_module.mean_vectors(queries),
    )
    assert (tmp_path / "a/pools.parquet").read_bytes() == (tmp_path / "b/pools.parquet").read_bytes()


@pytest.mark.parametrize("depth", [3, 5000])
def test_ties_go_to_the_smaller_page_id_and_are_counted(tmp_path, depth):
    same = np.ones((2, 4), np.float32)
    pages = Ragged(["p10", "p9", "p2", "a"], [same, same, same, -same])
    queries = Ragged(["q"], [np.ones((1, 4), np.float32)])
    rows = pd.DataFrame({"row_id": [0], "query_id": ["q"], "page_id": ["p9"]})
    mine_pools(pages, queries, rows, MiningSettings(depth=depth, pool=2), tmp_path / "o", measures := {})
    pool = read_pools(tmp_path / "o").iloc[0]
    assert list(pool["candidates"]) == ["p10", "p2"]  # compared as strings
    assert pool["labelled_rank"] == -1
    assert pool["labelled_score"] == pytest.approx(4.0)
    assert measures["equal_neighbours_in_pools"] == 1
    assert measures["rows_with_equal_scores_at_the_cut"] == 1


def test_killed_and_restarted_or_shared_gives_the_same_bytes(tmp_path, corpus, monkeypatch):
    pages, queries, rows = corpus[:3]
    settings = MiningSettings(pool=10, shard_rows=2)
    mine_pools(pages, queries, rows, settings, tmp_path / "whole", {})
    wanted = (tmp_path / "whole/pools.parquet").read_bytes()

    written = []
    real = search_module._write_part

    def fails_at_the_third(out, shard, frame):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(shard)
        real(out, shard, frame)

    monkeypatch.setattr(search_module, "_write_part", fails_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        mine_pools(pages, queries, rows, settings, tmp_path / "killed", {})
    monkeypatch.setattr(search_module, "_write_part", real)
    mine_pools(pages, queries, rows, settings, tmp_path / "killed", measures := {})
    assert measures["timing"]["rows_mined_here"] == len(rows) - 4
    assert (tmp_path / "killed/pools.parquet").read_bytes() == wanted
    assert not (tmp_path / "killed/partial").exists()

    for worker in (1, 0):
        mine_pools(pages, queries, rows, settings, tmp_path / "shared", {}, worker=worker, workers=2)
    search_module.merge_pools(tmp_path / "shared", rows, settings, {})
    assert (tmp_path / "shared/pools.parquet").read_bytes() == wanted


def test_parts_of_another_search_are_refused(tmp_path, corpus):
    pages, queries, rows = corpus[:3]
    mine_pools(pages, queries, rows, MiningSettings(pool=10, shard_rows=2), tmp_path, {}, worker=0, workers=2)
    with pytest.raises(DamagedArtefact, match="another search"):
        mine_pools(pages, queries, rows, MiningSettings(pool=5, shard_rows=2), tmp_path, {})
    with pytest.raises(DamagedArtefact, match="2 of 4 parts are missing"):
        search_module.merge_pools(tmp_path, rows, MiningSettings(pool=10, shard_rows=2), {})


def test_unknown_query_page_and_misfit_single_vectors(tmp_path, corpus):
    pages, queries, rows = corpus[:3]
    with pytest.raises(BadInput, match=r"rows\.query_id.*'nobody'"):
        mine_pools(pages, queries, rows.assign(query_id="nobody"), MiningSettings(), tmp_path, {})
    with pytest.raises(BadInput, match=r"rows\.page_id.*'lost'"):
        mine_pools(pages, queries, rows.assign(page_id="lost"), MiningSettings(), tmp_path, {})
    with pytest.raises(BadInput, match="differ in width"):
        mine_pools(pages, queries, rows, MiningSettings(depth=5), tmp_path, {}, page_single=np.ones((30, 3)))
    with pytest.raises(BadInput, match="no pages"):
        mine_pools(Ragged([], [np.ones((0, 8))]), queries, rows, MiningSettings(), tmp_path, {})
