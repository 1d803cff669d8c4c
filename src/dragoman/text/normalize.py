"""The one normalisation every text passes through. Knows nothing of vocabularies.

In this order: Unicode NFC (or NFKC), and lower case, if asked for; U+2581, sentencepiece's own mark for a space,
becomes an underscore; every run of white space and control characters, line and paragraph separators among them,
becomes one space; the ends are stripped.
Normalising twice changes nothing.
"""

import re
import unicodedata
from typing import Literal

Normalization = Literal["nfc", "nfkc", "nfc-lowercase", "nfkc-lowercase"]

SPACE_MARK = "\u2581"
_GAP = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")  # \s is str.isspace; the rest is category Cc
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def normalize(text: str, form: Normalization = "nfc") -> str:
    composition: Literal["NFKC", "NFC"] = "NFKC" if form.startswith("nfkc") else "NFC"
    text = unicodedata.normalize(composition, text)
    if is_lowercase(form):
        # composed first, since NFKC makes capitals of letters that have no lower case, as \U0001d56c; and again,
        # since some capitals have a lower case of two characters
        text = unicodedata.normalize(composition, text.lower())
    # split and join, which take white space as _GAP does, are several times as fast as a substitution
    return " ".join(_CONTROL.sub(" ", text.replace(SPACE_MARK, "_")).split())


def is_lowercase(form: Normalization) -> bool:
    return form.endswith("-lowercase")


def is_blank(text: str) -> bool:
    """Whether nothing of `text` is left once normalised, found without normalising it."""
    return not text or _GAP.fullmatch(text) is not None
