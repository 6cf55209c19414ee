"""Chapters on a record whose rows, labels and scores were made by the parts themselves from a small world."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from vdr.errors import BadInput
from vdr.mining import build_scored_pool, read_scored_pool
from vdr.mining.files import write_pools, write_table
from vdr.report.chapters import corpus, labels, overview, training, weights
from vdr.report.gallery import asset_files, corpus_files, corpus_statistics
from vdr.report.notebooks import chapters, run_chapters
from vdr.store import Store
from vdr.study.catalogue import load_arms
from vdr.study.sections.mining import MiningSettings
from vdr.study.sections.supervision import SupervisionSettings
from vdr.supervision import build_rows
from vdr.teacher.labels import grades_of, label_pairs, label_statistics, write_statistics
from vdr.teacher.queue import RATINGS
from vdr.training.loop import COLUMNS

PAGES = [f"p{i:03d}" for i in range(120)]
SOURCES = ["docvqa", "tatdqa", "pdf", "arxivqa", "infographic-vqa"]


def small_corpus(pages: Any) -> SimpleNamespace:
    rng = np.random.default_rng(3)
    rows = pd.DataFrame(
        {
            "row_id": range(30),
            "query_id": [f"q{i}" for i in range(30)],
            "query": ["what is the date?"] * 2 + [f"query {i}" for i in range(2, 30)],
            "page_id": [PAGES[i // 2] if i > 3 else PAGES[100 + i] for i in range(30)],
            "source": [SOURCES[i // 2 % 5] for i in range(30)],
            "split": ["train"] * 25 + ["validation"] * 5,
            "breadth": ["broad"] * 2 + ["specific"] * 28,
        }
    )
    grades = rng.choice([0, 1, 3], p=[0.5, 0.2, 0.3], size=(30, 120)).astype(np.int8)
    for i, page in enumerate(rows["page_id"]):
        grades[i, PAGES.index(page)] = 3
    return SimpleNamespace(rows=rows, pages=pages, grades=grades, truth=lambda: grades)


def labelling(store: Store, world: SimpleNamespace, corpus_artefact) -> SimpleNamespace:
    rows = world.rows[world.rows["split"] == "train"].reset_index(drop=True)
    rng = np.random.default_rng(5)

    def pools_stage(out: Path, measures: dict) -> None:
        records = []
        for row in rows.itertuples():
            pool = [PAGES[p] for p in rng.permutation(120)[:100]]
            rank = pool.index(row.page_id) + 1 if row.page_id in pool else -1
            records.append((row.row_id, pool, (20 - np.arange(100) * 0.1).astype(np.float32), rank, 9.0))
        columns = ["row_id", "candidates", "scores", "labelled_rank", "labelled_score"]
        write_pools(out, pd.DataFrame(records, columns=columns))
        (out / "report.json").write_text(json.dumps({"rows": len(rows), "labelled_page_found_share": 0.8}))

    def scored_stage(out: Path, measures: dict) -> None:
        build_scored_pool(pd.read_parquet(pools.path / "pools.parquet"), rows, MiningSettings(), out, measures)

    def ratings_stage(out: Path, measures: dict) -> None:
        scored = read_scored_pool(known.path)
        value = rng.choice([0.0, 0.2, 0.5, 1.0, np.nan], p=[0.5, 0.08, 0.1, 0.3, 0.02], size=len(scored))
        own = scored[["row_id", "page_id", "rank"]].assign(rating=value.astype(np.float32), reply="0")
        write_table(out / "ratings.parquet", own, RATINGS)
        (out / "report.json").write_text(
            json.dumps({"pairs": len(own), "unparseable_share": float(np.isnan(value).mean())})
        )

    def labels_stage(out: Path, measures: dict) -> None:
        scored = read_scored_pool(known.path)
        grade = grades_of(scored, world.grades, list(world.rows["row_id"]), PAGES)
        pairs = label_pairs(scored, pd.read_parquet(ratings.path / "ratings.parquet"), rows, grade=grade)
        write_statistics(label_statistics(pairs), out)

    pools = store.make("pools", {}, {"corpus": corpus_artefact}, pools_stage)
    known = store.make("scored", {}, {"pools": pools}, scored_stage)
    ratings = store.make("ratings", {}, {"scored": known}, ratings_stage)
    inputs = {"corpus": corpus_artefact, "scored": known, "ratings": ratings}
    return SimpleNamespace(
        rows=rows, pools=pools, scored=known, ratings=ratings, labels=store.make("labels", {}, inputs, labels_stage)
    )


@pytest.fixture(scope="module")
def full(study, tmp_path_factory) -> SimpleNamespace:
    """The small study of conftest, with rows, curves and labels behind its runs."""
    root = tmp_path_factory.mktemp("full")
    store, world = Store(root / "artefacts"), small_corpus(study.pages(PAGES))

    def corpus_stage(out: Path, measures: dict) -> None:
        (out / "pages.txt").write_text("\n".join(PAGES))

    corpus_artefact = store.make("corpus", {}, {}, corpus_stage)
    made = labelling(store, world, corpus_artefact)
    runs = {}
    for (arm, seed), old in study.runs.items():

        def rows_stage(out: Path, measures: dict, arm: str = arm, seed: int = seed) -> None:
            entry = load_arms()[arm].model_copy(update={"maps": False, "descriptions": False})
            tables = (pd.read_parquet(p) for p in _parquets(made)) if entry.needs_pools else (None, None, None)
            build_rows(entry, made.rows, *tables, None, None, seed, out, SupervisionSettings(), measures)

        def train_stage(out: Path, measures: dict, arm: str = arm, seed: int = seed) -> None:
            _curves(out, seed)
            changed = {"by_kind": {"projection": 1.0, "lora_A": 1.0, "lora_B": 0.99 - seed / 100}}
            cost = 3.0 if arm in "NS" else 1.0
            measures |= {"steps": 12, "changed": changed, "timing": {"seconds_per_step_median": cost + seed / 10}}

        def run_stage(out: Path, measures: dict, old=old) -> None:
            for name in old.manifest["files"]:
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_bytes((old.path / name).read_bytes())

        described, inputs = {"arm": arm, "seed": seed}, {"ratings": made.ratings, "corpus": corpus_artefact}
        rows = store.make("rows", described, inputs, rows_stage, label=f"{arm}-seed-{seed}")
        label = f"{arm}-seed-{seed}-three_epochs"
        checkpoint = store.make("checkpoint", described, {"rows": rows}, train_stage, label=label)
        runs[(arm, seed)] = store.make("run", described, {"checkpoint": checkpoint}, run_stage, label=label)
    folders = {name: _weights(root / name) for name in ("backbone", "teacher")}
    more = corpus_files(world, study.datasets) | asset_files(folders)
    record = study.record_of(root / "record", store, runs, extra=[made.labels], more=more)
    return SimpleNamespace(root=root, record=record, world=world, made=made)


def _parquets(made: SimpleNamespace) -> list[Path]:
    names = (("pools", "pools"), ("scored", "scored_pool"), ("ratings", "ratings"))
    return [getattr(made, stage).path / f"{name}.parquet" for stage, name in names]


def _curves(out: Path, seed: int) -> None:
    steps = np.arange(1, 13)
    loss = pd.DataFrame(dict.fromkeys(COLUMNS, np.nan), index=range(12))
    loss = loss.assign(step=steps, epoch=steps / 4, loss=3 / steps + seed, infonce=3 / steps + seed, grad_norm=1.0)
    loss.to_csv(out / "loss.csv", index=False)
    checks = pd.DataFrame(
        {"step": [6, 12], "epoch": [1.5, 3], "infonce": [1.0 + seed, 0.5 + seed], "ndcg5": [0.4, 0.6]}
    )
    checks.to_csv(out / "validation.csv", index=False)


def _weights(folder: Path) -> Path:
    (folder / "samples").mkdir(parents=True)
    Image.new("L", (24, 32), 200).save(folder / "samples" / "0.png")
    example = {"page": "samples/0.png", "truth": "DATE | 2019 | · | ·", "read": "DATE | 2018 | · | ·"}
    example |= {"queries": ["when?", "who?"], "replies": ["100", "0"]}
    report = {"steps": 3, "unseen": {"character_accuracy": 0.91234567}, "examples": [example]}
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "config.json").write_text("{}")
    (folder / "loss.csv").write_text("step,loss,auc_easy,seconds,stage\n1,2.0,,1,a\n2,1.0,0.7,2,a\n1,0.5,0.8,1,b\n")
    return folder


def test_repeated_strings_and_unlabelled_relevant_pages_are_counted():
    rows = pd.DataFrame(
        {
            "query": ["a", "a", "a", "b", "b", "c", "a"],
            "page_id": ["1", "2", "2", "3", "3", "4", "9"],
            "source": ["s"] * 7,
            "split": ["train"] * 6 + ["validation"],
        }
    )
    truth = np.array([[3, 2, 1], [3, 0, 0], [3, 0, 0], [3, 2, 2], [3, 0, 0], [3, 0, 0], [3, 3, 3]])
    found = corpus_statistics(rows, 9, truth)
    training = found["training"]
    assert (training["repeated_query_strings"], training["strings_on_more_than_one_page"]) == (2, 1)
    assert (training["rows_repeating_a_string"], training["duplicate_rows"]) == (3, 2)
    assert found["unlabelled_relevant_pages"] == {"median": 0.0, "mean": 0.5, "queries_with_none": pytest.approx(4 / 6)}
    assert found["rows"] == {"train": 6, "validation": 1}


def test_overview(full):
    table = overview.stages_table(full.record).set_index("stage")
    assert table.loc["checkpoint", "artefacts"] == 15
    assert table.index[0] == "corpus"
    assert list(overview.arms_table(full.record)["arm"]) == ["baseline", "N", "S", "A", "D"]


def test_corpus(full):
    table = corpus.corpus_table(full.record).set_index("quantity")
    assert table.loc["training rows"].tolist() == ["25", "118,184"]
    assert table.loc["query strings that recur", "this run"] == "1"
    bands = corpus.band_table(full.record)
    assert list(bands["rank"]) == ["1", "2", "3-4", "5-9", "10-20", "21-100", "labelled page"]
    assert bands["paper's "].tolist()[0] == 0.701
    assert bands["truly relevant"].tolist()[-1] == 1.0
    sources = corpus.source_table(full.record).set_index("source")
    assert sources.loc["docvqa", "paper's"] == 0.81
    assert sources["paper's"].notna().sum() == 6
    sets = corpus.suite_table(full.record)
    assert len(sets) == 4
    assert sets.loc[0, "grades (pairs)"] == "1: 6, 2: 6"
    assert len(corpus.gallery_figure(full.record).axes) == 5
    assert len(corpus.band_figure(full.record).axes[0].lines) == 3


def test_weights(full):
    assert weights.report_table(full.record, "backbone", "unseen")["value"].tolist() == ["0.9123"]
    assert not (full.record.root / "weights/backbone/config.json").exists()
    assert len(weights.reading_figure(full.record).axes) == 2
    panels = weights.loss_figure(full.record, "teacher").axes
    assert [(p.get_title(), len(p.lines)) for p in panels] == [("a", 1), ("b", 1), ("measured on the way", 1)]
    assert "3 of 4 image tokens right" in weights.reading_figure(full.record).axes[1].get_title()
    assert weights.replies_table(full.record)["reply"].tolist() == ["100", "0"]
    assert len(weights.page_figure(full.record).axes) == 1
    accuracy = weights.accuracy_table(full.record).set_index("measure")
    assert accuracy.loc["precision of protection", "paper (annotators)"] == 0.71
    assert 0 <= accuracy.loc["miss rate", "this run (truth)"] <= 1
    assert {"auc", "specificity"} <= set(weights.truth_table(full.record)["measure"])


def test_labels(full):
    pools = labels.pool_table(full.record).set_index("measure")["value"]
    assert pools["scored: pairs"] == "725"
    assert labels.strata_table(full.record)["stratum"].tolist() == ["clean", "moderate", "severe", "all"]
    negatives = labels.negatives_table(full.record)
    assert negatives["arm"].tolist() == ["N"]
    assert negatives.loc[0, "paper's"] == 0.2
    targets = labels.targets_table(full.record)
    assert targets.loc[0, "paper"] == 0.426
    entropy = labels.entropy_table(full.record)
    assert entropy["paper's entropy"].tolist() == [1.349, 1.255, 0.908, 0.866, 0.819]
    assert entropy["entropy"].is_monotonic_decreasing
    assert labels.incompleteness_table(full.record)["paper"].tolist() == [10, 0.125, 0.701, 0.557, 0.45, 0.2]


def test_training(full):
    cost = training.cost_table(full.record).set_index("arm")
    assert cost.loc["N", "ratio"] == pytest.approx(3.1 / 1.1, abs=0.01)
    assert cost.loc["N", "paper's ratio"] == 4.79
    assert training.changed_table(full.record).set_index("arm").loc["N", "lora_B"] == 0.97
    last = training.validation_table(full.record).set_index("arm")
    assert last.loc["baseline", ["step", "infonce", "ndcg5"]].tolist() == [12, 1.5, 0.6]
    assert [len(axis.lines) for axis in training.curves_figure(full.record).axes] == [5, 5]


def test_what_a_record_lacks_is_said(study):
    with pytest.raises(BadInput, match=r"no corpus/corpus\.json"):
        corpus.corpus_table(study.record)
    with pytest.raises(BadInput, match=r"no weights/teacher/report\.json"):
        weights.report_table(study.record, "teacher")
    with pytest.raises(BadInput, match=r"0 files 'truth\.csv'"):
        weights.truth_table(study.record)
    with pytest.raises(BadInput, match=r"no validation\.csv of baseline"):
        training.curves(study.record, "validation.csv")
    with pytest.raises(BadInput, match="no rows of arm S"):
        labels.targets_table(study.record)


@pytest.mark.slow
def test_every_chapter_runs_from_a_fresh_record(full, tmp_path):
    own = [p.name for p in chapters() if p.name[:2] <= "06"]
    assert len(own) == 7
    done = run_chapters(
        tmp_path, {"record": str(full.record.root), "out": str(tmp_path / "out")}, names=own, timeout_s=600
    )
    assert [p.name for p in done] == own
    assert (tmp_path / "out/tables/wt-table1.csv").is_file()
    assert (tmp_path / "out/figures/wt-table1-changes.png").is_file()
