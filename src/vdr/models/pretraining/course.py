"""The loop that every stage of the mini models' training shares: resumable at any step to the same bytes, in any number of processes.

What a step reads is a function of seed, process and step alone, so a stage that was killed needs nothing but its weights, its
optimiser and its log.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from vdr.models.pretraining.parallel import average_gradients, cosine_schedule
from vdr.progress import track
from vdr.states import read_state, write_state

__all__ = ["Course", "Losses", "check", "follow", "forget"]

#: What a step returns: the loss, and each of its terms by name.
Losses = tuple[torch.Tensor, Mapping[str, float]]


@dataclass(frozen=True)
class Course:
    """A stage of a training: its name, how long it is, its learning rate, and the seed of what its steps read.

    `settings` is whatever else decides its weights; a stage that was stopped goes on with equal ones only.
    """

    name: str
    steps: int
    peak: float
    seed: tuple[int, ...]
    settings: Mapping[str, Any]
    warmup: int = 30
    examine_every: int = 50
    keep_every: int = 100

    def fingerprint(self, processes: int) -> str:
        """Names the run that a state belongs to."""
        return hashlib.sha256(repr((sorted(asdict(self).items()), processes)).encode()).hexdigest()


@dataclass
class _State:
    """step: steps done; weights in the order of the trained parameters; log: rows so far; since: terms since the last row."""

    step: int
    weights: list[torch.Tensor]
    optimiser: dict[str, Any]
    fingerprint: str
    log: list[dict[str, Any]] = field(default_factory=list)
    since: dict[str, list[float]] = field(default_factory=dict)


def follow(
    course: Course,
    folder: Path,
    parameters: Sequence[nn.Parameter],
    loss_of: Callable[[int, np.random.Generator], Losses],
    examine: Callable[[], Mapping[str, float]],
    *,
    rank: int = 0,
    processes: int = 1,
    stop_after: int | None = None,
) -> list[dict[str, Any]] | None:
    """Train `parameters` in place; returns the log, or None when `stop_after` steps were done and more remain.

    `loss_of(step, generator)` gives the loss of this process's share of a step; `examine()` scores held-out data. A row of the log has the
    step, the mean of every term since the row before, and the scores. While it runs, `folder/partial-<name>` keeps the state
    that a killed stage goes on from; the caller removes it (`forget`) once it has kept the result. Rank 0 writes.

    Raises `BadInput` where the state belongs to other settings, `DamagedArtefact` where it cannot be read.
    """
    optimiser = torch.optim.AdamW(parameters, lr=course.peak, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    fingerprint = course.fingerprint(processes)
    partial = _partial(folder, course.name)
    state = read_state(partial, fingerprint, _State)
    first, log, since = 0, [], {}
    if state is not None:
        first, log, since = state.step, state.log, state.since
        with torch.no_grad():
            for parameter, weight in zip(parameters, state.weights, strict=True):
                parameter.copy_(weight)
        optimiser.load_state_dict(state.optimiser)
    if dist.is_initialized():
        dist.barrier()  # everybody has read the state before anybody writes the next
    last = course.steps if stop_after is None else min(course.steps, stop_after)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(track(course.steps, course.name, "step", start_at=first)) if rank == 0 else None
        for step in range(first, last):
            for group in optimiser.param_groups:
                group["lr"] = course.peak * cosine_schedule(step, course.steps, course.warmup)
            loss, terms = loss_of(step, np.random.default_rng([*course.seed, rank, step]))
            optimiser.zero_grad()
            loss.backward()
            average_gradients(parameters)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            if bar is None:
                continue
            done = step + 1
            bar.update(1, suffix=" ".join(f"{name} {value:.3f}" for name, value in terms.items()))
            for name, value in terms.items():
                since.setdefault(name, []).append(value)
            if done % course.examine_every == 0 or done == course.steps:
                means = {name: math.fsum(values) / len(values) for name, values in since.items()}
                log.append({"step": done, **means, **examine()})
                since = {}
            if done < course.steps and (done % course.keep_every == 0 or done == last):
                weights = [parameter.detach() for parameter in parameters]
                write_state(partial, _State(done, weights, optimiser.state_dict(), fingerprint, log, since))
    return log if last == course.steps else None


def check(course: Course, folder: Path, processes: int) -> None:
    """Before processes are started: raises `BadInput` or `DamagedArtefact` where `folder` keeps a state that `course` cannot go on from."""
    read_state(_partial(folder, course.name), course.fingerprint(processes), _State)


def forget(folder: Path, name: str) -> None:
    """Remove the state of a stage whose result is kept."""
    shutil.rmtree(_partial(folder, name), ignore_errors=True)


def _partial(folder: Path, name: str) -> Path:
    return folder / f"partial-{name}"
