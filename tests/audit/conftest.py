"""A small study to serve: six queries with hostile texts, three annotators, ratings that occur nowhere else."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw

from vdr.audit.design import design_ring
from vdr.audit.sampling import Sizes
from vdr.audit.study import freeze, write_study

SENTINEL = 0.8371
HOSTILE = '<script>document.title="taken"</script><img src=x onerror=alert(1)> & "quotes" ‘→’?'
SECRET_WORDS = (
    str(SENTINEL),
    "labelled",
    "mined",
    "score",
    "rank",
    "rating",
    "hedge",
    "breadth",
    "specific",
    "hidden-id",
)


def small_scored(queries: int = 9) -> pd.DataFrame:
    rows = []
    for q in range(queries):
        for rank in range(5):
            rows.append((f"q{q}", f"../../hidden-id-{q}-{rank}", rank, SENTINEL if rank % 2 else 0.5 * (q % 2)))
    return pd.DataFrame(rows, columns=["query_id", "page_id", "rank", "score"])


def draw_page(page_id: str) -> Image.Image:
    """A readable page whose words tell it apart for a person, not its rank."""
    rng = np.random.default_rng(sum(page_id.encode()))
    image = Image.new("RGB", (424, 600), (252, 251, 247))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, 424, 64), fill=(36, 72, 110))
    pen.text((24, 22), "ANNUAL REPORT", fill="white", font_size=20)
    for line in range(16):
        value = int(rng.integers(100, 999))
        pen.text(
            (24, 90 + 30 * line), f"Item {line + 1:02d}   budget {value} thousand", fill=(40, 40, 40), font_size=15
        )
    return image


@pytest.fixture(scope="session")
def study_template(tmp_path_factory) -> Path:
    texts = {f"q{q}": f"What is the budget of item {q}?" for q in range(9)}
    texts |= {"q0": HOSTILE, "q1": "Wie hoch ist das Budget für Überstunden im Jahr 2019, und wer hat es genehmigt?"}
    breadth = dict.fromkeys(texts, "specific")
    sizes = Sizes(queries=6, with_labelled=3, pages_per_query=4, annotators=3)
    design = design_ring(small_scored(), texts, sizes, seed=2, breadth=breadth)
    text = "Item 01 budget 512 thousand\nItem 02 <b>bold</b> budget 77\n" * 4
    transcripts = dict.fromkeys(design.pairs["page_id"].unique()[::2], text)
    folder = write_study(
        tmp_path_factory.mktemp("audit") / "study", design, draw_page, title="A small audit", transcripts=transcripts
    )
    freeze(folder)
    return folder


@pytest.fixture
def served_folder(study_template, tmp_path) -> Path:
    return Path(shutil.copytree(study_template, tmp_path / "study"))
