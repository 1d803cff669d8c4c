"""`dragoman export`: the same model for other libraries."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import DEFAULT_MODEL, Model
from dragoman.config import require_choice
from dragoman.errors import ConfigError

FORMATS = ("ctranslate2", "huggingface", "onnx")


def command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; it must be new or empty.")],
    to: Annotated[str, typer.Option(help="ctranslate2, huggingface or onnx.")],
    model: Model = DEFAULT_MODEL,
    quantization: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="ctranslate2: int8, int16, float16, bfloat16 ...  \\[default: float32]; "
            "onnx: int8 or float32  \\[default: both].",
        ),
    ] = None,
    check: Annotated[bool, typer.Option(help="Compare a few sentences in the other library.")] = True,
) -> None:
    """Write a model for CTranslate2, Hugging Face transformers or ONNX Runtime, which give the same tokens."""
    require_choice("--to", to, FORMATS)
    if quantization is not None and to == "huggingface":
        raise ConfigError(f"--quantization: {to} is written in float32; leave it out, or export to ctranslate2")

    from dragoman.interop import to_ctranslate2, to_huggingface, to_onnx

    interrupts.check()
    if to == "ctranslate2":
        done = to_ctranslate2(model, out, quantization=quantization, check=check)
    elif to == "onnx":
        done = to_onnx(model, out, quantization=quantization, check=check)
    else:
        done = to_huggingface(model, out, check=check)
    stored = quantization or ("float32 and int8" if to == "onnx" else "float32")
    print(f"{out}: {to}, weights in {stored}, {done.num_bytes:,} bytes")
    if done.checked is not None:
        rounding = f", before rounding to {quantization}" if quantization not in (None, "float32") else ""
        print(f"checked: {done.checked} sentences give the same tokens in {done.library}{rounding}")
    elif check:
        print(f'not checked: {done.library} is not installed; pip install "dragoman[{to}]"')
