"""Where each piece of a text stands in the text as it was written, before normalisation. Knows nothing of models.

A span is [start, end), in characters of the original. The spans of the pieces of a text ascend and together cover
everything that is not white space. Pieces share a span where one character was written as several: the bytes of a rare
character, or the two letters into which NFKC takes a ligature apart.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from dragoman.text.normalize import Normalization, is_lowercase, keeps_no_break_spaces, normalize
from dragoman.text.tokenizer import Span, Tokenizer

Composition = Literal["NFD", "NFKD"]
_NO_BREAK_SPACES = "\u00a0\u2007\u202f"
_FIRST_MARK = "\u0300"  # no character below it joins the one before it
_WORD = re.compile(r"\S+")


class PieceSpans(NamedTuple):
    """The ids of a text, and where each piece stands, without white space at its ends; empty if it is nothing else."""

    ids: list[int]
    spans: list[Span]


def piece_spans(tokenizer: Tokenizer, texts: Sequence[str]) -> list[PieceSpans]:
    """The ids are those of `tokenizer.encode_batch`."""
    normal = [_origins(text, tokenizer.normalization) for text in texts]
    encoded = tokenizer.encode_spans([text for text, _ in normal])
    return [
        PieceSpans(ids, [_original(span, text, origins) for span in spans])
        for (ids, spans), (text, origins) in zip(encoded, normal, strict=True)
    ]


def word_spans(text: str) -> list[Span]:
    """Where the words of a text stand: those that `text.split()` returns."""
    return [match.span() for match in _WORD.finditer(text)]


def _original(span: Span, normal: str, origins: Sequence[Span] | None) -> Span:
    """A span of the normalised text as one of the original, without white space at its ends."""
    start, end = span
    while start < end and normal[end - 1].isspace():
        end -= 1
    while start < end and normal[start].isspace():
        start += 1
    if origins is None:
        return start, end
    if start < end:
        return origins[start][0], origins[end - 1][1]
    place = origins[start][0] if start < len(origins) else origins[-1][1] if origins else 0
    return place, place


def _origins(text: str, form: Normalization) -> tuple[str, list[Span] | None]:
    """The normalised text, and of each of its characters the span it came from; None where nothing has moved."""
    normal = normalize(text, form)
    if normal == text or form == "none":
        return normal, None
    origins = [span for _, span in _without_gaps(list(_characters(text, form)), form)]
    assert len(origins) == len(normal), (text, form)
    return normal, origins


def _characters(text: str, form: Normalization) -> Iterator[tuple[str, Span]]:
    """Every character of the normalised text but for gaps: a control character is a space here.

    One that depends on its neighbours, such as the last sigma of a word, may differ: only the number matters.
    """
    for start, end in _units(text, "NFKD" if form.startswith("nfkc") else "NFD"):
        written = text[start:end]
        unit = _compose(written, form)
        for number, character in enumerate(unit):
            own = (start + number, start + number + 1) if unit == written else (start, end)
            yield " " if unicodedata.category(character) == "Cc" else character, own


def _compose(written: str, form: Normalization) -> str:
    composition: Literal["NFC", "NFKC"] = "NFKC" if form.startswith("nfkc") else "NFC"
    unit = unicodedata.normalize(composition, written)
    return unicodedata.normalize(composition, unit.lower()) if is_lowercase(form) else unit


def _units(text: str, decomposition: Composition) -> Iterator[Span]:
    """Stretches that normalise independently of each other: a character and those that join it."""
    start = 0
    for place in range(1, len(text)):
        if not (text[place] >= _FIRST_MARK and _joins(text[place], decomposition)):
            yield start, place
            start = place
    if text:
        yield start, len(text)


@functools.lru_cache(maxsize=1 << 14)
def _joins(character: str, decomposition: Composition) -> bool:
    """Whether it may be composed with, or ordered among, the characters before it: a mark, or part of a syllable."""
    first = unicodedata.normalize(decomposition, character)[0]
    return unicodedata.category(first).startswith("M") or "\u1161" <= first <= "\u11ff"  # vowels and finals of Hangul


def _without_gaps(characters: list[tuple[str, Span]], form: Normalization) -> list[tuple[str, Span]]:
    """One space for every run of white space, none at either end."""
    kept: list[tuple[str, Span]] = []
    for character, span in characters:
        if character.isspace() and not (keeps_no_break_spaces(form) and character in _NO_BREAK_SPACES):
            if not kept or kept[-1][0] != " ":
                kept.append((" ", span))
        else:
            kept.append((character, span))
    while kept and kept[-1][0].isspace():
        kept.pop()
    lead = 0
    while lead < len(kept) and kept[lead][0].isspace():
        lead += 1
    return kept[lead:]
