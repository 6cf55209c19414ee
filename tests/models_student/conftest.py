"""A random-weight checkpoint in the hub's format, small enough for tests, with windowed vision layers beside full
ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from vdr.models.mini import mini_tokenizer, save_checkpoint
from vdr.models.processing import Processor
from vdr.models.student import Seeds, Student
from vdr.study.sections.training import LoraSettings, TrainingSettings

LORA = LoraSettings(rank=8, alpha=8)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def backbone_dir(tmp_path_factory, tiny_config) -> Path:
    """Norm gains, biases and weights all random, so that no term of the arithmetic can be left out unseen."""
    folder = tmp_path_factory.mktemp("backbone")
    tokenizer = mini_tokenizer()
    generator = torch.Generator().manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(tiny_config(tokenizer, depth=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.15 if parameter.dim() > 1 else 0.3, generator=generator)
            if "norm" in name or "ln_q" in name:
                parameter.add_(1.0)
    save_checkpoint(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def processor(backbone_dir) -> Processor:
    return Processor.from_pretrained(backbone_dir, augmentation_tokens=4)


@pytest.fixture
def make_student(backbone_dir):
    """`make_student(seed=0, adapted=True, **settings)`: a student whose adapters (B included) are random unless not
    adapted.
    """

    def make(seed: int = 0, adapted: bool = True, lora: LoraSettings = LORA, **settings) -> Student:
        student = Student.create(
            backbone_dir, TrainingSettings(lora=lora, projection_dim=16, **settings), Seeds.of(seed)
        )
        if adapted:
            generator = torch.Generator().manual_seed(7)
            with torch.no_grad():
                for name, parameter in student.trainable().items():
                    if name.endswith("lora_B"):
                        parameter.normal_(0.0, 0.1, generator=generator)
        student.train(False)
        return student

    return make
