"""A classifier ready to use: texts or vectors in, labels with probabilities out. Knows nothing of files or training.

Shapes: B texts, S positions, F features, C labels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from dragoman.config import CLASSIFICATION
from dragoman.data.batching import bucket_by_length, pad_rows, pad_vectors
from dragoman.data.corpus import text_line
from dragoman.data.features import encode_sequences
from dragoman.decode.runner import Runner
from dragoman.errors import DataError, ModelError
from dragoman.progress import Advance, no_progress
from dragoman.scale import Scale
from dragoman.text.labels import Labels

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = 8_192  # at once, padding included
BATCH_SIZE = 256  # texts at once

Status = Literal["classified", "empty", "truncated"]
Row = Sequence[int] | npt.NDArray[np.float32]  # ids that end in </s>, or [S, F] vectors on the model's scale


@dataclass(frozen=True)
class Prediction:
    """What a classifier says of a text."""

    text: str  # of vectors, which sequence it was
    label: str  # the likeliest
    probability: float  # of that label
    probabilities: dict[str, float]  # of every label
    status: Status  # empty: there was nothing to read; truncated: only the beginning was read


class Classifier(Runner):
    """An encoder that gives a label to a text or to a sequence of vectors. Create one with `Classifier.load`."""

    task = CLASSIFICATION

    @property
    def labels(self) -> Labels:
        return self.tokenizers.labels

    @property
    def reads_vectors(self) -> bool:
        """Whether it classifies sequences of vectors, not texts."""
        return isinstance(self.tokenizers.input, Scale)

    @overload  # a string is an Iterable[str] too; the first matching overload wins
    def classify(self, texts: str) -> Prediction: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, texts: Iterable[str], advance: Advance = no_progress) -> list[Prediction]: ...
    def classify(self, texts: str | Iterable[str], advance: Advance = no_progress) -> Prediction | list[Prediction]:
        """The label of a text, or of each of several; `advance` counts texts."""
        if isinstance(texts, str):
            return self.classify([texts])[0]
        if self.reads_vectors:
            raise ModelError("classify: this model reads vectors, not text; use classify_vectors")
        texts = list(texts)
        for number, text in enumerate(texts, start=1):
            if problem := text_line(text).problem:
                raise DataError(f"text {number}: {problem}; fix the text")
        rows = self.tokenizers.source.encode_batch(texts) if texts else []
        probabilities_BC = np.exp(self.log_probs([self.cut(ids) for ids in rows], advance))
        return [
            self._prediction(text, self._status(ids), probability_C)
            for text, ids, probability_C in zip(texts, rows, probabilities_BC, strict=True)
        ]

    def classify_vectors(self, rows: Sequence[npt.ArrayLike], advance: Advance = no_progress) -> list[Prediction]:
        """The label of each of several sequences of vectors, [S, F]; `advance` counts sequences."""
        if not self.reads_vectors:
            raise ModelError("classify_vectors: this model reads text; use classify")
        probabilities_BC = np.exp(self.log_probs(self.encode(rows), advance))
        return [
            self._prediction(f"sequence {number}", self._status(np.asarray(row), 0), probability_C)
            for number, (row, probability_C) in enumerate(zip(rows, probabilities_BC, strict=True), start=1)
        ]

    def encode(self, items: Sequence[Any]) -> list[Row]:
        """Texts or sequences of vectors as the model takes them."""
        if self.reads_vectors:
            return list(encode_sequences(self.tokenizers.scale, items, self.longest))
        return [self.cut(ids) for ids in self.tokenizers.source.encode_batch(items)]

    def cut(self, ids: Sequence[int]) -> list[int]:
        """At most as many pieces as the model was trained with, then </s>."""
        return [*ids[: self.longest - 1], self.tokenizers.source.vocabulary.eos]

    def _status(self, row: Row, added: int = 1) -> Status:
        """`added`: tokens that mark the end."""
        if not len(row):
            return "empty"
        return "truncated" if len(row) + added > self.longest else "classified"

    def _prediction(self, text: str, status: Status, probability_C: npt.NDArray[Any]) -> Prediction:
        best = int(probability_C.argmax())
        names = self.labels.names
        every = dict(zip(names, probability_C.tolist(), strict=True))
        return Prediction(text, names[best], float(probability_C[best]), every, status)

    def log_probs(self, rows: Sequence[Row], advance: Advance = no_progress) -> npt.NDArray[np.float64]:
        """log P of every label, for rows as `encode` makes them: [B, C]."""
        found_BC = np.zeros((len(rows), self.labels.size))
        sizes = np.array([len(ids) for ids in rows], np.int64)
        for group in bucket_by_length(np.arange(len(rows)), sizes, TOKENS):
            for first in range(0, len(group), BATCH_SIZE):
                some = group[first : first + BATCH_SIZE]
                found_BC[some] = self._batch([rows[row] for row in some]).double().cpu().numpy()
                advance(len(some))
        return found_BC

    def _batch(self, rows: Sequence[Row]) -> "Tensor":
        with self.inference():
            source, allowed = self.padded(rows)
            log_probs_BC: Tensor = self.model(source, allowed).float().log_softmax(dim=-1)
        return log_probs_BC

    def padded(self, rows: Sequence[Any]) -> "tuple[Tensor, ...]":
        """The rows as one tensor, and which of its positions are real."""
        if self.reads_vectors:
            return self.on_device(*pad_vectors(rows))
        return self.on_device(*pad_rows(rows, self.tokenizers.source.vocabulary.pad))
