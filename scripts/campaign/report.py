"""The report: what was tried and what happened, from the journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from bench import Bench, Tried

from vdr.provenance import code, hardware

TITLES = {
    "kills": "Kills",
    "chains": "Chains of kills",
    "disks": "Full and read-only disks",
    "writers": "Several writers",
    "flips": "Flipped bits",
    "inputs": "Bad input",
}
ABOUT = {
    "kills": "A command of the study is killed at a random moment of a stage; then it is started again, until it ends by itself. "
    "Promised: the signal's own exit status, and no process left behind.",
    "chains": "What every chain of kills ended with. Promised: the undisturbed bytes (every artefact, run file and table; tables of times "
    "left out), and no rating lost or doubled.",
    "disks": "The kind is deleted from finished outputs on a small disk of their own, which is then read-only, or so full that the kind "
    "does not fit (at random between nothing and half of it). Promised: status 6 and one line; with room again, the undisturbed bytes.",
    "writers": "The same command on the same outputs, several times at once. Promised: status 0, or 4 and one line; then the undisturbed "
    "bytes.",
    "flips": "One random bit of one file of each kind of file in each kind of artefact. Promised: `vdr verify` ends with 3 and names the "
    "file; what is deleted and run again has the undisturbed bytes.",
    "inputs": "Promised: the exit status, one line that says what is wrong, and nothing left behind.",
}


def write(bench: Bench, file: Path) -> None:
    parts: dict[str, list[Tried]] = defaultdict(list)
    for tried in bench.journal():
        parts[tried.part].append(tried)
    machine = hardware()
    failed = [tried for tried in bench.journal() if not tried.ok]
    lines = [
        "# Campaign",
        "",
        "Written by `make campaign`: kills, disks, writers, flipped bits and bad input, through the public commands, on profile `smoke`.",
        "",
        f"Processor {machine['processor']}, {machine['cores']} cores, {machine['instructions']}; seed {bench.seed}; "
        f"code {code()['commit'][:9]}; {sum(tried.seconds for tried in bench.journal() if tried.part != 'kills') / 60:.0f} minutes.",
        "",
        "| part | tried | as promised | not as promised |",
        "|---|---:|---:|---:|",
        *(
            f"| {TITLES[part]} | {len(found)} | {sum(t.ok for t in found)} | {sum(not t.ok for t in found)} |"
            for part, found in sorted(parts.items(), key=_place)
        ),
    ]
    if failed:
        lines += ["", "## Not as promised", "", "| part | what | promised | happened |", "|---|---|---|---|"]
        lines += [f"| {TITLES[t.part]} | {_cell(t.what)} | {_cell(t.promised)} | {_cell(t.happened)} |" for t in failed]
    for part, found in sorted(parts.items(), key=_place):
        lines += ["", f"## {TITLES[part]}", "", ABOUT[part], "", *(_kills(found) if part == "kills" else _rows(found))]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _place(item: tuple[str, list[Tried]]) -> int:
    return list(TITLES).index(item[0])


def _kills(found: list[Tried]) -> list[str]:
    """Kills by stage and way: too many for a row each (each is in the journal)."""
    ways = sorted({tried.what.split(", ")[0] for tried in found})
    count = Counter((tried.stage, tried.what.split(", ")[0]) for tried in found)
    stages = list(dict.fromkeys(tried.stage for tried in found))
    lines = [
        f"| stage | {' | '.join(ways)} | status as promised, nobody left behind |",
        f"|---|{'---:|' * len(ways)}---:|",
    ]
    for stage in stages:
        of_it = [tried for tried in found if tried.stage == stage]
        numbers = " | ".join(str(count[stage, way]) for way in ways)
        lines.append(f"| {_cell(stage)} | {numbers} | {sum(t.ok for t in of_it)} of {len(of_it)} |")
    numbers = " | ".join(str(sum(count[stage, way] for stage in stages)) for way in ways)
    return [*lines, f"| all | {numbers} | {sum(t.ok for t in found)} of {len(found)} |"]


def _rows(found: list[Tried]) -> list[str]:
    return ["| what | happened |", "|---|---|", *(f"| {_cell(t.what)} | {_cell(t.happened)} |" for t in found)]


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
