"""`dragoman compress`: the same model in a half or a quarter of the bytes."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import DEFAULT_MODEL, Model
from dragoman.config import require_choice
from dragoman.errors import ConfigError

WEIGHTS = ("int8", "bfloat16", "float32")


def command(
    out: Annotated[Path, typer.Option(help="The directory to write; it must not be a model already.")],
    model: Model = DEFAULT_MODEL,
    weights: Annotated[str, typer.Option(help="int8, bfloat16 or float32.")] = "int8",
) -> None:
    """Write a model directory with smaller weights. Every command reads it like the original."""
    require_choice("--weights", weights, WEIGHTS)

    import torch

    from dragoman import bundle
    from dragoman.int8 import compact, expanded

    if (out / bundle.CONFIG).exists():
        raise ConfigError(f"--out {out}: holds a model; give another directory")
    source = bundle.resolve_model(model)
    loaded = bundle.load_bundle(source)
    interrupts.check()
    full = expanded(loaded.weights)
    if weights == "int8":
        stored = {name: torch.from_numpy(array) for name, array in compact(full).items()}
    else:
        stored = {name: torch.from_numpy(array).to(getattr(torch, weights)) for name, array in full.items()}
    text = bundle.load_card(source) or "# A dragoman model\n"
    text += f"\nWeights stored as {weights} by `dragoman compress`; scores above are of those it was given.\n"
    with bundle.removed_on_error(out):
        bundle.save_bundle(
            out,
            loaded.config,
            loaded.tokenizers,
            stored,
            text,
            loaded.shortlist,
            loaded.calibration,
            loaded.known_words,
        )
    sizes = [(place / bundle.WEIGHTS).stat().st_size for place in (source, out)]
    print(f"{out}: weights in {weights}, {sizes[1]:,} bytes instead of {sizes[0]:,}")
