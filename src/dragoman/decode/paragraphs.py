"""Divides texts at their line breaks, and joins the translations of the lines again. Knows nothing of models.

A model has no line breaks: several lines would come out as one, and of several sentences it may drop some.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dragoman.decode.translation import Status, Translation
from dragoman.documents.document import Kept, Mark, Parts, text_of
from dragoman.progress import Advance

_BREAK = re.compile(r"(\s*\n\s*)")
_WORST_FIRST: tuple[Status, ...] = ("failed", "altered", "truncated", "split", "translated", "empty")
Result = tuple[Translation, Parts | None]


def divide(parts: Parts) -> list[tuple[str, Parts]]:
    """The lines of a text, each after what separates it from the one before. No line ends within an element."""
    lines: list[tuple[str, list[str | Mark | Kept]]] = [("", [])]
    depth = 0
    for part in parts:
        if isinstance(part, Mark):
            depth += {"open": 1, "close": -1, "single": 0}[part.kind]
        if not isinstance(part, str) or depth:
            lines[-1][1].append(part)
            continue
        first, *rest = _BREAK.split(part)
        lines[-1][1].append(first)
        lines += [(rest[place], [rest[place + 1]]) for place in range(0, len(rest), 2)]
    return [(separator, tuple(part for part in line if part != "")) for separator, line in lines]


def join(parts: Parts, lines: Sequence[tuple[str, Parts]], results: Iterator[Result]) -> Result:
    """The translation of a text from those of its lines."""
    found = [next(results) for _ in lines]
    if len(found) == 1:
        return found[0]
    if any(own is None for _, own in found):
        failed = next(translation for translation, own in found if own is None)
        return replace(failed, source=text_of(parts)), None
    joined: list[str | Mark | Kept] = []
    for (separator, _), (_, own) in zip(lines, found, strict=True):
        joined += [separator, *(own or ())]
    worst = min((translation for translation, _ in found), key=lambda each: _WORST_FIRST.index(each.status))
    sure = [translation.confidence for translation, _ in found if translation.confidence is not None]
    whole = tuple(part for part in joined if part != "")
    translation = Translation(
        text_of(parts),
        text_of(whole),
        worst.status,
        score=sum(each.score for each, _ in found),
        normalized_score=sum(each.normalized_score for each, _ in found) / len(found),
        tokens=tuple(token for each, _ in found for token in each.tokens),
        confidence=min(sure, default=None),
        reason=worst.reason,
    )
    return translation, whole


class Proportional:
    """Reports progress in texts, given progress in their lines."""

    def __init__(self, advance: Advance, lines: int, texts: int) -> None:
        self._advance, self._lines, self._texts = advance, lines, texts
        self._done = self._reported = 0

    def advance(self, lines: int) -> None:
        self._done += lines
        self._report(self._done * self._texts // max(1, self._lines))

    def finish(self) -> None:
        self._report(self._texts)

    def _report(self, texts: int) -> None:
        self._advance(texts - self._reported)
        self._reported = texts
