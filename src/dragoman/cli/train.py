"""`dragoman train`: from text to a model directory."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.options import Settings, Threads, complete_model
from dragoman.config import CLASSIFICATION, FORECASTING, PRESETS, Config, LayersConfig, ModelConfig, read_toml
from dragoman.errors import ConfigError

DEFAULT_PRESET = "small"
FREE_WHEN_STARTING_FROM = ("model.dropout", "model.attention_dropout", "text.sampling", "text.max_length")
DECIDE_THE_TASK = ("architecture", "source_features", "target_features")
WINDOWS = ("lookback", "horizon", "relative_to")  # of a forecaster

Files = list[str] | None


def command(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings in TOML; the options below override them.")
    ] = None,
    source: Annotated[
        Files, typer.Option(help="Training text, one sentence per line; may be given several times.")
    ] = None,
    target: Annotated[Files, typer.Option(help="Its translation, line by line; for a classifier its labels.")] = None,
    valid_source: Annotated[Files, typer.Option(help="Held-out text for validation.")] = None,
    valid_target: Annotated[Files, typer.Option(help="Its translation.")] = None,
    test_source: Annotated[
        Files, typer.Option(help="A test set, evaluated once at the end; may be given several times.")
    ] = None,
    test_target: Annotated[Files, typer.Option(help="Its translation.")] = None,
    text: Annotated[
        Files, typer.Option(help="For a language model: training text; may be given several times.")
    ] = None,
    valid_text: Annotated[Files, typer.Option(help="For a language model: held-out text.")] = None,
    test_text: Annotated[
        Files,
        typer.Option(help="For a language model: a test set, scored once at the end; may be given several times."),
    ] = None,
    series: Annotated[
        Files, typer.Option(help="For a forecaster: a training series, .csv; may be given several times.")
    ] = None,
    valid_series: Annotated[Files, typer.Option(help="For a forecaster: a held-out series.")] = None,
    test_series: Annotated[
        Files,
        typer.Option(help="For a forecaster: a test set, forecast once at the end; may be given several times."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The model directory; default runs/NAME of the config.")] = None,
    preset: Annotated[str | None, typer.Option(help="tiny, small, base or big: sizes and schedule together.")] = None,
    settings: Settings = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Start from this model's weights, vocabulary and sizes.",
            autocompletion=complete_model,
        ),
    ] = None,
    source_vectors: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Word vectors to start from: word2vec, GloVe, fastText; .gz .bz2 .xz too."),
    ] = None,
    target_vectors: Annotated[Path | None, typer.Option(metavar="FILE", help="The same for the target.")] = None,
    data_folder: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="The folder of the corpora, $DRAGOMAN_DATA in a recipe's paths."),
    ] = None,
    on_bad_line: Annotated[str | None, typer.Option(help="fail, or skip: drop pairs with invalid text.")] = None,
    threads: Threads = None,
) -> None:
    """Train a model. Resumes automatically if the output directory holds a run.

    Parallel text trains a translator. --set model.architecture=decoder trains a language model from --text, and
    --set model.architecture=encoder a classifier, with one label per line as --target. With --set
    model.source_features=N, --source is a file of vectors with N numbers each: frames of sound, patches of a picture.
    With model.target_features too, --series is a time series to forecast.
    """
    given = {
        "source": source,
        "target": target,
        "valid_source": valid_source,
        "valid_target": valid_target,
        "test_source": test_source,
        "test_target": test_target,
        "text": text,
        "valid_text": valid_text,
        "test_text": test_text,
        "series": series,
        "valid_series": valid_series,
        "test_series": test_series,
        "on_bad_line": on_bad_line,
    }
    data = {name: value for name, value in given.items() if value not in (None, [])}
    with _report_errors_once():
        if out is None:
            if config is None:
                raise ConfigError("--out: missing; give the model directory")
            out = Path("runs") / config.stem
        asked = list(settings or [])
        for name, value in (
            ("threads", threads),
            ("source_vectors", source_vectors),
            ("target_vectors", target_vectors),
        ):
            asked += [] if value is None else [f"train.{name}={value}"]
        built = build_config(config, out, preset, data, asked, start_from)

    from dragoman.bundle import COMMANDS
    from dragoman.cli.progress import TrainingReporter
    from dragoman.tasks.choice import task_of
    from dragoman.training.loop import train

    silent = not _is_single_process() and os.environ["RANK"] != "0"  # only one of several processes prints
    unit = task_of(built).predicted.split()[-1]
    with TrainingReporter(quiet=silent, unit=unit) as reporter:
        result = train(built, out, reporter, data_folder=data_folder)
    if silent:
        return
    print(result.describe())
    of_vectors = built.model.reads_vectors
    example = {FORECASTING: "series.csv"}.get(built.task, "vectors.npz" if of_vectors else '"some text"')
    option = "--input " if built.task == CLASSIFICATION and of_vectors else ""
    print(f"next: {COMMANDS[built.task]} --model {result.directory} {option}{example}")


def _report_errors_once() -> AbstractContextManager[None]:
    """Report an error once under torchrun. A single process need not wait for torch to report it."""
    if _is_single_process():
        return nullcontext()
    from dragoman.training.distributed import report_error_once

    return report_error_once()


def _is_single_process() -> bool:
    return os.environ.get("WORLD_SIZE", "1") == "1"


def build_config(
    file: Path | None,
    out: Path,
    preset: str | None,
    data: dict[str, Any],
    settings: list[str],
    start_from: str | None = None,
) -> Config:
    """Build the requested settings: on top of the file, else of the run in `out`, else of a preset.

    A run that starts from another model takes its sizes and vocabulary; the rest is set as usual.
    """
    saved = out / "config.toml"
    if preset is None and saved.exists() and (file is None or (file.exists() and file.samefile(saved))):
        return Config.build(None, saved, settings, saved=True, data=data)
    default = DEFAULT_PRESET if file is None else None
    if not start_from:
        asked = Config.build(default if preset is None else preset, file, settings, data=data)
        start_from = asked.train.start_from
        if not start_from:
            return asked

    from dragoman.bundle import load_config, resolve_model

    # an existing run has all its settings, and the model it started from may be gone
    before = load_config(out if saved.exists() else resolve_model(start_from))
    document = read_toml(file) if file else {}
    sections = ("model", "text", "data")
    given = {f"{section}.{key}": f"{file}: " for section in sections for key in document.get(section, ())}
    given |= {setting.partition("=")[0].strip(): "--set " for setting in settings}
    if "model.architecture" not in given:
        kept = [(name, getattr(before.model, name, None)) for name in DECIDE_THE_TASK]
        settings = [*(f"model.{name}={value}" for name, value in kept if value is not None), *settings]
    if preset is None and file is None:
        preset = fitting_preset(before.model)
    asked = Config.build(preset, file, settings, data=data)
    if asked.model.architecture != before.model.architecture:
        model = _shared_shape(asked.model, before.model, start_from)
        before = replace(asked, model=model, text=replace(before.text, joint=True))
    changed: dict[str, dict[str, Any]] = {"model": {}, "text": {}}
    for name, place in given.items():
        section, _, key = name.partition(".")
        if section not in changed:
            continue
        wanted, had = (getattr(getattr(config, section), key, None) for config in (asked, before))
        if name in FREE_WHEN_STARTING_FROM:
            changed[section][key] = wanted
        elif wanted != had:
            raise ConfigError(f"{place}{name}: a run that starts from {start_from} keeps its {name}; leave it out")
    windows = {name: getattr(before.data, name) for name in WINDOWS if f"data.{name}" not in given}
    return replace(
        asked,
        data=replace(asked.data, **windows) if asked.task == FORECASTING else asked.data,
        model=replace(before.model, **changed["model"]),
        text=replace(before.text, **changed["text"]),
        train=replace(asked.train, start_from=start_from),
    )


def _shared_shape(asked: ModelConfig, before: ModelConfig, start_from: str) -> ModelConfig:
    """The architecture that was asked for, with the layers of a model of another one."""
    if not (isinstance(asked, LayersConfig) and isinstance(before, LayersConfig)):
        raise ConfigError(
            f"model.architecture: {asked.architecture} has no part in common with {start_from}; leave --from out"
        )
    (kept,) = asked.stacks
    if kept not in before.stacks:
        raise ConfigError(f"model.architecture: {start_from} has no {kept}; leave --from out")
    if kept == "encoder" and getattr(asked, "source_features", None) != getattr(before, "source_features", None):
        had = f"vectors; set it to {before.input_size}, or" if before.reads_vectors else "text;"
        raise ConfigError(f"model.source_features: {start_from} reads {had} leave --from out")
    shared = {entry.name for entry in fields(LayersConfig)} - {"architecture"}
    layers = {name: getattr(before, name) for name in shared} | asdict(before.stacks[kept])
    return replace(asked, **layers)


def fitting_preset(model: ModelConfig) -> str:
    """The preset whose batch and schedule train a model further: tiny for a model no wider, else the default.

    The model's own settings may be a cluster's: the bundled en-de used 51,200 tokens per batch.
    """
    return "tiny" if model.d_model <= PRESETS["tiny"]["model"]["d_model"] else DEFAULT_PRESET
