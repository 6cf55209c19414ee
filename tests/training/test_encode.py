"""Encoding a data set: format, order, independence from the batch, the vision cache."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vdr.corpus.access import load_train
from vdr.errors import BadInput, DamagedArtefact
from vdr.evaluation.encode import Encoder, build_vision_cache, encode_suites, single_vectors
from vdr.models.vectors import read_vectors
from vdr.models.vision_cache import CachedFeatures, LiveFeatures

QUERIES = {"q2": "revenue of the north", "q0": "cost", "q1": "total share of the south region in the plan of the year"}


@pytest.fixture(scope="module")
def checkpoint(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("checkpoint"), epochs=0.5).out


@pytest.fixture(scope="module")
def dataset(corpus_dir):
    return SimpleNamespace(suite="near", name="forms", pages=load_train(corpus_dir).pages, queries=QUERIES, qrels={})


def test_batch_size_does_not_change_vectors(checkpoint, backbone_dir, training, dataset):
    found = []
    for batch in (1, 8):
        encoder = Encoder(checkpoint, backbone_dir, training.model_copy(update={"encode_batch": batch}))
        pages = encoder.pages(list(dataset.pages.ids), encoder.source(dataset.pages))
        found.append((pages, encoder.queries(QUERIES)))
    for one, eight in zip(*found, strict=True):
        assert one.ids == eight.ids
        assert np.array_equal(one.offsets, eight.offsets)
        np.testing.assert_allclose(one.vectors, eight.vectors, atol=2e-6)


def test_suites_are_written_in_the_vectors_format_and_twice_alike(
    checkpoint, backbone_dir, training, dataset, grid, tmp_path
):
    caches = tmp_path / "caches"
    build_vision_cache(dataset.pages, backbone_dir, caches / "near" / "forms", training)
    measures: dict = {}
    for out in ("a", "b"):
        encode_suites(checkpoint, backbone_dir, [dataset], caches, training, tmp_path / out, measures)
    pages, queries = read_vectors(tmp_path / "a" / "near" / "forms")
    assert pages.ids == list(dataset.pages.ids)
    assert queries.ids == ["q2", "q0", "q1"]
    assert pages.grid.tolist() == [list(grid)] * 30
    assert (np.add.reduceat(pages.is_image, pages.offsets[:-1]) == grid[0] * grid[1]).all()
    np.testing.assert_allclose(np.linalg.norm(pages.vectors, axis=1), 1, atol=1e-5)
    for file in sorted((tmp_path / "a" / "near" / "forms").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / "near" / "forms" / file.name).read_bytes(), file.name
    assert measures["pages"] == 30
    single = single_vectors(pages)
    np.testing.assert_allclose(np.linalg.norm(single, axis=1), 1, atol=1e-5)
    mean = pages.item(3).mean(0)
    np.testing.assert_allclose(single[3], mean / np.linalg.norm(mean), atol=1e-6)


def test_cached_features_equal_the_towers_own_forward(checkpoint, backbone_dir, training, dataset, cache_dir, grid):
    encoder = Encoder(checkpoint, backbone_dir, training)
    cached, grids = CachedFeatures(cache_dir).get(dataset.pages.ids[:3])
    pixels, grid_thw = encoder.processor.pixels([dataset.pages.image(i) for i in range(3)])
    with torch.no_grad():
        library = encoder.student.backbone.model.visual(pixels, grid_thw=grid_thw).pooler_output
    torch.testing.assert_close(torch.cat(cached), library, atol=1e-5, rtol=0)
    assert grids == [grid] * 3


def test_pages_that_need_no_resizing_skip_the_image_processor_and_get_the_same_patches(
    checkpoint, backbone_dir, training, dataset
):
    encoder = Encoder(checkpoint, backbone_dir, training)
    source = LiveFeatures(dataset.pages, encoder.processor, encoder.student.vision)
    patches, grid = source._pixels(dataset.pages.ids[0])
    theirs, their_grid = encoder.processor.pixels([dataset.pages.image(0)])
    assert torch.equal(grid, their_grid)
    torch.testing.assert_close(patches, theirs, atol=1e-5, rtol=0)
    odd = dataset.pages.image(0).resize((200, 150))
    page_set = SimpleNamespace(index=lambda page: 0, image=lambda at: odd)
    patches, grid = LiveFeatures(page_set, encoder.processor, encoder.student.vision)._pixels("odd")
    theirs, their_grid = encoder.processor.pixels([odd])
    assert torch.equal(grid, their_grid)
    assert torch.equal(patches, theirs)


def test_bad_input_is_named(checkpoint, backbone_dir, training, dataset, cache_dir, tmp_path):
    encoder = Encoder(checkpoint, backbone_dir, training)
    with pytest.raises(BadInput, match="query 'q9' cannot be encoded"):
        encoder.queries({"q1": "cost", "q9": "  "})
    with pytest.raises(BadInput, match="no query"):
        encoder.queries({})
    with pytest.raises(BadInput, match="no page"):
        encoder.pages([], encoder.source(dataset.pages))
    with pytest.raises(DamagedArtefact, match="vision cache cannot be read"):
        encoder.source(dataset.pages, tmp_path)
    with pytest.raises(BadInput, match="'p99' is not in the vision cache"):
        encoder.pages(["p99"], encoder.source(dataset.pages, cache_dir))
