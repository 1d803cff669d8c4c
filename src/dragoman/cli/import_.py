"""`dragoman import`: models of other libraries as model directories."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _import() -> None:
    """Import a model of another library."""


@app.command("huggingface")
def huggingface(
    model: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A folder with config.json, weights and vocabularies, or hf://owner/name."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; it must be new or empty.")],
    target_language: Annotated[
        str | None, typer.Option(metavar="TAG", help="The default, if the model translates into several.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Compare a few sentences in transformers.")] = True,
) -> None:
    """Import a Marian or BART model of Hugging Face's library, such as those of OPUS-MT."""
    from dragoman.interop import from_huggingface

    interrupts.check()
    done = from_huggingface(model, out, target_language=target_language or "", check=check)
    pieces = f"{done.source_pieces:,} source and {done.target_pieces:,} target pieces"
    print(f"{out}: {done.parameters:,} parameters, {pieces}")
    if done.languages:
        print(f"--target-language: {', '.join(done.languages)}")
    if done.checked is not None:
        print(f"checked: {done.checked} sentences give the same tokens in transformers")
    elif check:
        print('not checked: transformers is not installed; pip install "dragoman[huggingface]"')
