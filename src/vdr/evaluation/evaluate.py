"""Evaluate one checkpoint: search every data set, write its run file, score it, average per suite (WT §3, Appendix D).

Output of :func:`evaluate` in its directory: `<suite>/<dataset>.trec.gz` and `scores.json`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from vdr.errors import BadInput, DamagedArtefact
from vdr.evaluation.metrics_wt import (
    Gain,
    agreement_with_pytrec_eval,
    check_qrels,
    mean_over_queries,
    ndcg_per_query,
    tie_bounds,
)
from vdr.evaluation.run_files import TIE_RULE, Run, read_run, write_run
from vdr.evaluation.search import search
from vdr.models.vectors import VectorSet, read_vectors
from vdr.progress import track

__all__ = ["Dataset", "evaluate", "load_scores", "macro_average", "score_run"]

AGREEMENT = 1e-6  # pytrec_eval works in double precision; its logarithm differs from numpy's in the last digits


class Dataset(Protocol):
    """What evaluation needs of :class:`vdr.corpus.access.SuiteDataset`."""

    suite: str
    name: str
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]

    @property
    def pages(self) -> Any: ...


def score_run(
    run: Run,
    qrels: Mapping[str, Mapping[str, int]],
    *,
    k: int,
    gain: Gain = "linear",
    cross_check: bool = True,
    where: str = "",
) -> dict[str, Any]:
    """Score one data set's run: {"ndcg_at_k" × 100, "queries", "queries_without_hits", "ties", …}.

    With `cross_check` every query is compared with pytrec_eval (linear gains) and a disagreement above 1e-6 raises
    DamagedArtefact. Raises BadInput on qrels that cannot be scored.
    """
    check_qrels(qrels, sorted(qrels), None, where)
    strangers = sorted(set(run.rankings) - set(qrels))
    if strangers:
        raise BadInput(f"the run answers {len(strangers)} queries without qrels, e.g. {strangers[0]!r}", where=where)
    scores = ndcg_per_query(run, qrels, k, gain)
    low, high, touched = tie_bounds(run, qrels, k, gain)
    ties = sum(a[1] == b[1] for hits in run.rankings.values() for a, b in pairwise(hits))
    result: dict[str, Any] = {
        f"ndcg_at_{k}": mean_over_queries(scores),
        "queries": len(qrels),
        "queries_without_hits": sum(not run.rankings.get(query) for query in qrels),
        "ties": ties,
        "queries_where_tie_order_matters": touched,
        "tie_bounds": [low, high],
    }
    if cross_check:
        difference = agreement_with_pytrec_eval(run, qrels, k)
        if not difference <= AGREEMENT:
            what = f"nDCG@{k} differs from pytrec_eval's by {difference:.3g}"
            raise DamagedArtefact(what, where=where, todo="report it: this should not happen")
        result["pytrec_eval_max_difference"] = difference
    return result


def macro_average(datasets: Mapping[str, Mapping[str, Any]], key: str) -> float:
    """Unweighted mean of a suite's data sets, in name order. Raises BadInput when the suite is empty."""
    if not datasets:
        raise BadInput("the suite has no data sets", todo="check the suite's files")
    return sum(float(datasets[name][key]) for name in sorted(datasets)) / len(datasets)


def _same_items(found: Sequence[str], wanted: Collection[str], kind: str, where: str) -> None:
    if set(found) != set(wanted) or len(found) != len(wanted):
        odd = sorted(set(found) ^ set(wanted))
        what = f"vectors hold {len(found)} {kind}, the suite {len(wanted)}" + (f", e.g. {odd[0]!r}" if odd else "")
        raise DamagedArtefact(what, where=where, todo="encode this suite again")


def evaluate(
    vectors: Path | Mapping[tuple[str, str], tuple[VectorSet, VectorSet]],
    datasets: Sequence[Dataset],
    out: Path,
    *,
    tag: str,
    depth: int = 100,
    k: int = 5,
    gain: Gain = "linear",
    in_domain: Mapping[str, bool | Collection[str]] | None = None,
    cross_check: bool = True,
    measures: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Search, score and write every data set; returns what `scores.json` holds.

    vectors: directory with `<suite>/<dataset>/` as :func:`vdr.models.vectors.write_vectors` leaves them, or the
    (pages, queries) pairs themselves by (suite, data set). tag: the run's name in the run files. in_domain: per suite
    True, False or the names of its in-domain data sets (WT Appendix C); flagged in the output, all sets enter the
    suite's average. Raises BadInput on an empty list of data sets, on qrels that cannot be scored and on non-finite
    scores; DamagedArtefact when vectors belong to another corpus.
    """
    if not datasets:
        raise BadInput("there is no data set to evaluate", where="suites", todo="check the profile's suites")
    flags = dict(in_domain or {})
    suites: dict[str, Any] = {}
    for data in track(list(datasets), f"evaluate {tag}", "data set"):
        where = f"{data.suite}/{data.name}"
        page_ids = [str(page) for page in data.pages.ids]
        check_qrels(data.qrels, list(data.queries), page_ids, where)
        if isinstance(vectors, Mapping):
            pages, queries = vectors[(data.suite, data.name)]
        else:
            pages, queries = read_vectors(Path(vectors) / data.suite / data.name)
        _same_items(pages.ids, page_ids, "pages", where)
        _same_items(queries.ids, data.queries, "queries", where)
        found = search(queries, pages, depth=depth, tag=tag)
        written = write_run(Path(out) / data.suite / f"{data.name}.trec.gz", found.run)
        entry = score_run(found.run, data.qrels, k=k, gain=gain, cross_check=cross_check, where=where)
        entry |= {"pages": len(pages), "cut_in_tie": found.cut_in_tie, "run_file": written}
        flag = flags.get(data.suite, False)
        entry["in_domain"] = flag if isinstance(flag, bool) else data.name in flag
        sets = suites.setdefault(data.suite, {"datasets": {}})["datasets"]
        if data.name in sets:
            raise BadInput(f"data set {where} is given twice", where="suites")
        sets[data.name] = entry
    key = f"ndcg_at_{k}"
    for suite in suites.values():
        sets = suite["datasets"]
        suite[key] = macro_average(sets, key)
        suite["in_domain"] = (
            "all"
            if all(s["in_domain"] for s in sets.values())
            else ("some" if any(s["in_domain"] for s in sets.values()) else "none")
        )
    scores = {
        "metric": f"nDCG@{k}",
        "unit": "× 100, mean over queries; suites are unweighted means over data sets",
        "gain": gain,
        "queries_without_hits": "count 0 (trec_eval -c)",
        "tie_rule": TIE_RULE,
        "tag": tag,
        "depth": depth,
        "cutoff": k,
        "suites": suites,
    }
    text = json.dumps(scores, indent=1, sort_keys=True, ensure_ascii=False)
    (Path(out) / "scores.json").write_text(text + "\n", encoding="utf-8")
    if measures is not None:
        measures |= {f"{name}.{key}": suite[key] for name, suite in sorted(suites.items())}
        measures["ties"] = sum(s["ties"] for suite in suites.values() for s in suite["datasets"].values())
    return scores


def load_scores(directory: Path, *, verify_runs: bool = False) -> dict[str, Any]:
    """Read `scores.json`; with `verify_runs` also every run file, against its recorded hash. DamagedArtefact on a
    fault."""
    path = Path(directory) / "scores.json"
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        suites = scores["suites"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedArtefact(
            f"scores cannot be read ({error})", where=path, todo="run the evaluation again"
        ) from error
    if verify_runs:
        for suite, content in suites.items():
            for name, entry in content["datasets"].items():
                read_run(Path(directory) / suite / f"{name}.trec.gz", sha256=entry["run_file"]["sha256"])
    return scores
