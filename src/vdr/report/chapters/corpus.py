"""Chapter 01: pages, queries and suites, and how incomplete the labels are, beside WT §6, Table 17 and Appendix O."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pandas as pd

from vdr.report.figures import PALETTE, style
from vdr.report.record import Record
from vdr.report.reference import wt_tables
from vdr.textfiles import measured_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["band_figure", "band_table", "corpus_table", "gallery", "gallery_figure", "source_table", "suite_table"]


def _content(record: Record) -> dict[str, Any]:
    return dict(json.loads(record.extra("corpus/corpus.json").read_text(encoding="utf-8")))


def corpus_table(record: Record) -> pd.DataFrame:
    """quantity, this run, paper: sizes and repeated strings (WT §3, §6, Appendix E)."""
    ours, paper = _content(record)["train"], wt_tables()
    sizes, labels = paper["corpus"], paper["labels"]
    train = ours["training"]
    rows = [
        ("training rows", train["rows"], sizes["manifest_rows"]),
        ("pages behind them", train["pages"], sizes["pages_by_content_hash"]),
        (
            "rows a page",
            round(train["rows"] / train["pages"], 2),
            round(sizes["rows"] / sizes["pages_by_content_hash"], 2),
        ),
        ("rows held out for validation", sum(v for k, v in ours["rows"].items() if k != "train"), None),
        ("query strings that recur", train["repeated_query_strings"], labels["repeated_query_strings"]),
        ("… on more than one page", train["strings_on_more_than_one_page"], labels["strings_on_more_than_one_page"]),
        ("rows that repeat a string", train["rows_repeating_a_string"], labels["rows_repeating_a_string"]),
        ("exact repeats of a (query, page) pair", train["duplicate_rows"], sizes["duplicate_rows"]),
    ]
    if "unlabelled_relevant_pages" in ours:
        truth = ours["unlabelled_relevant_pages"]
        rows.append(("relevant pages without a label a query, median (truth)", truth["median"], None))
        rows.append(("queries without any (truth)", round(truth["queries_with_none"], 3), None))
    shown = [(name, _shown(ours), _shown(theirs)) for name, ours, theirs in rows]
    return pd.DataFrame(shown, columns=["quantity", "this run", "paper"])


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def suite_table(record: Record) -> pd.DataFrame:
    """One row a data set: pages, queries, relevant pages a query, grades, overlap with the training corpus."""
    sets = record.datasets().drop_duplicates(["suite", "dataset"])
    flags = {(row.suite, row.dataset): row.in_domain for row in sets.itertuples(index=False)}
    rows = []
    for entry in _content(record)["suites"]:
        flag = flags.get((entry["suite"], entry["dataset"]))
        rows.append(
            {
                "suite": entry["suite"],
                "data set": entry["dataset"],
                "pages": entry["pages"],
                "queries": entry["queries"],
                "relevant a query": round(entry["relevant_per_query"], 2),
                "grades (pairs)": ", ".join(f"{grade}: {count}" for grade, count in entry["grades"].items()),
                "in domain": "–" if flag is None else "yes" if flag else "no",
            }
        )
    return pd.DataFrame(rows)


def gallery(record: Record, kind: str = "") -> list[dict[str, Any]]:
    """The sample pages whose group begins with `kind` (`train`, a suite's name): file, group, page_id, queries."""
    return [entry for entry in _content(record)["gallery"] if entry["group"].startswith(kind)]


def gallery_figure(record: Record, kind: str = "train", columns: int = 5) -> Figure:
    """Sample pages side by side, each under its group's name and with one of its queries."""
    import textwrap

    import matplotlib.pyplot as plt

    style()
    entries = gallery(record, kind)
    lines = -(-len(entries) // columns)
    images = [plt.imread(record.extra(f"corpus/{entry['file']}")) for entry in entries]
    tallest = max(image.shape[0] / image.shape[1] for image in images)
    size = (2.5 * columns, (2.5 * tallest + 0.95) * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, entry, image in zip(axes.flat, entries, images, strict=False):
        axis.imshow(image, interpolation="nearest")
        axis.set_title(entry["group"].removeprefix("train "), fontsize=9)
        query = textwrap.fill(entry["queries"][0], 34) if entry["queries"] else ""
        axis.text(0.5, -0.03, query, transform=axis.transAxes, ha="center", va="top", fontsize=7.5)
    figure.tight_layout()
    return figure


def _labels(record: Record, name: str) -> pd.DataFrame:
    return measured_table(record.file("labels", f"{name}.csv"))


def band_table(record: Record) -> pd.DataFrame:
    """Table 17's form: band of ranks, mean rating and share rated relevant here and in the paper, and the true share
    here."""
    paper = wt_tables()["table17_rank_bands"]
    rows = []
    for row in _labels(record, "rank_bands").itertuples(index=False):
        printed = paper.get("gold" if row.band == "labelled page" else str(row.band), [None, None])
        rows.append(
            {
                "rank": row.band,
                "pairs": row.pairs,
                "mean rating": round(row.mean_rating, 3),
                "paper's": printed[0],
                "rated relevant": round(row.rated_relevant, 3),
                "paper's ": printed[1],
                "truly relevant": round(row.truly_relevant, 3),
            }
        )
    return pd.DataFrame(rows)


def band_figure(record: Record) -> Figure:
    """Share rated relevant by rank: this run's teacher, the truth, the paper's teacher."""
    import matplotlib.pyplot as plt

    style()
    table = band_table(record)
    figure, axis = plt.subplots(figsize=(7, 3.6))
    x = range(len(table))
    axis.plot(x, table["rated relevant"], "o-", color=PALETTE["run"], label="rated relevant, this run")
    axis.plot(x, table["truly relevant"], "s:", color=PALETTE["third"], label="truly relevant, this run")
    axis.plot(x, table["paper's "].astype(float), "D--", color=PALETTE["paper"], label="rated relevant, paper")
    axis.set_xticks(list(x), table["rank"])
    axis.set_xlabel("rank in the mined pool, the labelled page left out")
    axis.set_ylabel("share of pages")
    axis.set_ylim(0, 1.03)
    axis.legend(frameon=False)
    figure.tight_layout()
    return figure


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.split("(")[0].lower())


def source_table(record: Record) -> pd.DataFrame:
    """Appendix O's form: by source, the share of first mined candidates rated relevant, here and in the paper, and
    the truth."""
    paper = {_plain(k): v for k, v in wt_tables()["appendix_o_sources"].items() if k != "columns"}
    rows = []
    for row in _labels(record, "by_source").itertuples(index=False):
        printed = paper.get(_plain(str(row.source)), [None, None])
        rows.append(
            {
                "source": row.source,
                "queries": row.queries,
                "first candidate rated relevant": round(row.top1_rated_relevant, 2),
                "paper's": printed[1],
                "truly relevant": round(row.top1_truly_relevant, 2),
                "median relevant a query": row.median_relevant,
                "none relevant": round(row.none_share, 2),
            }
        )
    return pd.DataFrame(rows)
