"""Making a corpus artefact: drawing the miniature's pages and queries, or reading the papers' data sets."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vdr.corpus import layouts, world
from vdr.corpus.hub import GROUP, PAGES, HubSource, build_train
from vdr.corpus.hub_suites import build_suite_dataset
from vdr.corpus.qrels import write_qrels
from vdr.corpus.row_statistics import row_statistics
from vdr.corpus.world import PageRecord, QueryRecord
from vdr.errors import BadInput, DamagedArtefact
from vdr.pixels import pixel_hash
from vdr.progress import track
from vdr.study.sections.corpus import CorpusSettings, DrawnDataset, DrawnSource
from vdr.study.settings import repository_root
from vdr.study.yaml_io import read_yaml

__all__ = ["build_corpus", "corpus_checksum", "draw_source"]


def build_corpus(out: Path, settings: CorpusSettings, suites: Sequence[str], measures: dict[str, Any]) -> None:
    """Write the corpus artefact of a profile into ``out`` (formats: `vdr.corpus.access`).

    ``suites`` are the suites to include. Raises `BadInput` for a suite without a data set, and `DamagedArtefact` when a
    drawn corpus does not have the checksum that its manifest states.
    """
    chosen = [d for d in (settings.datasets or settings.hub_datasets) if d.suite in suites]
    missing = [s for s in suites if s not in {d.suite for d in chosen}]
    if missing:
        raise BadInput(
            f"suite {missing[0]} has no data set", where="corpus.datasets", todo="declare one, or leave the suite out"
        )
    if settings.train is not None:
        _read_hub(out, settings, chosen, measures)
        return
    _draw_train(out, settings, measures)
    for dataset in track(chosen, label="corpus: suites", unit="data sets"):
        assert isinstance(dataset, DrawnDataset)
        measures[f"{dataset.suite}/{dataset.name}"] = _draw_dataset(out, settings, dataset)
    measures["checksum"] = corpus_checksum(out)
    if settings.manifest is not None:
        _check(settings.manifest, measures["checksum"])


def _read_hub(out: Path, settings: CorpusSettings, datasets: Sequence, measures: dict[str, Any]) -> None:
    assert settings.train is not None
    build_train(HubSource(settings.train.id, settings.train.revision), out, measures)
    for d in datasets:
        build_suite_dataset(HubSource(d.id, d.revision), d.suite, d.name, out, measures, languages=d.languages)


def draw_source(
    rng: np.random.Generator, name: str, source: DrawnSource, settings: CorpusSettings
) -> tuple[list[PageRecord], list[tuple[QueryRecord, int]]]:
    """Pages of one source, and its queries with the index of the page each was written against."""
    pages = [
        world.draw_page(
            rng,
            f"{name}-{i:04d}",
            name,
            source.domain,
            world.pick(rng, source.families),
            distractor_share=settings.distractor_share,
        )
        for i in range(source.pages)
    ]
    queries = []
    for i, page in enumerate(pages):
        for k in range(settings.queries_a_page):
            queries.append((world.draw_query(rng, f"{page.page_id}-q{k}", page, source.specificity), i))
    return pages, queries


def _draw_train(out: Path, settings: CorpusSettings, measures: dict[str, Any]) -> None:
    pages: list[PageRecord] = []
    queries: list[QueryRecord] = []
    labelled: list[int] = []
    splits: list[str] = []
    for s, (name, source) in enumerate(settings.sources.items()):
        drawn, asked = draw_source(np.random.default_rng([settings.seed, 1, s]), name, source, settings)
        held = round(len(drawn) * settings.validation_share)
        queries += [q for q, _ in asked]
        labelled += [len(pages) + i for _, i in asked]
        pages += drawn
        splits += ["train"] * (len(drawn) - held) + ["validation"] * held
    folder = out / "train"
    folder.mkdir(parents=True, exist_ok=True)
    _write_pages(folder / "pages.parquet", pages, splits, label="corpus: training pages")
    rows = pd.DataFrame(
        {
            "row_id": np.arange(len(queries), dtype=np.int64),
            "query_id": [q.query_id for q in queries],
            "query": [q.text for q in queries],
            "page_id": [pages[i].page_id for i in labelled],
            "source": [q.source for q in queries],
            "split": [splits[i] for i in labelled],
            "breadth": [q.breadth for q in queries],
        }
    )
    rows.to_parquet(folder / "rows.parquet", index=False)
    truth = world.grades(queries, pages)
    np.savez_compressed(folder / "truth.npz", grades=truth)
    training = np.asarray(splits) == "train"
    relevant = (truth[:, training] >= 2).sum(1) - 1
    measures["train"] = {
        "pages": len(pages),
        "rows": len(rows),
        "validation_rows": int((rows["split"] != "train").sum()),
        **row_statistics(rows),
    }
    kept = relevant[(rows["split"] == "train").to_numpy()]
    measures["truth"] = {"median_unlabelled_relevant": float(np.median(kept)), "none_share": float((kept == 0).mean())}


def _draw_dataset(out: Path, settings: CorpusSettings, dataset: DrawnDataset) -> dict[str, Any]:
    key = int.from_bytes(hashlib.sha256(f"{dataset.suite}/{dataset.name}".encode()).digest()[:4], "little")
    rng = np.random.default_rng([settings.seed, 2, key])
    pages = [
        world.draw_page(
            rng, f"{dataset.name}-{i:04d}", dataset.name, dataset.domain, world.pick(rng, dataset.families),
            rare_share=dataset.rare_share, distractor_share=settings.distractor_share,
        )
        for i in range(dataset.pages)
    ]  # fmt: skip
    asked: dict[str, tuple[QueryRecord, PageRecord]] = {}
    for attempt in range(50 * dataset.queries):  # distinct texts: a test set asks a question once
        if len(asked) == dataset.queries:
            break
        page = world.pick(rng, pages)
        query = world.draw_query(rng, f"q{attempt:05d}", page, dataset.specificity, phrasing=dataset.phrasing)
        asked.setdefault(query.text, (query, page))
    queries = [q for q, _ in asked.values()]
    grades = world.grades(queries, pages)
    folder = out / "suites" / dataset.suite / dataset.name
    folder.mkdir(parents=True, exist_ok=True)
    _write_pages(
        folder / "pages.parquet", pages, ["test"] * len(pages), label=f"corpus: {dataset.suite}/{dataset.name}"
    )
    pd.DataFrame({"query_id": [q.query_id for q in queries], "query": [q.text for q in queries]}).to_parquet(
        folder / "queries.parquet", index=False
    )
    qrels: dict[str, dict[str, int]] = {}
    for i, (query, page) in enumerate(asked.values()):
        if dataset.labels == "single":
            qrels[query.query_id] = {page.page_id: 1}
        else:
            qrels[query.query_id] = {pages[j].page_id: int(grades[i, j]) for j in np.flatnonzero(grades[i] >= 2)}
    write_qrels(folder / "qrels.tsv", qrels)
    return {"pages": len(pages), "queries": len(queries), "relevant_a_query": sum(map(len, qrels.values())) / len(queries)}


def _write_pages(path: Path, pages: Sequence[PageRecord], splits: Sequence[str], *, label: str) -> None:
    rows = []
    for page, split in track(list(zip(pages, splits, strict=True)), label=label, unit="pages"):
        image = Image.fromarray(layouts.render(page)[0])
        buffer = io.BytesIO()
        image.save(buffer, format="PNG", compress_level=1)
        rows.append(
            {
                "page_id": page.page_id,
                "image": {"bytes": buffer.getvalue(), "path": f"{page.page_id}.png"},
                "source": page.source,
                "sha256": pixel_hash(image),
                "split": split,
            }
        )
    pq.write_table(pa.Table.from_pylist(rows, schema=PAGES), path, row_group_size=GROUP)


def corpus_checksum(out: Path) -> str:
    """SHA-256 over what a drawn corpus says: decoded pixels, rows, queries and judgements (not how files are packed)."""
    digest = hashlib.sha256()
    for file in sorted(out.rglob("pages.parquet")):
        table = pq.read_table(file, columns=["page_id", "sha256", "split"]).to_pandas()
        digest.update(table.to_csv(index=False).encode())
    for file in [out / "train" / "rows.parquet", *sorted(out.rglob("queries.parquet"))]:
        digest.update(pd.read_parquet(file).to_csv(index=False).encode())
    digest.update(np.load(out / "train" / "truth.npz")["grades"].tobytes())
    for file in sorted(out.rglob("qrels.tsv")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _check(manifest: str, checksum: str) -> None:
    file = repository_root() / "data_manifests" / f"{manifest}.yaml"
    try:
        stated = set(read_yaml(file)["checksums"].values())
    except (KeyError, AttributeError, TypeError) as error:
        raise BadInput(
            f"the corpus' manifest cannot be read ({type(error).__name__})", where=f"{file}: checksums"
        ) from error
    if checksum not in stated:
        raise DamagedArtefact(
            f"the drawn corpus has checksum {checksum[:16]}, which its manifest does not state",
            where=f"{file}: checksums",
            todo="install the locked packages (Pillow and NumPy draw the pages); after a wanted change of the settings, state the new one",
        )
