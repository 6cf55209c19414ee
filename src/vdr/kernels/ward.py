"""Euclidean Ward clustering of the vectors of a page, cut at K clusters; many pages at once.

Source: EV §5.1 and Algorithm 2, line 7. The reference twin is SciPy's ``linkage(..., "ward")`` on fp64 copies of the same
features, its merge list cut after the N − K cheapest merges (:func:`ward_reference`). Partitions are identical unless two
merge costs agree to about 1e-12 relatively; such ties are decided by the smaller index, the same on every machine.

*Not* compatible with: colpali-engine's ``HierarchicalTokenPooler`` (it hands the rows of a 1 − cosine matrix to Ward as if
they were observations, and cuts at a pooling factor), PyLate's and sentence-transformers' token pooling (which keep
protected tokens apart, cut at a factor, and do not renormalise alike), and SciPy's ``fcluster(..., "maxclust")``, which may
return fewer than K clusters when merge heights tie; here the number of clusters is always min(K, N).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from vdr.errors import BadInput
from vdr.kernels import native
from vdr.kernels.native import pointer


def ward_labels(features: np.ndarray, k: int) -> np.ndarray:
    """Labels int32 [N] of the Ward partition of ``features`` [N, d] into min(k, N) clusters.

    Clusters are numbered by their smallest member. Features are read as fp32; decisions are made in fp64. Raises
    :class:`~vdr.errors.BadInput` for k < 1, an empty page, NaN or infinity.
    """
    x = check_features(features, k)
    n = len(x)
    if n <= k:
        return np.arange(n, dtype=np.int32)
    library = native.library()
    if library is None:
        return ward_reference(x, k)
    left, right = np.empty(n - 1, np.int32), np.empty(n - 1, np.int32)
    height, labels = np.empty(n - 1, np.float64), np.empty(n, np.int32)
    long = ctypes.c_int64
    failed = library.vdr_ward(pointer(x), long(n), long(x.shape[1]), pointer(left), pointer(right), pointer(height))
    if failed == 1:
        raise MemoryError(f"Ward clustering of {n} vectors needs {4 * n * n >> 20} MiB")
    if failed:  # the chain did not close within the matrix's error: let the twin decide
        native.fell_back("Ward", "the chain did not close")
        return ward_reference(x, k)
    library.vdr_ward_cut(long(n), long(k), pointer(left), pointer(right), pointer(height), pointer(labels))
    return labels


def ward_pages(pages: Sequence[np.ndarray], k: int, *, workers: int | None = None) -> list[np.ndarray]:
    """:func:`ward_labels` of every page, spread over threads; the result does not depend on their number."""
    return native.run(lambda page: ward_labels(page, k), pages, workers=workers)


def check_features(features: np.ndarray, k: int) -> np.ndarray:
    """Contiguous fp32 copy or view of [N, d] features, or BadInput."""
    if k < 1:
        raise BadInput(f"Ward: k must be at least 1, got {k}")
    x = np.ascontiguousarray(features, dtype=np.float32)
    if x.ndim != 2 or not len(x) or not x.shape[1]:
        raise BadInput(f"Ward: features must be [N, d] with N, d ≥ 1, got {tuple(np.shape(features))}")
    if not np.isfinite(x).all():
        bad = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
        raise BadInput(f"Ward: vector {bad} holds NaN or infinity")
    return x


def cut(merges: np.ndarray, n: int, k: int) -> np.ndarray:
    """Labels [n] after the first n − k rows of SciPy's merge list; clusters numbered by their smallest member."""
    parent = list(range(2 * n - 1))
    for step in range(n - k):
        parent[int(merges[step, 0])] = parent[int(merges[step, 1])] = n + step

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    names: dict[int, int] = {}
    return np.array([names.setdefault(root(i), len(names)) for i in range(n)], dtype=np.int32)


def ward_reference(features: np.ndarray, k: int) -> np.ndarray:
    """The plain twin: SciPy's Ward on fp64 copies of the fp32 features."""
    from scipy.cluster.hierarchy import linkage

    x = check_features(features, k).astype(np.float64)
    if len(x) <= k:
        return np.arange(len(x), dtype=np.int32)
    return cut(linkage(x, "ward"), len(x), k)


def ward_batch(features: torch.Tensor, k: int) -> torch.Tensor:
    """Labels int64 [P, N] of equal-size pages ``features`` [P, N, d] on their own device; for a GPU.

    Greedy: all pages merge their cheapest pair together, N − k times, on an fp32 matrix of costs that is kept up by the
    Lance-Williams rule. Ward is reducible, so greedy and nearest-neighbour-chain partitions agree; costs are fp32 here, so
    pairs that agree to about 1e-6 may be merged in another order than :func:`ward_labels` does. Memory: 4·P·N² bytes.
    """
    if features.dim() != 3 or k < 1 or not features.shape[1]:
        raise BadInput(f"Ward: features must be [P, N, d] and k ≥ 1, got {tuple(features.shape)} and {k}")
    if not torch.isfinite(features).all():
        raise BadInput("Ward: features hold NaN or infinity")
    pages, n, _ = features.shape
    device = features.device
    labels = torch.arange(n, device=device).expand(pages, n).clone()
    if n <= k or not pages:
        return labels
    cost = torch.cdist(features.float(), features.float(), compute_mode="donot_use_mm_for_euclid_dist").square()
    eye = torch.eye(n, dtype=torch.bool, device=device)
    cost.masked_fill_(eye, torch.inf)
    size = torch.ones(pages, n, device=device)
    row = torch.arange(pages, device=device)
    for _ in range(n - k):
        flat = cost.view(pages, -1).argmin(1)
        a, b = flat // n, flat % n
        a, b = torch.minimum(a, b), torch.maximum(a, b)
        na, nb, ca, cb = size[row, a][:, None], size[row, b][:, None], cost[row, a], cost[row, b]
        pair = cost[row, a, b][:, None]
        merged = ((size + na) * ca + (size + nb) * cb - size * pair) / (size + na + nb)
        merged[row, a] = torch.inf
        merged[torch.isinf(ca)] = torch.inf  # clusters that are gone stay gone
        cost[row, a] = merged
        cost[row, :, a] = merged
        cost[row, b] = torch.inf
        cost[row, :, b] = torch.inf
        size[row, a] += size[row, b]
        labels = torch.where(labels == b[:, None], a[:, None], labels)
    return (labels[:, :, None] > torch.arange(n, device=device)).masked_fill(~_used(labels)[:, None], False).sum(-1)


def _used(labels: torch.Tensor) -> torch.Tensor:
    """[P, N] true where a label is in use."""
    return torch.zeros(labels.shape, dtype=torch.bool, device=labels.device).scatter_(1, labels, True)
