"""One HTML page per table, readable on its own: inline style, light and dark, the figure inside, alternative text."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path

import pandas as pd

from vdr.report.record import Record

__all__ = ["page"]

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --paper: #ffffff; --soft: #5b6574; --line: #d5dae2; --band: #f3f5f8;
  --plus: #0b6b3a; --minus: #a3280f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #15181d; --soft: #a3adbb; --line: #363d48;
  --band: #1d2229; --plus: #6fd39b; --minus: #ff9d86; } }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p.lead, .notes { color: var(--soft); }
.scroll { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
thead th { border-bottom: 2px solid var(--ink); } tbody tr:nth-child(even) { background: var(--band); }
.plus { color: var(--plus); } .minus { color: var(--minus); }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; background: #fff; border-radius: 4px; }
figcaption { color: var(--soft); } code { font-size: .9em; overflow-wrap: anywhere; } details { margin: .4rem 0; }
"""


def _cell(text: object, words: bool) -> str:
    shown = escape(str(text))
    tone = " plus" if shown.startswith(("+", "stable +")) else " minus" if shown.startswith(("−", "stable −")) else ""
    kind = f"{'text' if words else ''}{tone}".strip()
    return f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>"


def html_table(frame: pd.DataFrame, caption: str) -> str:
    """A table of strings; columns whose name holds `verdict`, and `arm` and `suite`, are set as words."""
    words = [name in ("arm", "suite") or "verdict" in str(name) for name in frame.columns]
    head = "".join(
        f'<th scope="col"{" class=text" if w else ""}>{escape(str(name))}</th>'
        for name, w in zip(frame.columns, words, strict=True)
    )
    rows = []
    for row in frame.itertuples(index=False):
        first = f'<th scope="row">{escape(str(row[0]))}</th>'
        rest = "".join(_cell(text, word) for text, word in zip(row[1:], words[1:], strict=True))
        rows.append(f"<tr>{first}{rest}</tr>")
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def alternative_text(table: pd.DataFrame) -> str:
    """The figure in words: every arm's mean change per suite, beside the paper's."""
    parts = []
    for row in table[table["change"].notna()].itertuples(index=False):
        beside = "" if pd.isna(row.paper_change) else f" (paper {row.paper_change:+.1f})"
        parts.append(f"{row.arm} on {row.suite} {row.change:+.1f}{beside}")
    return "Change of nDCG@5 against the baseline of the same seed, mean over seeds: " + "; ".join(parts) + "."


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _runs(record: Record) -> str:
    arms: dict[str, list[str]] = {}
    for run in record.runs:
        arms.setdefault(run.arm, []).append(f"seed {run.seed}: <code>{escape(run.directory)}</code>")
    blocks = [f"<details><summary>{escape(arm)}</summary>{_list(lines)}</details>" for arm, lines in arms.items()]
    return "".join(blocks)


def page(
    title: str,
    table: pd.DataFrame,
    overview: pd.DataFrame,
    printed: pd.DataFrame,
    record: Record,
    figure: Path | None,
    pedigree: str,
) -> str:
    """The whole page. `table` holds numbers, `overview` and `printed` text; `figure` is a PNG that is embedded."""
    changes = [name for name in overview.columns if name.startswith("Δ ")]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">Profile {escape(record.meta["profile"])}, recipe: {escape(record.meta["recipe"].replace("_", " "))}.'
        " nDCG@5 × 100, seed means; the paper’s figures in brackets."
        " Δ is the mean change against the baseline trained with the same seed.</p>",
        html_table(overview.drop(columns=changes), "Means of this run, with the paper’s in brackets"),
        html_table(
            overview.loc[overview[changes].ne("–").any(axis=1), ["arm", *changes]],
            "Changes against the baseline, with the paper’s in brackets, and whether this run’s keep their sign",
        ),
    ]
    if figure is not None:
        data = base64.b64encode(Path(figure).read_bytes()).decode("ascii")
        alt = escape(alternative_text(table), quote=True)
        parts.append(
            f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
            "<figcaption>Change per arm and suite: bars are seed means, dots single seeds, diamonds the paper’s means"
            " and small rings its seeds.</figcaption></figure>"
        )
    parts += [
        "<h2>Every seed</h2>",
        html_table(printed, "nDCG@5 × 100 of every seed; verdict: does the change keep its sign at every seed"),
        "<h2>How to read it</h2>",
        '<div class="notes">' + _list(escape(note) for note in record.notes) + "</div>",
        "<p>A verdict is a sanity check and no significance test: without any effect three seeds agree in sign a"
        " quarter of the time, two half of the time.</p>",
        f"<h2>The runs behind it</h2><p>Every cell: <code>{escape(pedigree)}</code>.</p>",
        _runs(record),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
