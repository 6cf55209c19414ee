"""The student: ColQwen2.5, that is Qwen2.5-VL's towers, adapters on the language tower, and a projection (WT §3,
App. E).

Every token of a page (its image tokens and its prompt's) and of a query (augmentation tokens included) yields one
vector of width D, L2-normalised. The vision tower is frozen, so that its output can be cached; the adapters and the
projection train in fp32 whatever the dtype of the frozen weights (WT App. A, first pitfall). Sequences are padded
on the right: the tower is causal and its positions are relative, so a page's or a query's vectors do not depend on
padding (a test says so).

Legend: B sequences, L their padded length, H the backbone's width, D the vectors' width.
"""

from __future__ import annotations

from vdr.models.student.backbone import load_backbone
from vdr.models.student.batches import TokenBatch
from vdr.models.student.model import PROJECTION_FILE, Student, single_vector
from vdr.models.student.seeds import Seeds

__all__ = ["PROJECTION_FILE", "Seeds", "Student", "TokenBatch", "load_backbone", "single_vector"]
