"""Writing so that a crash, a second writer or a full disk never leaves half a result."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from vdr.errors import Busy, NoSpace

__all__ = ["FULL", "disk_errors", "exclusive", "sha256_file", "sync_directory", "sync_file", "write_synced"]

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def human_bytes(count: float) -> str:
    """`340 kB`, `12 MB`, `1.3 GB`: a size for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def exclusive(path: Path, final: Path) -> Iterator[None]:
    """An advisory lock that the kernel drops when its holder dies, however it dies."""
    with path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise Busy(
                f"process {holder} is building this artefact", where=final, todo="wait until it has finished, then repeat"
            ) from error
        stream.seek(0)
        stream.truncate()
        stream.write(str(os.getpid()))
        stream.flush()
        yield
        # The file stays: removing it would let two later writers lock two different files of one name.


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise NoSpace(
                f"the disk is full ({error.strerror})",
                where=place,
                todo="free some space and repeat: finished artefacts are whole, the broken one is resumed",
            ) from error
        raise


def write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def sync_file(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


@functools.lru_cache(maxsize=1)
def _can_sync_directories() -> bool:
    return hasattr(os, "O_DIRECTORY")


def sync_directory(path: Path) -> None:
    if not _can_sync_directories():
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
