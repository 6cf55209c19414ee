"""The papers' figures, read from `outputs/reference` (transcribed data with their source; nothing measured here)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd

from vdr.errors import BadInput, DamagedArtefact
from vdr.study.settings import repository_root
from vdr.textfiles import measured_table

__all__ = ["PaperTable1", "paper_table1", "reference_root", "verify_reference", "wt_runs", "wt_tables"]

_SHORT = {"vidore_v1": "v1", "vidore_v2": "v2", "vidore_v3": "v3", "jina_vdr": "jina"}
PaperTable1 = dict[tuple[str, str], dict[str, Any]]


def reference_root() -> Path:
    """`outputs/reference` of the checkout."""
    return repository_root() / "outputs" / "reference"


def _read(name: str, root: Path | None) -> Path:
    path = (root or reference_root()) / name
    if not path.is_file():
        raise BadInput(
            "the papers' figures are missing", where=path, todo="restore outputs/reference from the repository"
        )
    return path


def verify_reference(root: Path | None = None) -> list[str]:
    """Compare every file with `SHA256SUMS`; returns the names. Raises DamagedArtefact on a difference."""
    names = []
    for line in _read("SHA256SUMS", root).read_text(encoding="utf-8").splitlines():
        digest, name = line.split()
        path = _read(name, root)
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise DamagedArtefact("differs from SHA256SUMS", where=path, todo="restore it from the repository")
        names.append(name)
    return names


def wt_runs(root: Path | None = None) -> pd.DataFrame:
    """WT's runs: recipe, arm, suite (vidore_v1 …), seed, value (nDCG@5 × 100, as printed to one decimal; Tables 7 and
    11)."""
    return measured_table(_read("wt_runs_per_seed.csv", root)).rename(columns={"ndcg_at_5": "value"})


def wt_tables(root: Path | None = None) -> dict[str, Any]:
    """WT's tables by name (`table1_three_epochs`, `table17_rank_bands`, …)."""
    return dict(json.loads(_read("wt_tables.json", root).read_text(encoding="utf-8")))


def paper_table1(root: Path | None = None) -> PaperTable1:
    """WT Table 1 by (arm, suite id): {"mean", "change", "verdict"}, values as printed.

    The verdict on v2 is Table 1's; those on v1 and v3 are Table 9's, which gives the same arms per suite. The paper
    states none for jina VDR ("" there), and gives no change or verdict for the baseline (None, "").
    """
    tables = wt_tables(root)
    table, deltas = tables["table1_three_epochs"], tables["table9_three_epoch_deltas"]
    cells: PaperTable1 = {}
    for arm in ("baseline", "N", "S", "D", "A"):
        for suite, short in _SHORT.items():
            at = table["columns"].index(short)
            change = None if arm == "baseline" else float(table["change"][arm][at])
            verdict = ""
            if arm != "baseline" and short == "v2":
                verdict = table["verdict_v2"][arm]
            elif arm != "baseline" and short in deltas[arm]:
                verdict = _printed_verdict(deltas[arm][short])
            cells[(arm, suite)] = {"mean": float(table[arm][at]), "change": change, "verdict": verdict}
    return cells


def _printed_verdict(changes: list[float]) -> str:
    # The paper's own rule on its printed changes, in which a 0.0 keeps no sign (D on v1, Table 9).
    if all(change > 0 for change in changes):
        return "stable +"
    return "stable -" if all(change < 0 for change in changes) else "sign flips"
