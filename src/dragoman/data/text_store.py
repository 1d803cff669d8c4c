"""Encoded text on disk, memory-mapped: the lines of a corpus end to end, each ending in </s>. Knows nothing of models.

A language model learns from blocks of this stream of ids. </s> stands for the end of a line: it is what the model
predicts there, and what precedes the first id of all.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.data.corpus import CorpusReport, OnBadLine, content_hash, read_text
from dragoman.data.store import (
    FORMAT,
    TEXT,
    Lengths,
    StoreWriter,
    chunks,
    find_or_fill,
    map_ids,
    saved_report,
)
from dragoman.text.tokenizer import Tokenizer

Ids = npt.NDArray[np.int64]
SHIFT = (0, 1)  # makes the random stream of the shifts another than that of the order of batches


class TextStore:
    """A text in blocks of `length` ids; the first and the last may be shorter. Create one with `build_text_store`.

    With a `shift`, blocks begin elsewhere in the text. Every id is in one block, whatever the shift.
    """

    def __init__(
        self, directory: Path, meta: dict[str, Any], files: Sequence[Path], tokenizer: Tokenizer, length: int,
        shift: int = 0,
    ) -> None:  # fmt: skip
        self.key: str = meta["key"]
        self.vocabulary = tokenizer.vocabulary
        self.report = saved_report(meta["report"], files)
        self._opening = (directory, meta, files, tokenizer, length)
        self._length = length
        self._ids = map_ids(directory / f"{TEXT}.ids", meta["dtypes"][TEXT])
        self._offsets = np.load(directory / f"{TEXT}.offsets.npy", mmap_mode="r")
        self._lines = np.load(directory / "lines.npy", mmap_mode="r")
        cuts = np.arange(shift % length, len(self._ids), length, dtype=np.int64)
        self._bounds = np.unique(np.concatenate(([0], cuts, [len(self._ids)])))
        self.target_sizes: Lengths = np.diff(self._bounds)  # the ids of each block, all of which are predicted
        self.source_sizes: Lengths = np.zeros_like(self.target_sizes)  # a text has no source
        self.sizes = self.target_sizes

    def for_epoch(self, seed: int, epoch: int) -> "TextStore":
        """The same text in the blocks of this epoch."""
        shift = np.random.default_rng([seed, epoch, *SHIFT]).integers(self._length)
        return TextStore(*self._opening, shift=int(shift))

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._bounds) - 1

    def gather(self, rows: npt.NDArray[np.int64]) -> tuple[Ids, Ids, Lengths]:
        """What the model is fed and what it must predict in these blocks, end to end, and the size of each."""
        starts, sizes = self._bounds[rows], self.target_sizes[rows]
        places = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        before = self._ids[places - 1]  # of the first id the last one of all: </s>
        return before.astype(np.int64), self._ids[places].astype(np.int64), sizes

    def place(self, index: int) -> str:
        """Where a block begins, as `text.txt:17`."""
        line = int(np.searchsorted(self._offsets, self._bounds[index], side="right")) - 1
        part, number = self._lines[line]
        return f"{self.report.files[part]}:{number}"


def build_text_store(
    directory: Path,
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    length: int,
    on_bad_line: OnBadLine = "fail",
    progress: Callable[[int], None] | None = None,
) -> TextStore:
    """Open the store of these files, or build it if missing or damaged; `progress` gets the number of lines read."""
    parts = [TEXT, content_hash(paths), tokenizer.digest, on_bad_line, FORMAT]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def fill(writer: StoreWriter) -> CorpusReport:
        report = CorpusReport()
        for count, lines in chunks(read_text(paths, on_bad_line=on_bad_line, report=report), lambda row: len(row.text)):
            rows = [[*ids, tokenizer.vocabulary.eos] for ids in tokenizer.encode_batch([line.text for line in lines])]
            writer.add(rows, lines=np.array([(line.part, line.line) for line in lines], np.int64))
            if progress:
                progress(count)
        return report

    meta = find_or_fill(directory / key[:16], key, (tokenizer,), fill)
    return TextStore(directory / key[:16], meta, paths, tokenizer, length)
