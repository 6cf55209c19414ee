"""Data-parallel training over one-thread processes.

On two cores, two processes of one thread beat one process of two threads: the model's matrices are too small to share.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from vdr.children import die_with_parent, environment_of, interrupts_held

__all__ = ["average_gradients", "cosine_schedule", "launch"]


def launch(worker: Callable, processes: int, *args: object) -> None:
    """Run ``worker(rank, processes, *args)`` in ``processes`` one-thread processes that can average gradients."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    with _free_port() as port:
        os.environ["MASTER_PORT"] = str(port)
    with environment_of({"VDR_PARENT": str(os.getpid())}):
        with interrupts_held():
            running = mp.spawn(_enter, args=(worker, processes, *args), nprocs=processes, join=False)
        try:
            while not running.join():
                pass
        except BaseException:
            for process in running.processes:
                process.terminate()
            raise


class _free_port:
    def __enter__(self) -> int:
        import socket

        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return s.getsockname()[1]

    def __exit__(self, *exc: object) -> None:
        pass


def _enter(rank: int, worker: Callable, processes: int, *args: object) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # one core each, where there are enough
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= processes:
            os.sched_setaffinity(0, {cores[rank]})
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    try:
        worker(rank, processes, *args)
    finally:
        dist.destroy_process_group()


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Average gradients over the processes, in one message."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for g in grads:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


def cosine_schedule(step: int, steps: int, warmup: int) -> float:
    """Factor of the peak learning rate: linear warm-up, then a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
