"""Transcription: vectors and the text they stand for, such as speech or a picture with its caption; word error rate."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import TRANSCRIPTION, Config, DataConfig
from dragoman.data.batching import Batch, batch_of_padded
from dragoman.data.corpus import CorpusReport
from dragoman.data.feature_store import FeatureStore
from dragoman.data.features import read_features
from dragoman.data.packing import PackedBatch, Shape
from dragoman.data.store import build_store
from dragoman.decode.transcriber import Transcriber
from dragoman.evaluate.metrics import exact_match, quick_scores
from dragoman.evaluate.word_errors import word_error_rate
from dragoman.inspect.record import attention_picture
from dragoman.inspect.vectors import inspect_transcription
from dragoman.markdown import escape
from dragoman.tasks.sources import VectorSource
from dragoman.tasks.task import PreparedData, Rows, Samples, Tested, Working, mean_loss, paths_of, spread
from dragoman.tasks.translation import TranslationTask
from dragoman.text.normalize import normalize
from dragoman.text.tokenizer import Tokenizer

SAMPLES = 10


class TranscriptionTask(TranslationTask):
    """As translation, from vectors."""

    name = TRANSCRIPTION
    title = "A dragoman transcriber"
    options = "--source, --target, --valid-source and --valid-target: vectors (.npz), and one text per line"
    source = VectorSource()

    def read(self, data: DataConfig, files: tuple[str, ...], config: Config) -> Iterator[tuple[Any, str]]:
        source, target = (paths_of(data, name) for name in files)
        for pair in self.source.read(source, target, config, CorpusReport()):
            yield pair.source, pair.target

    def learn_tokenizers(self, data: DataConfig, config: Config) -> Tokenizers:
        def side(index: int) -> Iterator[Any]:
            return (pair[index] for pair in self.read(data, self.files[:2], config))

        return Tokenizers(self.source.learn(side(0), config), Tokenizer.train(side(1), config.text))

    def build_store(
        self, what: str, data: DataConfig, files: tuple[str, ...], config: Config, tokenizers: Tokenizers,
        directory: Path, working: Working,
    ) -> FeatureStore:  # fmt: skip
        source, target = (paths_of(data, name) for name in files)
        return build_store(
            directory,
            source,
            target,
            tokenizers.scale,
            tokenizers.target,
            max_length=config.text.max_length,
            on_bad_line=config.data.on_bad_line,
            progress=lambda done: working(f"encoding {what} pairs", done),
            read=lambda report: self.source.read(source, target, config, report),
            kind=FeatureStore,
        )

    def collate(self, store: Any, rows: Rows) -> Batch:
        targets = [store.target(row).tolist() for row in rows]
        return batch_of_padded(*self.source.pad(store, rows), targets, store.target_vocabulary)

    def pack(self, store: Any, rows: Rows, shape: Shape | None) -> PackedBatch:
        raise NotImplementedError  # `choose_layout` refuses packed batches

    def describe_vocabulary(self, prepared: PreparedData) -> str:
        vectors = self.source.describe_size(prepared.tokenizers.scale.size, prepared.config)
        return f"{vectors}; {prepared.config.text.model} vocabulary: {prepared.tokenizers.target.size:,} pieces"

    def describe_validation(self, prepared: PreparedData) -> str:
        return f"{len(prepared.valid_references):,} {self.source.name}, greedy"

    def measure(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, precision: torch.dtype
    ) -> dict[str, Any]:
        transcriber = Transcriber(bundle, device)
        texts = [one.text for one in transcriber.transcribe(prepared.valid_sources, beam=1)]
        return {
            "loss": mean_loss(self, bundle.model, prepared, device, precision),
            "word_error_rate": word_error_rate(texts, prepared.valid_references, resamples=0).score,
            **quick_scores(texts, prepared.valid_references, prepared.config.text.normalization),
            "sample": {"source": self.source.describe(prepared.valid_sources[0], 0), "text": texts[0]},
            "snapshot": None,
        }

    def test(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, files: Sequence[Path], working: Working,
        note: Callable[[str], None],
    ) -> Tested:  # fmt: skip
        report = CorpusReport()
        pairs = list(self.source.read([files[0]], [files[1]], prepared.config, report))
        for each in report.notes():
            note(each)
        working(f"transcribing {files[0].name}, sequences", len(pairs))
        said = Transcriber(bundle, device).transcribe([pair.source for pair in pairs])
        texts, normalization = [one.text for one in said], prepared.config.text.normalization
        right = [normalize(pair.target, normalization) for pair in pairs]
        scores = transcription_scores(texts, right, normalization)
        scores["truncated"] = sum(one.status == "truncated" for one in said)
        rate = scores["word_error_rate"]
        summary = f"word error rate {rate['score']:.1f} ({rate['low']:.1f} to {rate['high']:.1f}), "
        return Tested(scores, texts, f"{summary}exact {scores['exact_match']:.1f}%")

    def test_table(self, tests: Mapping[str, Any]) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows: list[Sequence[str]] = []
        for name, test in tests.items():
            rate = test["word_error_rate"]
            shown = f"{rate['score']:.1f} ({rate['low']:.1f} to {rate['high']:.1f})"
            rows.append((name, shown, f"{test['exact_match']:.1f}%", f"{test['sentences']:,}"))
        return ("test set", "word error rate", "exact match", "sequences"), rows

    def show_samples(self, bundle: Bundle, prepared: PreparedData, device: torch.device) -> Samples:
        rows = spread(len(prepared.valid_sources), SAMPLES)
        transcriber = Transcriber(bundle, device)
        sources = [prepared.valid_sources[row] for row in rows]
        said = transcriber.transcribe(sources)
        lines = [
            f"Validation sequences, evenly apart; these weights, beam {prepared.config.decode.beam}.",
            "",
            "| sequence | right | said |",
            "| --- | --- | --- |",
        ]
        for row, source, one in zip(rows, sources, said, strict=True):
            cells = (self.source.describe(source, row), prepared.valid_references[row], one.text)
            lines.append("| " + " | ".join(map(escape, cells)) + " |")
        picture = read_features(paths_of(prepared.corpora, "valid_source")[0]).picture
        record = inspect_transcription(transcriber, sources[0], "", picture)
        return Samples(lines, attention_picture(record), caption="which vectors each token looked at")


def transcription_scores(texts: Sequence[str], right: Sequence[str], normalization: Any) -> dict[str, Any]:
    return {
        "word_error_rate": word_error_rate(texts, right).to_dict(),
        "exact_match": exact_match(texts, right, normalization),
        "sentences": len(right),
    }
