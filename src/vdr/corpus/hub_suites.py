"""The papers' evaluation suites, read through `datasets` into the corpus artefact's own form (WT §3, App. C; EV
App. B).

A data set is in BEIR form, in either of the hub's layouts: configs `corpus`, `queries`, `qrels` (languages, if any,
in a column of the queries), or `<language>-corpus`, `<language>-queries`, `<language>-qrels`. Pages are kept as
they come, equal ones too, since dropping one would change what is measured; a damaged page is an error.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vdr.corpus.hub import HubSource, PageWriter, image_bytes, read_image
from vdr.corpus.qrels import write_qrels
from vdr.errors import BadInput, DamagedArtefact
from vdr.pixels import pixel_hash
from vdr.progress import track

__all__ = ["build_suite_dataset"]


def _name(value: Any, where: str) -> str:
    """An id as it may stand in a run file: whitespace percent-encoded. `BadInput` for none at all (`None` and `NA` are
    ids where they are text)."""
    if value is None or value == "":
        raise BadInput("a row has a blank id", where=where, todo="report it to the data set's owners")
    return re.sub(r"\s", lambda m: urllib.parse.quote(m.group()), str(value))


def _column(columns: Iterable[str], *known: str, where: str) -> str:
    for name in known:
        if name in columns:
            return name
    raise BadInput(
        f"none of the columns {', '.join(known)}", where=where, todo="check that the data set is in BEIR form"
    )


def _languages(source: HubSource, wanted: Iterable[str] | None) -> list[tuple[str | None, str]]:
    """(language or None, config prefix) of the source's subsets."""
    configs = source.configs()
    found: list[tuple[str | None, str]] = []
    if {"corpus", "queries", "qrels"} <= set(configs):
        return [(None, "")]
    for name in configs:
        if name.endswith("-corpus"):
            language = name.removesuffix("-corpus")
            if {f"{language}-queries", f"{language}-qrels"} <= set(configs):
                found.append((language, f"{language}-"))
    if not found:
        what = f"no configs corpus, queries and qrels (found: {', '.join(configs) or 'none'})"
        raise BadInput(what, where=source.id, todo="check that the data set is in BEIR form")
    if wanted is not None:
        found = [item for item in found if item[0] in set(wanted)]
    if not found:
        raise BadInput(
            f"none of the languages {', '.join(wanted or [])}", where=source.id, todo=f"it has {', '.join(configs)}"
        )
    return sorted(found)


def build_suite_dataset(
    source: HubSource,
    suite: str,
    name: str,
    out: Path,
    measures: dict[str, Any],
    *,
    split: str = "test",
    languages: Iterable[str] | None = None,
) -> None:
    """Write `<out>/suites/<suite>/<name>/` (pages.parquet, queries.parquet, qrels.tsv, report.json) from a
    BEIR-format source.

    languages: take these alone, by subset name or by the queries' `language`. Where every language has a copy of
    the corpus, the first is stored and the others must list the same page ids. Query ids of subsets get their
    language as prefix. Dropped and counted: blank queries, queries without a relevant page, judgements of unknown
    queries or pages. Raises DamagedArtefact for a page that cannot be decoded, BadInput for an unreadable or empty
    data set, a grade that is no integer, or ids that occur twice.
    """
    folder = Path(out) / "suites" / suite / name
    where = f"{suite}/{name}"
    wanted = None if languages is None else list(languages)
    subsets = _languages(source, wanted)
    ids: list[str] | None = None
    queries: list[dict[str, str]] = []
    judged: dict[tuple[str, str], int] = {}
    dropped = {"blank_queries": 0, "judgements_of_unknown": 0}
    equal = 0
    for language, prefix in subsets:
        columns = source.columns(split, f"{prefix}corpus")
        key = _column(columns, "corpus-id", "corpus_id", "_id", "id", where=f"{where} corpus")
        if ids is None:
            ids, equal = _write_pages(source, split, f"{prefix}corpus", key, folder / "pages.parquet", where)
        else:
            others = [_name(row[key], f"{where} corpus") for row in source.rows(split, f"{prefix}corpus", [key])]
            if sorted(others) != sorted(ids):
                raise BadInput(
                    f"{language} has other pages than {subsets[0][0]}",
                    where=where,
                    todo="give its languages one by one",
                )
        tag = f"{language}-" if language else ""
        names = _queries(source, split, prefix, tag, language, wanted, where, queries, dropped)
        _judgements(source, split, prefix, tag, names, set(ids), where, judged, dropped)
    assert ids is not None
    answered = {query for (query, _), grade in judged.items() if grade > 0}
    kept = [q for q in queries if q["query_id"] in answered]
    asked = {q["query_id"] for q in kept}
    if not ids or not kept:
        raise BadInput(
            f"{len(ids)} pages and {len(kept)} queries with a relevant page",
            where=where,
            todo="an empty suite cannot be scored",
        )
    frame = pd.DataFrame(kept)
    if frame["query_id"].duplicated().any():
        raise BadInput("a query id occurs twice", where=f"{where} queries", todo="report it to the data set's owners")
    pq.write_table(
        pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None), folder / "queries.parquet"
    )
    qrels: dict[str, dict[str, int]] = {}
    for (query, page), grade in judged.items():
        if query in asked:
            qrels.setdefault(query, {})[page] = grade
    write_qrels(folder / "qrels.tsv", qrels)
    report = {
        "source": source.id,
        "revision": source.revision,
        "split": split,
        "languages": sorted({q["language"] for q in kept if q["language"]}),
        "pages": len(ids),
        "pages_equal_to_another": equal,
        "queries": len(kept),
        "unique_query_texts": len({q["query"] for q in kept}),
        "judgements": sum(map(len, qrels.values())),
        "relevant": sum(g > 0 for (q, _), g in judged.items() if q in asked),
        "dropped": {**dropped, "queries_without_a_relevant_page": len(queries) - len(kept)},
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    measures[where] = report


def _write_pages(source: HubSource, split: str, config: str, key: str, path: Path, where: str) -> tuple[list[str], int]:
    """Store a corpus; returns its page ids in order, and how many pages equal an earlier one."""
    pages = PageWriter(path)
    ids: list[str] = []
    seen: dict[str, int] = {}
    try:
        for row in track(source.rows(split, config, [key, "image"]), f"read {where}", "page"):
            page_id = _name(row[key], f"{where} corpus")
            try:
                sha256 = pixel_hash(read_image(row["image"]))
            except DamagedArtefact as error:
                raise DamagedArtefact(
                    f"page {page_id}: {error.what}", where=f"{where} corpus", todo="fetch the data set again"
                ) from error
            seen[sha256] = seen.get(sha256, 0) + 1
            ids.append(page_id)
            pages.add(page_id, image_bytes(row["image"]), where, sha256, "test")
    finally:
        pages.close()
    if len(set(ids)) != len(ids):
        raise BadInput("a page id occurs twice", where=f"{where} corpus", todo="report it to the data set's owners")
    return ids, len(ids) - len(seen)


def _queries(
    source: HubSource,
    split: str,
    prefix: str,
    tag: str,
    language: str | None,
    wanted: list[str] | None,
    where: str,
    queries: list[dict[str, Any]],
    dropped: dict[str, int],
) -> set[str]:
    """Append a subset's queries; returns the ids that its judgements may name (blank and unwanted queries among
    them)."""
    config = f"{prefix}queries"
    columns = source.columns(split, config)
    key = _column(columns, "query-id", "query_id", "_id", "id", where=f"{where} queries")
    text = _column(columns, "query", "text", where=f"{where} queries")
    spoken = "language" if "language" in columns else None
    names: set[str] = set()
    for row in source.rows(split, config, [key, text, *([spoken] if spoken else [])]):
        query_id = tag + _name(row[key], f"{where} queries")
        names.add(query_id)
        said = language or (row[spoken] if spoken else None)
        if language is None and wanted is not None and said not in wanted:
            continue
        if not isinstance(row[text], str) or not row[text].strip():
            dropped["blank_queries"] += 1
            continue
        queries.append({"query_id": query_id, "query": row[text], "language": said})
    return names


def _judgements(
    source: HubSource,
    split: str,
    prefix: str,
    tag: str,
    names: set[str],
    pages: set[str],
    where: str,
    judged: dict[tuple[str, str], int],
    dropped: dict[str, int],
) -> None:
    config = f"{prefix}qrels"
    columns = source.columns(split, config)
    query = _column(columns, "query-id", "query_id", where=f"{where} qrels")
    page = _column(columns, "corpus-id", "corpus_id", where=f"{where} qrels")
    for row in source.rows(split, config, [query, page, "score"]):
        pair = (tag + _name(row[query], f"{where} qrels"), _name(row[page], f"{where} qrels"))
        grade = row["score"]
        if grade is None or int(grade) != grade or grade < 0:
            raise BadInput(
                f"grade {grade!r} of query {pair[0]} is no integer from 0",
                where=f"{where} qrels",
                todo="check the data set",
            )
        if pair[0] not in names or pair[1] not in pages:
            dropped["judgements_of_unknown"] += 1
            continue
        # Some published sets judge a pair twice (one line per answer passage): the best grade counts.
        judged[pair] = max(judged.get(pair, 0), int(grade))
