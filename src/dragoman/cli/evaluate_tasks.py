"""`dragoman evaluate` with a model of another task than translation."""

import json
from pathlib import Path
from typing import Any

from dragoman.cli import interrupts
from dragoman.cli.streams import opened
from dragoman.config import CLASSIFICATION, FORECASTING
from dragoman.errors import ConfigError


def evaluate_task(
    task: str, model: Path, source: Path | None, reference: Path, *, confusion: Path | None, beam: int | None,
    device: str, precision: str, threads: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the model on `source`, or on every window of a series, and compare with `reference`."""
    if confusion is not None and task != CLASSIFICATION:
        raise ConfigError("--confusion: draws the labels of a classifier; leave it out")
    if confusion is not None and confusion.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(f"--confusion {confusion}: is a picture; name it .svg or .png")
    options: dict[str, Any] = {"device": device, "precision": precision, "threads": threads, "as_json": as_json}
    if task == FORECASTING:
        if source is not None:
            raise ConfigError("--source: a forecaster needs one series, given with --reference; leave it out")
        evaluate_forecaster(model, reference, **options)
        return
    if source is None:
        what = "the texts or vectors that {} is to classify" if task == CLASSIFICATION else "the vectors for {}"
        raise ConfigError(f"--source: missing; give {what.format(model)}")
    if task == CLASSIFICATION:
        from dragoman.cli.evaluate_labels import evaluate_labels

        evaluate_labels(model, source, reference, picture=confusion, **options)
        return
    evaluate_transcriber(model, source, reference, beam=beam, **options)


def evaluate_transcriber(
    model: Path, source: Path, reference: Path, *, beam: int | None, device: str, precision: str, threads: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Transcribe every sequence of `source` and compare with the lines of `reference`."""
    from dragoman.cli.progress import counting
    from dragoman.data.corpus import CorpusReport
    from dragoman.data.features import read_feature_pairs
    from dragoman.decode.transcriber import Transcriber
    from dragoman.tasks.transcription import transcription_scores
    from dragoman.text.normalize import normalize

    transcriber = Transcriber.load(model, device, precision, threads)
    features, normalization = transcriber.tokenizers.scale.size, transcriber.config.text.normalization
    report = CorpusReport()
    pairs = list(read_feature_pairs([source], [reference], features=features, report=report, blank=True))
    interrupts.check()
    with counting("transcribing", len(pairs), show=True) as advance:
        said = transcriber.transcribe([pair.source for pair in pairs], beam=beam, advance=advance)
    right = [normalize(pair.target, normalization) for pair in pairs]
    scores = transcription_scores([one.text for one in said], right, normalization)
    rate = scores["word_error_rate"]
    _print(
        [
            f"word error rate {rate['score']:.2f}  [{rate['low']:.2f}, {rate['high']:.2f}]",
            f"exact {scores['exact_match']:.1f}%  of {len(pairs):,} sequences; 95 % intervals by bootstrap",
        ],
        {**scores, "made_by": _made_by(model)},
        as_json,
    )


def evaluate_forecaster(
    model: Path, series: Path, *, device: str, precision: str, threads: int | None, as_json: bool
) -> None:
    """Forecast from every window of a series and compare with what followed."""
    from dragoman.data.feature_store import SeriesStore
    from dragoman.decode.forecaster import Forecaster
    from dragoman.tasks.forecasting import column_errors, forecast_errors, mean_errors, repeat_last

    forecaster = Forecaster.load(model, device, precision, threads)
    store = SeriesStore([series], forecaster.tokenizers.scale, forecaster.lookback, forecaster.horizon)
    interrupts.check()
    squared_F, absolute_F = mean_errors(store, forecaster.scaled_forecasts)
    errors = {"mse": float(squared_F.mean()), "mae": float(absolute_F.mean())}
    columns = column_errors(forecaster.tokenizers.scale, squared_F, absolute_F)
    naive = forecast_errors(store, lambda source_BSF: repeat_last(source_BSF, forecaster.horizon))
    _print(
        [
            f"MSE {errors['mse']:.4f}  MAE {errors['mae']:.4f}",
            f"MSE {naive['mse']:.4f}  MAE {naive['mae']:.4f}  of the last row repeated",
            f"of {len(store):,} windows, on the scale of the training data",
            *(f"{name}: mean absolute error {each['mae']:.4g}, in its own unit" for name, each in columns.items()),
        ],
        {**errors, "last_row": naive, "columns": columns, "windows": len(store), "made_by": _made_by(model)},
        as_json,
    )


def _made_by(model: Path) -> dict[str, str]:
    from dragoman.bundle import WEIGHTS, resolve_model
    from dragoman.data.corpus import file_hash

    return {"model": str(model), "sha256": file_hash(resolve_model(model) / WEIGHTS)}


def _print(lines: list[str], record: dict[str, Any], as_json: bool) -> None:
    with opened(None) as stream:
        stream.write((json.dumps(record, ensure_ascii=False) if as_json else "\n".join(lines)) + "\n")
