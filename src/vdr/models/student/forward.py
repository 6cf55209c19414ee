"""Hidden states of the language tower: transformers' own forward, and this package's lean pass over many batches at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from vdr.models.fast import Group, Layer, Shape, lean_forward, merge_layer, rotary_angles
from vdr.models.lora import TARGETS, MergedLora
from vdr.models.student.batches import TokenBatch

__all__ = ["embed", "lean_pass", "library_pass", "merged_layers"]

#: A padded token costs about what this many tensor calls of a further group do; see `_runs`.
_WASTE = 8


def embed(backbone: Any, batch: TokenBatch) -> torch.Tensor:
    """Input embeddings `[B, L, H]`: the table's rows, and vision features in their places."""
    table = backbone.get_input_embeddings().weight
    x = F.embedding(batch.ids.to(table.device), table)
    if batch.is_image is not None and batch.features is not None:
        x[batch.is_image.to(x.device)] = batch.features.to(x.device, x.dtype)
    return x


def library_pass(backbone: Any, lora: MergedLora | None, batch: TokenBatch) -> torch.Tensor:
    """transformers' own forward of the language tower: `[B, L, H]`."""
    tower = backbone.model.language_model
    x = embed(backbone, batch)
    positions = batch.positions.expand(len(batch.ids), -1, -1).transpose(0, 1).to(x.device)
    mask = batch.mask.to(x.device)
    arguments = {"inputs_embeds": x, "attention_mask": mask, "position_ids": positions, "use_cache": False}
    if lora is None:
        return tower(**arguments).last_hidden_state
    start = len("model.language_model.")
    weights = {f"{name[start:]}.weight": weight.to(x.dtype) for name, weight in lora.weights()}
    return torch.func.functional_call(tower, weights, (), arguments).last_hidden_state


def merged_layers(backbone: Any, lora: MergedLora, shape: Shape) -> list[Layer]:
    """The layers' effective weights, W + BA, as the lean pass takes them; gradients flow to A and B."""
    weights = dict(lora.weights())
    layers = []
    for number, layer in enumerate(backbone.model.language_model.layers):
        stem = f"model.language_model.layers.{number}."
        own = {name: weights[f"{stem}{'self_attn' if name in TARGETS[:4] else 'mlp'}.{name}"] for name in TARGETS}
        biases = {name: getattr(layer.self_attn, name).bias for name in TARGETS[:3]}
        layers.append(
            merge_layer(own, biases, (layer.input_layernorm.weight, layer.post_attention_layernorm.weight), shape)
        )
    return layers


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


def lean_pass(
    backbone: Any, layers: Sequence[Layer], shape: Shape, batches: Sequence[TokenBatch]
) -> list[torch.Tensor]:
    """This package's pass over all batches at once: `[B, L, H]` each (hidden states of padding are arbitrary)."""
    tower = backbone.model.language_model
    rows: list[torch.Tensor] = []
    angles: list[torch.Tensor] = []
    groups: list[Group] = []
    places: list[tuple[int | None, list[tuple[int, list[int]]]]] = []
    start = 0
    for batch in batches:
        before, shared = batch.prefix, None
        flat = batch.positions.transpose(0, 1)  # [3, 1 | B, L]
        angle = rotary_angles(tower.rotary_emb, flat.reshape(3, -1).to(backbone.device))
        turned = angle.view(flat.shape[1], flat.shape[2], 1, -1)
        x = embed(backbone, batch)
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
            rows.append(part[:, before : before + length].reshape(-1, x.shape[-1]))
            turn = turned.expand(len(members), -1, -1, -1) if len(turned) == 1 else turned[members]
            angles.append(turn[:, before : before + length].flatten(0, 1))
            parts.append((len(groups), members))
            groups.append(Group(start, len(members), length, shared))
            start += len(members) * length
        places.append((shared, parts))
    states = lean_forward(torch.cat(rows), layers, tower.norm.weight, torch.cat(angles), groups, shape)
    return [_gather(states, groups, batch, *place) for batch, place in zip(batches, places, strict=True)]


def _gather(
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
