"""A study on disk: what annotators may reach (`open/`), what they may not (`sealed/`), the plan, the freeze, the links.

```
STUDY/
  open/      design.json, pages/*.png, transcripts/*.txt   the only folder the annotation page reads
  sealed/    pairs.csv, queries.csv                        ratings, ranks, labels, breadth: never opened by the server
  plan.yaml                                                what will be computed
  manifest.json                                            written by the freeze: hashes of all of the above
  links.csv                                                one secret link per annotator (not part of the freeze)
  judgements/<annotator>.jsonl                             one line per judgement, appended and flushed at once
```
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from PIL import Image

from vdr.audit.design import Design, PageSource
from vdr.audit.plan import Plan, default_plan_text, load_plan
from vdr.audit.scales import scale_named
from vdr.errors import BadInput, DamagedArtefact
from vdr.pixels import page_image
from vdr.textfiles import text_table

__all__ = ["BREADTHS", "Frozen", "freeze", "load_frozen", "make_links", "read_breadth", "read_links", "write_study"]

BREADTHS = ("specific", "broad")
FROZEN_FOLDERS = ("open", "sealed")


@dataclass(frozen=True)
class Frozen:
    """A frozen study, verified against its manifest. `pairs` and `queries` are the sealed tables."""

    path: Path
    study_id: str
    manifest: dict
    plan: Plan
    pairs: pd.DataFrame
    queries: pd.DataFrame
    orders: dict[str, list[str]]

    @property
    def simulated(self) -> bool:
        return bool(self.manifest.get("simulated", False))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    with open(beside, "w", encoding="utf-8", newline="") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(beside, path)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _bare(image: Image.Image, page: str) -> Image.Image:
    """The pixels alone, as models read them: a colour profile, a comment or a camera's note could tell pages apart."""
    pixels = page_image(image, f"page {page}")
    return Image.frombytes("RGB", pixels.size, pixels.tobytes())


def write_study(
    path: Path,
    design: Design,
    pages: PageSource,
    *,
    title: str,
    transcripts: Mapping[str, str] | None = None,
    plan_text: str | None = None,
    settings: Mapping[str, object] | None = None,
    simulated: bool = False,
) -> Path:
    """Write a study's files under `path` (which must not exist); it can be served only after `freeze`.

    `pages(page_id)` gives an image; it is written anew as PNG under an opaque name, so that neither a file name nor
    metadata inside the file tells anything. Raises `BadInput` when the folder exists or the plan is invalid.
    """
    path = Path(path)
    if path.exists():
        raise BadInput(
            "the folder exists", where=path, todo="a study is never overwritten: name another folder or remove this one"
        )
    plan_text = default_plan_text() if plan_text is None else plan_text
    load_plan(plan_text)
    scale_named(design.scale)
    work = path.with_name(f".{path.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        # Page ids are dealt in the order of the opaque item ids, which are themselves a random permutation.
        by_item = design.pairs.sort_values("item", kind="stable")
        names = {page: f"p{number + 1:04d}" for number, page in enumerate(dict.fromkeys(by_item["page_id"]))}
        (work / "open" / "pages").mkdir(parents=True)
        shown: dict[str, dict[str, object]] = {}
        for page in sorted(names):  # neighbours lie in one file; the written order tells nothing
            name = names[page]
            image = _bare(pages(page), page)
            image.save(work / "open" / "pages" / f"{name}.png", format="PNG")
            shown[name] = {"width": image.width, "height": image.height, "transcript": False}
            text = (transcripts or {}).get(page)
            if text:
                _write(work / "open" / "transcripts" / f"{name}.txt", text)
                shown[name]["transcript"] = True
        texts = dict(zip(design.queries["query_id"], design.queries["query"], strict=True))
        items = {row.item: {"query": texts[row.query_id], "page": names[row.page_id]} for row in by_item.itertuples()}
        _write(
            work / "open" / "design.json",
            _json(
                {
                    "title": title,
                    "scale": design.scale,
                    "items": items,
                    "pages": shown,
                    "orders": design.orders,
                    "simulated": simulated,
                }
            ),
        )
        _write(work / "sealed" / "pairs.csv", design.pairs.to_csv(index=False))
        _write(work / "sealed" / "queries.csv", design.queries.to_csv(index=False))
        _write(work / "plan.yaml", plan_text)
        draft = {
            "kind": design.kind,
            "scale": design.scale,
            "title": title,
            "seed": design.seed,
            "notes": design.notes,
            "settings": dict(settings or {}),
            "simulated": simulated,
        }
        _write(work / "draft.json", _json(draft))
        os.chmod(work / "sealed", 0o700)
        os.rename(work, path)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return path


def _with_breadth(queries: pd.DataFrame, breadth: Mapping[str, str], where: Path | str) -> pd.DataFrame:
    unknown = sorted(set(breadth) - set(queries["query_id"]))
    if unknown:
        raise BadInput(f"query {unknown[0]!r} is not in the study", where=where)
    for query, value in breadth.items():
        if value not in BREADTHS:
            raise BadInput(f"query {query!r}: breadth {value!r}", where=where, todo="write specific or broad")
    queries = queries.copy()
    queries["breadth"] = [
        breadth.get(query, old) for query, old in zip(queries["query_id"], queries["breadth"], strict=True)
    ]
    return queries


def read_breadth(path: Path) -> dict[str, str]:
    """A CSV of query_id, breadth (specific | broad; blank = not classified yet). Raises `BadInput`."""
    frame = text_table(path, ("query_id", "breadth"))
    if frame["query_id"].duplicated().any():
        raise BadInput(f"query {frame['query_id'][frame['query_id'].duplicated()].iloc[0]!r} stands twice", where=path)
    return {q: b.strip() for q, b in zip(frame["query_id"], frame["breadth"], strict=True) if b.strip()}


def freeze(
    path: Path, *, breadth: Mapping[str, str] | None = None, without_breadth: bool = False, at: str | None = None
) -> Frozen:
    """Freeze a study: take in the specific/broad classification, hash everything, write the manifest.

    Raises `BadInput` when the study is frozen already, a judgement exists, or a query is unclassified (unless
    `without_breadth`, in which case the analysis can never report the split for this study). `at` replaces the time of
    day (a *simulated* study has none, and gives the same bytes each time).
    """
    path = Path(path)
    if (path / "manifest.json").exists():
        raise BadInput(
            "the study is frozen already", where=path / "manifest.json", todo="design a new study to change anything"
        )
    if not (path / "draft.json").exists():
        raise BadInput("this folder holds no study", where=path, todo="make one with `vdr audit design`")
    if any((path / "judgements").glob("*.jsonl")):
        raise BadInput("judgements exist already", where=path / "judgements", todo="freeze before anybody grades")
    queries = _read_sealed(path / "sealed" / "queries.csv")
    if breadth:
        queries = _with_breadth(queries, breadth, "the breadth file")
    open_queries = queries["query_id"][~queries["breadth"].isin(BREADTHS)].tolist()
    needs_breadth = json.loads((path / "draft.json").read_text())["scale"] == "relevance"
    if needs_breadth and open_queries and not without_breadth:
        raise BadInput(
            f"{len(open_queries)} queries are not classified specific or broad, the first is {open_queries[0]!r}",
            where=path,
            todo="give --breadth FILE (query_id,breadth), or --without-breadth to give the split up for this study",
        )
    if without_breadth:
        queries["breadth"] = ""
    _write(path / "sealed" / "queries.csv", queries.to_csv(index=False))
    draft = json.loads((path / "draft.json").read_text(encoding="utf-8"))
    files = {
        str(file.relative_to(path)): _sha256(file)
        for folder in FROZEN_FOLDERS
        for file in sorted((path / folder).rglob("*"))
        if file.is_file()
    }
    files["plan.yaml"] = _sha256(path / "plan.yaml")
    body = {**draft, "files": files, "breadth_frozen": bool(needs_breadth and not without_breadth)}
    study_id = hashlib.sha256(_json(body).encode("utf-8")).hexdigest()[:16]
    body |= {"study_id": study_id, "frozen_at": at or datetime.now(UTC).isoformat(timespec="seconds")}
    _write(path / "manifest.json", _json(body))
    (path / "draft.json").unlink()
    return load_frozen(path)


def _read_sealed(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(
        path, dtype={"query_id": str, "page_id": str, "item": str}, keep_default_na=False, na_values={"score": [""]}
    )
    return frame


def load_frozen(path: Path, *, open_only: bool = False) -> Frozen:
    """Load and verify a frozen study. With `open_only` (the server) the sealed tables are neither read nor hashed.

    Raises `BadInput` for an unfrozen study, `DamagedArtefact` when a file differs from the manifest.
    """
    path = Path(path)
    manifest_path = path / "manifest.json"
    if not manifest_path.exists():
        todo = (
            "freeze it with `vdr audit freeze`"
            if (path / "draft.json").exists()
            else "make one with `vdr audit design`"
        )
        raise BadInput("no frozen study here", where=path, todo=todo)
    manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
    stated = {k: v for k, v in manifest.items() if k not in ("study_id", "frozen_at")}
    if hashlib.sha256(_json(stated).encode("utf-8")).hexdigest()[:16] != manifest["study_id"]:
        raise DamagedArtefact("the manifest was changed after the freeze", where=manifest_path)
    checked = {
        name: digest for name, digest in manifest["files"].items() if not (open_only and name.startswith("sealed/"))
    }
    for name, digest in checked.items():
        file = path / name
        if not file.is_file() or _sha256(file) != digest:
            state = "was changed after" if file.is_file() else "is missing since"
            raise DamagedArtefact(
                f"the file {state} the freeze", where=file, todo="restore it: grades were given to the frozen study"
            )
    design = json.loads((path / "open" / "design.json").read_text(encoding="utf-8"))
    empty = pd.DataFrame()
    return Frozen(
        path,
        manifest["study_id"],
        manifest,
        load_plan((path / "plan.yaml").read_text(encoding="utf-8"), where=path / "plan.yaml"),
        empty if open_only else _read_sealed(path / "sealed" / "pairs.csv"),
        empty if open_only else _read_sealed(path / "sealed" / "queries.csv"),
        design["orders"],
    )


def make_links(study: Frozen, *, renew: bool = False) -> dict[str, str]:
    """One secret (128 random bits) per annotator in `links.csv`, readable by its owner alone; kept unless `renew`."""
    file = study.path / "links.csv"
    if file.exists() and not renew:
        return read_links(study)
    tokens = {annotator: secrets.token_urlsafe(16) for annotator in study.orders}
    _write(file, "annotator,secret\n" + "".join(f"{name},{token}\n" for name, token in tokens.items()))
    os.chmod(file, 0o600)
    return tokens


def read_links(study: Frozen) -> dict[str, str]:
    """Annotator → secret. Raises `BadInput` where the file does not fit the study."""
    file = study.path / "links.csv"
    with open(file, encoding="utf-8", newline="") as handle:
        tokens = {row["annotator"]: row["secret"] for row in csv.DictReader(handle)}
    if set(tokens) != set(study.orders) or len(set(tokens.values())) != len(tokens):
        raise BadInput(
            "the links do not fit the study's annotators", where=file, todo="remove it to have new links made"
        )
    return tokens
