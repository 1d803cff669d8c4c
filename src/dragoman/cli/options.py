"""Options that several commands share, with one wording."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = Path("en-de")  # bundled


def complete_model(incomplete: str) -> list[str]:
    """Bundled models and directories that begin like this, for the shell."""
    from dragoman.bundle import bundled_models

    folder, _, start = incomplete.rpartition("/")
    places = Path(f"{folder}/" if incomplete.startswith("/") or folder else ".")
    found = [f"{folder}/{path.name}" if "/" in incomplete else path.name for path in _directories(places, start)]
    return [name for name in bundled_models() if name.startswith(incomplete)] + sorted(found)


def _directories(folder: Path, start: str) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.startswith(start) and path.is_dir()]
    except OSError:
        return []


def complete_setting(incomplete: str) -> list[str]:
    """Settings that begin like this, and the words that one can be, for the shell."""
    from dragoman.settings import every_setting

    key, equals, value = incomplete.partition("=")
    settings = every_setting()
    if not equals:
        return [f"{name}=" for name in settings if name.startswith(key)]
    return [f"{key}={choice}" for choice in settings.get(key, ()) if choice.startswith(value)]


Split = Annotated[
    str | None,
    typer.Option(help="sentences: each alone; long: only lines that are too long.  \\[default: the model's]"),
]
Shortlist = Annotated[
    bool | None,
    typer.Option(
        "--shortlist/--no-shortlist",
        help="Search among likely target pieces only, on a CPU.  \\[default: the model's]",
    ),
]
TargetLanguage = Annotated[
    str | None, typer.Option(metavar="TAG", help="Of an imported model that translates into several, such as deu.")
]
Model = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        metavar="DIR",
        help="The model directory, the name of a bundled model, or hf://owner/name.",
        autocompletion=complete_model,
    ),
]
ModelByText = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        metavar="DIR",
        help="The model directory, the name of a bundled model, or hf://owner/name.  \\[default: a bundled model]",
        autocompletion=complete_model,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting.", autocompletion=complete_setting),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Precision = Annotated[str, typer.Option(help="float32, bfloat16 or int8.")]
SearchPrecision = Annotated[
    str,
    typer.Option(help="auto, float32, bfloat16 or int8; auto: bfloat16 on a GPU, int8 for int8 weights on a CPU."),
]
Engine = Annotated[
    str, typer.Option(help="auto, plain, cuda or cpu; `dragoman info` names auto's. For folders also ray.")
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="CPU threads; by default one per core, one for a small model.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
