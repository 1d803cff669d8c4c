"""`dragoman serve`: translation as a service, with a page, on this machine."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import Device, Engine, SearchPrecision, Threads
from dragoman.errors import ConfigError

PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "multipart")


def command(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="NAME|DIR", help="Repeatable.  \\[default: the bundled models]"),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE", help="TOML: models, keys, limits (docs/serving.md).")
    ] = None,
    host: Annotated[str | None, typer.Option(help="0.0.0.0: every network.  \\[default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="0: a free one.  \\[default: 8000]")] = None,
    device: Device = "auto",
    precision: SearchPrecision = "auto",
    engine: Engine = "auto",
    threads: Threads = None,
) -> None:
    """Serve models: LibreTranslate's API, everything else under /v1, and a page at /."""
    require_packages()
    from dragoman.serve.server import run
    from dragoman.serve.settings import ModelSettings, ServeSettings, SettingsFile, bundled_settings, read_settings

    found = SettingsFile({}, [], []) if settings is None else read_settings(settings)
    given: dict[str, Any] = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    how = {"device": device, "precision": precision, "engine": engine, "threads": threads or 0}
    models = [ModelSettings(name, **how) for name in model] if model else found.models  # type: ignore[arg-type]
    models = models or [replace(each, **how) for each in bundled_settings()]  # type: ignore[arg-type]
    interrupts.check()
    sys.exit(run(ServeSettings(**{**found.serve, **given}), models, found.keys))


def require_packages() -> None:
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in PACKAGES):
        raise ConfigError('serve: needs fastapi and others; pip install "dragoman[serve]"')
