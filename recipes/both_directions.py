"""English to German and German to English, from text to int8 weights, with one command.

    python recipes/both_directions.py --data FOLDER [--out runs/both-directions] [--set train.seed=2 ...]

1. OUT/hardened: pairs for input that the corpora lack (hardening.py).
2. OUT/en-de, OUT/de-en: a model for each direction, from the real pairs and these.
3. OUT/models: the same in int8, with the words that they have read and the confidence of their translations.

Run the same command again to resume. Each step prints its minutes. What was measured: docs/lab/recipes.md.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import hardening
import steps
import typer

from dragoman import ConfigError, DragomanError
from dragoman.files import lock_directory

RECIPE = Path(__file__).with_suffix(".toml")
LANGUAGES = ("en", "de")
DIRECTIONS = ("en-de", "de-en")
EVERYDAY = "tatoeba-en-de/train"
TEXTS = (*(f"europarl-en-de/train.{part}of4" for part in (1, 2, 3, 4)), EVERYDAY)
EPOCHS_OF_EVERYDAY = 6  # in one of the rest: they are a tenth of the pairs, and a thirtieth of the words
VALIDATION = "europarl-en-de/valid"
TESTS = ("europarl-en-de/test", "tatoeba-en-de/test", "newstest2014-en-de/test")


class Pairs(NamedTuple):
    """Files of pairs: line N of one belongs to line N of the other."""

    source: list[str]
    target: list[str]

    def swapped(self) -> "Pairs":
        return Pairs(self.target, self.source)

    def with_pairs(self, *others: "Pairs") -> "Pairs":
        both = [self, *others]
        return Pairs([name for each in both for name in each.source], [name for each in both for name in each.target])


def command(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory of everything that is made.")] = Path(
        "runs/both-directions"
    ),
    num_steps: Annotated[int, typer.Option("--steps", min=1, help="Of the training of each model.")] = 15_000,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Hardened pairs for each real one.")] = 0.12,
    jobs: Annotated[int, typer.Option(min=1, help="Models trained at the same time, of two.")] = 2,
    settings: steps.Settings = None,
) -> None:
    """Train a model for each direction."""
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder; it is where the corpora are")
    with lock_directory(out):
        with timed("1/3 hardening", out):
            hard = {direction: harden(direction, data, out / "hardened", share) for direction in DIRECTIONS}
        with timed(f"2/3 training {' and '.join(str(out / direction) for direction in DIRECTIONS)}", out):
            rows = {
                direction: [*_settings(direction, data, hard[direction], num_steps), *(settings or ())]
                for direction in DIRECTIONS
            }
            steps.train_rows(rows, RECIPE, data, out, jobs, [])
        with timed(f"3/3 completing {out / 'models'}", out):
            for direction in DIRECTIONS:
                complete(direction, data, out)
    steps.say(f'next: dragoman translate --model {out / "models" / "en-de"} "some text"')


# Text


def _files(name: str, folder: str, data: Path) -> Pairs:
    """English and German, compressed or not, as paths below a folder; one that is not there is reported later."""
    found = [
        next((suffix for suffix in ("", ".bz2", ".xz", ".gz") if (data / f"{name}.{language}{suffix}").exists()), "")
        for language in LANGUAGES
    ]
    english, german = (f"{folder}/{name}.{code}{suffix}" for code, suffix in zip(LANGUAGES, found, strict=True))
    return Pairs([english], [german])


def _pairs(names: Sequence[str], folder: str, data: Path, direction: str) -> Pairs:
    pairs = Pairs([], []).with_pairs(*(_files(name, folder, data) for name in names))
    return pairs if direction == "en-de" else pairs.swapped()


def harden(direction: str, data: Path, out: Path, share: float) -> Pairs:
    """Pairs made of each text of a direction by itself, at the same time; what is there is not made again."""
    source, target = direction.split("-")
    places = [out / direction / name.replace("/", "-") for name in TEXTS]
    with ProcessPoolExecutor() as pool:
        work = [
            pool.submit(
                hardening.provide_pairs,
                *_pairs([name], str(data), data, direction),
                hardening.Languages(source, target),
                place,
                share,
            )
            for name, place in zip(TEXTS, places, strict=True)
        ]
        for each in work:
            each.result()
    return Pairs([str(place / "source") for place in places], [str(place / "target") for place in places])


# Training


def _settings(direction: str, data: Path, hardened: Pairs, num_steps: int) -> list[str]:
    names = [*TEXTS[:-1], *[EVERYDAY] * EPOCHS_OF_EVERYDAY]
    learned, valid, tests = (_pairs(each, "$DRAGOMAN_DATA", data, direction) for each in (names, [VALIDATION], TESTS))
    files = {"": learned.with_pairs(hardened), "valid_": valid, "test_": tests}
    sides = ((f"data.{kind}{side}", names) for kind, pairs in files.items() for side, names in pairs._asdict().items())
    return [
        *(f"{setting}={json.dumps(names)}" for setting, names in sides),
        f"train.max_steps={num_steps}",
        # few checkpoints: the validation of one takes as long as 150 steps
        f"train.save_every={max(1, num_steps // 6)}",
    ]


def complete(direction: str, data: Path, out: Path) -> None:
    """A model as it is shipped."""
    model = out / "models" / direction
    if not (model / "config.toml").exists():
        _dragoman("compress", "--model", out / direction, "--out", model)
    real, valid = (_pairs(names, str(data), data, direction) for names in (TEXTS, [VALIDATION]))
    if not (model / "target.words.xz").exists():
        _dragoman("words", "--model", model, *_options("--source", real.source), *_options("--target", real.target))
    if not (model / "confidence.json").exists():
        _dragoman("calibrate", "--model", model, "--source", *valid.source, "--reference", *valid.target)


def _options(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _dragoman(*arguments: Any) -> None:
    """Run a command in a process of its own, with its output in this one's."""
    code = subprocess.run([sys.executable, "-m", "dragoman", *map(str, arguments)], check=False).returncode
    if code:
        error = DragomanError(f"dragoman {arguments[0]} ended with exit code {code}; its message is above")
        error.exit_code = max(1, code)
        raise error


@contextmanager
def timed(what: str, out: Path) -> Iterator[None]:
    """Say what is done, and how long it took; OUT/minutes.json has it too, of all commands together."""
    steps.say(what)
    started = time.perf_counter()
    try:
        yield
    finally:
        minutes = (time.perf_counter() - started) / 60
        place = out / "minutes.json"
        record = json.loads(place.read_text()) if place.exists() else {}
        record[what[:3]] = round(record.get(what[:3], 0.0) + minutes, 2)
        place.write_text(json.dumps(record, indent=1) + "\n")
        steps.say(f"    {minutes:.1f} minutes, {sum(record.values()):.1f} in all")


if __name__ == "__main__":
    steps.run_command(command)
