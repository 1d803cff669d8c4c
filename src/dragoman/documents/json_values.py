r"""JSON and JSON Lines: chosen string values are replaced where they stand. Keys, numbers and layout keep their bytes.

A value with line breaks is one segment for each line. Placeholders of messages (`{name}`, `{{count}}`, `%s`) are kept.
The scanner is a loop with a stack of its own, so that depth is no limit.
"""

import bisect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dragoman.documents.document import Document, Kept, Options, Parts, Segment, text_of
from dragoman.documents.placeholders import find_placeholders
from dragoman.documents.spans import Copy, Slot, SpanDocument, decode, has_letters, line_starts, without_surrogates
from dragoman.documents.values import is_text
from dragoman.errors import DataError

_TOKEN = re.compile(
    r"""[ \t\r\n]*("[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"|[{}\[\],:]"""
    r"""|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity|\Z)"""
)
_SPACES = " \t\r\n"
_CLOSING = ("", "}", "]", ",", ":")
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")
_UNIT = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)|[^\\]+")
_SHOWN = 8  # keys in a message, and steps of a path in one


def parse(content: bytes, options: Options, name: str = "values.json") -> Document:
    decoded = decode(content, name)
    scanner = _Scanner(decoded.text, name, options.keys)
    if not decoded.text[decoded.begin :].strip(_SPACES) and name.lower().endswith(".json"):
        raise DataError(f"{name}:1: has no value, so it is not JSON; write {{}} or [] if nothing is in it")
    lines = line_starts(decoded.text)
    writes_ascii = decoded.text.isascii() and "\\u" in decoded.text
    slots = [
        slot
        for start, end, path in scanner.values(decoded.begin)
        for slot in _slots(
            decoded.text,
            start,
            end,
            f"line {bisect.bisect_right(lines, start)}{path and ', '}{path}",
            not options.keys,
            writes_ascii,
        )
    ]
    for rule in scanner.rules:
        if not rule.has_matched:
            known = ", ".join(scanner.keys) or "none"
            raise DataError(f"{name}: no text at key {rule.key}; keys with text: {known}")
    return SpanDocument(decoded.text, slots, decoded.encode)


# Which values


@dataclass
class _Rule:
    """`title` is a key anywhere; `items.*.title` is a path from the top, with `*` for any one key or number."""

    key: str
    has_matched: bool = False

    def __post_init__(self) -> None:
        self.steps = self.key.split(".")

    def matches(self, path: Sequence[str], name: str, indexes: int) -> bool:
        """Whether a string is meant that lies at `path`, inside `indexes` lists below the key `name`."""
        extra = len(path) - len(self.steps)
        if self.key in (name, "*"):
            found = True
        elif 0 <= extra <= indexes:  # the strings of a list belong to the key of the list
            found = all(step in ("*", path[at]) for at, step in enumerate(self.steps))
        else:
            found = False
        self.has_matched |= found
        return found


class _Frame(NamedTuple):
    """An object or a list that is open."""

    is_object: bool
    size: int  # steps of the path to it
    name: str  # the nearest key above its values, if it is a list
    indexes: int  # how many lists lie between that key and its values


class _Scanner:
    def __init__(self, source: str, name: str, keys: Sequence[str]) -> None:
        self.source, self.name = source, name
        self.rules = [_Rule(key) for key in keys]
        self.keys: dict[str, None] = {}  # some keys with text, for messages

    def values(self, place: int) -> Iterator[tuple[int, int, str]]:
        """Yield where each chosen string lies, with its quotes, and the path to it."""
        path: list[str] = []
        frames: list[_Frame] = []
        state = "value"
        name, indexes = "", 0  # of the value that comes next, as in a frame
        ended = None  # the last value outside all objects and lists
        while True:
            match = _TOKEN.match(self.source, place)
            if match is None:
                raise self._error(place)
            token, place = match[1], match.end()
            start = place - len(token)
            is_string = token[:1] == '"'
            if state in ("value", "value or end") and (is_string or token[:1] not in _CLOSING):
                if ended is not None and "\n" not in self.source[ended:start]:
                    raise self._error(start)  # JSON Lines has a line for each
                if token in ("{", "["):
                    is_object = token == "{"
                    frames.append(_Frame(is_object, len(path), name, 0 if is_object else indexes + 1))
                    path += [] if is_object else ["0"]
                    state, ended = "key or end" if is_object else "value or end", None
                    indexes = frames[-1].indexes
                    continue
                if is_string and self._is_chosen(path, name, indexes):
                    yield start, place, _shown(path)
            elif state in ("key", "key or end") and is_string:
                name, indexes, state = json.loads(token), 0, "colon"
                path += name.split(".")
                continue
            elif state == "colon" and token == ":":
                state = "value"
                continue
            elif state == "comma or end" and token == ",":
                frame = frames[-1]
                index = "" if frame.is_object else str(int(path[frame.size]) + 1)
                path[frame.size :] = [index] if index else []
                name, indexes, state = frame.name, frame.indexes, "key" if frame.is_object else "value"
                continue
            elif state.endswith("or end") and token in ("}", "]") and frames[-1].is_object == (token == "}"):
                del path[frames.pop().size :]
            elif token == "" and state == "value" and not frames:
                return
            else:
                raise self._error(start)
            # a value has ended here
            state = "comma or end" if frames else "value"
            ended = None if frames else place

    def _is_chosen(self, path: Sequence[str], name: str, indexes: int) -> bool:
        if self.rules and len(self.keys) < _SHOWN and 0 < len(path) <= _SHOWN:
            self.keys[".".join("*" if step.isdecimal() else step for step in path)] = None
        chosen = [rule.matches(path, name, indexes) for rule in self.rules]  # all of them: each notes its matches
        return any(chosen) or not chosen

    def _error(self, place: int) -> DataError:
        while self.source[place : place + 1] in (" ", "\t", "\r", "\n"):
            place += 1
        line = self.source.count("\n", 0, place) + 1
        column = place - self.source.rfind("\n", 0, place)
        return DataError(f"{self.name}:{line}: invalid JSON at column {column:,}; fix the file")


def _shown(path: Sequence[str]) -> str:
    return ".".join(path) if len(path) <= _SHOWN else "….{}".format(".".join(path[-_SHOWN:]))


# Text inside a string


def _slots(source: str, start: int, end: int, place: str, by_looks: bool, writes_ascii: bool) -> Iterator[Slot]:
    """Yield a slot for each line of a string that has words."""
    if by_looks and not is_text(_decode(source[start + 1 : end - 1])):
        return
    for first, last in _lines(source, start + 1, end - 1):
        first, last = _trim(source, first, last)
        parts = _parts(_decode(source[first:last]))
        if any(isinstance(part, str) and has_letters(part) for part in parts):
            yield Slot(first, last, Segment(parts, place), partial(_write, writes_ascii))


def _lines(source: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    if source.find("\\", start, end) < 0:
        yield start, end
        return
    for match in _ESCAPE.finditer(source, start, end):
        if _decode(match[0]) in "\r\n":
            yield start, match.start()
            start = match.end()
    yield start, end


def _trim(source: str, start: int, end: int) -> tuple[int, int]:
    """Leave out white space at both ends, escaped or not."""
    if source.find("\\", start, end) < 0:
        text = source[start:end]
        start += len(text) - len(text.lstrip())
        return start, start + len(text.strip())
    units = [match for match in _UNIT.finditer(source, start, end) if _decode(match[0]).strip()]
    if not units:
        return end, end
    first, last = units[0], units[-1]
    start = first.end() - len(first[0] if first[0][0] == "\\" else first[0].lstrip())
    return start, last.start() + len(last[0] if last[0][0] == "\\" else last[0].rstrip())


def _parts(text: str) -> Parts:
    parts: list[str | Kept] = []
    place = 0
    for number, (start, end) in enumerate(find_placeholders(text), start=1):
        parts += [text[place:start], Kept(number, text[start:end])]
        place = end
    return tuple(part for part in [*parts, text[place:]] if part)


def _write(writes_ascii: bool, parts: Parts, copy: Copy) -> str:
    return json.dumps(without_surrogates(text_of(parts)), ensure_ascii=writes_ascii)[1:-1]


def _decode(raw: str) -> str:
    return without_surrogates(json.loads(f'"{raw}"')) if "\\" in raw else raw
