"""A small study made by real code: artefacts in a store, searched, scored and recorded; only the vectors are random."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vdr.evaluation.evaluate import evaluate
from vdr.models.vectors import VectorSet
from vdr.report.collect import collect
from vdr.report.record import Record
from vdr.store import Artefact, Store

ARMS = {"baseline": 0.9, "N": 0.5, "S": 0.5, "D": 0.8, "A": 0.9}
SEEDS = (0, 1, 2)
SUITES = ("v1", "v2", "v3", "jina")


class Pages:
    """A page set of plain pages: what a corpus offers, without files."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    def index(self, page_id: str) -> int:
        return self.ids.index(page_id)

    def image(self, i: int) -> Image.Image:
        return Image.new("L", (24, 32), 128 + i % 100)


def datasets() -> list[SimpleNamespace]:
    sets = []
    for suite in SUITES:
        pages = [f"{suite}-p{i:02d}" for i in range(20)]
        queries = {f"{suite}-q{i}": f"query {i}" for i in range(6)}
        qrels = {q: {pages[i]: 2, pages[(i + 5) % 20]: 1} for i, q in enumerate(queries)}
        sets.append(SimpleNamespace(suite=suite, name="forms", pages=Pages(pages), queries=queries, qrels=qrels))
    return sets


def vectors_of(arm: str, seed: int, data: SimpleNamespace) -> tuple[VectorSet, VectorSet]:
    shared = np.random.default_rng(SUITES.index(data.suite))
    own = np.random.default_rng([seed, list(ARMS).index(arm)])
    pages = shared.standard_normal((40, 12)).astype(np.float32)
    queries = pages[:12] + (ARMS[arm] + 0.5) * own.standard_normal((12, 12)).astype(np.float32)
    return VectorSet(data.pages.ids, pages, np.arange(0, 41, 2)), VectorSet(
        list(data.queries), queries, np.arange(0, 13, 2)
    )


def run_study(root: Path) -> tuple[Store, dict[tuple[str, int], Artefact]]:
    """Artefacts corpus → checkpoint → run for every arm and seed."""
    store, sets = Store(root / "artefacts"), datasets()

    def corpus_stage(directory: Path, measures: dict) -> None:
        (directory / "report.json").write_text('{"pages": 80}\n')
        (directory / "large.csv").write_text("x\n" * 9000)
        (directory / "rows.parquet").write_bytes(b"not a report")
        measures["pages"] = 80

    corpus = store.make("corpus", {"pages": 80}, {}, corpus_stage)
    runs = {}
    for arm in ARMS:
        for seed in SEEDS:

            def train(directory: Path, measures: dict, arm: str = arm, seed: int = seed) -> None:
                (directory / "loss.csv").write_text("step,loss\n1,2.5\n2,1.5\n")
                measures["steps"] = 2

            def search(directory: Path, measures: dict, arm: str = arm, seed: int = seed) -> None:
                found = {(d.suite, d.name): vectors_of(arm, seed, d) for d in sets}
                evaluate(
                    found,
                    sets,
                    directory,
                    tag=f"{arm}-seed-{seed}",
                    depth=15,
                    in_domain={"v1": True},
                    measures=measures,
                )

            described = {"arm": arm, "seed": seed}
            checkpoint = store.make("checkpoint", described, {"corpus": corpus}, train, label=f"{arm}-seed-{seed}")
            inputs = {"corpus": corpus, "checkpoint": checkpoint}
            runs[(arm, seed)] = store.make("run", described, inputs, search, label=f"{arm}-seed-{seed}")
    return store, runs


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    root = tmp_path_factory.mktemp("study")
    store, runs = run_study(root)
    record = record_of(root / "record", store, runs)
    return SimpleNamespace(
        root=root, store=store, runs=runs, record=record, record_of=record_of, datasets=datasets(), pages=Pages
    )


def record_of(out: Path, store: Store, runs: dict[tuple[str, int], Artefact], **options) -> Record:
    settings = {
        "profile": "mini",
        "recipe": "three_epochs",
        "notes": ["Vectors are random: a test."],
        "file_limit_kib": 8,
    }
    return collect(out, runs, datasets(), store_root=store.root, **(settings | options))
