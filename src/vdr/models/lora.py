"""Low-rank adapters of the language tower (WT App. E): the merged form, peft's form, and one file format for both.

An adapter of a linear layer with weight W `[out, in]` is A `[r, in]` and B `[out, r]`; the layer computes with W +
(α/r)·BA. peft computes W x and BA(dropout(x)) apart; where the matrices are small it is much faster to form W +
(α/r)·BA once a step, which is the same function when dropout is 0 (a test holds the two together). Both start from
the same numbers and are saved as peft saves them, so that `PeftModel.from_pretrained(backbone, checkpoint)` reads
either.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from vdr.errors import BadInput, DamagedArtefact

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_FILE",
    "TARGETS",
    "MergedLora",
    "adapter_init",
    "attach_peft",
    "load_adapter",
    "peft_state",
    "save_adapter",
    "target_modules",
]

#: The seven linear layers of each of the language tower's decoder layers.
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
#: peft's `target_modules` when it is a pattern: full names of the language tower's layers, none of the vision tower's.
PATTERN = r".*language_model\.layers\.\d+\.(self_attn|mlp)\.(" + "|".join(TARGETS) + r")"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
#: Fields of peft's configuration that do not change what a trained adapter computes; names of layers are checked by key.
_WITHOUT_EFFECT = {
    "auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "r", "revision",
    "runtime_config", "target_modules", "task_type",
}  # fmt: skip
_HONOURED = {"peft_type": "LORA", "bias": "none", "fan_in_fan_out": False}
#: Ways to start that also change the base weights, so that the adapter fits another backbone than the published one.
_CHANGED_BASE = ("pissa", "olora", "loftq", "corda", "eva", "orthogonal", "lora_ga")


def target_modules(backbone: nn.Module) -> dict[str, nn.Linear]:
    """The layers that carry an adapter, by full name, in the model's order. Raises BadInput when there are none."""
    found: dict[str, nn.Linear] = {}
    for name, module in backbone.named_modules():
        if re.fullmatch(PATTERN, name):
            inner = getattr(module, "base_layer", module)
            if not isinstance(inner, nn.Linear):
                raise BadInput(f"{name} is a {type(inner).__name__}, not a linear layer", where="backbone")
            found[name] = inner
    if not found:
        raise BadInput(
            "the model has no language-tower layers to adapt", where="backbone", todo="give a Qwen2.5-VL checkpoint"
        )
    return found


def adapter_init(backbone: nn.Module, rank: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Initial A of every target, fp32, drawn as peft draws it (Kaiming-uniform, a = √5) from one generator; B
    starts at 0.

    Drawn here rather than by peft so that the draw has a seed of its own (WT App. I varies it alone) and both forms
    agree.
    """
    result = {}
    for name, module in target_modules(backbone).items():
        a = torch.empty(rank, module.in_features, dtype=torch.float32)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        result[name] = a
    return result


class MergedLora(nn.Module):
    """Adapters whose effective weights W + (α/r)·BA are formed once a step.

    `weights()` yields `(name, W + (α/r)·BA)` for every target, differentiable in A and B only. fp32 throughout.
    """

    def __init__(self, backbone: nn.Module, rank: int, alpha: float, init: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.rank, self.alpha = rank, float(alpha)
        self.names = list(init)
        self._targets = {name: module.weight for name, module in target_modules(backbone).items()}
        if list(self._targets) != self.names:
            raise BadInput("adapter and backbone name different layers", where="adapter")
        # Parameter names may not hold dots.
        self.a = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(init[name].clone()) for name in self.names})
        self.b = nn.ParameterDict(
            {
                name.replace(".", "/"): nn.Parameter(torch.zeros(self._targets[name].shape[0], rank))
                for name in self.names
            }
        )

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        scale = self.alpha / self.rank
        for name in self.names:
            key = name.replace(".", "/")
            yield name, torch.addmm(self._targets[name], self.b[key], self.a[key], alpha=scale)

    def state(self) -> dict[str, torch.Tensor]:
        """A and B under peft's names."""
        tensors = {}
        for name in self.names:
            key = name.replace(".", "/")
            tensors[f"{_PREFIX}{name}.lora_A.weight"] = self.a[key].detach()
            tensors[f"{_PREFIX}{name}.lora_B.weight"] = self.b[key].detach()
        return tensors


def attach_peft(
    backbone: nn.Module, rank: int, alpha: float, dropout: float, init: Mapping[str, torch.Tensor]
) -> nn.Module:
    """Wrap `backbone` with peft adapters (kept in fp32, as peft does) that start from `init`; returns the PeftModel."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=dropout, bias="none", target_modules=PATTERN, init_lora_weights=True
    )
    model = get_peft_model(backbone, config)
    with torch.no_grad():
        for name, a in init.items():
            layer = model.get_submodule("base_model.model." + name)
            layer.lora_A["default"].weight.copy_(a)
            layer.lora_B["default"].weight.zero_()
    return model


def peft_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """A and B of a PeftModel under the names of its files."""
    from peft import get_peft_model_state_dict

    return {name: tensor.detach() for name, tensor in get_peft_model_state_dict(model).items()}


def save_adapter(directory: Path, tensors: Mapping[str, torch.Tensor], rank: int, alpha: float, dropout: float) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json`; the same numbers give the same bytes."""
    save_file(
        {name: tensors[name].contiguous().cpu() for name in sorted(tensors)},
        Path(directory) / ADAPTER_FILE,
        metadata={"format": "pt"},
    )
    config = {
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": PATTERN,
        "task_type": None,
    }
    (Path(directory) / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_adapter(directory: Path, backbone: nn.Module) -> tuple[dict[str, torch.Tensor], int, float]:
    """A and B by peft's names, rank and α of a saved adapter, checked against `backbone`.

    Raises DamagedArtefact when files cannot be read, when a key is missing or unexpected (colpali users once ran
    untrained models because such keys only warned), when a shape does not fit, or when a number is not finite; BadInput
    for a configuration that asks for another function than W + (α/r)·BA (rsLoRA, DoRA, ranks by layer and the like),
    naming file and field.
    """
    directory = Path(directory)
    try:
        config = json.loads((directory / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(directory / ADAPTER_FILE)
    except (OSError, ValueError, SafetensorError) as error:
        raise DamagedArtefact(
            f"adapter cannot be read ({type(error).__name__}: {error})", where=directory, todo="train again"
        ) from error
    rank, alpha = _checked_config(config, directory / ADAPTER_CONFIG)
    expected = {}
    for name, module in target_modules(backbone).items():
        expected[f"{_PREFIX}{name}.lora_A.weight"] = (rank, module.in_features)
        expected[f"{_PREFIX}{name}.lora_B.weight"] = (module.out_features, rank)
    check_keys(tensors, expected, directory / ADAPTER_FILE)
    return tensors, rank, alpha


def _checked_config(config: object, where: Path) -> tuple[int, float]:
    """(rank, α) of a configuration that asks for plain LoRA. What is not known here must be off (empty, false, null)."""
    if not isinstance(config, dict):
        raise DamagedArtefact("not an adapter's configuration", where=where, todo="train again")
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise DamagedArtefact(f"r is no rank (given: {rank!r})", where=where, todo="train again")
    if type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise DamagedArtefact(f"lora_alpha is no finite number (given: {alpha!r})", where=where, todo="train again")
    start = str(config.get("init_lora_weights", True)).lower()
    refused = [name for name, value in config.items()
               if (name in _HONOURED and value != _HONOURED[name])
               or (name not in _HONOURED and name not in _WITHOUT_EFFECT and value)
               or (name == "init_lora_weights" and start.startswith(_CHANGED_BASE))]  # fmt: skip
    if refused:
        others = f" (and {', '.join(refused[1:])})" if refused[1:] else ""
        raise BadInput(f"{refused[0]} = {config[refused[0]]!r} is not honoured here{others}", where=where,
                       todo="merge the adapter with peft, or train one with plain LoRA")  # fmt: skip
    return rank, float(alpha)


def check_keys(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Raise DamagedArtefact unless `tensors` has exactly the expected names and shapes, in finite floating numbers."""
    missing, unexpected = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or unexpected:
        parts = [
            f"{len(keys)} {kind} keys, e.g. {keys[0]}"
            for kind, keys in (("missing", missing), ("unexpected", unexpected))
            if keys
        ]
        raise DamagedArtefact(" and ".join(parts), where=where, todo="use the backbone this was trained from")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise DamagedArtefact(
                f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(shape)}", where=where
            )
        if not tensors[name].is_floating_point():
            raise DamagedArtefact(f"{name} holds {tensors[name].dtype}, not floating numbers", where=where)
        if not tensors[name].isfinite().all():
            raise DamagedArtefact(f"{name} holds numbers that are not finite", where=where, todo="train again")
