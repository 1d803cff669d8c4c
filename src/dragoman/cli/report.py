"""`dragoman report`: how a training run went, as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a training run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="The file to write.  \\[default: DIR/report.html]")] = None,
) -> None:
    """Write curves, scores, samples and attention over time, settings and data as one HTML file."""
    from dragoman.train.run_page import write_run_page

    print(f"{write_run_page(run, out)}: open it in a browser")
