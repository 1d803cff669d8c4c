"""The one normalisation every text passes through. Knows nothing of vocabularies.

In this order: Unicode NFC (or NFKC); U+2581, sentencepiece's own mark for a space, becomes an underscore; every run of
white space and control characters, line and paragraph separators among them, becomes one space; the ends are stripped.
Normalising twice changes nothing.
"""

import re
import unicodedata
from typing import Literal

Normalization = Literal["nfc", "nfkc"]

SPACE_MARK = "\u2581"
_GAP = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")  # \s is str.isspace; the rest is category Cc
_FORMS: dict[Normalization, Literal["NFC", "NFKC"]] = {"nfc": "NFC", "nfkc": "NFKC"}


def normalize(text: str, form: Normalization = "nfc") -> str:
    composed = unicodedata.normalize(_FORMS[form], text)
    return _GAP.sub(" ", composed.replace(SPACE_MARK, "_")).strip()


def is_blank(text: str) -> bool:
    """Whether nothing of `text` is left once normalised, found without normalising it."""
    return not text or _GAP.fullmatch(text) is not None
