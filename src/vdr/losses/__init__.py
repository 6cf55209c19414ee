"""Training losses: InfoNCE in the batch and the teacher's auxiliary terms (WT §3). All compute in fp32."""

from vdr.losses.attention import attention_loss, patch_similarity
from vdr.losses.description import description_loss
from vdr.losses.infonce import infonce
from vdr.losses.score import score_kl, target_distribution

__all__ = ["attention_loss", "description_loss", "infonce", "patch_similarity", "score_kl", "target_distribution"]
