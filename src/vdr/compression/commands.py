"""`vdr hac`: EV's tables and figures, and an index of one's own vectors: build, search, export, account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="hac", no_args_is_help=True, help="Compressed page indexes (EV §5, §6): tables, figures, index, search, export.")

ProfileOption = Annotated[str, typer.Option("--profile", "-p", help="mini, smoke, pilot or paper, or the path of a profile's YAML file")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="change one setting: section.field=value (repeatable)")]
IndexArgument = Annotated[Path, typer.Argument(help="directory of an index")]


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="ev-table1, 8, 9, 10, 11, 12 or 18; ev-figure1, 7 or 8; or all")],
    profile: ProfileOption = "mini",
    settings: SetOption = None,
    recorded: Annotated[bool, typer.Option("--recorded", help="render from the recorded run, computing nothing")] = False,
) -> None:
    """Make an EV table or figure beside the paper's, with everything it needs, and print it."""
    from vdr.compression.reproduce import reproduce as run
    from vdr.study.settings import load_profile

    typer.echo(run(load_profile(profile, settings or []), name, recorded=recorded))


@app.command()
def claims(
    profile: ProfileOption = "mini",
    settings: SetOption = None,
    recorded: Annotated[bool, typer.Option("--recorded", help="check the recorded run")] = False,
) -> None:
    """Check EV's claims about compression on this profile's record: holds, fails, or not run."""
    from vdr.compression.claims import check_claims
    from vdr.compression.record import open_record
    from vdr.compression.reproduce import record_place, recorded_place
    from vdr.finish import as_shipped, not_run
    from vdr.study.settings import load_profile

    chosen = load_profile(profile, settings or [])
    if recorded:
        as_shipped(chosen)
    elif not (record_place(chosen) / "record.json").is_file():
        raise not_run(chosen, "vdr hac reproduce all")
    for verdict in check_claims(open_record(recorded_place(chosen) if recorded else record_place(chosen))):
        value = "" if verdict.value is None else f"{verdict.value:.2f}"
        typer.echo(f"{verdict.verdict:8} {value:>8} (paper {verdict.paper_value:g})  {verdict.text} [{verdict.source}, {verdict.table}]")


@app.command()
def record(profile: ProfileOption = "mini", settings: SetOption = None) -> None:
    """Copy this profile's compression record to where it is kept with the code (outputs/recorded/PROFILE/ev)."""
    from vdr.compression.reproduce import keep
    from vdr.study.settings import load_profile

    typer.echo(keep(load_profile(profile, settings or [])))


@app.command()
def index(
    vectors: Annotated[Path, typer.Argument(help="a data set's vectors: a directory with pages.safetensors, ids.json, grid.npy")],
    out: Annotated[Path, typer.Argument(help="directory of the new index")],
    method: Annotated[str, typer.Option(help="raw, hac, ward, grid or colpali")] = "hac",
    d: Annotated[int | None, typer.Option("-d", min=1, help="prefix width (default: the full width)")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="centroids a page")] = 32,
    w_pos: Annotated[float, typer.Option(help="weight of position, from 0 to 1 (hac)")] = 0.1,
    trained: Annotated[str, typer.Option(help="widths the encoder was trained at, e.g. 64,128; others are refused")] = "",
    storage: Annotated[str, typer.Option(help="float16, bfloat16 or float32")] = "float16",
    device: Annotated[str, typer.Option(help="cpu, or cuda to cluster on a GPU")] = "cpu",
) -> None:
    """Build an index from encoded pages: raw, or compressed to K centroids a page."""
    from vdr.compression.index import build_index
    from vdr.compression.pooling import Pooling, compress
    from vdr.compression.prefix import Widths, narrow
    from vdr.models.vectors import read_vectors

    pages, _ = read_vectors(vectors)
    widths = Widths.named(trained) if trained else Widths((pages.width,))
    made = narrow(pages, d or pages.width, widths)
    about: dict[str, object] = {"method": method, "source": str(vectors)}
    if method != "raw":
        pooling = Pooling(method, made.width, k, w_pos)  # type: ignore[arg-type]
        about |= {"pooling": pooling.name}
        made = compress(made, pooling, device=device)[0]
    built = build_index(made, out, storage=storage, made_from=about)  # type: ignore[arg-type]
    typer.echo(f"{out}: {len(built)} pages, {len(built.vectors)} vectors of width {built.width}, {built.payload} bytes of payload")


@app.command()
def search(
    index: IndexArgument,
    vectors: Annotated[Path, typer.Argument(help="a data set's vectors, whose queries are asked")],
    depth: Annotated[int, typer.Option(min=1, help="pages a query")] = 10,
) -> None:
    """Ask an index the queries of a data set; prints a TREC run."""
    from vdr.compression.index import open_index
    from vdr.compression.prefix import narrow
    from vdr.models.vectors import read_vectors

    opened = open_index(index)
    _, queries = read_vectors(vectors)
    for name, hits in opened.search(narrow(queries, opened.width, post_hoc=True), depth).items():
        for rank, hit in enumerate(hits, 1):
            typer.echo(f"{name} Q0 {hit.page_id} {rank} {hit.score:.6f} {index.name}")


@app.command()
def export(
    index: IndexArgument,
    out: Annotated[Path, typer.Argument(help="file (safetensors) or directory (qdrant, lancedb)")],
    to: Annotated[str, typer.Option("--to", help="safetensors, qdrant or lancedb")] = "safetensors",
) -> None:
    """Hand an index to another engine; Qdrant and LanceDB are written as embedded databases."""
    from vdr.compression import exports
    from vdr.compression.index import open_index
    from vdr.errors import BadInput

    opened = open_index(index, verify=True)
    if out.exists():
        raise BadInput("is there already", where=out, todo="name a place that does not exist")
    if to == "safetensors":
        exports.to_safetensors(opened, out)
    elif to == "lancedb":
        exports.to_lancedb(opened, out)
    elif to == "qdrant":
        client = exports.qdrant_client(out)
        exports.to_qdrant(opened, client)
        client.close()
    else:
        raise BadInput(f"unknown engine {to!r}", where="--to", todo="choose safetensors, qdrant or lancedb")
    typer.echo(str(out))


@app.command()
def info(index: IndexArgument) -> None:
    """Verify an index against its manifest's hashes and print the manifest."""
    from vdr.compression.index import open_index

    typer.echo(json.dumps(dict(open_index(index, verify=True).manifest), indent=1, sort_keys=True))


@app.command()
def payload(
    k: Annotated[int, typer.Option("-k", min=1, help="vectors a page")],
    d: Annotated[int, typer.Option("-d", min=1, help="width")],
    pages: Annotated[int, typer.Option(min=1, help="pages")] = 1_000_000,
) -> None:
    """Payload of an index in GiB, two bytes a component (EV eq. 11)."""
    from vdr.compression.payload import payload_gib, reduction

    typer.echo(f"{payload_gib(pages, k, d):.2f} GiB for {pages} pages, {reduction(k, d):.1f} times smaller than 1024 vectors of width 256")
