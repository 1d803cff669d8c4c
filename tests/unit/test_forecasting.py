"""Time series: the scale of their columns, windows, the errors of forecasts, forecasters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import Config
from dragoman.data.batching import SeriesBatch
from dragoman.data.feature_store import SeriesStore
from dragoman.data.features import read_series, series_csv
from dragoman.decode.forecaster import Forecaster
from dragoman.errors import ConfigError, DataError, ModelError
from dragoman.model.build import build_model
from dragoman.scale import MIN_DEVIATION, Scale, rows_before, window_scale
from dragoman.tasks.forecasting import ForecastingTask, forecast_errors, repeat_last

LOOKBACK, HORIZON = 6, 4
RELATIVE_TO = ("training", "last", "window")
NOT_A_SCALE = "not a scale of features; copy it again from a model directory that works"


def make_values(rows: int = 30, seed: int = 0) -> Any:
    """A random walk and noise on another scale."""
    random = np.random.default_rng(seed)
    return np.stack([random.normal(size=rows).cumsum() * 20 + 300, random.normal(size=rows)], axis=1).round(4)


def write_series(path: Path, values: Any) -> Path:
    path.write_text("heat,load\n" + "".join(f"{heat},{load}\n" for heat, load in values), encoding="utf-8")
    return path


def make_store(tmp_path: Path, *lengths: int, lookback: int = LOOKBACK, relative_to: str = "last") -> SeriesStore:
    paths = [write_series(tmp_path / f"{number}.csv", make_values(rows, number)) for number, rows in enumerate(lengths)]
    scale = Scale.learn([make_values(50, 9)], ["heat", "load"])
    return SeriesStore(paths, scale, lookback, HORIZON, relative_to)


def make_forecaster(relative_to: str, horizon: int = HORIZON) -> Forecaster:
    features = ["model.source_features=2", "model.target_features=2", "model.num_layers=1", "model.d_model=16"]
    window = [f"data.lookback={LOOKBACK}", f"data.horizon={horizon}", f"data.relative_to={relative_to}"]
    config = Config.build("tiny", None, [*features, *window]).with_vocabulary(2, 2)
    scale = Scale.learn([make_values(50, 9)], ["heat", "load"])
    torch.manual_seed(0)
    return Forecaster(Bundle(config, Tokenizers(scale, scale), build_model(config.model)), "cpu")


def message_of(call: Callable[[], Any], kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def make_parts() -> list[Any]:
    return [make_values(rows, seed) for seed, rows in enumerate((3, 1, 7, 4))]


# The scale


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_scale_is_mean_and_deviation_of_all_vectors(offset: float) -> None:
    random = np.random.default_rng(0)
    parts = [random.normal(offset + place, 0.1 + place, size=(size, 3)) for place, size in enumerate((1, 400, 7))]
    joined = np.concatenate(parts)
    scale = Scale.learn(parts)
    found = json.loads(scale.to_bytes())
    np.testing.assert_allclose(found["mean"], joined.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["deviation"], joined.std(axis=0), rtol=1e-8)
    apart = json.loads(Scale.learn(parts[:2]).to_bytes())
    assert not np.allclose(found["deviation"], apart["deviation"], rtol=1e-3), "the control: the last part counts"
    naive = np.sqrt((joined**2).mean(axis=0) - joined.mean(axis=0) ** 2)
    assert np.allclose(found["deviation"], naive, rtol=1e-8) == (not offset), "the control: a difference loses digits"


def test_a_feature_that_never_changes_keeps_its_unit() -> None:
    scale = Scale.learn([np.array([[7.0, 1.0], [7.0, 3.0]]), np.array([[7.0, 2.0]])])
    assert scale.encode(np.array([[7.0, 2.0], [9.0, 2.0]])).tolist() == [[0.0, 0.0], [2.0, 0.0]]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1_000_000.1])
def test_rounding_is_no_change_of_a_feature(value: float) -> None:
    for parts in ([np.full((1_000, 1), value)], [np.full((7, 1), value)] * 30):
        np.testing.assert_allclose(Scale.learn(parts).encode(np.array([[value], [value + 2]])), [[0], [2]], atol=1e-6)


def test_numbers_too_large_for_a_scale_are_refused() -> None:
    expected = "features: too large or too close to each other to be scaled; change their unit"
    assert message_of(lambda: Scale.learn([np.array([[1e200], [-1e200]])])) == expected


def test_decoding_undoes_encoding() -> None:
    rows = make_parts()
    scale = Scale.learn(rows, ["a", "b"])
    for row, encoded in zip(rows, scale.encode_batch(rows), strict=True):
        assert encoded.dtype == np.float32
        np.testing.assert_allclose(scale.decode(encoded), row, atol=1e-5)
        assert not np.allclose(encoded, row, atol=0.1)
    joined = np.concatenate(scale.encode_batch(rows))
    np.testing.assert_allclose([joined.mean(axis=0), joined.std(axis=0)], [[0, 0], [1, 1]], atol=1e-6)


def test_a_scale_survives_its_bytes() -> None:
    scale = Scale.learn(make_parts(), ["température", "b"])
    again = Scale.from_bytes(scale.to_bytes())
    assert (again.names, again.size, again.digest) == (["température", "b"], 2, scale.digest)
    assert again.encode(make_parts()[0]).tolist() == scale.encode(make_parts()[0]).tolist()
    assert Scale.learn(make_parts()).digest != scale.digest, "names count"


@pytest.mark.parametrize("content", [
    b"", b"\xff", b"[]", b"3", b'{"mean": [1.0], "deviation": [1.0]}',
    b'{"mean": [], "deviation": [], "names": []}',
    b'{"mean": [1.0], "deviation": [0.0], "names": []}',
    b'{"mean": [1.0], "deviation": [-1.0], "names": []}',
    b'{"mean": [NaN], "deviation": [1.0], "names": []}',
    b'{"mean": [1.0], "deviation": [Infinity], "names": []}',
    b'{"mean": [1.0, 2.0], "deviation": [1.0], "names": []}',
    b'{"mean": [1.0], "deviation": [1.0], "names": ["a", "b"]}',
    b'{"mean": ["x"], "deviation": [1.0], "names": []}',
    b'{"mean": [1.0], "deviation": [1.0], "names": null}',
    b'{"mean": 1.0, "deviation": 1.0, "names": []}',
    b'{"mean": [[1.0]], "deviation": [[1.0]], "names": []}',
    b'{"mean": [1.0], "deviation": [1.0], "names": [3]}',
    b'{"mean": [1.0], "deviation": [1.0], "names": "a"}',
    b'{"mean": [1' + b"0" * 400 + b'], "deviation": [1.0], "names": []}',
])  # fmt: skip
def test_a_damaged_scale_is_refused(content: bytes) -> None:
    assert message_of(lambda: Scale.from_bytes(content), ModelError) == NOT_A_SCALE
    assert Scale.from_bytes(b'{"mean": [1.0], "deviation": [1.0], "names": ["a"]}').size == 1, "the control"


def test_the_rows_before_are_the_last_ones() -> None:
    source_BSF = np.arange(12).reshape(2, 3, 2)
    assert rows_before(source_BSF, 2).tolist() == source_BSF[:, 1:].tolist()
    assert rows_before(source_BSF, 3).tolist() == source_BSF.tolist()
    assert rows_before(source_BSF, 5).tolist() == source_BSF[:, [1, 2, 0, 1, 2]].tolist(), "a period goes on"
    assert rows_before(source_BSF, 0).shape == (2, 0, 2)


def test_windows_are_measured_from_what_was_asked() -> None:
    source_BSF = np.random.default_rng(0).normal(3.0, 2.0, size=(4, 6, 2))
    source_BSF[1, :, 0] = 5.0
    shift, unit = window_scale(source_BSF, "training")
    assert (shift.shape, unit.shape) == ((4, 1, 2), (4, 1, 2))
    assert not shift.any()
    assert (unit == 1).all()
    shift, unit = window_scale(source_BSF, "last")
    assert shift.tolist() == source_BSF[:, 5:].tolist()
    assert (unit == 1).all()
    shift, unit = window_scale(source_BSF, "window")
    np.testing.assert_allclose(shift[:, 0], source_BSF.mean(axis=1))
    np.testing.assert_allclose(unit[:, 0] ** 2, source_BSF.std(axis=1) ** 2 + MIN_DEVIATION**2)
    assert unit[1, 0, 0] == MIN_DEVIATION, "values that do not change have a unit too"


# Files


@pytest.mark.parametrize("content", [
    b"a,b\n1,2\n-3e1,4.5\n",
    b"\xef\xbb\xbfa,b\r\n1,2\r\n-30,4.5",
    b'when,a,b\nMon,1,2\n"Tue, late",-30,4.5\n',
    b"\xef\xbb\xbf,a,b\n2016-07-01 00:00:00,1,2\n2016-07-01 01:00:00,-30,4.5\n",
    b"a,b\n1,2\n-30,4.5\n\n,\n",
])  # fmt: skip
def test_a_series_is_read_with_or_without_its_time(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "series.csv"
    path.write_bytes(content)
    found = read_series(path, ["a", "b"])
    assert found.names == ["a", "b"]
    assert found.values_NF.tolist() == [[1.0, 2.0], [-30.0, 4.5]]


SIZE = "numbers for 2 columns; fix the line"
BAD = "is not a number; fix the line"


@pytest.mark.parametrize(("content", "message"), [
    (b"", ": no rows; give a heading and one row for each point in time"),
    (b"a,b\n", ": no rows; give a heading and one row for each point in time"),
    (b"when\nMon\n", ": no column of numbers; give at least one"),
    (b"a,b\n1,2\n3\n", f":3: has 1 {SIZE}"),
    (b"a,b\n1,2,3\n", f":2: has 3 {SIZE}"),
    (b"a,b\n1,2\n3,x\n", f":3: column b: 'x' {BAD}"),
    (b"a,b\n1,2\n3,\n", f":3: column b: '' {BAD}"),
    (b"a,b\n1,2\n3,nan\n", f":3: column b: 'nan' {BAD}"),
    (b"a,b\n1,2\n3,1_0\n", f":3: column b: '1_0' {BAD}"),
    (b"a,b\nnan,2\n", f":2: column a: 'nan' {BAD}"),
    (b"a,b\n,2\n", f":2: column a: '' {BAD}"),
    (b"1,2\n3,4\n", ": its first line has numbers, not the names of columns; put a heading above"),
    (b"a;b\n1;2\n", ": its columns are separated by ';'; separate them by commas"),
    (b"a,a\n3,4\n", ": two columns have the same name; rename one"),
    (b"a,b\n\n", ": no rows; give a heading and one row for each point in time"),
    (b"a,b\n1,2\n\n3,4\n", f":3: has 0 {SIZE}"),
    (b"a,b\n1,2\n3,inf\n", f":3: column b: 'inf' {BAD}"),
    (b"when,a,b\nMon,1,2\nTue,1\n", f":3: has 1 {SIZE}"),
    (b"b,a\n1,2\n", ": its columns are b, a; the model knows a, b, in this order"),
    (b"when,a\nMon,1\n", ": its columns are a; the model knows a, b, in this order"),
    (b"a,\xff\n1,2\n", ": not a table of comma-separated values ('utf-8' codec can't decode byte 0xff in position 2: "
     "invalid start byte)"),
])  # fmt: skip
def test_what_is_no_series_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "series.csv"
    path.write_bytes(content)
    assert message_of(lambda: read_series(path, ["a", "b"])) == f"{path}{message}"


def test_a_series_survives_its_text(tmp_path: Path) -> None:
    text = series_csv(["a", "b, c"], np.array([[1.0, -2.5], [1e-9, 123456.0]]))
    assert text == 'a,"b, c"\n1,-2.5\n1e-09,123456\n'
    (tmp_path / "series.csv").write_text(text)
    found = read_series(tmp_path / "series.csv", ["a", "b, c"])
    assert found.values_NF.tolist() == [[1.0, -2.5], [1e-9, 123456.0]]


# Windows


def test_windows_never_cross_two_files(tmp_path: Path) -> None:
    store = make_store(tmp_path, 12, 10, 11)
    assert len(store) == 3 + 1 + 2 == store.report.kept
    scale = Scale.learn([make_values(50, 9)], ["heat", "load"])
    series = [scale.encode(make_values(rows, number)) for number, rows in enumerate((12, 10, 11))]
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    source_BSF, target_BTF = store.gather(np.array([5, 0, 1, 2, 3, 4]))
    for window, (part, start) in enumerate([places[-1], *places[:-1]]):
        assert source_BSF[window].tolist() == series[part][start : start + LOOKBACK].tolist()
        assert target_BTF[window].tolist() == series[part][start + LOOKBACK : start + LOOKBACK + HORIZON].tolist()
    assert [store.place(index) for index in range(6)] == [
        f"{tmp_path / str(a)}.csv:{b + LOOKBACK + 2}" for a, b in places
    ]
    assert store.for_epoch(1, 2) is store
    assert (set(store.source_sizes), set(store.target_sizes), set(store.sizes)) == ({LOOKBACK}, {HORIZON}, {LOOKBACK})


def test_a_series_shorter_than_a_window_is_refused(tmp_path: Path) -> None:
    expected = f"{tmp_path / '1.csv'}: 9 rows; a window needs 10, data.lookback=6 and data.horizon=4"
    assert message_of(lambda: make_store(tmp_path, 10, 9)) == expected
    assert len(make_store(tmp_path, 10, 10)) == 2, "the control"


def test_the_key_of_windows_is_that_of_content_and_size(tmp_path: Path) -> None:
    key = make_store(tmp_path, 12).key
    assert make_store(tmp_path, 12).key == key
    assert make_store(tmp_path, 12, lookback=5).key != key
    assert make_store(tmp_path, 13).key != key


def test_a_model_must_have_the_columns_of_its_series(tmp_path: Path) -> None:
    path = write_series(tmp_path / "series.csv", make_values())
    sizes = ["model.source_features=2", "model.target_features=2"]
    config = Config.build("tiny", None, sizes, data={"series": [str(path)]})
    scale = ForecastingTask().learn_tokenizers(config.data, config).scale
    assert scale.digest == Scale.learn([make_values()], ["heat", "load"]).digest
    other = Config.build("tiny", None, ["model.source_features=3", "model.target_features=3"])
    assert message_of(lambda: ForecastingTask().learn_tokenizers(config.data, other), ConfigError) == (
        f"model.source_features: {path} has 2 columns; set model.source_features and model.target_features to 2"
    )


# Errors


def test_errors_are_means_over_all_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path, 30, 16)
    monkeypatch.setattr("dragoman.tasks.forecasting.AT_ONCE", 5)
    assert len(store) % 5, "the last part is smaller"
    source_BSF, target_BTF = store.gather(np.arange(len(store)))
    asked: list[int] = []

    def forecast(source_BSF: Any) -> Any:
        asked.append(len(source_BSF))
        return repeat_last(source_BSF, HORIZON)

    found = forecast_errors(store, forecast)
    error_BTF = (source_BSF[:, -1:] - target_BTF).astype(np.float64)
    assert found == pytest.approx({"mse": (error_BTF**2).mean(), "mae": np.abs(error_BTF).mean()}, rel=1e-6)
    assert sum(asked) == len(store)
    assert max(asked) == 5
    assert forecast_errors(store, lambda rows: repeat_last(rows, HORIZON) + 1.0) != pytest.approx(found, rel=1e-3)


def test_the_simplest_forecast_repeats_the_last_row() -> None:
    source_BSF = np.arange(12).reshape(2, 3, 2)
    assert repeat_last(source_BSF, 3).tolist() == [[[4, 5]] * 3, [[10, 11]] * 3]


@pytest.mark.parametrize("relative_to", RELATIVE_TO)
def test_the_loss_is_the_squared_error_of_forecasts(tmp_path: Path, relative_to: str) -> None:
    """Training and inference agree, and windows of any unit count on the scale of the training data."""
    store, forecaster = make_store(tmp_path, 20, relative_to=relative_to), make_forecaster(relative_to)
    task = ForecastingTask()
    batch = task.collate(store, np.arange(len(store)))
    assert isinstance(batch, SeriesBatch)
    assert batch.num_tokens == len(store) * HORIZON
    assert torch.equal(batch.target_input, batch.source[:, -HORIZON:])
    with torch.no_grad():
        output = forecaster.model(*batch.inputs)
        loss = float(task.loss(output, batch, 0.0)) / batch.num_tokens
        unweighted = float(((output - batch.target_output) ** 2).mean())
    assert loss == pytest.approx(forecast_errors(store, forecaster.scaled_forecasts)["mse"], rel=1e-4)
    assert (unweighted == pytest.approx(loss, rel=1e-2)) == (relative_to != "window"), "the control"
    assert task.loss(batch.target_output, batch, 0.0) == 0.0
    assert task.loss(output[:1], batch.first_row_without_targets(), 0.0) == 0.0


# Forecasters


@pytest.mark.parametrize(("relative_to", "follows"), [("training", False), ("last", True), ("window", True)])
def test_a_shifted_series_has_a_shifted_forecast(relative_to: str, follows: bool) -> None:
    forecaster = make_forecaster(relative_to)
    values, shift = make_values(), np.array([40.0, -3.0])
    forecast, shifted = forecaster.forecast(values), forecaster.forecast(values + shift)
    assert forecast.shape == (HORIZON, 2)
    assert np.allclose(shifted, forecast + shift, atol=1e-3) == follows
    assert not np.allclose(shifted, forecast, atol=1.0 if follows else 1e-3), "the control"


def test_only_a_forecast_relative_to_its_window_follows_the_unit() -> None:
    values = make_values()
    centre = values[-LOOKBACK:].mean(axis=0)
    for relative_to in RELATIVE_TO:
        forecaster = make_forecaster(relative_to)
        forecast, wider = forecaster.forecast(values), forecaster.forecast((values - centre) * 3 + centre)
        follows = np.allclose(wider, (forecast - centre) * 3 + centre, rtol=1e-2, atol=0.1)
        assert follows == (relative_to == "window")


def test_a_forecast_uses_the_last_rows_only() -> None:
    forecaster, values = make_forecaster("last"), make_values()
    forecast = forecaster.forecast(values)
    assert forecaster.forecast(values[-LOOKBACK:]).tolist() == forecast.tolist()
    changed = values.copy()
    changed[-LOOKBACK, 0] += 30.0
    assert not np.allclose(forecaster.forecast(changed), forecast, atol=1e-3), "the control"
    longer = make_forecaster("last", horizon=15).forecast(values)
    assert longer.shape == (15, 2), "further than it looks back"


def test_forecasts_do_not_depend_on_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forecaster = make_forecaster("window")
    source_BSF, _ = make_store(tmp_path, 20).gather(np.arange(11))
    together = forecaster.scaled_forecasts(source_BSF)
    monkeypatch.setattr("dragoman.decode.forecaster.BATCH_SIZE", 4)
    np.testing.assert_allclose(forecaster.scaled_forecasts(source_BSF), together, atol=1e-5)
    assert np.abs(np.diff(together, axis=0)).max(axis=(1, 2)).min() > 1e-3, "the control: windows differ"


@pytest.mark.parametrize("shape", [(5, 2), (9, 3), (9, 1), (9,)])
def test_series_that_a_forecaster_cannot_read_are_refused(shape: tuple[int, ...]) -> None:
    forecaster = make_forecaster("last")
    expected = f"series: {list(shape)} rows and columns; this model needs at least 6 rows of 2 columns"
    assert message_of(lambda: forecaster.forecast(np.ones(shape))) == expected


def test_series_with_numbers_that_are_not_finite_are_refused() -> None:
    values = make_values()
    values[-2, 1] = np.nan
    expected = "series: has numbers that are not finite; fix or remove their rows"
    assert message_of(lambda: make_forecaster("last").forecast(values)) == expected
