"""Encoded pairs on disk, memory-mapped. Knows nothing of batches or epochs.

A store is a directory named by a hash of its inputs: the corpus files, the tokenizers, the limits. It is written next
to its final path and then renamed, so it is complete or absent. `meta.json` holds the SHA-256 of every file; a store
that fails the check is rebuilt.
"""

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dragoman.data.corpus import CorpusReport, Dropped, OnBadLine, Pair, content_hash, read_pairs
from dragoman.data.encoding import AnyTokenizer, Flat, Row, dtype_of, encode_chunks, flatten, workers_for
from dragoman.errors import DataError, DiskError
from dragoman.scale import Scale
from dragoman.text.labels import Labels
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.vocabulary import NO_IDS

FORMAT = 1  # version of the files below; part of the key
CHUNK_ROWS = 10_000
CHUNK_CHARACTERS = 1 << 24  # long lines make shorter chunks, so that memory stays bounded
SIDES = ("source", "target")
TEXT = "text"  # the side of a store that holds no pairs
Lengths = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]  # uint16 or int32, as the vocabulary needs
Tokenizers = Sequence[AnyTokenizer]  # one for each side
ReadPairs = Callable[[CorpusReport], Iterator[Pair]]
AnyRow = TypeVar("AnyRow")
StoreKind = TypeVar("StoreKind", bound="Store")


class Store:
    """Pairs of ids without BOS or EOS, and the vocabularies they belong to. Create one with `build_store`."""

    def __init__(self, directory: Path, meta: dict[str, Any], files: Sequence[Path], tokenizers: Tokenizers) -> None:
        self._opening = (directory, meta, files, tokenizers)
        self.key: str = meta["key"]
        self.source_vocabulary, self.target_vocabulary = (tokenizer.vocabulary for tokenizer in tokenizers)
        self.report = saved_report(meta["report"], files)
        self._ids = [map_ids(directory / f"{side}.ids", meta["dtypes"][side]) for side in SIDES]
        self._offsets = [np.load(directory / f"{side}.offsets.npy", mmap_mode="r") for side in SIDES]
        self._lines = np.load(directory / "lines.npy", mmap_mode="r")

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: they open the same files. What was set later is lost, such as a classifier's weights."""
        return type(self), self._opening

    @functools.cached_property
    def source_lengths(self) -> Lengths:
        """In ids, without </s>."""
        return np.diff(self._offsets[0])

    @functools.cached_property
    def target_lengths(self) -> Lengths:
        return np.diff(self._offsets[1])

    @functools.cached_property
    def source_sizes(self) -> Lengths:
        """The positions that the source of each pair takes in a batch: with </s>."""
        return self.source_lengths + 1

    @functools.cached_property
    def target_sizes(self) -> Lengths:
        """The same of the target: what there is to predict."""
        return self.target_lengths + 1

    @functools.cached_property
    def sizes(self) -> Lengths:
        """Of the longer side."""
        return np.maximum(self.source_sizes, self.target_sizes)

    def __len__(self) -> int:
        return len(self._lines)

    def for_epoch(self, seed: int, epoch: int) -> Self:
        """The same pairs in every epoch."""
        return self

    def source(self, index: int) -> Ids:
        return self._row(0, index)

    def target(self, index: int) -> Ids:
        return self._row(1, index)

    def gather_source(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Lengths]:
        """The concatenated source ids of several pairs, and the length of each."""
        return self._gather(0, rows)

    def gather_target(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Lengths]:
        return self._gather(1, rows)

    def _gather(self, side: int, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Lengths]:
        starts = self._offsets[side][rows]
        lengths = self._offsets[side][rows + 1] - starts
        shift = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        return self._ids[side][shift + np.arange(len(shift))].astype(np.int64), lengths

    @property
    def lines(self) -> npt.NDArray[np.int64]:
        """For every pair, the file it came from, from 0, and the line within it, from 1."""
        return self._lines

    def line(self, index: int) -> int:
        """The line of a pair within its file, from 1."""
        return int(self._lines[index, 1])

    def place(self, index: int) -> str:
        """Where a pair came from, as `train.en:17`."""
        return f"{self.report.files[self._lines[index, 0]]}:{self.line(index)}"

    def _row(self, side: int, index: int) -> Ids:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        start, end = self._offsets[side][index : index + 2]
        return self._ids[side][start:end]


def build_store(
    directory: Path,
    source_paths: Sequence[Path],
    target_paths: Sequence[Path],
    source_tokenizer: Tokenizer | Scale,
    target_tokenizer: Tokenizer | Labels,
    *,
    max_length: int,
    on_bad_line: OnBadLine = "fail",
    progress: Callable[[int], None] | None = None,
    read: ReadPairs | None = None,
    workers: int | None = None,
    kind: type[StoreKind] = Store,  # type: ignore[assignment]
) -> StoreKind:
    """Open the store of these files, or build it if missing or damaged; `progress` gets the number of pairs read.

    A pair with more than `max_length` pieces on a side, including the EOS that training adds, is dropped and counted.
    `read` reads the pairs of files that are not text on both sides. `workers`: processes that encode; None: as it pays.
    """
    key = _key(source_paths, target_paths, source_tokenizer, target_tokenizer, max_length, on_bad_line)
    tokenizers = (source_tokenizer, target_tokenizer)

    def fill(writer: StoreWriter) -> CorpusReport:
        report = CorpusReport()
        pairs = read(report) if read else read_pairs(source_paths, target_paths, on_bad_line=on_bad_line, report=report)
        parts = chunks(pairs, lambda pair: len(pair.source) + len(pair.target))
        helpers = workers_for({*source_paths, *target_paths}, tokenizers) if workers is None else workers
        with closing(encode_chunks(parts, tokenizers, helpers)) as encoded:
            for (count, chunk), (source, target) in encoded:
                _add_encoded(writer, chunk, source, target, tokenizers, max_length, report)
                if progress:
                    progress(count)
        if not report.kept:
            raise DataError(
                f"{report.files[0]}: every pair has more than text.max_length={max_length} pieces; raise it"
            )
        return report

    meta = find_or_fill(directory / key[:16], key, tokenizers, fill)
    return kind(directory / key[:16], meta, source_paths, tokenizers)


def _add_encoded(
    writer: "StoreWriter",
    pairs: list[Pair],
    source: Flat,
    target: Flat,
    tokenizers: Tokenizers,
    max_length: int,
    report: CorpusReport,
) -> None:
    longest_source, longest_target = (max_length - (one.vocabulary != NO_IDS) for one in tokenizers)  # EOS takes one
    lines = np.array([(pair.part, pair.line) for pair in pairs], np.int64).reshape(-1, 2)
    kept = (source.lengths <= longest_source) & (target.lengths <= longest_target)
    for part, line in lines[~kept].tolist():
        report.kept -= 1
        report.too_many_pieces.add(part, line)
    writer.add(source.where(kept), target.where(kept), lines=lines[kept])


def find_or_fill(
    place: Path,
    key: str,
    tokenizers: Tokenizers,
    fill: Callable[["StoreWriter"], CorpusReport],
) -> dict[str, Any]:
    """Return the metadata of the store at `place`, built by `fill` if not valid; for ids of these tokenizers."""
    meta = _read_meta(place, key)
    if meta is None:
        with _building(place, key) as building:
            writer = StoreWriter(building, tokenizers)
            writer.finish(key, fill(writer))
        meta = json.loads((place / "meta.json").read_bytes())
    return meta


class StoreWriter:
    """Appends chunks of pairs, or of the lines of a text, to the files of a store."""

    def __init__(self, directory: Path, tokenizers: Tokenizers) -> None:
        self._directory = directory
        self._sides = SIDES if len(tokenizers) == len(SIDES) else (TEXT,)
        self._dtypes = tuple(map(dtype_of, tokenizers))
        self._lengths: tuple[list[Lengths], ...] = tuple([] for _ in tokenizers)
        self._lines: list[npt.NDArray[np.int64]] = []

    def add(self, *sides: Sequence[Row] | Flat, lines: npt.NDArray[np.int64]) -> None:
        """Append rows of ids for each side, with the (file, line) of each row."""
        for side, rows in enumerate(sides):
            flat = rows if isinstance(rows, Flat) else flatten(rows, self._dtypes[side])
            with (self._directory / f"{self._sides[side]}.ids").open("ab") as file:
                file.write(flat.ids.tobytes())
            self._lengths[side].append(flat.lengths)
        self._lines.append(lines)

    def finish(self, key: str, report: CorpusReport) -> None:
        for side, lengths in zip(self._sides, self._lengths, strict=True):
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
            np.save(self._directory / f"{side}.offsets.npy", offsets)
        np.save(self._directory / "lines.npy", np.concatenate(self._lines))
        meta = {
            "key": key,
            "dtypes": dict(zip(self._sides, self._dtypes, strict=True)),
            "report": asdict(report),
            "files": {path.name: _digest(path) for path in sorted(self._directory.iterdir())},
        }
        (self._directory / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _key(
    source_paths: Sequence[Path],
    target_paths: Sequence[Path],
    source_tokenizer: AnyTokenizer,
    target_tokenizer: AnyTokenizer,
    max_length: int,
    on_bad_line: OnBadLine,
) -> str:
    parts = [
        content_hash(source_paths),
        content_hash(target_paths),
        source_tokenizer.digest,
        target_tokenizer.digest,
        max_length,
        on_bad_line,
        FORMAT,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def chunks(rows: Iterable[AnyRow], length: Callable[[AnyRow], int]) -> Iterator[tuple[int, list[AnyRow]]]:
    """Yield chunks, each with the number of rows up to its end; `length` counts the characters of a row."""
    chunk: list[AnyRow] = []
    count = characters = 0
    for row in rows:
        chunk.append(row)
        count += 1
        characters += length(row)
        if len(chunk) == CHUNK_ROWS or characters > CHUNK_CHARACTERS:
            yield count, chunk
            chunk, characters = [], 0
    if chunk:
        yield count, chunk


def _read_meta(place: Path, key: str) -> dict[str, Any] | None:
    """The metadata of a complete store; None if it is missing, damaged, or has another key."""
    try:
        meta: dict[str, Any] = json.loads((place / "meta.json").read_bytes())
        whole = all(_digest(place / name) == digest for name, digest in meta["files"].items())
        return meta if whole and meta["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def saved_report(values: dict[str, Any], files: Sequence[Path]) -> CorpusReport:
    """The saved report with the files' current names: the key depends only on their contents."""
    dropped = {
        name: Dropped(value["count"], [(part, line) for part, line in value["first"]])
        for name, value in values.items()
        if isinstance(value, dict)
    }
    return CorpusReport([str(path) for path in files], values["kept"], **dropped, unit=values.get("unit", "pair"))


def map_ids(path: Path, dtype: str) -> Ids:
    return np.memmap(path, dtype, mode="r")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _building(place: Path, key: str) -> Iterator[Path]:
    """Yield a temporary directory next to `place`, renamed to it at the end; removed on any failure."""
    building = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        yield building
        if _read_meta(place, key) is None:  # otherwise another process was faster
            shutil.rmtree(place, ignore_errors=True)
            building.rename(place)
    except OSError as error:
        raise DiskError(
            f"{place.parent}: cannot be written ({error.strerror}); free some space or give another directory"
        ) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
