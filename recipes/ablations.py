"""Table 3 of the paper at a smaller scale: variants of a small Transformer, and recurrent models.

    python recipes/ablations.py --data FOLDER [--out runs/ablations] [--only NAME ...] [--jobs N] [--set KEY=VALUE ...]

Every row is a separate `dragoman train recipes/ablations.toml` with its own settings, which trains into OUT/NAME.
`--jobs` of them run in parallel. Run the same command again to resume. The results are in docs/lab/results.md.
"""

from pathlib import Path
from typing import Annotated

import typer
from steps import Settings, run_command, train_rows

from dragoman import ConfigError
from dragoman.errors import suggestion

RECIPE = Path(__file__).with_suffix(".toml")
RECURRENT = ("model.architecture=rnn", "model.num_layers=2", "model.d_model=512")

# A row: its settings that differ from recipes/ablations.toml. Letters are the paper's; other rows are not in its table.
VARIANTS: dict[str, tuple[str, ...]] = {
    "base": (),
    "A-heads-1": ("model.num_heads=1",),
    "A-heads-2": ("model.num_heads=2",),
    "A-heads-8": ("model.num_heads=8",),
    "A-heads-16": ("model.num_heads=16",),
    "B-dk-8": ("model.d_k=8", "model.d_v=64"),
    "B-dk-16": ("model.d_k=16", "model.d_v=64"),
    "C-layers-1": ("model.num_layers=1",),
    "C-layers-2": ("model.num_layers=2",),
    "C-layers-6": ("model.num_layers=6",),
    "C-width-128": ("model.d_model=128",),
    "C-width-512": ("model.d_model=512", "model.num_heads=8", "train.learning_rate=7e-4"),
    "C-inner-256": ("model.d_ff=256",),
    "C-inner-2048": ("model.d_ff=2048",),
    "D-dropout-0": ("model.dropout=0.0",),
    "D-dropout-30": ("model.dropout=0.3",),
    "D-smoothing-0": ("train.label_smoothing=0.0",),
    "D-smoothing-20": ("train.label_smoothing=0.2",),
    "E-learned-positions": ("model.positions=learned",),
    "rotary-positions": ("model.positions=rotary",),
    "no-positions": ("model.positions=none",),
    "pre-norm": ("model.norm=pre",),
    "half-gain": ("model.init_gain=0.5",),
    "rnn": (*RECURRENT, "model.cell=rnn", "model.context=none"),
    "lstm": (*RECURRENT, "model.context=none"),
    "lstm-attention": RECURRENT,
}


def ablations(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for the runs, one per row.")] = Path(
        "runs/ablations"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Train only this row; repeatable.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Rows trained in parallel.")] = 1,
    settings: Settings = None,
) -> None:
    """Train one model per row of the table and print the scores."""
    for name in only or ():
        if name not in VARIANTS:
            raise ConfigError(f"--only {name}: no such row; {suggestion(name, tuple(VARIANTS))}")
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder; it is where the corpora are")
    train_rows({name: VARIANTS[name] for name in only or VARIANTS}, RECIPE, data, out, jobs, settings or [])


if __name__ == "__main__":
    run_command(ablations)
