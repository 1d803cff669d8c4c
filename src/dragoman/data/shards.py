"""The shards of a folder: text, JSONL and Parquet files, read in windows and written again with new fields.

A record is a line of text, an object of a JSONL file (blank lines are not records), or a row of a Parquet file. The
output has the records of the input in their order. Memory is bounded by windows, whatever the size of a shard. Knows
nothing of models or of what the new fields mean.
"""

import bz2
import functools
import gzip
import io
import json
import lzma
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from dragoman.data.corpus import LONGEST_LINE, OPENERS, TOO_LONG, Line, count_lines, read_lines, reading, text_line
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_RECORD = 1 << 26  # bytes of a JSONL record
WINDOW_BYTES = 1 << 26  # about as many at most, of records that are held together
FIRST_RECORDS = 100  # by which the fields of a JSONL shard are judged
READ_BYTES = 1 << 20  # of a column of a Parquet file
ROW_GROUP = 1 << 16  # rows of a Parquet row group that is written
STORED_SCHEMAS = (b"huggingface",)  # metadata that lists the columns, and would be wrong with more of them
ARROW_TYPES = {str: "string", int: "int64", float: "float64"}
JSON_TYPES = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}
KINDS = "shards end in .txt, a language code such as .en, .jsonl (each also with .gz, .bz2 or .xz) or .parquet"

Fields = Mapping[str, type]  # the new fields of a record, in order, and the type of each: str, int or float
Values = Sequence[Sequence[Any]]  # of each field, one per record; None if a record has none


class Window(NamedTuple):
    """Some records: their text, and what is needed to write them again."""

    lines: list[Line]
    records: Any


class Writer(Protocol):
    def add(self, window: Window, values: Values) -> None: ...


class Format(Protocol):
    """How one kind of shard is read and written. `column` is the field that holds the text."""

    def count(self, path: Path) -> int:
        """Count the records; a file that cannot be read to its end is an error here."""
        ...

    def check(self, path: Path, column: str, new: Iterable[str]) -> None:
        """Raise a DataError if there is no such column, or a field would be written twice."""
        ...

    def windows(self, path: Path, column: str, size: int) -> Generator[Window]: ...

    def writing(self, stream: IO[bytes], path: Path, new: Fields) -> AbstractContextManager[Writer]:
        """Write the records of the shard at `path` with new fields."""
        ...

    def read_back(self, path: Path) -> int:
        """Read everything that was written, and count the records."""
        ...


def find_shards(folder: Path) -> list[str]:
    """The names of all shards below a folder, with slashes, in order. Any other file is refused.

    Names that start with a dot or an underscore are ignored, as other tools for shards do.
    """
    names: list[str] = []
    for place, folders, files in os.walk(folder, onerror=_raise_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in folders:
            if Path(place, name).is_symlink():
                raise DataError(f"{Path(place, name)}: is a link to a folder; copy it, or give it as --input by itself")
        for name in sorted(files):
            if not name.startswith((".", "_")):
                path = Path(place, name)
                if format_of(name) is None:
                    raise DataError(f"{path}: not a shard; move it away or rename it: {KINDS}")
                names.append(path.relative_to(folder).as_posix())
    if not names:
        raise DataError(f"{folder}: no shards; {KINDS}")
    return sorted(names)


def _raise_unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check the folder")


def format_of(name: str) -> Format | None:
    """Which format a name stands for; None if it is not the name of a shard."""
    stem = PurePosixPath(name)
    if stem.suffix.lower() == ".parquet":
        return Parquet()
    if stem.suffix.lower() in OPENERS:
        stem = stem.with_suffix("")
    if stem.suffix.lower() == ".jsonl":
        return JsonLines()
    return Text() if stem.suffix.lower() in ("", ".txt") or _is_language(stem.suffix[1:]) else None


def shard_format(name: str) -> Format:
    """The format of a name that `find_shards` gave."""
    found = format_of(name)
    assert found is not None, name
    return found


def _is_language(code: str) -> bool:
    """Whether a suffix is the code of a language, such as en, pt-BR or zh_Hans."""
    if not re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*", code):
        return False
    from babel import Locale

    return re.split("[-_]", code)[0] in Locale("en").languages


# Writing


COMPRESSORS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda stream: gzip.GzipFile("", "wb", fileobj=stream, mtime=0),  # no time: equal content, equal bytes
    ".bz2": functools.partial(bz2.BZ2File, mode="wb"),
    ".xz": functools.partial(lzma.LZMAFile, mode="wb"),
}


def compressing(stream: IO[bytes], name: str) -> AbstractContextManager[IO[bytes]]:
    """Compress as the suffix of a name asks for."""
    compressor: Callable[[IO[bytes]], Any] = COMPRESSORS.get(PurePosixPath(name).suffix.lower(), nullcontext)
    compressed: AbstractContextManager[IO[bytes]] = compressor(stream)
    return compressed


# Text


class Text:
    """Line in, line out: only the first of the new fields is written."""

    def count(self, path: Path) -> int:
        return count_lines(path)

    def check(self, path: Path, column: str, new: Iterable[str]) -> None:
        for _ in read_lines(path):  # the first says whether it is text
            break

    def windows(self, path: Path, column: str, size: int) -> Generator[Window]:
        for lines in _windows(((line, len(line.text)) for line in read_lines(path)), size):
            yield Window(lines, None)

    @contextmanager
    def writing(self, stream: IO[bytes], path: Path, new: Fields) -> "Iterator[_TextWriter]":
        with compressing(stream, path.name) as out:
            yield _TextWriter(out)

    def read_back(self, path: Path) -> int:
        return count_lines(path)


class _TextWriter:
    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def add(self, window: Window, values: Values) -> None:
        self._out.write("".join(f"{text}\n" for text in values[0]).encode())


def _windows(records: Iterable[tuple[Any, int]], size: int) -> Iterator[list[Any]]:
    """Group records, each given with its size in bytes or characters."""
    window: list[Any] = []
    held = 0
    for record, length in records:
        window.append(record)
        held += length
        if len(window) == size or held >= WINDOW_BYTES:
            yield window
            window, held = [], 0
    if window:
        yield window


# JSONL


class _Object(NamedTuple):
    """A record of a JSONL file as it stands there, so that its other fields are copied to the letter."""

    text: str  # without its closing brace; empty if it has no fields
    names: frozenset[str]


class JsonLines:
    """New fields are added at the end of each object; a field without a value is left out.

    A line that is not an object becomes the field `record` of one, so that it is not lost.
    """

    def count(self, path: Path) -> int:
        with reading(path) as stream:
            return sum(1 for _ in _nonblank(stream))

    def check(self, path: Path, column: str, new: Iterable[str]) -> None:
        """Judge by the first records; later ones that lack the field fail one by one."""
        with closing(self.windows(path, column, FIRST_RECORDS)) as windows:
            window = next(windows, None)
        if window is None:
            return
        known: set[str] = set().union(*(record.names for record in window.records))
        if not known:
            raise DataError(f"{path}: no JSON objects, one per line; rename it to end in .txt if it is text")
        _require_column(path, "field", column, known)
        _refuse_double(path, known, new)

    def windows(self, path: Path, column: str, size: int) -> Generator[Window]:
        with reading(path) as stream:
            records = (
                (_read_object(number, raw, column), len(raw)) for number, raw in enumerate(_nonblank(stream), start=1)
            )
            for window in _windows(records, size):
                lines, objects = zip(*window, strict=True)
                yield Window(list(lines), objects)

    @contextmanager
    def writing(self, stream: IO[bytes], path: Path, new: Fields) -> "Iterator[_JsonWriter]":
        with compressing(stream, path.name) as out:
            yield _JsonWriter(out, path, list(new))

    def read_back(self, path: Path) -> int:
        return self.count(path)


def _nonblank(stream: io.BufferedIOBase) -> Iterator[bytes]:
    """Lines that are not blank; of one that is too long, only so much as shows it."""
    while raw := stream.readline(LONGEST_RECORD + 1):
        end = raw
        while len(end) > LONGEST_RECORD and not end.endswith(b"\n"):
            end = stream.readline(LONGEST_RECORD + 1)
        if raw.strip():
            yield raw


def _read_object(number: int, raw: bytes, column: str) -> tuple[Line, _Object]:
    """The text of a record, or why it has none, and the record itself."""
    nothing = _Object("", frozenset())
    if len(raw) > LONGEST_RECORD:
        return Line(number, "", f"record {number} is longer than {LONGEST_RECORD:,} bytes"), nothing
    text = raw.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape").strip()
    try:
        text.encode()
        record = json.loads(text)
    except (ValueError, RecursionError):  # ValueError: not UTF-8, not JSON, or a number with too many digits
        record = None
    if not isinstance(record, dict):
        kept = _Object(json.dumps({"record": text})[:-1], frozenset())
        return Line(number, "", f"record {number} is not a JSON object"), kept
    kept = _Object(text[:-1].rstrip() if record else "", frozenset(record))
    if column not in record:
        return Line(number, "", f"no field {column!r}"), kept
    return _line(number, record[column], column), kept


def _line(number: int, value: Any, column: str) -> Line:
    if value is None:
        return Line(number, "", f"{column} is null")
    if not isinstance(value, str):
        return Line(number, "", f"{column} is {JSON_TYPES[type(value)]}, not a string")
    return Line(number, "", TOO_LONG) if len(value) > LONGEST_LINE else text_line(value, number)


_encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would create an encoder for each record


class _JsonWriter:
    def __init__(self, out: IO[bytes], path: Path, names: list[str]) -> None:
        self._out, self._path, self._names = out, path, names

    def add(self, window: Window, values: Values) -> None:
        written = []
        for line, record, row in zip(window.lines, window.records, zip(*values, strict=True), strict=True):
            new = {name: value for name, value in zip(self._names, row, strict=True) if value is not None}
            if double := sorted(record.names & new.keys()):
                raise DataError(_double(f"{self._path}:{line.number}", double))
            added = _encode(new)[1:]
            written.append(f"{record.text}, {added}\n" if record.text else f"{{{added}\n")
        self._out.write("".join(written).encode())


def _require_column(path: Path, what: str, column: str, known: Iterable[str]) -> None:
    names = sorted(known)
    if column not in names:
        raise DataError(f"{path}: no {what} {column!r}; give --column, one of: {', '.join(names)}")


def _refuse_double(path: Path, known: Iterable[str], new: Iterable[str]) -> None:
    if double := sorted(set(known) & set(new)):
        raise DataError(_double(str(path), double))


def _double(place: str, names: Sequence[str]) -> str:
    return f"{place}: has {' and '.join(map(repr, names))} already; give another name with --into"


# Parquet


class Parquet:
    """New columns are added at the end. Read and written by row groups, in bounded memory."""

    def count(self, path: Path) -> int:
        with _opened(path) as file:
            return int(file.metadata.num_rows)

    def check(self, path: Path, column: str, new: Iterable[str]) -> None:
        with _opened(path) as file:
            schema = file.schema_arrow
            _require_column(path, "column", column, schema.names)
            if not _is_text(schema.field(column).type):
                raise DataError(f"{path}: column {column!r} is {schema.field(column).type}, not text; give --column")
            _refuse_double(path, schema.names, new)

    def windows(self, path: Path, column: str, size: int) -> Generator[Window]:
        number = 0
        with _opened(path) as file:
            for batch in file.iter_batches(_rows_at_once(file.metadata, size), use_threads=False):
                lines = _arrow_lines(batch.column(column), number, column)
                yield Window(lines, batch)
                number += len(lines)

    @contextmanager
    def writing(self, stream: IO[bytes], path: Path, new: Fields) -> "Iterator[_ParquetWriter]":
        import pyarrow as pa
        import pyarrow.parquet as pq

        with _opened(path) as file:
            schema = file.schema_arrow
        for name, kind in new.items():
            schema = schema.append(pa.field(name, pa.type_for_alias(ARROW_TYPES[kind])))
        metadata = {key: value for key, value in (schema.metadata or {}).items() if key not in STORED_SCHEMAS}
        schema = schema.with_metadata(metadata)
        with pq.ParquetWriter(stream, schema) as out:
            writer = _ParquetWriter(out, schema)
            yield writer
            writer.flush()

    def read_back(self, path: Path) -> int:
        with _opened(path) as file:
            return sum(batch.num_rows for batch in file.iter_batches(_rows_at_once(file.metadata, ROW_GROUP)))


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f'{path}: needs pyarrow; pip install "dragoman[parquet]"') from None
    return pyarrow


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A ParquetFile; what cannot be read is a DataError."""
    pyarrow = _pyarrow(path)
    with reading(path, raw=True):  # reports what any other file would report
        pass
    try:
        # read piece by piece as needed, not whole row groups
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not valid Parquet data ({reason}); copy it again or rename it") from None


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _rows_at_once(metadata: Any, size: int) -> int:
    """Rows of a window: fewer where rows are large, because all columns are held."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    return max(1, min(size, int(WINDOW_BYTES / max(1.0, widest))))


def _arrow_lines(column: Any, before: int, name: str) -> list[Line]:
    """Decoded here, because Parquet files may hold strings that are not valid UTF-8."""
    import pyarrow as pa

    values = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    return [_decoded(number, value, name) for number, value in enumerate(values, before + 1)]


def _decoded(number: int, value: bytes | None, name: str) -> Line:
    try:
        return _line(number, None if value is None else value.decode(), name)
    except UnicodeDecodeError as error:
        return Line(number, "", f"invalid UTF-8 at byte {error.start + 1}")


class _ParquetWriter:
    """Gathers windows to row groups of a useful size."""

    def __init__(self, out: Any, schema: "pa.Schema") -> None:
        self._out, self._schema = out, schema
        self._held: list[pa.RecordBatch] = []

    def add(self, window: Window, values: Values) -> None:
        import pyarrow as pa

        old = window.records.columns
        kinds = self._schema.types[len(old) :]
        new = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
        self._held.append(pa.RecordBatch.from_arrays([*old, *new], schema=self._schema))
        rows, size = (sum(each) for each in zip(*((held.num_rows, held.nbytes) for held in self._held), strict=True))
        if rows >= ROW_GROUP or size >= WINDOW_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held as one row group."""
        import pyarrow as pa

        if self._held:
            self._out.write_table(pa.Table.from_batches(self._held), row_group_size=ROW_GROUP)
        self._held = []
