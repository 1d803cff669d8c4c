"""English to German and German to English, from text to int8 weights, with one command.

    python recipes/both_directions.py --data FOLDER [--direction de-en] [--out runs/both-directions]
        [--set train.seed=2 ...]

1. OUT/hardened: pairs for input that the corpora lack (hardening.py).
2. OUT/en-de, OUT/de-en: a model for each direction, from the real pairs and these; one after the other.
3. OUT/models: the same in int8, with the words that they have read and the confidence of their translations.

Run the same command again to resume. Each step prints its minutes. What was measured: docs/lab/recipes.md.
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import english_german
import steps
import typer
from english_german import DIRECTIONS, FOLDER, LANGUAGES, TEXTS, VALIDATION, Pairs, pairs_of

from dragoman import ConfigError
from dragoman.bundle import save_words
from dragoman.files import lock_directory
from dragoman.text.words import KnownWords

RECIPE = Path(__file__).with_suffix(".toml")


def command(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory of everything that is made.")] = Path(
        "runs/both-directions"
    ),
    direction: Annotated[list[str] | None, typer.Option(help="en-de or de-en.  [default: both]")] = None,
    num_steps: Annotated[int, typer.Option("--steps", min=1, help="Of the training of each model.")] = 36_000,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Hardened pairs for each real one.")] = 0.12,
    jobs: Annotated[int, typer.Option(min=1, help="Models trained at the same time, of two.")] = 1,
    settings: steps.Settings = None,
) -> None:
    """Train a model for each direction."""
    directions = direction or DIRECTIONS
    for each in directions:
        if each not in DIRECTIONS:
            raise ConfigError(f"--direction {each}: unknown direction; use {' or '.join(DIRECTIONS)}")
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder; it is where the corpora are")
    with lock_directory(out):
        with steps.timed("1/3 hardening", out):
            hardened = {
                each: english_german.harden(pairs_of(TEXTS, data, each), each, out / "hardened" / each, share)
                for each in directions
            }
        with ProcessPoolExecutor(len(LANGUAGES)) as pool:  # they count words while the models are trained
            words = {code: pool.submit(english_german.words_of, code, data) for code in LANGUAGES}
            with steps.timed(f"2/3 training {' and '.join(str(out / each) for each in directions)}", out):
                rows = {
                    each: [*_settings(each, data, hardened[each], num_steps), *(settings or ())] for each in directions
                }
                steps.train_rows(rows, RECIPE, data, out, jobs, [])
            with steps.timed(f"3/3 completing {out / 'models'}", out):
                for each in directions:
                    known = KnownWords(*(words[code].result() for code in each.split("-")))
                    complete(each, data, out, known)
    steps.say(f'next: dragoman translate --model {out / "models" / directions[0]} "some text"')


def _settings(direction: str, data: Path, hardened: Pairs, num_steps: int) -> list[str]:
    real = english_german.repeat_everyday(pairs_of(TEXTS, data, direction, FOLDER))
    return [
        *english_german.data_settings(real.with_pairs(hardened), data, direction),
        *steps.length_settings(num_steps),
    ]


def complete(direction: str, data: Path, out: Path, known: KnownWords) -> None:
    """A model as it is shipped."""
    model, valid = out / "models" / direction, pairs_of([VALIDATION], data, direction)
    steps.compress(out / direction, model)
    save_words(model, known)
    steps.run_dragoman("calibrate", "--model", model, "--source", *valid.source, "--reference", *valid.target)


if __name__ == "__main__":
    steps.run_command(command)
