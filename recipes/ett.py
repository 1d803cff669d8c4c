"""Forecasts of an electricity transformer's readings: ETTh1, 96 hours in, 96 out, beside simple forecasts and an LSTM.

    python recipes/ett.py --data FOLDER [--out runs/ett] [--seeds 3] [--jobs N]

Splits FOLDER/ett/ETTh1.csv.bz2 as the field does: 12 months for training, 4 for validation, 4 for test; validation and
test may look back on the rows before them. Everything is measured on the scale of the training data, over all windows.
Trains `recipes/ett.toml`, the same with values from the training data's mean, and an LSTM, with each seed. Run the same
command again to resume. The results are in docs/recipes/ett.md.
"""

from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import typer
from steps import Settings, run_command, say, train_rows

from dragoman import ConfigError
from dragoman.data.feature_store import SeriesStore
from dragoman.data.features import read_series, series_csv
from dragoman.files import make_directory, write_file
from dragoman.scale import Scale
from dragoman.tasks.forecasting import forecast_errors, repeat_last

RECIPE = Path(__file__).with_suffix(".toml")
MONTH, LOOKBACK, HORIZON, DAY = 30 * 24, 96, 96, 24
ENDS = {"train": 12 * MONTH, "valid": 16 * MONTH, "test": 20 * MONTH}  # rows
PENALTY = 1.0  # of the linear forecast's ridge regression, on windows of standardised values
KINDS: dict[str, tuple[Path, list[str]]] = {
    "transformer": (RECIPE, []),
    "plain": (RECIPE, ["data.relative_to=training"]),
    "lstm": (RECIPE.with_stem("ett-lstm"), []),
}


def ett(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for the split and the runs.")] = Path(
        "runs/ett"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs in parallel.")] = 1,
    settings: Settings = None,
) -> None:
    """Split the series, measure the simple forecasts, train every model, and print the errors."""
    source = data / "ett" / "ETTh1.csv.bz2"
    if not source.is_file():
        raise ConfigError(f"--data {data}: does not hold {source.relative_to(data)}; it is where the corpora are")
    make_directory(out)
    series, start = read_series(source), 0
    for name, end in ENDS.items():
        rows = series.values_NF[max(0, start - LOOKBACK) : end]
        write_file(out / f"{name}.csv", series_csv(series.names, rows).encode())
        start = end
    for name, errors in _simple_forecasts(out).items():
        say(f"{name:<20} {_describe(errors)}")
    files = [f'data.{prefix}series=["{out / name}.csv"]' for name, prefix in
             (("train", ""), ("valid", "valid_"), ("test", "test_"))]  # fmt: skip
    found: dict[str, Any] = {}
    for kind, (recipe, own) in KINDS.items():
        rows = {f"{kind}-{seed}": [*files, *own, f"train.seed={seed}"] for seed in range(1, seeds + 1)}
        found |= train_rows(rows, recipe, data, out, jobs, settings or [], _describe)
    for kind in KINDS:
        scores = [score for name, tests in found.items() for score in tests.values() if name.startswith(kind)]
        squared, absolute = ([score[metric] for score in scores] for metric in ("mse", "mae"))
        say(f"{kind}: MSE {mean(squared):.3f} ({min(squared):.3f} to {max(squared):.3f}), MAE {mean(absolute):.3f}")


def _simple_forecasts(out: Path) -> dict[str, dict[str, float]]:
    """The test errors of forecasts that need no network."""
    names = read_series(out / "train.csv").names
    scale = Scale.learn([read_series(out / "train.csv").values_NF], names)
    train, test = (SeriesStore([out / f"{name}.csv"], scale, LOOKBACK, HORIZON) for name in ("train", "test"))
    weights_ST = _linear(train)
    return {
        "last row": forecast_errors(test, lambda source_BSF: repeat_last(source_BSF, HORIZON)),
        "last day": forecast_errors(test, lambda source_BSF: np.tile(source_BSF[:, -DAY:], (1, HORIZON // DAY, 1))),
        "linear": forecast_errors(test, lambda source_BSF: _apply_linear(source_BSF, weights_ST)),
    }


def _linear(store: SeriesStore) -> Any:
    """Ridge regression from the 96 values before to the 96 after, one for all columns, from the last value."""
    source_BSF, target_BTF = store.gather(np.arange(len(store)))
    last_B1F = source_BSF[:, -1:]
    given = (source_BSF - last_B1F).swapaxes(1, 2).reshape(-1, LOOKBACK).astype(np.float64)
    right = (target_BTF - last_B1F).swapaxes(1, 2).reshape(-1, HORIZON).astype(np.float64)
    return np.linalg.solve(given.T @ given + PENALTY * np.eye(LOOKBACK), given.T @ right)


def _apply_linear(source_BSF: Any, weights_ST: Any) -> Any:
    last_B1F = source_BSF[:, -1:]
    return np.einsum("bsf,st->btf", source_BSF - last_B1F, weights_ST) + last_B1F


def _describe(errors: dict[str, Any]) -> str:
    return f"MSE {errors['mse']:.4f}, MAE {errors['mae']:.4f}"


if __name__ == "__main__":
    run_command(ett)
