"""`dragoman config`: every setting with its meaning, as TOML to edit."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Settings
from dragoman.config import Config


def command(
    preset: Annotated[str, typer.Option(help="tiny, small, base or big.")] = "small",
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="A file instead of stdout.")] = None,
) -> None:
    """Print every setting with its default and meaning as TOML: edit it and give it to `dragoman train`."""
    from dragoman.settings import annotated_toml

    text = annotated_toml(Config.build(preset, None, settings or []))
    if out is None:
        print(text, end="")
        return
    from dragoman.files import write_output

    write_output(out, text.encode())
    print(f"{out}: edit it, then `dragoman train {out} --out runs/my-model`")
