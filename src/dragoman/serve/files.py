"""Translated documents, until they are too old or too many. Knows nothing of HTTP."""

import asyncio
import secrets
import shutil
import tempfile
from pathlib import Path


class TranslatedFiles:
    """A folder of its own. A document is removed after so many seconds; the oldest, when all have too many bytes."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        self._seconds, self._most_bytes = seconds, most_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="dragoman-files-")
        self._sizes: dict[str, int] = {}  # by name, the oldest first

    def add(self, path: Path, ending: str) -> str:
        """Move a document here; return a name that nobody can guess."""
        name = secrets.token_urlsafe(16) + ending
        self._sizes[name] = path.stat().st_size
        shutil.move(path, self._path(name))
        while sum(self._sizes.values()) > self._most_bytes:
            self._remove(next(iter(self._sizes)))
        asyncio.get_running_loop().call_later(self._seconds, self._remove, name)
        return name

    def find(self, name: str) -> Path | None:
        return self._path(name) if name in self._sizes else None  # no other name is ever opened

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _remove(self, name: str) -> None:
        if self._sizes.pop(name, None) is not None:
            self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        self._folder.cleanup()
