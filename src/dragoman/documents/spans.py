"""Documents whose text is found by position: everything around it survives byte for byte. Knows no format.

A format cuts its source into pieces (text, markup), `find_segment` makes parts of them, and a `Slot` says where the
segment lies and how a translation of it is written. A segment whose translation equals its parts is never rewritten.
"""

import bisect
import codecs
import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from dragoman.documents.document import Kept, Mark, Parts, Segment, merge_text
from dragoman.errors import DataError

Copy: TypeAlias = Callable[[int, int], str]  # the source between two positions, with translated attributes
Markup: TypeAlias = dict[Mark | int, tuple[int, int]]  # where a mark lies, and a kept text by its number


BREAK = "br"  # the name of a piece that ends a line; within an element it stands for a space


class Piece(NamedTuple):
    """A stretch of the source between the ends of a block."""

    kind: Literal["text", "open", "close", "single", "kept"]
    start: int
    end: int
    name: str = ""  # a close belongs to the nearest open with its name
    text: str = ""  # of what is kept: what the reader sees


class Run(NamedTuple):
    """A segment in its source, with the white space and the markup around all of it left out."""

    start: int
    end: int
    parts: Parts
    markup: Markup


class Slot(NamedTuple):
    """Where a segment lies, and how a translation of it is written there."""

    start: int
    end: int
    segment: Segment
    write: Callable[[Parts, Copy], str]
    is_inner: bool = False  # an attribute: it may lie inside the markup of another segment


class Edit(NamedTuple):
    """Source that is replaced whatever the translations are."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class SpanDocument:
    """A source with slots. `encode` turns the rendered text into bytes again."""

    source: str
    slots: Sequence[Slot]  # in the order of their starts
    encode: Callable[[str], bytes]
    edits: Sequence[Edit] = ()

    @property
    def segments(self) -> Sequence[Segment]:
        return [slot.segment for slot in self.slots]

    def render(self, translations: Sequence[Parts | None]) -> bytes:
        if len(translations) != len(self.slots):
            raise ValueError(f"translations: {len(translations)} for {len(self.slots)} segments; give one for each")
        changed = [
            (slot, parts)
            for slot, given in zip(self.slots, translations, strict=True)
            if given is not None and merge_text(given) != slot.segment.parts
            for parts in [merge_text(_without_line_ends(given))]
        ]
        inner = [Edit(slot.start, slot.end, slot.write(parts, self._slice)) for slot, parts in changed if slot.is_inner]
        inner = sorted([*self.edits, *inner])
        copy = _copy_with(self.source, inner)
        outer = [Edit(slot.start, slot.end, slot.write(parts, copy)) for slot, parts in changed if not slot.is_inner]
        return self.encode(without_surrogates(_apply(self.source, [*outer, *inner], 0, len(self.source))))

    def _slice(self, start: int, end: int) -> str:
        return self.source[start:end]


def _copy_with(source: str, edits: Sequence[Edit]) -> Copy:
    starts = [edit.start for edit in edits]

    def copy(start: int, end: int) -> str:
        first, last = bisect.bisect_left(starts, start), bisect.bisect_left(starts, end)
        return _apply(source, edits[first:last], start, end) if first < last else source[start:end]

    return copy


def _apply(source: str, edits: Sequence[Edit], start: int, end: int) -> str:
    written, place = [], start
    for edit in sorted(edits, key=lambda edit: (edit.start, -edit.end)):
        if edit.start < place:  # inside an edit that copied it
            continue
        written += [source[place : edit.start], edit.text]
        place = edit.end
    return "".join([*written, source[place:end]])


# From pieces to a segment


def find_segment(source: str, pieces: Sequence[Piece], read: Callable[[str], str], entities: bool) -> Run | None:
    """The segment that the pieces of one block are, or None if no word is in them.

    `read` gives the text that a reader sees of a stretch of source; with `entities`, `&nbsp;` at an end is white space.
    """
    texts = [read(source[piece.start : piece.end]) if piece.kind == "text" else piece.text for piece in pieces]
    if not any(piece.kind == "text" and has_letters(text) for piece, text in zip(pieces, texts, strict=True)):
        return None
    if len(pieces) == 1:
        start, end = pieces[0].start, pieces[0].end
        start += leading_space(source[start:end], entities)
        return Run(start, end - trailing_space(source[start:end], entities), (texts[0].strip(),), {})
    partners = pair(pieces)
    filled = [index for index, text in enumerate(texts) if pieces[index].kind == "kept" or text.strip()]
    first, last = filled[0], filled[-1]
    # markup before the first word or after the last stays outside, unless it opens or ends between the two
    low = next((at for at in range(first) if _is_within(partners[at], first, last)), first)
    high = next((at for at in range(len(pieces) - 1, last, -1) if _is_within(partners[at], first, last)), last)

    start, end = pieces[low].start, pieces[high].end
    if pieces[first].kind == "text" and low == first:
        start += leading_space(source[start : pieces[first].end], entities)
    if pieces[last].kind == "text" and high == last:
        end -= trailing_space(source[max(pieces[last].start, start) : end], entities)
    texts[first] = texts[first].lstrip()
    texts[last] = texts[last].rstrip()
    parts, markup = _number(pieces, texts, partners, low, high)
    return Run(start, end, parts, markup)


def _is_within(partner: int | None, first: int, last: int) -> bool:
    return partner is not None and first <= partner <= last


def pair(pieces: Sequence[Piece]) -> list[int | None]:
    """For each open its close and the reverse, properly nested; None for all else. Linear, whatever is unclosed."""
    partners: list[int | None] = [None] * len(pieces)
    opened: list[int] = []
    waiting: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if piece.kind == "open":
            opened.append(index)
            waiting[piece.name] = waiting.get(piece.name, 0) + 1
        elif piece.kind == "close" and waiting.get(piece.name):
            found = False
            while not found:  # what was opened since and not closed stands alone
                other = opened.pop()
                waiting[pieces[other].name] -= 1
                found = pieces[other].name == piece.name
            partners[index], partners[other] = other, index
    return partners


def _number(
    pieces: Sequence[Piece], texts: Sequence[str], partners: Sequence[int | None], low: int, high: int
) -> tuple[Parts, Markup]:
    parts: list[str | Mark | Kept] = []
    markup: Markup = {}
    numbers: dict[int, int] = {}
    spaced = broken = False  # whether the text so far ends with a space; whether a line ends since the last text
    depth = 0  # elements around the text
    for index in range(low, high + 1):
        piece, text, partner = pieces[index], texts[index], partners[index]
        if piece.kind in ("text", "kept") and text:
            if broken and not text[0].isspace():
                parts.append(" ")
            broken = False
        if piece.kind == "text":
            text = text.lstrip(" ") if spaced else text
            spaced = text.endswith(" ") if text else spaced
            parts.append(text)
            continue
        number = numbers[partner] if partner in numbers else len(numbers) + 1
        numbers[index if partner not in numbers else partner] = number
        if piece.kind == "kept":
            parts.append(Kept(number, text))
            markup[number] = (piece.start, piece.end)
            spaced = False
            continue
        mark = Mark(number, "single" if partner is None else "open" if partner > index else "close")
        depth += 0 if partner is None else 1 if partner > index else -1
        ends_line = piece.name == BREAK and not depth
        broken = broken or (piece.name == BREAK and not spaced and not ends_line)
        spaced = spaced and mark.kind != "single"
        parts += [mark, "\n"] if ends_line else [mark]
        markup[mark] = (piece.start, piece.end)
    return merge_text(parts), markup


def _without_line_ends(parts: Parts) -> Iterator[str | Mark | Kept]:
    """The parts as they are written: the mark of a break stands for the end of the line after it."""
    is_after_single = False
    for part in parts:
        yield part.removeprefix("\n") if is_after_single and isinstance(part, str) else part
        is_after_single = isinstance(part, Mark) and part.kind == "single"


def line_starts(source: str) -> list[int]:
    """Where each line begins; `bisect_right` of a position in it is the number of its line."""
    return [0, *(match.end() for match in re.finditer("\n", source))] if "\n" in source else [0]


def split_lines(source: str, begin: int = 0) -> list[tuple[int, int]]:
    """Where each line begins and ends, without its line break."""
    lines = []
    for match in _LINE_BREAK.finditer(source, begin):
        lines.append((begin, match.start()))
        begin = match.end()
    return [*lines, (begin, len(source))]


# Text


_LINE_BREAK = re.compile(r"\r\n?|\n")
_LETTER = re.compile(r"[^\W\d_]")
_SPACE = re.compile(r"[ \t\r\n\f]+")
_WIDE = "\\u2e80-\\u30ff\\u3400-\\u9fff\\uf900-\\ufaff\\uff01-\\uff60"  # scripts that write no spaces; Korean does
_WIDE_BREAK = re.compile(rf"(?<=[{_WIDE}])[ \t\r\n]*\n[ \t\r\n]*(?=[{_WIDE}])")
_CONTROL = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def has_letters(text: str) -> bool:
    return _LETTER.search(text) is not None


def collapse_space(text: str) -> str:
    """White space as one space, as a browser shows it; a line break between Chinese or Japanese is nothing."""
    if "\n" in text and not text.isascii():
        text = _WIDE_BREAK.sub("", text)
    return _SPACE.sub(" ", text)


def one_line(text: str) -> str:
    """A translation without line breaks and tabs, which could end the place it is written to."""
    return _CONTROL.sub(" ", text)


def without_surrogates(text: str) -> str:
    return _SURROGATE.sub("�", text)


def leading_space(text: str, entities: bool) -> int:
    """The length of the white space that `text` begins with."""
    place = len(text) - len(text.lstrip())
    while entities and (match := _ENTITY.match(text, place)) and html.unescape(match[0]).isspace():
        place = match.end()
        while place < len(text) and text[place].isspace():
            place += 1
    return place


def trailing_space(text: str, entities: bool) -> int:
    """The length of the white space that `text` ends with."""
    place = len(text.rstrip())
    while entities and text[place - 1 : place] == ";":
        match = _ENTITY.fullmatch(text, max(text.rfind("&", max(place - 34, 0), place), 0), place)
        if match is None or not html.unescape(match[0]).isspace():
            break
        place = match.start()
        while place and text[place - 1].isspace():
            place -= 1
    return len(text) - place


# Bytes


class Decoded(NamedTuple):
    text: str  # with its byte order mark, if it has one
    encoding: str

    @property
    def begin(self) -> int:
        """Where the text begins: after a byte order mark."""
        return int(self.text.startswith("\ufeff"))

    def encode(self, text: str) -> bytes:
        return text.encode(self.encoding)


BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def decode(content: bytes, name: str, encoding: str = "utf-8") -> Decoded:
    """Text as its byte order mark says, else in `encoding`."""
    encoding = next((each for mark, each in BYTE_ORDER_MARKS.items() if content.startswith(mark)), encoding)
    try:
        return Decoded(content.decode(encoding), encoding)
    except UnicodeDecodeError as error:
        label = encoding.removesuffix("-le").removesuffix("-be").upper()
        raise DataError(f"{name}: invalid {label} at byte {error.start:,}; save it as UTF-8") from None
