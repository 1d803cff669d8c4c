"""CSV and TSV: chosen cells are replaced where they stand. Other cells keep their quotes, and rows their line ends.

A cell with line breaks is one segment for each line. The header is never translated.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from dragoman.documents.document import Document, Options, Parts, Segment, text_of
from dragoman.documents.spans import Copy, Slot, SpanDocument, decode, has_letters, one_line, split_lines
from dragoman.documents.values import is_text
from dragoman.errors import DataError

LARGEST_CELL = 1 << 20  # bytes; more is a quote that nobody closed, or not a table
_SAMPLE = 50  # rows that the delimiter is found by
_DELIMITERS = (",", ";", "\t")


class _Cell(NamedTuple):
    start: int
    end: int
    is_quoted: bool
    text: str


def parse(content: bytes, options: Options, name: str = "table.csv") -> Document:
    decoded = decode(content, name)
    source = decoded.text
    delimiter = "\t" if name.lower().endswith((".tsv", ".tab")) else _find_delimiter(source, decoded.begin)
    rows = list(_rows(source, decoded.begin, delimiter, name))
    if delimiter != "\t":  # in most TSV files a quote is a character
        _check_quotes(source, rows, name)
    header = _find_header(rows, options.columns)
    columns = _choose_columns(rows[1:] if header else rows, header, options.columns, name)
    by_looks = not options.columns
    slots = [
        slot
        for number, row in enumerate(rows, start=1)
        if not (header and number == 1)
        for column, cell in enumerate(row)
        if column in columns and (is_text(cell.text) if by_looks else has_letters(cell.text))
        for slot in _slots(source, cell, delimiter, f"row {number}, column {_label(header, column)}")
    ]
    return SpanDocument(source, slots, decoded.encode)


# Cells


def _rows(source: str, begin: int, delimiter: str, name: str = "", limit: int = LARGEST_CELL) -> Iterator[list[_Cell]]:
    """Yield the cells of each row. A line without anything in it is a row without cells."""
    quoted, plain = rf'"([^"]*+(?:""[^"]*+)*+)"(?=[{delimiter}\r\n]|\Z)', rf"([^{delimiter}\r\n]*)"
    pattern = re.compile(rf"(?:{quoted}|{plain})(\r\n?|\n|{delimiter}|\Z)")  # any other quote is a character
    row: list[_Cell] = []
    number, place = 1, begin
    while place < len(source) or row:
        match = pattern.match(source, place)
        assert match is not None  # the second form may be empty
        is_quoted = match[1] is not None
        start, end = match.start(), match.start(3)
        text = match[1].replace('""', '"') if is_quoted else match[2]
        if len(text) > limit // 4 and len(text.encode()) > limit:
            cell = f"row {number:,}, column {len(row) + 1}"
            raise DataError(f"{name}: {cell} has over {limit >> 20} MiB; close its quotes or remove it")
        row.append(_Cell(start, end, is_quoted, text))
        place = match.end()
        if match[3] != delimiter:
            yield [] if row == [_Cell(start, start, False, "")] else row
            row, number = [], number + 1
            if not match[3]:
                return


def _check_quotes(source: str, rows: Sequence[Sequence[_Cell]], name: str) -> None:
    """Refuse a cell that begins with a quote which nothing closes: it may have swallowed the rest of a table."""
    for cell in (cell for row in rows for cell in row):
        if cell.text.startswith('"') and not cell.is_quoted and _UNCLOSED.match(source, cell.start):
            line = len(split_lines(source[: cell.start]))
            raise DataError(f"{name}:{line}: a cell begins with a quote that nothing closes; close it or remove it")


_UNCLOSED = re.compile(r'"[^"]*+(?:""[^"]*+)*+\Z')


def _find_delimiter(source: str, begin: int) -> str:
    """The one that cuts the first rows into the most cells, as many in each; else the most frequent in the first."""
    found = []
    for order, delimiter in enumerate(_DELIMITERS):
        sizes = [len(row) for row in islice(_rows(source, begin, delimiter, limit=len(source) * 4), _SAMPLE) if row]
        if sizes:
            found.append((len(set(sizes)) == 1 and sizes[0] > 1, sizes[0], -order))
    return _DELIMITERS[-max(found)[2]] if found else ","


# Columns


def _find_header(rows: Sequence[Sequence[_Cell]], wanted: Sequence[str]) -> list[str]:
    """The names in the first row; none if it looks like the others, and none of its cells was asked for."""
    names = [cell.text.strip() for cell in rows[0]] if rows else []
    if any(name in names for name in wanted):
        return names
    looks_like_names = len(set(names)) == len(names) and all(_is_name(name) for name in names)
    return names if looks_like_names and len(rows) > 1 else []


def _is_name(text: str) -> bool:
    return len(text) <= 40 and has_letters(text) and len(text.split()) <= 4 and text[-1] not in ".!?…,;:。！？"


def _choose_columns(
    rows: Sequence[Sequence[_Cell]], header: Sequence[str], wanted: Sequence[str], name: str
) -> set[int]:
    width = max([len(header), *map(len, rows)])
    if not wanted:
        named = [row[: len(header) or None] for row in rows]  # a row may have more cells than there are names
        return {column for row in named for column, cell in enumerate(row) if is_text(cell.text)}
    columns = set()
    for each in wanted:
        if each in header:
            columns.add(header.index(each))
        elif each.isascii() and each.isdecimal() and len(each) < 10 and 1 <= int(each) <= width:
            columns.add(int(each) - 1)
        else:
            known = ", ".join(header) if header else f"no names, numbers 1 to {width}"
            raise DataError(f"{name}: no column {each}; columns: {known}")
    return columns


def _label(header: Sequence[str], column: int) -> str:
    return header[column] if column < len(header) else str(column + 1)


# Text


def _slots(source: str, cell: _Cell, delimiter: str, place: str) -> Iterator[Slot]:
    """Yield a slot for each line of a cell that has words."""
    if not cell.is_quoted:  # all of it, for it may need quotes
        text = cell.text.strip()
        around = cell.text.split(text)[0], cell.text[len(cell.text.rstrip()) :]
        write = partial(_write_plain, delimiter, around)
        yield Slot(cell.start, cell.end, Segment((text,), place), write)
        return
    inside = source[cell.start + 1 : cell.end - 1]
    for start, end in split_lines(inside):
        line = inside[start:end]
        if has_letters(line):
            start += cell.start + 1 + len(line) - len(line.lstrip())
            end = start + len(line.strip())
            text = line.strip().replace('""', '"')
            yield Slot(start, end, Segment((text,), place), _write_quoted)


def _write_plain(delimiter: str, around: tuple[str, str], parts: Parts, copy: Copy) -> str:
    text = one_line(text_of(parts))
    # in most TSV files a quote is a character, but at the start of a cell it may be taken for an opening one
    has_quotes = text.startswith('"') if delimiter == "\t" else '"' in text
    cell = f"{around[0]}{text}{around[1]}"
    return '"{}"'.format(cell.replace('"', '""')) if has_quotes or delimiter in text or not text else cell


def _write_quoted(parts: Parts, copy: Copy) -> str:
    return one_line(text_of(parts)).replace('"', '""')
