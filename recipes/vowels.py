"""Who is speaking: nine speakers told apart by two vowels, 12 numbers for every frame of sound.

    pip download --no-deps aeon && unzip -o aeon-*.whl 'aeon/datasets/data/JapaneseVowels/*'
    python recipes/vowels.py --folder aeon/datasets/data/JapaneseVowels [--out runs/vowels] [--seeds 3] [--jobs N]

JapaneseVowels (Kudo, Toyama and Shimbo, 1999) is inside the package aeon. Every sixth training utterance is for
validation. Trains `recipes/vowels.toml` with each seed and prints the accuracy on the 370 test utterances beside
logistic regression over the mean and the spread of the frames (pip install scikit-learn). Run the same command again
to resume. The results are in docs/recipes/vowels.md.
"""

from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from steps import Settings, run_command, say, train_rows

from dragoman import DataError
from dragoman.data.features import write_features
from dragoman.files import make_directory, write_file

RECIPE = Path(__file__).with_suffix(".toml")
HELD_OUT = 6  # every so many training utterances, one is for validation


class Utterances(NamedTuple):
    frames: list[Any]  # [frames, 12] each
    speakers: list[str]

    def part(self, rows: range | list[int]) -> "Utterances":
        return Utterances([self.frames[row] for row in rows], [self.speakers[row] for row in rows])


def vowels(
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where JapaneseVowels_TRAIN.ts is.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for data and runs.")] = Path("runs/vowels"),
    seeds: Annotated[int, typer.Option(min=1, help="Runs.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs in parallel.")] = 1,
    settings: Settings = None,
) -> None:
    """Write the data, train with every seed, and print the accuracy."""
    make_directory(out)
    training, test = (read(folder / f"JapaneseVowels_{part}.ts") for part in ("TRAIN", "TEST"))
    rows = range(len(training.frames))
    parts = {
        "train": training.part([row for row in rows if row % HELD_OUT]),
        "valid": training.part([row for row in rows if row % HELD_OUT == 0]),
        "test": test,
    }
    for name, utterances in parts.items():
        write_features(out / f"{name}.npz", utterances.frames)
        write_file(out / f"{name}.speakers", "".join(f"{speaker}\n" for speaker in utterances.speakers).encode())
    say(f"logistic regression: {_logistic_regression(parts['train'], test)}")
    files = [
        f'data.{prefix}{side}=["{out / name}.{suffix}"]'
        for name, prefix in (("train", ""), ("valid", "valid_"), ("test", "test_"))
        for side, suffix in (("source", "npz"), ("target", "speakers"))
    ]
    runs = {f"seed-{seed}": [*files, f"train.seed={seed}"] for seed in range(1, seeds + 1)}
    found = train_rows(runs, RECIPE, out, out, jobs, settings or [], _describe)
    scores = [score["accuracy"]["score"] for tests in found.values() for score in tests.values()]
    say(f"accuracy {mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f}), {len(scores)} seeds")


def read(path: Path) -> Utterances:
    """The format .ts: comments and settings, then a line for each utterance: its 12 curves and the speaker."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; --folder names where JapaneseVowels_TRAIN.ts is")
    found = Utterances([], [])
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#@":
            *curves, speaker = line.split(":")
            found.frames.append(np.array([[float(value) for value in curve.split(",")] for curve in curves]).T)
            found.speakers.append(speaker)
    return found


def _describe(scores: dict[str, Any]) -> str:
    accuracy = scores["accuracy"]
    return f"accuracy {accuracy['score']:.1f} [{accuracy['low']:.1f}, {accuracy['high']:.1f}]"


def _logistic_regression(training: Utterances, test: Utterances) -> str:
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        return "not measured; it needs pip install scikit-learn"

    def summary(utterances: Utterances) -> Any:
        return np.array([np.concatenate([row.mean(axis=0), row.std(axis=0)]) for row in utterances.frames])

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
    model.fit(summary(training), training.speakers)
    return f"{100 * model.score(summary(test), test.speakers):.1f} accuracy"


if __name__ == "__main__":
    run_command(vowels)
