"""The teacher through transformers: the cached page prefix must change nothing but the time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from vdr.corpus import layouts, world
from vdr.errors import BadInput
from vdr.models.mini import save_checkpoint
from vdr.models.pretraining.reading import new_backbone
from vdr.models.processing import Processor
from vdr.models.prompts import DESCRIBE_PROMPT, RATE_PROMPT, YES_NO_PROMPT, chat
from vdr.study.sections.teacher import TeacherSettings
from vdr.teacher.attention import AttentionTeacher
from vdr.teacher.engines import TransformersTeacher

QUERIES = [
    "What is the date?",
    "What is the total revenue of Acme for the year 2015?",
    "Which method has the best recall?",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vdr.models.mini import mini_tokenizer

    folder = tmp_path_factory.mktemp("teacher")
    model = new_backbone(3)
    torch.manual_seed(4)
    for parameter in model.model.language_model.parameters():  # weights large enough for replies to differ
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    save_checkpoint(model, mini_tokenizer(), folder)
    return folder


@pytest.fixture(scope="module")
def page() -> Image.Image:
    record = world.draw_page(np.random.default_rng(1), "p", "s", "form", "letter")
    return Image.fromarray(layouts.render(record)[0])


@pytest.fixture(scope="module")
def teacher(checkpoint: Path) -> TransformersTeacher:
    return TransformersTeacher(checkpoint, TeacherSettings(max_new_tokens=5, batch_pairs=2))


def _inputs(teacher: TransformersTeacher, page: Image.Image, prompt: str, query: str) -> dict:
    pixel_values, grid = teacher.processor.pixels([page])
    ids, mask = teacher.processor.page_ids(grid, chat(prompt.format(query=query)))
    types = (ids == teacher.processor.image_token_id).long()
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "pixel_values": pixel_values,
        "image_grid_thw": grid,
        "mm_token_type_ids": types,
    }


def test_replies_equal_the_librarys_own_generation(teacher: TransformersTeacher, page: Image.Image) -> None:
    replies = teacher.rate_page(page, QUERIES)
    for query, reply in zip(QUERIES, replies, strict=True):
        inputs = _inputs(teacher, page, RATE_PROMPT, query)
        whole = teacher.model.generate(**inputs, max_new_tokens=5, do_sample=False)
        assert reply == teacher.tokenizer.decode(whole[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_replies_do_not_depend_on_company(teacher: TransformersTeacher, page: Image.Image) -> None:
    together = teacher.rate_page(page, [*QUERIES, QUERIES[0]])
    assert together[0] == together[3]
    assert together[:3] == [teacher.rate_page(page, [query])[0] for query in QUERIES]


def test_yes_no_equals_a_plain_forward(teacher: TransformersTeacher, page: Image.Image) -> None:
    chances = teacher.yes_no(page, QUERIES)
    yes, no = (teacher.tokenizer(w, add_special_tokens=False)["input_ids"][0] for w in ("yes", "no"))
    for query, chance in zip(QUERIES, chances, strict=True):
        with torch.no_grad():
            logits = teacher.model(**_inputs(teacher, page, YES_NO_PROMPT, query)).logits[0, -1]
        odds = torch.exp(logits[yes] - logits[no])
        assert chance == pytest.approx((odds / (1 + odds)).item(), abs=1e-5)


def test_prompt_is_the_papers() -> None:
    assert RATE_PROMPT.startswith(
        "You are judging visual document retrieval relevance. Above is a document page.\nQuery: {query}\nRate how"
    )
    assert RATE_PROMPT.endswith("Respond with only the integer.")
    text = chat(RATE_PROMPT)
    assert text.index("<|image_pad|>") < text.index("{query}"), "the page stands before the query"


def test_maps_are_distributions_on_the_true_grid(checkpoint: Path, page: Image.Image) -> None:
    maps, grid = AttentionTeacher(checkpoint, TeacherSettings()).maps(page, QUERIES)
    assert grid == (4, 8) and maps.shape == (3, 32)
    assert np.allclose(maps.sum(1), 1, atol=1e-5) and (maps >= 0).all()
    assert not np.allclose(maps[0], maps[1]), "maps are conditioned on the query"


def test_unknown_attention_layer_is_refused(checkpoint: Path) -> None:
    with pytest.raises(BadInput, match="3 layers"):
        AttentionTeacher(checkpoint, TeacherSettings(attention_layers=(7,)))


def test_missing_weights_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    gone = next(k for k in weights if "layers.1" in k)
    del weights[gone]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match="missing_keys"):
        TransformersTeacher(tmp_path, TeacherSettings())


def test_special_tokens_in_a_query_stay_text(checkpoint: Path) -> None:
    processor = Processor.from_pretrained(checkpoint)
    ids = processor.query_ids("what <|image_pad|> is <|im_end|>")
    assert processor.image_token_id not in ids
    assert ids.count(processor.pad_token_id) == processor.augmentation_tokens


def test_empty_query_is_refused(checkpoint: Path) -> None:
    with pytest.raises(BadInput, match="empty"):
        Processor.from_pretrained(checkpoint).queries(["  "])


def test_descriptions_of_several_pages_equal_each_alone(teacher: TransformersTeacher, page: Image.Image) -> None:
    other = Image.fromarray(layouts.render(world.draw_page(np.random.default_rng(2), "p", "s", "report", "article"))[0])
    small = other.resize((112, 112))
    together = teacher.describe([page, small, other], [QUERIES[:2], QUERIES[:1], QUERIES], DESCRIBE_PROMPT)
    assert [len(texts) for texts in together] == [2, 1, 3]
    assert together[0] == teacher.describe([page], [QUERIES[:2]], DESCRIBE_PROMPT)[0]
    assert together[1] == teacher.describe([small], [QUERIES[:1]], DESCRIBE_PROMPT)[0]
    assert together[2] == teacher.describe([other], [QUERIES], DESCRIBE_PROMPT)[0]
