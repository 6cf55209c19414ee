"""The index on disk, exact search, cascade, exports, and what happens to a damaged index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from vdr.compression.exports import search_lancedb, search_qdrant, to_lancedb, to_qdrant, to_safetensors
from vdr.compression.index import build_index, cascade, open_index
from vdr.compression.pooling import Pooling, compress, unit
from vdr.errors import BadInput, DamagedArtefact
from vdr.evaluation.search import search
from vdr.models.vectors import VectorSet


def make_sets(n: int = 60, d: int = 16, seed: int = 0) -> tuple[VectorSet, VectorSet]:
    rng = np.random.default_rng(seed)
    lengths = np.full(n, 12)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = unit(rng.standard_normal((offsets[-1], d)))
    pages = VectorSet([f"p{i:03}" for i in range(n)], rows, offsets, np.ones(len(rows), bool),
                      np.tile(np.array([3, 4], np.int32), (n, 1)))
    queries = VectorSet([f"q{i}" for i in range(5)], unit(rng.standard_normal((20, d))), np.arange(0, 21, 4))
    return pages, queries


@pytest.fixture
def sets():
    return make_sets()


@pytest.mark.parametrize(("storage", "error"), [("float32", 0.0), ("float16", 5e-3), ("bfloat16", 2e-2)])
def test_search_equals_exact_search(tmp_path, sets, storage, error):
    pages, queries = sets
    index = build_index(pages, tmp_path / "index", storage=storage, made_from={"encoder": "random"})
    hits = index.search(queries, 10)
    want = search(queries, pages, depth=10).run.rankings
    for name, found in hits.items():
        assert np.abs(np.array([h.score for h in found]) - np.array([s for _, s in want[name]])).max() <= error
        if storage == "float32":
            assert [h.page_id for h in found] == [page for page, _ in want[name]]
    assert index.payload == pages.vectors.size * (4 if storage == "float32" else 2)
    assert json.loads((tmp_path / "index" / "manifest.json").read_text())["made_from"] == {"encoder": "random"}


def test_the_index_is_memory_mapped(tmp_path, sets):
    index = build_index(sets[0], tmp_path / "index")
    assert str(tmp_path / "index" / "vectors.bin") in Path("/proc/self/maps").read_text()
    assert index.vectors.dtype == torch.float16


def test_equal_scores_are_ranked_by_page_id(tmp_path):
    pages, queries = make_sets(4)
    same = VectorSet(["d", "b", "a", "c"], np.tile(pages.item(0), (4, 1)), pages.offsets)
    hits = build_index(same, tmp_path / "index").search(queries, 3)
    assert all([hit.page_id for hit in found] == ["a", "b", "c"] for found in hits.values())


def test_a_wide_enough_cascade_is_the_raw_search(tmp_path, sets):
    pages, queries = sets
    raw = build_index(pages, tmp_path / "raw")
    pooled, _ = compress(pages, Pooling("hac", 16, 3))
    coarse = build_index(pooled, tmp_path / "hac")
    assert cascade(coarse, raw, queries, queries, first=60, depth=10) == raw.search(queries, 10)
    narrow = cascade(coarse, raw, queries, queries, first=10, depth=10)
    ids = {name: {hit.page_id for hit in hits} for name, hits in coarse.search(queries, 10).items()}
    assert {name: {hit.page_id for hit in hits} for name, hits in narrow.items()} == ids
    with pytest.raises(BadInput, match="first stage keeps 5"):
        cascade(coarse, raw, queries, queries, first=5, depth=10)


@pytest.mark.parametrize("damage", ["short", "missing", "manifest", "pages", "format", "hash", "offsets"])
def test_a_damaged_index_is_refused_with_its_file(tmp_path, sets, damage):
    path = tmp_path / "index"
    build_index(sets[0], path)
    manifest = json.loads((path / "manifest.json").read_text())
    if damage == "short":
        data = (path / "vectors.bin").read_bytes()
        (path / "vectors.bin").write_bytes(data[:-2])
    elif damage == "missing":
        (path / "ids.json").unlink()
    elif damage == "manifest":
        (path / "manifest.json").write_text("{")
    elif damage == "hash":
        data = bytearray((path / "vectors.bin").read_bytes())
        data[0] ^= 1
        (path / "vectors.bin").write_bytes(bytes(data))
        open_index(path)  # sizes fit: only the hash can tell
    elif damage == "offsets":
        offsets = np.load(path / "offsets.npy")
        offsets[3] = 10**6
        np.save(path / "offsets.npy", offsets)
    else:
        manifest["pages" if damage == "pages" else "format"] = 7
        (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedArtefact):
        open_index(path, verify=damage == "hash")


def test_bad_input_leaves_nothing_behind(tmp_path, sets):
    pages, queries = sets
    build_index(pages, tmp_path / "index")
    with pytest.raises(BadInput, match="there already"):
        build_index(pages, tmp_path / "index")
    with pytest.raises(BadInput, match="no pages"):
        build_index(VectorSet([], pages.vectors[:0], np.zeros(1, np.int64)), tmp_path / "empty")
    huge = VectorSet(pages.ids, pages.vectors * 1e6, pages.offsets)
    with pytest.raises(BadInput, match="does not fit into float16"):
        build_index(huge, tmp_path / "huge")
    with pytest.raises(BadInput, match="no index"):
        open_index(tmp_path / "nothing")
    with pytest.raises(BadInput, match="width"):
        open_index(tmp_path / "index").scores(queries.vectors[:, :8], queries.offsets)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index"]


def test_safetensors_export_is_read_back(tmp_path, sets):
    index = build_index(sets[0], tmp_path / "index", storage="bfloat16")
    to_safetensors(index, tmp_path / "pages.safetensors")
    with safe_open(tmp_path / "pages.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("vectors"), index.vectors)
        assert file.metadata()["ids"].split("\n") == index.ids


def test_qdrant_returns_the_same_top_ten(tmp_path, sets):
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client (extra `index`) is not installed")
    pages, queries = sets
    index = build_index(compress(pages, Pooling("hac", 16, 3))[0], tmp_path / "index")
    client = qdrant.QdrantClient(path=str(tmp_path / "qdrant"))
    to_qdrant(index, client)
    for i, (name, hits) in enumerate(index.search(queries, 10).items()):
        theirs = search_qdrant(client, queries.item(i))
        assert [hit.page_id for hit in theirs] == [hit.page_id for hit in hits], name
        np.testing.assert_allclose([hit.score for hit in theirs], [hit.score for hit in hits], atol=1e-3)
    with pytest.raises(BadInput, match="there already"):
        to_qdrant(index, client)
    client.close()


def test_lancedb_returns_the_same_top_ten(tmp_path, sets):
    pytest.importorskip("lancedb", reason="lancedb (extra `index`) is not installed")
    pages, queries = sets
    index = build_index(compress(pages, Pooling("hac", 16, 3))[0], tmp_path / "index")
    table = to_lancedb(index, tmp_path / "lance")
    for i, (name, hits) in enumerate(index.search(queries, 10).items()):
        theirs = search_lancedb(table, queries.item(i))
        assert [hit.page_id for hit in theirs] == [hit.page_id for hit in hits], name
        np.testing.assert_allclose([hit.score for hit in theirs], [hit.score for hit in hits], atol=5e-3)
