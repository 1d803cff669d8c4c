"""Pictures to captions: two or three shapes drawn on 32 by 32 pixels, as 64 patches, to a sentence.

    python recipes/captions.py [--out runs/captions] [--seeds 3] [--jobs N] [--train 12000]

A caption names the shapes from left to right with size and brightness: "a small bright circle and a large dark square".
Places and noise are drawn at random: no two pictures are equal.
Trains `recipes/captions.toml` with each seed and prints the share of captions that are right. Run the same command
again to resume. The results are in docs/recipes/captions.md.
"""

from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from steps import Settings, run_command, say, train_rows

from dragoman.data.features import as_patches, write_features
from dragoman.files import make_directory, write_file

RECIPE = Path(__file__).with_suffix(".toml")
SIDE, PATCH = 32, 4  # pixels
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = {"small": 3.0, "large": 5.0}  # pixels from the middle
BRIGHTNESSES = {"dark": 0.4, "bright": 1.0}
NOISE = 0.05
PARTS = {"valid": 500, "test": 1_000}
SEED = 20_17


class Drawn(NamedTuple):
    caption: str
    pixels: Any  # [32, 32]


def captions(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for data and runs.")] = Path("runs/captions"),
    train: Annotated[int, typer.Option(min=100, help="Training pictures.")] = 12_000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs in parallel.")] = 1,
    settings: Settings = None,
) -> None:
    """Draw the pictures, train with every seed, and print how many captions are right."""
    make_directory(out)
    for number, (name, size) in enumerate({"train": train, **PARTS}.items()):
        random = np.random.default_rng([SEED, number])
        pictures = [draw(random) for _ in range(size)]
        patches = [as_patches(picture.pixels, PATCH) for picture in pictures]
        write_features(out / f"{name}.npz", patches, picture=(SIDE, SIDE))
        write_file(out / f"{name}.captions", "".join(f"{picture.caption}\n" for picture in pictures).encode())
    files = [
        f'data.{prefix}{side}=["{out / name}.{suffix}"]'
        for name, prefix in (("train", ""), ("valid", "valid_"), ("test", "test_"))
        for side, suffix in (("source", "npz"), ("target", "captions"))
    ]
    runs = {f"seed-{seed}": [*files, f"train.seed={seed}"] for seed in range(1, seeds + 1)}
    found = train_rows(runs, RECIPE, out, out, jobs, settings or [], _describe)
    exact = [score["exact_match"] for tests in found.values() for score in tests.values()]
    say(f"exact match {mean(exact):.1f} ({min(exact):.1f} to {max(exact):.1f}), {len(exact)} seeds")


def draw(random: np.random.Generator) -> Drawn:
    """Two or three shapes that do not touch, with noise; the caption names them from left to right."""
    pixels, names = np.zeros((SIDE, SIDE)), []
    count = int(random.integers(2, 4))
    room = SIDE / count
    for place in range(count):
        size, brightness, shape = (str(random.choice(list(words))) for words in (SIZES, BRIGHTNESSES, SHAPES))
        size = "small" if count == 3 else size  # three large ones have no room
        radius = SIZES[size]
        x = random.uniform(place * room + radius + 0.5, (place + 1) * room - radius - 0.5)
        y = random.uniform(radius + 1, SIDE - radius - 1)
        pixels = np.maximum(pixels, BRIGHTNESSES[brightness] * _shape(shape, x, y, radius))
        names.append(f"a {size} {brightness} {shape}")
    noise = NOISE * random.normal(size=pixels.shape)
    return Drawn(" and ".join([", ".join(names[:-1]), names[-1]]), pixels + noise)


def _shape(name: str, x: float, y: float, radius: float) -> Any:
    """1 inside the shape, 0 outside: [32, 32]."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    across, down = np.abs(columns - x), np.abs(rows - y)
    inside = {
        "circle": across**2 + down**2 <= radius**2,
        "square": np.maximum(across, down) <= 0.85 * radius,
        "triangle": (across <= (rows - y + radius) / 2) & (rows <= y + radius),
        "cross": (np.minimum(across, down) <= 0.3 * radius) & (np.maximum(across, down) <= radius),
    }[name]
    return inside.astype(float)


def _describe(scores: dict[str, Any]) -> str:
    return f"exact {scores['exact_match']:.1f} per cent, word error rate {scores['word_error_rate']['score']:.2f}"


if __name__ == "__main__":
    run_command(captions)
