"""WT's claims (`claims.yaml` of the study), checked on a record: holds, fails, or not run. `vdr claims` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from vdr.errors import BadInput
from vdr.evaluation.evaluate import load_scores
from vdr.evaluation.verdicts import ONE_SEED, SIGN_FLIPS, STABLE_MINUS, STABLE_PLUS, summarise
from vdr.report.record import Record
from vdr.study.catalogue import Claim, load_claims, load_tables

__all__ = ["Verdict", "check_claim", "check_claims", "claims_frame", "claims_text", "write_claims"]

NOT_RUN = "not run"


@dataclass(frozen=True)
class Verdict:
    """A claim, the verdict on it ("holds", "fails", "not run"), the figure that stands beside the paper's (a mean
    change, or how far one mean change is above another), and what decided it, in words."""

    claim: Claim
    verdict: str
    value: float | None
    why: str


def check_claims(record: Record, claims: Mapping[str, Claim] | None = None, *, recompute: bool = True) -> list[Verdict]:
    """Every claim on one record; what the record lacks is "not run". Raises what :meth:`Record.scores` raises."""
    scores = record.scores(recompute=recompute)
    metrics = {load_scores(record.root / run.place)["metric"] for run in record.runs}
    verdicts = []
    for claim in (load_claims() if claims is None else claims).values():
        check = claim.check
        recipe = check.recipe or load_tables()[claim.table].recipe or record.meta["recipe"]
        if metrics != {check.metric}:
            why = f"the record measures {', '.join(sorted(metrics))}, the claim is about {check.metric}"
            verdicts.append(Verdict(claim, NOT_RUN, None, why))
        else:
            verdicts.append(check_claim(claim, scores[scores["recipe"] == recipe]))
    return verdicts


def check_claim(claim: Claim, scores: pd.DataFrame) -> Verdict:
    """One claim on scores of one recipe (arm, suite, seed, value)."""
    check = claim.check
    try:
        own = _changes(scores, check.arm, check.suite, load_tables()[claim.table].baseline)
        if check.above is None:
            wanted = SIGN_FLIPS if check.kind == "no_change" else {"+": STABLE_PLUS, "-": STABLE_MINUS}[str(check.sign)]
            return Verdict(claim, _said(own["verdict"] == wanted), own["change"], f"{_figures(own)}: {own['verdict']}")
        other = _changes(scores, check.above, check.suite, load_tables()[claim.table].baseline)
    except BadInput as error:
        return Verdict(claim, NOT_RUN, None, error.what)
    if own["seeds"] != other["seeds"]:
        return Verdict(
            claim, NOT_RUN, None, f"seeds {own['seeds']} of {check.arm} and {other['seeds']} of {check.above}"
        )
    value = own["change"] - other["change"]
    return Verdict(claim, _said(value > 0), value, f"{_figures(own)}; {_figures(other)}")


def _changes(scores: pd.DataFrame, arm: str, suite: str, baseline: str) -> dict:
    """The row of :func:`summarise` of an arm and suite. BadInput where runs are missing or a seed stands alone."""
    for name in (arm, baseline):
        if not len(scores[(scores["arm"] == name) & (scores["suite"] == suite)]):
            raise BadInput(f"no run of {name} on {suite}")
    table = summarise(scores[scores["arm"].isin([arm, baseline]) & (scores["suite"] == suite)], baseline)
    row = table[table["arm"] == arm].iloc[0].to_dict()
    if row["verdict"] == ONE_SEED:
        raise BadInput(f"one seed alone ({_figures(row)}) decides nothing")
    return row


def _said(holds: bool) -> str:
    return "holds" if holds else "fails"


def _figures(row: Mapping) -> str:
    seeds = ", ".join(f"{change:+.2f}" for change in row["changes"])
    return f"{row['arm']} {row['change']:+.2f} (by seed {seeds})"


def claims_frame(verdicts: list[Verdict]) -> pd.DataFrame:
    """The verdicts as a table."""
    columns = ["claim", "source", "text", "paper", "this_run", "verdict", "why"]
    rows = [
        (v.claim.name, v.claim.source, v.claim.text, v.claim.paper_value, v.value, v.verdict, v.why) for v in verdicts
    ]
    return pd.DataFrame(rows, columns=columns).astype({"paper": float, "this_run": float})


def claims_text(verdicts: list[Verdict]) -> str:
    """The verdicts for a terminal: two lines a claim, then how many of them hold."""
    lines = []
    for v in verdicts:
        value = "" if v.value is None else f"{v.value:+.2f}"
        paper = "" if v.claim.paper_value is None else f" (paper {v.claim.paper_value:+g})"
        lines += [f"{v.verdict:8} {value:>7}{paper}  {v.claim.text} [{v.claim.source}]", f"{'':17}{v.why}"]
    count = {name: sum(v.verdict == name for v in verdicts) for name in ("holds", "fails", NOT_RUN)}
    return "\n".join([*lines, "", ", ".join(f"{name} {number}" for name, number in count.items())])


def write_claims(verdicts: list[Verdict], out: Path) -> Path:
    """Write `wt-claims.csv` into `out`; the same record gives the same bytes."""
    path = Path(out) / "wt-claims.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = claims_frame(verdicts).to_csv(index=False, float_format="%.4f", lineterminator="\n")
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return path
