"""What tests of several parts share."""

from __future__ import annotations

import pytest

import vdr  # noqa: F401 - sets the instruction level before any test's import can load NumPy or torch


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
