"""What every part of the campaign uses: runs of `vdr` that can be told apart, the undisturbed run, the journal."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vdr.provenance import source_hash
from vdr.store import stable_manifest

ROOT = Path(__file__).resolve().parents[2]
MARK = "VDR_CAMPAIGN_RUN"
#: The whole study of the profile smoke: Table 1, the simulated audit, page compression.
STUDY = (
    ("reproduce", "table1", "-p", "smoke"),
    ("audit", "reproduce", "-p", "smoke"),
    ("hac", "reproduce", "all", "-p", "smoke"),
)
STAGE = re.compile(r"^-- (?P<name>.+)$", re.M)
#: Kinds of artefact that Table 1 does not make, or not all of, and the commands that do.
MADE_BY = {
    "audit": STUDY[1:2],
    "compressed": STUDY[2:],
    "serving": STUDY[2:],
    "cases": STUDY[2:],
    "vectors": STUDY[::2],
}
#: Tables and artefacts of times, which no two runs share.
TIMED = {"ev-table12.csv", "serving"}
LONGEST = 900.0


@dataclasses.dataclass
class Tried:
    """One attempt: what was done, what was promised, what happened."""

    part: str
    what: str
    stage: str
    promised: str
    happened: str
    ok: bool
    seconds: float
    run: str = ""


class Run:
    """One `vdr` command with its outputs in `place`; every process of it carries a mark of its own."""

    count = 0

    def __init__(
        self, place: Path, words: Sequence[str], environment: Mapping[str, str] | None = None, log: str | None = None
    ) -> None:
        Run.count += 1
        self.mark = f"{os.getpid()}-{Run.count}-{time.monotonic_ns()}"
        self.log = place.parent / f"{log or place.name}.log"
        place.parent.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        self.ended: tuple[str, str] | None = None
        whole = {**os.environ, "VDR_OUTPUTS": str(place), MARK: self.mark, **(environment or {})}
        with self.log.open("wb") as err, self.log.with_suffix(".out").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vdr.cli", *words],
                env=whole, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        """What it has written to stderr."""
        return self.ended[0] if self.ended else self.log.read_text(encoding="utf-8", errors="replace")

    def printed(self) -> str:
        return (
            self.ended[1] if self.ended else self.log.with_suffix(".out").read_text(encoding="utf-8", errors="replace")
        )

    def stage(self) -> str:
        """The stage that began last."""
        begun = STAGE.findall(self.said())
        return stage_of(begun[-1]) if begun else "start"

    def wait(self, seconds: float = LONGEST) -> int:
        return self.process.wait(seconds)

    def processes(self) -> list[int]:
        """Every living process of this run, however far from its parent."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def left_behind(self, patience: float = 20.0) -> list[int]:
        """Processes that outlive the command by more than `patience` seconds; they are killed."""
        deadline = time.monotonic() + patience
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for number in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return alive

    def finish(self, seconds: float = LONGEST) -> Run:
        """This run, after its end; its words are kept, for the next run writes to the same log."""
        self.wait(seconds)
        self.ended = (self.said(), self.printed())
        return self

    def last_line(self) -> str:
        lines = [line for line in self.said().strip().splitlines() if line.strip()]
        return lines[-1] if lines else ""


def stage_of(begun: str) -> str:
    """`5 runs, 2 at once` is training, however many are left."""
    return "train, encode, evaluate" if re.match(r"\d+ runs?, ", begun) else begun


def kind_of(stage: str) -> str:
    """`rows N` and `rows S-seed-0` are of one kind."""
    return re.sub(r"^(rows|corpus|notebook) .*", r"\1", stage)


class Bench:
    """The campaign's folder."""

    def __init__(self, work: Path, seed: int, kills: int) -> None:
        self.work, self.seed, self.kills = work, seed, kills
        work.mkdir(parents=True, exist_ok=True)
        # Manifests name the code, so what other code made differs from what this makes.
        stamp = work / "code"
        if stamp.exists() and stamp.read_text(encoding="utf-8") != source_hash():
            raise SystemExit(
                f"{work}: a campaign of other code was begun here; delete it, or name another place with --work"
            )
        stamp.write_text(source_hash(), encoding="utf-8")

    def random(self, *names: object) -> np.random.Generator:
        digest = hashlib.sha256(":".join(map(str, (self.seed, *names))).encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))

    # -- journal -------------------------------------------------------------------------------------------------------
    def journal(self) -> list[Tried]:
        file = self.work / "journal.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [Tried(**json.loads(line)) for line in lines]

    def note(self, tried: Tried) -> None:
        with (self.work / "journal.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(dataclasses.asdict(tried), ensure_ascii=False) + "\n")
        print(
            f"{'ok  ' if tried.ok else 'NOT '} {tried.part}: {tried.what} [{tried.stage}]: {tried.happened}", flush=True
        )

    def tried(self, part: str) -> set[str]:
        return {tried.what for tried in self.journal() if tried.part == part}

    # -- runs ----------------------------------------------------------------------------------------------------------
    @functools.cached_property
    def undisturbed(self) -> Path:
        """The outputs of the whole study, never disturbed, and beside them how long each stage took."""
        place = self.work / "undisturbed"
        times = self.work / "undisturbed.json"
        if not times.exists():
            shutil.rmtree(place, ignore_errors=True)
            stages = [stage for words in STUDY for stage in self._watched(place, words)]
            times.write_text(json.dumps(stages, indent=1), encoding="utf-8")
        return place

    def stages(self) -> list[tuple[int, str, float]]:
        """(command, stage, seconds) of the undisturbed run, in order."""
        assert self.undisturbed
        return [tuple(item) for item in json.loads((self.work / "undisturbed.json").read_text(encoding="utf-8"))]

    def _watched(self, place: Path, words: Sequence[str]) -> list[tuple[int, str, float]]:
        run = Run(place, words)
        seen: list[tuple[str, float]] = [("start", run.started)]
        while run.process.poll() is None:
            for begun in STAGE.findall(run.said())[len(seen) - 1 :]:
                seen.append((stage_of(begun), time.monotonic()))
            time.sleep(0.02)
        if run.wait():
            raise SystemExit(f"the undisturbed run ended with {run.wait()}: {run.last_line()}")
        ends = [*(at for _, at in seen[1:]), time.monotonic()]
        number = STUDY.index(tuple(words))
        return [(number, name, end - at) for (name, at), end in zip(seen, ends, strict=True)]

    def kinds(self) -> list[str]:
        """Kinds of artefact that the study makes."""
        return sorted(path.name for path in (self.undisturbed / "smoke" / "artefacts").iterdir() if path.is_dir())

    def copy(self, name: str) -> Path:
        """A copy of the undisturbed outputs."""
        place = self.work / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.undisturbed, place)
        return place

    # -- judging -------------------------------------------------------------------------------------------------------
    def differences(self, place: Path) -> list[str]:
        """What is not as in the undisturbed run: artefacts (every file), run files and tables; and what is half done."""
        ours, theirs = results(place), results(self.undisturbed)
        return sorted({*(f"{name} differs" for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]),
                       *(f"{name} is missing" for name in theirs.keys() - ours.keys()),
                       *(f"{name} is new" for name in ours.keys() - theirs.keys())})  # fmt: skip


def results(place: Path) -> dict[str, str]:
    """Path → digest of all that a run is for. Manifests count without times."""
    smoke = place / "smoke"
    kinds = (
        [kind for kind in (smoke / "artefacts").iterdir() if kind.name not in TIMED]
        if (smoke / "artefacts").is_dir()
        else []
    )
    files = [
        path for kind in kinds for path in kind.rglob("*") if path.is_file() and not path.name.startswith(".lock-")
    ]
    files += [path for path in (smoke / "tables").glob("*.csv") if path.name not in TIMED]
    files += (smoke / "record").rglob("*.trec.gz")
    found = {}
    for path in files:
        data = path.read_bytes()
        if path.name == "manifest.json":
            data = json.dumps(stable_manifest(json.loads(data)), sort_keys=True).encode()
        found[path.relative_to(place).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def size_of(place: Path) -> int:
    """Bytes of the files under a place, each rounded up to a block."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in place.rglob("*") if path.is_file())


def one_line(run: Run) -> str:
    """What is wrong with how a run told its end, or nothing: no traceback, and a last line of the package's own."""
    if "Traceback (most recent call last)" in run.said():
        return "a traceback"
    if not run.last_line().startswith("vdr: "):
        return f"no line of its own, but {run.last_line()[:100]!r}"
    return ""
