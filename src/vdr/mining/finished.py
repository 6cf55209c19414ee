"""A finished retriever as the miner: jina-embeddings-v4's interface (WT §3, App. J), single- and multi-vector in one model.

The model's own code comes from its repository at the pinned revision (`trust_remote_code`); what is asked of it is written down in
`Retriever`, so that another model with the same two methods serves as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from vdr.errors import BadInput, UnfitMachine
from vdr.models.vectors import VectorSet
from vdr.progress import track

__all__ = ["Retriever", "encode_pages", "encode_queries", "load_retriever"]


class Retriever(Protocol):
    """The part of jina-embeddings-v4's interface that mining uses; each call returns one tensor an item."""

    def encode_image(self, images: Sequence[Any], *, task: str, return_multivector: bool, batch_size: int) -> Sequence[Any]: ...

    def encode_text(
        self, texts: Sequence[str], *, task: str, prompt_name: str, return_multivector: bool, batch_size: int
    ) -> Sequence[Any]: ...


def load_retriever(folder: Path, device: str) -> Retriever:
    """The model in a directory of the hub's form. Raises `UnfitMachine` when its own code asks for a package that is not here."""
    from transformers import AutoModel

    try:
        model = AutoModel.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
    except ImportError as error:
        raise UnfitMachine(f"the miner's code needs a package ({error})", where=folder, todo="install it beside the locked ones") from error
    return model.to(device).eval()


def encode_pages(
    retriever: Retriever, images: Mapping[str, Any], batch: int, label: str = "miner: pages"
) -> tuple[VectorSet, np.ndarray]:
    """Multi-vectors `[sum L, D]` and single vectors `[n, Ds]` (fp32) of pages; `images` gives an image by page id, in order."""
    ids = list(images)
    multi: list[np.ndarray] = []
    single: list[np.ndarray] = []
    with track(len(ids), label, "page") as bar:
        for start in range(0, len(ids), batch):
            pages = [images[name] for name in ids[start : start + batch]]
            multi += _arrays(retriever.encode_image(pages, task="retrieval", return_multivector=True, batch_size=batch), 2)
            single += _arrays(retriever.encode_image(pages, task="retrieval", return_multivector=False, batch_size=batch), 1)
            bar.update(len(pages))
    return _sets(ids, multi, single)


def encode_queries(
    retriever: Retriever, queries: Mapping[str, str], batch: int, label: str = "miner: queries"
) -> tuple[VectorSet, np.ndarray]:
    """The same for queries by query id. Raises `BadInput` on an empty query."""
    for name, text in queries.items():
        if not text.strip():
            raise BadInput(f"query {name!r} is empty", where="rows.query", todo="leave it out")
    ids = list(queries)
    multi: list[np.ndarray] = []
    single: list[np.ndarray] = []
    common: dict[str, Any] = {"task": "retrieval", "prompt_name": "query", "batch_size": batch}
    with track(len(ids), label, "query") as bar:
        for start in range(0, len(ids), batch):
            texts = [queries[name] for name in ids[start : start + batch]]
            multi += _arrays(retriever.encode_text(texts, return_multivector=True, **common), 2)
            single += _arrays(retriever.encode_text(texts, return_multivector=False, **common), 1)
            bar.update(len(texts))
    return _sets(ids, multi, single)


def _arrays(found: Sequence[Any], dimensions: int) -> list[np.ndarray]:
    arrays = [torch.as_tensor(item).detach().float().cpu().numpy() for item in found]
    for array in arrays:
        if array.ndim != dimensions or array.shape[0] == 0 or not np.isfinite(array).all():
            raise BadInput(f"the miner returned vectors of shape {array.shape}, or some that are not finite", where="miner")
    return arrays


def _sets(ids: list[str], multi: list[np.ndarray], single: list[np.ndarray]) -> tuple[VectorSet, np.ndarray]:
    if not len(ids) == len(multi) == len(single):
        raise BadInput(f"the miner returned {len(multi)} and {len(single)} items for {len(ids)}", where="miner")
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in multi])]).astype(np.int64)
    return VectorSet(ids, np.concatenate(multi), offsets), np.stack(single)
