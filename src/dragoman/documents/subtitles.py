r"""Subtitles: SubRip (SRT) and WebVTT. A cue is a segment, or a segment for each speaker, by dashes or `<v>`.

Indexes, timings, settings and the NOTE, STYLE and REGION blocks of WebVTT keep their bytes. Inside a cue, `<i>`,
`<v Speaker>`, `<00:00:01.000>`, `{\an8}` and ♪ are marks. A translation is wrapped to as many lines as the cue had.
"""

import html
import math
import re
import unicodedata
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from dragoman.documents.document import Document, Mark, Options, Parts, Segment
from dragoman.documents.html import read_text
from dragoman.documents.spans import (
    Copy,
    Piece,
    Run,
    Slot,
    SpanDocument,
    collapse_space,
    decode,
    find_segment,
    one_line,
    split_lines,
)
from dragoman.errors import DataError

WIDEST = 42  # characters of a line, as broadcasters ask for

_TIME = r"(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}"
_TIMING = re.compile(rf"[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}(?:[ \t].*)?")
# what is meant as one: the less it looks like one, the surer it must be that a cue begins here
_CLOCK = r"\d+[:;.]\d+[:;.]\d[\d:;.,]*"
_BROKEN_AFTER_DIGITS = re.compile(rf"[ \t]*{_CLOCK}[ \t]*-+>[ \t]*{_CLOCK}.*")
_BROKEN_AFTER_BLANK = re.compile(r"[ \t]*\d+[:;.]\d[\d:;.,]*[ \t]*-->[ \t]*\d.*")
_BROKEN_AFTER_NUMBER = re.compile(
    rf"[ \t]*(?:\d+[:;.]\d[\d:;.,]*[ \t]*-+>[ \t]*\d|{_CLOCK}[ \t]*[-–—→]+[ \t]*{_CLOCK}).*"
)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<\d[\d:.]*>|</>|\{\\[^{}]*\}|[♩♪♫♬]+")
_NAME = re.compile(r"</?([A-Za-z]+)")
_VOICE = re.compile(r"<v[.\s][^<>]*>")  # who speaks from here on, in WebVTT
_DASH = re.compile(r"[-‐–—][ \t]*(?=[^\s-])")


class _Line(NamedTuple):
    start: int
    end: int  # without its line break


def parse(content: bytes, options: Options, name: str = "subtitles") -> Document:
    """Which of the two it is, the file says itself: WebVTT begins with its name."""
    decoded = decode(content, name)
    source = decoded.text
    is_vtt = re.match(r"WEBVTT(?:[ \t\r\n]|$)", source[decoded.begin :]) is not None
    if not is_vtt and name.lower().endswith(".vtt"):
        raise DataError(f"{name}:1: does not begin with WEBVTT; add that line, or name it .srt if it is SubRip")
    _refuse_broken_timings(source, decoded.begin, is_vtt, name)
    slots = [
        slot
        for number, cue in enumerate(_cues(source, decoded.begin, is_vtt), start=1)
        for speaker in _speakers(source, cue, is_vtt)
        if (slot := _slot(source, speaker, is_vtt, f"cue {number}")) is not None
    ]
    return SpanDocument(source, slots, decoded.encode)


# Cues


def _refuse_broken_timings(source: str, begin: int, is_vtt: bool, name: str) -> None:
    """A cue without a timing would not be translated, and nobody would notice."""
    second_to_last, last = "", ""
    for number, (start, end) in enumerate(split_lines(source, begin), start=1):
        line = source[start:end]
        meant = []
        if last.isdecimal():
            meant = [_BROKEN_AFTER_DIGITS, *([] if second_to_last else [_BROKEN_AFTER_NUMBER])]
        elif not last:
            meant = [_BROKEN_AFTER_BLANK]
        if any(each.fullmatch(line) for each in meant) and not _TIMING.fullmatch(line):
            form = "00:00:01.000 --> 00:00:03.000" if is_vtt else "00:00:01,000 --> 00:00:03,000"
            raise DataError(f"{name}:{number}: invalid timing; write it as {form}")
        second_to_last, last = last, line.strip()


def _cues(source: str, begin: int, is_vtt: bool) -> Iterator[list[_Line]]:
    """Yield the lines of text of each cue."""
    lines = [_Line(*line) for line in split_lines(source, begin)]
    timings = [index for index, line in enumerate(lines) if _TIMING.fullmatch(source, *line)]
    for timing, following in pairwise([*timings, len(lines)]):
        cue: list[_Line] = []
        for index in range(timing + 1, following):
            line = lines[index]
            is_index = index + 1 == following < len(lines) and source[line.start : line.end].strip().isdecimal()
            if source[line.start : line.end].strip() and not is_index:
                cue.append(line)
            elif is_vtt and cue:
                break
            elif cue:  # SubRip in the wild has empty lines inside a cue
                yield cue
                cue = []
        if cue:
            yield cue


def _speakers(source: str, cue: list[_Line], is_vtt: bool) -> list[list[_Line]]:
    """The lines of a cue, in groups of a speaker each if two or more begin with a dash, or with a voice anywhere."""
    begins = [_dash(source, line) is not None for line in cue]
    if sum(begins) < 2 and is_vtt:
        cue = [part for line in cue for part in _cut_at_voices(source, line)]
        begins = [_VOICE.match(source, *line) is not None for line in cue]
    if sum(begins) < 2:
        return [cue]
    groups: list[list[_Line]] = [[]]
    for line, begins_group in zip(cue, begins, strict=True):
        if begins_group and groups[-1]:
            groups.append([])
        groups[-1].append(line)
    return groups


def _cut_at_voices(source: str, line: _Line) -> list[_Line]:
    cuts = [match.start() for match in _VOICE.finditer(source, *line) if match.start() > line.start]
    return [_Line(*part) for part in pairwise([line.start, *cuts, line.end])]


def _dash(source: str, line: _Line) -> re.Match[str] | None:
    """The dash that a line begins with, after tags."""
    place = line.start
    while match := _SKIPPED.match(source, place, line.end):
        place = match.end()
    return _DASH.match(source, place, line.end)


_SKIPPED = re.compile(rf"[ \t]+|{_TAG.pattern}")


# Segments


def _slot(source: str, lines: list[_Line], is_vtt: bool, place: str) -> Slot | None:
    read = read_text if is_vtt else collapse_space
    pieces: list[Piece] = []
    dash = _dash(source, lines[0])
    for before, line in zip([None, *lines], lines, strict=False):
        if before is not None:
            _add_text(pieces, before.end, line.start, None)
        start = line.start
        for match in _TAG.finditer(source, line.start, line.end):
            _add_text(pieces, start, match.start(), dash)
            pieces.append(_markup(match))
            start = match.end()
        _add_text(pieces, start, line.end, dash)
    run = find_segment(source, pieces, read, entities=is_vtt)
    if run is None:
        return None
    count = len([line for line in lines if line.end > run.start and line.start < run.end])
    newline = re.search(r"\r\n|\r|\n", source[lines[0].end : lines[0].end + 2])
    write = partial(_write, run, count, newline[0] if newline else "\n", is_vtt)
    return Slot(run.start, run.end, Segment(run.parts, place), write)


def _add_text(pieces: list[Piece], start: int, end: int, dash: re.Match[str] | None) -> None:
    if dash is not None and start <= dash.start() < end:  # white space before it, if any, goes with it
        pieces.append(Piece("single", start, dash.end()))
        start = dash.end()
    if start < end and pieces and pieces[-1].kind == "text":  # the line before: they are read as one
        start = pieces.pop().start
    if start < end:
        pieces.append(Piece("text", start, end))


def _markup(match: re.Match[str]) -> Piece:
    name = _NAME.match(match[0])
    if name is None:
        return Piece("single", *match.span())
    return Piece("close" if match[0].startswith("</") else "open", *match.span(), name[1].lower())


# Translations


def _write(run: Run, count: int, newline: str, is_vtt: bool, parts: Parts, copy: Copy) -> str:
    """The translation on as many lines as the cue had, on more if they would be too wide."""
    words = _words(run, parts, copy, is_vtt)
    total = sum(word.width + word.has_space for word in words)
    width = max(_narrowest(words, count), 1)
    if width > WIDEST:
        width = _narrowest(words, max(count, math.ceil(total / WIDEST)))
    lines = _fill(words, width)
    return newline.join(
        "".join(" " * (word.has_space and index > 0) + word.written for index, word in enumerate(line))
        for line in lines
    )


class _Word(NamedTuple):
    """What a line break cannot divide."""

    written: str
    width: int  # on the screen: markup has none, Chinese characters have two
    has_space: bool  # before it


def _words(run: Run, parts: Parts, copy: Copy, is_vtt: bool) -> list[_Word]:
    words: list[_Word] = []
    written, width, has_space = "", 0, False
    for part in parts:
        if not isinstance(part, str):
            written += copy(*run.markup[part if isinstance(part, Mark) else part.number])
            continue
        for character in one_line(part) if is_vtt else one_line(part).replace("-->", "→"):  # it would be a timing
            if character == " ":
                if width:
                    words.append(_Word(written, width, has_space))
                    written, width = "", 0
                has_space = True
                continue
            if width and _can_break(written[-1], character):
                words.append(_Word(written, width, has_space))
                written, width, has_space = "", 0, False
            written += html.escape(character, quote=False) if is_vtt else character
            width += _width(character)
    if width or not words:
        return [*words, _Word(written, width, has_space)]
    last = words[-1]
    return [*words[:-1], last._replace(written=last.written + written)]


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _can_break(before: str, after: str) -> bool:
    """Whether a line may end between two characters: between Chinese or Japanese ones, not at their punctuation."""
    closing, opening = ("Pe", "Pf", "Po", "Lm"), ("Ps", "Pi")
    return (
        _is_ideographic(before)
        and _is_ideographic(after)
        and unicodedata.category(after) not in closing
        and unicodedata.category(before) not in opening
    )


def _is_ideographic(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\ufaff" or "\uff00" <= character <= "\uff60"


def _narrowest(words: list[_Word], count: int) -> int:
    """The least width at which the words fit on `count` lines."""
    low, high = max(word.width for word in words), sum(word.width + word.has_space for word in words)
    while low < high:
        middle = (low + high) // 2
        if len(_fill(words, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return low


def _fill(words: list[_Word], width: int) -> list[list[_Word]]:
    lines: list[list[_Word]] = [[]]
    used = 0
    for word in words:
        more = word.width + word.has_space
        if lines[-1] and used + more > width:
            lines.append([])
            used = 0
        used += more if lines[-1] else word.width
        lines[-1].append(word)
    return lines
