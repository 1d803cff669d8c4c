"""Which bundled model translates: the one that is asked for, or the one for the language of the text."""

import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from lzma import LZMAError
from pathlib import Path

from dragoman.cli.options import DEFAULT_MODEL
from dragoman.errors import ConfigError

LOOKED_AT = 4_096  # bytes of a file or of standard input


def choose_model(model: Path | None, to: str | None, text: Sequence[str] | None, input: Path | None) -> Path:
    """`model` if it is given; otherwise a bundled one, by `to` and by the language of the text where it is obvious."""
    if model is not None:
        if to is not None:
            raise ConfigError("--to: chooses among the bundled models; leave out --to or --model")
        return model
    from dragoman.bundle import bundled_models

    to = None if to is None else to.lower()
    directions = {name: name.split("-") for name in bundled_models() if name.count("-") == 1}
    fitting = [name for name, (_, target) in directions.items() if to in (None, target)]
    if not fitting:
        known = ", ".join(sorted({target for _, target in directions.values()}))
        raise ConfigError(f"--to {to}: no bundled model translates into it; use {known}, or give --model")
    if len(fitting) > 1:
        from dragoman.text.language import obvious_language

        language = obvious_language(_beginning(text, input))
        fitting = [name for name in fitting if directions[name][0] == language] or fitting
    usual = str(DEFAULT_MODEL)
    return Path(usual if usual in fitting else fitting[0])


def model_from(language: str) -> str | None:
    """The bundled model that translates from a language."""
    from dragoman.bundle import bundled_models

    return next((name for name in bundled_models() if name.startswith(f"{language}-")), None)


def _beginning(text: Sequence[str] | None, input: Path | None) -> str:
    """Some of the text, as far as it can be read now without taking it from whoever reads it next."""
    if text:
        return "\n".join(text)
    return b"".join(_first_bytes(input)).decode("utf-8", "ignore")


def _first_bytes(input: Path | None) -> Iterator[bytes]:
    with suppress(OSError, EOFError, AttributeError, LZMAError, zlib.error):  # reported by what reads it
        if input is None:
            yield sys.stdin.buffer.peek(LOOKED_AT)[:LOOKED_AT]  # type: ignore[union-attr]
        elif input.is_file():
            from dragoman.data.corpus import OPENERS

            with OPENERS.get(input.suffix.lower(), open)(input, "rb") as stream:
                yield stream.read(LOOKED_AT)
