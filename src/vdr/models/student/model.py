"""The student itself: what it holds, how it is made, kept and loaded, and how it encodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from vdr.errors import BadInput, DamagedArtefact
from vdr.models.fast import Layer, text_shape
from vdr.models.lora import (
    ADAPTER_FILE,
    MergedLora,
    adapter_init,
    attach_peft,
    check_keys,
    load_adapter,
    peft_state,
    save_adapter,
    target_modules,
)
from vdr.models.student.backbone import load_backbone
from vdr.models.student.batches import PagePositions, TokenBatch, page_batch, query_batch
from vdr.models.student.forward import lean_pass, library_pass, merged_layers
from vdr.models.student.seeds import Seeds
from vdr.models.vision import vision_forward
from vdr.study.sections.training import TrainingSettings

__all__ = ["PROJECTION_FILE", "Student", "single_vector"]

PROJECTION_FILE = "projection.safetensors"


def single_vector(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`[B, L, D]` token vectors → `[B, D]`: their mean over valid tokens, L2-normalised (the miner's first stage)."""
    return F.normalize((vectors.float() * mask[..., None]).sum(1), dim=-1)


class Student:
    """A backbone with adapters and a projection; makes token batches and turns them into vectors."""

    def __init__(
        self, backbone: Any, settings: TrainingSettings, adapter: Mapping[str, torch.Tensor], projection: nn.Linear
    ) -> None:
        self.settings, self.backbone, self.projection = settings, backbone, projection
        self.hidden = backbone.config.text_config.hidden_size
        self.merge = backbone.config.vision_config.spatial_merge_size
        self.shape = text_shape(backbone.config.text_config)
        self.names = list(target_modules(backbone))
        self.peft: Any = None
        self.lora: MergedLora | None = None
        lora = settings.lora
        if lora.impl == "merged":
            self.lora = MergedLora(backbone, lora.rank, lora.alpha, adapter).to(backbone.device)
        else:
            self.peft = attach_peft(backbone, lora.rank, lora.alpha, lora.dropout, adapter)
            if settings.gradient_checkpointing:
                backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._layers: list[Layer] | None = None
        self._positions = PagePositions(backbone)

    # -- making and keeping
    # ------------------------------------------------------------------------------------------------------
    @classmethod
    def create(cls, backbone_dir: str | Path, settings: TrainingSettings, seeds: Seeds, device: str = "cpu") -> Student:
        """A fresh student: A by Kaiming-uniform, B zero, projection uniform on ±1/√H, each from its own stream."""
        backbone = load_backbone(backbone_dir, settings.dtype, device)
        width = backbone.config.text_config.hidden_size
        projection = nn.Linear(width, settings.projection_dim, dtype=torch.float32)
        with torch.no_grad():
            generator, bound = seeds.generator("projection"), 1 / math.sqrt(width)
            projection.weight.uniform_(-bound, bound, generator=generator)
            projection.bias.uniform_(-bound, bound, generator=generator)
        adapter = adapter_init(backbone, settings.lora.rank, seeds.generator("lora"))
        return cls(backbone, settings, adapter, projection.to(device))

    @classmethod
    def load(
        cls, checkpoint: str | Path, backbone_dir: str | Path, settings: TrainingSettings, device: str = "cpu"
    ) -> Student:
        """A trained student, ready to encode. Raises DamagedArtefact on missing, unexpected or misshapen keys."""
        checkpoint = Path(checkpoint)
        backbone = load_backbone(backbone_dir, settings.dtype, device)
        tensors, rank, alpha = load_adapter(checkpoint, backbone)
        if (rank, alpha) != (settings.lora.rank, settings.lora.alpha):
            raise BadInput(
                f"adapter has rank {rank}, alpha {alpha}; the settings {settings.lora.rank}, {settings.lora.alpha}",
                where=checkpoint,
                todo="use the profile it was trained with",
            )
        width = backbone.config.text_config.hidden_size
        projection = nn.Linear(width, settings.projection_dim, dtype=torch.float32)
        try:
            weights = load_file(checkpoint / PROJECTION_FILE)
        except (OSError, SafetensorError) as error:
            raise DamagedArtefact(
                f"projection cannot be read ({error})", where=checkpoint / PROJECTION_FILE, todo="train again"
            ) from error
        check_keys(
            weights,
            {"weight": (settings.projection_dim, width), "bias": (settings.projection_dim,)},
            checkpoint / PROJECTION_FILE,
        )
        projection.load_state_dict(weights)
        student = cls(
            backbone,
            settings,
            {name: tensors[f"base_model.model.{name}.lora_A.weight"] for name in target_modules(backbone)},
            projection.to(device),
        )
        student.set_adapter(tensors)
        student.train(False)
        return student

    def save(self, directory: Path) -> None:
        """Write adapter (peft's format) and projection."""
        lora = self.settings.lora
        save_adapter(directory, self.adapter_state(), lora.rank, lora.alpha, lora.dropout)
        weights = {name: tensor.detach().contiguous().cpu() for name, tensor in self.projection.state_dict().items()}
        save_file(weights, Path(directory) / PROJECTION_FILE, metadata={"format": "pt"})

    def adapter_state(self) -> dict[str, torch.Tensor]:
        """A and B of every target under peft's file names."""
        return self.lora.state() if self.lora is not None else peft_state(self.peft)

    @torch.no_grad()
    def set_adapter(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over A and B; `tensors` has exactly the adapter's names."""
        own = self.adapter_state()
        check_keys(tensors, {name: tuple(tensor.shape) for name, tensor in own.items()}, Path(ADAPTER_FILE))
        for name, tensor in own.items():
            tensor.copy_(tensors[name])

    def trainable(self) -> dict[str, nn.Parameter]:
        """Everything that trains, by name, in one fixed order: adapters by peft's names, then the projection."""
        found: dict[str, nn.Parameter] = {}
        if self.lora is not None:
            for name in self.names:
                key = name.replace(".", "/")
                found[f"{name}.lora_A"], found[f"{name}.lora_B"] = self.lora.a[key], self.lora.b[key]
        else:
            for name in self.names:
                layer = self.peft.get_submodule("base_model.model." + name)
                found[f"{name}.lora_A"], found[f"{name}.lora_B"] = (
                    layer.lora_A["default"].weight,
                    layer.lora_B["default"].weight,
                )
        found["projection.weight"], found["projection.bias"] = self.projection.weight, self.projection.bias
        return found

    def train(self, on: bool = True) -> None:
        """Training mode for the language tower alone (adapter dropout, checkpointing); the vision tower is never in
        it.
        """
        self.backbone.model.language_model.train(on)
        self.projection.train(on)
        self.backbone.model.visual.eval()

    # -- token batches
    # ---------------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def vision(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> list[torch.Tensor]:
        """The frozen tower's merged output of each page, `[h·w, H]` in raster order; pages of one size go as a
        batch.
        """
        visual = self.backbone.model.visual
        device = self.backbone.device
        grids = [tuple(grid) for grid in grid_thw.tolist()]
        if sum(t * h * w for t, h, w in grids) != pixel_values.shape[0]:
            raise BadInput(f"{pixel_values.shape[0]} patches for grids {grids[:3]}…", where="pixel_values")
        full = set(visual.fullatt_block_indexes) == set(range(len(visual.blocks)))
        if full and len(set(grids)) == 1 and grids[0][0] == 1:
            patches = pixel_values.to(device).view(len(grids), grids[0][1] * grids[0][2], -1)
            return list(vision_forward(visual, patches, grids[0][1:]).unbind(0))
        merged = visual(pixel_values.to(device, visual.dtype), grid_thw=grid_thw.to(device)).pooler_output
        return list(torch.split(merged, [t * h * w // self.merge**2 for t, h, w in grids]))

    def page_batch(
        self, ids: Sequence[Sequence[int]], grids: Sequence[tuple[int, int]], features: Sequence[torch.Tensor]
    ) -> TokenBatch:
        """Pages: token ids of each, merged grid (rows, columns), vision features; see `page_batch` of `batches`."""
        return page_batch(ids, grids, features, self._positions)

    def query_batch(self, ids: Sequence[Sequence[int]]) -> TokenBatch:
        """Queries (or descriptions, which go through the same tower): token ids of each."""
        return query_batch(ids)

    # -- encoding
    # --------------------------------------------------------------------------------------------------------------
    def encode(self, batches: Sequence[TokenBatch]) -> list[torch.Tensor]:
        """Token vectors `[B, L, D]` fp32 of each batch, unit length at valid tokens and zero elsewhere.

        Batches given together share one pass where the forward is lean.
        """
        result = []
        for batch, states in zip(batches, self.hidden_states(batches), strict=True):
            vectors = F.normalize(self.projection(states.float()), dim=-1)
            result.append(vectors if bool(batch.mask.all()) else vectors * batch.mask[..., None].to(vectors.device))
        return result

    @contextmanager
    def inference(self) -> Iterator[None]:
        """No gradients, evaluation mode, and effective weights formed once."""
        training = self.projection.training
        self.train(False)
        try:
            with torch.no_grad():
                self._layers = self._merged() if self.settings.forward == "lean" else None
                yield
        finally:
            self._layers = None
            self.train(training)

    def hidden_states(self, batches: Sequence[TokenBatch]) -> list[torch.Tensor]:
        """The language tower's last states `[B, L, H]` of each batch; those of padding are arbitrary."""
        if self.settings.forward == "lean":
            layers = self._layers if self._layers is not None else self._merged()
            return lean_pass(self.backbone, layers, self.shape, batches)
        return [library_pass(self.backbone, self.lora, batch) for batch in batches]

    def _merged(self) -> list[Layer]:
        assert self.lora is not None
        return merged_layers(self.backbone, self.lora, self.shape)
