"""From teacher outputs to training rows: which candidates a row trains against, which targets it distils, what
rides along."""

from vdr.supervision.maps import PatchMaps, pool_map, read_maps, write_maps
from vdr.supervision.negatives import Selection, matched_alpha, rejection_rate, select_negatives
from vdr.supervision.oracle import oracle_ratings
from vdr.supervision.rowpools import RowPool, row_pools
from vdr.supervision.rows import ROWS, build_rows, read_rows
from vdr.supervision.statistics import describe_rows, negatives_overlap
from vdr.supervision.targets import Distilled, distil, target_entropy, target_shape

__all__ = [
    "ROWS",
    "Distilled",
    "PatchMaps",
    "RowPool",
    "Selection",
    "build_rows",
    "describe_rows",
    "distil",
    "matched_alpha",
    "negatives_overlap",
    "oracle_ratings",
    "pool_map",
    "read_maps",
    "read_rows",
    "rejection_rate",
    "row_pools",
    "select_negatives",
    "target_entropy",
    "target_shape",
    "write_maps",
]
