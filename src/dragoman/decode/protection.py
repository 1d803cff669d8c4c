"""What must come out of a translation unchanged: placeholders, addresses, tags, marked spans. Knows no models.

A line becomes parts: text, kept words and marks. Three texts can be made of it for a model to translate: as it is; with
a number in place of each kept word, because models copy numbers; the same, and each number must appear. Tags have no
words, so a model never sees them. They go to where the words around them went.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dragoman.config import PROTECTED
from dragoman.decode.terms import Term
from dragoman.documents.document import Kept, Mark, Parts

PATTERNS = {
    # {name} {{name}} ${name} $NAME %s %1$s %(name)s %.2f %NAME%; "50 % of" and "$100" are none
    "placeholders": r"\$?\{\{?[^{}\n]{0,100}\}\}?|\$[A-Za-z_]\w*|%\([^()\n]{1,60}\)[-+#0-9.]*[a-zA-Z]|%[A-Z_]{2,60}%"
    r"|(?<![\d%])%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh|ll|[hlLqjzt])?[diouxXeEfFgGcrsap@](?![a-zA-Z])",
    "addresses": r"(?:https?|ftp|file)://[^\s<>\"'“”«»]*[\w/&=#+~-]|(?<![\w.])www\.[\w.-]+\.[a-z]{2,}(?:/[^\s<>\"']*[\w/&=#+~-])?"
    r"|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+",
    "tags": r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>|<!--.*?-->",
    "numbers": r"\d+(?:[.,:/’'-]\d+)*",
}
MARKED = r"<keep>(?P<inner>.+?)</keep>"
# Every span contains one of these. They are rare, and quickly found.
_HINTS = re.compile(r"[{<$%@]|://|www\.")
_NUMBER = re.compile(r"\d+")
_TAG = re.compile(r"<(?:!--|(?P<closes>/?)(?P<name>[A-Za-z][\w:.-]*))")
FIRST_STAND_IN, STEP = 417, 101  # three digits: models copy them most reliably


@dataclass(frozen=True)
class Protected:
    """A line with spans that a translation keeps."""

    parts: Parts
    originals: Mapping[Mark | Kept, str]  # as they were in the line

    @property
    def kept(self) -> list[Kept]:
        return [part for part in self.parts if isinstance(part, Kept)]

    @property
    def text(self) -> str:
        """Without marks."""
        return "".join(self._texts([kept.text for kept in self.kept]))

    @property
    def stand_ins(self) -> list[str]:
        """A number for each kept word, or the word itself if it is a short number."""
        taken = set(_NUMBER.findall(self.text))
        found = []
        for kept in self.kept:
            stand_in = kept.text
            if not (stand_in.isdecimal() and len(stand_in) <= 4):
                stand_in = next(number for number in _stand_ins() if number not in taken)
                taken.add(stand_in)
            found.append(stand_in)
        return found

    @property
    def text_with_stand_ins(self) -> str:
        return "".join(self._texts(self.stand_ins))

    def _texts(self, spellings: Sequence[str]) -> list[str]:
        """What a model sees of each part. A space keeps words apart that only a mark separates, and kept words."""
        rest, texts = iter(spellings), list[str]()
        for number, part in enumerate(self.parts):
            before, after = (texts or [""])[-1][-1:], self.parts[number + 1 : number + 2]
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Kept):
                follows = number > 0 and isinstance(self.parts[number - 1], Kept)
                texts.append((" " if follows else "") + next(rest))
            else:
                starts_word = bool(after) and isinstance(after[0], str) and after[0][:1].isalnum()
                separates = part.kind == "single" and before and not before.isspace() and starts_word
                texts.append(" " if separates else "")
        return texts

    def places(self, spellings: Sequence[str]) -> list[tuple[int, Mark | Kept]]:
        """Where each mark and each kept word is in the text that a model sees; the end of the word."""
        found, place = list[tuple[int, Mark | Kept]](), 0
        for part, text in zip(self.parts, self._texts(spellings), strict=True):
            if isinstance(part, Mark):
                found.append((place, part))
            place += len(text)
            if isinstance(part, Kept):
                found.append((place, part))
        return found

    @property
    def has_marks(self) -> bool:
        return any(isinstance(part, Mark) for part in self.parts)

    def find_kept(self, translation: str, spellings: Sequence[str]) -> list[tuple[int, int, Kept]] | None:
        """Where each kept word is in a translation, given how it is spelled there; None unless each is there once."""
        found: list[tuple[int, int, Kept]] = []
        wanted: dict[str, list[Kept]] = {}
        for kept, spelling in zip(self.kept, spellings, strict=True):
            wanted.setdefault(spelling, []).append(kept)
        for spelling, own in wanted.items():
            places = [match.span() for match in re.finditer(_whole(spelling), translation)]
            if len(places) != len(own):
                return None
            found += [(*place, kept) for place, kept in zip(places, own, strict=True)]
        return sorted(found)

    def line(self, parts: Parts) -> str:
        """A line again, from the parts of its translation."""
        return "".join(part if isinstance(part, str) else self.originals[part] for part in parts)


def _stand_ins() -> Iterator[str]:
    number = FIRST_STAND_IN
    while True:
        yield str(number)
        number = number + STEP if number + STEP < 1000 else number + STEP - 887


def _whole(spelling: str) -> str:
    """A pattern for a span that is not part of something longer."""
    before = r"(?<!\w)" if spelling[:1].isalnum() else ""
    after = r"(?!\w)" if spelling[-1:].isalnum() else ""
    return before + re.escape(spelling) + after


def stand_in_terms(stand_ins: Sequence[str]) -> list[Term]:
    """Numbers that must appear wherever they occur in the source."""
    return [Term((stand_in,), (stand_in,), "exact", once=True) for stand_in in dict.fromkeys(stand_ins)]


class Protector:
    """Finds what to keep."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._has_numbers = "numbers" in kinds
        patterns = [f"(?P<marked>{MARKED})", *(f"(?P<{kind}>{PATTERNS[kind]})" for kind in PROTECTED if kind in kinds)]
        self._pattern = re.compile("|".join(patterns))

    def protect(self, line: str) -> Protected | None:
        """The line in parts; None if there is nothing to keep."""
        if not self._has_numbers and _HINTS.search(line) is None:
            return None
        parts: list[str | Mark | Kept] = []
        originals: dict[Mark | Kept, str] = {}
        open_tags: list[tuple[str, int]] = []  # their names, and their places in `parts`
        place = 0
        for number, match in enumerate(self._pattern.finditer(line)):
            parts.append(line[place : match.start()])
            place, span = match.end(), match.group()
            if match["marked"]:
                part: Mark | Kept = Kept(number, match["inner"])
                span = match["inner"]
            elif _TAG.match(span):
                part = _mark(number, span, len(parts), open_tags, parts, originals)
            elif parts[-1] == "" and len(parts) > 1 and isinstance(before := parts[-2], Kept):
                del parts[-2:]  # one after the other: to a model they are one word
                part, span = Kept(before.number, before.text + span), originals.pop(before) + span
            else:
                part = Kept(number, span)
            originals[part] = span
            parts.append(part)
        parts.append(line[place:])
        return Protected(tuple(part for part in parts if part != ""), originals) if originals else None


def _mark(
    number: int,
    tag: str,
    place: int,
    open_tags: list[tuple[str, int]],
    parts: list[str | Mark | Kept],
    originals: dict[Mark | Kept, str],
) -> Mark:
    """The mark of a tag. An end tag that belongs to a start tag makes a pair of both."""
    match = _TAG.match(tag)
    if match is None or match["name"] is None or tag.endswith("/>"):
        return Mark(number, "single")
    if not match["closes"]:
        open_tags.append((match["name"], place))
        return Mark(number, "single")  # until its end is found
    for depth in reversed(range(len(open_tags))):
        name, start = open_tags[depth]
        if name == match["name"]:
            single = parts[start]
            assert isinstance(single, Mark)
            opening = parts[start] = Mark(single.number, "open")
            originals[opening] = originals.pop(single)
            del open_tags[depth:]
            return Mark(single.number, "close")
    return Mark(number, "single")


def protect_parts(parts: Parts, protector: Protector | None) -> Protected:
    """The same for a text that has marks and kept words already, with the numbers that a document gave them."""
    first = 1 + max((part.number for part in parts if not isinstance(part, str)), default=-1)
    result: list[str | Mark | Kept] = []
    originals: dict[Mark | Kept, str] = {}
    for part in parts:
        found = protector.protect(part) if protector is not None and isinstance(part, str) else None
        if found is None:
            result.append(part)
            continue
        renumbered = {own: own._replace(number=own.number + first) for own in found.originals}
        originals |= {renumbered[own]: original for own, original in found.originals.items()}
        result += [own if isinstance(own, str) else renumbered[own] for own in found.parts]
        first += len(found.originals)
    return Protected(tuple(result), originals)


def without_own(parts: Parts, originals: Mapping[Mark | Kept, str]) -> Parts:
    """The parts as the document knows them: what was found in its text is text again."""
    result: list[str | Mark | Kept] = []
    for part in parts:
        own = part if isinstance(part, str) else originals.get(part, part)
        if isinstance(own, str) and result and isinstance(result[-1], str):
            result[-1] += own
        elif own != "":
            result.append(own)
    return tuple(result)


def has_words(parts: Parts) -> bool:
    """Whether there is anything to translate besides what is kept."""
    return any(character.isalpha() for part in parts if isinstance(part, str) for character in part)
