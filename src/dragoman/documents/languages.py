"""Names of languages as files write them: `pt-BR`, `pt_BR`. Knows nothing of formats."""

import re

from dragoman.errors import ConfigError, DataError

_TAG = re.compile(r"[A-Za-z]{2,8}(?:[-_@][A-Za-z0-9]{1,8})*")


def check_tag(language: str, what: str) -> None:
    """Refuse what cannot be a language tag, so that it is not written into a file. Empty is allowed."""
    if language and _TAG.fullmatch(language) is None:
        raise ConfigError(f"{what} {language!r} is not a language tag; use one such as de or pt-BR")


def primary(language: str) -> str:
    """The language without its script and region: `pt` of `pt-BR`."""
    return re.split(r"[-_@.]", language, maxsplit=1)[0].lower()


def matches(one: str, other: str) -> bool:
    """Whether two tags may mean one language: they are equal, or one says more than the other (`en`, `en-US`)."""
    first, second = (re.split(r"[-_@.]", each.lower()) for each in (one, other))
    return all(a == b for a, b in zip(first, second, strict=False))


def check_agreement(place: str, what: str, written: str, wanted: str) -> None:
    """Refuse a file that names another language than the user does. `what` is the name that the file uses."""
    if written and wanted and primary(written) != primary(wanted):
        raise DataError(f"{place}: {what} is {written}, not {wanted}; change the file or the language")
