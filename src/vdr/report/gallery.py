"""What the record keeps of a corpus: counts, and a few pages to look at with their queries (WT §3, §6, Appendix E)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vdr.corpus.row_statistics import row_statistics

__all__ = ["asset_files", "corpus_files", "corpus_statistics", "suite_statistics"]

RELEVANT = 2  # a page counts as relevant from this grade on, as the paper's annotators do (WT §3)


def corpus_statistics(rows: pd.DataFrame, pages: int, truth: np.ndarray | None) -> dict[str, Any]:
    """Counts of the training corpus; `rows` has query, page_id, source and split, `truth` int8 [rows, pages] in file
    order.

    Repeated strings are counted over the training split as :func:`vdr.corpus.row_statistics.row_statistics` says.
    """
    train = rows[rows["split"] == "train"]
    result: dict[str, Any] = {
        "pages": pages,
        "rows": {str(k): int(v) for k, v in rows["split"].value_counts().sort_index().items()},
        "sources": {str(k): int(v) for k, v in train["source"].value_counts().sort_index().items()},
        "training": row_statistics(train),
    }
    if "breadth" in train.columns:
        result["breadth"] = {str(k): int(v) for k, v in train["breadth"].value_counts().sort_index().items()}
    if truth is not None:
        # The labelled page is relevant by construction; what the label leaves out is the rest.
        others = (np.asarray(truth) >= RELEVANT).sum(axis=1)[(rows["split"] == "train").to_numpy()] - 1
        result["unlabelled_relevant_pages"] = {
            "median": float(np.median(others)),
            "mean": float(others.mean()),
            "queries_with_none": float((others <= 0).mean()),
        }
    return result


def suite_statistics(datasets: Iterable[Any]) -> list[dict[str, Any]]:
    """One entry a data set: pages, queries, judged pairs, relevant pages per query, and how many pairs have each
    grade."""
    entries = []
    for data in datasets:
        grades = [grade for judged in data.qrels.values() for grade in judged.values()]
        relevant = [sum(grade > 0 for grade in judged.values()) for judged in data.qrels.values()]
        entries.append(
            {
                "suite": data.suite,
                "dataset": data.name,
                "pages": len(data.pages.ids),
                "queries": len(data.queries),
                "judged_pairs": len(grades),
                "relevant_per_query": float(np.mean(relevant)) if relevant else 0.0,
                "grades": {str(g): grades.count(g) for g in sorted(set(grades))},
            }
        )
    return entries


def _png(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return out.getvalue()


def _examples(
    pages: Any, groups: Iterable[tuple[str, str, list[str]]]
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    entries, files = [], {}
    for group, page_id, queries in groups:
        name = f"gallery/{group.replace('/', '-').replace(' ', '_')}.png"
        files[name] = _png(pages.image(pages.index(page_id)))
        entries.append({"file": name, "group": group, "page_id": page_id, "queries": queries[:3]})
    return entries, files


def corpus_files(train: Any, datasets: Iterable[Any]) -> dict[str, bytes]:
    """`corpus/corpus.json` and one sample page a source and data set: what :func:`vdr.report.collect.collect` takes as
    `more`.

    train: :class:`vdr.corpus.access.TrainCorpus`; datasets: the suites' :class:`~vdr.corpus.access.SuiteDataset`.
    """
    datasets = list(datasets)
    rows = train.rows
    groups = [
        (
            f"train {source}",
            part.iloc[0]["page_id"],
            part.loc[part["page_id"] == part.iloc[0]["page_id"], "query"].tolist(),
        )
        for source, part in rows[rows["split"] == "train"].groupby("source", sort=True)
    ]
    entries, files = _examples(train.pages, groups)
    for data in datasets:
        query = min(data.qrels)
        page = max(sorted(data.qrels[query]), key=lambda p: data.qrels[query][p])
        asked = [text for name, text in data.queries.items() if data.qrels[name].get(page, 0) > 0]
        more, pictures = _examples(data.pages, [(f"{data.suite}/{data.name}", page, asked)])
        entries, files = entries + more, files | pictures
    content = {
        "train": corpus_statistics(rows, len(train.pages.ids), train.truth()),
        "suites": suite_statistics(datasets),
        "gallery": entries,
    }
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return {"corpus/corpus.json": text.encode("utf-8")} | {f"corpus/{name}": data for name, data in files.items()}


def asset_files(directories: dict[str, Path], limit_kib: int = 512) -> dict[str, bytes]:
    """The reports that ship beside weights, as `weights/<name>/…`: *.json, *.csv and samples/*.png up to a size.

    directories: for example {"backbone": …, "teacher": …}. Configuration files of the checkpoint itself are left out.
    """
    leave = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "vocab.json"}
    files = {}
    for name, directory in directories.items():
        found = [p for pattern in ("*.json", "*.csv", "samples/*.png") for p in Path(directory).glob(pattern)]
        for path in sorted(found):
            if path.name not in leave and "processor" not in path.name and path.stat().st_size <= limit_kib * 1024:
                files[f"weights/{name}/{path.relative_to(directory).as_posix()}"] = path.read_bytes()
    return files
