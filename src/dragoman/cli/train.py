"""`dragoman train`: from parallel text to a model directory."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.config import Config
from dragoman.errors import ConfigError

DEFAULT_PRESET = "small"

Files = list[str] | None


def command(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; options below win over it.")
    ] = None,
    source: Annotated[
        Files, typer.Option(help="Training text, one sentence a line; may be given several times.")
    ] = None,
    target: Annotated[Files, typer.Option(help="Its translation, line by line.")] = None,
    valid_source: Annotated[Files, typer.Option(help="Held-out text to measure on.")] = None,
    valid_target: Annotated[Files, typer.Option(help="Its translation.")] = None,
    out: Annotated[Path | None, typer.Option(help="The model directory; default runs/NAME of the config.")] = None,
    preset: Annotated[str | None, typer.Option(help="tiny, small, base or big: sizes and schedule together.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting.")
    ] = None,
    on_bad_line: Annotated[str | None, typer.Option(help="fail, or skip: drop pairs with invalid text.")] = None,
) -> None:
    """Train a translation model. Resumes by itself when the output directory holds a run."""
    given = {
        "source": source,
        "target": target,
        "valid_source": valid_source,
        "valid_target": valid_target,
        "on_bad_line": on_bad_line,
    }
    data = {name: value for name, value in given.items() if value}
    if out is None:
        if config is None:
            raise ConfigError("--out: missing; say where the model directory shall be")
        out = Path("runs") / config.stem
    built = build_config(config, out, preset, data, settings or [])

    from dragoman.cli.progress import TrainingReporter
    from dragoman.train.loop import train

    try:
        with TrainingReporter() as reporter:
            result = train(built, out, reporter)
    except KeyboardInterrupt:
        print(f"dragoman: interrupted; the same command goes on from the last checkpoint in {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    best = "" if result.best is None else f", best {result.metric} {abs(result.best):.2f} at step {result.best_step}"
    averaged = ", averaged over the last checkpoints" if result.averaged else ""
    print(f"{result.directory}: {result.reason} at step {result.steps}{best}{averaged}")
    print(f'next: dragoman translate --model {result.directory} "some text"')


def build_config(file: Path | None, out: Path, preset: str | None, data: dict[str, Any], settings: list[str]) -> Config:
    """What was asked for: on top of the file, else of the run that `out` holds, else of a preset."""
    saved = out / "config.toml"
    if file is None and preset is None:
        if saved.exists():
            return Config.build(None, saved, settings, data=data)
        preset = DEFAULT_PRESET
    if any(setting.startswith(("model.vocab_size", "model.target_vocab_size")) for setting in settings):
        raise ConfigError("model.vocab_size: follows from the tokenizer; set text.vocab_size")
    return Config.build(preset, file, settings, data=data)
