"""EV's claims about compression, checked on a record: holds, fails, or not run. `vdr hac claims` prints them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from vdr.compression.payload import equal_payload, reduction
from vdr.compression.pooling import Pooling
from vdr.compression.record import EvRecord
from vdr.compression.report import _row, _variants
from vdr.compression.variants import Variant
from vdr.errors import BadInput
from vdr.study.yaml_io import read_yaml

__all__ = ["Verdict", "check_claims", "claims_frame"]


@dataclass(frozen=True)
class Verdict:
    """A claim, the paper's figure for it, this run's, and whether it holds ("holds", "fails", "not run")."""

    name: str
    source: str
    table: str
    text: str
    paper_value: float
    value: float | None
    verdict: str


def check_claims(record: EvRecord) -> list[Verdict]:
    """Every claim of claims.yaml on one record. What the record lacks is "not run"; a single seed decides, as in the paper."""
    entries = read_yaml(Path(__file__).parent / "claims.yaml")
    verdicts = []
    for name, entry in entries.items():
        try:
            value, holds = _CHECKS[entry["kind"]](record, entry)
            verdict = "holds" if holds else "fails"
        except BadInput:
            value, verdict = None, "not run"
        verdicts.append(Verdict(name, entry["source"], entry["table"], entry["text"], float(entry["paper_value"]), value, verdict))
    return verdicts


def claims_frame(record: EvRecord) -> pd.DataFrame:
    """The verdicts as a table."""
    return pd.DataFrame([{"claim": v.text, "source": v.source, "paper": v.paper_value, "this run": v.value, "verdict": v.verdict}
                         for v in check_claims(record)])


def _score(record: EvRecord, variant: Variant, suite: str, encoder: str = "student") -> float:
    row = _row(_variants(record, encoder), variant)
    if suite not in row.index:
        raise BadInput(f"the record has no suite {suite!r}")
    return float(row[suite])


def _form(record: EvRecord, form: str, suite: str) -> float:
    s = record.settings
    variants = {"ward": Variant(s.d, Pooling("ward", s.d, s.k, s.w_pos)), "grid": Variant(s.d, Pooling("grid", s.d, s.k, s.w_pos)),
                "hac": Variant(s.d, Pooling("hac", s.d, s.k, s.w_pos)), "raw": Variant(s.d), "image": Variant(s.d, context=False),
                "full": Variant(record.encoder()["full"])}
    losses = {"pooling_loss": ("image", "hac"), "context_loss": ("raw", "image"), "hac_loss": ("raw", "hac"), "width_loss": ("full", "raw")}
    if form in losses:
        before, after = losses[form]
        return _score(record, variants[before], suite) - _score(record, variants[after], suite)
    return _score(record, variants[form], suite)


def _difference(record: EvRecord, entry: dict[str, Any]) -> tuple[float, bool]:
    value = _form(record, entry["left"], entry["suite"]) - _form(record, entry["right"], entry["suite"])
    return value, value > 0


def _payload(record: EvRecord, entry: dict[str, Any]) -> tuple[float, bool]:
    value = reduction(32, 64)
    return value, value == entry["paper_value"]


def _monotone(record: EvRecord, entry: dict[str, Any]) -> tuple[float, bool]:
    widths = [w for w in record.settings.widths if w <= record.encoder()["full"]]
    scores = [_score(record, Variant(w), entry["suite"]) for w in widths]
    return scores[-1] - scores[0], scores == sorted(scores) and len(set(scores)) == len(scores)


def _equal_payload(record: EvRecord, entry: dict[str, Any]) -> tuple[float, bool]:
    s, leads = record.settings, []
    for budget in s.budgets:
        pairs = [(d, k) for d, k in equal_payload(budget, s.payload_widths) if d <= record.encoder()["full"]]
        scores = [_score(record, Variant(d, Pooling("hac", d, k, s.w_pos)), entry["suite"]) for d, k in pairs]
        if len(scores) < 2:
            raise BadInput("a budget has a single width")
        leads.append(scores[0] - max(scores[1:]))
    return min(leads), min(leads) > 0


def _serving(record: EvRecord, entry: dict[str, Any]) -> tuple[float, bool]:
    table = record.serving()
    value = float(table.iloc[1][entry["column"]] / table.iloc[2][entry["column"]])
    return value, value > 1


def _transfer(record: EvRecord, entry: dict[str, Any]) -> tuple[float, bool]:
    s = record.settings
    others = [name for name in record.meta["encoders"] if name != "student"]
    if not others:
        raise BadInput("the record holds no other encoder")
    gains = [_score(record, Variant(s.d, Pooling("hac", s.d, s.k, s.w_pos)), entry["suite"], name)
             - _score(record, Variant(s.d, Pooling("ward", s.d, s.k, s.w_pos)), entry["suite"], name) for name in others]
    return min(gains), min(gains) > 0


def _cases(record: EvRecord, entry: dict[str, Any]) -> tuple[float, bool]:
    content = record.cases()
    value = content["kept"] / max(content["lost"], 1)
    return value, value > 1


_CHECKS: dict[str, Callable[[EvRecord, dict[str, Any]], tuple[float, bool]]] = {
    "difference": _difference, "payload": _payload, "monotone": _monotone, "equal_payload": _equal_payload, "serving": _serving,
    "transfer": _transfer, "cases": _cases,
}
