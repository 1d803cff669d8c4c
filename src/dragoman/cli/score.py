"""`dragoman score`: the likelihood of given translations under a model."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import DEFAULT_MODEL, Device, Json, Model, Precision, Threads
from dragoman.errors import DataError


def command(
    source: Annotated[Path, typer.Argument(help="Text, one sentence per line.")],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.")],
    model: Model = DEFAULT_MODEL,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pairs at a time.  \\[default: the model's]")] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print the total log-probability, </s> included, of each target line given its source line."""
    import dragoman
    from dragoman.data.corpus import parallel_lines, valid_line
    from dragoman.decode.translator import PairError, windows

    translator = dragoman.load(model, device, precision, threads, engine="plain")
    interrupts.check()
    batch_size = batch_size or translator.options().batch_size
    for window in windows(parallel_lines(source, target), 16 * batch_size):
        pairs = [(valid_line(mine, source).text, valid_line(theirs, target).text) for mine, theirs in window]
        sources, targets = [text for text, _ in pairs], [text for _, text in pairs]
        try:
            scores = translator.score(sources, targets, batch_size)
        except PairError as error:
            number = window[error.number - 1][0].number
            raise DataError(f"{source}:{number}: {error.problem}") from None
        for text, translation, score in zip(sources, targets, scores, strict=True):
            record = {"source": text, "target": translation, "score": score}
            print(json.dumps(record, ensure_ascii=False) if as_json else f"{score:.6f}")
        sys.stdout.flush()
