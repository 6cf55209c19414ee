"""An index in other engines' hands: Qdrant and LanceDB multivectors, plain safetensors.

The engines are optional (the package's extra ``index``); both run embedded here, without a server, and the tests ask them
for the top 10 that :meth:`vdr.compression.index.PageIndex.search` gives. Both compare by MaxSim with cosine or dot
products, which agree on unit vectors; page ids travel as payload.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from vdr.compression.index import Hit, PageIndex
from vdr.errors import BadInput, UnfitMachine

__all__ = ["qdrant_client", "search_lancedb", "search_qdrant", "to_lancedb", "to_qdrant", "to_safetensors"]

BATCH = 256


def _engine(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UnfitMachine(f"{package} is not installed", todo=f"pip install {package}, or export to safetensors") from None


def _pages(index: PageIndex) -> list[np.ndarray]:
    rows = index.vectors.float().numpy()
    parts = [rows[a:b] for a, b in zip(index.offsets[:-1], index.offsets[1:], strict=True)]
    empty = [name for name, part in zip(index.ids, parts, strict=True) if not len(part)]
    if empty:
        raise BadInput(f"page {empty[0]!r} has no vectors, which engines do not take", where=index.path)
    return parts


def to_safetensors(index: PageIndex, out: Path) -> Path:
    """``vectors`` [sum L, d] in the storage type and ``offsets``; the ids are in the metadata, one a line."""
    out = Path(out)
    tensors = {"vectors": index.vectors.clone(), "offsets": torch.from_numpy(index.offsets)}
    save_file(tensors, out, metadata={"ids": "\n".join(index.ids), "scoring": "maxsim, sum over query vectors"})
    return out


def qdrant_client(directory: Path) -> Any:
    """An embedded Qdrant that keeps its collections in ``directory``."""
    return _engine("qdrant_client", "qdrant-client").QdrantClient(path=str(directory))


def to_qdrant(index: PageIndex, client: Any, collection: str = "pages") -> None:
    """Fill a new collection of ``client`` (a ``qdrant_client.QdrantClient``, embedded or not) with the index's pages.

    Multivector with the comparator MAX_SIM over dot products; point numbers are page numbers, the id is in the payload.
    """
    models = _engine("qdrant_client.models", "qdrant-client")
    if client.collection_exists(collection):
        raise BadInput(f"collection {collection!r} is there already", todo="choose another name")
    comparator = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    client.create_collection(collection, vectors_config=models.VectorParams(
        size=index.width, distance=models.Distance.DOT, multivector_config=comparator))
    parts = _pages(index)
    for start in range(0, len(parts), BATCH):
        client.upsert(collection, points=[
            models.PointStruct(id=i, vector=parts[i].tolist(), payload={"page_id": index.ids[i]})
            for i in range(start, min(start + BATCH, len(parts)))])


def search_qdrant(client: Any, query: np.ndarray, depth: int = 10, collection: str = "pages") -> list[Hit]:
    """The engine's own answer to one query [Lq, d]."""
    found = client.query_points(collection, query=np.asarray(query, np.float32).tolist(), limit=depth, with_payload=True)
    return [Hit(point.payload["page_id"], float(point.score)) for point in found.points]


def to_lancedb(index: PageIndex, directory: Path, table: str = "pages") -> Any:
    """Write a LanceDB table with the columns ``page_id`` and ``vector`` (a list of fixed-size lists); returns it."""
    lancedb = _engine("lancedb", "lancedb")
    import pyarrow as pa

    parts = _pages(index)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(parts).ravel(), pa.float32()), index.width)
    column = pa.ListArray.from_arrays(pa.array(index.offsets.astype(np.int32)), flat)
    database = lancedb.connect(str(directory))
    return database.create_table(table, pa.table({"page_id": pa.array(index.ids), "vector": column}))


def search_lancedb(table: Any, query: np.ndarray, depth: int = 10) -> list[Hit]:
    """The engine's own exact answer to one query [Lq, d]; the score is Lq minus its summed cosine distance."""
    rows = np.asarray(query, np.float32)
    found = table.search(rows).distance_type("cosine").limit(depth).to_list()
    return [Hit(row["page_id"], len(rows) - float(row["_distance"])) for row in found]
