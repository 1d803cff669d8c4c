"""Synthetic training pairs for input that corpora lack: new names, code, addresses, emoji, upper case, misspelt words.

    python recipes/hardening.py --source F --target F --languages en de --out DIR [--share 0.2] [--seed 1]

Each pair is made from a real one by a rule. Most put something invented in the place of a name or number that both
sides have in common, so that a model learns to copy what it does not know; a word in common is the only hint which
words belong together. Others change the form: upper case, quotes, spelling, several sentences in one line.

Writes DIR/source and DIR/target, to be listed beside the real text in `data.source` and `data.target`, and
DIR/rules.json, which says how many pairs each rule made. The same text and seed give the same pairs.
"""

import functools
import itertools
import json
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import date as calendar_date
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import steps
import typer

from dragoman import ConfigError, DataError
from dragoman.data.corpus import content_hash, read_lines
from dragoman.files import lock_directory

MONTHS = {
    "en": ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December"),
    "de": ("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November",
           "Dezember"),
}  # fmt: skip
QUOTES = {  # the styles of each language, in the same order
    "en": (("“", "”"), ('"', '"'), ("‘", "’"), ("“", "”")),
    "de": (("„", "“"), ('"', '"'), ("‚", "‘"), ("»", "«")),
}
UNITS = (
    "mm", "cm", "m", "km", "m²", "km²", "ha", "mg", "g", "kg", "t", "ml", "l", "m³", "Hz", "kHz", "MHz", "GHz",
    "KB", "MB", "GB", "TB", "Mbit/s", "V", "A", "W", "kW", "MW", "kWh", "TWh", "bar", "hPa", "°C", "°F", "K", "%",
    "‰", "dB", "N", "Nm", "J", "kJ", "kcal", "km/h", "m/s", "px", "µg",
)  # fmt: skip
VOWELS = ("a", "e", "i", "o", "u", "ou", "ie", "y", "ä", "é", "ø", "à", "ü", "è", "ó", "ã", "ı")
CONSONANTS = "bcdfghjklmnpqrstvwxzbdfgklmnprstščłñćńş"
EMOJI = [chr(code) for start, end in ((0x1F300, 0x1F3FB), (0x1F400, 0x1F650), (0x1F680, 0x1F700), (0x1F900, 0x1FA00),
         (0x2600, 0x2700)) for code in range(start, end)]  # fmt: skip
PEOPLE, SKINS = "👦👧👨👩👶👋👍👎👏💪🙏🤝🙌👌🤷🤦🏃💃", [chr(code) for code in range(0x1F3FB, 0x1F400)]
JOINER, COLOURED = "\u200d", "\ufe0f"  # one emoji of several, and the variant in colour
FIRST_DAY, DAYS = calendar_date(1500, 1, 1), 237_000  # to 2148
RECORD = "rules.json"
MOST_SENTENCES, MOST_CHARACTERS = 5, 600  # of a line that is put together
_COMMON = re.compile(r"(?<![\w-])(?<!\d[.,:])(?:[A-Z][a-z]{2,}|\d{1,4})(?![\w-]|[.,:]\d)")


class Pair(NamedTuple):
    source: str
    target: str


class Languages(NamedTuple):
    source: str
    target: str


class Context(NamedTuple):
    chance: random.Random
    languages: Languages


Rule = Callable[[Pair, Context], Pair | None]


# Something invented


def word(chance: random.Random) -> str:
    syllables = (chance.choice(CONSONANTS) + chance.choice(VOWELS) for _ in range(chance.randint(1, 4)))
    return "".join(syllables) + chance.choice(["", "", chance.choice(CONSONANTS)])


def name(chance: random.Random) -> str:
    return " ".join(word(chance).capitalize() for _ in range(chance.choice([1, 1, 2, 2, 3])))


def term(chance: random.Random) -> str:
    """A product, a model, an abbreviation."""
    one, two = word(chance), word(chance)
    return chance.choice(
        [one.upper()[:5], one.capitalize() + two.capitalize(), f"{one.capitalize()}-{chance.randint(1, 999)}",
         f"{one.capitalize()} {chance.randint(2, 20)}", f"{two[0]}{one.capitalize()}", f"{one}{two}",
         f"{one.upper()}-{chance.randint(1, 99)}", f"{one.capitalize()}{chance.choice('™®©+')}"]
    )  # fmt: skip


def address(chance: random.Random) -> str:
    one, two, three = (_ascii(word(chance)) for _ in range(3))
    host = f"{one}{chance.choice(['', '-' + two])}.{chance.choice(['com', 'net', 'eu', 'io', 'at', 'info', 'gov'])}"
    path = "/".join([host, *(_ascii(word(chance)) for _ in range(chance.randint(0, 3)))])
    query = f"?{three}={chance.randint(0, 10**6)}" if chance.random() < 0.3 else ""
    person = f"{three}{chance.choice(['', f'.{two}', f'_{two}', f'-{two}'])}"
    return chance.choice(
        [f"https://{path}{query}", f"http://{path}", f"www.{path}", f"{person}@{host}", f"{person}@{host}"]
    )


def code(chance: random.Random) -> str:
    one, two = _ascii(word(chance)), _ascii(word(chance))
    number = chance.randint(0, 9999)
    return chance.choice(
        [f"{one}({two})", f"{one}.{two}()", f"{one}_{two}", f"-{one[0]}", f"--{one}={number}", f"~/{one}/{two}.txt",
         f"C:\\{one.capitalize()}\\{two}", f"{one}.py", f"{two}_{number}.csv", f"{one.upper()}_{number}", f"<{one}>",
         f"{chance.randint(0, 99)}.{chance.randint(0, 99)}.{number}", f"#{number:x}", f"{one}::{two}", f"{one}[{two}]",
         f"--{one}-{two}", f"/{two}/{one}/{two}", f"{one}_{two}_{one}", f"{one.upper()}_{two.upper()}",
         f"{two}-{one}.json", f"{one} <= {number}", f"{one} ≥ {number}", f"{one} → {two}",
         f"{number} × {chance.randint(1, 99)}", f"${one}", f"{one}={two}", f"{one} && {two}",
         f"{{{one}}}", f"{one}.{two}.{one}"]
    )  # fmt: skip


def phrase(chance: random.Random) -> str:
    """Words of a language that neither side knows."""
    return " ".join(word(chance) for _ in range(chance.randint(1, 4)))


def _ascii(text: str) -> str:
    return text.encode("ascii", "ignore").decode() or "x"


def copied(new: Callable[[random.Random], str]) -> Rule:
    """Something that is the same on both sides."""

    def rule(pair: Pair, context: Context) -> Pair | None:
        if not _in_common(pair, digits=False):
            return None
        text = new(context.chance)
        return in_place_of_common(pair, context.chance, Pair(text, text), digits=False)

    return rule


def in_place_of_common(pair: Pair, chance: random.Random, new: Pair, *, digits: bool) -> Pair | None:
    """Put something in place of a name, or of a number, that occurs once on both sides."""
    words = _in_common(pair, digits=digits)
    if not words:
        return None
    old = chance.choice(words)
    return Pair(*(side.replace(old, text) for side, text in zip(pair, new, strict=True)))


@functools.lru_cache(2)
def _in_common(pair: Pair, *, digits: bool) -> list[str]:
    """Names, or numbers, that occur once on both sides."""
    words = dict.fromkeys(_COMMON.findall(pair.source))
    return [each for each in words if each.isdigit() == digits and all(_is_once(each, side) for side in pair)]


def _is_once(text: str, side: str) -> bool:
    """As a whole word, and in no other."""
    start = side.find(text)
    end = start + len(text)
    around = side[max(0, start - 1) : max(0, start)] + side[end : end + 1]
    return start >= 0 and side.find(text, start + 1) < 0 and not any(one.isalnum() or one == "_" for one in around)


def quoted(pair: Pair, context: Context) -> Pair | None:
    """A title, words of an interface or of another language, in the quotes of each language."""
    chance = context.chance
    text = chance.choice([name, term, phrase])(chance)
    sides = (f"{opening}{text}{closing}" for opening, closing in _quotes(context))
    return in_place_of_common(pair, chance, Pair(*sides), digits=False)


def _quotes(context: Context) -> list[tuple[str, str]]:
    """Of one style in both languages. The last is another way to write German: translations do not have it."""
    styles = len(QUOTES["en"]) - (context.languages.source == "en")
    style = context.chance.randrange(styles)
    return [QUOTES[language][style] for language in context.languages]


# Numbers


def number(pair: Pair, context: Context) -> Pair | None:
    chance = context.chance
    value = chance.choice([chance.randint(0, 99), chance.randint(100, 9_999), chance.randint(10_000, 99_999_999)])
    text = chance.choice(
        [f"{value}", f"{value:,}", f"{value:,}", f"{value / 10:,.1f}", f"{value / 100:,.2f}", f"{value / 10:.1f}"]
    )
    return in_place_of_common(pair, chance, _written(text, context.languages), digits=True)


def measure(pair: Pair, context: Context) -> Pair:
    chance = context.chance
    text = chance.choice([f"{chance.randint(1, 9999)}", f"{chance.randint(0, 999)}.{chance.randint(0, 99)}"])
    unit, space = chance.choice(UNITS), chance.choice([" ", " ", " ", ""])
    sides = _written(text, context.languages)
    return beside(pair, chance, Pair(*(f"{side}{space}{unit}" for side in sides)))


def _written(text: str, languages: Languages) -> Pair:
    """A number as English writes it, in both languages."""
    swapped = text.translate(str.maketrans(",.", ".,"))
    return Pair(*(text if language == "en" else swapped for language in languages))


def date(pair: Pair, context: Context) -> Pair:
    chance = context.chance
    found = FIRST_DAY + timedelta(chance.randrange(DAYS))
    if chance.random() < 0.4:
        text = found.strftime(chance.choice(["%Y-%m-%d", "%d.%m.%Y", "%Y/%m"]))
        return beside(pair, chance, Pair(text, text))
    sides = (
        f"{found.day}{'' if each == 'en' else '.'} {MONTHS[each][found.month - 1]} {found.year}"
        for each in context.languages
    )
    return beside(pair, chance, Pair(*sides))


def beside(pair: Pair, chance: random.Random, new: Pair) -> Pair:
    """Put something before a line, or at its end: within it, other words would have to agree with it."""
    if chance.random() < 0.5:
        mark = chance.choice([":", ":", " -", " –", ","])
        return Pair(*(f"{text}{mark} {side}" for text, side in zip(new, pair, strict=True)))
    before, after = chance.choice([("(", ")"), ("(", ")"), (", ", ""), ("- ", "")])
    space = "" if before.startswith(",") else " "
    ends = [side[-1:] if side[-1:] in ".!?" else "" for side in pair]
    return Pair(
        *(
            f"{side.removesuffix(end)}{space}{before}{text}{after}{end}"
            for side, text, end in zip(pair, new, ends, strict=True)
        )
    )


# Another form


def emoji(pair: Pair, context: Context) -> Pair:
    text = "".join(_one_emoji(context.chance) for _ in range(context.chance.choice([1, 1, 1, 2, 3])))
    if context.chance.random() < 0.3:
        return Pair(*(f"{text} {side}" for side in pair))
    return Pair(*(f"{side} {text}" for side in pair))


def _one_emoji(chance: random.Random) -> str:
    """One to a reader: a character, or several that belong together."""
    kind = chance.random()
    if kind < 0.6:
        return chance.choice(EMOJI)
    if kind < 0.7:
        return chance.choice(EMOJI) + COLOURED
    if kind < 0.8:
        return chance.choice(PEOPLE) + chance.choice(SKINS)
    if kind < 0.9:  # a flag: two letters of a country
        return "".join(chr(0x1F1E6 + chance.randrange(26)) for _ in range(2))
    return JOINER.join(chance.choices(PEOPLE[:5], k=chance.randint(2, 3)))


def upper(pair: Pair, _: Context) -> Pair:
    return Pair(*(side.upper() for side in pair))


def in_quotes(pair: Pair, context: Context) -> Pair | None:
    """The whole line in quotes, if it has none."""
    if any(mark in side for side in pair for quotes in QUOTES.values() for both in quotes for mark in both):
        return None
    both = zip(pair, _quotes(context), strict=True)
    return Pair(*(f"{opening}{side}{closing}" for side, (opening, closing) in both))


def without_stop(pair: Pair, _: Context) -> Pair | None:
    """As in headings and chats."""
    if not all(side.endswith(".") for side in pair):
        return None
    return Pair(*(side.removesuffix(".") for side in pair))


def misspelt(pair: Pair, context: Context) -> Pair | None:
    """The source with a letter too many, too few or in the wrong place; the target as it was.

    Capitalized words are left alone: correcting them would teach a model to rewrite names that it does not know.
    """
    chance, words = context.chance, pair.source.split(" ")
    ordinary = [place for place, each in enumerate(words) if each.isalpha() and each[0].islower()]
    long = [place for place in ordinary if len({*words[place][1:]}) > 1 and len(words[place]) > 3]
    if not long:
        return None
    for place in chance.sample(long, k=min(len(long), chance.choice([1, 1, 2]))):
        text = words[place]
        at = chance.choice([at for at in range(1, len(text) - 1) if text[at] != text[at + 1]])
        start, here, following, end = text[:at], text[at], text[at + 1], text[at + 2 :]
        letters = chance.choice([following + here, following, here + here + following])
        words[place] = start + letters + end
    return Pair(" ".join(words), pair.target)


COPYING: dict[str, Rule] = {
    "name": copied(name),
    "term": copied(term),
    "address": copied(address),
    "code": copied(code),
    "quoted": quoted,
    "number": number,
}
FORMS: dict[str, Rule] = {
    "date": date,
    "measure": measure,
    "emoji": emoji,
    "upper": upper,
    "in quotes": in_quotes,
    "without stop": without_stop,
    "misspelt": misspelt,
}
SEVERAL = "several sentences"
RULES = {**COPYING, **FORMS}
TRIED = 2  # times the share of pairs, to copy something into: only about a quarter have a name or number in common


def harden(pairs: Iterator[Pair], languages: Languages, share: float, seed: int) -> Iterator[tuple[str, Pair]]:
    """The name of a rule, and what it made of a pair, for about `share` of the pairs; for fewer if that is much."""
    before: deque[Pair] = deque(maxlen=MOST_SENTENCES)
    for place, pair in enumerate(pairs):
        chance = random.Random(f"{seed} {place}")
        before.append(pair)
        kinds = _shuffled([*COPYING], chance) if chance.random() < TRIED * share else []
        kinds += _shuffled([*FORMS, SEVERAL], chance) if chance.random() < share / 2 else []
        for kind in kinds:
            made = several([*before], chance) if kind == SEVERAL else RULES[kind](pair, Context(chance, languages))
            if made is not None:
                yield kind, made
                break


def _shuffled(kinds: list[str], chance: random.Random) -> list[str]:
    return chance.sample(kinds, len(kinds))


def several(before: Sequence[Pair], chance: random.Random) -> Pair | None:
    """The last few pairs as one line."""
    own = before[-chance.randint(2, MOST_SENTENCES) :]
    made = Pair(*(" ".join(side) for side in zip(*own, strict=True)))
    return made if len(own) > 1 and max(map(len, made)) <= MOST_CHARACTERS else None


def command(
    source: steps.Source,
    target: steps.Target,
    languages: Annotated[tuple[str, str], typer.Option(metavar="SOURCE TARGET", help="Of en and de.")],
    out: steps.Out,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="How many pairs to make for each real one; few above a quarter.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Another seed makes other pairs.")] = 1,
) -> None:
    """Write synthetic training pairs for input that corpora lack."""
    for language in languages:
        if language not in MONTHS:
            raise ConfigError(f"--languages: {language} has no dates and quotes here; use {' or '.join(MONTHS)}")
    if len(source) != len(target):
        raise ConfigError(f"--source: {len(source)} files, and {len(target)} of --target; give one for each")
    with lock_directory(out):
        count = write_pairs(source, target, Languages(*languages), out, share, seed)
    steps.say(f"{count:,} pairs in {out}")


def write_pairs(
    source: Sequence[str], target: Sequence[str], languages: Languages, out: Path, share: float, seed: int
) -> int:
    """Write the pairs and the record of them, which comes last; return how many there are."""
    counts: Counter[str] = Counter()
    with steps.replacing(out / "source") as sources, steps.replacing(out / "target") as targets:
        for kind, made in harden(_read(source, target), languages, share, seed):
            counts[kind] += 1
            sources.write(made.source + "\n")
            targets.write(made.target + "\n")
    record = {**_about(source, target, languages, share, seed), "pairs": counts}
    with steps.replacing(out / RECORD) as file:
        file.write(json.dumps(record, indent=1) + "\n")
    return counts.total()


def provide_pairs(
    source: Sequence[str], target: Sequence[str], languages: Languages, out: Path, share: float, seed: int = 1
) -> None:
    """Write the pairs, unless there are those of this text, share and seed."""
    made_from = _about(source, target, languages, share, seed)
    if not (out / RECORD).exists() or not made_from.items() <= json.loads((out / RECORD).read_text()).items():
        write_pairs(source, target, languages, out, share, seed)


def _about(
    source: Sequence[str], target: Sequence[str], languages: Languages, share: float, seed: int
) -> dict[str, Any]:
    """What the pairs depend on."""
    texts = {side: content_hash([*map(Path, paths)]) for side, paths in (("source", source), ("target", target))}
    return {**texts, "languages": [*languages], "share": share, "seed": seed}


def _read(sources: Sequence[str], targets: Sequence[str]) -> Iterator[Pair]:
    """Pairs of which both sides are text."""
    for paths in zip(sources, targets, strict=True):
        sides = itertools.zip_longest(*(read_lines(Path(path)) for path in paths))
        for place, lines in enumerate(sides, start=1):
            if None in lines:
                raise DataError(f"{paths[0]}, {paths[1]}: one ends before line {place}; both need as many lines")
            if not any(line.problem or not line.text.strip() for line in lines):
                yield Pair(*(line.text for line in lines))


if __name__ == "__main__":
    steps.run_command(command)
