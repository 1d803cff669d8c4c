"""The checkpoint directories of a run: written whole or not at all, verified when read. Knows nothing of their content.

DIR/checkpoints/step-000060/   files of a run, manifest.json with their SHA-256 written last
"""

import hashlib
import json
import math
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from dragoman import files
from dragoman.bundle import CHECKPOINTS, MANIFEST
from dragoman.errors import ModelError
from dragoman.files import RefusedFile, disk_error, read_checked, sync_directory

MAX_STATE = 20_000_000  # bytes of JSON in a checkpoint, which names every file of the corpus


def checkpoint_path(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:06d}"


def checkpoints(run: Path) -> list[Path]:
    """Oldest first. Checkpoints being written or removed have other names and are not listed."""
    found = (path for path in (run / CHECKPOINTS).glob("step-*") if path.name.removeprefix("step-").isdecimal())
    return sorted(found, key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def remove_checkpoints(run: Path, *, keep: Collection[Path]) -> None:
    """Remove all checkpoints except those to keep."""
    for path in checkpoints(run):
        if path in keep:
            continue
        # renamed first: a half-removed directory must not look like a checkpoint
        doomed = path.with_name(f".{path.name}.removed")
        try:
            path.rename(doomed)
            files.after("rename", doomed)
        except OSError as error:
            raise disk_error(path, 0, error) from None
        shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(run: Path) -> None:
    """Clean up after a kill: checkpoints being written or removed, and half-encoded corpora."""
    for replaced in (run / CHECKPOINTS).glob(".step-*.replaced"):
        path = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))
        if not path.exists():  # its replacement was never completed
            replaced.rename(path)
    for leftover in (*(run / CHECKPOINTS).glob(".step-*"), *(run / "data").glob(".*")):
        shutil.rmtree(leftover, ignore_errors=True)


def write_checkpoint(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write all files, then their manifest, then rename; an existing checkpoint is renamed out of the way."""
    partial, replaced = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.replaced")
    size = sum(map(len, contents.values()))
    manifest = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in contents.items():
            files.write_synced(partial / name, content)
        files.write_synced(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        sync_directory(partial)
        if path.exists():
            path.rename(replaced)
            files.after("rename", replaced)
        files.move_into_place(partial, path)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise disk_error(path, size, error) from None


def read_checkpoint(path: Path, only: Collection[str] = ()) -> dict[str, bytes]:
    """All files of a checkpoint, or only some, verified against the manifest."""

    def read(name: str) -> bytes:
        try:
            most = math.inf if name.endswith(".safetensors") else MAX_STATE
            return read_checked(path, name, most, within=[path])
        except RefusedFile as refused:
            raise ModelError(f"{path}: damaged checkpoint ({name} {refused.reason})") from None

    try:
        manifest = dict(json.loads(read(MANIFEST)))
        contents = {name: read(name) for name in only or manifest}
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"{path}: damaged checkpoint ({error})") from None
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != manifest.get(name):
            raise ModelError(f"{path}: damaged checkpoint ({name} is not what was saved)")
    return contents
