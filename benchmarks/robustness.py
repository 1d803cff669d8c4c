"""What no model can know, and what may not disturb it: about 2,500 cases in nineteen classes, each with a check.

    python -m benchmarks.robustness --data FOLDER [--model en-de ...] [--source en] [--each 135] [--show CLASS] [--json]

Cases are made by rule from lines of the test sets. In some, a name or number that source and reference have in common
is replaced by something invented: another name, code, an address, an interface's words. In others the whole line is
changed: upper case, misspelt words, spaces around it, several sentences in one line. A line that was only disturbed
must keep most of the quality that it has undisturbed, measured by chrF against the reference.

Every model translates in two ways: alone, and with `protect` (decode/keeping.py). The table has the share of cases that
pass, by class.
"""

import argparse
import bz2
import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sacrebleu.metrics.chrf import CHRF

import dragoman
from benchmarks.kept_spans import words_in_both
from dragoman.config import PROTECTED

SETS = ("tatoeba-en-de", "newstest2014-en-de")
WAYS = {"alone": [], "protected": [*PROTECTED]}
LONGEST = 200  # characters of a line that cases are made from
KEPT_QUALITY = 0.8  # of the chrF of the undisturbed line
MONTHS = {
    "en": ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December"),
    "de": ("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November",
           "Dezember"),
}  # fmt: skip
SYLLABLES = (
    "bra", "dok", "fen", "gul", "hin", "jor", "kal", "lem", "mur", "nov", "pek", "ris", "sod", "tul", "wen", "yel",
)  # fmt: skip
ENDINGS = ("an", "ek", "ia", "ino", "ix", "on", "ov", "sen", "us", "yk")
UNITS = ("km", "kg", "mm", "GHz", "MB", "kWh", "°C", "%", "km/h", "ml", "V")
PHRASES = (
    "c'est la vie", "hasta la vista", "carpe diem", "dolce vita", "joie de vivre", "mea culpa", "buenas noches amigo",
    "à la carte", "per aspera ad astra", "bon voyage mes amis", "dzień dobry", "güle güle", "che sarà sarà", "obrigado",
    "veni vidi vici", "wakarimasen deshita", "spasibo bolshoye", "plus ça change", "no pasarán", "ceteris paribus",
)  # fmt: skip
EMOJI = ("😀", "🎉", "👍🏽", "❤️", "🚀", "🇩🇪", "👨‍👩‍👧", "😂😂", "🤷", "☕")
LABELS = ("Archive", "Canvas", "Drafts", "Export", "Gallery", "Inbox", "Layers", "Macro", "Preset", "Queue", "Render")
OPENING, CLOSING = "„“”\"»«‚‘'", "“”\"«»‘’'"
_CHRF = CHRF()


class Outputs(NamedTuple):
    text: str
    undisturbed: str  # the translation of the line that a case was made from; empty if it was not needed


Check = Callable[[Outputs], bool]
Split = Literal["long", "sentences"]


class Case(NamedTuple):
    source: str
    passes: Check
    undisturbed: tuple[str, ...] = ()  # sentences whose translation is to be compared with
    split: Split = "sentences"


class Pair(NamedTuple):
    source: str
    reference: str


def cases(data: Path, language: str, each: int) -> dict[str, list[Case]]:
    """`each` of every class, or as many as the test sets give."""
    other = "de" if language == "en" else "en"
    pairs = [pair for name in SETS for pair in _read(data / name, language, other) if len(pair.source) <= LONGEST]
    found = {}
    for number, (kind, make) in enumerate(CLASSES.items()):
        chance = random.Random(number)
        made = make(chance.sample(pairs, len(pairs)), chance, language, other)
        found[kind] = list(itertools.islice(made, each))
    return found


def _read(folder: Path, *languages: str) -> Iterator[Pair]:
    files = [folder / f"test.{language}.bz2" for language in languages]
    return map(Pair, *(bz2.decompress(file.read_bytes()).decode().splitlines() for file in files))


# Checks


def has_once(span: str) -> Check:
    return lambda out: out.text.count(span) == 1


def matches_once(pattern: str) -> Check:
    compiled = re.compile(pattern)
    return lambda out: len(compiled.findall(out.text)) == 1


def has_number(number: str, languages: Sequence[str]) -> Check:
    """With the separators of the target language, or as it is."""
    language, other = languages
    value = _value(number, language)
    return lambda out: any(each == number or _value(each, other) == value for each in _NUMBER.findall(out.text))


_NUMBER = re.compile(r"\d+(?:[.,' \u00a0\u202f]\d+)*")


def _value(number: str, language: str) -> str:
    point = "." if language == "en" else ","
    return re.sub(rf"[^\d{point}]", "", number).replace(",", ".")


def keeps_quality(reference: str, share: float = KEPT_QUALITY) -> Check:
    return lambda out: _quality(out.text, reference) >= share * _quality(out.undisturbed, reference)


def _quality(text: str, reference: str) -> float:
    return _CHRF.sentence_score(text.casefold(), [reference.casefold()]).score


def is_upper(out: Outputs) -> bool:
    cased = [letter for letter in out.text if letter.isupper() or (letter.islower() and letter != "ß")]
    return sum(map(str.isupper, cased)) >= 0.95 * len(cased)


def is_quoted(out: Outputs) -> bool:
    """As a whole, and nowhere else."""
    inner = out.text[1:-1].rstrip(CLOSING + ".!?")
    has_both = out.text[:1] in OPENING and any(mark in CLOSING for mark in out.text[-2:])
    return has_both and not any(mark in '„“”"»«' for mark in inner)


def both(one: Check, other: Check) -> Check:
    return lambda out: one(out) and other(out)


# Something in place of a word


def _with(pairs: Sequence[Pair], new: Callable[[], str], *, number: bool = False) -> Iterator[tuple[str, str]]:
    """Lines with something new in place of a word that source and reference have in common, and what is new."""
    for pair in pairs:
        words = [word for word in words_in_both(*pair) if word.isdigit() == number]
        if words:
            span = new()
            yield pair.source.replace(words[0], span), span


def _copied(pairs: Sequence[Pair], new: Callable[[], str]) -> Iterator[Case]:
    return (Case(source, has_once(span.strip('"'))) for source, span in _with(pairs, new))


def _name(chance: random.Random) -> str:
    return "".join(chance.choices(SYLLABLES, k=chance.randint(1, 2))).capitalize() + chance.choice(ENDINGS)


def names(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    def new() -> str:
        return " ".join(_name(chance) for _ in range(chance.randint(1, 2)))

    for source, name in _with(pairs, new):
        spelled = name.replace(" ", "[ -]")  # German joins the parts of a compound: Yelon-Bramuran-Straße
        yield Case(source, matches_once(rf"(?<!\w){spelled}(?:s|['’]s?)?(?!\w)"))


def unknown_words(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    def new() -> str:
        one, two = _name(chance), _name(chance)
        return chance.choice([one.upper(), one + two, f"{one}-{chance.randint(2, 99)}", f"i{one}"])

    return _copied(pairs, new)


def numbers(pairs: Sequence[Pair], chance: random.Random, language: str, other: str) -> Iterator[Case]:
    def new() -> str:
        value = chance.choice([chance.randint(11, 9_999), chance.randint(10_000, 9_999_999)])
        found = chance.choice([f"{value}", f"{value:,}", f"{value / 100:,.2f}", f"{value / 10:.1f}"])
        return found if language == "en" else found.translate(str.maketrans(",.", ".,"))

    checked = (language, other)
    return (Case(source, has_number(number, checked)) for source, number in _with(pairs, new, number=True))


def dates(pairs: Sequence[Pair], chance: random.Random, language: str, other: str) -> Iterator[Case]:
    for pair in pairs:
        day, month, year = chance.randint(1, 28), chance.randint(1, 12), chance.randint(1850, 2090)
        ours, theirs = (MONTHS[each][month - 1] for each in (language, other))
        date, pattern = f"{year}-{month:02}-{day:02}", f"(?<!\\d){year}-{month:02}-{day:02}(?!\\d)"
        if chance.random() < 0.5:
            date = f"{day}{'' if language == 'en' else '.'} {ours} {year}"
            of_day = rf"{day}(?:\.|st|nd|rd|th)?"
            pattern = rf"(?<!\d)(?:{of_day} (?:of )?{theirs},? |{theirs} {of_day},? ){year}(?!\d)"
        source = f"{date}: {pair.source}" if chance.random() < 0.5 else f"{pair.source.rstrip('.!?')} ({date})."
        yield Case(source, matches_once(pattern))


def units(pairs: Sequence[Pair], chance: random.Random, language: str, _: str) -> Iterator[Case]:
    for pair in pairs:
        value, unit = (
            chance.choice([f"{chance.randint(2, 950)}", f"{chance.randint(2, 990) / 10}"]),
            chance.choice(UNITS),
        )
        span = f"{value if language == 'en' else value.replace('.', ',')} {unit}"
        source = f"{pair.source.rstrip('.!?')}, {span}." if chance.random() < 0.5 else f"{span} - {pair.source}"
        said = "(?:%|Prozent|per ?cent)" if unit == "%" else re.escape(unit)
        yield Case(source, matches_once(rf"(?<![\d.,]){value.replace('.', '[.,]')}\s?{said}(?!\w)"))


def addresses(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    def new() -> str:
        one, two, number = _name(chance).lower(), _name(chance).lower(), chance.randint(1, 999)
        host = f"{one}.{chance.choice(['com', 'org', 'de', 'co.uk'])}"
        return chance.choice([
            f"https://www.{host}/{two}/{number}?id={number}", f"www.{host}", f"{two}.{one}@{host}", f"http://{host}/a_{two}#top",
        ])  # fmt: skip

    return _copied(pairs, new)


def code(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    def new() -> str:
        one, two, digit = _name(chance).lower(), _name(chance).lower(), chance.randint(1, 9)
        return chance.choice([
            f"{one}_{two}()", f"--{one}-{two}", f"/usr/{one}/{two}.conf", f"{one}_{two}_v{digit}.docx",
            f"{one.upper()}_{two.upper()}", f"{one}.{two}[{digit}]", f"v{digit}.{chance.randint(0, 99)}.4",
        ])  # fmt: skip

    return _copied(pairs, new)


def interface(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    """Words of an interface, which a reader must find there."""
    return _copied(pairs, lambda: f'"{_name(chance)} {chance.choice(LABELS)}"')


def other_languages(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    return _copied(pairs, lambda: f'"{chance.choice(PHRASES)}"')


def identifiers(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    """Of orders, devices, accounts and people: nobody counts with them."""

    def new() -> str:
        one, two = ("".join(chance.choices("0123456789ABCDEF", k=size)) for size in (8, 4))
        digits, block = f"{chance.randint(10**7, 10**11)}", f"{chance.randint(1000, 9999)}"
        return chance.choice([
            f"{block[:3]}A{one}7{two}", digits, f"X-{block}-{one[:2]}A",
            f"{one}-{two}-4{two[1:]}-a{two[1:]}-{one}{two}".lower(), f"DE{block[:2]} {block} 0044 {digits[:4]} 0130 00",
            f"10.{block[:2]}.{block[2:]}.1", f"+49 {block[:2]} {digits[:7]}",
        ])  # fmt: skip

    return _copied(pairs, new)


def handles(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    """Of people and subjects in chats, and addresses without `https://`."""

    def new() -> str:
        one, two = _name(chance).lower(), _name(chance).lower()
        return chance.choice([f"@{one}_{two}", f"#{one}", f"{one}-{two}.com", f"{one}.org/{two}"])

    return _copied(pairs, new)


def signed_numbers(pairs: Sequence[Pair], chance: random.Random, language: str, _: str) -> Iterator[Case]:
    for pair in pairs:
        sign, value = chance.choice("-+"), f"{chance.randint(2, 990) / 10}"
        span = f"{sign}{value if language == 'en' else value.replace('.', ',')} °C"
        source = f"{pair.source.rstrip('.!?')}: {span}." if chance.random() < 0.5 else f"{span}: {pair.source}"
        minus = "[-−–]" if sign == "-" else r"\+"
        yield Case(source, matches_once(rf"(?<![\w-]){minus}{value.replace('.', '[.,]')}\s?°C(?!\w)"))


# The same in another form


def emoji(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    for pair in pairs:
        found = chance.choice(EMOJI)
        source = f"{found} {pair.source}" if chance.random() < 0.3 else f"{pair.source} {found}"
        yield Case(source, both(has_once(found), keeps_quality(pair.reference)), (pair.source,))


def upper_case(pairs: Sequence[Pair], *_: Any) -> Iterator[Case]:
    for pair in pairs:
        yield Case(pair.source.upper(), both(is_upper, keeps_quality(pair.reference)), (pair.source,))


def misspelt(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    """Two letters within a word change places, or one is missing."""
    for pair in pairs:
        words = pair.source.split(" ")
        long = [place for place, word in enumerate(words) if word.isalpha() and word.islower() and len(word) > 4]
        if long:
            place = chance.choice(long)
            word = words[place]
            at = chance.choice([at for at in range(1, len(word) - 2) if word[at] != word[at + 1]])
            swapped, shorter = word[:at] + word[at + 1] + word[at] + word[at + 2 :], word[:at] + word[at + 1 :]
            words[place] = chance.choice([swapped, shorter])
            yield Case(" ".join(words), keeps_quality(pair.reference), (pair.source,))


def typographic_quotes(pairs: Sequence[Pair], *_: Any) -> Iterator[Case]:
    for pair in pairs:
        if not any(mark in pair.source + pair.reference for mark in OPENING + CLOSING):
            yield Case(f"“{pair.source}”", both(is_quoted, keeps_quality(pair.reference)), (pair.source,))


def titles(pairs: Sequence[Pair], *_: Any) -> Iterator[Case]:
    """Lines without a full stop; their translations have none either."""
    for pair in pairs:
        title = pair.source.rstrip(".")
        if title != pair.source and title[-1:].isalpha():
            yield Case(title, both(_ends_with_word, keeps_quality(pair.reference)), (pair.source,))


def _ends_with_word(out: Outputs) -> bool:
    return not out.text.endswith((".", "!", "?"))


def spaces_around(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    for pair in pairs:
        before, after = chance.choice([("", " "), (" ", ""), ("  ", "  "), ("\t", ""), ("    ", "\t")])
        yield Case(before + pair.source + after, _is_within(before, after), (pair.source,))


def _is_within(before: str, after: str) -> Check:
    return lambda out: out.text == before + out.undisturbed + after


def several_sentences(pairs: Sequence[Pair], chance: random.Random, *_: str) -> Iterator[Case]:
    """In one line, which is not split."""
    rest = iter([pair for pair in pairs if len(pair.source) < 70 and pair.source[-1] in ".!?"])
    while len(own := list(itertools.islice(rest, chance.randint(3, 5)))) > 2:
        sources, references = zip(*own, strict=True)
        yield Case(" ".join(sources), keeps_quality(" ".join(references), 0.9), sources, "long")


CLASSES: dict[str, Callable[..., Iterator[Case]]] = {
    "names": names,
    "unknown words": unknown_words,
    "numbers": numbers,
    "dates": dates,
    "units": units,
    "addresses": addresses,
    "code": code,
    "interface text in quotes": interface,
    "other languages in quotes": other_languages,
    "emoji": emoji,
    "upper case": upper_case,
    "misspelt words": misspelt,
    "typographic quotes": typographic_quotes,
    "spaces around": spaces_around,
    "several sentences": several_sentences,
    "identifiers": identifiers,
    "handles": handles,
    "signed numbers": signed_numbers,
    "titles": titles,
}


class Result(NamedTuple):
    case: Case
    text: str
    passes: bool


def measure(translator: dragoman.Translator, found: Sequence[Case], protect: list[str]) -> list[Result]:
    def translations(lines: Iterable[str], split: Split) -> dict[str, str]:
        own = list(dict.fromkeys(lines))
        results = translator.translate(own, protect=protect, split=split)
        return {line: result.text for line, result in zip(own, results, strict=True)}

    plain = translations((line for case in found for line in case.undisturbed), "sentences")
    splits = {case.split for case in found}
    texts = {split: translations((case.source for case in found if case.split == split), split) for split in splits}
    results = []
    for case in found:
        out = Outputs(texts[case.split][case.source], " ".join(plain[line] for line in case.undisturbed))
        results.append(Result(case, out.text, case.passes(out)))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of corpora")
    parser.add_argument("--model", action="append", help="repeatable")
    parser.add_argument("--source", choices=["en", "de"], default="en")
    parser.add_argument("--each", type=int, default=135, help="cases of each class")
    parser.add_argument("--show", choices=CLASSES, metavar="CLASS", help="print the cases of a class that fail")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.each < 1:
        parser.error(f"--each: is {options.each}; give 1 or more")
    found = cases(options.data, options.source, options.each)
    table: dict[str, dict[str, float]] = {kind: {} for kind in CLASSES}
    for model in options.model or ["en-de"]:
        translator = dragoman.load(model)
        for (kind, own), (way, protect) in itertools.product(found.items(), WAYS.items()):
            results = measure(translator, own, protect)
            table[kind][f"{model}, {way}"] = round(100 * sum(result.passes for result in results) / len(results), 1)
            for result in results if kind == options.show else ():
                if not result.passes:
                    print(f"{way}: {result.case.source!r}\n    {result.text!r}", file=sys.stderr)
    if options.json:
        print(json.dumps({"source": options.source, "cases": sum(map(len, found.values())), "passed": table}))
        return
    columns = list(next(iter(table.values())))
    print("Share of cases that pass, in percent\n")
    print(f"{'':28}{'cases':>6}" + "".join(f"{column:>20}" for column in columns))
    for kind, row in table.items():
        print(f"{kind:28}{len(found[kind]):6}" + "".join(f"{row[column]:20.1f}" for column in columns))


if __name__ == "__main__":
    main()
