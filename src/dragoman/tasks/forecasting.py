"""Forecasting: windows of a time series, the squared error of the rows after them; MSE and MAE.

Shapes: B windows, S rows given, T rows to forecast, F columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import FORECASTING, Config, DataConfig
from dragoman.data.batching import AnyBatch, SeriesBatch
from dragoman.data.feature_store import SeriesStore
from dragoman.data.features import read_series
from dragoman.data.packing import AnyPackedBatch, Shape
from dragoman.decode.forecaster import Forecaster
from dragoman.errors import ConfigError
from dragoman.inspect.vectors import draw_forecast
from dragoman.scale import Scale, rows_before, window_scale
from dragoman.tasks.task import PreparedData, Rows, Samples, Tested, Working, mean_loss, paths_of

Array = npt.NDArray[np.float64]

AT_ONCE = 1_024  # windows in memory as arrays


class ForecastingTask:
    name = FORECASTING
    title = "A dragoman forecaster"
    rows = "windows"
    predicted = "rows"
    files: tuple[str, ...] = ("series", "valid_series")
    test_files: tuple[str, ...] = ("test_series",)
    options = "--series and --valid-series: time series (.csv)"

    def read(self, data: DataConfig, files: tuple[str, ...], config: Config) -> Iterator[tuple[str]]:
        for path in paths_of(data, files[0]):
            read_series(path)
            yield (str(path),)

    def read_validation(self, data: DataConfig, files: tuple[str, ...], config: Config) -> tuple[list[str], list[str]]:
        return [], []

    def learn_tokenizers(self, data: DataConfig, config: Config) -> Tokenizers:
        paths = paths_of(data, self.files[0])
        names = read_series(paths[0]).names
        features = {config.model.input_size, config.model.target_vocabulary}
        if features != {len(names)}:
            raise ConfigError(
                f"model.source_features: {paths[0]} has {len(names)} columns; set model.source_features and "
                f"model.target_features to {len(names)}"
            )
        scale = Scale.learn((read_series(path, names).values_NF for path in paths), names)
        return Tokenizers(scale, scale)

    def adopt_tokenizers(self, tokenizers: Tokenizers, data: DataConfig, config: Config) -> Tokenizers:
        return tokenizers

    def build_store(
        self, what: str, data: DataConfig, files: tuple[str, ...], config: Config, tokenizers: Tokenizers,
        directory: Path, working: Working,
    ) -> SeriesStore:  # fmt: skip
        return _store(paths_of(data, files[0]), config, tokenizers)

    def describe_rows(self, store: SeriesStore, tokenizers: Tokenizers) -> str:
        return f" of {store.lookback} and {store.horizon} rows"

    def collate(self, store: SeriesStore, rows: Rows) -> SeriesBatch:
        source_BSF, target_BTF = store.gather(rows)
        shift_B1F, unit_B1F = window_scale(source_BSF, store.relative_to)
        given_BSF, right_BTF = (source_BSF - shift_B1F) / unit_B1F, (target_BTF - shift_B1F) / unit_B1F
        source, fed, target, weight = (
            torch.from_numpy(np.ascontiguousarray(part, np.float32))
            for part in (given_BSF, rows_before(given_BSF, store.horizon), right_BTF, unit_B1F**2)
        )
        return SeriesBatch(
            source=source,
            target_input=fed,
            target_output=target,
            weight=weight,
            num_tokens=target.size(0) * target.size(1),
        )

    def pack(self, store: SeriesStore, rows: Rows, shape: Shape | None) -> AnyPackedBatch:
        raise NotImplementedError  # `choose_layout` refuses packed batches

    def loss(self, output: Tensor, batch: AnyBatch, label_smoothing: float) -> Tensor:
        """The squared error, on the scale of the training data: the mean over columns, summed over rows."""
        assert isinstance(batch, SeriesBatch)
        squared_BTF = (output.float() - batch.target_output) ** 2 * batch.weight
        return squared_BTF.mean(dim=-1).sum()

    def describe_vocabulary(self, prepared: PreparedData) -> str:
        return f"columns: {', '.join(prepared.tokenizers.scale.names)}"

    def describe_validation(self, prepared: PreparedData) -> str:
        return f"{len(prepared.valid):,} windows"

    def judge(self, prepared: PreparedData) -> str:
        return f"{prepared.config.train.valid_metric} on {len(prepared.valid)} of {prepared.valid.key[:16]}"

    def measure(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, precision: torch.dtype
    ) -> dict[str, Any]:
        forecaster = Forecaster(bundle, device)
        return {
            "loss": mean_loss(self, bundle.model, prepared, device, precision),
            **forecast_errors(prepared.valid, forecaster.scaled_forecasts),
            "sample": {"window": prepared.valid.place(0), "first row": _first_row(forecaster, prepared.valid)},
            "snapshot": None,
        }

    def finish(self, weights: Mapping[str, Tensor], record: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return weights

    def test(
        self, bundle: Bundle, prepared: PreparedData, device: torch.device, files: Sequence[Path], working: Working,
        note: Callable[[str], None],
    ) -> Tested:  # fmt: skip
        store = _store(files, prepared.config, prepared.tokenizers)
        working(f"forecasting {files[0].name}, windows", len(store))
        scores: dict[str, Any] = forecast_errors(store, Forecaster(bundle, device).scaled_forecasts)
        scores["last_row"] = forecast_errors(store, lambda source_BSF: repeat_last(source_BSF, store.horizon))
        scores["windows"] = len(store)
        naive = scores["last_row"]
        summary = f"MSE {scores['mse']:.4f}, MAE {scores['mae']:.4f}"
        return Tested(scores, [], f"{summary}; of the last row repeated {naive['mse']:.4f} and {naive['mae']:.4f}")

    def search(self, config: Config) -> dict[str, Any]:
        return {}

    def test_table(self, tests: Mapping[str, Any]) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows: list[Sequence[str]] = []
        for name, test in tests.items():
            naive = test["last_row"]
            errors = (f"{value:.4f}" for value in (test["mse"], test["mae"], naive["mse"], naive["mae"]))
            rows.append((name, *errors, f"{test['windows']:,}"))
        return ("test set", "MSE", "MAE", "MSE, last row repeated", "MAE, last row repeated", "windows"), rows

    def show_samples(self, bundle: Bundle, prepared: PreparedData, device: torch.device) -> Samples:
        forecaster, store = Forecaster(bundle, device), prepared.valid
        middle = len(store) // 2
        source_1SF, target_1TF = store.gather(np.array([middle]))
        parts = (source_1SF[0], forecaster.scaled_forecasts(source_1SF)[0], target_1TF[0])
        picture = draw_forecast(forecaster.names, *map(prepared.tokenizers.scale.decode, parts))
        line = f"The forecast from {store.place(middle)} on."
        return Samples([line], picture, "A forecast", "what was given, what was forecast, what happened")


def _store(paths: Sequence[Path], config: Config, tokenizers: Tokenizers) -> SeriesStore:
    data = config.data
    return SeriesStore(paths, tokenizers.scale, data.lookback, data.horizon, data.relative_to)


def _first_row(forecaster: Forecaster, store: SeriesStore) -> str:
    source_1SF, _ = store.gather(np.array([0]))
    row_F = forecaster.tokenizers.scale.decode(forecaster.scaled_forecasts(source_1SF)[0, 0])
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(forecaster.names, row_F, strict=True))


def forecast_errors(store: SeriesStore, forecast: Callable[[Any], Any]) -> dict[str, float]:
    """MSE and MAE of `forecast`, from rows given to rows forecast, over all windows, on the training data's scale."""
    squared_F, absolute_F = mean_errors(store, forecast)
    return {"mse": float(squared_F.mean()), "mae": float(absolute_F.mean())}


def column_errors(scale: Scale, squared_F: Array, absolute_F: Array) -> dict[str, dict[str, float]]:
    """The errors of each column, in the unit of the file."""
    unit_F = scale.decode(np.ones(scale.size)) - scale.decode(np.zeros(scale.size))
    errors = zip(scale.names, squared_F * unit_F**2, absolute_F * unit_F, strict=True)
    return {name: {"mse": float(squared), "mae": float(absolute)} for name, squared, absolute in errors}


def mean_errors(store: SeriesStore, forecast: Callable[[Any], Any]) -> tuple[Array, Array]:
    """The squared and the absolute error of each column: [F] both."""
    squared_F = absolute_F = np.zeros(1)
    for first in range(0, len(store), AT_ONCE):
        source_BSF, target_BTF = store.gather(np.arange(first, min(first + AT_ONCE, len(store))))
        error_BTF = np.asarray(forecast(source_BSF), np.float64) - target_BTF
        squared_F = squared_F + (error_BTF**2).mean(axis=1).sum(axis=0)
        absolute_F = absolute_F + np.abs(error_BTF).mean(axis=1).sum(axis=0)
    return squared_F / len(store), absolute_F / len(store)


def repeat_last(source_BSF: Any, horizon: int) -> Any:
    """The simplest forecast: nothing changes."""
    return np.repeat(source_BSF[:, -1:], horizon, axis=1)
