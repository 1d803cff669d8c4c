"""From bytes to lines to pairs of text. Knows nothing of ids.

Only a newline byte separates lines; one carriage return before it is removed, and so is a byte order mark at the start
of a file. Files ending in .gz, .bz2 or .xz are decompressed. Line N of a source file pairs with line N of its target:
a line that cannot be used drops its partner too, is counted, and never shifts the others. One .tsv file may be both:
its first column is the source, its second the target.
"""

import bz2
import codecs
import functools
import gzip
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from dragoman.errors import DataError
from dragoman.text.normalize import is_blank

OnBadLine = Literal["fail", "skip"]

LONGEST_LINE = 1 << 20  # bytes; a longer line is skipped without being held in memory
TOO_LONG = f"longer than {LONGEST_LINE:,} bytes"
BOM = "\ufeff"
PLACES_KEPT = 5  # how many dropped pairs are recorded by line

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}

_NOT_TEXT = (
    (re.compile(rb"\x1f\x8b"), "gzip data, not text; rename it to end in .gz or unpack it"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "bzip2 data, not text; rename it to end in .bz2 or unpack it"),
    (re.compile(rb"\xfd7zXZ\x00"), "xz data, not text; rename it to end in .xz or unpack it"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "UTF-16, not UTF-8; convert it with iconv -f UTF-16 -t UTF-8"),
)


class Line(NamedTuple):
    number: int  # from 1
    text: str
    problem: str = ""  # why the line cannot be used; its text is then empty


class TextLine(NamedTuple):
    text: str
    part: int  # which of several files, from 0
    line: int  # within that file, from 1


class Pair(NamedTuple):
    source: Any  # text; in features.py, vectors
    target: str
    part: int  # which of several files, from 0
    line: int  # within that file, from 1


@dataclass
class Dropped:
    """Pairs dropped for one reason."""

    count: int = 0
    first: list[tuple[int, int]] = field(default_factory=list)  # (part, line) of the first few

    def add(self, part: int, line: int) -> None:
        self.count += 1
        if len(self.first) < PLACES_KEPT:
            self.first.append((part, line))


@dataclass
class CorpusReport:
    """How many pairs of a corpus, or lines of a text, were kept or dropped, and why."""

    files: list[str] = field(default_factory=list)  # the source's
    kept: int = 0
    blank: Dropped = field(default_factory=Dropped)  # on either side; the same applies to the fields below
    bad: Dropped = field(default_factory=Dropped)  # not UTF-8, or NUL bytes
    too_long: Dropped = field(default_factory=Dropped)  # over LONGEST_LINE bytes
    too_many_pieces: Dropped = field(default_factory=Dropped)  # over text.max_length, once encoded
    unit: str = "pair"  # or line

    @property
    def lines(self) -> int:
        return self.kept + sum(dropped.count for dropped, _ in self._reasons())

    def notes(self) -> list[str]:
        """One line per reason for dropped pairs: `2 pairs left out, blank on a side: train.en:3, train.en:9`."""
        notes = []
        for dropped, reason in self._reasons():
            if dropped.count:
                places = [f"{self.files[part]}:{line}" for part, line in dropped.first]
                more = ["..."] if dropped.count > len(places) else []
                count = f"1 {self.unit}" if dropped.count == 1 else f"{dropped.count:,} {self.unit}s"
                side = " on a side" if self.unit == "pair" else ""
                notes.append(f"{count} left out, {reason}{side}: {', '.join(places + more)}")
        return notes

    def _reasons(self) -> tuple[tuple[Dropped, str], ...]:
        return (
            (self.blank, "blank"),
            (self.bad, "not valid text"),
            (self.too_long, TOO_LONG),
            (self.too_many_pieces, "more pieces than text.max_length"),
        )


def read_lines(path: Path) -> Iterator[Line]:
    """Yield every line of a file, usable or not, in bounded memory."""
    with reading(path) as stream:
        yield from split_lines(stream, str(path))


def count_lines(path: Path) -> int:
    """Count the lines of a file without decoding them."""
    count, last = 0, b"\n"
    with reading(path) as stream:
        while chunk := stream.read(1 << 20):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


def split_lines(stream: BinaryIO | io.BufferedIOBase, name: str) -> Iterator[Line]:
    """Yield every line of a byte stream such as standard input; `name` is its name in errors."""
    limit = LONGEST_LINE + len(codecs.BOM_UTF8 + b"\r\n")  # room for everything that is removed
    number = 0
    while raw := stream.readline(limit):
        number += 1
        if number == 1:
            _refuse_other_formats(name, raw)
        end = raw
        while len(end) == limit and not end.endswith(b"\n"):
            end = stream.readline(limit)
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        yield Line(number, "", TOO_LONG) if len(raw) > LONGEST_LINE else _line(number, raw)


def valid_line(line: Line, path: Path) -> Line:
    """Return the line, or raise an error that says where and why it is not valid text."""
    if line.problem:
        raise DataError(f"{path}:{line.number}: {line.problem}; fix the line")
    return line


def text_line(text: str, number: int = 1) -> Line:
    """Check a string like a line of a file; a byte order mark at its start is removed."""
    return _line(number, text.removeprefix(BOM))


def _line(number: int, content: bytes | str) -> Line:
    """Decide what is text, whatever its origin: UTF-8 without NUL. A problem names the byte or the character."""
    unit, nul = ("byte", content.find(b"\0")) if isinstance(content, bytes) else ("character", content.find("\0"))
    if nul >= 0:
        return Line(number, "", f"NUL at {unit} {nul + 1}")
    try:
        if isinstance(content, bytes):
            return Line(number, content.decode("utf-8"))
        content.encode("utf-8")  # fails on a lone surrogate
        return Line(number, content)
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        return Line(number, "", f"invalid UTF-8 at {unit} {error.start + 1}")


def parallel_lines(source: Path, target: Path) -> Iterator[tuple[Line, Line]]:
    """Pair line N of one with line N of the other; files of unequal length are an error once both are counted."""
    if source == target and ".tsv" in source.suffixes:
        yield from _columns(source)
        return
    lines = zip_longest(read_lines(source), read_lines(target))
    for source_line, target_line in lines:
        if source_line is None or target_line is None:
            present = source_line or target_line
            total = present.number + sum(1 for _ in lines)
            longer, shorter = (source, target) if source_line else (target, source)
            raise DataError(
                f"{shorter}: {present.number - 1} lines, {longer}: {total}; "
                "line N of one belongs to line N of the other"
            )
        yield source_line, target_line


def _columns(path: Path) -> Iterator[tuple[Line, Line]]:
    for line in read_lines(path):
        source, tab, rest = line.text.partition("\t")
        problem = line.problem or ("" if tab or is_blank(line.text) else "no tab between source and target")
        yield Line(line.number, source, problem), Line(line.number, rest.partition("\t")[0], problem)


def read_pairs(
    source: Sequence[Path],
    target: Sequence[Path],
    *,
    on_bad_line: OnBadLine = "fail",
    report: CorpusReport,
) -> Iterator[Pair]:
    """Yield the usable pairs, file by file; `report`, passed in empty, records the others."""
    if len(source) != len(target) or not source:
        raise DataError(
            f"{len(source)} source files, {len(target)} target files; give as many of one as of the other, in one order"
        )
    report.files = [str(path) for path in source]
    for part, (source_path, target_path) in enumerate(zip(source, target, strict=True)):
        yield from _read_part(part, source_path, target_path, on_bad_line, report)
    if not report.kept:
        raise DataError(
            f"{source[0]}: no usable pair: {report.lines} lines, {report.blank.count} blank, "
            f"{report.bad.count} bad, {report.too_long.count} too long; check that both sides hold text"
        )


def _read_part(part: int, source: Path, target: Path, on_bad_line: OnBadLine, report: CorpusReport) -> Iterator[Pair]:
    for source_line, target_line in parallel_lines(source, target):
        number = source_line.number
        problems = {source_line.problem, target_line.problem} - {""}
        if problems - {TOO_LONG}:
            if on_bad_line == "fail":
                path, line = (target, target_line) if source_line.problem in ("", TOO_LONG) else (source, source_line)
                raise DataError(f"{path}:{number}: {line.problem}; fix the line or use --on-bad-line skip")
            report.bad.add(part, number)
        elif problems:
            report.too_long.add(part, number)
        elif is_blank(source_line.text) or is_blank(target_line.text):
            report.blank.add(part, number)
        else:
            report.kept += 1
            yield Pair(source_line.text, target_line.text, part, number)


def read_text(paths: Sequence[Path], *, on_bad_line: OnBadLine = "fail", report: CorpusReport) -> Iterator[TextLine]:
    """Yield the usable lines of a text, blank ones too, file by file; `report`, passed in empty, records the others."""
    report.files, report.unit = [str(path) for path in paths], "line"
    for part, path in enumerate(paths):
        for line in read_lines(path):
            if line.problem == TOO_LONG:
                report.too_long.add(part, line.number)
            elif line.problem and on_bad_line == "fail":
                raise DataError(f"{path}:{line.number}: {line.problem}; fix the line or use --on-bad-line skip")
            elif line.problem:
                report.bad.add(part, line.number)
            else:
                report.kept += 1
                yield TextLine(line.text, part, line.number)
    if not report.kept:
        raise DataError(f"{paths[0]}: no usable line; give a file with text")


def content_hash(paths: Sequence[Path]) -> str:
    """SHA-256 of the SHA-256 of each file's raw bytes, compressed or not: file boundaries matter."""
    total = hashlib.sha256()
    for path in paths:
        total.update(bytes.fromhex(file_hash(path)))
    return total.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's raw bytes, as sha256sum prints it; cached until the file changes."""
    with reading(path, raw=True):  # reports any error that prevents reading
        status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    with reading(path, raw=True) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refuse_other_formats(name: str, head: bytes) -> None:
    for magic, message in _NOT_TEXT:
        if magic.match(head):
            raise DataError(f"{name}:1: {message}")


@contextmanager
def reading(path: Path, raw: bool = False) -> Iterator[io.BufferedIOBase]:
    """Open a file, decompressed unless `raw`; any error that prevents reading becomes a DataError."""
    opener = None if raw else OPENERS.get(path.suffix.lower())
    try:
        with opener(path) if opener else path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check its name") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a directory; give a file") from None
    except EOFError:
        raise DataError(f"{path}: ends in the middle of its compressed data; copy it again") from None
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: not valid {path.suffix} data ({error}); copy it again or rename it") from None
    except OSError as error:
        if error.strerror is None:  # bz2 has no error of its own
            raise DataError(f"{path}: not valid {path.suffix} data ({error}); copy it again or rename it") from None
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
