"""Markdown: CommonMark with tables, strikethrough, task lists, footnotes, front matter and bare addresses.

A paragraph, heading or cell is a segment. Code, reference definitions and whatever else is not text keep their bytes;
HTML blocks are read as HTML. A translation is written on one line, in the plainest spelling that reads back as it.
"""

import bisect
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dragoman.documents import html as html_document
from dragoman.documents.document import Document, Mark, Options, Parts, Segment
from dragoman.documents.markdown_blocks import Block, read_blocks
from dragoman.documents.markdown_inline import find_inlines, read_text
from dragoman.documents.spans import (
    BREAK,
    Copy,
    Piece,
    Run,
    Slot,
    SpanDocument,
    decode,
    find_segment,
    line_starts,
    one_line,
)


def parse(content: bytes, options: Options, name: str = "page.md") -> Document:
    decoded = decode(content, name)
    source = decoded.text
    found = read_blocks(source, decoded.begin)
    lines = line_starts(source)
    slots: list[Slot] = []
    for block in found.blocks:
        slots += (
            _html_slots(source, block, lines) if block.kind == "html" else _slots(source, block, found.labels, lines)
        )
    return SpanDocument(source, slots, decoded.encode)


def _place(lines: list[int], start: int) -> str:
    return f"line {bisect.bisect_right(lines, start)}"


def _html_slots(source: str, block: Block, lines: list[int]) -> Iterator[Slot]:
    base = block.lines[0][0]
    for slot in html_document.parse_fragment(source[base : block.lines[-1][1]]):
        segment = Segment(slot.segment.parts, _place(lines, base + slot.start))
        yield Slot(base + slot.start, base + slot.end, segment, partial(_write_html, slot, base), slot.is_inner)


def _write_html(slot: Slot, base: int, parts: Parts, copy: Copy) -> str:
    return slot.write(parts, lambda start, end: copy(base + start, base + end))


def _slots(source: str, block: Block, labels: Container[str], lines: list[int]) -> Iterator[Slot]:
    """Yield the slot of a block, if it has words. Its text is read without the marks of the containers around it."""
    text = "\n".join(source[start:end] for start, end in block.lines)
    pieces = find_inlines(text, labels)
    run = find_segment(text, pieces, read_text, entities=True)
    if run is None:
        return
    written = _Written(source, block, text, pieces, run, labels, lines)
    segment = Segment(run.parts, _place(lines, written.in_source(run.start, line_starts(text))))
    yield Slot(block.lines[0][0], block.lines[-1][1], segment, written.write)


class _Written(NamedTuple):
    """A block in its source. What a translation needs of it is found out when there is one."""

    source: str
    block: Block
    text: str
    pieces: list[Piece]
    run: Run
    labels: Container[str]
    lines: list[int]

    def in_source(self, place: int, starts: list[int]) -> int:
        """A position in the text as one in the source, given where the lines of the text begin."""
        line = bisect.bisect_right(starts, place) - 1
        return self.block.lines[line][0] + place - starts[line]

    def write(self, parts: Parts, copy: Copy) -> str:
        starts = line_starts(self.text)
        opened = {piece.name: piece.end for piece in self.pieces if piece.kind == "open"}
        markup = {piece.start: self._token(piece, opened, starts) for piece in self.pieces if piece.kind != "text"}
        writer = _Writer(
            _kind(self.source, self.block, self.lines),
            {mark: markup[start] for mark, (start, _) in self.run.markup.items()},
            [self._token(piece, opened, starts) for piece in _cut(self.pieces, 0, self.run.start)],
            [self._token(piece, opened, starts) for piece in _cut(self.pieces, self.run.end, len(self.text))],
            self.labels,
        )
        return writer.write(parts)

    def _token(self, piece: Piece, opened: Mapping[str, int], starts: list[int]) -> "_Token":
        meant = self.text[piece.start : piece.end]
        if piece.kind == "text" or (piece.name == BREAK and "\n" in meant):
            written = self.source[self.in_source(piece.start, starts) : self.in_source(piece.end, starts)]
            if piece.kind == "text":
                return _Token("text", read_text(meant), meant, written)
            meant = _BREAKS[meant.startswith(" ")]
            return _Token("single", meant, meant, written)
        if meant in ("]", "][]"):  # the label is the text, which changes
            meant = f"][{self.text[opened[piece.name] : piece.start]}]"
        meant = meant.replace("\n", " ")
        return _Token(piece.kind, meant, meant, meant)


def _kind(source: str, block: Block, lines: list[int]) -> str:
    """A cell that no bar stands before is a kind of its own: it could begin another block."""
    start = block.lines[0][0]
    line = lines[bisect.bisect_right(lines, start) - 1]
    return "first cell" if block.kind == "cell" and "|" not in source[line:start] else block.kind


def _cut(pieces: Iterable[Piece], start: int, end: int) -> Iterator[Piece]:
    """Yield the pieces between two positions, and parts of those that lie across one."""
    for piece in pieces:
        low, high = max(piece.start, start), min(piece.end, end)
        if low < high:
            yield piece._replace(start=low, end=high)


# Translations


_BREAKS = ("\\\n", "  \n")  # hard ones, and how they are read without the marks of the next line


class _Token(NamedTuple):
    """Text or markup of a translation."""

    kind: str  # text, open, close, single or kept
    meant: str  # what the reader sees; markup as it is read
    spelled: str  # the source that is read as it, outside of quotes and items
    written: str  # the same inside of them


@dataclass(frozen=True)
class _Writer:
    block: str  # its kind
    markup: dict[Mark | int, _Token]
    before: list[_Token]  # what stands in the block around the segment
    after: list[_Token]
    labels: Container[str]

    def write(self, parts: Parts) -> str:
        """The first spelling that reads back: plain, escaped, escaped with tags for emphasis."""
        tokens = _move_space(
            [
                _Token("text", text := one_line(part), text, text)
                if isinstance(part, str)
                else self.markup[part if isinstance(part, Mark) else part.number]
                for part in parts
            ]
        )
        plain = _escape(tokens, "|" if "cell" in self.block else "")
        if self._reads_back(plain):
            return self._join(plain)
        escaped = self._escape_all(tokens)
        tagged = _use_tags(escaped)
        needs_tags = not self._reads_back(escaped) and self._reads_back(tagged)
        return self._join(tagged if needs_tags else escaped)

    def _join(self, tokens: list[_Token]) -> str:
        return "".join(token.written for token in [*self.before, *tokens, *self.after])

    def _escape_all(self, tokens: list[_Token]) -> list[_Token]:
        escaped = _escape(tokens, _ESCAPED + {"heading": "#", "paragraph": ""}.get(self.block, "|"))
        return _escape_starts([*self.before, *escaped])[len(self.before) :]

    def _reads_back(self, spelling: list[_Token]) -> bool:
        tokens = [*self.before, *spelling, *self.after]
        text = "".join(token.spelled for token in tokens)
        wanted = [("text" if _is_plain(token) else "markup", token.meant) for token in tokens]
        return self._is_block(text) and _read(text, self.labels) == _merge(wanted)

    def _is_block(self, text: str) -> bool:
        """Whether the text is one block of its kind, and all of it."""
        before = {"heading": "# ", "cell": "|"}.get(self.block, "")
        after = "|\n|-|" if "cell" in self.block else ""
        found = read_blocks(before + text + after, 0)
        lines = [line for block in found.blocks for line in block.lines]
        is_whole = bool(lines) and (lines[0][0], lines[-1][1]) == (len(before), len(before) + len(text))
        kind = "cell" if "cell" in self.block else self.block
        return is_whole and [block.kind for block in found.blocks] == [kind] and not found.labels


def _read(text: str, labels: Container[str]) -> list[tuple[str, str]]:
    """Text and markup of a spelling, to be compared."""
    found = []
    for piece in find_inlines(text, labels):
        written = text[piece.start : piece.end]
        meant = read_text(written) if piece.kind == "text" else written
        found.append(("text" if piece.kind == "text" or piece.text == written else "markup", meant))
    return _merge(found)


def _is_plain(token: _Token) -> bool:
    """Whether it is text, or a bare address, which is kept but has no marks."""
    return token.kind == "text" or (token.kind == "kept" and _BARE.match(token.meant) is not None)


_BARE = re.compile(r"https?://|\{\{|\{%")


def _merge(found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    merged: list[tuple[str, str]] = []
    for kind, meant in found:
        if kind == "text" and merged and merged[-1][0] == "text":
            merged[-1] = (kind, merged[-1][1] + meant)
        elif meant:
            merged.append((kind, meant))
    return merged


def _move_space(tokens: list[_Token]) -> list[_Token]:
    """Put white space outside of emphasis and links, where it is no error, and leave it out at the ends of lines."""
    moved: list[_Token] = []
    is_due = False  # a space, before the next text
    for token in tokens:
        words = token.meant.strip() if token.kind == "text" else token.meant
        is_due = is_due or (token.kind == "text" and token.meant[:1].isspace())
        if not words:
            continue
        if is_due and token.kind != "close" and words not in _BREAKS:
            place = len(moved)
            while place and moved[place - 1].kind == "open":
                place -= 1
            if place and moved[place - 1].meant not in (*_BREAKS, " "):
                moved.insert(place, _Token("text", " ", " ", " "))
            is_due = False
        if token.kind == "text":
            is_due = token.meant[-1:].isspace()
            token = _Token("text", words, words, words)
        moved.append(token)
    return moved


_ESCAPED = "\\`*_[]<~{!"
_ENTITY = re.compile(r"&(?=#?\w{1,32};)")
_START = re.compile(r"([0-9]{1,9})([.)])|([-#+=>|:!?])")
_TAGS = {"*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "del"}


def _escape(tokens: list[_Token], characters: str) -> list[_Token]:
    escapes = {ord(character): f"\\{character}" for character in characters}
    return [
        _respell(token, _ENTITY.sub(r"\\&", token.meant.translate(escapes))) if token.kind == "text" else token
        for token in tokens
    ]


def _escape_starts(tokens: list[_Token]) -> list[_Token]:
    """Escape what would begin a list, a heading or a quote at the start of a line."""
    escaped, begins = [], True
    for token in tokens:
        if token.kind == "text" and begins:
            start = _START.match(token.spelled)
            if start is not None:
                escaped_start = (start[1] or "") + "\\" + (start[2] or start[3])
                token = _respell(token, escaped_start + token.spelled[start.end() :])
        begins = token.meant in _BREAKS
        escaped.append(token)
    return escaped


def _use_tags(tokens: list[_Token]) -> list[_Token]:
    """Emphasis as HTML, which may begin and end anywhere."""
    tagged = []
    for token in tokens:
        if token.kind in ("open", "close") and token.meant in _TAGS:
            tag = f"<{'/' * (token.kind == 'close')}{_TAGS[token.meant]}>"
            token = _Token(token.kind, tag, tag, tag)
        tagged.append(token)
    return tagged


def _respell(token: _Token, spelled: str) -> _Token:
    return token._replace(spelled=spelled, written=spelled)
