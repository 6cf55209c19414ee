"""Seed-paired changes against the baseline of the same seed, and their verdicts (WT §3, Appendix I).

A verdict records only whether a change keeps its sign at every seed. Without any effect it would do so a quarter of the
time on three seeds and half the time on two: it is a sanity check, not a significance test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from vdr.errors import BadInput

__all__ = ["ONE_SEED", "SIGN_FLIPS", "STABLE_MINUS", "STABLE_PLUS", "paired_changes", "summarise", "verdict"]

STABLE_PLUS, STABLE_MINUS, SIGN_FLIPS, ONE_SEED = "stable +", "stable -", "sign flips", "one seed"
_COLUMNS = ["arm", "suite", "seed", "value"]


def verdict(changes: Sequence[float]) -> str:
    """`stable +` when every change is above zero, `stable -` when every one is below, else `sign flips`.

    A change of exactly 0 keeps no sign. One seed alone cannot be stable: `one seed`. Raises BadInput on NaN or nothing.
    """
    if not len(changes) or not all(math.isfinite(change) for change in changes):
        raise BadInput(f"a verdict needs finite changes, found {list(changes)}")
    if len(changes) == 1:
        return ONE_SEED
    if all(change > 0 for change in changes):
        return STABLE_PLUS
    if all(change < 0 for change in changes):
        return STABLE_MINUS
    return SIGN_FLIPS


def paired_changes(scores: pd.DataFrame, baseline: str = "baseline") -> pd.DataFrame:
    """`scores` (arm, suite, seed, value) with a column `change`: value minus the baseline's at the same suite and seed
    (NaN on the baseline's own rows).

    Raises BadInput on a missing column, an entry given twice, a value that is not finite, or a run without a baseline
    at its seed: an unpaired change would hold the seeds' spread (7.7 points on v2 at one epoch, WT Table 7).
    """
    missing = [name for name in _COLUMNS if name not in scores.columns]
    if missing:
        raise BadInput(f"scores lack the column(s) {', '.join(missing)}")
    table = scores[_COLUMNS].sort_values(["arm", "suite", "seed"], kind="stable").reset_index(drop=True)
    twice = table[table.duplicated(["arm", "suite", "seed"])]
    if len(twice):
        row = twice.iloc[0]
        raise BadInput(f"arm {row.arm!r}, suite {row.suite!r}, seed {row.seed} is given twice")
    broken = table[~table["value"].map(math.isfinite)]
    if len(broken):
        row = broken.iloc[0]
        raise BadInput(f"arm {row.arm!r}, suite {row.suite!r}, seed {row.seed}: value {row.value} is not finite")
    base = table[table["arm"] == baseline].set_index(["suite", "seed"])["value"].to_dict()
    changes = []
    for row in table.itertuples(index=False):
        if row.arm == baseline:
            changes.append(math.nan)
        elif (row.suite, row.seed) in base:
            changes.append(row.value - base[(row.suite, row.seed)])
        else:
            what = f"arm {row.arm!r}, suite {row.suite!r} has no {baseline!r} at seed {row.seed}"
            raise BadInput(what, todo=f"run {baseline!r} at that seed")
    return table.assign(change=changes)


def summarise(scores: pd.DataFrame, baseline: str = "baseline") -> pd.DataFrame:
    """One row an arm and suite: seeds (list), values, changes (lists in seed order), mean, change (mean of the paired
    changes; NaN for the baseline) and verdict (empty for the baseline). Means are over the arm's own seeds."""
    rows = []
    for (arm, suite), group in paired_changes(scores, baseline).groupby(["arm", "suite"], sort=True):
        group = group.sort_values("seed")
        own = arm == baseline
        changes = [] if own else group["change"].tolist()
        rows.append(
            {
                "arm": arm,
                "suite": suite,
                "seeds": group["seed"].tolist(),
                "values": group["value"].tolist(),
                "changes": changes,
                "mean": float(group["value"].mean()),
                "change": math.nan if own else float(pd.Series(changes).mean()),
                "verdict": "" if own else verdict(changes),
            }
        )
    return pd.DataFrame(rows)
