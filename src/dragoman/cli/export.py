"""`dragoman export`: the same model for other libraries, or as a web page."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import DEFAULT_MODEL, Model
from dragoman.config import require_choice
from dragoman.errors import ConfigError

FORMATS = ("ctranslate2", "huggingface", "onnx", "web")

WRITTEN_IN = {"huggingface": "float32", "web": "int8"}  # those without a choice


def command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; it must be new or empty.")],
    to: Annotated[str, typer.Option(help="ctranslate2, huggingface, onnx or web.")],
    model: Model = DEFAULT_MODEL,
    quantization: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="ctranslate2: int8, int16, float16, bfloat16 ...  \\[default: float32]; "
            "onnx: int8 or float32  \\[default: both].",
        ),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="web: the npm package onnxruntime-web.  \\[default: downloaded once]"),
    ] = None,
    check: Annotated[bool, typer.Option(help="Compare a few sentences in the other library.")] = True,
) -> None:
    """Write a model for CTranslate2, Hugging Face transformers or ONNX Runtime, or as a web page that translates."""
    require_choice("--to", to, FORMATS)
    if quantization is not None and to in WRITTEN_IN:
        raise ConfigError(
            f"--quantization: {to} is written in {WRITTEN_IN[to]}; leave it out, or export to ctranslate2"
        )
    if runtime is not None and to != "web":
        raise ConfigError(f"--runtime: is for --to web, not for {to}; leave it out")

    from dragoman.interop import to_ctranslate2, to_huggingface, to_onnx, to_web

    interrupts.check()
    if to == "ctranslate2":
        done = to_ctranslate2(model, out, quantization=quantization, check=check)
    elif to == "onnx":
        done = to_onnx(model, out, quantization=quantization, check=check)
    elif to == "web":
        done = to_web(model, out, runtime=runtime, check=check)
    else:
        done = to_huggingface(model, out, check=check)
    stored = quantization or WRITTEN_IN.get(to) or ("float32 and int8" if to == "onnx" else "float32")
    print(f"{out}: {to}, weights in {stored}, {done.num_bytes:,} bytes")
    if done.checked is not None:
        rounding = "" if stored.startswith("float32") else f", before rounding to {stored}"
        print(f"checked: {done.checked} sentences give the same tokens in {done.library}{rounding}")
    elif check:
        print(f'not checked: {done.library} is not installed; pip install "dragoman[{to}]"')
    if to == "web":
        print(f"to see it: python -m http.server --bind localhost --directory {out}, then http://localhost:8000")
