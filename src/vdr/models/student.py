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

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

from vdr.errors import BadInput, DamagedArtefact
from vdr.models.fast import Group, Layer, lean_forward, merge_layer, rotary_angles, text_shape
from vdr.models.lora import (
    ADAPTER_FILE,
    TARGETS,
    MergedLora,
    adapter_init,
    attach_peft,
    check_keys,
    load_adapter,
    peft_state,
    save_adapter,
    target_modules,
)
from vdr.models.vision import vision_forward
from vdr.study.sections.training import TrainingSettings

__all__ = ["PROJECTION_FILE", "Seeds", "Student", "TokenBatch", "load_backbone", "single_vector"]

PROJECTION_FILE = "projection.safetensors"
#: A padded token costs about what this many tensor calls of a further group do; see `_runs`.
_WASTE = 8


@dataclass(frozen=True)
class Seeds:
    """One seed a source of randomness, so that each can be varied alone (WT App. I, Table 10)."""

    order: int
    lora: int
    projection: int
    dropout: int

    @classmethod
    def of(cls, seed: int | Mapping[str, int]) -> Seeds:
        """From one seed for all, or from a mapping that names all four."""
        if isinstance(seed, int):
            return cls(seed, seed, seed, seed)
        if set(seed) != {"order", "lora", "projection", "dropout"}:
            raise BadInput(f"seeds for {sorted(seed)}", where="seed", todo="name order, lora, projection and dropout")
        return cls(**seed)

    def generator(self, stream: str) -> torch.Generator:
        """A generator of its own for `stream`; equal seeds in different streams give unrelated numbers."""
        digest = hashlib.sha256(f"{stream}:{getattr(self, stream)}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@dataclass
class TokenBatch:
    """B right-padded sequences for the language tower.

    ids `[B, L]` int64; mask `[B, L]` bool, true at tokens that yield a vector; positions `[1 | B, 3, L]` (one row:
    all sequences share it); features `[image tokens of all, H]` for the true places of is_image `[B, L]`, or None
    for queries; prefix: how many first tokens all sequences share (0: none known).
    """

    ids: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor
    is_image: torch.Tensor | None = None
    features: torch.Tensor | None = None
    prefix: int = 0

    @property
    def lengths(self) -> list[int]:
        return self.mask.sum(1).tolist()


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


def single_vector(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`[B, L, D]` token vectors → `[B, D]`: their mean over valid tokens, L2-normalised (the miner's first stage)."""
    return F.normalize((vectors.float() * mask[..., None]).sum(1), dim=-1)


def _runs(lengths: Sequence[int]) -> list[list[int]]:
    """Rows sorted by length and cut into groups of nearly one length: a further group is opened when padding costs
    more.
    """
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    groups: list[list[int]] = []
    for row in order:
        if groups and (lengths[row] - lengths[groups[-1][-1]]) * len(groups[-1]) <= _WASTE:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


class Student:
    """A backbone with adapters and a projection; makes token batches and turns them into vectors."""

    def __init__(
        self, backbone: Any, settings: TrainingSettings, adapter: Mapping[str, torch.Tensor], projection: nn.Linear
    ) -> None:
        self.settings, self.backbone, self.projection = settings, backbone, projection
        self.hidden = backbone.config.text_config.hidden_size
        self.image_token = backbone.config.image_token_id
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
        self._page_positions: dict[tuple[int, int, int, int], torch.Tensor] = {}
        self._angles: dict[tuple[Any, ...], torch.Tensor] = {}

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
        """Pages: token ids of each (its prompt with the image token repeated), merged grid (rows, columns), vision
        features.

        Raises BadInput when image tokens and features do not match in number.
        """
        tokens, mask = _pad(ids)
        is_image = (tokens == self.image_token) & mask
        counts = is_image.sum(1).tolist()
        for row, (h, w) in enumerate(grids):
            if counts[row] != h * w or len(features[row]) != h * w:
                raise BadInput(
                    f"page {row}: {counts[row]} image tokens, grid {h}×{w}, {len(features[row])} features",
                    where="page",
                )
        starts = is_image.int().argmax(1).tolist()
        keys = [(start, h, w, tokens.shape[1]) for start, (h, w) in zip(starts, grids, strict=True)]
        if len(set(keys)) == 1:
            keys = keys[:1]
        positions = torch.stack([self._positions(*key) for key in keys])
        first = min(starts)
        prefix = first if len(ids) > 1 and bool((tokens[:, :first] == tokens[:1, :first]).all()) else 0
        return TokenBatch(tokens, mask, positions, is_image, torch.cat(list(features)), prefix)

    def query_batch(self, ids: Sequence[Sequence[int]]) -> TokenBatch:
        """Queries (or descriptions, which go through the same tower): token ids of each."""
        tokens, mask = _pad(ids)
        positions = torch.arange(tokens.shape[1]).expand(1, 3, -1)
        prefix = 0
        if len(ids) > 1:
            shortest = min(len(row) for row in ids)
            same = (tokens[:, :shortest] == tokens[:1, :shortest]).all(0).tolist()
            prefix = min(same.index(False) if False in same else shortest, shortest - 1)
        return TokenBatch(tokens, mask, positions, prefix=prefix)

    def _positions(self, start: int, h: int, w: int, length: int) -> torch.Tensor:
        """Multimodal positions `[3, length]` of a page whose image begins at token `start`, by the library's own
        rule.
        """
        key = (start, h, w, length)
        if key not in self._page_positions:
            kinds = torch.zeros(1, length, dtype=torch.int32)
            kinds[0, start : start + h * w] = 1
            grid = torch.tensor([[1, h * self.merge, w * self.merge]])
            found, _ = self.backbone.model.get_rope_index(
                torch.zeros(1, length, dtype=torch.long), mm_token_type_ids=kinds, image_grid_thw=grid
            )
            self._page_positions[key] = found[:, 0]
        return self._page_positions[key]

    # -- encoding
    # --------------------------------------------------------------------------------------------------------------
    def encode(self, batches: Sequence[TokenBatch]) -> list[torch.Tensor]:
        """Token vectors `[B, L, D]` fp32 of each batch, unit length at valid tokens and zero elsewhere.

        Batches given together share one pass where the forward is lean.
        """
        hidden = self._lean(batches) if self.settings.forward == "lean" else [self._library(batch) for batch in batches]
        result = []
        for batch, states in zip(batches, hidden, strict=True):
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

    def _embed(self, batch: TokenBatch, ids: torch.Tensor, is_image: torch.Tensor | None) -> torch.Tensor:
        table = self.backbone.get_input_embeddings().weight
        x = F.embedding(ids.to(table.device), table)
        if is_image is not None and batch.features is not None:
            x[is_image.to(x.device)] = batch.features.to(x.device, x.dtype)
        return x

    def _library(self, batch: TokenBatch) -> torch.Tensor:
        """transformers' own forward of the language tower: `[B, L, H]`."""
        tower = self.backbone.model.language_model
        x = self._embed(batch, batch.ids, batch.is_image)
        positions = batch.positions.expand(len(batch.ids), -1, -1).transpose(0, 1).to(x.device)
        mask = batch.mask.to(x.device)
        arguments = {"inputs_embeds": x, "attention_mask": mask, "position_ids": positions, "use_cache": False}
        if self.lora is None:
            return tower(**arguments).last_hidden_state
        start = len("model.language_model.")
        weights = {f"{name[start:]}.weight": weight.to(x.dtype) for name, weight in self.lora.weights()}
        return torch.func.functional_call(tower, weights, (), arguments).last_hidden_state

    def _merged(self) -> list[Layer]:
        assert self.lora is not None
        weights = dict(self.lora.weights())
        layers = []
        for number, layer in enumerate(self.backbone.model.language_model.layers):
            stem = f"model.language_model.layers.{number}."
            own = {name: weights[f"{stem}{'self_attn' if name in TARGETS[:4] else 'mlp'}.{name}"] for name in TARGETS}
            biases = {name: getattr(layer.self_attn, name).bias for name in TARGETS[:3]}
            layers.append(
                merge_layer(
                    own, biases, (layer.input_layernorm.weight, layer.post_attention_layernorm.weight), self.shape
                )
            )
        return layers

    def _rotary(self, positions: torch.Tensor) -> torch.Tensor:
        """Angles of `[3, n]` positions."""
        return rotary_angles(self.backbone.model.language_model.rotary_emb, positions.to(self.backbone.device))

    def _lean(self, batches: Sequence[TokenBatch]) -> list[torch.Tensor]:
        """This package's pass over all batches at once: `[B, L, H]` each (hidden states of padding are arbitrary)."""
        tower = self.backbone.model.language_model
        rows: list[torch.Tensor] = []
        angles: list[torch.Tensor] = []
        groups: list[Group] = []
        places: list[tuple[int | None, list[tuple[int, list[int]]]]] = []
        start = 0
        for batch in batches:
            before, shared = batch.prefix, None
            flat = batch.positions.transpose(0, 1)  # [3, 1 | B, L]
            turned = self._rotary(flat.reshape(3, -1)).view(flat.shape[1], flat.shape[2], 1, -1)
            x = self._embed(batch, batch.ids, batch.is_image)
            if before:
                shared = len(groups)
                groups.append(Group(start, 1, before))
                rows.append(x[0, :before])
                angles.append(turned[0, :before])
                start += before
            parts = []
            lengths = batch.lengths
            for members in _runs(lengths):
                length = max(lengths[row] for row in members) - before
                part = x if members == list(range(len(x))) else x[members]
                rows.append(part[:, before : before + length].reshape(-1, self.hidden))
                turn = turned.expand(len(members), -1, -1, -1) if len(turned) == 1 else turned[members]
                angles.append(turn[:, before : before + length].flatten(0, 1))
                parts.append((len(groups), members))
                groups.append(Group(start, len(members), length, shared))
                start += len(members) * length
            places.append((shared, parts))
        layers = self._layers if self._layers is not None else self._merged()
        states = lean_forward(torch.cat(rows), layers, tower.norm.weight, torch.cat(angles), groups, self.shape)
        return [self._gather(states, groups, batch, *place) for batch, place in zip(batches, places, strict=True)]

    def _gather(
        self,
        states: torch.Tensor,
        groups: Sequence[Group],
        batch: TokenBatch,
        shared: int | None,
        parts: Sequence[tuple[int, list[int]]],
    ) -> torch.Tensor:
        """Put the groups' states back in the batch's order, `[B, L, H]`."""
        total = batch.ids.shape[1]
        blocks = []
        for index, _ in parts:
            group = groups[index]
            block = states[group.start : group.start + group.count * group.length].view(group.count, group.length, -1)
            if shared is not None:
                first = groups[shared]
                block = torch.cat(
                    [states[first.start : first.start + first.length].expand(group.count, -1, -1), block], dim=1
                )
            blocks.append(F.pad(block, (0, 0, 0, total - block.shape[1])) if block.shape[1] < total else block)
        order = [row for _, members in parts for row in members]
        if len(blocks) == 1 and order == list(range(len(order))):
            return blocks[0]
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return torch.cat(blocks)[back.to(states.device)]


def _pad(ids: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad with token 0 (never looked at: the mask is what counts) → ids and mask `[B, L]`."""
    if not ids or not all(len(row) for row in ids):
        raise BadInput("an empty sequence cannot be encoded", where="tokens")
    length = max(len(row) for row in ids)
    tokens = torch.zeros(len(ids), length, dtype=torch.long)
    mask = torch.zeros(len(ids), length, dtype=torch.bool)
    for row, sequence in enumerate(ids):
        tokens[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = True
    return tokens, mask
