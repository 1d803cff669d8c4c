"""The exception tree. Every error a user can cause is one of these, and each knows its exit code.

    DragomanError          1
    ├── ConfigError        2   usage or configuration (also a ValueError)
    ├── DataError          3   corpora
    ├── ModelError         4   model directories and checkpoints
    ├── NonFiniteError     5   training went non-finite
    ├── DiskError          6   a file could not be written
    └── Stopped      130, 143   a signal ended a run; its progress is saved

A message is one line: ``name: what is wrong; what to do``; data errors start with ``file:line:``.
"""

import difflib
import re
from collections.abc import Iterable, Mapping


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


def suggestion(word: str, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return a hint for an unknown word: the known one that was probably meant, or all of them."""
    choices = sorted(known)
    near = (aliases or {}).get(word.lower()) or _nearest(word, choices)
    return f"did you mean {near}?" if near else f"known: {', '.join(choices)}"


def _nearest(word: str, choices: list[str]) -> str | None:
    ranks = {choice: _rank(word.lower(), choice.lower()) for choice in choices}
    best = max(ranks, key=lambda choice: ranks[choice], default=None)
    return best if best is not None and ranks[best] > (0, 0.0) else None


def _rank(word: str, choice: str) -> tuple[int, float]:
    """Rank typos (max_step) first, then the same word with something added or removed (beam_size), then similarity."""
    likeness = difflib.SequenceMatcher(None, choice, word).ratio()
    if likeness >= 0.85:
        return 3, likeness
    if _extends(word, choice) or _extends(choice, word):
        return 2, likeness
    return (1, likeness) if likeness >= 0.6 else (0, 0.0)


def _extends(long: str, short: str) -> bool:
    """Whether every word of `short` is a prefix of a word of `long`: beam and num_beams, steps and max_steps."""
    words, parts = _WORD.findall(long), _WORD.findall(short)
    # a prefix of one or two letters says nothing: es is not short for estonian
    begun = [any(word == part or (len(part) >= 3 and word.startswith(part)) for word in words) for part in parts]
    return bool(begun) and all(begun)


_WORD = re.compile(r"[^\W_]+")
