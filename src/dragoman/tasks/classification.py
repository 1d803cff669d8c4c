"""Classification: texts or sequences of vectors with a label each, cross-entropy of the label, accuracy and F1."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import CLASSIFICATION, Config, DataConfig
from dragoman.data.batching import AnyBatch, LabelBatch
from dragoman.data.corpus import CorpusReport, Pair
from dragoman.data.feature_store import FeatureStore
from dragoman.data.packing import AnyPackedBatch, Shape
from dragoman.data.store import Store, build_store
from dragoman.decode.classifier import Classifier
from dragoman.errors import DataError
from dragoman.evaluate.classification import best_temperature, score_labels
from dragoman.inspect.record import attention_picture
from dragoman.markdown import escape
from dragoman.tasks.sources import Source, TextSource
from dragoman.tasks.task import PreparedData, Rows, Samples, Tested, Working, mean_loss, paths_of, spread
from dragoman.text.labels import Labels

SAMPLES = 10
LABELS_SHOWN = 10


class LabelStore(Store):
    """Texts and their labels; with `weight_C`, how much a text with each label counts in the loss."""

    weight_C: npt.NDArray[np.float32] | None = None

    @functools.cached_property
    def target_sizes(self) -> npt.NDArray[np.int64]:
        return np.ones(len(self), np.int64)


class VectorLabelStore(LabelStore, FeatureStore):
    """Sequences of vectors and their labels."""


class ClassificationTask:
    name = CLASSIFICATION
    title = "A dragoman classifier"
    files: tuple[str, ...] = ("source", "target", "valid_source", "valid_target")
    test_files: tuple[str, ...] = ("test_source", "test_target")

    def __init__(self, source: Source | None = None, store: type[LabelStore] = LabelStore) -> None:
        self.source: Source = source or TextSource()
        self._store = store
        self.rows = self.predicted = self.source.name
        self.options = (
            f"--source, --target, --valid-source and --valid-target: {self.source.name}, and one label per line"
        )

    def read(self, data: DataConfig, files: tuple[str, ...], config: Config) -> Iterator[tuple[Any, str]]:
        source, target = files
        for pair in self._pairs(paths_of(data, source), paths_of(data, target), config):
            yield pair.source, pair.target

    def _pairs(self, source: Sequence[Path], target: Sequence[Path], config: Config) -> Iterator[Pair]:
        return self.source.read(source, target, config, CorpusReport())

    def read_validation(self, data: DataConfig, files: tuple[str, ...], config: Config) -> tuple[list[Any], list[str]]:
        pairs = list(self.read(data, files, config))  # all: files are often sorted by label
        return [text for text, _ in pairs], [label for _, label in pairs]

    def learn_tokenizers(self, data: DataConfig, config: Config) -> Tokenizers:
        training = self.files[:2]
        labels = Labels.learn(label for _, label in self.read(data, training, config))
        return Tokenizers(self.source.learn((row for row, _ in self.read(data, training, config)), config), labels)

    def adopt_tokenizers(self, tokenizers: Tokenizers, data: DataConfig, config: Config) -> Tokenizers:
        labels = Labels.learn(label for _, label in self.read(data, self.files[:2], config))
        return Tokenizers(tokenizers.input, labels)

    def build_store(
        self, what: str, data: DataConfig, files: tuple[str, ...], config: Config, tokenizers: Tokenizers,
        directory: Path, working: Working,
    ) -> LabelStore:  # fmt: skip
        source, target = (paths_of(data, name) for name in files)
        labels = tokenizers.labels
        _check_labels(self._pairs(source, target, config), labels, target)
        for paths in zip(
            *(paths_of(data, name) for name in self.test_files), strict=True
        ):  # before training, not after
            _check_labels(self._pairs([paths[0]], [paths[1]], config), labels, [paths[1]])
        store = build_store(
            directory,
            source,
            target,
            tokenizers.input,
            labels,
            max_length=config.text.max_length,
            on_bad_line=config.data.on_bad_line,
            progress=lambda done: working(f"encoding {what} {self.rows}", done),
            read=lambda report: self.source.read(source, target, config, report),
            kind=self._store,
        )
        if what == "training" and config.train.class_weights == "balanced":
            counts_C = np.bincount(store.gather_target(np.arange(len(store)))[0], minlength=labels.size)
            store.weight_C = (len(store) / (labels.size * np.maximum(counts_C, 1))).astype(np.float32)
        return store

    def describe_rows(self, store: LabelStore, tokenizers: Tokenizers) -> str:
        counts = Counter(store.gather_target(np.arange(len(store)))[0].tolist())
        names = tokenizers.labels.names
        shown = ", ".join(f"{count:,} {names[label]}" for label, count in counts.most_common(LABELS_SHOWN))
        return f": {shown}{', ...' if len(counts) > LABELS_SHOWN else ''}"

    def collate(self, store: LabelStore, rows: Rows) -> LabelBatch:
        source, allowed = self.source.pad(store, rows)
        label_B, _ = store.gather_target(rows)
        weight_B = np.ones(len(rows), np.float32) if store.weight_C is None else store.weight_C[label_B]
        return LabelBatch(
            source_ids=source,
            source_allowed=allowed,
            target_output=torch.from_numpy(label_B),
            weight=torch.from_numpy(weight_B),
            num_tokens=len(rows),
            pad=Labels.vocabulary.pad,
        )

    def pack(self, store: LabelStore, rows: Rows, shape: Shape | None) -> AnyPackedBatch:
        raise NotImplementedError  # `choose_layout` refuses packed batches

    def loss(self, output: Tensor, batch: AnyBatch, label_smoothing: float) -> Tensor:
        assert isinstance(batch, LabelBatch)
        losses_B = F.cross_entropy(
            output.float(), batch.target_output, ignore_index=batch.pad, label_smoothing=label_smoothing,
            reduction="none",
        )  # fmt: skip
        return (losses_B * batch.weight).sum()

    def describe_vocabulary(self, prepared: PreparedData) -> str:
        size, labels = prepared.tokenizers.input.size, prepared.tokenizers.labels.size
        return f"{self.source.describe_size(size, prepared.config)}; {labels} labels"

    def describe_validation(self, prepared: PreparedData) -> str:
        return f"{len(prepared.valid_references):,} {self.rows}"

    def judge(self, prepared: PreparedData) -> str:
        return f"{prepared.config.train.valid_metric} on {len(prepared.valid_references)} of {prepared.valid.key[:16]}"

    def measure(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, precision: torch.dtype
    ) -> dict[str, Any]:
        classifier = Classifier(bundle, device)
        right_N, log_prob_NC = _answers(classifier, prepared.valid_sources, prepared.valid_references)
        scores = score_labels(right_N, log_prob_NC, classifier.labels.names, resamples=0)
        best, first = int(log_prob_NC[0].argmax()), self.source.describe(prepared.valid_sources[0], 0)
        return {
            "loss": mean_loss(self, bundle.model, prepared, device, precision),
            "accuracy": scores.accuracy.score,
            "macro_f1": scores.macro_f1.score,
            "temperature": best_temperature(right_N, log_prob_NC),
            "sample": {"text": first, "label": _shown(classifier.labels.names[best], log_prob_NC[0, best])},
            "snapshot": None,
        }

    def finish(self, weights: Mapping[str, Tensor], record: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Calibrated: with logits divided by the temperature that suits the validation set."""
        temperature = record.get("temperature", 1.0)
        output = {name: weights[name] / temperature for name in ("output.weight", "output.bias")}
        return {**weights, **output}

    def test(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, files: Sequence[Path], working: Working,
        note: Callable[[str], None],
    ) -> Tested:  # fmt: skip
        report = CorpusReport()
        source, target = ([path] for path in files)
        pairs = list(self.source.read(source, target, prepared.config, report))
        for each in report.notes():
            note(each)
        working(f"classifying {files[0].name}, lines", len(pairs))
        classifier = Classifier(bundle, device)
        names = classifier.labels.names
        answers = _answers(classifier, [pair.source for pair in pairs], [pair.target for pair in pairs])
        scores = score_labels(*answers, names)
        predicted = [names[best] for best in answers[1].argmax(axis=1)]
        return Tested(scores.to_dict(), predicted, f"accuracy {scores.accuracy}, macro F1 {scores.macro_f1}")

    def search(self, config: Config) -> dict[str, Any]:
        return {}

    def test_table(self, tests: Mapping[str, Any]) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows: list[Sequence[str]] = []
        for name, test in tests.items():
            scores = [test[metric] for metric in ("accuracy", "macro_f1")]
            shown = [f"{each['score']:.1f} ({each['low']:.1f} to {each['high']:.1f})" for each in scores]
            rows.append((name, *shown, f"{test['calibration_error']:.1f}", f"{test['sentences']:,}"))
        return ("test set", "accuracy", "macro F1", "calibration error", self.rows), rows

    def show_samples(self, bundle: Bundle, prepared: PreparedData, device: torch.device) -> Samples:
        rows = spread(len(prepared.valid_sources), SAMPLES)
        lines = [
            f"Validation {self.rows}, evenly apart; these weights.",
            "",
            f"| {self.rows.removesuffix('s')} | right | predicted | probability |",
            "| --- | --- | --- | --- |",
        ]
        classifier = Classifier(bundle, device)
        log_prob_NC = classifier.log_probs(classifier.encode([prepared.valid_sources[row] for row in rows]))
        for row, log_prob_C in zip(rows, log_prob_NC, strict=True):
            best = int(log_prob_C.argmax())
            text, right = self.source.describe(prepared.valid_sources[row], row), prepared.valid_references[row]
            cells = (text, right, classifier.labels.names[best], f"{np.exp(log_prob_C[best]):.1%}")
            lines.append("| " + " | ".join(map(escape, cells)) + " |")
        valid = paths_of(prepared.corpora, "valid_source")[0]
        record = self.source.inspect(classifier, prepared.valid_sources[rows[0]], valid)
        return Samples(lines, attention_picture(record))


def _shown(label: str, log_prob: float) -> str:
    return f"{label} ({np.exp(log_prob):.0%})"


def _check_labels(pairs: Iterator[Pair] | list[Pair], labels: Labels, files: Sequence[Path]) -> None:
    for pair in pairs:
        if labels.find(pair.target) is None:
            raise DataError(
                f"{files[pair.part]}:{pair.line}: {pair.target!r} is not a label of the training data; "
                f"{labels.suggest(pair.target)}"
            )


def _answers(
    classifier: Classifier, rows: Sequence[Any], right: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The ids of the right labels, and log P of every label."""
    right_N = np.array([index for (index,) in classifier.labels.encode_batch(right)], np.int64)
    return right_N, classifier.log_probs(classifier.encode(rows))
