"""Sentence splitting: where sentences end, that no text is lost, and that the work is linear on every line."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.text.sentences import (
    ABBREVIATIONS,
    AFTER_TIME,
    AM_PM,
    BEFORE_NUMBERS,
    menu_items,
    sentences,
    without_open_brackets,
)


@pytest.mark.parametrize(
    "expected",
    [
        ["Hello. ", "How are you? ", "I am fine!"],
        ["One sentence only"],
        ["It cost 3.5 million. ", "That is much."],
        ['He said: "I am tired." ', "Then he left."],
        ["(He left.) ", "“Why?” ", "Nobody knows…  ", "2011 was better."],
        ["今日は。", "元気ですか？", "はい"],
        ["Wirklich?! ", "Ja."],
        ["สวัสดี. ", "ครับ"],  # letters that have no case
        ["He came at 5 p.m. ", "It rained. ", "She left at 6 a.m. ", "“They” stayed."],
        ["I said no. ", "Five came."],
        ["Never mind. ", "I will do it."],
        ["Sie wählten einen Abt. ", "Er heißt Min. ", "Das ist alles."],
    ],
)
def test_sentence_ends_are_found(expected: list[str]) -> None:
    assert sentences("".join(expected)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "Mr. Smith met Dr. Jones and Prof. Miller.",
        "J. S. Bach was born in Eisenach.",
        "The U.S. Congress met at 3 p.m. Eastern time.",
        "At 5 p.m. Monday, or 6 a.m. CET, or 7 p.m. on Friday.",
        "See no. 42, fig. 3, p. 12 and vol. 2 (incl. VAT).",
        "Am 3. Oktober ist frei.",
        "Der Umsatz stieg auf 2,5 Mio. Euro (s. Abb. 3), max. Höhe 3 m, lt. Dr. med. Maier.",
        "Ab mind. 5 Personen gibt es Rabatt.",
        "Er wohnt in der Goethestr. 12 und der Gartenstr. Sie nicht.",
        "Well... maybe.",
        "See www.example.com. for more",
        "He asked why? and left",
        "...",
        "",
        "   ",
    ],
)
def test_line_of_one_sentence_is_not_split(line: str) -> None:
    assert sentences(line) == ([line] if line else [])


@given(st.text(alphabet='aB 1.!?…。"” \t', max_size=40))
def test_splitting_loses_no_text(line: str) -> None:
    found = sentences(line)
    assert "".join(found) == line
    assert "" not in found


# The definition as regular expressions: short, and quadratic or worse on some lines.
END = re.compile(
    r"""(?:[.!?…]+ ["'”’»)\]]* \s+ (?=["'“‘„«»(\[¿¡]* [^\W_]) | [。！？]+ [”’」』）]* )""",
    re.VERBOSE,
)


def defined_sentences(line: str) -> list[str]:
    starts = [0, *(match.end() for match in END.finditer(line) if ends(line, match)), len(line)]
    return [line[start:end] for start, end in itertools.pairwise(starts) if start < end]


def ends(line: str, match: re.Match[str]) -> bool:
    follows = line[match.end() :].lstrip("\"'“‘„«»([¿¡ ")
    if follows and follows[0].islower():
        return False
    if not match[0].startswith(".") or match[0].startswith(".."):
        return True
    words = line[: match.start()].split()
    last = words[-1].lstrip("\"'“‘„«»([") if words else ""
    if last in AM_PM and follows[:1].isupper():
        return AFTER_TIME.match(follows) is None
    if last in BEFORE_NUMBERS and follows[:1].isdecimal():
        return False
    is_short = len(last) == 1 or re.fullmatch(r"\d{1,2}", last)
    return not (last in ABBREVIATIONS or is_short or "." in last or last.endswith("str"))


SIGNS = "...!?…。！？\"'“”‘’„«»()[]「」』）¿¡_-   \t\n\u00a0\u202f\u3000\x1c\x85aZé12９²ก今ǅ"
WORDS = [
    *SIGNS,
    ". ",
    ". A",
    *sorted(ABBREVIATIONS),
    "Bonn",
    "Weberstr",
    "U.S",
    "1990",
    *AM_PM,
    *BEFORE_NUMBERS,
    "Monday",
    "CET",
]


@settings(max_examples=1_000)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map("".join))
@example("..。.) (A. ¿B. 12. C 123. D")
@example("Mr . X «Mr. X “. X . X ¿Dr. X")
def test_sentences_match_the_definition(line: str) -> None:
    assert sentences(line) == defined_sentences(line)


@given(st.text(max_size=30))
def test_sentences_of_any_text_match_the_definition(line: str) -> None:
    assert sentences(line) == defined_sentences(line)


class Counted:
    """A line that counts the characters read from it. It is not a string: work that it cannot count fails."""

    def __init__(self, line: str) -> None:
        self.line, self.visits = line, 0

    def __len__(self) -> int:
        return len(self.line)

    def __getitem__(self, place: int | slice) -> str:
        found = self.line[place]
        self.visits += len(found)
        return found


MOST_VISITS = 10  # of a character: as the end of one run, the start of another, part of a word and of the result


def work(line: str, split: Any = sentences) -> int:
    counted = Counted(line)
    assert "".join(split(counted)) == line
    return counted.visits


REPEATED = [
    *'.!…。 \u00a0"(¿a',
    *(". ", ".  ", "a. ", "A. ", "Mr. ", "12. ", "a.", "A b. ", ".A", "_. ", "U.S. A", "(A. ", "A ", "... ", ". ."),
    *(". (", '."', '." ', '. "', ".) [", "([", "。 ", "。(", "。a", "？” ", "今。", ".。"),
]
LONG = [
    lambda n: "a" * n + ". B",
    lambda n: "a" * n + "." * n + " B",
    lambda n: "a" + " " * n + ". B",
    lambda n: "Mr" + " " * n + ". B. C",
    lambda n: "." * n + " " * n,
    lambda n: "." * n + '"' * n + " " * n + "(" * n,
    lambda n: "." + '"' * n + " " * n + "(" * n + "A",
    lambda n: "(" * n + "Mr. B",
    lambda n: "。" + "(" * n + "a。" + " " * n + "B",
    lambda n: ". " * n + "(" * n + "A",
    lambda n: "a.b" * n + ". C",
]


@pytest.mark.parametrize("make", [*((lambda n, part=part: part * n) for part in REPEATED), *LONG])
def test_work_is_linear_on_every_line(make: Any) -> None:
    """Counted, not timed: the definition above would take hours on a megabyte of some of these."""
    short, long = make(1_000), make(2_000)
    assert work(long) <= 2.1 * work(short)
    assert work(long) <= MOST_VISITS * len(long)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map("".join))
def test_work_is_linear_on_anything_repeated(part: str) -> None:
    assert work(part * 100) <= MOST_VISITS * len(part * 100)


def test_counting_reveals_quadratic_work() -> None:
    """The control: reads everything after every stop, like the definition."""

    def quadratic(line: str) -> list[str]:
        assert not [place for place in range(len(line)) if line[place] == "." and line[place:].strip(".")]
        return [line[:]]

    assert work("." * 2_000, quadratic) > 3.9 * work("." * 1_000, quadratic)


def test_a_line_of_a_megabyte_is_split() -> None:
    assert len(sentences("." * 1_000_000)) == 1
    assert len(sentences("Ab cd. " * 150_000)) == 150_000


# Menus


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Home | About us", [("", "Home"), ("|", "About us")]),
        (" Settings\t>\u00a0“Privacy” ›  Location ", [("", "Settings"), (">", "“Privacy”"), ("›", "Location")]),
        ("HOME | 3 NEWS", [("", "HOME"), ("|", "3 NEWS")]),
        ("Datei > Öffnen", [("", "Datei"), (">", "Öffnen")]),
        ("Monday → Friday", [("", "Monday"), ("→", "Friday")]),
        (
            "Home / All Shoes · Imprint » Contact",
            [("", "Home"), ("/", "All Shoes"), ("·", "Imprint"), ("»", "Contact")],
        ),
    ],
)
def test_items_of_a_menu_stand_between_signs(line: str, expected: list[tuple[str, str]]) -> None:
    assert menu_items(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "", "plain", "Home|About", "| Home", "Home |", "> Home", "Home | | About", "Home -> About",
        "x > 5", "If A > B", "if a > b, stop", "a > ł b", "цена > больше", "A | B", "P(A | B) is high", "5 > 3",
        "Home | 2", "Go to Settings > Privacy.", "You can find the file > Here", "Wow! | Home", "home | about",
        "Home | a: b", "Home → about", "He / she", "and/or", "« Oui » Non", "3 / 4",
    ],
)  # fmt: skip
def test_other_lines_are_no_menus(line: str) -> None:
    assert menu_items(line) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(This is so. ", ("(", "This is so.", "")),
        (" Read it.)", ("", "Read it.", ")")),
        ("[So (it] was)", ("", "[So (it] was)", "")),
        ("(a) b) ", ("", "(a) b", ")")),
        (" (a) ", ("", " (a) ", "")),
        ("(", ("", "(", "")),
        (" )", ("", " )", "")),
        ("", ("", "", "")),
    ],
)
def test_brackets_that_another_sentence_has_are_taken_off(text: str, expected: tuple[str, str, str]) -> None:
    assert without_open_brackets(text) == expected


def test_very_long_menus_have_all_their_items() -> None:
    assert len(menu_items("Home" + " | Home" * 100_000)) == 100_001
    for unit in (" > ", " |", "| ", "> A", " "):
        assert menu_items(unit * 100_000) == []
