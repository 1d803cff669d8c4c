"""Puts the marks of a source text into its translation, where the words between them went. Knows nothing of models.

An element covers the target words that are linked to its source words, as one stretch: a mark occurs once, elements
stay nested. An element that covers part of a word covers all of it. A mark of its own goes with the word it touches,
else with the next word.
"""

import bisect
import re
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dragoman.decode.alignment import Alignment, members
from dragoman.documents.document import Kept, Mark, Parts, merge_text, text_of

Span = tuple[int, int]
DEEPEST = 100  # elements within each other
_TOKEN = re.compile(r"\w+|[^\w\s]")
_ENDING = frozenset(".,;:!?…)")  # of sentences and clauses: a space may follow


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

    @cached_property
    def targets_of(self) -> list[list[int]]:
        """The target tokens that translate each source token, in order."""
        found: list[list[int]] = [[] for _ in self.source]
        for target, source in enumerate(self.source_of):
            if source >= 0:
                found[source].append(target)
        return found

    def with_copies(self, copies: Iterable[tuple[Span, Span]]) -> "TokenLinks":
        """The same, given stretches of the target that are copies of stretches of the source: these have no other."""
        source_of = list(self.source_of)
        pairs = [(_touched(self.source, source), _touched(self.target, target)) for source, target in copies]
        copied = {token for sources, _ in pairs for token in sources}
        source_of = [-1 if source in copied else source for source in source_of]
        for sources, targets in pairs:
            for token in targets:
                source_of[token] = sources.start if sources else -1
        return replace(self, source_of=source_of)


def link(source: str, target: str, aligned: Iterable[tuple[int, int, Alignment]]) -> TokenLinks:
    """Links between the tokens of two texts, from the alignments of parts and where these begin in both."""
    sources, targets = ([match.span() for match in _TOKEN.finditer(text)] for text in (source, target))
    source_of = [-1] * len(targets)
    for source_start, target_start, alignment in aligned:
        own_I = _touched(sources, (source_start, source_start + len(alignment.source)))
        own_J = _touched(targets, (target_start, target_start + len(alignment.target)))
        weight_JI = (
            members(alignment.target_spans.spans, _shifted(targets[own_J.start : own_J.stop], -target_start))
            @ alignment.weights
            @ members(alignment.source_spans.spans, _shifted(sources[own_I.start : own_I.stop], -source_start)).T
        )
        for token in np.flatnonzero(weight_JI.max(axis=1, initial=0.0) > 0.0).tolist():
            source_of[own_J.start + token] = own_I.start + int(weight_JI[token].argmax())
    words = ([text[start].isalnum() for start, _ in spans] for text, spans in ((target, targets), (source, sources)))
    return TokenLinks(sources, targets, source_of, *words)


def _shifted(spans: Sequence[Span], by: int) -> list[Span]:
    return [(start + by, end + by) for start, end in spans]


def _touched(tokens: Sequence[Span], stretch: Span) -> range:
    """The tokens that overlap a stretch of text."""
    start, end = stretch
    first = bisect.bisect_right(tokens, start, key=lambda token: token[1])
    return range(first, max(first, bisect.bisect_left(tokens, end, key=lambda token: token[0])))


def _inside(tokens: Sequence[Span], start: int, end: int) -> range:
    """The tokens that lie within a stretch of text."""
    first = bisect.bisect_left(tokens, start, key=lambda token: token[0])
    return range(first, max(first, bisect.bisect_right(tokens, end, key=lambda token: token[1])))


def project(marks: Sequence[tuple[int, Mark]], target: str, links: TokenLinks, whole: Sequence[Span] = ()) -> Parts:
    """The translation with the marks in it; `marks` have their places in the source. Spans in `whole` stay whole."""
    parts = _placed(_elements(marks), 0, len(target), target, links, sorted(whole))
    return tuple(part for part in parts if part != "")


def keep_spaces(source: Parts, target: Parts) -> Parts:
    """The target with a space on both sides of each mark without words, `<!-- c -->` or `<b></b>`, that has one there.

    A projected mark touches a word. No space is added before punctuation, nor after what opens brackets or quotes,
    unless the source has it: Well done 🎉!
    """
    before, after = _spaces_wanted(source)
    before_punctuation = _before_punctuation(source)
    if not before and not after and not before_punctuation:
        return target
    spaced: list[str | Mark | Kept] = []
    for part, left, right in zip(target, *_neighbours(target), strict=True):
        follows, precedes = left.isalnum() or left in _ENDING, right.isalnum()  # a word, at that side
        is_free = (follows or left[:1].isspace() or not left) and (precedes or right[:1].isspace() or not right)
        is_before_punctuation = part in before_punctuation and right in _ENDING
        spaced += [" "] if follows and (is_before_punctuation or (is_free and part in before)) else []
        spaced.append(part)
        spaced += [" "] if is_free and part in after and precedes else []
    return merge_text(spaced)


def _spaces_wanted(parts: Parts) -> tuple[set[str | Mark | Kept], set[str | Mark | Kept]]:
    """The marks without words that stand between spaces, or between one and an end: those with one before or after."""
    before, after = set[str | Mark | Kept](), set[str | Mark | Kept]()
    lefts, rights = _neighbours(parts)
    for place, part in enumerate(parts):
        if not isinstance(part, Mark) or part.kind == "close":
            continue
        end = place + (part.kind == "open")
        if end > place and parts[end : end + 1] != (Mark(part.number, "close"),):
            continue
        if all(not each or each.isspace() for each in (lefts[place], rights[end])):
            before |= {part} if place and isinstance(parts[place - 1], str) else set()
            after |= {parts[end]} if end + 1 < len(parts) and isinstance(parts[end + 1], str) else set()
    return before, after


def _before_punctuation(parts: Parts) -> set[str | Mark | Kept]:
    """Marks of their own after a space and before punctuation."""
    sides = zip(parts, *_neighbours(parts), strict=True)
    return {
        part
        for part, left, right in sides
        if isinstance(part, Mark) and part.kind == "single" and left.isspace() and right in _ENDING
    }


def _neighbours(parts: Parts) -> tuple[list[str], list[str]]:
    """For each part the last character that is seen before it, and the first one after it; a kept word is a letter."""
    sides: list[list[str]] = []
    for step in (1, -1):
        seen, found = "", list[str]()
        for part in parts[::step]:
            found.append(seen)
            if isinstance(part, str) and part:
                seen = part[-1] if step == 1 else part[0]
            elif isinstance(part, Kept):
                seen = "k"
        sides.append(found[::step])
    return sides[0], sides[1]


def find_emptied(source: Parts, target: Parts) -> list[str]:
    """The texts of elements that have words in the source, and in the target nothing to see."""
    words_in, spans = _measure_elements(source, str.isalnum)
    seen_in, _ = _measure_elements(target, lambda character: not character.isspace())
    lost = [spans[number] for number, count in words_in.items() if count and not seen_in.get(number)]
    text = text_of(source) if lost else ""
    return [text[start:end].strip() for start, end in lost]


def _measure_elements(parts: Parts, counts: Callable[[str], bool]) -> tuple[dict[int, int], dict[int, Span]]:
    """How many characters of a kind each pair of marks is around, and where it lies in the text."""
    number, length = 0, 0
    numbers, spans = dict[int, int](), dict[int, Span]()
    for part in parts:
        if not isinstance(part, Mark):
            text = part if isinstance(part, str) else part.text
            number, length = number + sum(map(counts, text)), length + len(text)
        elif part.kind == "open":
            numbers[part.number], spans[part.number] = -number, (length, length)
        elif part.kind == "close" and part.number in spans:
            numbers[part.number] += number
            spans[part.number] = spans[part.number][0], length
    return numbers, spans


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
    elements: Sequence[_Element],
    start: int,
    end: int,
    target: str,
    links: TokenLinks,
    whole: Sequence[Span],
    depth: int = 1,
) -> list[str | Mark]:
    """The stretch of the target from `start` to `end` with these elements in it."""
    region = _region(start, end, links)
    stretches = [(*_widened(_stretch(element, region, links), whole), element) for element in elements]
    stretches.sort(key=lambda stretch: stretch[:2])
    parts: list[str | Mark] = []
    place = start
    for first, last, element in stretches:
        first = max(place, first)
        last = max(first, last)
        first = last - len(target[first:last].lstrip())  # what begins later than planned still begins with a word
        parts += [target[place:first], element.opening]
        if element.closing is not None and depth < DEEPEST:
            parts += [*_placed(element.inner, first, last, target, links, whole, depth + 1), element.closing]
        elif element.closing is not None:
            parts += [*_all_marks(element.inner), target[first:last], element.closing]
        place = last
    return [*parts, target[place:end]]


def _all_marks(elements: Sequence[_Element]) -> list[Mark]:
    """The marks of elements and of all in them, in their order, without text: nested too deep to find places for."""
    marks: list[Mark] = []
    waiting: list[_Element | Mark] = [*reversed(elements)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mark):
            marks.append(one)
            continue
        marks.append(one.opening)
        waiting += [*([one.closing] if one.closing is not None else []), *reversed(one.inner)]
    return marks


def _widened(stretch: Span, whole: Sequence[Span]) -> Span:
    """A stretch that cuts no span that stays whole. An empty one moves to the end of it."""
    first, last = (_span_around(place, whole) or (place, place) for place in stretch)
    return (last[1], last[1]) if stretch[0] == stretch[1] else (first[0], last[1])


def _span_around(place: int, whole: Sequence[Span]) -> Span | None:
    number = bisect.bisect_left(whole, place, key=lambda span: span[0]) - 1  # the last that starts before it
    return whole[number] if number >= 0 and place < whole[number][1] else None


class _Region(NamedTuple):
    """A stretch of the target that elements are placed in."""

    start: int
    end: int
    tokens: range
    sources: list[int]  # tokens of the source that are linked to these, in order


def _region(start: int, end: int, links: TokenLinks) -> _Region:
    tokens = _inside(links.target, start, end)
    sources = {links.source_of[token] for token in tokens} - {-1}
    return _Region(start, end, tokens, sorted(sources))


def _stretch(element: _Element, region: _Region, links: TokenLinks) -> Span:
    """Where an element goes, within a stretch of the target."""
    tokens = region.tokens
    own = _touched(links.source, (element.start, element.end)) if element.start < element.end else range(0)
    linked = [token for source in own for token in links.targets_of[source] if token in tokens]
    linked = [number for number in linked if links.is_word[number]] or linked
    if element.closing is None or not linked:
        place = _place_of_single(element.start, region, links)
        return place, place
    first, last = _best_run({*linked}, links)
    if len(own) == len(links.source):  # all of the text
        first, last = tokens[0], tokens[-1]
    if not links.is_word_of_source[own[-1]] and last + 1 in tokens and not links.is_word[last + 1]:
        last += 1  # its own full stop
    if not links.is_word_of_source[own[0]] and first - 1 in tokens and not links.is_word[first - 1]:
        first -= 1
    return links.target[first][0], links.target[last][1]


def _best_run(own: Set[int], links: TokenLinks) -> tuple[int, int]:
    """The first and last token of the stretch in which tokens of its own most outnumber others; of equal ones the
    first. Tokens without a link count half, punctuation not at all."""
    best, first, last = 0, -1, -1
    total, start = 0, min(own)
    for token in range(min(own), max(own) + 1):
        if total < 0:
            total, start = 0, token
        if token in own:
            total += 2
            if total > best or (total == best and start == first):
                best, first, last = total, start, token
        elif links.is_word[token]:
            total -= 1 if links.source_of[token] < 0 else 2
    return first, last


def _place_of_single(place: int, region: _Region, links: TokenLinks) -> int:
    """Where a mark goes that covers no words: with the word it touches at its left, else with the next one.

    If neither has a translation in this stretch, with the nearest word before it that has one.
    """
    after = bisect.bisect_right(links.source, place, key=lambda token: token[1])  # the first token that ends later
    if after == len(links.source) > 0:
        return region.end
    touches = after > 0 and links.source[after - 1][1] == place
    nearest = bisect.bisect_left(region.sources, after)  # the first that is linked from there on
    before = region.sources[nearest - 1 : nearest] if nearest else []
    is_linked = region.sources[nearest : nearest + 1] == [after]
    if not after or not (before or is_linked):
        return region.start
    if is_linked and not (touches and before == [after - 1]):
        targets = links.targets_of[after]
        return links.target[targets[bisect.bisect_left(targets, region.tokens.start)]][0]
    targets = links.targets_of[before[0]]
    return links.target[targets[bisect.bisect_left(targets, region.tokens.stop) - 1]][1]
