"""Data of feature vectors: sequences with their targets, memory-mapped, and windows of a time series.

Knows nothing of models. Shapes: S vectors, F features.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dragoman.data.corpus import CorpusReport, content_hash
from dragoman.data.features import read_series
from dragoman.data.store import FORMAT, Lengths, Store, Tokenizers
from dragoman.errors import DataError
from dragoman.scale import Scale

Vectors = npt.NDArray[np.float32]


class FeatureStore(Store):
    """Pairs whose source is a sequence of vectors. Nothing marks its end."""

    def __init__(self, directory: Path, meta: dict[str, Any], files: Sequence[Path], tokenizers: Tokenizers) -> None:
        super().__init__(directory, meta, files, tokenizers)
        self._ids[0] = self._ids[0].reshape(-1, tokenizers[0].size)

    @functools.cached_property
    def source_sizes(self) -> Lengths:
        return self.source_lengths


class SeriesStore:
    """Every window of one or more series: `lookback` rows that are given, and the `horizon` rows after them.

    The rows are in memory: a series of a million rows and ten columns has 40 MB.
    """

    def __init__(
        self, paths: Sequence[Path], scale: Scale, lookback: int, horizon: int, relative_to: str = "training"
    ) -> None:
        self.lookback, self.horizon, self.relative_to = lookback, horizon, relative_to
        self.report = CorpusReport([str(path) for path in paths], unit="window")
        self._series = [_encoded(path, scale) for path in paths]
        starts = []
        for part, (path, rows) in enumerate(zip(paths, self._series, strict=True)):
            count = len(rows) - lookback - horizon + 1
            if count < 1:
                raise DataError(
                    f"{path}: {len(rows):,} rows; a window needs {lookback + horizon:,}, data.lookback={lookback} and "
                    f"data.horizon={horizon}"
                )
            starts += [(part, start) for start in range(count)]
        self._starts = np.array(starts, np.int64)
        self.report.kept = len(self)
        parts = [content_hash(paths), scale.digest, lookback, horizon, FORMAT]
        self.key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        self.source_sizes: Lengths = np.full(len(self), lookback)
        self.target_sizes: Lengths = np.full(len(self), horizon)
        self.sizes: Lengths = np.maximum(self.source_sizes, self.target_sizes)

    def __len__(self) -> int:
        return len(self._starts)

    def for_epoch(self, seed: int, epoch: int) -> Self:
        """The same windows in every epoch."""
        return self

    def gather(self, windows: npt.NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        """Of these windows the rows that are given, [B, S, F], and those to forecast, [B, T, F]."""
        length = self.lookback + self.horizon
        rows = np.stack([self._series[part][start : start + length] for part, start in self._starts[windows]])
        return rows[:, : self.lookback], rows[:, self.lookback :]

    def place(self, index: int) -> str:
        """The first row of a window that is to be forecast, as `series.csv:17`."""
        part, start = self._starts[index]
        return f"{self.report.files[part]}:{start + self.lookback + 2}"  # the heading is line 1


def _encoded(path: Path, scale: Scale) -> Vectors:
    rows_NF = scale.encode(read_series(path, scale.names).values_NF)
    for row, column in np.argwhere(~np.isfinite(rows_NF))[:1].tolist():
        raise DataError(f"{path}:{row + 2}: the number in the column {scale.names[column]} is too large; fix the line")
    return rows_NF
