"""The summary of a run for people: DIR/summary.md with curves, sample translations and one sentence's attention.

Reads the files of the run; knows nothing of the loop.
"""

import html
import json
import math
import re
import statistics
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from dragoman import bundle, files, pictures
from dragoman.decode.translation import Translation
from dragoman.decode.translator import Translator
from dragoman.training.checkpoint import STATE
from dragoman.training.checkpoint_files import checkpoints
from dragoman.training.data import PreparedData
from dragoman.training.reports.curves import METRICS, Record, best_of, curves, is_number
from dragoman.training.reports.log import LOG, read_log, show_score
from dragoman.training.reports.results import SUMMARY, read_published

CURVES, ATTENTION = "curves.svg", "attention.svg"
SAMPLES = 10
MAX_TOKENS = 40  # of the sentence whose attention is drawn, where there is one that short


def write_summary(prepared: PreparedData, run: Path, device: torch.device, reason: str) -> Path:
    """Write DIR/summary.md and its pictures; `reason` says why the run stopped. Takes seconds."""
    records = read_log(run)
    published = read_published(run)
    rows = _spread(len(prepared.valid_sources), SAMPLES)
    translations = _translations(run, device, [prepared.valid_sources[row] for row in rows])
    references = [prepared.valid_references[row] for row in rows]
    drawn, attention = curves(records, prepared.config.train.label_smoothing), _attention(translations)
    for name, picture in ((CURVES, drawn), (ATTENTION, attention)):
        if picture:
            files.write_file(run / name, picture.encode())
    lines = [
        f"# How the run {_text(run.resolve().name)} went",
        "",
        *_result(prepared, published, records, reason),
        *_effort(prepared, run, records),
        *_scores(published, records),
        *(_picture("Curves", CURVES, "losses, scores, learning rate and gradient norm by step") if drawn else ()),
        *_samples(prepared, translations, references),
        *(_picture("Attention", ATTENTION, "where each target token looked") if attention else ()),
        f"More: [the model's card]({bundle.CARD}), [every number]({LOG}).",
    ]
    files.write_file(run / SUMMARY, ("\n".join(lines) + "\n").encode())
    return run / SUMMARY


def _spread(count: int, most: int) -> list[int]:
    """At most so many of `count` rows, evenly apart: corpora are often sorted."""
    return [number * count // min(most, count) for number in range(min(most, count))]


def _translations(run: Path, device: torch.device, sources: Sequence[str]) -> list[Translation]:
    """By the published model's own beam search, with attention."""
    translator = Translator(bundle.load_bundle(run), device, "float32", engine="plain")
    return translator.translate(sources, attention=True, sampling=False, temperature=1.0, top_k=0, top_p=1.0, n_best=1)


# The result


def _result(prepared: PreparedData, published: Record | None, records: Sequence[Record], reason: str) -> Iterator[str]:
    yield f"- **Weights**: {_weights(prepared, published, records)}"
    metric = prepared.config.train.valid_metric
    best = best_of([record for record in records if record["kind"] == "valid"], metric)
    if best:
        yield f"- **Best validation**: step {best['step']:,}, {METRICS[metric]} {best[metric]:.4g}"
    yield f"- **Stopped**: {_text(reason)}"


def _weights(prepared: PreparedData, published: Record | None, records: Sequence[Record]) -> str:
    if published is None:
        return "not measured: the run stopped before its first validation"
    step, told = published["step"], _record(records, published)
    if published["kind"] == "average":
        count = f"{told['checkpoints']} " if told else ""
        weights = f"the average of the last {count}checkpoints, at step {step:,}"
    else:
        weights = f"those of step {step:,}"
    metric = published["judge"].split()[0]
    score = show_score(abs(published["metric"]), ".4g")  # a loss is kept as its negative, to be maximised
    sentences = f"{len(prepared.valid_sources):,} sentences, greedy"
    return f"{weights}; {METRICS.get(metric, metric)} {score} on {sentences}"


def _record(records: Iterable[Record], published: Record) -> Record | None:
    """What the log says of the published weights."""
    place = published["kind"], published["step"]
    return next((record for record in records if (record["kind"], record["step"]) == place), None)


def _effort(prepared: PreparedData, run: Path, records: Sequence[Record]) -> Iterator[str]:
    saved = checkpoints(run)
    progress = json.loads((saved[-1] / STATE).read_bytes())["progress"] if saved else {}
    if progress:
        minutes = progress["seconds"] / 60
        yield (
            f"- **Effort**: {progress['step']:,} steps, into epoch {progress['epoch'] + 1:,} of "
            f"{len(prepared.train):,} pairs; {progress['tokens']:,} target tokens; {minutes:.1f} minutes"
        )
    speeds = [record["tokens_per_second"] for record in records if is_number(record.get("tokens_per_second"))]
    if speeds:
        yield f"- **Speed**: {statistics.median(speeds):,.0f} target tokens per second between validations"
    memory = [record for record in records if record["kind"] == "memory" and is_number(record.get("peak_bytes"))]
    if memory:
        peak = max(memory, key=lambda record: float(record["peak_bytes"]))
        predicted = peak.get("predicted_bytes", math.nan)
        prediction = f", {_gibibytes(predicted)} predicted" if is_number(predicted) else ""
        yield f"- **Memory**: {_gibibytes(peak['peak_bytes'])} at its peak{prediction}"
    yield ""


def _gibibytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def _scores(published: Record | None, records: Sequence[Record]) -> Iterator[str]:
    """The best of every metric among validations, and what the published weights scored."""
    valid = [record for record in records if record["kind"] == "valid"]
    if not valid:
        return
    chosen = (_record(records, published) if published else None) or {}
    yield "| validation | best | at step | these weights |"
    yield "| --- | --- | --- | --- |"
    for metric, name in METRICS.items():
        best = best_of(valid, metric)
        if best:
            own = f"{chosen[metric]:.4g}" if is_number(chosen.get(metric)) else ""
            yield f"| {name} | {best[metric]:.4g} | {best['step']:,} | {own} |"
    yield ""


# Pictures


def _picture(heading: str, file: str, words: str) -> Iterator[str]:
    yield f"## {heading}"
    yield ""
    yield f"![{words}]({file})"
    yield ""


def _attention(translations: Sequence[Translation]) -> str:
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


# Samples


def _samples(prepared: PreparedData, translations: Sequence[Translation], references: Sequence[str]) -> Iterator[str]:
    yield "## Samples"
    yield ""
    yield f"Validation sentences, evenly apart; these weights, beam {prepared.config.decode.beam}."
    yield ""
    yield "| source | reference | translation | status |"
    yield "| --- | --- | --- | --- |"
    for one, reference in zip(translations, references, strict=True):
        status = f"{one.status}: {one.reason}" if one.reason else one.status
        yield "| " + " | ".join(map(_text, (one.source, reference, one.text, status))) + " |"
    yield ""


def _text(text: str) -> str:
    """`text` as Markdown that shows it and does nothing else: no markup, no cell, no line of its own."""
    shown = "".join(repr(character)[1:-1] if _hides(character) else character for character in text)
    escaped = re.sub(r"([\\`*_\[\]~$])", r"\\\1", html.escape(shown, quote=False))
    return escaped.replace("|", "&#124;")  # a backslash would do for most readers of tables, not for all


def _hides(character: str) -> bool:
    """Controls, halves of a surrogate pair, and what reorders the text around it."""
    direction = unicodedata.bidirectional(character)
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or direction in (
        "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
    )  # fmt: skip
