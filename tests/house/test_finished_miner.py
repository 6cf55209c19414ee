"""A finished retriever as the miner, by a stand-in with jina-embeddings-v4's two methods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from vdr.errors import BadInput
from vdr.mining.finished import encode_pages, encode_queries


class StandIn:
    """Vectors that depend on the item alone; remembers how it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict] = []

    def _vectors(self, items: Sequence, several: bool, asked: dict) -> list[torch.Tensor]:
        self.asked.append({**asked, "items": len(items)})
        return [torch.full((2 + len(str(i)), 4) if several else (6,), float(len(str(i)))) for i in items]

    def encode_image(self, images, *, task, return_multivector, batch_size):
        return self._vectors(images, return_multivector, {"task": task, "multi": return_multivector})

    def encode_text(self, texts, *, task, prompt_name, return_multivector, batch_size):
        return self._vectors(texts, return_multivector, {"task": task, "prompt": prompt_name, "multi": return_multivector})


def test_pages_and_queries_become_vector_sets() -> None:
    model = StandIn()
    pages, single = encode_pages(model, {"p1": "a", "p2": "bb", "p3": "ccc"}, batch=2)
    assert pages.ids == ["p1", "p2", "p3"]
    assert np.diff(pages.offsets).tolist() == [3, 4, 5]
    assert single.shape == (3, 6)
    assert [call["items"] for call in model.asked] == [2, 2, 1, 1]
    queries, single = encode_queries(model, {"q1": "what", "q2": "who"}, batch=8)
    assert np.diff(queries.offsets).tolist() == [6, 5]
    assert single.dtype == np.float32
    assert {call.get("prompt") for call in model.asked if "prompt" in call} == {"query"}


def test_an_empty_query_is_refused() -> None:
    with pytest.raises(BadInput, match="query 'q2' is empty"):
        encode_queries(StandIn(), {"q1": "what", "q2": " "}, batch=2)


def test_vectors_that_are_none_are_refused() -> None:
    class Broken(StandIn):
        def _vectors(self, items, several, asked):
            return [torch.full((2, 4) if several else (6,), float("nan")) for _ in items]

    with pytest.raises(BadInput, match="not finite"):
        encode_pages(Broken(), {"p": "a"}, batch=1)
