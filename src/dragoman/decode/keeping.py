"""Translates lines with spans that must come out unchanged, each exactly once. Knows nothing of models or files.

Every line is tried in up to three ways (see protected.py), until one keeps all its words: as it is, so that a model
that can copy does; with numbers in place of kept words; and with numbers that the search must write.
"""

import bisect
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from dragoman.decode.alignment import Alignment
from dragoman.decode.projection import TokenLinks, find_emptied, keep_spaces, link, project
from dragoman.decode.protected import Located, Protected, stand_in_terms
from dragoman.decode.terms import Term
from dragoman.decode.translation import Alternative, Translation
from dragoman.documents.document import Kept, Mark, Parts

# texts, terms that must appear where a text has them, and which of the lines the texts are of
Translate = Callable[[list[str], list[Term], list[int]], list[Translation]]
Align = Callable[[list[str], list[str]], list[Alignment]]
_WITHOUT_LINE_BREAKS = dict.fromkeys(map(ord, "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"))
OPENING = "([{„“‚‘«‹¿¡\"'"  # no space follows these


class Restored(NamedTuple):
    """A translation, and its text with everything that was kept."""

    translation: Translation
    parts: Parts
    spellings: list[str]  # of kept words, in the model's own text


class _Attempt(NamedTuple):
    """What a model was given and gave back."""

    line: Protected
    translation: Translation
    source: str  # without marks
    spellings: list[str]  # of kept words

    @property
    def has_text(self) -> bool:
        return self.translation.status not in ("failed", "empty")

    @property
    def located(self) -> Located:
        return self.line.locate(self.translation.text, self.spellings)

    @property
    def is_incomplete(self) -> bool:
        return self.has_text and not self.located.is_complete


def restore_kept(
    lines: Sequence[Protected], translations: Sequence[Translation], translate: Translate, align: Align
) -> list[Restored]:
    """Put back what each line keeps. `translations` are of their texts; what they have lost is translated again."""
    attempts = _attempts(lines, translations, translate)
    return [_restore(attempt, links) for attempt, links in zip(attempts, _links(attempts, align), strict=True)]


def _attempts(lines: Sequence[Protected], translations: Sequence[Translation], translate: Translate) -> list[_Attempt]:
    attempts = [
        _Attempt(line, translation, line.text, line.spellings)
        for line, translation in zip(lines, translations, strict=True)
    ]
    for is_forced in (False, True):
        left = [number for number, attempt in enumerate(attempts) if attempt.is_incomplete]
        texts = [lines[number].text_with_stand_ins for number in left]
        stand_ins = {stand_in for number in left for stand_in in lines[number].stand_ins}
        terms = stand_in_terms(sorted(stand_ins)) if is_forced else []
        found = translate(texts, terms, left) if left else []
        for number, text, translation in zip(left, texts, found, strict=True):
            attempt = _Attempt(lines[number], translation, text, lines[number].stand_ins)
            attempts[number] = attempt if attempt.has_text else attempts[number]
    return attempts


def _links(attempts: Sequence[_Attempt], align: Align) -> list[TokenLinks | None]:
    """Which words belong together, of the lines whose marks or lost words need a place."""
    pairs: list[tuple[int, int, int, str, str]] = []  # attempt, where a piece starts on both sides, and the piece
    needed = {
        number
        for number, attempt in enumerate(attempts)
        if attempt.has_text and (attempt.line.has_marks or attempt.is_incomplete)
    }
    for number in sorted(needed):
        pairs += [(number, *piece) for piece in _pieces(attempts[number])]
    alignments = align([pair[3] for pair in pairs], [pair[4] for pair in pairs]) if pairs else []
    aligned: dict[int, list[tuple[int, int, Alignment]]] = {number: [] for number in needed}
    for (number, source_start, target_start, *_), alignment in zip(pairs, alignments, strict=True):
        aligned[number].append((source_start, target_start, alignment))
    return [
        link(attempt.source, attempt.translation.text, aligned[number]) if number in needed else None
        for number, attempt in enumerate(attempts)
    ]


def _pieces(attempt: _Attempt) -> list[tuple[int, int, str, str]]:
    """Where each piece that was translated on its own starts on both sides, and its two texts."""
    found = []
    source_start = target_start = 0
    for source, target in attempt.translation.pieces:
        source_start = max(source_start, attempt.source.find(source, source_start))
        target_start = max(target_start, attempt.translation.text.find(target, target_start))
        if source.strip() and target.strip():
            found.append((source_start, target_start, source, target))
        source_start, target_start = source_start + len(source), target_start + len(target)
    return found


def _restore(attempt: _Attempt, links: TokenLinks | None) -> Restored:
    line, translation = attempt.line, attempt.translation
    if not attempt.has_text:
        return Restored(translation, line.parts, attempt.spellings)
    located = attempt.located
    parts: Parts = (translation.text,)
    if links is not None:
        parts = _with_marks(attempt, located, links)
    parts = keep_spaces(line.parts, _with_kept(parts, located))
    if not located.is_complete:
        names = ", ".join(repr(kept.text) for kept in sorted([*located.lost, *located.repeated]))
        translation = replace(translation, status="altered", reason=f"{names} could not be placed by the model")
    elif lost := find_emptied(line.parts, parts):
        names = ", ".join(repr(text) for text in lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        reason = f"the markup around {names} has no words in the translation"
        translation = replace(translation, status="altered", reason=reason)
    return Restored(translation, parts, attempt.spellings)


def _with_marks(attempt: _Attempt, located: Located, links: TokenLinks) -> Parts:
    """The translation with its marks, and with a mark for each word that was lost."""
    places = attempt.line.places(attempt.spellings)
    lost, found = {*located.lost}, {place.kept: place for place in located.found}
    ends = {part: end for end, part in places if isinstance(part, Kept)}
    copies = [
        ((ends[kept] - len(spelling), ends[kept]), found[kept][:2])
        for kept, spelling in zip(attempt.line.kept, attempt.spellings, strict=True)
        if kept in found
    ]
    marks = [
        (place, part if isinstance(part, Mark) else Mark(part.number, "single"))
        for place, part in places
        if isinstance(part, Mark) or part in lost
    ]
    whole = [place[:2] for place in located.found] + located.surplus
    return project(marks, attempt.translation.text, links.with_copies(copies), whole)


def _with_kept(parts: Parts, located: Located) -> Parts:
    """Replace stretches of the text, and marks of lost words, by the words that are kept."""
    lost = {kept.number: kept for kept in located.lost}
    changes = sorted(
        [*located.found, *((start, end, None) for start, end in located.surplus)], key=lambda each: each[0]
    )
    starts = [change[0] for change in changes]
    result: list[str | Mark | Kept] = []
    start = 0  # of the part, in the text
    for part in parts:
        if isinstance(part, Mark):
            result.append(lost.get(part.number, part) if part.kind == "single" else part)
        elif isinstance(part, str):
            place, end = start, start + len(part)
            for first, last, kept in changes[bisect.bisect_left(starts, start) : bisect.bisect_right(starts, end)]:
                if last <= end:
                    result += [part[place - start : first - start], *([kept] if kept else [])]
                    place = last
            result.append(part[place - start :])
            start = end
    return _spaced([part for part in result if part != ""], {*located.lost})


def _spaced(parts: Sequence[str | Mark | Kept], added: Set[Kept]) -> Parts:
    """The parts with spaces around words that were added."""
    result: list[str | Mark | Kept] = []
    last, after_added = "", False  # what the reader sees before a part: its last character
    for part in parts:
        if isinstance(part, Mark):
            result.append(part)
            continue
        text = part if isinstance(part, str) else part.text
        is_added = isinstance(part, Kept) and part in added
        begins_word = isinstance(part, Kept) or text[0].isalnum()
        if last and not last.isspace() and ((is_added and last not in OPENING) or (after_added and begins_word)):
            place = len(result)
            while place and isinstance(mark := result[place - 1], Mark) and mark.kind == "open":
                place -= 1  # an element begins with a word
            result.insert(place, " ")
        result.append(part)
        last, after_added = text[-1:], is_added
    return tuple(result)


def restored_line(source: str, line: Protected, restored: Restored) -> Translation:
    """The translation of a line of text, with everything it keeps."""
    translation = restored.translation
    if translation.status == "failed":
        return replace_text(translation, source, translation.text)
    others = [
        replace(other, text=line.line(_with_kept((other.text,), located)))
        for other in translation.alternatives[1:]
        if not line.has_marks and (located := line.locate(other.text, restored.spellings)).is_complete
    ]
    return replace_text(translation, source, line.line(restored.parts), others)


def unchanged_line(source: str, line: Protected) -> Translation:
    """Of a line that has nothing to translate besides what it keeps."""
    text = line.line(line.parts)
    return Translation(source, text, "translated", alternatives=(Alternative(text, 0.0, 0.0),))


def with_spaces_around(translation: Translation, *, has_prefix: bool = False) -> Translation:
    """With the white space before and after its source, such as an indentation; a prefix replaces that before it."""
    source = translation.source
    if source[:1].strip() == source[:1] and source[-1:].strip() == source[-1:]:
        return translation
    if not translation.text.strip():
        return translation
    before, after = spaces_around(source)
    before = "" if has_prefix else before
    others = [replace(other, text=before + other.text.strip() + after) for other in translation.alternatives[1:]]
    return replace_text(translation, source, before + translation.text.strip() + after, others)


def spaces_around(text: str) -> tuple[str, str]:
    """Of text that is not blank. Line breaks are not part of a line."""
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return before.translate(_WITHOUT_LINE_BREAKS), after.translate(_WITHOUT_LINE_BREAKS)


def replace_text(translation: Translation, source: str, text: str, others: Sequence[Alternative] = ()) -> Translation:
    alternatives = translation.alternatives
    best = [replace(alternatives[0], text=text)] if alternatives else []
    return replace(translation, source=source, text=text, alternatives=(*best, *others))
