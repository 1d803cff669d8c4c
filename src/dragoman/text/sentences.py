"""Where the sentences of a line end. Knows nothing of models; keeps every character.

A full stop, question or exclamation mark ends a sentence where white space and then a capital, a digit or a letter
without case follows, or at once in Chinese and Japanese. A full stop does not after an abbreviation, an initial, or a
number of one or two digits, which may be an ordinal: joining two sentences does less harm than cutting one.
"""

import itertools
import re

ABBREVIATIONS = frozenset((
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Rev", "Sr", "Jr", "Gen", "Col", "Maj", "Capt", "Lt", "Sgt", "Sen", "Rep",
    "Gov", "Hon", "Messrs", "Mme", "Mlle", "Mt", "Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sep", "Sept", "Oct",
    "Nov", "Dec", "No", "Nos", "Nr", "Art", "Fig", "Vol", "pp", "cf", "vs", "al", "approx", "ca", "bzw", "usw", "ggf",
    "vgl", "Abs", "Hr", "Fr", "Inc", "Ltd", "Co", "Corp", "Bros",
))  # fmt: skip
_END = re.compile(
    r"""(?:[.!?…]+ ["'”’»)\]]* \s+ (?=["'“‘„«»(\[¿¡]* [^\W_]) | [。！？]+ [”’」』）]* )""",
    re.VERBOSE,
)
_ORDINAL = re.compile(r"\d{1,2}")


def sentences(line: str) -> list[str]:
    """The line in stretches of one sentence each, which together are the line again."""
    starts = [0, *(match.end() for match in _END.finditer(line) if _ends(line, match)), len(line)]
    return [line[start:end] for start, end in itertools.pairwise(starts) if start < end]


def _ends(line: str, match: re.Match[str]) -> bool:
    follows = line[match.end() :].lstrip("\"'“‘„«»([¿¡ ")
    if follows and follows[0].islower():
        return False
    if not match[0].startswith(".") or match[0].startswith(".."):
        return True
    words = line[: match.start()].split()
    last = words[-1].lstrip("\"'“‘„«»([") if words else ""
    return not (last in ABBREVIATIONS or len(last) == 1 or "." in last or _ORDINAL.fullmatch(last))
