"""A tiny random backbone, a tiny corpus in the corpus' own format, rows of every arm, and a cache of vision
features.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration

from vdr.corpus.draw import HEIGHT, WIDTH
from vdr.models.mini import mini_tokenizer, save_checkpoint
from vdr.study.sections.training import ArmLosses, LoraSettings, TrainingSettings

WORDS = ["revenue", "cost", "north", "south", "total", "page", "year", "region", "share", "plan"]
GRID = (HEIGHT // 28, WIDTH // 28)
LOSSES = {
    "baseline": ArmLosses(),
    "N": ArmLosses(),
    "S": ArmLosses(score={"weight": 1.0}),
    "A": ArmLosses(attention={"weight": 0.1}),
    "D": ArmLosses(description={"weight": 0.2}),
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def backbone_dir(tmp_path_factory, tiny_config) -> Path:
    folder = tmp_path_factory.mktemp("backbone")
    tokenizer = mini_tokenizer()
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(tiny_config(tokenizer, depth=1))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.15)
    save_checkpoint(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def corpus_dir(tmp_path_factory) -> Path:
    """24 training pages with two rows each, 6 validation pages with one."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "train").mkdir()
    rng = np.random.default_rng(0)
    pages, rows = [], []
    for number in range(30):
        pixels = rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        split = "train" if number < 24 else "validation"
        pages.append({"page_id": f"p{number:02d}", "image": {"bytes": stream.getvalue(), "path": None}, "source": "form",
                      "sha256": hashlib.sha256(pixels.tobytes()).hexdigest(), "split": split})  # fmt: skip
        for _ in range(2 if number < 24 else 1):
            text = " ".join(rng.choice(WORDS, int(rng.integers(2, 6))))
            rows.append({"row_id": len(rows), "query_id": f"q{len(rows)}", "query": text, "page_id": f"p{number:02d}",
                         "source": "form", "split": split, "breadth": "specific"})  # fmt: skip
    pd.DataFrame(pages).to_parquet(folder / "train" / "pages.parquet")
    pd.DataFrame(rows).to_parquet(folder / "train" / "rows.parquet")
    return folder


@pytest.fixture(scope="session")
def arm_rows(corpus_dir, tmp_path_factory) -> dict[str, Path]:
    """`rows.parquet` of every arm, and A's maps, in the form that supervision writes."""
    folder = tmp_path_factory.mktemp("rows")
    frame = pd.read_parquet(corpus_dir / "train" / "rows.parquet")
    frame = frame[frame["split"] == "train"]
    names = [f"p{number:02d}" for number in range(24)]
    for arm in LOSSES:
        rng = np.random.default_rng(1)
        rows = []
        for row in frame.itertuples():
            others = [str(p) for p in rng.permutation(names) if p != row.page_id][:4]
            ratings = [float(r) for r in rng.choice([0.0, 0.0, 0.9, 1.0], 4)]
            rows.append({"row_id": row.row_id, "query": row.query, "page_id": row.page_id, "source": row.source,
                         "negatives": others if arm == "N" else [], "candidates": others if arm == "S" else [],
                         "targets": ratings if arm == "S" else [], "target_weight": 1.0,
                         "description": " ".join(rng.choice(WORDS, 6)) if arm == "D" and row.row_id % 5 else None})  # fmt: skip
        (folder / arm).mkdir()
        pd.DataFrame(rows).to_parquet(folder / arm / "rows.parquet")
    ids = np.arange(0, len(frame), 2, dtype=np.int64)
    np.savez(
        folder / "maps.npz",
        row_id=ids,
        maps=np.random.default_rng(2).random((len(ids), GRID[0] * GRID[1]), dtype=np.float32),
    )
    return {arm: folder / arm for arm in LOSSES} | {"maps": folder / "maps.npz"}


@pytest.fixture(scope="session")
def grid() -> tuple[int, int]:
    """Merged rows and columns of a page."""
    return GRID


@pytest.fixture(scope="session")
def training() -> TrainingSettings:
    return TrainingSettings(batch_size=8, lora=LoraSettings(rank=4, alpha=4), projection_dim=16, checkpoint_every=2, validation_batch=4,
                            encode_batch=4, augmentation_tokens=2)  # fmt: skip


@pytest.fixture(scope="session")
def cache_dir(corpus_dir, backbone_dir, training, tmp_path_factory) -> Path:
    from vdr.corpus.access import load_train
    from vdr.evaluation.encode import build_vision_cache

    folder = tmp_path_factory.mktemp("cache")
    build_vision_cache(load_train(corpus_dir).pages, backbone_dir, folder, training, batch=7)
    return folder


@pytest.fixture(scope="session")
def train(backbone_dir, corpus_dir, arm_rows, cache_dir, training):
    """`train(out, arm="baseline", epochs=1, seed=0, settings=…, **extra)` → (finished, measures)."""
    from vdr.study.sections.training import RecipeSettings
    from vdr.training.loop import run_training

    def run(
        out: Path,
        arm: str = "baseline",
        epochs: float = 1,
        seed=0,
        settings: TrainingSettings = training,
        rows=None,
        **extra,
    ):
        measures: dict = {}
        cache = cache_dir if settings.vision_cache else None
        recipe = RecipeSettings(name="test", epochs=epochs)
        finished = run_training(rows or arm_rows[arm], arm_rows["maps"] if arm == "A" else None, corpus_dir, cache, backbone_dir,
                                LOSSES[arm], recipe, seed, settings, out, measures, **extra)  # fmt: skip
        return SimpleNamespace(finished=finished, measures=measures, out=out)

    return run
