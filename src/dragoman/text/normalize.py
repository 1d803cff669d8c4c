"""The normalisation that every text goes through. Knows nothing of vocabularies.

The steps, in order: Unicode NFC (or NFKC); lower case, if requested; U+2581, sentencepiece's mark for a space, becomes
an underscore; every run of white space and control characters, including line and paragraph separators, becomes one
space; both ends are stripped.
Normalising twice changes nothing.

The forms with `nbsp` keep every no-break space (U+00A0, U+2007, U+202F) inside a text; a run of other white space still
becomes one space, and both ends are stripped of all white space. NFKC has no such form, because it turns no-break
spaces into plain ones. The word joiner U+2060 and U+FEFF have no width and are not white space in Unicode: every form
keeps them.

The form `none` keeps every character but U+2581.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

Normalization = Literal["nfc", "nfkc", "nfc-lowercase", "nfkc-lowercase", "nfc-nbsp", "nfc-nbsp-lowercase", "none"]

GROUP_SIZE = 16  # texts examined at once
SPACE_MARK = "\u2581"
_GAP = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")  # \s is str.isspace; the rest is category Cc
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BREAKING_SPACE = re.compile(r"[^\S\u00a0\u2007\u202f]+")  # white space except no-break spaces


def normalize(text: str, form: Normalization = "nfc") -> str:
    if form == "none":
        return text.replace(SPACE_MARK, "_")
    if _is_normal(text, form):
        return text
    composition = _composition(form)
    text = unicodedata.normalize(composition, text)
    if is_lowercase(form):
        # compose first, because NFKC turns letters without a lower case, such as \U0001d56c, into capitals; and again,
        # because the lower case of some capitals is two characters
        text = unicodedata.normalize(composition, text.lower())
    text = _CONTROL.sub(" ", text.replace(SPACE_MARK, "_"))
    if keeps_no_break_spaces(form):
        return _BREAKING_SPACE.sub(" ", text).strip()
    # split and join treat white space as _GAP does and are several times as fast as a substitution
    return " ".join(text.split())


def normalize_all(texts: Sequence[str], form: Normalization = "nfc") -> list[str]:
    """Normalise each text. Most need no change, and several are asked at once whether any does."""
    if form == "none":
        return [normalize(text, form) for text in texts]
    normal: list[str] = []
    for first in range(0, len(texts), GROUP_SIZE):
        some = texts[first : first + GROUP_SIZE]
        # part of a composed text is composed; a space at the end of one shows as two in a row
        normal += some if _is_normal(" ".join(some), form) else [normalize(text, form) for text in some]
    return normal


def _composition(form: Normalization) -> Literal["NFKC", "NFC"]:
    return "NFKC" if form.startswith("nfkc") else "NFC"


def _is_normal(text: str, form: Normalization) -> bool:
    """Whether it can be seen at once that nothing is to change: true of most lines, much faster than changing them."""
    # the only printable white space is U+0020
    return (
        not is_lowercase(form)
        and text.isprintable()
        and "  " not in text
        and SPACE_MARK not in text
        and text == text.strip(" ")
        and unicodedata.is_normalized(_composition(form), text)
    )


def is_lowercase(form: Normalization) -> bool:
    return form.endswith("-lowercase")


def keeps_no_break_spaces(form: Normalization) -> bool:
    return "nbsp" in form


def is_blank(text: str) -> bool:
    """Whether nothing is left of `text` once normalised, decided without normalising it."""
    return not text or _GAP.fullmatch(text) is not None
