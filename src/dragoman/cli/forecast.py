"""`dragoman forecast`: the next rows of a time series."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import Device, Json, Precision, Threads, complete_model
from dragoman.errors import ConfigError, DataError


def command(
    model: Annotated[
        Path,
        typer.Option("--model", "-m", metavar="DIR", help="A forecaster's directory.", autocompletion=complete_model),
    ],
    series: Annotated[Path, typer.Argument(metavar="SERIES", help="The series so far, .csv.")],
    output: Annotated[Path | None, typer.Option(help="Write to this file; default: standard output.")] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what was given and what is forecast, SVG or PNG.")
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print the next rows of a time series as .csv, or as JSON: a list of numbers for each column."""
    if picture is not None and picture.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(f"--picture {picture}: is a picture; name it .svg or .png")
    if picture is not None and not picture.absolute().parent.is_dir():
        raise ConfigError(f"--picture {picture}: its directory does not exist; make it or choose another place")
    from dragoman.cli.streams import opened
    from dragoman.data.features import read_series, series_csv
    from dragoman.decode.forecaster import Forecaster

    forecaster = Forecaster.load(model, device, precision, threads)
    found = read_series(series, forecaster.names)
    interrupts.check()
    if len(found.values_NF) < forecaster.lookback:
        raise DataError(f"{series}: {len(found.values_NF)} rows; this model looks back on {forecaster.lookback}")
    rows_TF = forecaster.forecast(found.values_NF)
    with opened(output) as stream:
        if as_json:
            columns = {name: rows_TF[:, place].tolist() for place, name in enumerate(forecaster.names)}
            stream.write(json.dumps(columns, ensure_ascii=False) + "\n")
        else:
            stream.write(series_csv(forecaster.names, rows_TF))
    if picture is not None:
        from dragoman.files import write_output
        from dragoman.inspect.vectors import draw_forecast
        from dragoman.pictures import png_of

        drawn = draw_forecast(forecaster.names, found.values_NF[-forecaster.lookback :], rows_TF)
        write_output(picture, png_of(drawn) if picture.suffix.lower() == ".png" else drawn.encode())
