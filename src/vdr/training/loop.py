"""The training loop (WT §3, App. E, F): one student, one arm, one seed; deterministic, resumable, measured."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vdr.corpus.access import load_train
from vdr.errors import BadInput, VdrError
from vdr.models.processing import Processor
from vdr.models.student import Seeds, Student
from vdr.models.vision_cache import CachedFeatures, FeatureSource, LiveFeatures, backbone_fingerprint
from vdr.progress import track
from vdr.provenance import peak_memory_mb
from vdr.states import read_state, write_state
from vdr.study.sections.training import ArmLosses, RecipeSettings, TrainingSettings
from vdr.training.data import Collator, TrainingRows, batch_rows, steps_per_epoch
from vdr.training.objective import batch_loss
from vdr.training.state import RunState
from vdr.training.validation import Validation

__all__ = ["learning_rate", "prepare_process", "run_training"]

LOSS_FILE, VALIDATION_FILE = "loss.csv", "validation.csv"
COLUMNS = ("step", "epoch", "learning_rate", "loss", "infonce", "score", "attention", "description", "grad_norm")


def prepare_process(threads: int, device: str = "cpu") -> None:
    """Deterministic kernels, a fixed number of threads, and an allocator that keeps memory instead of faulting it
    in again.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # WT App. F
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads memory before writing it
    if device == "cpu":
        try:  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD: a step's tensors are of the same sizes again and again
            libc = ctypes.CDLL(None)
            for option, value in ((-3, 1 << 30), (-1, 1 << 30), (-2, 1 << 26)):
                libc.mallopt(option, value)
        except (AttributeError, OSError):
            pass  # another C library: only slower


def learning_rate(step: int, total: int, peak: float, warmup: float) -> float:
    """Linear rise over the first `warmup` share of `total` steps, then linear fall towards 0 (WT App. E); `step`
    from 0.
    """
    rising = math.ceil(total * warmup)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * (total - step) / max(1, total - rising)


def run_training(
    rows_dir: Path,
    maps_path: Path | None,
    corpus_path: Path,
    vision_cache_path: Path | None,
    backbone_dir: Path,
    arm: ArmLosses,
    recipe: RecipeSettings,
    seed: int | Mapping[str, int],
    settings: TrainingSettings,
    out_dir: Path,
    measures: dict[str, Any],
    *,
    device: str = "cpu",
    threads: int = 1,
    label: str = "train",
    stop_after: int | None = None,
) -> bool:
    """Train one student and write its checkpoint to `out_dir`: `adapter_model.safetensors`, `adapter_config.json`,
    `projection.safetensors`, `loss.csv`, `validation.csv`.

    rows_dir holds `rows.parquet`; arm: the losses; seed: one seed for all streams or a mapping of the four
    (`Seeds`). While it runs, `out_dir/partial` keeps the checkpoint from which a killed run goes on to the same
    bytes. measures gets the share of changed weights per trainable module, losses, validations, and under "timing"
    and "memory" what differs from run to run. Returns False when `stop_after` steps were done and more remain (the
    state is kept), else True.

    Raises BadInput or DamagedArtefact on unfit input, VdrError naming step and rows when a loss is not finite.
    """
    prepare_process(threads, device)
    started = time.monotonic()
    out_dir = Path(out_dir)
    seeds = Seeds.of(seed)
    torch.manual_seed(int.from_bytes(hashlib.sha256(f"dropout:{seeds.dropout}".encode()).digest()[:7], "big"))
    student = Student.create(backbone_dir, settings, seeds, device)
    processor = Processor.from_pretrained(
        backbone_dir, max_visual_tokens=settings.max_visual_tokens, augmentation_tokens=settings.augmentation_tokens
    )
    corpus = load_train(Path(corpus_path))
    rows = TrainingRows.read(Path(rows_dir), maps_path, processor, arm, settings)
    _check_pages(rows, set(corpus.pages.ids), Path(rows_dir))
    source: FeatureSource
    if settings.vision_cache:
        if vision_cache_path is None:
            raise BadInput("the settings ask for a vision cache and none is given", where="training.vision_cache")
        source = CachedFeatures(vision_cache_path, backbone_fingerprint(backbone_dir))
    else:
        source = LiveFeatures(corpus.pages, processor, student.vision, workers=threads)
    collator = Collator(rows, student, processor, source, arm)
    held = corpus.rows[corpus.rows["split"] == "validation"].sort_values("row_id", kind="stable")
    validate = Validation(
        [processor.query_ids(text) for text in held["query"]],
        list(held["page_id"]),
        collator,
        student,
        arm.infonce.temperature,
        settings.validation_batch,
    )

    each = steps_per_epoch(len(rows), settings.batch_size)
    total = round(recipe.epochs * each)
    if total < 1:
        raise BadInput(f"{recipe.epochs} epochs of {each} steps make no step", where="recipe.epochs")
    parameters = student.trainable()
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise BadInput(
                f"{name} trains in {parameter.dtype}; small updates would round away",
                where="training",
                todo="keep it in fp32",
            )
    initial = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimiser = torch.optim.AdamW(
        parameters.values(),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    fingerprint = _fingerprint(rows, arm, recipe, seeds, settings)
    losses: list[list[float]] = []
    validations: list[list[float]] = []
    first = 0
    state = read_state(out_dir / "partial", fingerprint, RunState)
    if state is not None:
        first, losses, validations = state.step, state.losses, state.validations
        _restore(state, parameters, optimiser, device)
    due = None if settings.validate_epochs is None else max(1, round(settings.validate_epochs * each))
    seconds: list[float] = []
    last = total if stop_after is None else min(total, stop_after)

    student.train(True)
    prepared = time.monotonic() - started
    spent_validating = 0.0
    with track(total, label, "step", start_at=first) as bar:
        for step in range(first, last):
            began = time.perf_counter()
            members = batch_rows(step, len(rows), settings.batch_size, seeds)
            rate = learning_rate(step, total, settings.learning_rate, settings.warmup)
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.zero_grad(set_to_none=True)
            batch = collator(members)
            if step + 1 < last:
                following = batch_rows(step + 1, len(rows), settings.batch_size, seeds)
                source.prefetch(collator.page_names(following)[0])
            loss, terms = batch_loss(student, batch, arm)
            value = float(loss.detach())
            _check_finite(value, "loss", step, members, rows, label)
            loss.backward()
            norm = float(torch.nn.utils.clip_grad_norm_(parameters.values(), settings.max_grad_norm or math.inf))
            _check_finite(norm, "gradient", step, members, rows, label)
            optimiser.step()
            losses.append(
                [step + 1, (step + 1) / each, rate, value, *(terms.get(name, math.nan) for name in COLUMNS[4:8]), norm]
            )
            seconds.append(time.perf_counter() - began)
            bar.update(1, suffix=f"loss {value:.4f}")
            done = step + 1
            if done == total or (due is not None and done % due == 0):
                began = time.perf_counter()
                found = validate()
                validations.append([done, done / each, found["infonce"], found["ndcg5"]])
                spent_validating += time.perf_counter() - began
            if done < total and (done % settings.checkpoint_every == 0 or done == last):
                write_state(
                    out_dir / "partial", _state(done, parameters, optimiser, device, fingerprint, losses, validations)
                )
    if last < total:
        return False

    out_dir.mkdir(parents=True, exist_ok=True)
    student.save(out_dir)
    _write_csv(out_dir / LOSS_FILE, COLUMNS, losses)
    _write_csv(out_dir / VALIDATION_FILE, ("step", "epoch", "infonce", "ndcg5"), validations)
    shutil.rmtree(out_dir / "partial", ignore_errors=True)
    seconds.sort()
    measures.update(
        steps=total,
        rows=len(rows),
        batch_size=settings.batch_size,
        trainable=sum(p.numel() for p in parameters.values()),
        changed=_changed(initial, parameters),
        initial_sha256=_digest(initial),
        final_loss=losses[-1][3],
        mean_loss_last_epoch=math.fsum(row[3] for row in losses[-each:]) / len(losses[-each:]),
        validation=[dict(zip(("step", "epoch", "infonce", "ndcg5"), row, strict=True)) for row in validations],
        timing={
            "seconds_per_step": sum(seconds) / len(seconds) if seconds else None,
            "seconds_per_step_median": seconds[len(seconds) // 2] if seconds else None,
            "steps_timed": len(seconds),
            "seconds_preparing": prepared,
            "seconds_validating": spent_validating,
            "threads": threads,
        },
        memory={"peak_mb": peak_memory_mb()},
    )
    return True


def _check_pages(rows: TrainingRows, known: set[str], where: Path) -> None:
    for number, row in enumerate(rows.row_ids):
        for page in (rows.pages[number], *rows.negatives[number], *rows.candidates[number]):
            if page not in known:
                raise BadInput(
                    f"row {row} names page {page!r}, which the corpus does not have",
                    where=where,
                    todo="make the rows again",
                )


def _check_finite(value: float, what: str, step: int, members: list[int], rows: TrainingRows, label: str) -> None:
    if not math.isfinite(value):
        names = ", ".join(str(rows.row_ids[member]) for member in members)
        text = f"the {what} is {value} at step {step + 1} (rows {names})"
        raise VdrError(text, where=label, todo="look at these rows, or lower the learning rate")


def _fingerprint(
    rows: TrainingRows, arm: ArmLosses, recipe: RecipeSettings, seeds: Seeds, settings: TrainingSettings
) -> str:
    """Names a run for its own checkpoints; the artefact store's key covers the inputs themselves."""
    facts = [
        rows.row_ids,
        rows.pages,
        rows.negatives,
        rows.candidates,
        rows.weights,
        arm.plain(),
        recipe.plain(),
        vars(seeds),
        settings.plain(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _state(
    step: int,
    parameters: Mapping[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
    device: str,
    fingerprint: str,
    losses: list[list[float]],
    validations: list[list[float]],
) -> RunState:
    rng = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.startswith("cuda") else [])
    return RunState(
        step,
        {name: p.detach().cpu() for name, p in parameters.items()},
        optimiser.state_dict(),
        rng,
        fingerprint,
        losses,
        validations,
    )


@torch.no_grad()
def _restore(
    state: RunState, parameters: Mapping[str, torch.nn.Parameter], optimiser: torch.optim.Optimizer, device: str
) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(state.weights[name])
    optimiser.load_state_dict(state.optimiser)
    torch.set_rng_state(state.rng[0])
    if device.startswith("cuda") and len(state.rng) > 1:
        torch.cuda.set_rng_state(state.rng[1], device)


@torch.no_grad()
def _changed(initial: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, Any]:
    """Share of weights that differ from where they began (WT App. A), by kind of module and per module.

    Half of an adapter that starts at zero is always new; the figure to watch is 1.0 for the projection.
    """
    per_module = {name: float((parameter != initial[name]).double().mean()) for name, parameter in parameters.items()}
    sums: dict[str, list[int]] = {}
    for name, parameter in parameters.items():
        kind = name.rsplit(".", 1)[-1] if name.startswith("model.") else name
        counts = sums.setdefault(kind, [0, 0])
        counts[0] += int((parameter != initial[name]).sum())
        counts[1] += parameter.numel()
    return {"by_kind": {kind: changed / size for kind, (changed, size) in sums.items()}, "by_module": per_module}


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _write_csv(file: Path, columns: tuple[str, ...], rows: list[list[float]]) -> None:
    lines = [",".join(columns)]
    for row in rows:
        lines.append(
            ",".join(
                str(int(value)) if name == "step" else "" if math.isnan(value) else repr(float(value))
                for name, value in zip(columns, row, strict=True)
            )
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
