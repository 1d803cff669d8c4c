"""Generated corpora of any size, and their files. Knows nothing of tokenizers or models.

Every task is a function from source to target, so exact match is a fair measure. For one seed, a larger corpus
extends a smaller one: the same validation and test sets, and the smaller training set as a prefix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, partial
from pathlib import Path

import numpy as np

from dragoman.config import require
from dragoman.errors import suggestion
from dragoman.files import make_directory, write_file

Pair = tuple[str, str]

HELD_OUT = 1_000  # pairs in each of valid and test
HELD_OUT_SHARE = 0.1  # of the draws, until valid and test are full

SYMBOLS = tuple("abcdefghijklmnopqrst")
SHORTEST, LONGEST = 3, 10  # symbols in a sequence

MOST_DIGITS = 6  # in a number
DATE_SHARE = 0.2
# The Thai year began in April until 1940, so only from 1941 on is its number always the Gregorian one + 543.
FIRST_DAY, LAST_DAY = date(1950, 1, 1), date(2049, 12, 31)
DAYS = (LAST_DAY - FIRST_DAY).days + 1
BUDDHIST_YEARS = 543


@dataclass(frozen=True)
class Task:
    """A corpus to draw from; its languages are also the suffixes of its files."""

    name: str
    source_language: str
    target_language: str
    description: str
    pair: Callable[[np.random.Generator], Pair]
    distinct: int  # how many sources there are


@dataclass(frozen=True)
class Splits:
    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


@dataclass(frozen=True)
class GeneratedFiles:
    train_source: Path
    train_target: Path
    valid_source: Path
    valid_target: Path
    test_source: Path
    test_target: Path


def generate(name: str, size: int, seed: int = 1) -> Splits:
    """Generate `size` training pairs and 1,000 each for validation and test, all sources distinct; a pure function."""
    task = _task(name)
    # Half: near the end of its sources, a task would draw almost only duplicates.
    most = task.distinct // 2 - 2 * HELD_OUT
    require(
        1 <= size <= most,
        f"data.generated_size: {size:,} pairs of {name} cannot be drawn; it has {task.distinct:,} distinct sources, "
        f"half of them are used, {2 * HELD_OUT:,} are held out: use 1 to {most:,}",
    )
    generator = np.random.default_rng(seed)
    seen: set[str] = set()
    train: list[Pair] = []
    held_out: list[Pair] = []
    while len(train) < size or len(held_out) < 2 * HELD_OUT:
        pair = task.pair(generator)
        if pair[0] in seen:
            continue
        seen.add(pair[0])
        # Picked from the draws, not before them: otherwise the few short sources would all be held out.
        if len(held_out) < 2 * HELD_OUT and generator.random() < HELD_OUT_SHARE:
            held_out.append(pair)
        elif len(train) < size:
            train.append(pair)
    return Splits(train, held_out[::2], held_out[1::2])  # alternating: short sources come early


def write(name: str, size: int, directory: Path, seed: int = 1) -> GeneratedFiles:
    """Write the corpus as `train.en`, `train.de`, `valid.en` ... in `directory`; correct files are left alone."""
    task = _task(name)
    splits = generate(name, size, seed)
    paths: list[Path] = []
    for split, pairs in (("train", splits.train), ("valid", splits.valid), ("test", splits.test)):
        for side, language in enumerate((task.source_language, task.target_language)):
            path = directory / f"{split}.{language}"
            _write_lines(path, [pair[side] for pair in pairs])
            paths.append(path)
    return GeneratedFiles(*paths)


def _task(name: str) -> Task:
    require(name in TASKS, f"data.generated: no corpus {name!r}; {suggestion(name, TASKS)}")
    return TASKS[name]


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    if not path.is_file() or path.read_bytes() != content:
        make_directory(path.parent)
        write_file(path, content)


# Sequences of letters


def _sequence_pair(generator: np.random.Generator, rearrange: Callable[[list[str]], list[str]]) -> Pair:
    length = generator.integers(SHORTEST, LONGEST + 1)
    symbols = [SYMBOLS[index] for index in generator.integers(len(SYMBOLS), size=length)]
    return " ".join(symbols), " ".join(rearrange(symbols))


def _reversed(symbols: list[str]) -> list[str]:
    return symbols[::-1]


# Numbers and dates


def spell_number(number: int, language: str) -> str:
    """Spell 1 to 999,999 in words, in "en", "de" or "th"."""
    rest = number % 1000
    if rest in (0, number):
        return _spell(number, language)
    thousands = _spell(number - rest, language)
    if language == "en":
        return thousands + (", " if rest >= 100 else " and ") + _spell(rest, language)
    if language == "th" and rest == 1:
        return thousands + "เอ็ด"  # one, when something precedes it
    return thousands + _spell(rest, language)


@cache  # num2words takes 0.1 ms per number; whole thousands and numbers below 1,000 are only 1,998
def _spell(number: int, language: str) -> str:
    from num2words import num2words

    words = str(num2words(number, lang=language))
    # num2words 0.5.14 writes "einhunderteinstausend" for 101,000; inside a number it is "ein".
    return words.replace("einstausend", "eintausend")


@cache
def _spell_ordinal(number: int, language: str) -> str:
    from num2words import num2words

    return str(num2words(number, lang=language, to="ordinal"))


@cache
def _month_names(language: str) -> dict[int, str]:
    from babel.dates import get_month_names

    return dict(get_month_names("wide", locale=language))


@cache
def _weekday_names(language: str) -> dict[int, str]:
    from babel.dates import get_day_names

    return dict(get_day_names("wide", locale=language))


def english_dates(day: date) -> tuple[str, str, str]:
    """Three ways to write a date; a target language has one translation for each."""
    month, weekday = _month_names("en")[day.month], _weekday_names("en")[day.weekday()]
    return (
        f"{weekday}, {month} {day.day}, {day.year}",
        f"{day.day} {month} {day.year}",
        f"the {_spell_ordinal(day.day, 'en')} of {month} {day.year}",
    )


def german_dates(day: date) -> tuple[str, str, str]:
    month, weekday = _month_names("de")[day.month], _weekday_names("de")[day.weekday()]
    return (
        f"{weekday}, {day.day}. {month} {day.year}",
        f"{day.day}. {month} {day.year}",
        f"der {_spell_ordinal(day.day, 'de')} {month} {day.year}",
    )


def thai_dates(day: date) -> tuple[str, str, str]:
    month, weekday = _month_names("th")[day.month], _weekday_names("th")[day.weekday()]
    year = day.year + BUDDHIST_YEARS  # Babel has no Buddhist calendar
    return (
        f"{weekday}ที่ {day.day} {month} {year}",
        f"{day.day} {month} {year}",
        f"วันที่ {day.day} {month} {year}",
    )


def _number_or_date_pair(
    generator: np.random.Generator, language: str, dates: Callable[[date], tuple[str, str, str]]
) -> Pair:
    if generator.random() < DATE_SHARE:
        day = FIRST_DAY + timedelta(days=int(generator.integers(DAYS)))
        form = generator.integers(3)
        return english_dates(day)[form], dates(day)[form]
    digits = int(generator.integers(1, MOST_DIGITS + 1))  # first, so that small numbers are as frequent as large ones
    number = int(generator.integers(10 ** (digits - 1), 10**digits))
    return spell_number(number, "en"), spell_number(number, language)


_SEQUENCES = sum(len(SYMBOLS) ** length for length in range(SHORTEST, LONGEST + 1))
_PHRASES = 10**MOST_DIGITS - 1 + 3 * DAYS


def _sequence_task(name: str, description: str, rearrange: Callable[[list[str]], list[str]]) -> Task:
    pair = partial(_sequence_pair, rearrange=rearrange)
    return Task(name, "source", "target", description, pair, _SEQUENCES)


def _numbers_task(language: str, language_name: str, dates: Callable[[date], tuple[str, str, str]]) -> Task:
    pair = partial(_number_or_date_pair, language=language, dates=dates)
    description = f"English numbers and dates into {language_name}"
    return Task(f"numbers-{language}", "en", language, description, pair, _PHRASES)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _sequence_task("copy", "letters, as they are", list),
        _sequence_task("reverse", "letters, last to first", _reversed),
        _sequence_task("sort", "letters, in the order of the alphabet", sorted),
        _numbers_task("de", "German", german_dates),
        _numbers_task("th", "Thai", thai_dates),
    )
}
