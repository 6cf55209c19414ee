"""The command `vdr`: its sub-commands are the study's stages, and those that look at them.

Results go to stdout, progress and errors to stderr. An error that a user can act on is one line; its exit status says its kind.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vdr import __version__
from vdr.disk import explained
from vdr.errors import VdrError
from vdr.progress import note

if TYPE_CHECKING:
    from vdr.pipeline import Study
    from vdr.store import Artefact

#: Exit status of a command that was ended by Ctrl-C.
INTERRUPTED = 130

app = typer.Typer(
    name="vdr",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Two studies of visual document retrieval, reproduced at three sizes.\n\n"
        "A profile (mini, smoke, pilot, paper) says how large a run is; the stages below make one artefact each, in this order: "
        "corpus, mine, rate, rows, train, encode, evaluate, table. Each makes what it needs first, so `vdr reproduce table1` is enough. "
        "What is there already is verified and used; `vdr plan table1` says beforehand what would run."
    ),
    epilog="Exit status: 0 well, 2 bad input, 3 damaged artefact, 4 busy, 5 unfit machine, 6 full or read-only disk.",
)

STAGES = "Stages"
LOOK = "Looking"
MAKE = "Weights that ship with the package"

ProfileOption = Annotated[
    str, typer.Option("--profile", "-p", help="mini, smoke, pilot or paper, or the path of a profile's YAML file")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="change one setting: section.field=value (repeatable); `vdr settings` lists them"),
]
ArmArgument = Annotated[str, typer.Argument(help="an arm of the study; `vdr arms` lists them")]
SeedOption = Annotated[int, typer.Option("--seed", help="one of the profile's training seeds")]
RecipeOption = Annotated[str | None, typer.Option("--recipe", help="one_epoch or three_epochs (default: the profile's)")]
TableArgument = Annotated[str, typer.Argument(help="table1, ev-figure7 or a catalogue name such as wt-table1; `vdr tables` lists them")]
WeightsOption = Annotated[Path | None, typer.Option("--out", help="also put the weights here (a directory that does not exist)")]


def _study(profile: str, settings: list[str] | None) -> Study:
    # Imported late, here and below, so that --help costs nothing.
    from vdr.pipeline import Study
    from vdr.study.settings import load_profile

    return Study(load_profile(profile, settings or []))


def _say(artefact: Artefact) -> None:
    typer.echo(str(artefact.path))


# -- stages ------------------------------------------------------------------------------------------------------------
@app.command(rich_help_panel=STAGES)
def corpus(profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Make the corpus: training pages and queries, evaluation suites with their judgements.

    In the miniature pages are drawn to pixels from a seed and the true relevance of every (query, page) is kept; in the other profiles
    the public data sets are read at pinned revisions. Its checksum is compared with the one in data_manifests/.
    """
    _say(_study(profile, settings).stage_corpus())


@app.command(rich_help_panel=STAGES)
def mine(profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Mine candidates: a frozen top-100 pool per query, and the 28 of it that the teacher rates (WT §3, App. J and O)."""
    for artefact in _study(profile, settings).stage_mine():
        _say(artefact)


@app.command(rich_help_panel=STAGES)
def rate(profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Ask the teacher: ratings of the scored pool in page order, attention maps, descriptions (WT §3, App. B, G, J)."""
    for artefact in _study(profile, settings).stage_rate():
        _say(artefact)


@app.command(rich_help_panel=STAGES)
def rows(arm: ArmArgument, seed: SeedOption = 0, profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Make an arm's training rows from pools and the teacher's output: negatives, targets, maps, descriptions."""
    _say(_study(profile, settings).stage_rows(arm, seed))


def _student_stage(name: str, about: str) -> None:
    """Add a stage of one student; they all take an arm, a seed and a recipe."""

    def command(
        arm: ArmArgument,
        seed: SeedOption = 0,
        recipe: RecipeOption = None,
        profile: ProfileOption = "mini",
        settings: SetOption = None,
    ) -> None:
        _say(getattr(_study(profile, settings), f"stage_{name}")(arm, seed, recipe))

    app.command(name, help=about, rich_help_panel=STAGES)(command)


_student_stage(
    "train",
    "Train one student: an arm, a seed, a recipe. A killed run goes on from its last checkpoint and gives the same bytes.",
)
_student_stage("encode", "Encode the suites' pages and queries with a trained student.")
_student_stage("evaluate", "Search every suite with a trained student and score it: TREC run files and nDCG@5 (WT §3).")


@app.command(rich_help_panel=STAGES)
def table(
    name: TableArgument,
    recorded: Annotated[bool, typer.Option("--recorded", help="render the recorded run instead of a fresh one")] = False,
    profile: ProfileOption = "mini",
    settings: SetOption = None,
) -> None:
    """Print a table from what has been evaluated (or recorded), and write its files; trains nothing."""
    typer.echo(_study(profile, settings).render(name, recorded=recorded))


@app.command(rich_help_panel=STAGES)
def reproduce(name: TableArgument, profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Do everything that a table or figure needs and print it: all stages, all arms and seeds, the notebook, the comparison."""
    typer.echo(_study(profile, settings).reproduce(name))


# -- looking -----------------------------------------------------------------------------------------------------------
@app.command(rich_help_panel=LOOK)
def plan(name: TableArgument, profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Say what `vdr reproduce` would run, what is cached, why a cached thing does not serve, and how long it took last time."""
    typer.echo("\n".join(_study(profile, settings).plan(name)))


@app.command(rich_help_panel=LOOK)
def trace(
    arm: ArmArgument,
    suite: Annotated[str, typer.Argument(help="a suite; `vdr arms` lists them")],
    recipe: RecipeOption = None,
    profile: ProfileOption = "mini",
    settings: SetOption = None,
) -> None:
    """From a cell of a table to what is behind it: for every seed the score, and the directories down to the corpus."""
    typer.echo("\n".join(_study(profile, settings).trace(arm, suite, recipe)))


@app.command(rich_help_panel=LOOK)
def claims(
    recorded: Annotated[bool, typer.Option("--recorded", help="check the recorded run instead of a fresh one")] = False,
    profile: ProfileOption = "mini",
    settings: SetOption = None,
) -> None:
    """Check WT's claims on what has been evaluated (or recorded): holds, fails or not run, and the figures that decide it."""
    typer.echo(_study(profile, settings).claims(recorded=recorded))


@app.command(rich_help_panel=LOOK)
def arms() -> None:
    """List arms, recipes, suites and profiles."""
    from vdr.study.catalogue import load_arms, load_recipes, load_suites
    from vdr.study.settings import load_profile, profile_names

    for arm in load_arms().values():
        typer.echo(f"arm      {arm.name:16} {arm.title} ({arm.source}): {arm.summary}")
    for recipe in load_recipes().values():
        typer.echo(f"recipe   {recipe.name:16} {recipe.title}")
    for suite in load_suites().values():
        typer.echo(f"suite    {suite.name:16} {suite.title}: {suite.summary}")
    for name in profile_names():
        chosen = load_profile(name)
        typer.echo(f"profile  {name:16} {chosen.title}: {chosen.description} Seeds {', '.join(map(str, chosen.seeds))}.")


@app.command(rich_help_panel=LOOK)
def tables(make: Annotated[bool, typer.Option("--make", help="print them as make targets")] = False) -> None:
    """List the tables and figures that can be reproduced, with their make targets."""
    from vdr.pipeline import make_targets
    from vdr.study.catalogue import load_tables

    if make:
        typer.echo(make_targets(), nl=False)
        return
    for entry in load_tables().values():
        typer.echo(f"{entry.target:24} {entry.paper} {entry.kind} {entry.number}: {entry.title}")


@app.command(rich_help_panel=LOOK)
def settings(
    section: Annotated[str, typer.Argument(help="one section only, for instance training")] = "",
    profile: ProfileOption = "mini",
    settings: SetOption = None,
) -> None:
    """List every setting of a profile with its value and meaning."""
    from vdr.pipeline import describe_settings
    from vdr.study.settings import load_profile

    typer.echo("\n".join(describe_settings(load_profile(profile, settings or []), section)))


@app.command(rich_help_panel=LOOK)
def notebooks(
    name: Annotated[list[str] | None, typer.Argument(help="file names; all chapters if none is given")] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="execute the committed ones in place, from the recorded run")] = False,
    profile: ProfileOption = "mini",
    settings: SetOption = None,
) -> None:
    """Execute the chapters headless with this profile's own record, into outputs/<profile>/notebooks."""
    for path in _study(profile, settings).notebooks(name or None, refresh=refresh):
        typer.echo(str(path))


@app.command(rich_help_panel=LOOK)
def verify(
    recorded: Annotated[
        bool, typer.Option("--recorded", help="make the head of the recorded run again (minutes) and compare its bytes")
    ] = False,
    profile: ProfileOption = "mini",
    settings: SetOption = None,
) -> None:
    """Compare data, weights and artefacts on this machine with their manifests, and name every difference.

    With --recorded: make corpus, vision cache, miner and the first seed of baseline and A again, in a store of their own, and compare every
    file with the recorded run's hashes. So it tells whether this machine gives the recorded bytes.
    """
    study = _study(profile, settings)
    if recorded:
        from vdr.sameness import make_head_again

        lines, wrong = make_head_again(study)
    else:
        lines, wrong = study.verify()
    typer.echo("\n".join(lines))
    if wrong:
        raise typer.Exit(3)


@app.command(rich_help_panel=LOOK)
def record(
    out: Annotated[Path | None, typer.Option("--out", help="where to (default: outputs/recorded/<profile>)")] = None,
    profile: ProfileOption = "mini",
    settings: SetOption = None,
) -> None:
    """Keep a finished run with the code: its small files (run files, scores, manifests) become the recorded run."""
    typer.echo(_study(profile, settings).keep_record(out))


# -- weights -----------------------------------------------------------------------------------------------------------
@app.command("pretrain-mini", rich_help_panel=MAKE)
def pretrain_mini(out: WeightsOption = None, profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Pretrain the miniature's backbone from scratch on page reading (it ships ready-made; this shows how it was made)."""
    _say(_study(profile, settings).stage_pretrain(out))


@app.command("train-teacher-mini", rich_help_panel=MAKE)
def train_teacher_mini(out: WeightsOption = None, profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Train the miniature's teacher on pages and queries of its own (it ships ready-made; this shows how it was made)."""
    _say(_study(profile, settings).stage_train_teacher(out))


@app.command("make-step", hidden=True)
def make_step(
    stage: Annotated[str, typer.Argument(help="a stage that needs no arm: vision, miner, pools, scored, maps, …")],
    profile: ProfileOption = "mini",
    settings: SetOption = None,
) -> None:
    """Make one shared step by its stage's name (used where several are made side by side)."""
    _say(_study(profile, settings).make_step(stage))


@app.command(hidden=True)
def version() -> None:
    """Print the package's version."""
    typer.echo(__version__)


PARTS = {"audit": "vdr.audit.commands", "hac": "vdr.compression.commands"}


def _mount(arguments: list[str]) -> None:
    """Sub-commands that a part brings along; imported when one of them, or help about all, is asked for."""
    words = [word for word in arguments if not word.startswith("-")]
    asked = PARTS if not words else [name for name in PARTS if name == words[0]]
    for name in asked:
        package = PARTS[name].rpartition(".")[0]
        if importlib.util.find_spec(package) and importlib.util.find_spec(PARTS[name]):
            app.add_typer(importlib.import_module(PARTS[name]).app, name=name, rich_help_panel="More")


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one line for an error that a user can act on, a traceback only for a defect."""
    from vdr.children import die_with_parent

    die_with_parent()
    try:
        _mount(sys.argv[1:] if arguments is None else arguments)
        status = app(args=arguments, standalone_mode=False)
        if status == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except VdrError as error:
        note(f"vdr: {error}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        note("vdr: stopped; the same command goes on from here")
        sys.exit(INTERRUPTED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            sys.exit(141)
        if (told := explained(error)) is not None:
            note(f"vdr: {told}")
            sys.exit(told.exit_code)
        # typer's own usage errors (an unknown option, a missing argument) know how to say themselves in a line
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        note(f"vdr: {said()} (vdr --help)")
        sys.exit(getattr(error, "exit_code", 2) or 2)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
