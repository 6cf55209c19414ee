"""Settings of the machine a profile is meant for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vdr.study.base import Section

__all__ = ["HardwareSettings"]


class HardwareSettings(Section):
    """What a profile expects of the machine. Nothing but `instructions` changes a result, so nothing else enters an artefact's key."""

    device: Literal["cpu", "cuda"] = Field("cpu", description="where models run")
    instructions: Literal["x86-64-v3", "native"] = Field(
        "x86-64-v3", description="instruction level of all results: one for every machine, or the machine's own"
    )
    processes: int = Field(2, ge=1, le=64, description="training runs at once, each in a process of its own")
    threads: int = Field(1, ge=1, le=256, description="threads of each such process")
    disk_gb: float = Field(1.0, ge=0, description="free space that a full run needs, in GB")
    memory_gb: float = Field(4.0, ge=0, description="main memory that a full run needs, in GB")
