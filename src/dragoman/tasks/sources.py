"""What a classifier or a transcriber reads: texts, or sequences of feature vectors. Knows nothing of targets."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from dragoman.config import Config
from dragoman.data.batching import pad_rows, pad_vectors
from dragoman.data.corpus import CorpusReport, Pair, read_pairs
from dragoman.data.features import read_feature_pairs, read_features
from dragoman.decode.classifier import Classifier
from dragoman.inspect.one_stack import inspect_label, inspect_vector_label
from dragoman.inspect.record import Record
from dragoman.scale import Scale
from dragoman.tasks.task import Rows
from dragoman.text.tokenizer import Tokenizer


class Source(Protocol):
    name: str  # what a row is, in the plural

    def read(
        self, source: Sequence[Path], target: Sequence[Path], config: Config, report: CorpusReport
    ) -> Iterator[Pair]:
        """The usable pairs of these files."""

    def learn(self, rows: Iterable[Any], config: Config) -> Tokenizer | Scale:
        """What turns the rows of the training data into the model's numbers."""

    def pad(self, store: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        """The source of these rows as one tensor, and which of its positions are real."""

    def describe(self, row: Any, number: int) -> str:
        """A row in a few words."""

    def describe_size(self, size: int, config: Config) -> str:
        """What `learn` found."""

    def inspect(self, classifier: Classifier, row: Any, path: Path) -> Record:
        """Why the classifier chooses the label of a row of the file."""


class TextSource:
    name = "texts"

    def read(
        self, source: Sequence[Path], target: Sequence[Path], config: Config, report: CorpusReport
    ) -> Iterator[Pair]:
        return read_pairs(source, target, on_bad_line=config.data.on_bad_line, report=report)

    def learn(self, rows: Iterable[str], config: Config) -> Tokenizer:
        return Tokenizer.train(rows, config.text)

    def pad(self, store: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        vocabulary = store.source_vocabulary
        return pad_rows([[*store.source(row).tolist(), vocabulary.eos] for row in rows], vocabulary.pad)

    def describe(self, row: str, number: int) -> str:
        return row

    def describe_size(self, size: int, config: Config) -> str:
        return f"{config.text.model} vocabulary: {size:,} pieces"

    def inspect(self, classifier: Classifier, row: str, path: Path) -> Record:
        return inspect_label(classifier, row)


class VectorSource:
    name = "sequences"

    def read(
        self, source: Sequence[Path], target: Sequence[Path], config: Config, report: CorpusReport
    ) -> Iterator[Pair]:
        features, on_bad_line = config.model.input_size, config.data.on_bad_line
        return read_feature_pairs(source, target, features=features, on_bad_line=on_bad_line, report=report)

    def learn(self, rows: Iterable[Any], config: Config) -> Scale:
        return Scale.learn(rows)

    def pad(self, store: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        return pad_vectors([store.source(row) for row in rows])

    def describe(self, row: Any, number: int) -> str:
        return f"sequence {number + 1}, {len(row)} vectors"

    def describe_size(self, size: int, config: Config) -> str:
        return f"vectors of {size:,} features"

    def inspect(self, classifier: Classifier, row: Any, path: Path) -> Record:
        return inspect_vector_label(classifier, row, "", read_features(path).picture)
