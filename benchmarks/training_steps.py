"""Seconds per training step of each arm, and pages encoded per second, beside a plain implementation in the same
run.

The plain implementation is this package's own code with transformers' forward pass, peft's adapters and the vision
tower computed at every step; both sides are given the same rows and begin from the same weights, and their first
losses are compared before anything is timed. Processor seconds of one thread, so that a busy machine does not blur
them; wall seconds stand beside.

python benchmarks/training_steps.py [--profile mini] [--backbone DIR] [--steps 12] [--out
benchmarks/results/training_steps.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from vdr.corpus.access import load_train
from vdr.corpus.build import build_corpus
from vdr.evaluation.encode import build_vision_cache
from vdr.models.processing import Processor
from vdr.models.student import Seeds, Student
from vdr.models.vision_cache import CachedFeatures, LiveFeatures
from vdr.models.weights import locate
from vdr.provenance import hardware, packages
from vdr.study.catalogue import load_arms
from vdr.study.sections.training import ArmLosses, TrainingSettings
from vdr.study.settings import load_profile
from vdr.training.data import Collator, TrainingRows, batch_rows
from vdr.training.loop import prepare_process
from vdr.training.objective import batch_loss

ARMS = ("baseline", "N", "S", "A", "D")
PLAIN = {"forward": "library", "vision_cache": False}


def rows_of(arm: str, corpus, processor: Processor, places: int, settings: TrainingSettings) -> TrainingRows:
    """Rows whose supervision is drawn at random: what a step costs does not depend on which pages or ratings it is
    given.
    """
    rng = np.random.default_rng(0)
    frame = corpus.rows[corpus.rows["split"] == "train"]
    pages = sorted(set(frame["page_id"]))
    n = len(frame)
    four = [[str(p) for p in rng.choice(pages, 4, replace=False)] for _ in range(n)]
    texts = list(frame["query"])
    described = [processor.query_ids(" ".join(rng.choice(texts, 2))) for _ in range(n)] if arm == "D" else [None] * n
    maps = (
        {int(r): torch.from_numpy(rng.random(places, dtype=np.float32)) for r in frame["row_id"]} if arm == "A" else {}
    )
    return TrainingRows([int(r) for r in frame["row_id"]], list(frame["page_id"]), [processor.query_ids(t) for t in texts],
                        four if arm == "N" else [[]] * n, four if arm == "S" else [[]] * n,
                        [[0.0, 1.0, 0.0, 0.9]] * n if arm == "S" else [[]] * n, [1.0] * n, described, maps)  # fmt: skip


class Stepper:
    """One student and its optimiser, stepping through the rows of one arm."""

    def __init__(
        self, backbone: Path, settings: TrainingSettings, losses: ArmLosses, make_rows, pages, cache: Path
    ) -> None:
        self.student = Student.create(backbone, settings, Seeds.of(0))
        processor = Processor.from_pretrained(backbone, augmentation_tokens=settings.augmentation_tokens)
        source = CachedFeatures(cache) if settings.vision_cache else LiveFeatures(pages, processor, self.student.vision)
        self.rows: TrainingRows = make_rows(processor)
        self.collate, self.losses, self.settings = (
            Collator(self.rows, self.student, processor, source, losses),
            losses,
            settings,
        )
        self.optimiser = torch.optim.AdamW(
            self.student.trainable().values(), lr=settings.learning_rate, weight_decay=0.0, fused=True
        )
        self.student.train(True)
        self.number = 0

    def step(self) -> float:
        self.optimiser.zero_grad(set_to_none=True)
        members = batch_rows(self.number, len(self.rows), self.settings.batch_size, Seeds.of(0))
        loss, _ = batch_loss(self.student, self.collate(members), self.losses)
        loss.backward()
        self.optimiser.step()
        self.number += 1
        return loss.item()

    def time(self, steps: int) -> dict[str, float]:
        processor, wall = time.thread_time(), time.perf_counter()
        for _ in range(steps):
            self.step()
        return {"processor_s": (time.thread_time() - processor) / steps, "wall_s": (time.perf_counter() - wall) / steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="mini")
    parser.add_argument("--backbone", type=Path, help="checkpoint directory (default: the profile's)")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "training_steps.json")
    options = parser.parse_args()
    prepare_process(1)
    profile = load_profile(options.profile)
    backbone = options.backbone or locate(profile.models.backbone, profile.models.backbone_revision)
    settings = profile.training
    plain = TrainingSettings.model_validate(
        settings.plain() | PLAIN | {"lora": settings.lora.plain() | {"impl": "peft", "dropout": 0.0}}
    )
    arms = load_arms()
    result: dict = {
        "profile": options.profile,
        "steps": options.steps,
        "batch": settings.batch_size,
        "hardware": hardware(),
        "packages": packages(),
    }
    with tempfile.TemporaryDirectory() as folder:
        build_corpus(Path(folder) / "corpus", profile.corpus, profile.suites, {})
        corpus = load_train(Path(folder) / "corpus")
        cache = Path(folder) / "cache"
        began = time.thread_time()
        build_vision_cache(corpus.pages, backbone, cache, settings)
        result["vision_cache_pages_per_processor_s"] = len(corpus.pages) / (time.thread_time() - began)
        h, w = CachedFeatures(cache).grid[0]
        for arm in ARMS:
            sides = {}
            for name, choice in (("ours", settings), ("plain", plain)):
                sides[name] = Stepper(
                    backbone,
                    choice,
                    arms[arm].losses,
                    lambda p, arm=arm: rows_of(arm, corpus, p, h * w, settings),
                    corpus.pages,
                    cache,
                )
            first = {name: side.step() for name, side in sides.items()}
            if abs(first["ours"] - first["plain"]) > 1e-3 * max(1.0, abs(first["plain"])):
                raise SystemExit(f"{arm}: the two sides do not compute the same loss: {first}")
            result[arm] = {
                name: side.time(options.steps if name == "ours" else max(2, options.steps // 4))
                for name, side in sides.items()
            }
            result[arm]["plain_over_ours"] = result[arm]["plain"]["processor_s"] / result[arm]["ours"]["processor_s"]
            print(arm, json.dumps(result[arm]), flush=True)
        for name in ("ours", "plain"):
            result[f"N_over_baseline_{name}"] = (
                result["N"][name]["processor_s"] / result["baseline"][name]["processor_s"]
            )
        for name, choice in (("ours", settings), ("plain", plain)):
            side = Stepper(
                backbone,
                choice,
                arms["baseline"].losses,
                lambda p: rows_of("baseline", corpus, p, h * w, settings),
                corpus.pages,
                cache,
            )
            names, began = list(corpus.pages.ids)[:256], time.thread_time()
            with side.student.inference():
                for start in range(0, len(names), settings.encode_batch):
                    side.student.encode([side.collate.page_batch(names[start : start + settings.encode_batch])])
            result[f"encode_pages_per_processor_s_{name}"] = len(names) / (time.thread_time() - began)
    result["paper"] = {
        "baseline_s": 7.8,
        "N_s": 37.4,
        "N_over_baseline": 4.8,
        "D_s": 8.3,
        "where": "WT App. E, J: batch 32, one H100",
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in result.items() if not isinstance(v, dict)}))


if __name__ == "__main__":
    main()
