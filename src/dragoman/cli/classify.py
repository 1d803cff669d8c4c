"""`dragoman classify`: the label of each line."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import Device, Json, Precision, Threads, complete_model
from dragoman.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.decode.classifier import Prediction

WINDOW = 4_096  # lines at a time


def command(
    model: Annotated[
        Path,
        typer.Option("--model", "-m", metavar="DIR", help="A classifier's directory.", autocompletion=complete_model),
    ],
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; without any, --input.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", help="Texts, one per line, or vectors as .npz or .npy; default: standard input."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file; default: standard output.")] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print the label of each text and its probability, separated by a tab; with --json, those of every label."""
    if text and source is not None:
        raise ConfigError("--input: texts were given as arguments too; give one or the other")

    if source is not None and output is not None and output.exists() and output.samefile(source):
        raise ConfigError(f"--output {output}: is the input too; give another file")

    from dragoman.cli.progress import counting
    from dragoman.cli.streams import opened
    from dragoman.data.corpus import Line, read_lines, split_lines, text_line, valid_line
    from dragoman.decode.classifier import Classifier

    classifier = Classifier.load(model, device, precision, threads)
    counts: Counter[str] = Counter()
    interrupts.check()
    if classifier.reads_vectors:
        if source is None:
            raise ConfigError(f"--input: missing; {model} classifies vectors, give a file of them (.npz)")
        from dragoman.data.features import read_features

        rows = read_features(source, classifier.tokenizers.scale.size).rows
        with counting("classifying", len(rows), show=True) as advance:
            predictions = classifier.classify_vectors(rows, advance)
        with opened(output) as stream:
            _write(predictions, stream, as_json, counts)
        _report(counts, "sequences")
        return
    if text:
        lines: Iterator[Line] = (text_line(each, number) for number, each in enumerate(text, start=1))
    else:
        lines = split_lines(sys.stdin.buffer, "standard input") if source is None else read_lines(source)
    name = source or Path("argument" if text else "standard input")
    with opened(output) as stream:
        while window := [valid_line(line, name).text for line in islice(lines, WINDOW)]:
            _write(classifier.classify(window), stream, as_json, counts)
    _report(counts, "texts")


def _report(counts: Counter[str], unit: str) -> None:
    for status, what in (("empty", "nothing to read"), ("truncated", "too long, only their beginning was read")):
        if counts[status]:
            print(f"classify: {counts[status]:,} of {counts.total():,} {unit}: {what}", file=sys.stderr)


def _write(predictions: "list[Prediction]", stream: TextIO, as_json: bool, counts: Counter[str]) -> None:
    for said in predictions:
        counts[said.status] += 1
        shown = json.dumps(asdict(said), ensure_ascii=False) if as_json else f"{said.label}\t{said.probability:.4f}"
        stream.write(f"{shown}\n")
    stream.flush()
