"""`dragoman corpus`: corpora that the project generates itself."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.config import DataConfig, TrainConfig
from dragoman.errors import ConfigError


def command(
    name: Annotated[str | None, typer.Argument(help="Which corpus; without it, all are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The directory to write into.")] = None,
    size: Annotated[
        int, typer.Option(min=1, help="Training pairs; validation and test get 1,000 each.")
    ] = DataConfig.generated_size,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another corpus.")] = TrainConfig.seed,
) -> None:
    """Write a generated corpus as text files: train, valid and test. No test sentence is in train."""
    from dragoman.data import generated

    if name is None:
        for task in generated.TASKS.values():
            print(f"{task.name:<12} {task.description}")
        return
    if out is None:
        raise ConfigError("--out: missing; say which directory to write into")
    found = sorted(path.name for part in ("train", "valid", "test") for path in out.glob(f"{part}.*"))
    if found and not force:
        raise ConfigError(f"--out {out}: already holds {', '.join(found)}; choose another place or pass --force")
    files = generated.write(name, size, out, seed)
    for path in vars(files).values():
        print(path)
