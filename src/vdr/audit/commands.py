"""`vdr audit`: design, freeze, serve, check, analyse, reproduce, record."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vdr.errors import BadInput
from vdr.progress import note
from vdr.textfiles import text_of, text_table

if TYPE_CHECKING:  # pandas takes a second to import, which `--help` need not wait for
    import pandas as pd

__all__ = ["app"]

app = typer.Typer(
    name="audit",
    no_args_is_help=True,
    help=(
        "The human audit of the teacher: how far can its judgements be trusted?\n\n"
        "design makes a study, freeze closes it, serve shows the annotation page, check says how far people are, analyse computes "
        "what the study's plan names. reproduce runs all of it with simulated annotators and writes the papers' tables."
    ),
)

StudyArgument = Annotated[Path, typer.Argument(help="the study's folder")]


@app.command()
def design(
    out: Annotated[Path, typer.Argument(help="folder of the new study; must not exist")],
    pages: Annotated[Path | None, typer.Option(help="own pages: a folder of page images")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="own pages: CSV with query_id, query[, breadth, labelled_page]")
    ] = None,
    ratings: Annotated[Path | None, typer.Option(help="own pages: CSV with query_id, page, score from 0 to 1")] = None,
    annotators: Annotated[int | None, typer.Option(min=2, help="number of annotators (own pages: 3 if not given)")] = None,
    evidence: Annotated[
        Path | None, typer.Option(help="a judge's tiers (CSV with query_id, page_id, tier): the study of EV's Table 6")
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", "-p", help="the profile whose pools and ratings are audited")
    ] = "mini",
    settings: Annotated[list[str] | None, typer.Option("--set", help="audit.field=value, repeatable")] = None,
    breadth: Annotated[
        Path | None, typer.Option(help="CSV with query_id, breadth (specific or broad); freezes the study")
    ] = None,
    without_breadth: Annotated[bool, typer.Option(help="freeze now and give the specific/broad split up")] = False,
    plan: Annotated[Path | None, typer.Option(help="an analysis plan instead of the one that ships")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of draw, blocks and orders")] = None,
    title: Annotated[str, typer.Option(help="what annotators see as the title")] = "Page judgements",
    ocr: Annotated[bool, typer.Option(help="read pages without text with RapidOCR for the transcript")] = False,
) -> None:
    """Make a study: draw queries and pages, deal blocks and orders, write what annotators see apart from what they
    must not see."""
    from vdr.audit.ownpages import design_own, read_own_pages
    from vdr.audit.plan import load_plan
    from vdr.audit.study import freeze as freeze_study
    from vdr.audit.study import read_breadth, write_study
    from vdr.audit.transcripts import transcribe

    known: dict[str, str] = {}
    if (pages is None) != (queries is None):
        raise BadInput("--pages and --queries belong together", where="vdr audit design")
    # What is given is read before anything is made of it, which takes minutes.
    text = text_of(plan, "plan file") if plan is not None else None
    load_plan(text, where=plan or "plan.yaml")
    given = read_breadth(breadth) if breadth is not None else None
    judged = text_table(evidence, ("query_id", "page_id", "tier")) if evidence is not None else None
    if out.exists():
        raise BadInput("is there already", where=out, todo="name a folder that does not exist")
    if pages is not None and queries is not None:
        own = read_own_pages(pages, queries, ratings)
        count = 3 if annotators is None else annotators
        made, source, known = design_own(own, annotators=count, seed=seed or 0), own.source(), own.transcripts
        used: dict[str, object] = {"pages": str(pages), "queries": str(queries), "annotators": count}
    else:
        made, source, used = _from_artefacts(profile, settings, annotators, seed, judged)
    transcripts = transcribe(made.pairs["page_id"].unique(), source, known) if ocr else known
    write_study(out, made, source, title=title, transcripts=transcripts, plan_text=text, settings=used)
    note(f"{len(made.queries)} queries, {len(made.pairs)} pairs, {len(made.orders)} annotators in {out}")
    complete = bool((made.queries["breadth"] != "").all()) or made.scale != "relevance"
    if given is not None or without_breadth or complete:
        freeze_study(out, breadth=given, without_breadth=without_breadth)
        typer.echo(f"frozen; next: vdr audit serve {out}")
        return
    blank = out / "breadth_to_fill.csv"
    made.queries[["query_id", "query", "breadth"]].to_csv(blank, index=False)
    typer.echo(
        f"next: classify every query as specific or broad in {blank} and run\n"
        f"  vdr audit freeze {out} --breadth {blank}\n"
        f"or `vdr audit freeze {out} --without-breadth` to do without that split"
    )


def _from_artefacts(
    profile: str, settings: list[str] | None, annotators: int | None, seed: int | None, judged: pd.DataFrame | None
):
    from vdr.audit.stage import design_for_people
    from vdr.pipeline import Study
    from vdr.study.settings import load_profile

    overrides = list(settings or [])
    overrides += [f"audit.annotators={annotators}"] if annotators is not None else []
    overrides += [f"audit.seed={seed}"] if seed is not None else []
    loaded = load_profile(profile, overrides)
    study = Study(loaded)
    corpus, scored = study.stage_corpus(), study.make(study.steps.scored())
    rated = study.make(study.steps.ratings())
    made, source = design_for_people(
        loaded.audit, corpus=corpus.path, scored=scored.path, ratings=rated.path, judged=judged
    )
    used = {
        "profile": loaded.name,
        "audit": loaded.audit.plain(),
        "corpus": corpus.key,
        "scored": scored.key,
        "ratings": rated.key,
    }
    return made, source, used


@app.command()
def freeze(
    study: StudyArgument,
    breadth: Annotated[Path | None, typer.Option(help="CSV with query_id, breadth (specific or broad)")] = None,
    without_breadth: Annotated[bool, typer.Option(help="give the specific/broad split up")] = False,
) -> None:
    """Close a study before anybody grades: hash pages, plan, ratings and the specific/broad classification."""
    from vdr.audit.study import freeze as freeze_study
    from vdr.audit.study import read_breadth

    frozen = freeze_study(
        study, breadth=read_breadth(breadth) if breadth is not None else None, without_breadth=without_breadth
    )
    typer.echo(f"frozen as {frozen.study_id}; next: vdr audit serve {study}")


@app.command()
def serve(
    study: StudyArgument,
    host: Annotated[
        str, typer.Option(help="address to listen on; anything but loopback is open to your network")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8417,
    name: Annotated[
        list[str] | None, typer.Option(help="a host name under which annotators reach the page (repeatable)")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="what the links begin with, e.g. https://audit.example.org")
    ] = None,
) -> None:
    """Show the annotation page until Ctrl-C; prints one secret link per annotator. Stopping and starting again loses
    nothing."""
    from vdr.audit.server import AuditServer, is_loopback

    names = list(name or [])
    if base_url:
        names.append(base_url.split("//")[-1].split("/")[0])
    server = AuditServer(study, host=host, port=port, names=tuple(names))
    if not is_loopback(host):
        note(f"listening on {host}: everybody on the network can try; links travel unencrypted unless a proxy adds TLS")
    for annotator in server.study.orders:
        typer.echo(f"{annotator}  {server.url(annotator, base_url)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        note("stopped")
    finally:
        server.server_close()


@app.command()
def check(study: StudyArgument) -> None:
    """Verify a study and its journals against the freeze and say how far each annotator is (no grade is shown)."""
    from vdr.audit.judgements import study_from_folder
    from vdr.audit.study import load_frozen

    frozen = load_frozen(study)
    read = study_from_folder(frozen)
    simulated = "  SIMULATED annotators" if frozen.simulated else ""
    typer.echo(f"study {frozen.study_id}: files as frozen at {frozen.manifest['frozen_at']}{simulated}")
    for annotator, items in frozen.orders.items():
        done = int((read.judgements["annotator"] == annotator).sum())
        typer.echo(f"{annotator}  {done:3d} of {len(items)}")


@app.command()
def analyse(
    study: Annotated[Path | None, typer.Argument(help="a study's folder")] = None,
    out: Annotated[Path, typer.Option(help="folder for tables, figures, analysis.json")] = Path("audit-analysis"),
    judgements: Annotated[Path | None, typer.Option(help="released judgements (CSV; see docs/audit.md)")] = None,
    pairs: Annotated[Path | None, typer.Option(help="released pairs (CSV)")] = None,
    queries: Annotated[Path | None, typer.Option(help="released queries (CSV)")] = None,
    scale: Annotated[str, typer.Option(help="relevance or evidence, for released judgements")] = "relevance",
    plan: Annotated[Path | None, typer.Option(help="the plan of the released study, if not the one that ships")] = None,
    without_breadth: Annotated[bool, typer.Option(help="leave the specific/broad split out")] = False,
    partial: Annotated[bool, typer.Option(help="analyse although judgements are missing")] = False,
    paper: Annotated[bool, typer.Option(help="set the papers' figures beside the study's")] = False,
) -> None:
    """Compute what the plan names, of a study's folder or of released CSV files."""
    from vdr.audit.analysis import analyse_relevance
    from vdr.audit.evidence import analyse_evidence
    from vdr.audit.judgements import load_released, study_from_folder, write_problems
    from vdr.audit.report import papers_figures, render_text, write_report
    from vdr.audit.study import load_frozen

    if study is not None:
        read = study_from_folder(load_frozen(study))
    elif judgements is not None and pairs is not None and queries is not None:
        text = text_of(plan, "plan file") if plan is not None else None
        read, problems = load_released(judgements, pairs, queries, scale=scale, plan_text=text)
        if problems:
            write_problems(problems, out / "problems.csv")
            first = problems[0]
            raise BadInput(
                f"row {first.row}, field {first.field}: {first.what}; {len(problems)} such rows",
                where=first.file,
                todo=f"see {out / 'problems.csv'}",
            )
    else:
        raise BadInput(
            "nothing to analyse", where="vdr audit analyse", todo="name a study, or --judgements, --pairs and --queries"
        )
    if read.scale == "evidence":
        result = analyse_evidence(read, partial=partial)
    else:
        result = analyse_relevance(read, without_breadth=without_breadth, partial=partial)
    reference = papers_figures(result["what"]) if paper else None
    for path in write_report(result, out, reference=reference):
        note(str(path))
    typer.echo(render_text(result, reference))


@app.command()
def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="wt-table4, wt-table13 or ev-table6; all of them when not given")
    ] = None,
    profile: Annotated[str, typer.Option("--profile", "-p")] = "mini",
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.field=value, repeatable")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for tables and figures; outputs/<profile> if not given")
    ] = None,
) -> None:
    """Run the whole study with SIMULATED annotators drawn from the profile's known truth, and write its tables beside the papers'.

    Also says whether the analysis finds the error rates that were put in (recovery.csv, coverage.csv of the artefact).
    """
    from vdr.audit.report import TABLES, report_of
    from vdr.pipeline import Study
    from vdr.study.settings import load_profile

    if table is not None and table not in TABLES:
        raise BadInput(
            f"the audit makes no {table!r}", where="vdr audit reproduce", todo=f"it makes {', '.join(TABLES)}"
        )
    loaded = load_profile(profile, list(settings or []))
    study = Study(loaded)
    artefact = study.make(study.steps.audit())
    place, notes = out or loaded.outputs, [f"{loaded.described()}."]
    for name in sorted({TABLES[table]} if table else set(TABLES.values())):
        text, files = report_of(artefact.path, name, place, only=table, notes=notes)
        for path in files:
            note(str(path))
        typer.echo(text)
    typer.echo(str(artefact.path))


@app.command()
def record(
    profile: Annotated[str, typer.Option("--profile", "-p", help="the profile whose simulated audit is kept")] = "mini",
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.field=value, repeatable")] = None,
) -> None:
    """Copy the profile's SIMULATED audit to where it is kept with the code (outputs/recorded/PROFILE/audit); chapter 09 reads it."""
    from vdr.audit.report import report_of
    from vdr.finish import as_shipped, not_run
    from vdr.pipeline import Study
    from vdr.study.settings import load_profile, repository_root

    loaded = load_profile(profile, list(settings or []))
    study = Study(loaded)
    artefact = study.steps.audit().find(study.store)
    if artefact is None:
        raise not_run(loaded, "vdr audit reproduce")
    as_shipped(loaded, "vdr audit record")
    target = repository_root() / "outputs" / "recorded" / loaded.name / "audit"
    work = target.with_name(".audit-being-written")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for file in sorted(path for path in artefact.path.iterdir() if path.is_file()):
        shutil.copyfile(file, work / file.name)
    for name in ("analysis", "evidence"):
        report_of(work, name, work)
    shutil.rmtree(target, ignore_errors=True)
    work.rename(target)
    typer.echo(str(target))
