"""One bit flipped in each kind of file of each kind of artefact, and in shipped weights: found, named, and mended as the line says."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from bench import MADE_BY, ROOT, STUDY, Bench, Run, Tried, one_line

PART = "flips"
VERIFY = ("verify", "-p", "smoke")


def run(bench: Bench) -> None:
    place = bench.copy("flipped")
    for kind in bench.kinds():
        files = [
            path
            for path in (place / "smoke" / "artefacts" / kind).rglob("*")
            if path.is_file() and not path.name.startswith(".lock-")
        ]
        endings = sorted({_ending(path) for path in files})
        for ending in endings:
            of_it = sorted(path for path in files if _ending(path) == ending and path.stat().st_size)
            if of_it and f"{kind}, {ending}" not in bench.tried(PART):
                _flip(bench, place, kind, ending, of_it[bench.random(PART, kind, ending).integers(len(of_it))])
        if f"{kind}, mended" not in bench.tried(PART):
            _mend(bench, place, kind)
    if "shipped weights" not in bench.tried(PART):
        _weights(bench)


def _ending(path: Path) -> str:
    return path.name if path.name == "manifest.json" else path.suffix or path.name


def _toggle(file: Path, at: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)


def _flip(bench: Bench, place: Path, kind: str, ending: str, file: Path) -> None:
    random = bench.random(PART, kind, ending, "bit")
    at, bit = int(random.integers(file.stat().st_size)), int(random.integers(8))
    started = time.monotonic()
    _toggle(file, at, bit)
    found = Run(place, VERIFY).finish()
    _toggle(file, at, bit)
    wrong = [] if found.wait() == 3 else [f"status {found.wait()}"]
    if file.name not in found.printed() + found.said():
        wrong.append(f"{file.name} is not named")
    if "Traceback" in found.said():
        wrong.append("a traceback")
    happened = "; ".join(wrong) or f"status 3, {file.name} named (byte {at}, bit {bit})"
    bench.note(
        Tried(
            PART,
            f"{kind}, {ending}",
            kind,
            "`vdr verify`: status 3, the file named",
            happened,
            not wrong,
            time.monotonic() - started,
        )
    )


def _mend(bench: Bench, place: Path, kind: str) -> None:
    """Where a command reads it: refused. Then deleted, as the line says, and made again."""
    started = time.monotonic()
    root = place / "smoke" / "artefacts" / kind
    folder = sorted(path.parent for path in root.glob("*/manifest.json"))[0]
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.stat().st_size and path.name != "manifest.json"
    ]
    file = files[bench.random(PART, kind, "mended").integers(len(files))]
    _toggle(file, file.stat().st_size // 2, 0)
    commands = MADE_BY.get(kind, STUDY[:1])
    refused = [Run(place, words).finish() for words in commands]
    said = next((run for run in refused if run.wait()), None)
    wrong = []
    if said is not None:
        if said.wait() != 3:
            wrong.append(f"status {said.wait()}: {said.last_line()[:160]}")
        elif problem := one_line(said):
            wrong.append(problem)
        elif folder.name not in said.last_line():
            wrong.append(f"{folder.name} is not named: {said.last_line()[:160]}")
    shutil.rmtree(folder)
    again = [Run(place, words).finish() for words in commands]
    wrong += [f"afterwards status {run.wait()}: {run.last_line()[:160]}" for run in again if run.wait()]
    wrong += bench.differences(place)[:5]
    first = "refused with status 3 and one line" if said is not None else "not read again (its results were there)"
    happened = "; ".join(wrong) or f"{first}; deleted and run again: the undisturbed bytes"
    promised = "refused, or not read; deleted and run again, the undisturbed bytes"
    bench.note(Tried(PART, f"{kind}, mended", kind, promised, happened, not wrong, time.monotonic() - started))


def _weights(bench: Bench) -> None:
    """The weights that ship, in a copy of the package."""
    started = time.monotonic()
    copy = bench.work / "package"
    shutil.rmtree(copy, ignore_errors=True)
    for part in ("src", "data_manifests"):
        shutil.copytree(ROOT / part, copy / part)
    (file,) = (copy / "src" / "vdr" / "assets" / "mini-teacher").glob("*.safetensors")
    _toggle(file, file.stat().st_size // 2, 3)
    environment = {"PYTHONPATH": os.pathsep.join([str(copy / "src"), os.environ.get("PYTHONPATH", "")])}
    found = Run(bench.work / "weights" / "outputs", VERIFY, environment).finish()
    wrong = [] if found.wait() == 3 else [f"status {found.wait()}"]
    if "mini-teacher" not in found.printed() + found.said():
        wrong.append("mini-teacher is not named")
    shutil.rmtree(copy)
    happened = "; ".join(wrong) or "status 3, mini-teacher named"
    bench.note(
        Tried(
            PART,
            "shipped weights",
            "weights",
            "`vdr verify`: status 3, the weights named",
            happened,
            not wrong,
            time.monotonic() - started,
        )
    )
