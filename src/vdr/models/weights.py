"""Finding weights, and saying which they are.

Weights that ship with the package are called `vdr:NAME` and lie in `vdr/assets/NAME`, in the hub's own format; others are a directory
or a hub repository at a pinned revision. What enters a key is never a path: it is the hash of the files, or repository and commit.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import vdr
from vdr.errors import BadInput, DamagedArtefact, UnfitMachine, did_you_mean
from vdr.store import sha256_file

__all__ = ["ASSETS", "digest_of", "identity", "locate"]

ASSETS = Path(vdr.__file__).parent / "assets"
SHIPPED = "vdr:"


def _kind(source: str) -> str:
    """shipped, directory or hub."""
    if source.startswith(SHIPPED):
        return "shipped"
    return "directory" if source.startswith(("/", "./", "../", "~")) else "hub"


def locate(source: str, revision: str | None = None) -> Path:
    """The directory that holds the weights (config.json and *.safetensors or an adapter).

    Raises `BadInput` for an unknown name, a directory without config.json, or a hub id without a revision; `UnfitMachine` when the
    hub's files are not on this machine and cannot be fetched.
    """
    kind = _kind(source)
    if kind == "shipped":
        name = source.removeprefix(SHIPPED)
        known = sorted(path.name for path in ASSETS.iterdir() if path.is_dir()) if ASSETS.exists() else []
        if name not in known:
            raise BadInput(f"no weights {name!r} ship with the package", where="models", todo=did_you_mean(name, known))
        return ASSETS / name
    if kind == "directory":
        path = Path(source).expanduser()
        if not (path / "config.json").is_file():
            raise BadInput("no config.json here, so no model", where=path)
        return path
    if revision is None:
        raise BadInput(f"{source} has no revision", where="models", todo="pin the commit of the repository in the profile")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UnfitMachine(
            f"{source} at {revision[:12]} is not on this machine and cannot be fetched ({type(error).__name__})",
            where="models",
            todo="fetch it where there is a network (`hf download`), or choose the mini profile",
        ) from error


def identity(source: str, revision: str | None = None) -> dict[str, Any]:
    """What the weights are, for a key: repository and commit, or the hash of the files."""
    if _kind(source) == "hub":
        return {"id": source, "revision": revision}
    return {"sha256": digest_of(locate(source))}


def digest_of(directory: Path) -> str:
    """SHA-256 over names and hashes of the files of a checkpoint directory (hidden files, notes and reports left out).

    Raises `DamagedArtefact` when there is nothing to hash.
    """
    state = tuple(
        (path.relative_to(directory).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.suffix in (".json", ".safetensors", ".txt", ".jinja") and not _is_note(path)
    )
    if not state:
        raise DamagedArtefact("no weights here", where=directory)
    return _digest(directory, state)


def _is_note(path: Path) -> bool:
    return path.name.startswith((".", "report", "manifest"))


@functools.lru_cache(maxsize=32)
def _digest(directory: Path, state: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, _, _ in state:
        digest.update(f"{name}\0{sha256_file(directory / name)}\n".encode())
    return digest.hexdigest()
