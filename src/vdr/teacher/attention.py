"""Query-conditioned attention maps of the teacher over a page's image tokens (WT §3, arm A; App. G).

AGREE's query-token readout: the attention weights from the query's tokens to the image tokens, averaged over query tokens,
heads and layers. Reading weights needs eager attention; that it answers as the fused kernels do is checked before use
(eager and fused attention have been seen to disagree in other models).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from vdr.corpus.access import PageSet
from vdr.errors import BadInput
from vdr.models.processing import Processor
from vdr.models.prompts import RATE_PROMPT, chat
from vdr.progress import track
from vdr.study.sections.teacher import TeacherSettings
from vdr.teacher.engines import load_teacher

__all__ = ["AttentionTeacher", "extract_maps"]

TOLERANCE = 1e-3


class AttentionTeacher:
    """A Qwen2.5-VL whose attention weights are read."""

    def __init__(self, folder: Path, settings: TeacherSettings, *, device: str = "cpu"):
        self.model = load_teacher(folder, device, attention="eager")
        self.processor = Processor.from_pretrained(folder, max_visual_tokens=settings.max_visual_tokens)
        layers = self.model.config.get_text_config().num_hidden_layers
        self.layers = settings.attention_layers or tuple(range(layers))
        if max(self.layers) >= layers:
            raise BadInput(
                f"the model has {layers} layers",
                where="teacher.attention_layers",
                todo=f"choose from 0 to {layers - 1}",
            )
        self.device = device
        self._folder, self._checked = folder, False

    @torch.inference_mode()
    def maps(self, page: Image.Image, queries: Sequence[str]) -> tuple[np.ndarray, tuple[int, int]]:
        """Maps float32 ``[k, H·W]``, each summing to one, and the grid (H, W) in merged tokens."""
        pixel_values, grid = self.processor.pixels([page])
        before, _ = chat(RATE_PROMPT).split("{query}")
        prefix, _ = self.processor.page_ids(grid, before.rstrip(" "))
        tokens = [self.processor.tokenizer(f" {q}", add_special_tokens=False)["input_ids"] for q in queries]
        k, start, longest = len(tokens), prefix.shape[1], max(map(len, tokens))
        ids = torch.full((k, start + longest), self.processor.pad_token_id)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(tokens):
            ids[i, : start + len(row)] = torch.cat([prefix[0], torch.tensor(row)])
            mask[i, : start + len(row)] = 1
        arguments = {
            "input_ids": ids.to(self.device),
            "attention_mask": mask.to(self.device),
            "image_grid_thw": grid.repeat(k, 1).to(self.device),
            "pixel_values": pixel_values.repeat(k, 1).to(self.device, self.model.dtype),
            "mm_token_type_ids": (ids == self.processor.image_token_id).long().to(self.device),
            "use_cache": False,
        }
        out = self.model.model(**arguments, output_attentions=True)
        if not self._checked:
            self._check_against_fused(arguments, out.last_hidden_state, mask)
        image = prefix[0] == self.processor.image_token_id
        h, w = (int(v) for v in self.processor.merged_grid(grid)[0])
        total = torch.zeros(k, int(image.sum()))
        for layer in self.layers:
            weights = out.attentions[layer].float().mean(1).cpu()  # [k, L, L], heads averaged
            for i, row in enumerate(tokens):
                total[i] += weights[i, start : start + len(row), : prefix.shape[1]][:, image].mean(0)
        return (total / total.sum(1, keepdim=True)).numpy(), (h, w)

    def _check_against_fused(self, arguments: dict[str, Any], eager: torch.Tensor, mask: torch.Tensor) -> None:
        fused = load_teacher(self._folder, self.device).model(**arguments).last_hidden_state
        valid = mask.bool().to(eager.device)
        gap = ((eager - fused)[valid].norm() / fused[valid].norm()).item()
        limit = TOLERANCE if eager.dtype == torch.float32 else 0.05
        if not gap < limit:
            raise BadInput(
                f"eager attention moves this model's hidden states by {gap:.3g} against fused attention (limit {limit})",
                where=self._folder,
                todo="pin a transformers version in which the two agree",
            )
        self._checked = True


def extract_maps(
    rows: pd.DataFrame,
    pages: PageSet,
    teacher: AttentionTeacher,
    out: Path,
    measures: dict[str, Any],
    *,
    label: str = "attention maps",
) -> None:
    """Write ``maps.npz`` (row_id, maps, offsets, grid): the map of each row's query over its labelled page.

    ``rows`` has row_id, query, page_id. Maps lie on the teacher's merged grid; `vdr.supervision` pools them to the student's.
    """
    found: dict[int, tuple[np.ndarray, tuple[int, int]]] = {}
    for page_id, part in track(list(rows.groupby("page_id", sort=True)), label=label, unit="pages"):
        maps, grid = teacher.maps(pages.image(pages.index(str(page_id))), part["query"].tolist())
        found |= {int(row): (maps[i], grid) for i, row in enumerate(part["row_id"])}
    order = sorted(found)
    flat = [found[i][0] for i in order]
    np.savez(
        out / "maps.npz",
        row_id=np.asarray(order, dtype=np.int64),
        maps=np.concatenate(flat).astype(np.float32),
        offsets=np.concatenate([[0], np.cumsum([len(f) for f in flat])]).astype(np.int64),
        grid=np.asarray([found[i][1] for i in order], dtype=np.int32),
    )
    measures["maps"] = len(order)
