"""Bad input through the public commands: each has its exit status and its one line, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import Bench, Run, Tried, one_line
from PIL import Image

PART = "inputs"
SMOKE = ("-p", "smoke")
QUERIES = "query_id,query,breadth,labelled_page\nq1,What is the total?,specific,two.png\nq2,Who signed?,broad,\n"
RATINGS = "query_id,page,score\nq1,one.png,0.9\nq1,two.png,0.4\nq2,two.png,0.5\nq2,one.png,0\n"


@dataclasses.dataclass
class Bad:
    """`words` with {given} for the folder of `files`, and a piece of the line that must be said."""

    words: tuple[str, ...]
    line: str
    files: dict[str, str | bytes] = dataclasses.field(default_factory=dict)
    status: int = 2
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def what(self) -> str:
        shown = [f"{name} = {str(content)[:60]!r}" for name, content in self.files.items()]
        return " ".join(["vdr", *self.words, *(f"{k}={v}" for k, v in self.environment.items())]) + "".join(
            f"; {one}" for one in shown
        )


def run(bench: Bench) -> None:
    done = bench.tried(PART)
    index = bench.work / "index"
    vectors = sorted((bench.undisturbed / "smoke" / "artefacts" / "vectors").glob("baseline*/v1/docvqa"))[0]
    if not index.exists():
        made = Run(bench.work / "index-outputs", ("hac", "index", str(vectors), str(index), "-k", "4")).finish()
        if made.wait():
            raise SystemExit(f"no index of page vectors: {made.last_line()}")
    for bad in every():
        if bad.what not in done:
            _try(bench, bad, vectors, index)


def _try(bench: Bench, bad: Bad, vectors: Path, index: Path) -> None:
    given, place = bench.work / "given", bench.work / "refused"
    for folder in (given, place):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(vectors, given / "vectors")
    shutil.copytree(index, given / "index")
    (given / "pages").mkdir()
    for number, name in enumerate(("one.png", "two.png")):
        Image.new("RGB", (60, 80), (40 * number, 90, 200)).save(given / "pages" / name)
    for name, content in {"queries.csv": QUERIES, "ratings.csv": RATINGS, **bad.files}.items():
        file = given / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = _files(given)
    ran = Run(
        place,
        [word.replace("{given}", str(given)) for word in bad.words],
        bad.environment,
        log=str(bench.work / "input"),
    ).finish()
    status, said = ran.wait(), ran.said()
    wrong = [] if status == bad.status else [f"status {status}"]
    if problem := one_line(ran):
        wrong.append(problem)
    elif bad.line not in ran.last_line():
        wrong.append(f"the line does not say {bad.line!r}")
    # A table of all that is wrong with rows of judgements is said to be there.
    if [path for path in _files(given) if not path.endswith("out/problems.csv")] != before:
        wrong.append(f"left behind: {sorted(set(_files(given)) ^ set(before))[:3]}")
    if left := [path for path in _files(place) if "/logs/" not in path and "/.lock-" not in path]:
        wrong.append(f"left behind: {left[:3]}")
    line = (
        ran.last_line()
        .replace(str(given) + os.sep, "")
        .replace(str(given), "the folder")
        .replace(str(bench.work) + os.sep, "")
    )
    happened = f"status {status}: {line[:180]}" + "".join(f" — NOT AS PROMISED: {one}" for one in wrong)
    promised = f"status {bad.status}, one line with {bad.line!r}, nothing left behind"
    bench.note(
        Tried(
            PART,
            bad.what,
            bad.words[0],
            promised,
            happened,
            not wrong,
            time.monotonic() - ran.started,
        )
    )
    if wrong:
        print(said[-600:], file=sys.stderr)


def _files(place: Path) -> list[str]:
    return sorted(path.as_posix() for path in place.rglob("*") if path.is_file()) if place.exists() else []


# -- what is bad -------------------------------------------------------------------------------------------------------
def every() -> Iterator[Bad]:
    yield from words()
    yield from settings()
    yield from profile_files()
    yield from own_pages()
    yield from released_judgements()
    yield from page_vectors()


def words() -> Iterator[Bad]:
    yield Bad(("nosuch",), "No such command 'nosuch'")
    for command in (
        ("corpus",),
        ("mine",),
        ("rate",),
        ("rows", "N"),
        ("train", "N"),
        ("encode", "N"),
        ("evaluate", "N"),
        ("table", "table1"),
        ("reproduce", "table1"),
        ("plan", "table1"),
        ("claims",),
        ("verify",),
        ("settings",),
        ("notebooks",),
        ("record",),
    ):
        yield Bad((*command, "-p", "tiny"), "unknown profile 'tiny'")
    for command in ("rows", "train", "encode", "evaluate"):
        yield Bad((command, "M", *SMOKE), "unknown arm 'M'")
        yield Bad((command, "N", "--seed", "7", *SMOKE), "no seed 7")
        yield Bad((command, *SMOKE), "Missing argument")
    yield Bad(("train", "N", "--seed", "one", *SMOKE), "--seed")
    yield Bad(("train", "N", "--recipe", "two_epochs", *SMOKE), "two_epochs")
    yield Bad(("trace", "N", "v9", *SMOKE), "unknown suite 'v9'")
    for command in ("table", "reproduce", "plan"):
        yield Bad((command, "table99", *SMOKE), "unknown table or figure 'table99'")
    yield Bad(("table", "table1", *SMOKE), "not run")
    yield Bad(("table", "table1", "--colour", *SMOKE), "No such option")
    yield Bad(("claims", *SMOKE), "not run")
    yield Bad(("notebooks", *SMOKE), "not run")
    yield Bad(("record", *SMOKE), "no record here")
    yield Bad(("settings", "trainings"), "unknown section 'trainings'")
    yield Bad(("audit", "nosuch"), "No such command")
    yield Bad(("audit", "reproduce", "wt-table5", *SMOKE), "wt-table5")
    yield Bad(("hac", "reproduce", "table99", *SMOKE), "unknown EV table or figure 'table99'")
    yield Bad(("hac", "nosuch"), "No such command")


def settings() -> Iterator[Bad]:
    for value, line in (
        ("learning_rate=0.1", "unknown setting"),
        ("training.learning_rates=0.1", "unknown setting"),
        ("training.learning_rate", "="),
        ("training.learning_rate=", "training.learning_rate"),
        ("training.learning_rate=fast", "training.learning_rate"),
        ("training.learning_rate=yes", "YAML"),
        ("training.learning_rate=-1", "training.learning_rate"),
        ("training.learning_rate=.nan", "training.learning_rate"),
        ("training.learning_rate=.inf", "training.learning_rate"),
        ("training.batch_size=0", "training.batch_size"),
        ("training.batch_size=2.5", "training.batch_size"),
        ("training.batch_size=010", "training.batch_size"),
        ("training.batch_size=1:30", "training.batch_size"),
        ("seeds=[]", "seeds"),
        ("seeds=[1,1]", "seeds"),
        ("seeds=[a]", "seeds"),
        ("recipe=twice", "recipe"),
        ("hardware.instructions=avx9", "hardware.instructions"),
        ("hardware.device=tpu", "hardware.device"),
        ("hardware.threads=0", "hardware.threads"),
        ("compression.k=0", "compression.k"),
        ("audit.annotators=1", "audit.annotators"),
        ("training.learning_rate={a: 1}", "training.learning_rate"),
        ("training.learning_rate=[", "training.learning_rate"),
    ):
        yield Bad(("corpus", *SMOKE, "--set", value), line)
    yield Bad(("reproduce", "table1", *SMOKE, "--set", "hardware.memory_gb=100000"), "hardware.memory_gb", status=5)
    yield Bad(("reproduce", "table1", *SMOKE, "--set", "hardware.disk_gb=100000"), "GB free", status=6)
    yield Bad(("corpus", *SMOKE), "", environment={"VDR_OUTPUTS": "/proc/none"})


def profile_files() -> Iterator[Bad]:
    asked = ("corpus", "-p", "{given}/own.yaml")
    for content, line in (
        ("", "own.yaml"),
        ("- a\n- b\n", "own.yaml"),
        ("extends: smoke\nseeds: [0\n", "own.yaml"),
        ("extends: nosuch\n", "nosuch"),
        ("extends: smoke\nseed: [0]\n", "seed"),
        ("extends: smoke\nseeds: none\n", "seeds"),
        ("extends: smoke\nseeds: [0, 0]\n", "seeds"),
        ("extends: smoke\ntraining: 3\n", "training"),
        ("extends: smoke\ntraining:\n  batch_size: yes\n", "own.yaml:3"),
        ("extends: smoke\ntraining:\n  batch_size: 8\n  batch_size: 9\n", "batch_size"),
        ("extends: smoke\ncorpus:\n  datasets: []\n", "datasets"),
        ("extends: smoke\ncorpus:\n  sources: {DocVQA: {pages: -1}}\n", "pages"),
        ("extends: own.yaml\n", "own.yaml"),
        (b"\xff\xfe\x00extends", "own.yaml"),
        ("extends: smoke\n\ttraining: 1\n", "own.yaml"),
        ("extends: smoke\ncorpus: {pages: !!python/object:os.system x}\n", "own.yaml"),
    ):
        yield Bad(asked, line, {"own.yaml": content})
    weights = "extends: smoke\nmodels: {teacher: 'vdr:nosuch'}\n"
    yield Bad(("rate", *asked[1:]), "no weights 'nosuch'", {"own.yaml": weights})
    yield Bad(asked, "own.yaml")
    yield Bad(("corpus", "-p", "{given}/pages"), "")


def own_pages() -> Iterator[Bad]:
    given = ("--pages", "{given}/pages", "--queries", "{given}/queries.csv")
    design = ("audit", "design", "{given}/study", *given, "--without-breadth")
    for content, line in (
        ("", "queries.csv"),
        ("query_id\nq1\n", "query"),
        ("query_id,query\nq1,a\n", "one query alone"),
        ("query_id,query\nq1,a\nq1,b\n", "stands twice"),
        ("query_id,query\nq1,a\nq2,\n", "row 2"),
        ("query_id,query\n,a\nq2,b\n", "row 1"),
        ("query_id,query,breadth\nq1,a,wide\nq2,b,\n", "breadth 'wide'"),
        ("query_id,query,labelled_page\nq1,a,no.png\nq2,b,\n", "no.png"),
        ("query_id,query\nq1,a,b,c\nq2,b\n", "queries.csv"),
        (b"query_id,query\nq1,\xff\xfe\nq2,b\n", "queries.csv"),
        ("query_id,query,query\nq1,a,a\nq2,b,b\n", "queries.csv"),
        (b"query_id,query\nq1,a\x00\nq2,b\n", "queries.csv"),
    ):
        yield Bad(design, line, {"queries.csv": content})
    rated = (*design, "--ratings", "{given}/ratings.csv")
    for row, line in (
        ("q1,one.png,2", "score '2'"),
        ("q1,one.png,high", "score 'high'"),
        ("q1,one.png,nan", "score 'nan'"),
        ("q1,one.png,²", "score"),
        ("q9,one.png,0.5", "unknown query 'q9'"),
        ("q1,no.png,0.5", "no.png"),
        ("q1,two.png,0.1", "one page twice"),
        ("q1,one.png,", "score ''"),
        ("q1,one.png,--5", "score '--5'"),
    ):
        yield Bad(rated, line, {"ratings.csv": RATINGS.replace("q1,one.png,0.9", row)})
    yield Bad(("audit", "design", "{given}/pages", *given, "--without-breadth"), "is there already")
    yield Bad(("audit", "design", "{given}/study", "--pages", "{given}/none", *given[2:]), "no such folder")
    yield Bad(("audit", "design", "{given}/study", "--pages", "{given}/index", *given[2:]), "no page images")
    yield Bad(
        ("audit", "design", "{given}/study", *given[:2], "--queries", "{given}/pages", "--without-breadth"), "pages"
    )
    yield Bad((*design, "--annotators", "0"), "--annotators")
    yield Bad((*design, "--annotators", "two"), "--annotators")
    yield Bad((*design, "--seed", "-"), "--seed")
    yield Bad((*design, "--plan", "{given}/none.yaml"), "none.yaml")
    yield Bad((*design, "--plan", "{given}/plan.yaml"), "plan.yaml", {"plan.yaml": "alpha: lots\n"})
    for content in (b"not an image", b"\x89PNG\r\n\x1a\n\x00\x00", b""):
        yield Bad(design, "two.png", {"pages/two.png": content})
    for command in ("serve", "check", "analyse", "freeze"):
        yield Bad(("audit", command, "{given}/none"), "none")
        yield Bad(("audit", command, "{given}/pages"), "pages")
    yield Bad(("audit", "serve", "{given}/pages", "--port", "70000"), "--port")


def released_judgements() -> Iterator[Bad]:
    analyse = (
        "audit",
        "analyse",
        "--judgements",
        "{given}/j.csv",
        "--pairs",
        "{given}/p.csv",
        "--queries",
        "{given}/q.csv",
        "--out",
        "{given}/out",
        "--scale",
        "relevance",
    )
    good = {
        "j.csv": "annotator,query_id,page_id,grade,seconds\na,q1,one,3,5\nb,q1,one,3,5\n",
        "p.csv": "query_id,page_id,role,rank,score\nq1,one,mined,1,0.5\n",
        "q.csv": "query_id,query,breadth,hedge\nq1,what,specific,no\n",
    }
    for name, old, new in (
        ("j.csv", "a,q1,one,3,5", "a,q1,one,7,5"),
        ("j.csv", "a,q1,one,3,5", "a,q1,two,3,5"),
        ("j.csv", "a,q1,one,3,5", "a,q1,one,3,soon"),
        ("j.csv", "b,q1", "a,q1"),
        ("p.csv", ",1,0.5", ",--5,0.5"),
        ("p.csv", ",1,0.5", ",²,0.5"),
        ("p.csv", ",1,0.5", ",1,1.5"),
        ("p.csv", "mined", "mind"),
        ("q.csv", "specific", "special"),
        ("q.csv", ",no", ",perhaps"),
        ("j.csv", "seconds", "second"),
    ):
        yield Bad(analyse, name, {**good, name: good[name].replace(old, new, 1)})
    for name in good:
        yield Bad(analyse, name, {other: text for other, text in good.items() if other != name})
    yield Bad((*analyse[:-1], "beauty"), "beauty", good)


def page_vectors() -> Iterator[Bad]:
    index = ("hac", "index", "{given}/vectors", "{given}/new")
    for option, line in (
        (("-k", "0"), "-k"),
        (("-d", "0"), "-d"),
        (("-d", "4096"), "4096"),
        (("--method", "pca"), "pca"),
        (("--w-pos", "2"), "w_pos"),
        (("--w-pos", "nan"), "w_pos"),
        (("--storage", "int4"), "int4"),
        (("--trained", "a,b"), "trained"),
        (("-k", "many"), "-k"),
    ):
        yield Bad((*index, *option), line)
    yield Bad((*index[:3], "{given}/pages"), "pages")
    yield Bad(("hac", "index", "{given}/none", "{given}/new"), "none", status=3)
    yield Bad(index, "vectors cannot be read", {"vectors/ids.json": "{"}, status=3)
    yield Bad(("hac", "search", "{given}/index", "{given}/vectors", "--depth", "0"), "--depth")
    yield Bad(("hac", "search", "{given}/none", "{given}/vectors"), "there is no index")
    yield Bad(("hac", "search", "{given}/index", "{given}/none"), "none", status=3)
    yield Bad(("hac", "export", "{given}/index", "{given}/new", "--to", "pinecone"), "pinecone")
    yield Bad(("hac", "export", "{given}/index", "{given}/queries.csv"), "queries.csv")
    yield Bad(("hac", "info", "{given}/pages"), "there is no index")
    yield Bad(("hac", "payload", "-k", "8"), "-d")
    yield Bad(("hac", "payload", "-k", "8", "-d", "x"), "-d")
