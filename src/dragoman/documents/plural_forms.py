"""Plural forms of gettext: how many a language has, and which of them is for one. Knows nothing of files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from gettext import c2py

from babel import Locale, UnknownLocaleError
from babel.messages.plurals import PLURALS

LARGEST = 1000  # rules repeat after 100; gettext's own checks look as far
MANY = 5  # msgfmt lets a form for this many numbers at most leave the number out: "one file", "no files"
MOST_FORMS = 100  # Arabic has 6

_RULE = re.compile(r"\s*nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;]+?)\s*;?\s*")


@dataclass(frozen=True)
class PluralForms:
    """Which numbers, of 0 to LARGEST, each form is for."""

    numbers: Sequence[Sequence[int]]

    def is_singular(self, form: int, singular: str, plural: str) -> bool:
        """Whether a form is a translation of `singular`, not of `plural`.

        It is if it is for the number 1. But if it is for many others as well, 21 in Russian or all in Japanese, the
        text must say the number where `plural` does: "One file" cannot, "%d file" can.
        """
        numbers = self.numbers[form]
        if 1 not in numbers or len(self.numbers) == 1:
            return False
        return len(numbers) <= MANY or all(singular.count(sign) >= plural.count(sign) for sign in "%{")


def is_rule(text: str) -> bool:
    """Whether a value of Plural-Forms says anything. A template's, `nplurals=INTEGER`, does not."""
    return bool(text.strip()) and "INTEGER" not in text


def read_rule(text: str) -> PluralForms:
    """Read a value of Plural-Forms. A ValueError says what is wrong with it."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"Plural-Forms is {text!r}; write it as nplurals=2; plural=(n != 1);")
    count = int(found[1]) if len(found[1]) < 4 else MOST_FORMS + 1
    if not 1 <= count <= MOST_FORMS:
        raise ValueError(f"nplurals={found[1]} must be from 1 to {MOST_FORMS}; fix Plural-Forms")
    numbers: list[list[int]] = [[] for _ in range(count)]
    try:
        rule = c2py(found[2])
        for number in range(LARGEST + 1):
            form = rule(number)
            if not 0 <= form < count:
                raise ValueError(f"gives form {form} for {number}, of {count}")
            numbers[form].append(number)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"invalid rule of plurals {found[2]!r} ({error}); fix Plural-Forms") from None
    return PluralForms(numbers)


def rule_of(language: str) -> str:
    """The value of Plural-Forms for a language; empty if it is not known."""
    try:
        locale = Locale.parse(language.replace("-", "_").replace("@", "_"))
    except (ValueError, UnknownLocaleError):
        return ""
    for name in (str(locale), locale.language):
        if name in PLURALS:
            count, rule = PLURALS[name]
            return f"nplurals={count}; plural={rule};"
    return ""
