"""Tells text from data: what a cell or a value holds if nobody says which ones are to be translated."""

import re

from dragoman.documents.spans import has_letters

_DATA = re.compile(
    r"""[a-z][\w+.-]*://\S*|www\.\S+|(?:mailto|tel|urn|data):\S*"""  # addresses
    r"""|[^\s@]+@[^\s@]+\.[^\s@]+"""
    r"""|true|false|null|none|nan|undefined|n/a"""
    r"""|\S*[0-9_/\\#={}<>@]\S*"""  # numbers with units, dates, identifiers, paths, colours
    r"""|[\w-]+(?:\.[\w-]+)+"""  # names of files, modules and hosts
    r"""|[a-z]{2}-[a-z]{2}""",  # languages
    re.ASCII | re.IGNORECASE,
)
_CAMEL_CASE = re.compile(r"[A-Za-z]*[a-z][A-Z][A-Za-z]*")


def is_text(value: str) -> bool:
    """Whether a value is for people to read: no number, identifier, address, path or date."""
    value = value.strip()
    if not has_letters(value):
        return False
    if len(value) > 2048 or not value.isascii():
        return True
    return _DATA.fullmatch(value) is None and _CAMEL_CASE.fullmatch(value) is None
