"""Checks that every format of `dragoman.documents` passes: segments as agreed, the same bytes back, translations in."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dragoman.documents.document import Document, Kept, Mark, Options, Parts, text_of

Parse: TypeAlias = Callable[[bytes], Document]
OPTIONS = Options()


def check_round_trip(document: Document, content: bytes) -> None:
    """Its own parts give the same bytes, and so does no translation; the segments keep their promises."""
    segments = document.segments
    assert document.render([segment.parts for segment in segments]) == content
    assert document.render([None] * len(segments)) == content
    for segment in segments:
        check_parts(segment.parts)


def check_parts(parts: Parts) -> None:
    text = "".join(part for part in parts if isinstance(part, str))
    assert text.strip(), "some text that is not blank"
    assert text_of(parts) == text_of(parts).strip(), "no white space at the ends"
    assert all(a != "" for a in parts)
    opened: list[int] = []
    seen: set[tuple[int, str]] = set()
    for part in parts:
        if isinstance(part, str):
            continue
        kind = part.kind if isinstance(part, Mark) else "kept"
        assert (part.number, kind) not in seen
        seen.add((part.number, kind))
        if kind == "open":
            opened.append(part.number)
        elif kind == "close":
            assert opened.pop() == part.number, "properly nested"
    assert not opened
    whole = {number for number, kind in seen if kind != "close"}
    assert whole == set(range(1, len(whole) + 1)), "numbered from 1"


def translate(parts: Parts, change: Callable[[str], str]) -> Parts:
    """The parts with other text, white space at its ends kept."""
    changed: list[str | Mark | Kept] = []
    for part in parts:
        if isinstance(part, str) and part.strip():
            start = part.index(part.strip()[0])
            end = start + len(part.strip())
            part = part[:start] + change(part[start:end]) + part[end:]
        changed.append(part)
    return tuple(changed)


def translated(document: Document, change: Callable[[str], str] = str.upper) -> str:
    """The document with every text changed."""
    return document.render([translate(segment.parts, change) for segment in document.segments]).decode()


def texts(document: Document) -> list[str]:
    return [segment.text for segment in document.segments]


def parts_of(document: Document) -> Sequence[Parts]:
    return [segment.parts for segment in document.segments]
