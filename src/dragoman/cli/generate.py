"""`dragoman generate`: text from a language model."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import Device, Json, Precision, Threads, complete_model
from dragoman.config import DecodeConfig


def command(
    model: Annotated[
        Path,
        typer.Option(
            "--model", "-m", metavar="DIR", help="A language model's directory.", autocompletion=complete_model
        ),
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help=r"The text to continue; \n is a line end; -: standard input."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate; a line end is one.")] = 200,
    samples: Annotated[int, typer.Option(min=1, help="How many continuations, with consecutive seeds.")] = 1,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 sharper, above 1 flatter; 0: always the likeliest token.")
    ] = DecodeConfig.temperature,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from this many of the likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the likeliest tokens with this total probability.")
    ] = DecodeConfig.top_p,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = DecodeConfig.seed,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Continue a text by sampling from a language model, printed as it is generated."""
    from dragoman.decode.language_model import LanguageModel

    language_model = LanguageModel.load(model, device, precision, threads)
    interrupts.check()
    prompt = sys.stdin.read().removesuffix("\n") if prompt == "-" else (prompt or "").replace("\\n", "\n")
    if unknown := language_model.unknown(prompt):
        print(f"generate: {unknown} tokens of the prompt are characters unknown to the model", file=sys.stderr)
    for number in range(seed, seed + samples):
        pieces = language_model.stream(
            prompt, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=number
        )
        if as_json:
            record = {"prompt": prompt, "text": "".join(pieces), "seed": number}
            print(json.dumps(record, ensure_ascii=False))
            continue
        if samples > 1:
            print(f"--- seed {number}")
        sys.stdout.write(prompt)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
