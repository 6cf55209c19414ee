"""The study's stages as functions: what the command line, make and the notebooks call.

A `Study` is one profile with its store. `stage_*` make one artefact each (and what it needs); `reproduce` does everything behind a table.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel

from vdr import instructions
from vdr.disk import human_bytes
from vdr.errors import BadInput, DamagedArtefact, VdrError, did_you_mean
from vdr.graph import Step, make, order, plan_lines, planned
from vdr.progress import clock, note
from vdr.scheduler import Job, run_jobs
from vdr.steps import Steps, run_label
from vdr.store import Artefact, Store, load_artefact
from vdr.study.catalogue import Table, load_arms, load_recipes, load_suites, load_tables
from vdr.study.settings import Profile, repository_root

__all__ = ["Study", "describe_settings", "find_table", "make_targets"]


class Study:
    """One profile and its artefacts."""

    def __init__(self, profile: Profile) -> None:
        for suite in profile.suites:
            load_suites()[suite]
        load_recipes()[profile.recipe]
        instructions.require(profile.hardware.instructions)
        self.profile = profile
        self.store = Store(profile.artefacts)
        self.steps = Steps(profile)

    # -- single stages -------------------------------------------------------------------------------------------------
    def make(self, step: Step) -> Artefact:
        """A step's artefact; builds it and what it needs."""
        prepare_process(self.profile)
        return make(step, self.store)

    def stage_corpus(self) -> Artefact:
        """Training pages and queries, suites with their judgements."""
        return self.make(self.steps.corpus())

    def stage_mine(self) -> list[Artefact]:
        """The frozen pools and the scored pool."""
        return [self.make(self.steps.pools()), self.make(self.steps.scored())]

    def stage_rate(self) -> list[Artefact]:
        """The teacher's ratings, attention maps and descriptions."""
        return [self.make(self.steps.ratings()), self.make(self.steps.maps()), self.make(self.steps.descriptions())]

    def stage_rows(self, arm: str, seed: int) -> Artefact:
        """An arm's training rows."""
        return self.make(self.steps.rows(load_arms()[arm], self.profile.seed(seed)))

    def stage_train(self, arm: str, seed: int, recipe: str | None = None) -> Artefact:
        """One student's checkpoint."""
        return self.make(self.steps.checkpoint(load_arms()[arm], self.profile.seed(seed), self._recipe(recipe)))

    def stage_encode(self, arm: str, seed: int, recipe: str | None = None) -> Artefact:
        """Its vectors of every suite's pages and queries."""
        return self.make(self.steps.vectors(load_arms()[arm], self.profile.seed(seed), self._recipe(recipe)))

    def stage_evaluate(self, arm: str, seed: int, recipe: str | None = None) -> Artefact:
        """Its run files and scores."""
        return self.make(self.steps.run(load_arms()[arm], self.profile.seed(seed), self._recipe(recipe)))

    def stage_pretrain(self, out: Path | None = None) -> Artefact:
        """The miniature's backbone, pretrained anew."""
        return self._weights(self.steps.backbone(), out)

    def stage_train_teacher(self, out: Path | None = None) -> Artefact:
        """The miniature's teacher, trained anew."""
        return self._weights(self.steps.teacher(), out)

    def _weights(self, step: Step, out: Path | None) -> Artefact:
        if out is not None and out.exists():
            raise BadInput("is there already", where=out, todo="name a directory that does not exist")
        artefact = self.make(step)
        if out is not None:
            shutil.copytree(artefact.path / "checkpoint", out)
        return artefact

    def _recipe(self, recipe: str | None) -> str:
        return load_recipes()[recipe or self.profile.recipe].name

    # -- a whole table -------------------------------------------------------------------------------------------------
    def runs_of(self, table: Table) -> list[tuple[str, int]]:
        """(arm, seed) of every run that a table needs, the baseline's first."""
        arms = list(dict.fromkeys([table.baseline, *table.arms])) if table.arms else []
        return [(arm, seed) for seed in self.profile.seeds for arm in arms]

    def recipe_of(self, table: Table) -> str:
        return self._recipe(table.recipe)

    def run_steps(self, table: Table) -> dict[tuple[str, int], Step]:
        """The run steps of a table, by (arm, seed)."""
        recipe = self.recipe_of(table)
        return {(arm, seed): self.steps.run(load_arms()[arm], seed, recipe) for arm, seed in self.runs_of(table)}

    def steps_of(self, table: Table) -> list[Step]:
        """The steps that a table or figure is made from, whichever part makes it."""
        if table.command is None:
            return list(self.run_steps(table).values())
        part, *_ = table.command.split()
        if part == "audit":
            return [self.steps.audit()]
        from vdr.compression.reproduce import steps_of

        return list(steps_of(self.profile, [table.name], self.steps).values())

    def plan(self, name: str) -> list[str]:
        """What `reproduce` would run, as lines: states, times, sizes, and the room that the profile asks for."""
        from vdr.finish import recorded_place
        from vdr.sameness import recorded_manifests

        try:
            recorded = list(recorded_manifests(recorded_place(self.profile)).values())
        except BadInput:
            recorded = []
        lines = plan_lines(planned(self.store, *self.steps_of(find_table(name)), recorded=recorded))
        free = shutil.disk_usage(next(place for place in (self.store.root, *self.store.root.parents) if place.is_dir())).free
        asked = self.profile.hardware.disk_gb
        return [*lines, f"a full run of this profile asks for {asked:g} GB of disk; {human_bytes(free)} are free"]

    def make_runs(self, table: Table) -> dict[tuple[str, int], Artefact]:
        """Every run of a table: what they share first, then the runs themselves in several processes."""
        wanted = self.run_steps(table)
        missing = {key: step for key, step in wanted.items() if not step.whole(self.store)}
        own = {step.key for step in order(*missing.values()) if step.stage in ("checkpoint", "vectors", "run")}
        shared = [step for step in order(*missing.values()) if step.key not in own]
        self._make_shared(table, shared)
        if missing:
            self._run_children(table, missing)
        return {key: self.make(step) for key, step in wanted.items()}

    def _make_shared(self, table: Table, steps: list[Step]) -> None:
        """What several runs share, in order; the teacher's page-by-page passes, which need only the corpus, side by side."""
        aside = [step for step in steps if step.stage in ("maps", "descriptions") and step.find(self.store) is None]
        if self.profile.hardware.processes > 1 and len(aside) > 1:
            self.make(self.steps.corpus())
            note(f"-- {' and '.join(step.stage for step in aside)}, side by side")
            jobs = [self._job(step.stage, ["make-step", step.stage], 1.0) for step in aside]
            run_jobs(jobs, self.profile.hardware.processes, self.profile.hardware.threads, title="teacher")
        for step in steps:
            self.make(step)

    def make_step(self, stage: str) -> Artefact:
        """A step that needs no arm, by its stage's name."""
        return self.make(getattr(self.steps, stage.replace("-", "_"))())

    def _job(self, name: str, command: list[str], cost: float) -> Job:
        log = self.profile.outputs / "logs" / f"{name}.log"
        return Job(name, ["vdr", *command, *self._profile_arguments()], log, cost)

    def _run_children(self, table: Table, missing: dict[tuple[str, int], Step]) -> None:
        hardware = self.profile.hardware
        recipe = self.recipe_of(table)
        costs = self._costs(recipe)
        jobs = []
        for arm, seed in missing:
            label = run_label(arm, seed, recipe)
            jobs.append(self._job(label, ["evaluate", arm, "--seed", str(seed), "--recipe", recipe], costs(arm)))
        note(f"-- {len(jobs)} runs, {hardware.processes} at once ({table.paper} {table.kind} {table.number})")
        took = run_jobs(jobs, hardware.processes, hardware.threads)
        note(f"   runs: {clock(sum(took.values()))} of work in {len(took)} processes")

    def _profile_arguments(self) -> Iterator[str]:
        """Command-line arguments that give a child exactly this profile, overrides included."""
        path = self.profile.outputs / "logs" / f"{self.profile.name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        # JSON is YAML; written whole, so that a child cannot read settings that the parent did not use, and unsorted: the drawn corpus
        # depends on the order in which its sources and condition sets are listed.
        text = json.dumps(self.profile.model_dump(mode="json"), indent=1) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        yield from ("--profile", str(path))

    def _costs(self, recipe: str) -> Callable[[str], float]:
        """A function arm → expected seconds: the last time it ran here, or what its candidates make it compared with others."""
        seen: dict[str, float] = {}
        for artefact in self.store.artefacts("checkpoint"):
            parts = artefact.label.rsplit("-seed-", 1)
            if len(parts) == 2 and parts[1].endswith(recipe):
                seen[parts[0]] = float(artefact.manifest["seconds"])
        plain = [seconds for arm, seconds in seen.items() if not load_arms()[arm].needs_pools] if seen else []
        unit = min(plain) if plain else 1.0

        def cost(name: str) -> float:
            arm = load_arms()[name]
            guess = 2.8 if arm.needs_pools else 1.2 if arm.descriptions else 1.0
            return seen.get(name, guess * unit)

        return cost

    def reproduce(self, name: str) -> str:
        """Everything behind a table or figure: runs, record, table, figure, notebook, comparison with the recorded run."""
        table = find_table(name)
        check_machine(self.profile)
        if table.command is not None:
            return self._other_command(table)
        started = time.monotonic()
        runs = self.make_runs(table)
        from vdr.finish import finish

        extra = self._beside(runs)
        steps = order(*self.run_steps(table).values())
        behind = [made for step in steps if (made := step.find(self.store)) is not None]
        text = finish(self.profile, table, self.recipe_of(table), runs, self.make(self.steps.corpus()), extra, behind)
        seconds = time.monotonic() - started
        note(f"-- {table.target}: {clock(seconds)} in all; largest peak of a process {self._peak(table):.1f} GB")
        return text

    def _beside(self, runs: dict[tuple[str, int], Artefact]) -> list[Artefact]:
        """What the chapters show beside the runs: label statistics, and the audit where it has been made."""
        if not any(load_arms()[arm].uses_ratings for arm, _ in runs):
            return []
        audit = self.steps.audit().find(self.store)
        return [self.make(self.steps.labels()), *([] if audit is None else [audit])]

    def _other_command(self, table: Table) -> str:
        """A table that a part's own command makes."""
        command = [sys.executable, "-m", "vdr.cli", *str(table.command).split(), *self._profile_arguments()]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            error = VdrError(f"`vdr {table.command}` failed", todo="its own line stands above")
            error.exit_code = done.returncode
            raise error
        return done.stdout.rstrip("\n")

    def _peak(self, table: Table) -> float:
        """The largest peak memory that any step behind a table noted, in GB."""
        steps = order(*self.run_steps(table).values())
        return max(made.manifest["peak_memory_mb"] for step in steps if (made := step.find(self.store))) / 1024

    def render(self, name: str, *, recorded: bool = False) -> str:
        """A table as text, from the recorded run or from this profile's own; its files are written too."""
        from vdr.finish import render
        from vdr.parts import render_part

        table = find_table(name)
        if table.command is not None:
            return render_part(self, table, recorded=recorded)
        return render(self.profile, table, recorded=recorded)

    def claims(self, *, recorded: bool = False) -> str:
        """WT's claims on the recorded run or on this profile's own: holds, fails or not run, and why."""
        from vdr.finish import claims

        return claims(self.profile, recorded=recorded)

    def keep_record(self, out: Path | None = None) -> str:
        """Copy this profile's record to where it is kept with the code."""
        from vdr.finish import keep

        return keep(self.profile, out)

    def notebooks(self, names: list[str] | None = None, *, refresh: bool = False) -> list[Path]:
        """Execute chapters from this profile's record, or the committed ones in place from the recorded run."""
        from vdr.finish import as_shipped, not_run, record_place
        from vdr.report.notebooks import refresh as in_place
        from vdr.report.notebooks import run_chapters

        limit = self.profile.report.notebook_timeout_s
        if refresh:
            as_shipped(self.profile, "--refresh")
            return in_place(names, timeout_s=limit)
        if not (record_place(self.profile) / "record.json").is_file():
            raise not_run(self.profile, "vdr reproduce table1")
        record = {"record": str(record_place(self.profile))}
        return run_chapters(self.profile.outputs / "notebooks", record, names=names, timeout_s=limit)

    # -- looking -------------------------------------------------------------------------------------------------------
    def trace(self, arm: str, suite: str, recipe: str | None = None) -> list[str]:
        """For every seed the score of (arm, suite) and the artefacts behind it, nearest first."""
        from vdr.evaluation.evaluate import load_scores
        from vdr.finish import not_run

        if suite not in self.profile.suites:
            load_suites()[suite]
            raise BadInput(
                f"profile {self.profile.name} does not evaluate {suite!r}",
                where="suite",
                todo=f"known: {', '.join(self.profile.suites)}",
            )
        entry = load_arms()[arm]
        lines = []
        found = 0
        for name in dict.fromkeys([arm, entry.baseline]):
            for seed in self.profile.seeds:
                step = self.steps.run(load_arms()[name], seed, self._recipe(recipe))
                artefact = step.find(self.store)
                if artefact is None:
                    lines.append(f"{step.label}: not run yet (vdr evaluate {name} --seed {seed})")
                    continue
                found += 1
                scores = load_scores(artefact.path)
                content = scores["suites"][suite]
                value = content[f"ndcg_at_{scores['cutoff']}"]
                lines.append(f"{step.label}: {suite} {scores['metric']} {value:.2f}")
                lines += [
                    f"    {'run file':12} {shown(artefact.path / suite)}/{data}.trec.gz" for data in content["datasets"]
                ]
                for behind in reversed(order(step)):
                    lines.append(
                        f"    {behind.stage:12} {shown(self.store.place(behind.stage, behind.key, behind.label))}"
                    )
        if not found:
            raise not_run(self.profile, f"vdr evaluate {arm}")
        return lines

    def verify(self) -> tuple[list[str], int]:
        """Compare data manifests, shipped weights and this profile's artefacts with what is on disk: lines, and how many are wrong."""
        from vdr.manifests import check_all

        lines, wrong = check_all(self.profile)
        count = 0
        for path in sorted(self.store.root.glob("*/*/manifest.json")):
            if path.parent.name.startswith("."):
                continue
            try:
                load_artefact(path.parent)
                count += 1
            except DamagedArtefact as error:
                lines.append(f"WRONG  {error}")
                wrong += 1
        lines.append(f"ok     {count} artefacts of profile {self.profile.name} match their manifests")
        for path in self.store.in_work():
            lines.append(f"note   {shown(path)} is the unfinished work of a stopped run; it will be used again")
        return lines, wrong


def prepare_process(profile: Profile) -> None:
    """Hold this process to the profile's threads and to deterministic kernels, before any stage computes."""
    from vdr.hardware import prepare

    prepare(profile.hardware)


def check_machine(profile: Profile) -> None:
    """`UnfitMachine` when the profile asks for what is not here: a device, memory, free space."""
    from vdr.hardware import check

    check(profile.hardware, profile.outputs)


def find_table(name: str) -> Table:
    """A table by catalogue name (`wt-table1`), by make target (`reproduce-table1`) or by the target's short form (`table1`)."""
    tables = load_tables()
    if name in tables:
        return tables[name]
    for table in tables.values():
        if name in (table.target, table.target.removeprefix("reproduce-")):
            return table
    known = [table.target.removeprefix("reproduce-") for table in tables.values()] + list(tables)
    raise BadInput(f"unknown table or figure {name!r}", where="table", todo=did_you_mean(name, known))


def make_targets() -> str:
    """The `reproduce-…` targets as a makefile."""
    lines = ["# Written from src/vdr/study/tables.yaml by `make targets`; change it there.", ""]
    targets = [table.target for table in load_tables().values()]
    lines += [f".PHONY: reproduce {' '.join(targets)}", ""]
    lines += [f"reproduce: {' '.join(targets)} ## reproduce every table and figure below", ""]
    for table in load_tables().values():
        lines.append(f"{table.target}: setup ## {table.paper} {table.kind} {table.number}: {table.title}")
        lines += [f"\t@$(VDR) reproduce {table.name} $(CHOSEN)", ""]
    return "\n".join(lines)


def describe_settings(profile: Profile, section: str = "") -> list[str]:
    """`section.field = value   # meaning`, one line a setting."""
    known = [name for name, info in Profile.model_fields.items() if isinstance(getattr(profile, name), BaseModel)]
    if section and section not in known:
        raise BadInput(f"unknown section {section!r}", where="settings", todo=did_you_mean(section, known))
    return [line for line in _described(profile, "") if not section or line.startswith(section + ".")]


def _described(settings: BaseModel, prefix: str) -> Iterator[str]:
    for name, info in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _described(value, f"{prefix}{name}.")
        else:
            meaning = f"   # {info.description}" if info.description else ""
            yield f"{prefix}{name} = {value}{meaning}"


def shown(path: Path) -> str:
    """A path as it is printed: relative to the checkout where it lies inside."""
    root = repository_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
