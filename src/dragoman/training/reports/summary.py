"""The summary of a run for people: DIR/summary.md with curves, samples and one sentence's attention.

Reads the files of the run; knows nothing of the loop.
"""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from dragoman import bundle, files
from dragoman.markdown import escape
from dragoman.tasks.choice import task_of
from dragoman.tasks.task import PreparedData
from dragoman.training.checkpoint import STATE
from dragoman.training.checkpoint_files import checkpoints
from dragoman.training.reports.curves import METRICS, Record, best_of, curves, is_number
from dragoman.training.reports.log import LOG, read_log, show_score
from dragoman.training.reports.results import PICTURE, SUMMARY, read_published

CURVES = "curves.svg"


def write_summary(prepared: PreparedData, run: Path, device: torch.device, reason: str) -> Path:
    """Write DIR/summary.md and its pictures; `reason` says why the run stopped. Takes seconds."""
    records = read_log(run)
    published = read_published(run)
    task = task_of(prepared.config)
    samples = task.show_samples(bundle.load_bundle(run), prepared, device)
    drawn = curves(records, prepared.config.train.label_smoothing, task.predicted)
    for name, picture in ((CURVES, drawn), (PICTURE, samples.picture)):
        if picture:
            files.write_file(run / name, picture.encode())
    lines = [
        f"# How the run {escape(run.resolve().name)} went",
        "",
        *_result(prepared, published, records, reason),
        *_effort(prepared, run, records),
        *_scores(published, records),
        *(_picture("Curves", CURVES, "losses, scores, learning rate and gradient norm by step") if drawn else ()),
        "## Samples",
        "",
        *samples.lines,
        "",
        *(_picture(samples.heading, PICTURE, samples.caption) if samples.picture else ()),
        f"More: [the model's card]({bundle.CARD}), [every number]({LOG}).",
    ]
    files.write_file(run / SUMMARY, ("\n".join(lines) + "\n").encode())
    return run / SUMMARY


# The result


def _result(prepared: PreparedData, published: Record | None, records: Sequence[Record], reason: str) -> Iterator[str]:
    yield f"- **Weights**: {_weights(prepared, published, records)}"
    metric = prepared.config.train.valid_metric
    best = best_of([record for record in records if record["kind"] == "valid"], metric)
    if best:
        yield f"- **Best validation**: step {best['step']:,}, {METRICS[metric]} {best[metric]:.4g}"
    yield f"- **Stopped**: {escape(reason)}"


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
    return (
        f"{weights}; {METRICS.get(metric, metric)} {score} on {task_of(prepared.config).describe_validation(prepared)}"
    )


def _record(records: Iterable[Record], published: Record) -> Record | None:
    """What the log says of the published weights."""
    place = published["kind"], published["step"]
    return next((record for record in records if (record["kind"], record["step"]) == place), None)


def _effort(prepared: PreparedData, run: Path, records: Sequence[Record]) -> Iterator[str]:
    saved, task = checkpoints(run), task_of(prepared.config)
    progress = json.loads((saved[-1] / STATE).read_bytes())["progress"] if saved else {}
    if progress:
        minutes = progress["seconds"] / 60
        yield (
            f"- **Effort**: {progress['step']:,} steps, into epoch {progress['epoch'] + 1:,} of "
            f"{len(prepared.train):,} {task.rows}; {progress['tokens']:,} {task.predicted}; "
            f"{minutes:.1f} minutes"
        )
    speeds = [record["tokens_per_second"] for record in records if is_number(record.get("tokens_per_second"))]
    if speeds:
        yield f"- **Speed**: {statistics.median(speeds):,.0f} {task.predicted} per second between validations"
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
