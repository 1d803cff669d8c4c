"""A line in parts: text, kept words and marks. What a model sees of it, and what a translation kept. Knows no models.

Three texts can be made of a line for a model to translate: as it is; with a number in place of each kept word, because
models copy numbers; the same, and each number must appear. Tags have no words, so a model never sees them. They go to
where the words around them went.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dragoman.decode.terms import Term
from dragoman.documents.document import Kept, Mark, Parts

_NUMBER, _WORD = re.compile(r"\d+"), re.compile(r"\w+")
FIRST_STAND_IN, STEP = 417, 101
THREE_DIGITS = range(113, 1000)  # 887 numbers, a prime: every step through them reaches all. Models copy them best.
_OPENING = frozenset("([{")
LONGEST_OWN = 4  # digits of a number that is its own stand-in


class Place(NamedTuple):
    """Where a kept word is in a translation."""

    start: int
    end: int
    kept: Kept


class Located(NamedTuple):
    """What of its kept words a translation has."""

    found: list[Place]  # in order
    lost: list[Kept]
    surplus: list[tuple[int, int]]  # a word once more than it should be there, and the space before it
    repeated: list[Kept]  # the words of the surplus

    @property
    def is_complete(self) -> bool:
        return not self.lost and not self.surplus


@dataclass(frozen=True)
class Protected:
    """A line with spans that a translation keeps."""

    parts: Parts
    originals: Mapping[Mark | Kept, str]  # as they were in the line

    @cached_property
    def kept(self) -> list[Kept]:
        return [part for part in self.parts if isinstance(part, Kept)]

    @property
    def spellings(self) -> list[str]:
        """Of the kept words, as they are."""
        return [kept.text for kept in self.kept]

    @property
    def text(self) -> str:
        """Without marks."""
        return "".join(self._texts(self.spellings))

    @cached_property
    def stand_ins(self) -> list[str]:
        """A number for each kept word that is nowhere else, or the word itself if it is such a number."""
        taken, words = set(_NUMBER.findall(self.text)), Counter(_WORD.findall(self.text))
        unused = (number for number in _stand_ins() if number not in taken)
        return [
            text if text.isdecimal() and len(text) <= LONGEST_OWN and words[text] == 1 else next(unused)
            for text in self.spellings
        ]

    @property
    def text_with_stand_ins(self) -> str:
        return "".join(self._texts(self.stand_ins))

    def with_stand_ins(self, text: str) -> str:
        """A text with stand-ins for the kept words that it has, such as the beginning of a translation."""
        located = self.locate(text, self.spellings)
        stand_in_of = dict(zip(self.kept, self.stand_ins, strict=True))
        for start, end, kept in reversed(located.found):
            text = text[:start] + stand_in_of[kept] + text[end:]
        return text

    def _texts(self, spellings: Sequence[str]) -> list[str]:
        """What a model sees of each part. A space keeps words apart that only a mark separates, kept words from each
        other, and stand-ins from letters and digits."""
        rest, texts = iter(spellings), list[str]()
        with_stand_ins = list(spellings) != self.spellings
        last, after_kept, after_single = "", False, False  # of the text so far: its last character; what ended it
        for part in self.parts:
            if isinstance(part, Mark):
                after_single |= part.kind == "single"
                texts.append("")
                continue
            is_kept = isinstance(part, Kept)
            text = next(rest) if is_kept else str(part)
            touches = last.isalnum() and text[:1].isalnum()
            separates = (
                (after_single and (is_kept or text[:1].isalnum()))
                or (after_kept and is_kept)
                or (with_stand_ins and (after_kept or is_kept) and touches)
            )
            is_apart = not last or last.isspace() or last in _OPENING
            texts.append(" " + text if separates and not is_apart else text)
            last, after_kept, after_single = text[-1:] or last, is_kept, False
        return texts

    def places(self, spellings: Sequence[str]) -> list[tuple[int, Mark | Kept]]:
        """Where each mark and each kept word is in the text that a model sees; the end of the word."""
        found, place = list[tuple[int, Mark | Kept]](), 0
        for part, text in zip(self.parts, self._texts(spellings), strict=True):
            place += len(text)
            if not isinstance(part, str):
                found.append((place, part))
        return found

    @property
    def has_marks(self) -> bool:
        return any(isinstance(part, Mark) for part in self.parts)

    @property
    def has_words(self) -> bool:
        """Whether there is anything to translate besides what is kept."""
        return any(character.isalpha() for part in self.parts if isinstance(part, str) for character in part)

    def locate(self, translation: str, spellings: Sequence[str]) -> Located:
        """Find the kept words in a translation, given how they are spelled there."""
        wanted: dict[str, list[Kept]] = {}
        for kept, spelling in zip(self.kept, spellings, strict=True):
            wanted.setdefault(spelling, []).append(kept)
        stand_ins = {spelling for spelling, own in wanted.items() if spelling != own[0].text}
        located, places = Located([], [], [], []), _places(translation, wanted, stand_ins)
        for spelling, own in wanted.items():
            spans = places.get(spelling, [])
            located.found.extend(Place(*span, kept) for span, kept in zip(spans, own, strict=False))
            located.lost.extend(own[len(spans) :])
            located.surplus.extend((start - (translation[start - 1] == " "), end) for start, end in spans[len(own) :])
            located.repeated.extend(own[:1] if len(spans) > len(own) else [])
        located.found.sort()
        return located

    def line(self, parts: Parts) -> str:
        """A line again, from the parts of its translation."""
        return "".join(part if isinstance(part, str) else self.originals[part] for part in parts)


def _stand_ins() -> Iterator[str]:
    """Numbers without end, none twice."""
    first, size = THREE_DIGITS.start, len(THREE_DIGITS)
    short = (first + (FIRST_STAND_IN - first + STEP * number) % size for number in range(size))
    return map(str, itertools.chain(short, itertools.count(THREE_DIGITS.stop)))


def _places(translation: str, spellings: Mapping[str, object], stand_ins: Set[str]) -> dict[str, list[tuple[int, int]]]:
    """Where each spelling is in a translation. None overlaps another: a span that is part of a longer one is not it.

    But a longer number that a stand-in is part of, as 417 is of 417.00, has no other origin: all of it is the stand-in.
    """
    others = {spelling for spelling in spellings if spelling and not spelling.isdecimal()}
    patterns = [
        *map(_whole, sorted(others, key=len, reverse=True)),
        *([_ANY_NUMBER] if spellings.keys() - others else []),
    ]
    found: dict[str, list[tuple[int, int]]] = {}
    for match in re.finditer("|".join(patterns), translation) if patterns else ():
        if match.group() in spellings:
            found.setdefault(match.group(), []).append(match.span())
            continue
        start, end = match.span()
        parts = [part for part in _NUMBER.finditer(match.group()) if part.group() in spellings]
        if stand_ins.isdisjoint(part.group() for part in parts):
            continue
        for part in parts:
            span = (start + part.start(), start + part.end()) if len(parts) > 1 else (start, end)
            found.setdefault(part.group(), []).append(span)
    return found


# A number that is not part of a longer one. It may have letters after it: `417th`
_BEFORE_NUMBER, _AFTER_NUMBER = r"(?<!\w)(?<!\d[.,:/’'-])", r"(?![.,:/’'-]?\d)"
_ANY_NUMBER = rf"{_BEFORE_NUMBER}\d+(?:[.,:/’'-]\d+)*"  # the whole of one; one pattern for all: there may be very many


def _whole(spelling: str) -> str:
    """A pattern for a span that is not part of something longer."""
    before = _BEFORE_NUMBER if spelling[0].isdecimal() else r"(?<!\w)" if spelling[0].isalnum() else ""
    after = _AFTER_NUMBER if spelling[-1].isdecimal() else r"(?!\w)" if spelling[-1].isalnum() else ""
    return before + re.escape(spelling) + after


def stand_in_terms(stand_ins: Sequence[str]) -> list[Term]:
    """Numbers that must appear wherever they occur in the source."""
    return [Term((stand_in,), (stand_in,), "exact", once=True) for stand_in in dict.fromkeys(stand_ins)]
