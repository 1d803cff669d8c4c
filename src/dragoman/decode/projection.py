"""Puts the marks of a source text into its translation, where the words between them went. Knows nothing of models.

An element covers the target words that are linked to its source words, as one stretch: a mark occurs once, elements
stay nested. A mark of its own goes with the word it touches, else with the next word.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dragoman.decode.alignment import Alignment
from dragoman.documents.document import Mark, Parts

Span = tuple[int, int]
LARGEST_GAP = 2  # tokens between two words of an element that are not linked to it
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass
class _Element:
    """A pair of marks, or a single one, and the stretch of source text it covers."""

    opening: Mark
    start: int
    end: int
    closing: Mark | None = None
    inner: list["_Element"] = field(default_factory=list)


@dataclass(frozen=True)
class TokenLinks:
    """Which token of the source each token of the target translates; -1 if none is known."""

    source: list[Span]
    target: list[Span]
    source_of: list[int]
    is_word: list[bool]  # of target tokens; the others are punctuation
    is_word_of_source: list[bool]


def link(source: str, target: str, aligned: Iterable[tuple[int, int, Alignment]]) -> TokenLinks:
    """Links between the tokens of two texts, from the alignments of parts and where these begin in both."""
    sources, targets = ([match.span() for match in _TOKEN.finditer(text)] for text in (source, target))
    source_of = [-1] * len(targets)
    for source_start, target_start, alignment in aligned:
        weight_JI = _token_weights(alignment, source_start, target_start, sources, targets)
        for token in np.flatnonzero(weight_JI.max(axis=1, initial=0.0) > 0.0).tolist():
            source_of[token] = int(weight_JI[token].argmax())
    words = ([text[start].isalnum() for start, _ in spans] for text, spans in ((target, targets), (source, sources)))
    return TokenLinks(sources, targets, source_of, *words)


def _token_weights(
    alignment: Alignment, source_start: int, target_start: int, sources: Sequence[Span], targets: Sequence[Span]
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """[target token, source token]: how much one attends to the other."""
    parts = []
    for spans, start, tokens in (
        (alignment.target_spans.spans, target_start, targets),
        (alignment.source_spans.spans, source_start, sources),
    ):
        piece_P2 = np.array(spans, dtype=np.int64).reshape(-1, 2) + start
        token_T2 = np.array(tokens, dtype=np.int64).reshape(-1, 2)
        overlap_TP = np.minimum(piece_P2[:, 1], token_T2[:, None, 1]) - np.maximum(piece_P2[:, 0], token_T2[:, None, 0])
        parts.append((overlap_TP > 0).astype(np.float64))
    from_J, from_I = parts
    return from_J @ alignment.weights @ from_I.T


def project(marks: Sequence[tuple[int, Mark]], target: str, links: TokenLinks, whole: Sequence[Span] = ()) -> Parts:
    """The translation with the marks in it; `marks` have their places in the source. Spans in `whole` stay whole."""
    parts = _placed(_elements(marks), 0, len(target), target, links, whole)
    return tuple(part for part in parts if part != "")


def _elements(marks: Sequence[tuple[int, Mark]]) -> list[_Element]:
    """The outermost elements, with others in them."""
    found: list[_Element] = []
    stack: list[_Element] = []
    for place, mark in marks:
        if mark.kind == "close" and stack and stack[-1].opening.number == mark.number:
            stack[-1].end, stack[-1].closing = place, mark
            stack.pop()
            continue
        element = _Element(mark, place, place)
        (stack[-1].inner if stack else found).append(element)
        if mark.kind == "open":
            stack.append(element)
    return found


def _placed(
    elements: Sequence[_Element], start: int, end: int, target: str, links: TokenLinks, whole: Sequence[Span]
) -> list[str | Mark]:
    """The stretch of the target from `start` to `end` with these elements in it."""
    stretches = [(*_stretch(element, start, end, links), element) for element in elements]
    stretches.sort(key=lambda stretch: stretch[:2])
    parts: list[str | Mark] = []
    place = start
    for first, last, element in stretches:
        first = max(place, _outside(first, whole))
        last = max(first, min(end, _outside(last, whole)))
        parts += [target[place:first], element.opening]
        if element.closing is not None:
            parts += [*_placed(element.inner, first, last, target, links, whole), element.closing]
        place = last
    return [*parts, target[place:end]]


def _outside(place: int, whole: Sequence[Span]) -> int:
    """The end of a span that stays whole, if the place is within it."""
    return next((end for start, end in whole if start < place < end), place)


def _stretch(element: _Element, start: int, end: int, links: TokenLinks) -> Span:
    """Where an element goes, within a stretch of the target."""
    tokens = [number for number, (first, last) in enumerate(links.target) if start <= first and last <= end]
    own = {
        number for number, (first, last) in enumerate(links.source) if element.start <= first and last <= element.end
    }
    if not own or element.closing is None:
        place = _place_of_single(element.start, tokens, links, start, end)
        return place, place
    linked = [number for number in tokens if links.source_of[number] in own]
    linked = [number for number in linked if links.is_word[number]] or linked
    run = _longest_run(linked)
    if not run:
        place = _place_of_single(element.start, tokens, links, start, end)
        return place, place
    first, last = run[0], run[-1]
    if len(own) == len(links.source):  # all of the text
        first, last = tokens[0], tokens[-1]
    if not links.is_word_of_source[max(own)] and last + 1 in tokens and not links.is_word[last + 1]:
        last += 1  # its own full stop
    if not links.is_word_of_source[min(own)] and first - 1 in tokens and not links.is_word[first - 1]:
        first -= 1
    return links.target[first][0], links.target[last][1]


def _longest_run(numbers: Sequence[int]) -> list[int]:
    """The most numbers in a row, with small gaps."""
    best: list[int] = []
    run: list[int] = []
    for number in numbers:
        run = [*run, number] if run and number - run[-1] <= LARGEST_GAP else [number]
        best = run if len(run) > len(best) else best
    return best


def _place_of_single(place: int, tokens: Sequence[int], links: TokenLinks, start: int, end: int) -> int:
    """Where a mark goes that covers no words: with the word it touches at its left, else with the next one."""
    before = max((number for number, (_, last) in enumerate(links.source) if last <= place), default=-1)
    after = before + 1
    touches = before >= 0 and links.source[before][1] == place
    if before < 0 or (after >= len(links.source) and not touches):
        return start if before < 0 else end
    following = [number for number in tokens if links.source_of[number] == after]
    preceding = [number for number in tokens if links.source_of[number] == before]
    if (touches and preceding) or not following:
        return links.target[preceding[-1]][1] if preceding else end
    return links.target[following[0]][0]
