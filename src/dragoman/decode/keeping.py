"""Translates lines with spans that must come out unchanged, each exactly once. Knows nothing of models or files.

Every line is tried in up to three ways (see protection.py), until one keeps all its words: as it is, so that a model
that can copy does; with numbers in place of kept words; and with numbers that the search must write.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dragoman.decode.alignment import Alignment
from dragoman.decode.projection import TokenLinks, link, project
from dragoman.decode.protection import Protected, stand_in_terms
from dragoman.decode.terms import Term
from dragoman.decode.translation import Alternative, Translation
from dragoman.documents.document import Kept, Mark, Parts

Translate = Callable[[list[str], list[Term]], list[Translation]]  # the terms that a text has must appear
Align = Callable[[list[str], list[str]], list[Alignment]]


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
    def found(self) -> list[tuple[int, int, Kept]] | None:
        return self.line.find_kept(self.translation.text, self.spellings)


def restore_kept(
    lines: Sequence[Protected], translations: Sequence[Translation], translate: Translate, align: Align
) -> list[Restored]:
    """Put back what each line keeps. `translations` are of their texts; what they have lost is translated again."""
    attempts = _attempts(lines, translations, translate)
    return [_restore(attempt, links) for attempt, links in zip(attempts, _links(attempts, align), strict=True)]


def _attempts(lines: Sequence[Protected], translations: Sequence[Translation], translate: Translate) -> list[_Attempt]:
    attempts = [
        _Attempt(line, translation, line.text, [kept.text for kept in line.kept])
        for line, translation in zip(lines, translations, strict=True)
    ]
    for is_forced in (False, True):
        left = [number for number, attempt in enumerate(attempts) if _lost(attempt)]
        texts = [lines[number].text_with_stand_ins for number in left]
        stand_ins = {stand_in for number in left for stand_in in lines[number].stand_ins}
        terms = stand_in_terms(sorted(stand_ins)) if is_forced else []
        found = translate(texts, terms) if left else []
        for number, text, translation in zip(left, texts, found, strict=True):
            attempts[number] = _Attempt(lines[number], translation, text, lines[number].stand_ins)
    return attempts


def _lost(attempt: _Attempt) -> bool:
    return attempt.translation.status not in ("failed", "empty") and attempt.found is None


def _links(attempts: Sequence[_Attempt], align: Align) -> list[TokenLinks | None]:
    """Which words belong together, of the lines whose marks or lost words need a place."""
    pairs: list[tuple[int, int, int, str, str]] = []  # attempt, where a piece starts on both sides, and the piece
    for number, attempt in enumerate(attempts):
        if attempt.line.has_marks or _lost(attempt):
            pairs += [(number, *piece) for piece in _pieces(attempt)]
    alignments = align([pair[3] for pair in pairs], [pair[4] for pair in pairs]) if pairs else []
    aligned: dict[int, list[tuple[int, int, Alignment]]] = {}
    for (number, source_start, target_start, *_), alignment in zip(pairs, alignments, strict=True):
        aligned.setdefault(number, []).append((source_start, target_start, alignment))
    return [
        link(attempt.source, attempt.translation.text, aligned[number]) if number in aligned else None
        for number, attempt in enumerate(attempts)
    ]


def _pieces(attempt: _Attempt) -> list[tuple[int, int, str, str]]:
    """Where each piece that was translated on its own starts on both sides, and its two texts."""
    found = []
    source_start = target_start = 0
    for source, target in attempt.translation.pieces:
        source_start = max(source_start, attempt.source.find(source, source_start))
        target_start = max(target_start, attempt.translation.text.find(target, target_start))
        if source.strip() and target:
            found.append((source_start, target_start, source, target))
        source_start, target_start = source_start + len(source), target_start + len(target)
    return found


def _restore(attempt: _Attempt, links: TokenLinks | None) -> Restored:
    line, translation = attempt.line, attempt.translation
    if translation.status in ("failed", "empty"):
        return Restored(translation, line.parts, attempt.spellings)
    found, lost = attempt.found, list[Kept]()
    if found is None:
        found, lost = _what_is_left(attempt)
    places = line.places(attempt.spellings)
    marks = [
        (place, part if isinstance(part, Mark) else Mark(part.number, "single"))
        for place, part in places
        if isinstance(part, Mark) or part in lost
    ]
    whole = [(start, end) for start, end, _ in found]
    parts: Parts = (translation.text,)
    if marks:
        assert links is not None
        parts = project(marks, translation.text, links, whole)
    parts = _with_kept(parts, found, {kept.number: kept for kept in lost})
    if lost:
        names = ", ".join(repr(kept.text) for kept in lost)
        translation = replace(translation, status="altered", reason=f"{names} could not be placed by the model")
    return Restored(translation, parts, attempt.spellings)


def _what_is_left(attempt: _Attempt) -> tuple[list[tuple[int, int, Kept]], list[Kept]]:
    """The kept words that are in the translation once, and those that are not: to be placed by the alignment."""
    found, lost = list[tuple[int, int, Kept]](), list[Kept]()
    for kept, spelling in zip(attempt.line.kept, attempt.spellings, strict=True):
        alone = Protected((kept,), {}).find_kept(attempt.translation.text, [spelling])
        if alone and attempt.spellings.count(spelling) == 1:
            found += alone
        else:
            lost.append(kept)
    return sorted(found), lost


def _with_kept(parts: Parts, found: Sequence[tuple[int, int, Kept]], lost: dict[int, Kept]) -> Parts:
    """Replace stretches of the text, and marks of lost words, by the words that are kept."""
    result: list[str | Mark | Kept] = []
    start = 0  # of the part, in the text
    for part in parts:
        if isinstance(part, Mark):
            result += [" ", lost[part.number]] if part.kind == "single" and part.number in lost else [part]
        elif isinstance(part, str):
            place = start
            for first, last, kept in found:
                if start <= first and last <= start + len(part):
                    result += [part[place - start : first - start], kept]
                    place = last
            result.append(part[place - start :])
            start += len(part)
    return tuple(part for part in result if part != "")


def restored_line(source: str, line: Protected, restored: Restored) -> Translation:
    """The translation of a line of text, with everything it keeps."""
    translation = restored.translation
    if translation.status == "failed":
        return replace_text(translation, source, translation.text, ())
    others = [
        Alternative(line.line(_with_kept((other.text,), found, {})), other.score, other.normalized_score, other.tokens)
        for other in translation.alternatives[1:]
        if not line.has_marks and (found := line.find_kept(other.text, restored.spellings)) is not None
    ]
    return replace_text(translation, source, line.line(restored.parts), others)


def replace_text(translation: Translation, source: str, text: str, others: Sequence[Alternative]) -> Translation:
    alternatives = translation.alternatives
    best = [replace(alternatives[0], text=text)] if alternatives else []
    status = "translated" if translation.status == "empty" and text else translation.status
    return replace(translation, source=source, text=text, status=status, alternatives=(*best, *others))
