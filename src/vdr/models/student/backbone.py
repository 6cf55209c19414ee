"""The frozen backbone, from a checkpoint in the hub's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

from vdr.errors import BadInput, DamagedArtefact

__all__ = ["load_backbone"]


def load_backbone(
    directory: str | Path, dtype: str = "float32", device: str = "cpu", revision: str | None = None
) -> Any:
    """Qwen2.5-VL from a checkpoint in the hub's format, frozen, in evaluation mode.

    Raises BadInput when there is none, DamagedArtefact when a key is missing, unexpected or of another shape.
    """
    disable_progress_bar()  # one bar a process says where it is; loading takes a second
    try:
        model, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            directory,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            output_loading_info=True,
            revision=revision,
        )
    except (OSError, ValueError, SafetensorError) as error:
        what = f"no Qwen2.5-VL checkpoint can be loaded ({type(error).__name__}: {str(error).splitlines()[0]})"
        raise BadInput(what, where=directory, todo="give a directory with config.json and model.safetensors") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(kind):
            raise DamagedArtefact(
                f"{len(info[kind])} {kind.replace('_', ' ')}, e.g. {sorted(map(str, info[kind]))[0]}", where=directory
            )
    model.requires_grad_(False)
    return model.eval().to(device)
