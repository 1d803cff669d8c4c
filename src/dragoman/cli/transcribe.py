"""`dragoman transcribe`: the text of each sequence of vectors."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import Device, Json, Precision, Threads, complete_model


def command(
    model: Annotated[
        Path,
        typer.Option("--model", "-m", metavar="DIR", help="A transcriber's directory.", autocompletion=complete_model),
    ],
    vectors: Annotated[Path, typer.Argument(metavar="FILE", help="Sequences of vectors, .npz or .npy.")],
    output: Annotated[Path | None, typer.Option(help="Write to this file; default: standard output.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="1 is greedy; the model's own unless given.")] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print the text of each sequence of vectors: what was said, or the caption of a picture."""
    from dragoman.cli.progress import counting
    from dragoman.cli.streams import opened
    from dragoman.data.features import read_features
    from dragoman.decode.transcriber import Transcriber

    transcriber = Transcriber.load(model, device, precision, threads)
    rows = read_features(vectors, transcriber.tokenizers.scale.size).rows
    interrupts.check()
    with counting("transcribing", len(rows), show=True) as advance:
        found = transcriber.transcribe(rows, beam=beam, advance=advance)
    with opened(output) as stream:
        for one in found:
            stream.write((json.dumps(one.to_dict(), ensure_ascii=False) if as_json else one.text) + "\n")
    for status, what in (("cut", "only their beginning was read"), ("truncated", "stopped at the length limit")):
        count = sum(one.status == status for one in found)
        if count:
            print(f"transcribe: {count:,} of {len(found):,} sequences: {what}", file=sys.stderr)
