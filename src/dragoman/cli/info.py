"""`dragoman info`: what a model or a preset consists of."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import DEFAULT_MODEL, Json, Settings, complete_model
from dragoman.config import CLASSIFICATION, TRANSLATION, Config
from dragoman.errors import ConfigError


def command(
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            "-m",
            metavar="DIR",
            help="A model directory or bundled model.  \\[default: en-de]",
            autocompletion=complete_model,
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Instead of a model: tiny, small, base or big.")] = None,
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Shared pieces.  \\[default: the preset's]")] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Print the number of parameters by part, and every setting."""
    if model is not None and preset is not None:
        raise ConfigError("--model: give either --model or --preset")
    if model is None and preset is None and not settings and vocab_size is None:
        model = DEFAULT_MODEL
    if model is not None:
        if settings or vocab_size is not None:
            raise ConfigError("--set: a model has the settings it has; leave out --set and --vocab-size")
        from dragoman.bundle import load_config, model_name, resolve_model, stores_int8

        directory = resolve_model(model)
        config, int8 = load_config(directory), stores_int8(directory)
    else:
        int8 = False
        config = Config.build(preset, None, settings or [])
        size = vocab_size or config.text.vocab_size
        config = config.with_vocabulary(size, config.model.target_vocabulary if config.task == CLASSIFICATION else size)

    from dragoman.decode.engines.choice import choose_engine
    from dragoman.machine import find_device
    from dragoman.model.footprint import parameter_counts, parameter_table

    choice = choose_engine("auto", "auto", config.model, find_device("auto"), int8_weights=int8)
    if as_json:
        counts = parameter_counts(config.model)
        record = {
            "parameters": counts,
            "total": sum(counts.values()),
            "task": config.task,
            "engine": asdict(choice) if config.task == TRANSLATION else None,
            "settings": asdict(config),
        }
        print(json.dumps(record, ensure_ascii=False))
        return
    print(parameter_table(config.model))
    what = "a model of this shape" if model is None else model_name(model)
    used = f"translates here with the {choice.describe()}" if config.task == TRANSLATION else f"is for {config.task}"
    print(f"\n{what} {used}\n")
    print(config.to_toml(), end="")
