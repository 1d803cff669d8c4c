"""A language model of Shakespeare by characters: nanoGPT's two settings, on one GPU or in minutes on a CPU.

    python recipes/shakespeare.py --data FOLDER [--small] [--out runs/shakespeare] [--seeds 3] [--jobs N]

Splits FOLDER/tinyshakespeare/input.txt.bz2 as the field does, the first 90 % of its characters for training and the
rest for validation, and trains `recipes/shakespeare.toml`, or with --small `recipes/shakespeare-cpu.toml`, with each
seed. Run the same command again to resume. The results are in docs/recipes/shakespeare.md.
"""

from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from steps import Settings, run_command, say, train_rows

from dragoman import ConfigError
from dragoman.data.corpus import reading
from dragoman.files import make_directory, write_file

RECIPES = Path(__file__).parent
TRAINING_SHARE = 0.9


def shakespeare(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    small: Annotated[bool, typer.Option("--small", help="The setting for a CPU.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for the split and the runs.")] = Path(
        "runs/shakespeare"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Runs.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs in parallel.")] = 1,
    settings: Settings = None,
) -> None:
    """Split the text, train with every seed, and print the losses."""
    source = data / "tinyshakespeare" / "input.txt.bz2"
    if not source.is_file():
        raise ConfigError(f"--data {data}: does not hold {source.relative_to(data)}; it is where the corpora are")
    make_directory(out)
    with reading(source) as stream:
        text = stream.read().decode()
    cut = int(TRAINING_SHARE * len(text))
    for name, part in (("train", text[:cut]), ("valid", text[cut:])):
        write_file(out / f"{name}.txt", part.encode())
    train, valid = (f'["{out / name}.txt"]' for name in ("train", "valid"))
    files = [f"data.text={train}", f"data.valid_text={valid}", f"data.test_text={valid}"]
    rows = {f"seed-{seed}": [*files, f"train.seed={seed}"] for seed in range(1, seeds + 1)}
    recipe = RECIPES / ("shakespeare-cpu.toml" if small else "shakespeare.toml")
    found = train_rows(rows, recipe, data, out, jobs, settings or [], _describe)
    losses = [score["nats_per_token"] for tests in found.values() for score in tests.values()]
    say(f"mean of {len(losses)}: {mean(losses):.4f} nats a character, sliding window")


def _describe(scores: dict[str, Any]) -> str:
    return f"{scores['nats_per_token']:.4f} nats a character, {scores['bits_per_byte']:.3f} bits a byte"


if __name__ == "__main__":
    run_command(shakespeare)
