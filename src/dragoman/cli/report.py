"""`dragoman report`: how a training run went, as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a training run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="The file to write.  \\[default: DIR/report.html]")] = None,
) -> None:
    """Write curves, scores, samples and attention over time, settings and data as one HTML file."""
    from dragoman.training.reports.html import write_html_report

    print(f"{write_html_report(run, out)}: open it in a browser")
