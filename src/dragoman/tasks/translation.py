"""Translation: pairs of sentences, cross-entropy, BLEU and chrF of real translations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman import pictures
from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import TRANSLATION, Config, DataConfig, DecodeConfig
from dragoman.data.batching import AnyBatch, Batch, collate
from dragoman.data.corpus import CorpusReport, read_pairs
from dragoman.data.packing import PackedBatch, Shape, pack
from dragoman.data.store import Store, build_store
from dragoman.decode.options import DecodeOptions
from dragoman.decode.translation import Translation
from dragoman.decode.translator import Translator, windows
from dragoman.evaluate.metrics import evaluate, quick_scores, suitable_tokenization
from dragoman.evaluate.paper import languages, tokenized_bleu
from dragoman.markdown import escape
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.tasks.snapshots import take_snapshot
from dragoman.tasks.task import PreparedData, Rows, Samples, Tested, Working, mean_loss, paths_of, spread
from dragoman.text.normalize import is_lowercase, normalize
from dragoman.text.tokenizer import Tokenizer

SAMPLES = 10
MAX_TOKENS = 40  # of the sentence whose attention is drawn, where there is one that short


class TranslationTask:
    name = TRANSLATION
    title = "A dragoman translation model"
    rows = "pairs"
    predicted = "target tokens"
    files: tuple[str, ...] = ("source", "target", "valid_source", "valid_target")
    test_files: tuple[str, ...] = ("test_source", "test_target")
    options = "--source, --target, --valid-source and --valid-target, or data.generated for a generated corpus"

    def read(self, data: DataConfig, files: tuple[str, ...], config: Config) -> Iterator[tuple[str, str]]:
        source, target = files
        paths = paths_of(data, source), paths_of(data, target)
        for pair in read_pairs(*paths, on_bad_line=config.data.on_bad_line, report=CorpusReport()):
            yield pair.source, pair.target

    def read_validation(self, data: DataConfig, files: tuple[str, ...], config: Config) -> tuple[list[str], list[str]]:
        pairs = list(islice(self.read(data, files, config), config.train.valid_sentences))
        # normalised as translations are
        return [source for source, _ in pairs], [normalize(target, config.text.normalization) for _, target in pairs]

    def learn_tokenizers(self, data: DataConfig, config: Config) -> Tokenizers:
        def side(index: int) -> Iterator[str]:
            return (pair[index] for pair in self.read(data, self.files[:2], config))

        if config.text.joint:
            both = (text for pair in self.read(data, self.files[:2], config) for text in pair)
            joint = Tokenizer.train(both, config.text)
            return Tokenizers(joint, joint)
        return Tokenizers(Tokenizer.train(side(0), config.text), Tokenizer.train(side(1), config.text))

    def adopt_tokenizers(self, tokenizers: Tokenizers, data: DataConfig, config: Config) -> Tokenizers:
        return tokenizers

    def build_store(
        self, what: str, data: DataConfig, files: tuple[str, ...], config: Config, tokenizers: Tokenizers,
        directory: Path, working: Working,
    ) -> Store:  # fmt: skip
        source, target = files
        return build_store(
            directory,
            paths_of(data, source),
            paths_of(data, target),
            tokenizers.source,
            tokenizers.target,
            max_length=config.text.max_length,
            on_bad_line=config.data.on_bad_line,
            progress=lambda done: working(f"encoding {what} pairs", done),
        )

    def describe_rows(self, store: Store, tokenizers: Tokenizers) -> str:
        return ""

    def collate(self, store: Store, rows: Rows) -> Batch:
        return collate(store, rows)

    def pack(self, store: Store, rows: Rows, shape: Shape | None) -> PackedBatch:
        return pack(store, rows, shape)

    def loss(self, output: Tensor, batch: AnyBatch, label_smoothing: float) -> Tensor:
        return smoothed_cross_entropy(output, batch.target_output, label_smoothing, batch.pad)

    def describe_vocabulary(self, prepared: PreparedData) -> str:
        source, target, joint = prepared.tokenizers.source, prepared.tokenizers.target, prepared.config.text.joint
        sizes = f"{source.size:,} source and {target.size:,} target pieces{', shared' if joint else ''}"
        return f"{prepared.config.text.model} vocabulary: {sizes}"

    def describe_validation(self, prepared: PreparedData) -> str:
        return f"{len(prepared.valid_references):,} sentences, greedy"

    def judge(self, prepared: PreparedData) -> str:
        metric, references = prepared.config.train.valid_metric, prepared.valid_references
        letters = metric == "bleu" and suitable_tokenization(references) == "char"
        unit = " in per cent" if metric == "exact_match" else ""  # earlier versions used fractions
        return f"{metric}{'-char' if letters else ''}{unit} on {len(references)} of {prepared.valid.key[:16]}"

    def measure(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, precision: torch.dtype
    ) -> dict[str, Any]:
        # plain: it takes the weights as they are; packing them anew at every validation takes longer than it saves
        translator = Translator(bundle, device, "float32", engine="plain")
        greedy = DecodeConfig(beam=1, max_extra=prepared.config.decode.max_extra)
        translations = list(translator.stream([prepared.valid_sources], options=greedy))
        texts, normalization = [result.text for result in translations], prepared.config.text.normalization
        return {
            "loss": mean_loss(self, bundle.model, prepared, device, precision),
            **quick_scores(texts, prepared.valid_references, normalization),
            "sample": {"source": translations[0].source, "translation": translations[0].text},
            "snapshot": take_snapshot(prepared.valid, translator),
        }

    def finish(self, weights: Mapping[str, Tensor], record: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return weights

    def test(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, files: Sequence[Path], working: Working,
        note: Callable[[str], None],
    ) -> Tested:  # fmt: skip
        source, target = files
        config, report = prepared.config, CorpusReport()
        text = config.text
        pairs = list(read_pairs([source], [target], on_bad_line=config.data.on_bad_line, report=report))
        for each in report.notes():
            note(each)
        references = [normalize(pair.target, text.normalization) for pair in pairs]  # as translations are
        translator = Translator(bundle, device, "float32", engine="plain")
        translations, failed = [], 0
        window = translator.window_size(config.decode)
        for translation in translator.stream(windows([pair.source for pair in pairs], window)):
            translations.append(translation.text)
            failed += translation.status == "failed"
            working(f"translating {source.name}, {len(pairs):,} lines", len(translations))
        tokenization, lowercase = suitable_tokenization(references), is_lowercase(text.normalization)
        scores = evaluate(
            translations, references, tokenize=tokenization, lowercase=lowercase, normalization=text.normalization
        ).to_dict()
        scores["failed"] = failed
        known = languages()
        language = next((part for part in reversed(target.name.split(".")[1:]) if part in known), None)  # of test.de
        if tokenization == "13a" and language is not None:
            scores["tokenized_bleu"] = tokenized_bleu(translations, references, language, lowercase=lowercase).to_dict()
        bleu = scores["bleu"]
        others = f"chrF {scores['chrf']['score']:.1f}, exact {scores['exact_match']:.1f}%"
        summary = f"BLEU {bleu['score']:.1f} ({bleu['low']:.1f} to {bleu['high']:.1f}), {others}"
        return Tested(scores, translations, summary)

    def search(self, config: Config) -> dict[str, Any]:
        return {"search": {"beam": config.decode.beam, "length_penalty": config.decode.length_penalty}}

    def test_table(self, tests: Mapping[str, Any]) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows: list[Sequence[str]] = []
        for name, test in tests.items():
            scores = [f"{test[metric]['score']:.1f}" for metric in ("bleu", "chrf", "ter")]
            interval = f"{test['bleu']['low']:.1f} to {test['bleu']['high']:.1f}"
            rows.append((name, *scores, interval, f"{test['exact_match']:.1f}%", f"{test['sentences']:,}"))
        return ("test set", "BLEU", "chrF", "TER", "BLEU, 95 %", "exact match", "sentences"), rows

    def show_samples(self, bundle: Bundle, prepared: PreparedData, device: torch.device) -> Samples:
        rows = spread(len(prepared.valid_sources), SAMPLES)
        translator = Translator(bundle, device, "float32", engine="plain")
        sources = [prepared.valid_sources[row] for row in rows]
        search = DecodeOptions(sampling=False, temperature=1.0, top_k=0, top_p=1.0, n_best=1)  # the model's own beam
        translations = translator.translate(sources, attention=True, **search)
        references = [prepared.valid_references[row] for row in rows]
        lines = [
            f"Validation sentences, evenly apart; these weights, beam {prepared.config.decode.beam}.",
            "",
            "| source | reference | translation | status |",
            "| --- | --- | --- | --- |",
        ]
        for one, reference in zip(translations, references, strict=True):
            status = f"{one.status}: {one.reason}" if one.reason else one.status
            lines.append("| " + " | ".join(map(escape, (one.source, reference, one.text, status))) + " |")
        return Samples(lines, _draw_attention(translations))


def _draw_attention(translations: Sequence[Translation]) -> str:
    """Of the longest sample that stays readable, else of the shortest; empty where a model has no attention."""
    seen = [one for one in translations if one.attention is not None and len(one.attention.cross)]
    if not seen:
        return ""
    fitting = [one for one in seen if _longest_side(one) <= MAX_TOKENS]
    chosen = max(fitting, key=_longest_side) if fitting else min(seen, key=_longest_side)
    assert chosen.attention is not None
    return pictures.svg_heatmap(
        chosen.attention.cross[-1].mean(axis=0),
        chosen.tokens,
        chosen.attention.source_tokens,
        title="Cross-attention, last layer",
        caption="rows: target; columns: source; mean of all heads",
    )


def _longest_side(translation: Translation) -> int:
    return max(len(translation.tokens), len(translation.source_tokens))
