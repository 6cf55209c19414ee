"""How the miniature's learning rate and recipe length were chosen: validation loss on the training corpus' own validation split.

Trains an arm (the baseline by default) at a seed that is not a study seed, once per learning rate and recipe length, on a profile's own
corpus; prints InfoNCE against all validation pages and nDCG@5 of the labelled page after every epoch. No evaluation suite is opened.

    python scripts/choose_settings.py [--profile mini] [--rates 5e-4 1e-3 2e-3] [--epochs 3] [--arm baseline] [--seed 9] [--out FILE.csv]

Corpus and vision features are taken from the profile's artefacts and made where they are missing. One row a rate, length and epoch.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="mini")
    parser.add_argument("--arm", default="baseline")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3])
    parser.add_argument("--epochs", type=float, nargs="+", default=[3])
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--set", nargs="*", default=[], metavar="SECTION.FIELD=VALUE", help="other settings to change")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        one(options, float(options.child[0]), float(options.child[1]))
        return
    from vdr.study.settings import load_profile

    profile = load_profile(options.profile, options.set)
    if options.seed in profile.seeds:
        sys.exit(f"seed {options.seed} is a study seed: settings are chosen on another one")
    prepare(options)
    jobs = [(rate, epochs) for epochs in options.epochs for rate in options.rates]
    with ThreadPoolExecutor(options.processes) as pool:
        found = [row for rows in pool.map(lambda job: child(options, *job), jobs) for row in rows]
    columns = ["arm", "learning_rate", "epochs", "epoch", "validation_infonce", "validation_ndcg5", "seconds_per_step"]
    for stream in [sys.stdout] + ([options.out.open("w", newline="", encoding="utf-8")] if options.out else []):
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([columns, *found])
        stream.flush()
    best = min((row for row in found if float(row[3]) == float(row[2])), key=lambda row: float(row[4]))
    print(f"lowest validation loss at a recipe's end: learning rate {best[1]}, {best[2]} epochs", file=sys.stderr)


def artefacts(options: argparse.Namespace):
    """Rows, corpus and vision features of the arm, from the profile's store."""
    from vdr.pipeline import Study
    from vdr.study.catalogue import load_arms
    from vdr.study.settings import load_profile

    study = Study(load_profile(options.profile, options.set))
    arm = load_arms()[options.arm]
    vision = study.make(study.steps.vision()) if study.profile.training.vision_cache else None
    return study, arm, study.make(study.steps.rows(arm, options.seed)), study.make(study.steps.corpus()), vision


def prepare(options: argparse.Namespace) -> None:
    """Make what is missing before the children start."""
    artefacts(options)


def child(options: argparse.Namespace, rate: float, epochs: float) -> list[list[str]]:
    """One training run in a process of its own; its rows."""
    command = [
        sys.executable,
        __file__,
        "--profile",
        options.profile,
        "--arm",
        options.arm,
        "--seed",
        str(options.seed),
    ]
    command += ["--set", *options.set, "--child", repr(rate), repr(epochs)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(done.stderr)
    return [line.split(",") for line in done.stdout.splitlines() if line.startswith(options.arm + ",")]


def one(options: argparse.Namespace, rate: float, epochs: float) -> None:
    """Train once; one line an epoch on stdout."""
    from vdr.study.sections.training import RecipeSettings
    from vdr.training.loop import run_training

    study, arm, rows, corpus, vision = artefacts(options)
    settings = study.profile.training.model_copy(update={"learning_rate": rate})
    measures: dict = {}
    began = time.thread_time()
    with tempfile.TemporaryDirectory() as folder:
        run_training(rows.path, rows.path / "maps.npz" if arm.maps else None, corpus.path, vision.path / "train" if vision else None,
                     study.steps._backbone_dir(), arm.losses, RecipeSettings(name="choose", epochs=epochs), options.seed, settings,
                     Path(folder), measures, label=f"{arm.name} {rate:g}")  # fmt: skip
    spent = (time.thread_time() - began) / measures["steps"]
    for found in measures["validation"]:
        print(
            f"{arm.name},{rate:g},{epochs:g},{found['epoch']:g},{found['infonce']:.4f},{found['ndcg5']:.2f},{spent:.4f}"
        )


if __name__ == "__main__":
    main()
