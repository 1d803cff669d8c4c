"""The scale of feature vectors: from the numbers of a file to those a model takes, and back. Knows nothing of models.

It stands where a text has its tokenizer. Shapes: S vectors, F features.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dragoman.errors import DataError, ModelError
from dragoman.text.vocabulary import NO_IDS

Vectors = npt.NDArray[np.float32]  # [S, F]
NOT_A_SCALE = "not a scale of features; copy it again from a model directory that works"
MIN_DEVIATION = 1e-2  # of a window whose values hardly change: the least unit, on the scale of the training data


class Scale:
    """The mean and the standard deviation of every feature in the training data, and its name where it has one."""

    vocabulary = NO_IDS
    languages: tuple[str, ...] = ()

    def __init__(self, mean: Sequence[float], deviation: Sequence[float], names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self._mean_F, self._deviation_F = np.array(mean, np.float64), np.array(deviation, np.float64)

    @classmethod
    def learn(cls, rows: Iterable[npt.NDArray[Any]], names: Sequence[str] = ()) -> Self:
        """Of all vectors of all rows, each [S, F]. A feature that never changes keeps its unit."""
        with np.errstate(over="ignore", invalid="ignore"):  # such numbers are refused at the end
            return cls._learn(rows, names)

    @classmethod
    def _learn(cls, rows: Iterable[npt.NDArray[Any]], names: Sequence[str]) -> Self:
        count, mean_F, squares_F = 0, np.zeros(1), np.zeros(1)
        low_F, high_F = np.full(1, np.inf), np.full(1, -np.inf)
        for vectors_SF in rows:  # the means of parts are joined: a difference of large sums would lose digits
            part_SF = np.asarray(vectors_SF, np.float64)
            part_mean_F, total = part_SF.mean(axis=0), count + len(part_SF)
            shift_F = part_mean_F - mean_F
            squares_F = squares_F + ((part_SF - part_mean_F) ** 2).sum(axis=0)
            squares_F = squares_F + shift_F**2 * (count * len(part_SF) / total)
            mean_F = mean_F + shift_F * (len(part_SF) / total)
            low_F, high_F = np.minimum(low_F, part_SF.min(axis=0)), np.maximum(high_F, part_SF.max(axis=0))
            count = total
        deviation_F = np.where(low_F < high_F, np.sqrt(squares_F / count), 1.0)  # of equal numbers, rounding is left
        if not np.isfinite(deviation_F).all() or not (deviation_F > 0.0).all():
            raise DataError("features: too large or too close to each other to be scaled; change their unit")
        return cls(list(mean_F), list(deviation_F), names)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        try:
            values = json.loads(content)
            mean, deviation, names = (values[name] for name in ("mean", "deviation", "names"))
            numbers_2F = np.array([mean, deviation], np.float64)
            named = isinstance(names, list) and all(isinstance(name, str) for name in names)
            fits = numbers_2F.ndim == 2 and numbers_2F.size and len(names) in (0, len(mean))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise ModelError(NOT_A_SCALE) from None
        if not named or not fits or not np.isfinite(numbers_2F).all() or (numbers_2F[1] <= 0).any():
            raise ModelError(NOT_A_SCALE)
        return cls(mean, deviation, names)

    def to_bytes(self) -> bytes:
        values = {"names": self.names, "mean": self._mean_F.tolist(), "deviation": self._deviation_F.tolist()}
        return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()

    def __repr__(self) -> str:
        return f"Scale({self.size} features)"

    @property
    def size(self) -> int:
        """Features of a vector."""
        return len(self._mean_F)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def encode(self, vectors_SF: npt.NDArray[Any]) -> Vectors:
        """In units of the standard deviation, from the mean. A number that is too large becomes infinite."""
        with np.errstate(over="ignore"):
            return ((vectors_SF - self._mean_F) / self._deviation_F).astype(np.float32)

    def encode_batch(self, rows: Sequence[npt.NDArray[Any]]) -> list[Vectors]:
        return [self.encode(vectors_SF) for vectors_SF in rows]

    def decode(self, vectors_SF: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """In the unit of the file."""
        decoded: npt.NDArray[np.float64] = vectors_SF * self._deviation_F + self._mean_F
        return decoded


def rows_before(source_BSF: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """The last `count` rows of each window, what a decoder is fed to forecast as many: a daily curve is in them.

    Where there are fewer, they are repeated.
    """
    length = source_BSF.shape[1]
    return source_BSF[:, np.arange(-count, 0) % length if count > length else np.arange(length - count, length)]


def window_scale(source_BSF: npt.NDArray[Any], relative_to: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """What is subtracted from the values of each window, and the unit they are measured in: [B, 1, F] both."""
    last_B1F = source_BSF[:, -1:]
    if relative_to == "window":
        deviation_B1F = source_BSF.std(axis=1, keepdims=True)
        return source_BSF.mean(axis=1, keepdims=True), np.sqrt(deviation_B1F**2 + MIN_DEVIATION**2)
    return last_B1F if relative_to == "last" else np.zeros_like(last_B1F), np.ones_like(last_B1F)
