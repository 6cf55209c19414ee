"""Chapter 00: what was run, on what, and how long it took."""

from __future__ import annotations

import pandas as pd

from vdr.report.record import Record
from vdr.study.catalogue import load_arms

__all__ = ["arms_table", "stages_table"]


def stages_table(record: Record) -> pd.DataFrame:
    """One row a stage, in the order of work: how many artefacts, seconds of work, the largest peak of memory (GB)."""
    rows = []
    for folder in sorted((record.root / "stages").iterdir()):
        manifests = record.stages(folder.name)
        rows.append(
            {
                "stage": folder.name,
                "artefacts": len(manifests),
                "seconds": round(sum(m.get("seconds", 0.0) for m in manifests), 1),
                "peak_gb": round(max(m.get("peak_memory_mb", 0.0) for m in manifests) / 1024, 2),
                "first_started": min(m.get("started", "") for m in manifests),
            }
        )
    table = pd.DataFrame(rows).sort_values(["first_started", "stage"], kind="stable")
    return table.drop(columns="first_started").reset_index(drop=True)


def arms_table(record: Record) -> pd.DataFrame:
    """The arms of the record: what each adds to the baseline, whose ratings it reads, the paper's section, its
    seeds."""
    seeds: dict[str, list[int]] = {}
    for run in record.runs:
        seeds.setdefault(run.arm, []).append(run.seed)
    arms = load_arms()
    rows = [
        {
            "arm": name,
            "what": arms[name].title,
            "ratings": arms[name].ratings if arms[name].uses_ratings else "–",
            "source": arms[name].source,
            "seeds": ", ".join(map(str, sorted(seeds[name]))),
        }
        for name in arms
        if name in seeds
    ]
    return pd.DataFrame(rows)
