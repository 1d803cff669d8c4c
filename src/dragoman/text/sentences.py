"""Splits a line into sentences, or a menu into its items. Keeps every character of sentences. Knows nothing of models.

A full stop, question or exclamation mark ends a sentence if it is followed by white space and then a capital, a digit
or a letter without case; Chinese and Japanese need no white space. A full stop after an abbreviation, an initial, or a
number of one or two digits, which may be an ordinal, does not: joining two sentences does less harm than cutting one.

The scan is linear in the length of the line, whatever its content.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Set

ABBREVIATIONS = frozenset((
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Rev", "Sr", "Jr", "Gen", "Col", "Maj", "Capt", "Lt", "Sgt", "Sen", "Rep",
    "Gov", "Hon", "Messrs", "Mme", "Mlle", "Mt", "Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sep", "Sept", "Oct",
    "Nov", "Dec", "No", "Nos", "Nr", "Art", "Fig", "Vol", "pp", "cf", "vs", "al", "approx", "ca", "bzw", "usw", "ggf",
    "vgl", "Abs", "Hr", "Fr", "Inc", "Ltd", "Co", "Corp", "Bros", "incl", "inkl", "excl", "exkl", "est", "evtl", "tel",
    "Tel", "Figs", "Vols", "Str", "Kap", "Bd", "Jh", "Mio", "Mrd", "Tsd", "Std", "Sek", "Abb", "Anm", "Aufl",
    "Bsp", "Hrn", "Frl", "Fam", "Hrsg", "Jhd", "Okt", "Dez", "Dipl", "Ing", "med", "phil", "jur", "nat", "rer", "habil",
    "lt", "sog", "zzgl", "bzgl", "einschl", "max", "min", "Ziff", "Az", "geb", "verh", "lfd", "resp",
    "Stk", "Stck", "Pkt", "Whg", "Anh",
))  # fmt: skip
STREET = "str"  # ends the name of a street: Goethestr. 12
BEFORE_NUMBERS = frozenset(("no", "nos", "nr", "fig", "figs", "vol", "vols", "art", "ch", "sec", "Sec", "par", "mind"))
AM_PM = frozenset(("a.m", "p.m", "A.M", "P.M"))
AFTER_TIME = re.compile(  # p.m. Monday, p.m. Eastern time
    r"(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|(?:January|February|March|April|May|June|July|August|September|October"
    r"|November|December|Eastern|Central|Pacific|Mountain|Greenwich|Local)|[A-Z]{2,5})\b"
)
LONGEST_AFTER_TIME = 12  # characters: the longest of these and the one after it
# Of text that ends with one and is no sentence.
FINAL_ABBREVIATIONS = ("etc", "usw", "Inc", "Ltd", "Co", "Corp", "Bros", "Jr", "Sr", "Nr")
_STOPS, _CLOSING = frozenset(".!?…"), frozenset("\"'”’»)]")
_WIDE_STOPS, _WIDE_CLOSING = frozenset("。！？"), frozenset("”’」』）")
_ALL_STOPS = _STOPS | _WIDE_STOPS
_OPENING = frozenset("\"'“‘„«»([¿¡")
_CLOSED_BY = {"(": ")", "[": "]"}
_OPENED_BY = {closing: opening for opening, closing in _CLOSED_BY.items()}
_OPENING_OR_SPACE = _OPENING | {" "}
_BEFORE_WORD = _OPENING - set("¿¡")
MOST_WORDS = 4  # of an item
MENU_SIGNS = frozenset("|>›»→/·•")
_BETWEEN_ITEMS = re.compile(r"(?<=\S)\s+([|>›»→/·•])\s+")
_NOT_IN_ITEM = frozenset("|>›»«→·•.!?…:;()[]{}<=+")
# Whatever ends a sentence within a line contains this. It starts with one set of characters, which `re` finds fast.
_MAY_END = re.compile(r"""[.!?…。！？](?:(?<=[。！？])|["'”’»)\]]*\s)""")


def menu_items(line: str) -> list[tuple[str, str]]:
    """The items of a menu or a path, each after the sign between them: Home | Contact. Nothing for other lines."""
    if _BETWEEN_ITEMS.search(line) is None:  # most lines
        return []
    first, *rest = _BETWEEN_ITEMS.split(line.strip())
    signs, items = ["", *rest[::2]], [first, *rest[1::2]]
    return list(zip(signs, items, strict=True)) if len(items) > 1 and all(map(_is_item, items)) else []


def _is_item(text: str) -> bool:
    """Whether this is a short phrase that begins with a capital, and neither a sentence nor a formula."""
    words = text.split()
    if not 1 <= len(words) <= MOST_WORDS or not _NOT_IN_ITEM.isdisjoint(text):
        return False
    first_letter = next(filter(str.isalpha, text), "")
    return not first_letter.islower() and any(sum(map(str.isalpha, word)) > 1 for word in words)


def sentences(line: str) -> list[str]:
    """Split a line into sentences; joined, they are the line again."""
    if isinstance(line, str) and _MAY_END.search(line) is None:  # most lines hold one sentence
        return [line] if line else []
    starts = [0, *_ends(line), len(line)]
    return [line[start:end] for start, end in itertools.pairwise(starts) if start < end]


def without_open_brackets(text: str) -> tuple[str, str, str]:
    """A bracket at the start of a text that is not closed in it, the rest, and one at its end that is not opened."""
    inner = text.strip()
    before = inner[:1] if _lacks(inner[:1], _CLOSED_BY, inner) else ""
    after = inner[-1:] if _lacks(inner[-1:], _OPENED_BY, inner) else ""
    rest = inner[len(before) : len(inner) - len(after)]
    return (before, rest, after) if (before or after) and rest.strip() else ("", text, "")


def _lacks(bracket: str, others: Mapping[str, str], text: str) -> bool:
    return bracket in others and text.count(bracket) > text.count(others[bracket])


def _ends(line: str) -> Iterator[int]:
    """Yield where each next sentence starts. Skipped runs hold no stop, so the scan resumes after them: linear time."""
    place = 0
    for first, character in enumerate(line):
        if first < place or character not in _ALL_STOPS:
            continue
        if character in _STOPS:
            closed = _skip(line, _skip(line, first, _STOPS), _CLOSING)
            end = _skip_space(line, closed)
            place = _skip(line, end, _OPENING)
            is_separated = closed < end and place < len(line) and line[place].isalnum()
            if is_separated and not line[place].islower() and not _is_abbreviation(line, first):
                yield end
        else:
            end = _skip(line, _skip(line, first, _WIDE_STOPS), _WIDE_CLOSING)
            place = _skip(line, end, _OPENING_OR_SPACE)
            if place == len(line) or not line[place].islower():
                yield end


def _skip(line: str, place: int, characters: Set[str]) -> int:
    """The first index from `place` on that holds none of `characters`."""
    while place < len(line) and line[place] in characters:
        place += 1
    return place


def _skip_space(line: str, place: int) -> int:
    while place < len(line) and line[place].isspace():
        place += 1
    return place


def _is_abbreviation(line: str, stop: int) -> bool:
    """Whether the stop at `stop` is a single full stop that belongs to the word before it.

    Only called where a word follows the stop, so the word before each stop is examined once.
    """
    if line[stop] != "." or line[stop + 1] == ".":
        return False
    end = stop
    while end and line[end - 1].isspace():
        end -= 1
    start = end
    while start and not line[start - 1].isspace():
        start -= 1
    word = line[_skip(line, start, _BEFORE_WORD) : end]
    following = _skip(line, _skip_space(line, stop + 1), _OPENING)
    if word in AM_PM and line[following : following + 1].isupper():
        return AFTER_TIME.match(line[following : following + LONGEST_AFTER_TIME]) is not None
    if word in BEFORE_NUMBERS and line[following : following + 1].isdecimal():
        return True
    is_short = len(word) == 1 or (len(word) == 2 and word.isdecimal())
    return is_short or "." in word or word in ABBREVIATIONS or word.endswith(STREET)
