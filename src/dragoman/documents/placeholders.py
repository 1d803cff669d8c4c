"""Placeholders in text: `{name}`, `%s`, `$NAME`. Every format and every line of text means the same by them.

The time is proportional to the length of a text: braces are matched once, and no pattern scans a stretch again.
"""

import re
from collections.abc import Iterator, Mapping

# Letters that touch a placeholder and are no word of their own belong to it: v{version}, %dMB, {n}th, backup_$DATE
_BEFORE, _AFTER = r"(?:(?<!\w)(?:[A-Za-z]{1,3}|\w*_))?", r"(?:_\w*|[A-Za-z]{1,3}(?!\w))?"
_PERCENT = r"(?<![\d%])%"  # "50% of" is none
_CONVERSION = r"(?:\d{1,2}\$)?[-+#0']*+(?:\*|\d*+)(?:\.(?:\*|\d++))?(?:hh|ll|[hlLqjzt])?"
_PLACEHOLDERS = (
    r"\$[A-Za-z_]\w*(?!\w|://)(?:\$(?!\w))?",  # $NAME $NAME$; "$100" is none
    rf"{_PERCENT}\([^()\n]{{1,60}}\)[-+#0-9.]*[a-zA-Z]",  # %(name)s
    rf"{_PERCENT}<\w{{1,60}}>[-+#0-9.]*[a-zA-Z]",  # %<name>s
    rf"{_PERCENT}[A-Za-z][\w.-]{{1,60}}%(?!\w)",  # %name%
    rf"{_PERCENT}{_CONVERSION}[diouxXeEfFgGcrsSapbnm@](?![a-zA-Z])",  # %s %1$s %.2f; "50 % of" is none
    rf"{_PERCENT}{_CONVERSION}[dsu](?<!\d\s%.)(?![a-z]{{4}})",  # %dMB %dx%d; "10 %discount" is none
    rf"{_PERCENT}L?[1-9](?![\d.,]*\d)%?",  # %1 %1%
    r"%%",
)
# the end of what begins with a brace is found by counting: {name} {{name}} ${name} %{name}
PLACEHOLDERS = rf"(?P<brace>{_BEFORE}[$%#@]?\{{)|{_BEFORE}(?:{'|'.join(_PLACEHOLDERS)}){_AFTER}"
LONGEST_IN_BRACES = 100  # characters; more is prose or code, unless it is an ICU message with cases
_CASES = re.compile(r"\{\s*[\w.-]+\s*,\s*(?:plural|selectordinal|select)\s*,")
_REST_OF_WORD = re.compile(_AFTER)
_BRACE = re.compile(r"[{}]")
_PATTERN = re.compile(PLACEHOLDERS)
_HINTS = re.compile(r"[{$%]")  # every placeholder contains one


def find_placeholders(text: str) -> Iterator[tuple[int, int]]:
    """Where each placeholder begins and ends."""
    if _HINTS.search(text) is None:
        return
    braces, place = matching_braces(text), 0
    while match := _PATTERN.search(text, place):
        start, place = match.span()
        end = end_of_placeholder(text, place - 1, braces) if match["brace"] else place
        if end is not None:
            yield start, end
            place = end


def matching_braces(line: str) -> dict[int, int]:
    """Where each brace that opens is closed, the outer ones too."""
    found, opened = dict[int, int](), list[int]()
    for match in _BRACE.finditer(line):
        if match.group() == "{":
            opened.append(match.start())
        elif opened:
            found[opened.pop()] = match.end()
    return found


def end_of_placeholder(line: str, brace: int, braces: Mapping[int, int]) -> int | None:
    """Where a placeholder that begins with this brace ends; None if it is none."""
    end = braces.get(brace)
    if end is None or (end - brace > LONGEST_IN_BRACES and _CASES.match(line, brace) is None):
        return None
    rest = _REST_OF_WORD.match(line, end)
    return rest.end() if rest else end
