"""The exception tree. Every error a user can cause is one of these, and each knows its exit code.

    DragomanError          1
    ├── ConfigError        2   usage or configuration (also a ValueError)
    ├── DataError          3   corpora
    ├── ModelError         4   model directories and checkpoints
    ├── NonFiniteError     5   training went non-finite
    ├── DiskError          6   a file could not be written
    └── Stopped      130, 143   a signal ended a run; what was done is saved

A message is one line: ``name: what is wrong; what to do``; data errors start with ``file:line:``.
"""

import difflib
from collections.abc import Iterable


class DragomanError(Exception):
    exit_code = 1


class ConfigError(DragomanError, ValueError):
    exit_code = 2


class DataError(DragomanError):
    exit_code = 3


class ModelError(DragomanError):
    exit_code = 4


class NonFiniteError(DragomanError):
    exit_code = 5


class DiskError(DragomanError):
    exit_code = 6


class Stopped(DragomanError):
    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def suggestion(word: str, known: Iterable[str]) -> str:
    """What to say after an unknown word: the nearest known one, or all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(choices)}"
