"""What training asks of a task. Knows no task by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import Config, DataConfig
from dragoman.data.batching import AnyBatch, BatchPlan
from dragoman.data.feature_store import SeriesStore
from dragoman.data.packing import AnyPackedBatch, Shape
from dragoman.data.store import Store
from dragoman.data.text_store import TextStore

Rows = npt.NDArray[np.int64]
AnyStore = Store | TextStore | SeriesStore
Working = Callable[[str, int], None]  # what is being done, and how much of it is done

MAX_TOKENS = 4_096  # per validation batch: unlike packed training, this holds all logits at once


@dataclass(frozen=True)
class PreparedData:
    """The data of a run."""

    config: Config  # with the actual vocabulary sizes
    corpora: DataConfig  # with the actual files
    tokenizers: Tokenizers
    train: Any  # AnyStore: which one is the task's own business
    valid: Any
    valid_sources: list[Any]  # of the validation set: texts, or vectors; none for a language model or a forecaster
    valid_references: list[str]
    identity: dict[str, str]  # SHA-256 of the training corpus and the vocabularies


class Tested(NamedTuple):
    """The result of a test set."""

    scores: dict[str, Any]
    lines: list[str]  # what the model said to each line
    summary: str  # the scores in a few words


class Samples(NamedTuple):
    """What a finished model does with examples of the validation set."""

    lines: list[str]  # Markdown
    picture: str  # as SVG; empty without any
    heading: str = "Attention"
    caption: str = "where each token looked"


class Task(Protocol):
    """Has no state: everything it needs is passed in."""

    name: str  # as in `config.TASKS`
    title: str  # of a model of this task, for its card
    rows: str  # what a corpus consists of: pairs, blocks
    predicted: str  # what there is to predict, which training counts: target tokens, texts
    files: tuple[str, ...]  # the settings of [data] that name its corpora: of training, then of validation
    test_files: tuple[str, ...]  # the same for test sets
    options: str  # the command line's words for `files`

    def read(self, data: DataConfig, files: tuple[str, ...], config: Config) -> Iterable[tuple[Any, ...]]:
        """The usable rows of these files: one text, or the vectors of one sequence, per file name."""

    def read_validation(self, data: DataConfig, files: tuple[str, ...], config: Config) -> tuple[list[Any], list[str]]:
        """The texts or vectors to measure a model on, and what is right for each; none where the store suffices."""

    def learn_tokenizers(self, data: DataConfig, config: Config) -> Tokenizers:
        """Vocabularies from the training text."""

    def adopt_tokenizers(self, tokenizers: Tokenizers, data: DataConfig, config: Config) -> Tokenizers:
        """Vocabularies of a run that starts from a model with these."""

    def build_store(
        self, what: str, data: DataConfig, files: tuple[str, ...], config: Config, tokenizers: Tokenizers,
        directory: Path, working: Working,
    ) -> AnyStore:  # fmt: skip
        """The encoded corpus of these files, kept in `directory`."""

    def describe_rows(self, store: Any, tokenizers: Tokenizers) -> str:
        """More on a corpus than the number of its rows."""

    def collate(self, store: Any, rows: Rows) -> AnyBatch:
        """A padded batch of these rows."""

    def pack(self, store: Any, rows: Rows, shape: Shape | None) -> AnyPackedBatch:
        """A packed batch of these rows."""

    def loss(self, output: Tensor, batch: AnyBatch, label_smoothing: float) -> Tensor:
        """Of a model's output for a padded batch, summed over what is to be predicted."""

    def describe_vocabulary(self, prepared: PreparedData) -> str:
        """Its size, in a few words."""

    def describe_validation(self, prepared: PreparedData) -> str:
        """What is validated on, in a few words."""

    def judge(self, prepared: PreparedData) -> str:
        """Identifies the validation metric and its data: scores of different judges are not comparable."""

    def measure(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, precision: torch.dtype
    ) -> dict[str, Any]:
        """A validation: `loss` and other metrics, a `sample`, and a `snapshot` of attention or None."""

    def finish(self, weights: Mapping[str, Tensor], record: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """The weights to publish, given what `measure` said of them."""

    def test(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, files: Sequence[Path], working: Working,
        note: Callable[[str], None],
    ) -> Tested:  # fmt: skip
        """Evaluate a finished model on one test set."""

    def search(self, config: Config) -> dict[str, Any]:
        """How the outputs of a test set were found, for its record."""

    def test_table(self, tests: Mapping[str, Any]) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Headings and rows for the scores of all test sets."""

    def show_samples(self, bundle: Bundle, prepared: PreparedData, device: torch.device) -> Samples:
        """For the summary of a run."""


def mean_loss(task: Task, model: Any, prepared: PreparedData, device: torch.device, precision: torch.dtype) -> float:
    """Per token, without smoothing, over the whole validation set."""
    store, settings = prepared.valid, prepared.config.train
    plan = BatchPlan(store.sizes, batch_tokens=min(settings.batch_tokens, MAX_TOKENS), seed=0)
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for rows in plan.epoch(0):
            batch = task.collate(store, rows).to(device)
            with torch.autocast(device.type, precision, enabled=precision != torch.float32):
                output = model(*batch.inputs)
            total += float(task.loss(output, batch, 0.0))
            tokens += batch.num_tokens
    return total / tokens


def paths_of(data: DataConfig, setting: str) -> list[Path]:
    """The files that a setting names."""
    return [Path(path) for path in getattr(data, setting)]


def spread(count: int, most: int) -> list[int]:
    """At most so many of `count` rows, evenly apart: corpora are often sorted."""
    return [number * count // min(most, count) for number in range(min(most, count))]
