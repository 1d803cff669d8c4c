"""English to German and German to English, from text to int8 weights, with one command.

    python recipes/both_directions.py --data FOLDER [--direction de-en [--reverse NAME|DIR] [--teacher NAME|DIR]
        [--from NAME|DIR]] [--out runs/both-directions] [--set train.seed=2 ...]

For each direction, one after the other:

1. OUT/reverse/de-en: for en-de, a small model of the other direction, unless --reverse gives one.
2. OUT/back-translated/en-de: the target text, and its translation by that model as the source.
   OUT/nearest/en-de: with --teacher, its translations that are nearest to what people wrote (nearest.py).
   Of both, with-names has the translations in which no name is lost.
   OUT/hardened/en-de: pairs for input that the corpora lack (hardening.py).
3. OUT/en-de: the model, from the real pairs and all of these.
4. OUT/models/en-de: the same in int8, with the words that it has read and the confidence of its translations.

Run the same command again to resume. Each step prints its minutes. `--from en-de --teacher en-de` trains a model
further, on its own translations too. What was measured: docs/lab/recipes.md.
"""

import tomllib
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import english_german
import steps
import typer
from english_german import DIRECTIONS, FOLDER, LANGUAGES, TEXTS, VALIDATION, Pairs, pairs_of, repeat_everyday

from dragoman import ConfigError, ModelError
from dragoman.bundle import CONFIG, languages_of, load_config, resolve_model, save_words
from dragoman.files import lock_directory
from dragoman.text.words import KnownWords, WordList

RECIPE = Path(__file__).with_suffix(".toml")
EPOCHS_OF_EVERYDAY_TRANSLATED = 3  # as EPOCHS_OF_EVERYDAY, of pairs with a side that a model translated
REVERSE_SIZE = (
    "model.d_model=256", "model.d_ff=1024", "model.num_heads=4", "model.num_layers=6", "model.decoder_num_layers=2",
)  # fmt: skip
STEPS_PER_REVERSE_STEP = 5  # a smaller model learns faster, and its mistakes are only ever sources


class Work(NamedTuple):
    """What the steps of a direction have in common."""

    direction: str
    data: Path
    out: Path
    num_steps: int
    share: float  # of hardened pairs
    settings: Sequence[str]
    teacher: str | None = None
    start: str | None = None  # the model to train further

    @property
    def reverse_direction(self) -> str:
        return _reversed(self.direction)

    @property
    def real(self) -> Pairs:
        return pairs_of(TEXTS, self.data, self.direction)


def command(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory of everything that is made.")] = Path(
        "runs/both-directions"
    ),
    direction: Annotated[list[str] | None, typer.Option(help="en-de or de-en.  [default: both]")] = None,
    reverse: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR", help="A model of the other direction.  [default: a small one is trained]"),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR", help="A model of this direction, to learn from its translations too."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="NAME|DIR", help="A model of this direction, to train further.")
    ] = None,
    num_steps: Annotated[int, typer.Option("--steps", min=1, help="Of the training of each model.")] = 32_000,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Hardened pairs for each real one.")] = 0.12,
    settings: steps.Settings = None,
) -> None:
    """Train a model for each direction."""
    directions = direction or DIRECTIONS
    for each in directions:
        if each not in DIRECTIONS:
            raise ConfigError(f"--direction {each}: unknown direction; use {' or '.join(DIRECTIONS)}")
    models = {"--reverse": reverse, "--teacher": teacher, "--from": start}
    for option, model in models.items():
        if model and len(directions) > 1:
            raise ConfigError(f"{option} {model}: translates one direction; add --direction")
        if model:
            check_model(option, model, _reversed(directions[0]) if option == "--reverse" else directions[0])
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder; it is where the corpora are")
    with lock_directory(out), ProcessPoolExecutor(len(LANGUAGES), mp_context=english_german.FRESH) as pool:
        # counted while models translate
        words = {code: pool.submit(english_german.words_of, code, data) for code in LANGUAGES}
        for each in directions:
            make(Work(each, data, out, num_steps, share, settings or (), teacher, start), reverse, words)
    steps.say(f'next: dragoman translate --model {out / "models" / directions[0]} "some text"')


def check_model(option: str, model: str, direction: str) -> None:
    """Before minutes of work."""
    place = resolve_model(model)
    if not (place / CONFIG).exists():
        raise ModelError(f"{option} {model}: no such model; give another or leave it out")
    source, target = languages_of(load_config(place).data)
    if target and f"{source}-{target}" != direction:
        raise ConfigError(f"{option} {model}: translates {source} to {target}; give one for {direction}")


def make(work: Work, reverse: str | None, words: dict[str, "Future[WordList]"]) -> None:
    """The four steps of a direction."""
    direction, out = work.direction, work.out
    with steps.timed(f"{direction}:1/4 reverse model: {reverse or _reverse_run(work)}", out):
        if not reverse:
            train_reverse(work)
            reverse = str(_reverse_run(work))
    with steps.timed(f"{direction}:2/4 translating; hardening", out), ThreadPoolExecutor() as pool:
        translated = pool.submit(
            english_german.translate, reverse, work.real.target, out / "back-translated" / direction, None
        )
        if work.teacher:
            chosen = pool.submit(english_german.provide_nearest, work.teacher, work.real, out / "nearest" / direction)
        hardened = english_german.harden(work.real, direction, out / "hardened" / direction, work.share)
        known = KnownWords(*(words[code].result() for code in direction.split("-")))
        by_models = [
            keep_names(
                translated.result(), KnownWords(known.target, known.source), out / "back-translated" / direction
            ).swapped()
        ]
        if work.teacher:
            kept = keep_names(Pairs(work.real.source, chosen.result()), known, out / "nearest" / direction)
            by_models.append(Pairs(pairs_of(TEXTS, work.data, direction, FOLDER).source, kept.target))
    with steps.timed(f"{direction}:3/4 training {out / direction}", out):
        train(work, by_models, hardened)
    with steps.timed(f"{direction}:4/4 completing {out / 'models' / direction}", out):
        complete(work, known)


def keep_names(pairs: Pairs, known: KnownWords, out: Path) -> Pairs:
    """Pairs of texts and translations by a model, without those that have lost a name."""
    return Pairs(pairs.source, english_german.drop_lost_names(pairs.source, pairs.target, known, out / "with-names"))


def _reversed(direction: str) -> str:
    return "-".join(reversed(direction.split("-")))


def _reverse_run(work: Work) -> Path:
    return work.out / "reverse" / work.reverse_direction


def train_reverse(work: Work) -> None:
    """Train a small model of the other direction."""
    direction, run = work.reverse_direction, _reverse_run(work)
    real = repeat_everyday(pairs_of(TEXTS, work.data, direction, FOLDER))
    num_steps = max(1, work.num_steps // STEPS_PER_REVERSE_STEP)
    row = [*english_german.data_settings(real, work.data, direction, ()), *steps.length_settings(num_steps)]
    steps.train_rows({run.name: [*row, *REVERSE_SIZE, *work.settings]}, RECIPE, work.data, run.parent, 1, [])


def train(work: Work, by_models: Sequence[Pairs], hardened: Pairs) -> None:
    made = [repeat_everyday(pairs, EPOCHS_OF_EVERYDAY_TRANSLATED) for pairs in by_models]
    learned = repeat_everyday(pairs_of(TEXTS, work.data, work.direction, FOLDER)).with_pairs(*made, hardened)
    row = [*english_german.data_settings(learned, work.data, work.direction), *steps.length_settings(work.num_steps)]
    if work.start:
        row += start_settings(work.start)
    steps.train_rows({work.direction: [*row, *work.settings]}, RECIPE, work.data, work.out, 1, [])


def start_settings(start: str) -> list[str]:
    """A model that is trained further keeps its size and its vocabulary, whatever the recipe says."""
    config, recipe = load_config(resolve_model(start)), tomllib.loads(RECIPE.read_text(encoding="utf-8"))
    kept = [(section, name) for section in ("model", "text") for name in recipe[section]]
    values = (f"{section}.{name}={getattr(getattr(config, section), name)}" for section, name in kept)
    return [f"train.start_from={start}", *values]


def complete(work: Work, known: KnownWords) -> None:
    """A model as it is shipped."""
    model, valid = work.out / "models" / work.direction, pairs_of([VALIDATION], work.data, work.direction)
    steps.compress(work.out / work.direction, model)
    save_words(model, known)
    steps.run_dragoman("calibrate", "--model", model, "--source", *valid.source, "--reference", *valid.target)


if __name__ == "__main__":
    steps.run_command(command)
