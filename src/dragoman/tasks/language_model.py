"""Language modelling: a text in blocks, cross-entropy of the next piece, samples."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import LANGUAGE_MODEL, Config, DataConfig
from dragoman.data.batching import AnyBatch, TextBatch, pad_rows
from dragoman.data.corpus import CorpusReport, read_text
from dragoman.data.packing import PackedText, Shape, pack_text
from dragoman.data.text_store import TextStore, build_text_store
from dragoman.decode.language_model import LanguageModel
from dragoman.inspect.one_stack import MAX_DRAWN, inspect_text
from dragoman.inspect.record import attention_picture
from dragoman.markdown import escape
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.tasks.task import PreparedData, Rows, Samples, Tested, Working, mean_loss, paths_of
from dragoman.text.tokenizer import Tokenizer

SAMPLES, SAMPLE_TOKENS = 3, 200
VALIDATION_SAMPLE = 100  # tokens
LINES_TRIED = 100  # of the validation text, to find one that fits into a picture


class LanguageModelTask:
    name = LANGUAGE_MODEL
    title = "A dragoman language model"
    rows = "blocks"
    predicted = "tokens"
    files: tuple[str, ...] = ("text", "valid_text")
    test_files: tuple[str, ...] = ("test_text",)
    options = "--text and --valid-text"

    def read(self, data: DataConfig, files: tuple[str, ...], config: Config) -> Iterator[tuple[str]]:
        for line in read_text(paths_of(data, files[0]), on_bad_line=config.data.on_bad_line, report=CorpusReport()):
            yield (line.text,)

    def read_validation(self, data: DataConfig, files: tuple[str, ...], config: Config) -> tuple[list[str], list[str]]:
        return [], []

    def learn_tokenizers(self, data: DataConfig, config: Config) -> Tokenizers:
        tokenizer = Tokenizer.train((text for (text,) in self.read(data, self.files[:1], config)), config.text)
        return Tokenizers(tokenizer, tokenizer)

    def adopt_tokenizers(self, tokenizers: Tokenizers, data: DataConfig, config: Config) -> Tokenizers:
        return Tokenizers(tokenizers.target, tokenizers.target)

    def build_store(
        self, what: str, data: DataConfig, files: tuple[str, ...], config: Config, tokenizers: Tokenizers,
        directory: Path, working: Working,
    ) -> TextStore:  # fmt: skip
        return build_text_store(
            directory,
            paths_of(data, files[0]),
            tokenizers.target,
            length=config.text.max_length,
            on_bad_line=config.data.on_bad_line,
            progress=lambda done: working(f"encoding {what} lines", done),
        )

    def describe_rows(self, store: TextStore, tokenizers: Tokenizers) -> str:
        return ""

    def collate(self, store: TextStore, rows: Rows) -> TextBatch:
        before, ids, sizes = store.gather(rows)
        ends, pad = np.cumsum(sizes)[:-1], store.vocabulary.pad
        target_input, target_output = (
            pad_rows([block.tolist() for block in np.split(side, ends)], pad)[0] for side in (before, ids)
        )
        return TextBatch(target_input=target_input, target_output=target_output, num_tokens=len(ids), pad=pad)

    def pack(self, store: TextStore, rows: Rows, shape: Shape | None) -> PackedText:
        return pack_text(store, rows, shape)

    def loss(self, output: Tensor, batch: AnyBatch, label_smoothing: float) -> Tensor:
        return smoothed_cross_entropy(output, batch.target_output, label_smoothing, batch.pad)

    def describe_vocabulary(self, prepared: PreparedData) -> str:
        return f"{prepared.config.text.model} vocabulary: {prepared.tokenizers.target.size:,} pieces"

    def describe_validation(self, prepared: PreparedData) -> str:
        return f"{prepared.valid.target_sizes.sum():,} tokens"

    def judge(self, prepared: PreparedData) -> str:
        return f"{prepared.config.train.valid_metric} on {len(prepared.valid)} of {prepared.valid.key[:16]}"

    def measure(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, precision: torch.dtype
    ) -> dict[str, Any]:
        loss = mean_loss(self, bundle.model, prepared, device, precision)
        text = LanguageModel(bundle, device).generate(max_tokens=VALIDATION_SAMPLE)
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "sample": {"prompt": "", "text": text},
            "snapshot": None,
        }

    def finish(self, weights: Mapping[str, Tensor], record: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return weights

    def test(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, files: Sequence[Path], working: Working,
        note: Callable[[str], None],
    ) -> Tested:  # fmt: skip
        report, done = CorpusReport(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            working(f"scoring {files[0].name}, tokens", done)

        lines = [line.text for line in read_text(files, on_bad_line=prepared.config.data.on_bad_line, report=report)]
        for each in report.notes():
            note(each)
        score = LanguageModel(bundle, device).score("".join(f"{line}\n" for line in lines), advance)
        summary = (
            f"perplexity {score.perplexity:.2f}, {score.nats_per_token:.4f} nats a token, "
            f"{score.bits_per_byte:.3f} bits a byte"
        )
        return Tested(score.to_dict(), [], summary)

    def search(self, config: Config) -> dict[str, Any]:
        return {}

    def test_table(self, tests: Mapping[str, Any]) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows: list[Sequence[str]] = [
            (
                name,
                f"{test['perplexity']:.2f}",
                f"{test['nats_per_token']:.4f}",
                f"{test['bits_per_byte']:.3f}",
                f"{test['tokens']:,}",
            )
            for name, test in tests.items()
        ]
        return ("test set", "perplexity", "nats a token", "bits a byte", "tokens"), rows

    def show_samples(self, bundle: Bundle, prepared: PreparedData, device: torch.device) -> Samples:
        model = LanguageModel(bundle, device)
        lines = [f"From an empty prompt, temperature 1, {SAMPLE_TOKENS} tokens each; these weights.", ""]
        for seed in range(1, SAMPLES + 1):
            text = model.generate(max_tokens=SAMPLE_TOKENS, seed=seed)
            lines += [f"Seed {seed}:", "", *(f"> {escape(line)}  " for line in text.split("\n")), ""]
        valid = islice(self.read(prepared.corpora, self.files[1:], prepared.config), LINES_TRIED)
        return Samples(lines[:-1], _draw_attention(model, [text for (text,) in valid]))


def _draw_attention(model: LanguageModel, lines: Sequence[str]) -> str:
    """In the first line that fits into a picture."""
    fitting = (line for line in lines if 0 < len(model.tokenizer.encode(line)) < min(model.context, MAX_DRAWN))
    line = next(fitting, None)
    return attention_picture(inspect_text(model, line)) if line is not None else ""
