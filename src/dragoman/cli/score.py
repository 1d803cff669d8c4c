"""`dragoman score`: how likely a model finds given translations."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import DEFAULT_MODEL, Device, Json, Model, Precision, Threads
from dragoman.errors import DataError


def command(
    source: Annotated[Path, typer.Argument(help="Text, one sentence a line.")],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.")],
    model: Model = DEFAULT_MODEL,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="At most so many pairs at a time.  \\[default: the model's]")
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print the total log-probability, </s> included, of each target line given its source line."""
    import dragoman
    from dragoman.data.corpus import parallel_lines
    from dragoman.decode.translator import PairError, windows

    translator = dragoman.load(model, device, precision, threads)
    interrupts.check()
    batch_size = batch_size or translator.config.decode.batch_size
    for window in windows(parallel_lines(source, target), batch_size):
        for path, line in ((path, line) for pair in window for path, line in zip((source, target), pair, strict=True)):
            if line.problem:
                raise DataError(f"{path}:{line.number}: {line.problem}; fix the line")
        sources, targets = [mine.text for mine, _ in window], [theirs.text for _, theirs in window]
        try:
            scores = translator.score(sources, targets, batch_size)
        except PairError as error:
            number = window[error.number - 1][0].number
            raise DataError(f"{source}:{number}: {error.problem}") from None
        for text, translation, score in zip(sources, targets, scores, strict=True):
            record = {"source": text, "target": translation, "score": score}
            print(json.dumps(record, ensure_ascii=False) if as_json else f"{score:.6f}")
        sys.stdout.flush()
