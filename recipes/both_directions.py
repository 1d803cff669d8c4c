"""English to German and German to English, from text to int8 weights, in 25 minutes on one H200.

    python recipes/both_directions.py --data FOLDER [--out runs/both-directions] [--set train.seed=2 ...]

1. OUT/hardened: pairs for input that the corpora lack (hardening.py).
2. OUT/both: one model that translates in both directions. No tag says which: the language of the source does.
3. OUT/translated: the text of both languages in the other one, by that model.
4. OUT/en-de, OUT/de-en: a model for each direction, which starts from the weights of OUT/both. Beside the real pairs it
   learns from the source with its translation (distillation), and from the target with its translation
   (back-translation).
5. OUT/models: the same in int8.

Run the same command again to resume. Each step prints its minutes. What it reaches: docs/lab/recipes.md.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import hardening
import steps
import typer

from dragoman import ConfigError, DragomanError
from dragoman.data.corpus import read_lines
from dragoman.files import lock_directory

RECIPE = Path(__file__).with_suffix(".toml")
LANGUAGES = ("en", "de")
TEXTS = (*(f"europarl-en-de/train.{part}of4" for part in (1, 2, 3, 4)), "tatoeba-en-de/train")
REPEATED = 1  # text of TEXTS, from the end, that counts twice: the sentences of every day
VALIDATION = "europarl-en-de/valid"
TESTS = ("europarl-en-de/test", "tatoeba-en-de/test", "newstest2014-en-de/test")
FIRST = ("train.learning_rate=8e-4", "train.final_learning_rate=8e-5", "train.warmup_steps=500")
SECOND = ("train.learning_rate=5e-4", "train.warmup_steps=200")


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
    first_steps: Annotated[int, typer.Option(min=1, help="Of the model for both directions.")] = 12_000,
    second_steps: Annotated[int, typer.Option(min=1, help="Of the model for each direction.")] = 7_800,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the pairs, to harden.")] = 0.2,
    jobs: Annotated[int, typer.Option(min=1, help="Models trained at the same time, of two.")] = 2,
    settings: steps.Settings = None,
) -> None:
    """Train a model for each direction, and what both start from."""
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder; it is where the corpora are")
    given = settings or []
    english_german = real_pairs("$DRAGOMAN_DATA", data)
    real = {"en-de": english_german, "de-en": english_german.swapped()}
    with lock_directory(out):
        with timed("1/5 hardening", out):
            hard = {direction: harden(direction, data, out / "hardened", share) for direction in real}
        both = real["en-de"].with_pairs(hard["en-de"], real["de-en"], hard["de-en"])
        with timed(f"2/5 training a model for both directions in {out / 'both'}", out):
            valid = _files(VALIDATION, "$DRAGOMAN_DATA", data)
            chosen = [*_training(both, valid.with_pairs(valid.swapped())), *_steps(first_steps), *FIRST, *given]
            steps.train_rows({"both": chosen}, RECIPE, data, out, 1, [])
        with timed("3/5 translating the text of both languages", out):
            translated = translate(data, out)
        with timed(f"4/5 training a model for each direction in {', '.join(str(out / name) for name in real)}", out):
            rows = {}
            for direction, own in real.items():
                source, target = direction.split("-")
                learned = own.with_pairs(hard[direction], translated[source], translated[target].swapped())
                valid = _direction(_files(VALIDATION, "$DRAGOMAN_DATA", data), direction)
                tests = [_direction(_files(name, "$DRAGOMAN_DATA", data), direction) for name in TESTS]
                rows[direction] = [
                    f"train.start_from={out / 'both'}",
                    *_training(learned, valid),
                    *_pairs("test_", Pairs([], []).with_pairs(*tests)),
                    *_steps(second_steps),
                    *SECOND,
                    *given,
                ]
            steps.train_rows(rows, RECIPE, data, out, jobs, [])
        with timed(f"5/5 compressing into {out / 'models'}", out):
            for direction in real:
                if not (out / "models" / direction / "config.toml").exists():
                    _dragoman("compress", "--model", out / direction, "--out", out / "models" / direction)
    steps.say(f'next: dragoman translate --model {out / "models" / "en-de"} "some text"')


# Text


def real_pairs(folder: str, data: Path) -> Pairs:
    """English to German."""
    counted = [*TEXTS, *TEXTS[-REPEATED:]]
    return Pairs([], []).with_pairs(*(_files(name, folder, data) for name in counted))


def _files(name: str, folder: str, data: Path) -> Pairs:
    """English and German, compressed or not, as paths below a folder; one that is not there is reported later."""
    found = [
        next((suffix for suffix in ("", ".bz2", ".xz", ".gz") if (data / f"{name}.{language}{suffix}").exists()), "")
        for language in LANGUAGES
    ]
    english, german = (f"{folder}/{name}.{code}{suffix}" for code, suffix in zip(LANGUAGES, found, strict=True))
    return Pairs([english], [german])


def _direction(pairs: Pairs, direction: str) -> Pairs:
    return pairs if direction == "en-de" else pairs.swapped()


def harden(direction: str, data: Path, out: Path, share: float) -> Pairs:
    """Pairs made of each text of a direction by itself, at the same time."""
    source, target = direction.split("-")
    languages = hardening.Languages(source, target)
    places = [out / direction / name.replace("/", "-") for name in TEXTS]
    with ProcessPoolExecutor() as pool:
        work = []
        for name, place in zip(TEXTS, places, strict=True):
            pairs = _direction(_files(name, str(data), data), direction)
            if not (place / hardening.RECORD).exists():
                work.append(pool.submit(hardening.write_pairs, *pairs, languages, place, share, 1))
        for each in work:
            each.result()
    return Pairs([str(place / "source") for place in places], [str(place / "target") for place in places])


def translate(data: Path, out: Path) -> dict[str, Pairs]:
    """The text of each language with its translation by the model for both directions."""
    for language in LANGUAGES:
        for number, name in enumerate(TEXTS):
            pairs = _files(name, str(data), data)
            _write_shard(pairs[LANGUAGES.index(language)][0], out / "text" / language / f"{number}.txt")
    with ThreadPoolExecutor(len(LANGUAGES)) as pool:
        folders = {language: (out / "text" / language, out / "translated" / language) for language in LANGUAGES}
        options = ["--model", out / "both", "--beam", "4", "--split", "long", "--protect", "none"]
        [*pool.map(lambda both: _dragoman("translate", "-i", both[0], "-o", both[1], *options), folders.values())]
    return {
        language: Pairs(*([str(folder / f"{number}.txt") for number in range(len(TEXTS))] for folder in both))
        for language, both in folders.items()
    }


def _write_shard(name: str, place: Path) -> None:
    if not place.exists():
        with steps.replacing(place) as stream:
            stream.writelines(line.text + "\n" for line in read_lines(Path(name)))


# Training


def _training(pairs: Pairs, valid: Pairs) -> list[str]:
    return [*_pairs("", pairs), *_pairs("valid_", valid)]


def _pairs(prefix: str, pairs: Pairs) -> list[str]:
    return [f"data.{prefix}{side}={json.dumps(names)}" for side, names in pairs._asdict().items()]


def _steps(number: int) -> list[str]:
    """Few checkpoints: the validation of one takes as long as 150 steps."""
    return [f"train.max_steps={number}", f"train.save_every={max(1, number // 4)}"]


def _dragoman(*arguments: Any) -> None:
    """Run a command in a process of its own, with its output in this one's."""
    code = subprocess.run([sys.executable, "-m", "dragoman", *map(str, arguments)], check=False).returncode
    if code not in (0, 1):  # 1: some lines failed, and their translations are empty
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
