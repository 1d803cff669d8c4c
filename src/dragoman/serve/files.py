"""Translated documents, until they are too old or too many. Knows nothing of HTTP."""

import asyncio
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple


class _Kept(NamedTuple):
    size: int
    end: float  # by the clock of the event loop


class TranslatedFiles:
    """A folder of its own. A document is removed after so many seconds; the oldest, when all have too many bytes."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        self._seconds, self._most_bytes = seconds, most_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="dragoman-files-")
        self._kept: dict[str, _Kept] = {}  # by name, the oldest first

    def add(self, path: Path, ending: str) -> str:
        """Move a document here; return a name that nobody can guess."""
        name = secrets.token_urlsafe(16) + ending
        self.keep(name, path, self._seconds)
        return name

    def keep(self, name: str, path: Path, seconds: float) -> None:
        """Move a document here under a name that it already has elsewhere."""
        loop = asyncio.get_running_loop()
        self._kept[name] = _Kept(path.stat().st_size, loop.time() + seconds)
        shutil.move(path, self._path(name))
        while sum(kept.size for kept in self._kept.values()) > self._most_bytes:
            self._remove(next(iter(self._kept)))
        loop.call_later(seconds, self._remove, name)

    def find(self, name: str) -> Path | None:
        return self._path(name) if name in self._kept else None  # no other name is ever opened

    def seconds_left(self, name: str) -> float:
        """Until a document that is here is removed."""
        return self._kept[name].end - asyncio.get_running_loop().time()

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _remove(self, name: str) -> None:
        if self._kept.pop(name, None) is not None:
            self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        self._folder.cleanup()
