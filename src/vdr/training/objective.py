"""From a batch to its loss: encode every distinct page, query and description once, then the arm's terms (WT §3)."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from vdr.errors import BadInput
from vdr.kernels.maxsim import maxsim
from vdr.losses import attention_loss, description_loss, infonce, patch_similarity, score_kl
from vdr.models.student import Student
from vdr.study.sections.training import ArmLosses
from vdr.training.data import Batch

__all__ = ["batch_loss"]


def batch_loss(student: Student, batch: Batch, losses: ArmLosses) -> tuple[torch.Tensor, dict[str, float]]:
    """InfoNCE + Σ λ · auxiliary term, a scalar in fp32, and each unweighted term's value."""
    parts = [batch.pages, batch.queries]
    if batch.descriptions is not None:
        parts.append(batch.descriptions)
    pages, queries, *rest = student.encode(parts)
    device = pages.device
    q_mask, p_mask = batch.queries.mask.to(device), batch.pages.mask.to(device)
    columns = slice(0, batch.labelled)

    def against(index: torch.Tensor, width: int | None = None) -> torch.Tensor:
        """Scores `[B, C]` of each query with its own pages."""
        index = index.to(device)
        return maxsim(_prefix(queries, width), _prefix(pages, width)[index], q_mask, p_mask[index], "mean")

    def in_batch(width: int | None = None) -> torch.Tensor:
        """Scores `[B, P]` of each query with the batch's labelled pages."""
        return maxsim(_prefix(queries, width), _prefix(pages[columns], width), q_mask, p_mask[columns], "mean")

    def contrast(scores: torch.Tensor, width: int | None = None) -> torch.Tensor:
        extra = None if batch.negatives is None else against(batch.negatives, width)
        mask = None if batch.negative_mask is None else batch.negative_mask.to(device)
        return infonce(scores, batch.positive.to(device), losses.infonce.temperature, extra, mask)

    scores = in_batch()
    full = pages.shape[-1]
    widths = losses.infonce.widths or (full,)
    if widths[-1] != full:
        raise BadInput(
            f"the widest trained width is {widths[-1]}, the projection's {full}", where="losses.infonce.widths"
        )
    # Nested widths: every prefix is trained alike (EV §3.2), so the mean of their losses.
    total = torch.stack(
        [contrast(scores) if width == full else contrast(in_batch(width), width) for width in widths]
    ).mean()
    terms = {"infonce": total.detach()}
    if losses.score is not None and batch.candidates is not None:
        assert batch.ratings is not None
        assert batch.candidate_mask is not None
        assert batch.weights is not None
        term = score_kl(
            against(batch.candidates),
            batch.ratings.to(device),
            batch.candidate_mask.to(device),
            batch.weights.to(device),
            losses.score.teacher_temperature,
            losses.score.student_temperature,
        )
        total, terms["score"] = total + losses.score.weight * term, term.detach()
    if losses.attention is not None and batch.maps is not None:
        assert batch.map_present is not None
        similarity, valid = _grid_similarity(queries, q_mask, pages, batch)
        if similarity.shape != batch.maps.shape:
            raise BadInput(
                f"maps have {batch.maps.shape[1]} places, the labelled pages {similarity.shape[1]}",
                where="maps",
                todo="pool the maps to the student's merged grid",
            )
        term = attention_loss(similarity, batch.maps.to(device), batch.map_present.to(device), valid)
        total, terms["attention"] = total + losses.attention.weight * term, term.detach()
    if losses.description is not None:
        spec = losses.description
        term = torch.zeros((), device=device)
        if batch.descriptions is not None and batch.described is not None:
            other = maxsim(rest[0], pages[columns], batch.descriptions.mask.to(device), p_mask[columns], "mean")
            term = description_loss(
                scores[batch.described.to(device)],
                other,
                torch.ones(len(other), dtype=torch.bool, device=device),
                spec.temperature,
                spec.direction,
                spec.detach,
            )
        total, terms["description"] = total + spec.weight * term, term.detach()
    return total, {name: float(value) for name, value in terms.items()}


def _prefix(vectors: torch.Tensor, width: int | None) -> torch.Tensor:
    """The first `width` components, normalised again (zero vectors stay zero); None: as they are."""
    return vectors if width is None else F.normalize(vectors[..., :width], dim=-1)


def _grid_similarity(
    queries: torch.Tensor, q_mask: torch.Tensor, pages: torch.Tensor, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """r of each query on its labelled page's image tokens, `[B, N]` padded on the right, and which places are valid."""
    assert batch.pages.is_image is not None
    rows = batch.positive.to(pages.device)
    image = batch.pages.is_image.to(pages.device)[rows]
    counts = image.sum(1)
    width = int(counts.max())
    # Image tokens first, in raster order: a stable sort of "is not image".
    order = torch.sort((~image).int(), dim=1, stable=True).indices[:, :width]
    patches = pages[rows[:, None], order]
    valid = torch.arange(width, device=pages.device)[None] < counts[:, None]
    return patch_similarity(queries, q_mask, patches), valid
