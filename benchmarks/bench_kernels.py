"""Kernels against their peers: parity asserted first, then both timed in turn, in one process, on the same arrays.

Each work adds one row a peer to benchmarks/results/kernels.json: {work, ours_ms, peer, peer_ms, ratio, limit_ms, parity,
hardware, …}, one set of rows for each instruction level (`VDR_INSTRUCTIONS`), to which both sides keep: at the declared level torch
and NumPy are held to it too, at `native` everybody uses all that the processor has. Times are medians of interleaved
repetitions; wall clock decides, and CPU seconds (all threads) stand beside it, because on a shared machine wall clock also
measures the neighbours. `limit_ms` is what this machine's own arithmetic or memory speed, measured in the same run, would allow.

    benchmarks/run_kernels.sh [WORK ...] [--missing] [--plots]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vdr import instructions  # isort: skip  (before NumPy and torch load)

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "kernels.json"
GOALS = {"maxsim_fp32": 3.0, "maxsim_bf16": 4.0, "ward": 4.0, "ward_vs_colpali": 40.0, "hac_search": 10.0,
         "train_head_memory": 10.0, "metrics": 1.0}
#: maxsim_bf16 where the processor multiplies bf16 itself: torch's matmul uses that as well.
OWN_BF16_GOAL = 3.0
#: Works whose goal is held against some of the peers that stand beside it.
GOAL_PEERS = {"ward": ["scipy"], "metrics": ["ranx"]}

Timing = dict[str, Any]


def interleaved(calls: dict[str, Callable[[], Any]], repeats: int, budget_s: float = 40.0) -> dict[str, Timing]:
    """Medians and spread in ms, wall and CPU, of calls made in turn; stops early when the budget is spent."""
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    began = time.perf_counter()
    for done in range(repeats):
        for name, call in calls.items():
            time.sleep(0.01)  # the threads of the call before may spin for a while, which would take a core from this one
            w, c = time.perf_counter(), time.process_time()
            call()
            wall[name].append(1e3 * (time.perf_counter() - w))
            cpu[name].append(1e3 * (time.process_time() - c))
        if done >= 2 and time.perf_counter() - began > budget_s:
            break
    return {name: {"ms": float(np.median(wall[name])), "min_ms": min(wall[name]), "cpu_ms": float(np.median(cpu[name])),
                   "repeats": len(wall[name])} for name in calls}


def hardware() -> dict[str, Any]:
    """Processor, cores, load and versions: what a time means nothing without."""
    name = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
        flags = next((line for line in lines if line.startswith("flags")), "")
        name += " (" + ", ".join(f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {f} " in f"{flags} ") + ")"
    return {"processor": name, "instructions": instructions.in_force(), "cores": len(os.sched_getaffinity(0)),
            "load_1min": round(os.getloadavg()[0], 1),
            "torch": torch.__version__, "numpy": np.__version__, "threads": os.environ["OMP_NUM_THREADS"],
            "date": time.strftime("%Y-%m-%d")}


_limits: dict[str, float] = {}


def product_gflops(dtype: torch.dtype) -> float:
    """GFLOP/s of a large matrix product of that type."""
    a, speeds = torch.randn(1536, 1536).to(dtype), []
    for _ in range(4):
        t = time.perf_counter()
        a @ a
        speeds.append(2 * 1536**3 / (time.perf_counter() - t) / 1e9)
    return max(speeds)


def machine_limits() -> dict[str, float]:
    """GFLOP/s of a large fp32 product and GB/s of a large sum, measured once a run: the yardsticks of `limit_ms`."""
    if not _limits:
        block, bytes_ = torch.randn(64 << 20), []
        for _ in range(4):
            t = time.perf_counter()
            block.sum()
            bytes_.append(block.numel() * 4 / (time.perf_counter() - t) / 1e9)
        _limits.update(gflops=product_gflops(torch.float32), gbytes=max(bytes_))
    return _limits


def row(work: str, peer: str, ours: Timing, theirs: Timing, parity: str, limit_ms: float | None, **more: Any) -> dict[str, Any]:
    return {"work": work, "ours_ms": ours["ms"], "peer": peer, "peer_ms": theirs["ms"], "ratio": theirs["ms"] / ours["ms"],
            "limit_ms": limit_ms, "parity": parity, "hardware": hardware(), "goal_ratio": more.pop("goal_ratio", GOALS.get(work)),
            "cpu_ratio": theirs["cpu_ms"] / ours["cpu_ms"] if ours["cpu_ms"] > 0 else None, "ours": ours, "theirs": theirs, **more}


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


# -- MaxSim ------------------------------------------------------------------------------------------------------------
PAGES, LP, LQ, D = 1000, 700, 20, 128


def maxsim_fp32() -> list[dict[str, Any]]:
    """One 20×128 query, 1,000 pages of 700×128, fp32 in and out."""
    import fast_maxsim
    import maxsim_cpu

    from vdr.kernels.maxsim import maxsim_search

    q, p = unit(LQ, D), unit(PAGES * LP, D, seed=1)
    offsets, nq, np3 = np.arange(PAGES + 1) * LP, q.numpy(), p.numpy().reshape(PAGES, LP, D)
    ragged = list(np3)
    ours = lambda: maxsim_search(q, [0, LQ], p, offsets).numpy()[0]  # noqa: E731
    peers: dict[str, Callable[[], Any]] = {
        "maxsim-cpu": lambda: maxsim_cpu.maxsim_scores(nq, np3),
        "fast-maxsim": lambda: fast_maxsim.maxsim_scores(nq, np3),
        "fast-maxsim (ragged)": lambda: fast_maxsim.maxsim_scores_variable(nq, ragged),
        "torch matmul": lambda: (p @ q.T).view(PAGES, LP, LQ).amax(1).sum(1).numpy(),
        "torch einsum": lambda: torch.einsum("qd,npd->nqp", q, p.view(PAGES, LP, D)).amax(2).sum(1).numpy(),
    }
    want = ours()
    errors = {name: float(np.abs(np.asarray(call()) - want).max()) for name, call in peers.items()}
    assert max(errors.values()) < 1e-4, errors
    times = interleaved({"ours": ours, **peers}, 7)
    limits, work = machine_limits(), 2 * LQ * D * LP * PAGES
    limit = max(work / limits["gflops"] / 1e6, p.numel() * 4 / limits["gbytes"] / 1e6)
    kind = "arithmetic" if work / limits["gflops"] > p.numel() * 4 / limits["gbytes"] else "memory"
    return [row("maxsim_fp32", name, times["ours"], times[name], f"max score difference {errors[name]:.1e}", limit,
                limit_kind=kind, **limits) for name in peers]


def maxsim_bf16() -> list[dict[str, Any]]:
    """Query and pages in bf16; products are summed in fp32, and formed by the processor itself where the level has that (`vdr_pairs`)."""
    from vdr.kernels import native
    from vdr.kernels.maxsim import maxsim_search

    q, p = unit(LQ, D), unit(PAGES * LP, D, seed=1)
    qb, pb = q.bfloat16(), p.bfloat16()
    offsets = np.arange(PAGES + 1) * LP
    ours = lambda: maxsim_search(qb, [0, LQ], pb, offsets)[0]  # noqa: E731
    peers = {
        "torch bf16 matmul": lambda: (pb @ qb.T).view(PAGES, LP, LQ).amax(1).float().sum(1),
        "torch bf16 einsum": lambda: torch.einsum("qd,npd->nqp", qb, pb.view(PAGES, LP, D)).amax(2).float().sum(1),
    }
    exact = maxsim_search(q, [0, LQ], p, offsets)[0]
    got = ours()
    error = float((got - exact).abs().max())
    same = torch.equal(got.topk(10).indices, maxsim_search(qb.float(), [0, LQ], pb.float(), offsets)[0].topk(10).indices)
    # against unrounded pages the order may only change where scores lie closer than the rounding
    cut = exact.topk(10).values[-1]
    assert error <= 1e-2, error
    assert same
    assert (exact[got.topk(10).indices] >= cut - 2 * error).all()
    overlap = len(set(got.topk(10).indices.tolist()) & set(exact.topk(10).indices.tolist()))
    times = interleaved({"ours": ours, **peers}, 7, budget_s=30)
    library = native.library()
    assert library is not None
    own_products = bool(library.vdr_pairs())
    limits, work = machine_limits(), 2 * LQ * D * LP * PAGES
    # Its own products are as fast as a bf16 matrix product, which is beyond the fp32 one.
    gflops = product_gflops(torch.bfloat16) if own_products else limits["gflops"]
    limit = max(work / gflops / 1e6, p.numel() * 2 / limits["gbytes"] / 1e6)
    parity = f"score error against fp32 {error:.1e}; top 10 as by fp32 products of the same vectors; of fp32 vectors {overlap}/10"
    return [row("maxsim_bf16", name, times["ours"], times[name], parity, limit, own_products=own_products,
                goal_ratio=OWN_BF16_GOAL if own_products else GOALS["maxsim_bf16"], **limits | {"gflops": gflops}) for name in peers]


# -- Ward --------------------------------------------------------------------------------------------------------------
def ward_page(seed: int, n: int = 1024, d: int = 64) -> np.ndarray:
    """A page-like matrix: forty regions of similar vectors, unit rows."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40, d))[rng.integers(0, 40, n)] + 0.5 * rng.standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def ward() -> list[dict[str, Any]]:
    """1024×64 → 32, one page at a time, one core."""
    import fastcluster
    from scipy.cluster.hierarchy import fcluster, linkage
    from sklearn.cluster import AgglomerativeClustering

    from vdr.kernels.ward import cut, ward_labels

    n, k = 1024, 32
    for seed in range(5):
        x = ward_page(seed)
        for method in (linkage, fastcluster.linkage):
            assert np.array_equal(ward_labels(x, k), cut(method(x.astype(np.float64), "ward"), n, k))
    state = {"i": 0}
    pages = [ward_page(100 + i) for i in range(8)]
    doubles = [page.astype(np.float64) for page in pages]

    def take(of: Sequence[np.ndarray]) -> np.ndarray:
        state["i"] += 1
        return of[state["i"] % len(of)]

    peers: dict[str, Callable[[], Any]] = {
        "scipy": lambda: fcluster(linkage(take(doubles), "ward"), k, "maxclust"),
        "fastcluster": lambda: fcluster(fastcluster.linkage(take(doubles), "ward"), k, "maxclust"),
        "scikit-learn": lambda: AgglomerativeClustering(k, linkage="ward").fit(take(doubles)).labels_,
    }
    times = interleaved({"ours": lambda: ward_labels(take(pages), k), **peers}, 15)
    hour = 3.6e6 / times["ours"]["ms"]
    limit = n * n / 2 * 64 * 2 / (machine_limits()["gflops"] / float(os.environ["OMP_NUM_THREADS"])) / 1e6
    return [row("ward", name, times["ours"], times[name], "partitions identical on 5 pages", limit, pages_an_hour_a_core=hour,
                limit_note="distances alone, one core, at the speed of a matrix product") for name in peers]


def ward_vs_colpali() -> list[dict[str, Any]]:
    """Against colpali-engine's pooler, which clusters rows of a distance matrix: other partitions, the same 32 vectors a page."""
    import importlib.util
    from types import ModuleType

    from vdr.compression.pooling import Pooling, pool_page

    spec = importlib.util.find_spec("colpali_engine")
    package = ModuleType("colpali_engine")  # its own __init__ imports every model, and torchvision with them
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["colpali_engine"] = package
    from colpali_engine.compression.token_pooling import HierarchicalTokenPooler

    x = ward_page(0)
    tensor = torch.from_numpy(x)
    pooler = HierarchicalTokenPooler()
    theirs = lambda: pooler.pool_embeddings([tensor], pool_factor=32)  # noqa: E731
    pooled = theirs()
    pooled = (pooled[0] if isinstance(pooled, tuple) else pooled)[0]
    twin = pool_page(x, (32, 32), Pooling("colpali", 64, 32)).centroids
    # same method through our kernel: the same set of centroids, whatever their order
    gap = float((torch.cdist(torch.from_numpy(twin.astype(np.float32)), pooled).min(1).values).max())
    assert gap < 2e-3, gap
    times = interleaved({"ours": lambda: pool_page(x, (32, 32), Pooling("hac", 64, 32)), "theirs": theirs,
                         "same method": lambda: pool_page(x, (32, 32), Pooling("colpali", 64, 32))}, 5)
    rows = [row("ward_vs_colpali", "colpali-engine HierarchicalTokenPooler", times["ours"], times["theirs"],
                f"HAC whole (features, Ward, centroids) against the pooler whole; our colpali-style twin's centroids lie within {gap:.0e}",
                None)]
    rows.append(row("ward_colpali_method", "colpali-engine HierarchicalTokenPooler", times["same method"], times["theirs"],
                    f"the pooler's own method through our Ward: centroids within {gap:.0e}", None))
    return rows


# -- search ------------------------------------------------------------------------------------------------------------
def hac_search() -> list[dict[str, Any]]:
    """1,000 pages: HAC d64 K32 against raw d64 with 1024 vectors, fp16 indexes, one 20-vector query."""
    from vdr.kernels.maxsim import maxsim_search

    q, raw, hac = unit(LQ, 64), unit(PAGES * 1024, 64, seed=1).half(), unit(PAGES * 32, 64, seed=2).half()
    at_raw, at_hac = np.arange(PAGES + 1) * 1024, np.arange(PAGES + 1) * 32
    calls = {"ours": lambda: maxsim_search(q, [0, LQ], hac, at_hac), "raw": lambda: maxsim_search(q, [0, LQ], raw, at_raw)}
    for stored, offsets in ((raw, at_raw), (hac, at_hac)):
        length = int(offsets[1])
        got = maxsim_search(q, [0, LQ], stored[: 50 * length], offsets[:51])[0]
        want = (stored[: 50 * length].float() @ q.T).view(50, length, LQ).amax(1).sum(1)
        assert (got - want).abs().max() < 1e-4
    pick = np.arange(100) * 10  # the pages that a first stage hands on: 100 of 1,000

    def cascade() -> None:
        maxsim_search(q, [0, LQ], hac, at_hac)
        maxsim_search(q, [0, LQ], raw, at_raw, pages=pick)

    times = interleaved({**calls, "cascade": cascade}, 15)
    memory = (raw.numel() + 0.0) / hac.numel()
    limits = machine_limits()
    limit = max(hac.numel() * 2 / limits["gbytes"], 2 * LQ * hac.numel() / limits["gflops"]) / 1e6
    return [row("hac_search", "our raw d64 search", times["ours"], times["raw"], "both equal torch within 1e-4 on 50 pages", limit,
                memory_ratio=memory),
            row("hac_cascade", "our raw d64 search", times["cascade"], times["raw"], "HAC on all, raw on 100 pages", None)]


# -- training head -----------------------------------------------------------------------------------------------------
HEAD = {"b": 32, "c": 4, "lq": 32, "lp": 768, "d": 128}


def memory_kib(field: str) -> int:
    """VmRSS (memory held now) or VmHWM (its peak) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)))


def head_child(kind: str, shape: str) -> None:
    """One forward and backward in a process of its own: prints seconds and the peak of memory above inputs and gradients."""
    b, c, lq, lp, d = HEAD.values()
    q = unit(b, lq, d).requires_grad_()
    p = (unit(b * c, lp, d, seed=1) if shape == "in_batch" else unit(b, c, lp, d, seed=1)).requires_grad_()

    def step() -> torch.Tensor:
        if kind == "ours":
            from vdr.kernels.maxsim import maxsim

            scores = maxsim(q, p, reduce="mean")
        elif shape == "in_batch":
            scores = torch.einsum("bid,pjd->bpij", q, p).amax(3).mean(2)
        else:
            scores = torch.einsum("bid,bcjd->bcij", q, p).amax(3).mean(2)
        loss = torch.nn.functional.cross_entropy(scores / 0.02, torch.arange(b) * (c if shape == "in_batch" else 0))
        loss.backward()
        return loss

    # the gradients themselves are allocated beforehand: both sides need them
    q.grad, p.grad = torch.zeros_like(q), torch.zeros_like(p)
    maxsim_warm = unit(1, 2, 8).requires_grad_()
    if kind == "ours":
        from vdr.kernels.maxsim import maxsim

        maxsim(maxsim_warm, unit(1, 2, 8)).sum().backward()
    torch.einsum("bid,pjd->bpij", maxsim_warm, unit(1, 2, 8)).amax(3).sum().backward()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew: imports have had theirs
    before = memory_kib("VmRSS")
    times = []
    for _ in range(3):
        t = time.perf_counter()
        c0 = time.process_time()
        loss = step()
        times.append((1e3 * (time.perf_counter() - t), 1e3 * (time.process_time() - c0)))
    peak = memory_kib("VmHWM")
    times.sort()
    print(json.dumps({"ms": times[1][0], "min_ms": times[0][0], "cpu_ms": times[1][1], "repeats": 3, "extra_mib": (peak - before) / 1024,
                      "loss": float(loss), "grad": float(q.grad.abs().sum()), "grad_p": float(p.grad.abs().sum())}))


def train_head_memory() -> list[dict[str, Any]]:
    """B=32, C=4, 32 query and 768 page vectors, fp32: forward and backward; memory above inputs and gradients.

    In-batch (every query against all 128 candidate pages) is where the score tensor hurts, and what the goal is held against; the
    per-query-candidate shape stands beside it.
    """
    rows = []
    for shape in ("in_batch", "candidates"):
        found = {}
        for kind in ("ours", "einsum"):
            command = [sys.executable, str(Path(__file__)), "--child", kind, shape]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
            found[kind] = json.loads(done.stdout.splitlines()[-1])
        ours, theirs = found["ours"], found["einsum"]
        gap = max(abs(ours[name] / theirs[name] - 1) for name in ("loss", "grad", "grad_p"))
        assert gap < 1e-4, found
        memory = theirs["extra_mib"] / max(ours["extra_mib"], 1.0)  # below 1 MiB it is the allocator's doing
        made = row("train_head_memory" if shape == "in_batch" else "train_head_candidates", "torch einsum", ours, theirs,
                   f"loss and summed gradients agree to {gap:.0e}", None, memory_ratio=memory, ours_mib=ours["extra_mib"],
                   peer_mib=theirs["extra_mib"], shape=HEAD)
        made["time_ratio"], made["ratio"] = made["ratio"], memory if shape == "in_batch" else made["ratio"]
        rows.append(made)
    return rows


# -- metrics -----------------------------------------------------------------------------------------------------------
def metrics() -> list[dict[str, Any]]:
    """EV's twelve metrics over 14,514 queries × 100 pages, from dictionaries; the peers' conversion counts, their compilation not."""
    import pytrec_eval
    import ranx

    from vdr.evaluation.metrics import score_task

    rng = np.random.default_rng(0)
    qrels, run = {}, {}
    for i in range(14514):
        pages = (rng.integers(20000) + 199 * np.arange(100)) % 20000
        run[f"q{i}"] = {f"p{page}": float(score) for page, score in zip(pages, rng.random(100), strict=True)}
        qrels[f"q{i}"] = {f"p{pages[j]}": int(g) for j, g in zip(rng.choice(100, 4, replace=False), (1, 1, 2, 1), strict=True)}
    names = [f"{m}@{k}" for k in (1, 5, 10) for m in ("ndcg_burges", "recall", "map", "mrr")]
    trec = {f"{m}.1,5,10" for m in ("ndcg_cut", "recall", "map_cut")} | {"recip_rank"}
    peers: dict[str, Callable[[], Any]] = {
        "ranx": lambda: ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), names),
        "pytrec_eval": lambda: pytrec_eval.RelevanceEvaluator(qrels, trec).evaluate(run),
    }
    ours = score_task(run, qrels).means
    theirs = peers["ranx"]()
    gap = max(abs(ours[f"{mine}@{k}"] - 100 * float(theirs[f"{other}@{k}"])) for k in (1, 5, 10)
              for mine, other in (("ndcg", "ndcg_burges"), ("recall", "recall"), ("mrr", "mrr")))
    assert gap < 1e-6, gap
    times = interleaved({"ours": lambda: score_task(run, qrels), **peers}, 3, budget_s=30)
    rows = [row("metrics", name, times["ours"], times[name], f"nDCG, Recall, MRR agree with ranx to {gap:.0e} (MAP is defined otherwise)",
                None) for name in peers]
    made_qrels, made_run = ranx.Qrels(qrels), ranx.Run(run)
    warm = interleaved({"ranx": lambda: ranx.evaluate(made_qrels, made_run, names)}, 3)
    rows[0]["peer_ms_without_conversion"] = warm["ranx"]["ms"]
    return rows


WORKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "maxsim_fp32": maxsim_fp32, "maxsim_bf16": maxsim_bf16, "ward": ward, "ward_vs_colpali": ward_vs_colpali,
    "hac_search": hac_search, "train_head_memory": train_head_memory, "metrics": metrics,
}


def note(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: a table, then every goal with whether it is met, by how much, and what limits it."""
    lines = ["# Kernels against their peers", "",
             "Written by `benchmarks/run_kernels.sh`. Medians of interleaved repetitions in one process, parity asserted first.",
             "`CPU ratio` compares processor seconds of all threads: on a machine with other work it is the fairer figure.",
             "At a declared level our kernels, NumPy and torch are held to it; at `native` all use what the processor has.",
             "For `train_head_memory` the ratio is of memory above inputs and gradients; its time ratio stands in the JSON file."]
    for level in dict.fromkeys(r["hardware"]["instructions"] for r in rows):
        lines += ["", f"## {level}", "", *_level([r for r in rows if r["hardware"]["instructions"] == level])]
    return "\n".join(lines) + "\n"


def _level(rows: list[dict[str, Any]]) -> list[str]:
    """One instruction level: its rows, its goals, its machine."""
    lines = ["| work | peer | ours (ms) | peer (ms) | ratio | CPU ratio | limit (ms) | load | parity |",
             "|---|---|---:|---:|---:|---:|---:|---:|---|"]
    for r in rows:
        limit = f"{r['limit_ms']:.1f}" if r["limit_ms"] else ""
        cpu = f"{r['cpu_ratio']:.1f}" if r.get("cpu_ratio") else ""
        cells = [r["work"], r["peer"], f"{r['ours_ms']:.2f}", f"{r['peer_ms']:.2f}", f"{r['ratio']:.1f}", cpu, limit,
                 str(r["hardware"]["load_1min"]), r["parity"]]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for work in GOALS:
        own = [r for r in rows if r["work"] == work and r["peer"] in GOAL_PEERS.get(work, [r["peer"]])]
        if not own:
            continue
        worst = min(own, key=lambda r: r["ratio"])
        goal = worst["goal_ratio"]
        verdict = "met" if worst["ratio"] >= goal else f"missed by a factor of {goal / worst['ratio']:.2f}"
        text = f"- **{work}**: goal {goal:g}×, {worst['ratio']:.2f}× against {worst['peer']}: {verdict}."
        if worst["limit_ms"]:
            text += (f" We stand at {worst['ours_ms'] / worst['limit_ms']:.2f} times this machine's limit of {worst['limit_ms']:.1f} ms"
                     f" ({worst.get('limit_kind') or worst.get('limit_note') or 'memory or arithmetic'}).")
        lines.append(text)
    machine = rows[-1]["hardware"]
    return [*lines, "", f"Machine: {machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, {machine['date']}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", choices=[[], *WORKS], metavar="WORK", help=f"one of {', '.join(WORKS)}")
    parser.add_argument("--missing", action="store_true", help="measure only what the results lack (after an interrupted run)")
    parser.add_argument("--plots", action="store_true", help="measure and draw how cost grows instead (scaling.json, scaling.png)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    os.environ.setdefault("RAYON_NUM_THREADS", os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if given.child:
        head_child(*given.child)
        return
    if given.plots:
        import scaling

        scaling.main()
        return
    from vdr.kernels import native

    if native.library() is None:
        sys.exit("bench_kernels: no C compiler, the native kernels cannot be measured")
    level = instructions.in_force()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    # Rows of other levels stay; those from before levels were noted go.
    known = [r for r in known if "instructions" in r["hardware"]]
    there = {(r["hardware"]["instructions"], r["asked"]) for r in known}
    wanted = given.works or [name for name in WORKS if not (given.missing and (level, name) in there)]
    print(f"instruction level {level}", flush=True)
    for name in wanted:
        began = time.perf_counter()
        rows = WORKS[name]()
        for made in rows:
            made["asked"] = name
            print(f"{made['work']:20} {made['peer']:42} ours {made['ours_ms']:9.2f} ms   peer {made['peer_ms']:9.2f} ms   "
                  f"ratio {made['ratio']:6.2f}   limit {made['limit_ms'] or float('nan'):7.2f} ms", flush=True)
        print(f"   {name}: {time.perf_counter() - began:.0f} s", flush=True)
        known = [r for r in known if (r["hardware"]["instructions"], r["asked"]) != (level, name)] + rows
        order = list(WORKS)
        known.sort(key=lambda r: (r["hardware"]["instructions"] == instructions.NATIVE, order.index(r["asked"])))
        RESULTS.parent.mkdir(exist_ok=True)
        scratch = RESULTS.with_suffix(".new")
        scratch.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        os.replace(scratch, RESULTS)
        RESULTS.with_suffix(".md").write_text(note(known))


if __name__ == "__main__":
    main()
