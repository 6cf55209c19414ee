"""Writing so that a crash, a second writer or a full disk never leaves half a result."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vdr.errors import BadInput, Busy, NoSpace, NotWritable, VdrError

__all__ = [
    "disk_errors",
    "exclusive",
    "explained",
    "human_bytes",
    "sha256_file",
    "sync_directory",
    "sync_file",
    "writable_or_scratch",
    "write_synced",
]

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
#: What a path can be that is none of the package's doing.
NO_SUCH_PLACE = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}


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


def _refusal(error: BaseException) -> OSError | None:
    """The operating system's refusal that an error is, or that a library only quotes (safetensors: "… (os error 28)"); else None."""
    if isinstance(error, OSError):
        return error
    quoted = re.search(r"\(os error (\d+)\)", str(error))
    return None if quoted is None else OSError(int(quoted[1]), os.strerror(int(quoted[1])))


def explained(error: BaseException, place: Path | str | None = None) -> VdrError | None:
    """What the operating system refused, as an error that a user can act on; None for anything that may be a defect."""
    refused = _refusal(error)
    if refused is None:
        return None
    where = refused.filename if isinstance(refused.filename, (str, Path)) else place
    if refused.errno in FULL:
        todo = "free some space and repeat: finished artefacts are whole, the broken one is resumed"
        return NoSpace(f"the disk is full ({refused.strerror})", where=place or where, todo=todo)
    if refused.errno in FORBIDDEN and where is not None:
        todo = "make it readable and writable, or set VDR_OUTPUTS to a place that is"
        return NotWritable(f"this place is closed to this process ({refused.strerror})", where=where, todo=todo)
    if refused.errno in NO_SUCH_PLACE and where is not None:
        return BadInput(f"no such place can be opened ({refused.strerror})", where=where)
    return None


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn a full or read-only disk into its one line; other errors pass."""
    try:
        yield
    except VdrError:
        raise
    except Exception as error:
        told = explained(error, place)
        if told is None:
            raise
        raise told from error


@contextlib.contextmanager
def writable_or_scratch(place: Path) -> Iterator[tuple[Path, bool]]:
    """(`place`, True), or where nothing can be written there (a scratch folder that is removed afterwards, False).

    For what is worth printing though its files cannot be kept.
    """
    nearest = next(parent for parent in (place, *place.parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise
        with tempfile.TemporaryDirectory(prefix="vdr-") as scratch:
            yield Path(scratch), False
    else:
        yield place, True


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
