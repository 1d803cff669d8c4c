"""Damaged and malicious files, and manifests that match them.

With a matching manifest a file passes the SHA-256 check, so the checks after it are tested.
"""

import hashlib
import json
import pickle  # noqa: TID251 - to make files that must not be loaded
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman import bundle

VERIFIED = (*bundle.TOKENIZERS, bundle.WEIGHTS, *bundle.LEARNED)
LARGE = 300_000_000  # bytes: too many to hash in a test, and refused unread


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _can_be_hashed(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < LARGE


def seal(directory: Path) -> None:
    """Write a manifest that matches the model directory in its current state."""
    hashes = {name: [digest(directory / name)] for name in VERIFIED if _can_be_hashed(directory / name)}
    (directory / bundle.MANIFEST).write_text(json.dumps(hashes))


def seal_checkpoint(path: Path) -> None:
    files = [each for each in path.iterdir() if each.name != bundle.MANIFEST and _can_be_hashed(each)]
    (path / bundle.MANIFEST).write_text(json.dumps({each.name: digest(each) for each in files}))


def tensors_file(header: Mapping[str, Any] | bytes, data: bytes = b"") -> bytes:
    """A safetensors file, whatever its header says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


class _Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._marker), "w")


def payload(marker: Path) -> bytes:
    """A pickle that creates `marker`."""
    return pickle.dumps(_Payload(marker))


def unpickle(content: bytes) -> None:
    """What no code of the package may do: the control."""
    pickle.loads(content).close()  # noqa: S301
