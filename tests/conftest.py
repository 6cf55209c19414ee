"""What tests of several parts share."""

from __future__ import annotations

import os

import pytest

from vdr import instructions  # before any test's import can load NumPy or torch
from vdr.kernels import native

#: Every instruction level that the kernels can be tested at here, whatever the declared one is.
LEVELS = [*instructions.runnable(), instructions.NATIVE]

if os.environ.get("VDR_TEST_SANITIZED") == "1":  # scripts/test_sanitized.sh
    native.FLAGS = (
        "-O1", "-g", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast", "-w", "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
    )  # fmt: skip


def _at(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDR_NATIVE", "1")
    monkeypatch.setenv(instructions.VARIABLE, level)
    monkeypatch.setattr(native, "_fallbacks", type(native._fallbacks)())
    if native._compiler() is None:
        pytest.skip("no C compiler on this machine: only the plain twins can be tested")
    assert native.library() is not None, native.fallbacks()


@pytest.fixture(params=LEVELS)
def compiled(request, monkeypatch):
    """Runs a test with the C kernels of every level that this machine can run."""
    _at(request.param, monkeypatch)


@pytest.fixture(params=["twin", *LEVELS])
def path(request, monkeypatch):
    """Runs a test with the C kernels of every level, and without them."""
    if request.param == "twin":
        monkeypatch.setenv("VDR_NATIVE", "0")
    else:
        _at(request.param, monkeypatch)


@pytest.fixture(scope="session")
def tiny_config():
    """`tiny_config(tokenizer, depth)`: the mini backbone's configuration at width 32, with two text layers and `depth`
    vision layers, all of full attention.
    """

    def config(tokenizer, depth: int):
        from transformers import Qwen2_5_VLConfig

        from vdr.models.mini import mini_config

        plain = mini_config(tokenizer).to_dict()
        small = {"hidden_size": 32, "intermediate_size": 48}
        plain["text_config"] |= small | {"num_hidden_layers": 2, "layer_types": None}
        plain["text_config"]["rope_parameters"]["mrope_section"] = [1, 1, 2]
        plain["vision_config"] |= small | {"out_hidden_size": 32, "depth": depth, "num_heads": 2}
        plain["vision_config"]["fullatt_block_indexes"] = list(range(depth))
        return Qwen2_5_VLConfig(**plain)

    return config
