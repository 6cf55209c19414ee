"""EV's tables from a compression record, the paper's figures beside this run's.

Each maker returns a :class:`EvTable`: a DataFrame, a title and notes. Columns that begin with ``paper`` are the paper's, as
printed or, where its table is known only through its prose, derived from the differences it states (marked in the notes).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from vdr.compression.payload import PAPER_CONFIGURATIONS, equal_payload, payload_gib, reduction
from vdr.compression.pooling import Pooling
from vdr.compression.record import EvRecord
from vdr.compression.reference import evie
from vdr.compression.variants import Variant, suite_scores
from vdr.errors import BadInput, did_you_mean
from vdr.instructions import DECLARED
from vdr.study.settings import repository_root

__all__ = ["TABLES", "EvTable", "make_table", "write_table"]


@dataclass(frozen=True)
class EvTable:
    """A finished table."""

    name: str
    title: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The table as Markdown, numbers to two decimals, empty where nothing was measured."""
        head = "| " + " | ".join(self.frame.columns) + " |"
        rule = "|" + "|".join("---" if i == 0 else "---:" for i in range(len(self.frame.columns))) + "|"
        body = ["| " + " | ".join(_cell(value) for value in row) + " |" for row in self.frame.itertuples(index=False)]
        return "\n".join([f"**{self.title}**", "", head, rule, *body, "", *[f"- {note}" for note in self.notes], ""])

    def text(self) -> str:
        """The table for a terminal."""
        cells = [[str(name) for name in self.frame.columns]]
        cells += [[_cell(value) for value in row] for row in self.frame.itertuples(index=False)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
                 for row in cells]
        return "\n".join([self.title, "", lines[0], "-" * len(lines[0]), *lines[1:], "", *self.notes])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.3f}" if 0 < abs(value) < 1 else f"{value:.2f}"
    return "" if value is None else str(value)


def _variants(record: EvRecord, encoder: str = "student") -> pd.DataFrame:
    """Suites' nDCG@10 and their mean by variant, and the mean number of vectors and bytes a page."""
    scores = record.scores(encoder)
    table = suite_scores(scores)
    sizes = scores.groupby("variant", sort=False)[["vectors", "bytes"]].mean()
    return table.join(sizes)


def _row(table: pd.DataFrame, variant: Variant) -> pd.Series:
    if variant.name not in table.index:
        raise BadInput(f"the record has no variant {variant.name}", todo="run `vdr hac reproduce` again with these settings")
    return table.loc[variant.name]


def _suites(table: pd.DataFrame) -> list[str]:
    return [name for name in table.columns if name not in ("avg", "vectors", "bytes")]


def _scores(row: pd.Series, suites: list[str]) -> dict[str, float]:
    return {**{suite: float(row[suite]) for suite in suites}, "avg": float(row["avg"])}


def _untrained(record: EvRecord, widths: list[int]) -> list[str]:
    trained = record.encoder()["trained"]
    post = sorted({w for w in widths if w not in trained})
    about = f"Student {record.encoder()['label']}, trained at width{'s' if len(trained) > 1 else ''} {', '.join(map(str, trained))}."
    if not post:
        return [about]
    return [about + f" Width{'s' if len(post) > 1 else ''} {', '.join(map(str, post))}: post-hoc truncation (EV's B0), not trained."]


def table1(record: EvRecord) -> EvTable:
    """Payload per million pages: the paper's configurations by formula, and the miniature's by formula and as stored."""
    paper = evie()["table1_payload_gib_per_million"]
    rows = [{"configuration": f"paper: {c.name}", "vectors": c.k, "d": c.d, "GiB / 1M pages": c.gib_per_million,
             "compression": reduction(c.k, c.d), "paper GiB": paper[c.name][2], "paper compression": paper[c.name][3],
             "bytes a page": 2.0 * c.k * c.d} for c in PAPER_CONFIGURATIONS]
    own, settings = _variants(record), record.settings
    full = record.encoder()["full"]
    reference = None
    for variant in (Variant(full), Variant(settings.d), Variant(settings.d, context=False),
                    Variant(settings.d, Pooling("hac", settings.d, settings.second_k, settings.w_pos)),
                    Variant(settings.d, Pooling("hac", settings.d, settings.k, settings.w_pos))):
        stored = _row(own, variant)
        reference = reference or float(stored["bytes"])
        rows.append({"configuration": f"this run: {variant.name}", "vectors": float(stored["vectors"]), "d": variant.d,
                     "GiB / 1M pages": payload_gib(1e6, float(stored["vectors"]), variant.d),
                     "compression": reference / float(stored["bytes"]), "paper GiB": None, "paper compression": None,
                     "bytes a page": float(stored["bytes"])})
    notes = ["Payload: two bytes a component, GiB = 2^30 bytes; ids, offsets and containers are not counted (EV eq. 11).",
             "The paper counts the configured maximum of 1024 image vectors; this run's rows count the vectors really stored, "
             "context tokens of raw pages included, relative to its raw full width."]
    return EvTable("ev-table1", "EV Table 1: embedding payload per million pages", pd.DataFrame(rows), notes)


def table8(record: EvRecord) -> EvTable:
    """HAC's components at the primary (d, K)."""
    own, settings = _variants(record), record.settings
    d, k, paper = settings.d, settings.k, evie()["table8_hac_components_d64"]
    known = {"raw, all tokens": paper["raw_all_tokens"], "raw, image tokens only": paper["raw_image_tokens"],
             "HAC (position-guided)": paper["HAC K32"]}
    hac, gain, over = paper["HAC K32"], paper["position_gain_w0.1"], paper["semantic_ward_minus_grid_pooling"]
    known["Ward (semantic only)"] = {m: hac[m] - gain[m] for m in ("v3", "avg4")}
    known["grid pooling"] = {m: known["Ward (semantic only)"][m] - over[m] for m in ("v3", "avg4")}
    rows = []
    for label, variant in (("raw, all tokens", Variant(d)), ("raw, image tokens only", Variant(d, context=False)),
                           ("grid pooling", Variant(d, Pooling("grid", d, k, settings.w_pos))),
                           ("colpali-style pooling", Variant(d, Pooling("colpali", d, k, settings.w_pos))),
                           ("Ward (semantic only)", Variant(d, Pooling("ward", d, k, settings.w_pos))),
                           ("HAC (position-guided)", Variant(d, Pooling("hac", d, k, settings.w_pos)))):
        row = _row(own, variant)
        rows.append({"form": label, "vectors": float(row["vectors"]), **_scores(row, _suites(own)),
                     "paper V3": known.get(label, {}).get("v3"), "paper Avg4": known.get(label, {}).get("avg4")})
    notes = [*_untrained(record, [d]),
             f"nDCG@10 × 100, gains 2^g − 1; d={d}, K={k}, w_pos={settings.w_pos:g} here; d=64, K=32 in the paper.",
             "The paper's Ward and grid rows are derived from the differences in its prose (+1.46 and +0.88 for position, "
             "8.75 and 8.72 of Ward over grid); colpali-style pooling is not in its table.",
             _sweep_note(record)]
    return EvTable("ev-table8", "EV Table 8: HAC component ablations", pd.DataFrame(rows), notes)


def sweep(record: EvRecord) -> pd.DataFrame:
    """w_pos, and every suite's nDCG@10 with HAC at the primary (d, K) (EV App. C)."""
    own, settings = _variants(record), record.settings
    rows = []
    for weight in settings.w_pos_sweep:
        row = _row(own, Variant(settings.d, Pooling("hac", settings.d, settings.k, weight)))
        rows.append({"w_pos": weight, **_scores(row, _suites(own))})
    return pd.DataFrame(rows)


def _sweep_note(record: EvRecord) -> str:
    values = sweep(record)
    text = ", ".join(f"{row.w_pos:g}: {row.avg:.2f}" for row in values.itertuples())
    return f"w_pos sweep, mean over suites: {text}. The paper fixed 0.1 on an earlier checkpoint; nothing is retuned here."


def table9(record: EvRecord) -> EvTable:
    """Prefix widths of one checkpoint."""
    own, settings = _variants(record), record.settings
    v3, avg = evie()["table9_widths_v3"], evie()["table9_widths_avg4"]
    widths = sorted({w for w in (*settings.widths, record.encoder()["full"]) if w <= record.encoder()["full"]})
    rows = []
    for d in widths:
        row = _row(own, Variant(d))
        rows.append({"d": str(d), "GiB / 1M pages": payload_gib(1e6, float(row["vectors"]), d), **_scores(row, _suites(own)),
                     "paper V3": v3.get(str(d)), "paper Avg4": avg.get(str(d))})
    for d in sorted(v3, key=int):
        if int(d) not in widths:
            rows.append({"d": f"{d} (paper only)", "GiB / 1M pages": payload_gib(1e6, 1024, int(d)), "paper V3": v3[d],
                         "paper Avg4": avg.get(d)})
    notes = [*_untrained(record, widths), "nDCG@10 × 100. Widths 512 and 1024 of the paper's table are not in its prose."]
    return EvTable("ev-table9", "EV Table 9: nested prefix widths of one checkpoint", pd.DataFrame(rows), notes)


def table10(record: EvRecord) -> EvTable:
    """Raw and HAC operating points."""
    own, settings = _variants(record), record.settings
    d, full, paper = settings.d, record.encoder()["full"], evie()["table2_v3"]
    wide = next((w for w in settings.payload_widths if w > d and settings.second_k * d % w == 0), None)
    points = [("raw, full width", Variant(full), paper["EVIE-4.5B d2048"][4]), ("raw, primary width", Variant(d), 64.51),
              ("HAC, second budget", Variant(d, Pooling("hac", d, settings.second_k, settings.w_pos)), paper["HAC d64 K64"][4])]
    if wide is not None:
        k = settings.second_k * d // wide
        points.append(("HAC, wider, same payload", Variant(wide, Pooling("hac", wide, k, settings.w_pos)), paper["HAC d128 K32"][4]))
    points.append(("HAC, primary", Variant(d, Pooling("hac", d, settings.k, settings.w_pos)), paper["HAC d64 K32"][4]))
    rows = []
    base = _row(own, Variant(full))
    for label, variant, printed in points:
        row = _row(own, variant)
        v3 = "v3" if "v3" in _suites(own) else _suites(own)[0]
        rows.append({"form": label, "variant": variant.name, "GiB / 1M pages": payload_gib(1e6, float(row["vectors"]), variant.d),
                     **_scores(row, _suites(own)), f"kept of {v3} (%)": 100 * float(row[v3]) / float(base[v3]), "paper V3": printed,
                     "paper kept (%)": 100 * printed / paper["EVIE-4.5B d2048"][4]})
    notes = [*_untrained(record, [v.d for _, v, _ in points]),
             f"This run: full width {full}, d={d}, K={settings.k} and {settings.second_k}. Paper: 2048, d=64, K=32 and 64."]
    return EvTable("ev-table10", "EV Table 10: raw and HAC operating points", pd.DataFrame(rows), notes)


def table11(record: EvRecord) -> EvTable:
    """Equal payloads: more vectors or wider ones."""
    own, settings = _variants(record), record.settings
    paper = evie()["equal_payload"]["d64 minus d128 on V3 at 3.81/7.63/15.26 GiB"]
    rows = []
    for place, budget in enumerate(settings.budgets):
        pairs = [(d, k) for d, k in equal_payload(budget, settings.payload_widths) if d <= record.encoder()["full"]]
        for d, k in pairs:
            row = _row(own, Variant(d, Pooling("hac", d, k, settings.w_pos)))
            rows.append({"budget (K·d)": str(budget), "GiB / 1M pages": payload_gib(1e6, k, d), "d": d, "K": k,
                         "stored vectors": float(row["vectors"]), **_scores(row, _suites(own)),
                         "paper V3 lead of d64 over d128": paper[place] if d == pairs[0][0] and place < len(paper) else None})
    notes = [*_untrained(record, list(settings.payload_widths)),
             "A page with fewer than K image tokens stores them all: such a row spends less than its budget.",
             "The paper's lead belongs to its budgets of 2048, 4096 and 8192 components a page."]
    return EvTable("ev-table11", "EV Table 11: equal payload, more vectors or wider vectors", pd.DataFrame(rows), notes)


def table12(record: EvRecord) -> EvTable:
    """Serving latency, throughput and memory on this machine."""
    measured, paper = record.serving(), evie()["table12_serving"]
    printed = {1: paper["search_median_ms"]["raw d64"], 2: paper["search_median_ms"]["HAC K32"]}
    rows = [{"form": row["form"], "vectors": row["vectors"], "enc. (ms)": row["encode_ms"], "search (ms)": row["search_ms"],
             "quartiles": f"{row['search_q25_ms']:.3f}–{row['search_q75_ms']:.3f}", "E2E (ms)": row["e2e_ms"], "QPS": row["qps"],
             "search QPS": row["batch_search_qps"], "memory (MiB)": row["memory_mib"], "paper search (ms)": printed.get(i),
             "paper QPS": paper["HAC_batch16_qps"] if i == 2 else None} for i, row in enumerate(measured.to_dict("records"))]
    raw, hac = measured.iloc[1], measured.iloc[2]
    notes = [f"{int(raw['pages'])} pages, {int(raw['queries'])} queries on {record.meta['machine'].get('processor', 'this machine')}; "
             f"batches of {record.settings.batch}. Medians; each query's time is the best of three.",
             f"HAC against raw at the same width: search {raw['search_ms'] / hac['search_ms']:.1f}× faster, memory "
             f"{raw['memory_mib'] / hac['memory_mib']:.1f}× smaller (paper: {paper['search_ratio']}× and {paper['index_memory_ratio']}×, "
             f"{paper['pages']} pages of 1024 tokens on {paper['device']}).", *_at_paper_size()]
    return EvTable("ev-table12", "EV Table 12: serving latency and throughput", pd.DataFrame(rows), notes)


def _at_paper_size() -> list[str]:
    """What the kernel benchmark measured on drawn vectors at the paper's size, if it was run in this checkout."""
    place = repository_root() / "benchmarks" / "results" / "kernels.json"
    if not place.is_file():
        return []
    measured = json.loads(place.read_text(encoding="utf-8"))
    # Rows from before levels were noted were measured where there is no other.
    found = {row["work"]: row for row in measured if row["hardware"].get("instructions", DECLARED) == DECLARED}
    if not {"hac_search", "hac_cascade"} <= found.keys():
        return []
    search, both = found["hac_search"], found["hac_cascade"]
    return [f"Drawn vectors at the paper's size (benchmarks/results/kernels.json: 1,000 pages, 1024 tokens, d=64, K=32, fp16, "
            f"{search['hardware']['processor']}): raw {search['peer_ms']:.2f} ms, HAC {search['ours_ms']:.2f} ms "
            f"({search['ratio']:.1f}× faster), cascade {both['ours_ms']:.2f} ms, {search['memory_ratio']:.0f}× less memory."]


def table18(record: EvRecord) -> EvTable:
    """Transfer of HAC across encoders."""
    settings, paper = record.settings, evie()["table18_transfer"]
    d, k, rows = settings.d, settings.k, []
    for encoder in record.meta["encoders"]:
        own = _variants(record, encoder)
        v3 = "v3" if "v3" in own.columns else _suites(own)[0]
        raw, ward, hac = (float(_row(own, variant)[v3]) for variant in (
            Variant(d, context=False), Variant(d, Pooling("ward", d, k, settings.w_pos)), Variant(d, Pooling("hac", d, k, settings.w_pos))))
        rows.append({"encoder": f"this run: {encoder}", "raw, image tokens": raw, "Ward": ward, "HAC": hac, "HAC − Ward": hac - ward,
                     "raw − HAC": raw - hac})
    for name, gain in paper["HAC_over_ward_v3"].items():
        rows.append({"encoder": f"paper: {name}", "HAC − Ward": gain, "raw − HAC": paper["raw_to_HAC_loss"][name]})
    notes = [f"nDCG@10 × 100 on {v3}; d={d}, K={k} here. `base` is the untrained start of the student: backbone, zero adapters, "
             "random projection. `miner` is the retriever that mined the pools. Encoders other than the student are cut post hoc."]
    return EvTable("ev-table18", "EV Table 18: compression transfer across encoders", pd.DataFrame(rows), notes)


TABLES: dict[str, Callable[[EvRecord], EvTable]] = {
    "ev-table1": table1, "ev-table8": table8, "ev-table9": table9, "ev-table10": table10, "ev-table11": table11,
    "ev-table12": table12, "ev-table18": table18,
}


def make_table(record: EvRecord, name: str) -> EvTable:
    """A table by name. Raises BadInput for an unknown name and for a record that lacks what it needs."""
    if name not in TABLES:
        raise BadInput(f"unknown EV table {name!r}", todo=did_you_mean(name, TABLES))
    return TABLES[name](record)


def write_table(table: EvTable, record: EvRecord, out: Path) -> list[Path]:
    """Write ``<out>/<name>.csv`` and ``.md``; returns the paths."""
    out.mkdir(parents=True, exist_ok=True)
    text = table.markdown() + "".join(f"- {note}\n" for note in record.notes)
    places = [out / f"{table.name}.csv", out / f"{table.name}.md"]
    table.frame.to_csv(places[0], index=False, float_format="%.4f")
    places[1].write_text(text, encoding="utf-8")
    return places
