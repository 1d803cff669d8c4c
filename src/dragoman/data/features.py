"""Feature vectors in files: sequences of vectors (.npz, .npy) and time series (.csv). Knows nothing of models.

A .npz file holds `vectors`, the vectors of all sequences end to end, and `lengths`, how many each sequence has; with
`picture`, height and width, the vectors are the square patches of a picture, row by row. A .npy file holds sequences of
one length as [sequence, vector, feature]. A .csv file is a table with a heading, one row for each point in time; its
first column may be the time. Shapes: N sequences, S vectors, F features.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.data.corpus import CorpusReport, OnBadLine, Pair, read_lines, reading
from dragoman.errors import DataError
from dragoman.files import write_output
from dragoman.scale import Scale
from dragoman.text.normalize import is_blank

Vectors = npt.NDArray[np.float32]  # [S, F]


class Sequences(NamedTuple):
    """The sequences of a file."""

    rows: list[Vectors]
    picture: tuple[int, int] | None = None  # height and width, where the vectors are patches

    @property
    def features(self) -> int:
        return self.rows[0].shape[1]


class Series(NamedTuple):
    """A time series."""

    names: list[str]  # of the columns
    values_NF: npt.NDArray[np.float64]


def write_features(path: str | Path, rows: Sequence[npt.ArrayLike], picture: tuple[int, int] | None = None) -> None:
    """Write sequences of vectors as .npz; with `picture`, height and width, they are patches of pictures.

    Numbers are stored in 32 bits, or in 16 if they are given so.
    """
    arrays = [np.asarray(row) for row in rows]
    stored = np.float16 if all(array.dtype == np.float16 for array in arrays) else np.float32
    for number, array in enumerate(arrays, start=1):
        if array.ndim == 2 and not np.isfinite(_cast(array, stored)).all():
            raise DataError(f"sequence {number} has numbers that are not finite; fix or remove it")
        if array.ndim != 2 or array.shape[1] != arrays[0].shape[1] or not len(array):
            raise DataError(
                f"sequence {number}: its shape is {list(array.shape)}; give [vectors, features] like the others"
            )
    if not arrays:
        raise DataError(f"{path}: no sequence to write; give at least one")
    if Path(path).suffix != ".npz":
        raise DataError(f"{path}: is written as .npz; name it so")
    if picture is not None:
        _check_picture(str(path), tuple(picture), arrays)
    content = io.BytesIO()
    lengths = np.array([len(array) for array in arrays], np.int64)
    named = {"vectors": np.concatenate(arrays).astype(stored), "lengths": lengths}
    if picture is not None:
        named["picture"] = np.array(picture, np.int64)
    np.savez_compressed(content, **named)  # type: ignore[arg-type]
    write_output(Path(path), content.getvalue())


def read_features(path: str | Path, features: int | None = None) -> Sequences:
    """Read .npz or .npy; with `features`, vectors must have that many."""
    with reading(Path(path), raw=True) as stream:
        content = stream.read()
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
        rows, picture = _split(path, dict(found)) if isinstance(found, np.lib.npyio.NpzFile) else (list(found), None)
    except DataError:
        raise
    except Exception:  # numpy has errors of many kinds for a damaged file
        raise DataError(
            f"{path}: not a file of vectors; give .npz with `vectors` and `lengths`, or .npy with three axes"
        ) from None
    if not rows or any(row.ndim != 2 or not row.size or row.dtype.kind not in "fiub" for row in rows):
        raise DataError(f"{path}: needs sequences of at least one vector of numbers each")
    if features is not None and rows[0].shape[1] != features:
        raise DataError(
            f"{path}: vectors of {rows[0].shape[1]} numbers; the model has model.source_features={features}"
        )
    rows = [_cast(row, np.float32) for row in rows]
    for number, row in enumerate(rows, start=1):
        if not np.isfinite(row).all():
            raise DataError(f"{path}: sequence {number} has numbers that are not finite; fix or remove it")
    if picture is not None:
        _check_picture(str(path), picture, rows)
    return Sequences(rows, picture)


def _cast(array: npt.NDArray[Any], stored: Any) -> npt.NDArray[Any]:
    """A number that is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(array, stored)


def encode_sequences(scale: Scale, rows: Sequence[npt.ArrayLike], longest: int) -> list[Vectors]:
    """On the scale of a model, at most `longest` vectors of each."""
    encoded = []
    for number, row in enumerate(rows, start=1):
        array = np.asarray(row)
        fits = array.ndim == 2 and array.shape[1] == scale.size and len(array) > 0
        vectors_SF = scale.encode(array[:longest]) if fits else np.full((1, 1), np.nan, np.float32)
        if not np.isfinite(vectors_SF).all():
            raise DataError(
                f"sequence {number}: needs one or more vectors of {scale.size} finite numbers, not {list(array.shape)}"
            )
        encoded.append(vectors_SF)
    return encoded


def _split(path: str | Path, arrays: dict[str, Any]) -> tuple[list[Any], tuple[int, int] | None]:
    if not {"vectors", "lengths"} <= arrays.keys():
        raise DataError(f"{path}: has {', '.join(arrays) or 'no arrays'}; it needs `vectors` and `lengths`")
    vectors, lengths = arrays["vectors"], arrays["lengths"]
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 1).any():
        raise DataError(f"{path}: `lengths` needs one whole number for each sequence, at least 1")
    if lengths.sum() != len(vectors):
        raise DataError(f"{path}: `lengths` add up to {lengths.sum():,}, and there are {len(vectors):,} `vectors`")
    picture = None
    if "picture" in arrays:
        height, width = arrays["picture"].tolist()
        picture = (int(height), int(width))
    return np.split(vectors, np.cumsum(lengths)[:-1]), picture


def _check_picture(path: str, picture: tuple[int, ...], rows: Sequence[npt.NDArray[Any]]) -> None:
    side = math.isqrt(rows[0].shape[1])
    square = side * side == rows[0].shape[1]
    if len(picture) != 2 or not square or min(picture) < side or any(length % side for length in picture):
        raise DataError(
            f"{path}: square patches of {rows[0].shape[1]} numbers do not make a picture of "
            f"{' by '.join(map(str, picture))}"
        )
    count, size = picture[0] * picture[1] // side**2, f"{picture[0]} by {picture[1]}"
    for number, row in enumerate(rows, start=1):
        if len(row) != count:
            raise DataError(f"{path}: sequence {number} has {len(row)} patches; a picture of {size} needs {count}")


def as_picture(vectors_SF: npt.NDArray[Any], picture: tuple[int, int]) -> npt.NDArray[Any]:
    """Patches put together again: [height, width]."""
    side = math.isqrt(vectors_SF.shape[1])
    height, width = picture
    grid = vectors_SF.reshape(height // side, width // side, side, side)
    return grid.swapaxes(1, 2).reshape(height, width)


def as_patches(picture: npt.NDArray[Any], side: int) -> npt.NDArray[Any]:
    """A picture, [height, width], as square patches row by row: [S, side * side]."""
    if picture.ndim != 2:
        raise DataError(f"picture: its shape is {list(picture.shape)}; give [height, width]")
    height, width = picture.shape
    if side < 1 or height % side or width % side:
        raise DataError(f"picture of {height} by {width}: patches of {side} by {side} do not fill it")
    grid = picture.reshape(height // side, side, width // side, side)
    return grid.swapaxes(1, 2).reshape(-1, side * side)


def read_feature_pairs(
    source: Sequence[Path],
    target: Sequence[Path],
    *,
    features: int | None = None,
    on_bad_line: OnBadLine = "fail",
    report: CorpusReport,
    blank: bool = False,
) -> Iterator[Pair]:
    """As `read_pairs`, with sequence N of the source in place of line N. `blank`: a blank line is a target too."""
    if len(source) != len(target) or not source:
        raise DataError(
            f"{len(source)} source files, {len(target)} target files; give as many of one as of the other, in one order"
        )
    report.files = [str(path) for path in target]  # only there, N is a line
    for part, (source_path, target_path) in enumerate(zip(source, target, strict=True)):
        rows, lines = read_features(source_path, features).rows, list(read_lines(target_path))
        if len(rows) != len(lines):
            raise DataError(
                f"{source_path}: {len(rows)} sequences, {target_path}: {len(lines)} lines; line N belongs to sequence N"
            )
        for vectors_SF, line in zip(rows, lines, strict=True):
            if line.problem and on_bad_line == "fail":
                raise DataError(f"{target_path}:{line.number}: {line.problem}; fix the line or use --on-bad-line skip")
            if line.problem:
                report.bad.add(part, line.number)
            elif is_blank(line.text) and not blank:
                report.blank.add(part, line.number)
            else:
                report.kept += 1
                yield Pair(vectors_SF, line.text, part, line.number)
    if not report.kept:
        raise DataError(f"{target[0]}: no usable line; give one for each sequence of {source[0]}")


def read_series(path: str | Path, names: Sequence[str] = ()) -> Series:
    """Read a .csv file, also .csv.bz2 and so on; with `names`, its columns must be these."""
    with reading(Path(path)) as stream:
        content = stream.read()
    try:
        table = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table of comma-separated values ({error})") from None
    while table and not any(cell.strip() for cell in table[-1]):
        table.pop()  # blank lines at the end
    if len(table) < 2:
        raise DataError(f"{path}: no rows; give a heading and one row for each point in time")
    heading, *rows = table
    with_time = bool(rows[0]) and _is_time(rows[0][0])
    found = heading[with_time:]
    separator = next((mark for mark in ";\t|" if len(heading) == 1 and mark in heading[0]), None)
    if separator:
        raise DataError(f"{path}: its columns are separated by {separator!r}; separate them by commas")
    if not found:
        raise DataError(f"{path}: no column of numbers; give at least one")
    if all(_parsed(name) is not None for name in found):
        raise DataError(f"{path}: its first line has numbers, not the names of columns; put a heading above")
    if len({*found}) < len(found):
        raise DataError(f"{path}: two columns have the same name; rename one")
    if names and found != list(names):
        raise DataError(
            f"{path}: its columns are {', '.join(found)}; the model knows {', '.join(names)}, in this order"
        )
    values_NF = np.empty((len(rows), len(found)))
    for number, row in enumerate(rows, start=2):
        values = [_number(cell) for cell in row[with_time:]]
        if len(values) != len(found):
            raise DataError(f"{path}:{number}: has {len(values)} numbers for {len(found)} columns; fix the line")
        if None in values:
            place = values.index(None)
            cell = row[with_time:][place]
            raise DataError(f"{path}:{number}: column {found[place]}: {cell!r} is not a number; fix the line")
        values_NF[number - 2] = values
    return Series(found, values_NF)


def _number(cell: str) -> float | None:
    value = _parsed(cell)
    return value if value is not None and math.isfinite(value) else None


def _is_time(cell: str) -> bool:
    """Not a number, nor one that is missing."""
    return bool(cell.strip()) and _parsed(cell) is None


def _parsed(cell: str) -> float | None:
    try:
        return float(cell) if "_" not in cell else None  # float reads 1_0 as 10
    except ValueError:
        return None


def series_csv(names: Iterable[str], values_NF: npt.NDArray[Any]) -> str:
    """The same as text, without a time."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[f"{value:.9g}" for value in row] for row in values_NF.tolist()])
    return stream.getvalue()
