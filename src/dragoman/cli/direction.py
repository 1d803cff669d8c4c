"""Which bundled model translates: the one that is asked for, or the one for the language of the text."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from lzma import LZMAError
from pathlib import Path
from typing import Any

from dragoman.cli.options import DEFAULT_MODEL
from dragoman.cli.streams import peek_stdin
from dragoman.errors import ConfigError, DragomanError

LOOKED_AT = 4_096  # bytes of a file or of standard input, characters of a document
LIKELY = 65.0  # percent of confidence; text without a word of either language has 61 for English
SHARD_RECORDS = 50  # of the first shard of a folder
DECLARING = ("po", "tmx", "xliff")  # formats that say which languages they have


def choose_model(
    model: Path | None, to: str | None, text: Sequence[str] | None, input: Path | None, document: str | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """`model` if it is given; otherwise a bundled one, by `to` and by the language that the text is likeliest in.

    `document` is the format of the input if that is a document, and `about` how to read it.
    """
    if model is not None:
        if to is not None:
            raise ConfigError("--to: chooses among the bundled models; leave out --to or --model")
        return model
    from dragoman.bundle import bundled_models

    language = None if to is None else to.lower().replace("_", "-").partition("-")[0]  # without the region of en-US
    directions = {name: name.split("-") for name in bundled_models() if name.count("-") == 1}
    fitting = [name for name, (_, target) in directions.items() if language in (None, target)]
    if not fitting:
        known = ", ".join(sorted({target for _, target in directions.values()}))
        raise ConfigError(f"--to {to}: no bundled model translates into it; use {known}, or give --model")
    if document in DECLARING and len(fitting) > 1:
        assert input is not None
        fitting = _not_contradicted(fitting, input, document, about or {})
    if len(fitting) > 1:
        if input is not None and (document is not None or input.is_dir()):
            beginning = _beginning_of_document(input, document, about or {})
        else:
            beginning = _beginning(text, input)
        fitting = _likeliest(fitting, beginning)
    usual = str(DEFAULT_MODEL)
    return Path(usual if usual in fitting else fitting[0])


def _likeliest(names: list[str], text: str) -> list[str]:
    """The models for the language of a text: by its letters, or if that is not certain, by the words that they know."""
    from dragoman.bundle import load_words, resolve_model
    from dragoman.text.language import CERTAIN, LEAST_LATIN, Detector
    from dragoman.text.words import words_in

    found = Detector([name.split("-")[0] for name in names]).detect(text)[0]
    if found.confidence < CERTAIN or sum(map(str.isalpha, text)) < LEAST_LATIN:
        words, lists = words_in(text), {name: load_words(resolve_model(name)) for name in names}
        counts = {name: sum(word in known.source for word in words) for name, known in lists.items() if known}
        best = [name for name, count in counts.items() if count == max(counts.values())]
        if len(best) == 1:
            return best
    matching = [name for name in names if name.startswith(f"{found.language}-")]
    return matching if found.confidence >= LIKELY else names


def _not_contradicted(names: list[str], input: Path, format: str, about: Mapping[str, Any]) -> list[str]:
    """The models for the languages that a document declares."""
    from dragoman.documents.document import Options
    from dragoman.documents.formats import parse_document

    found = []
    for name in names:
        source, target = name.split("-")
        with suppress(DragomanError, OSError):  # reported by what reads it
            parse_document(input, Options(source_language=source, target_language=target, **about), format)
            found.append(name)
    return found or names


def model_from(language: str) -> str | None:
    """The bundled model that translates from a language."""
    from dragoman.bundle import bundled_models

    return next((name for name in bundled_models() if name.startswith(f"{language}-")), None)


def _beginning(text: Sequence[str] | None, input: Path | None) -> str:
    """Some of the text, as far as it can be read now without taking it from whoever reads it next."""
    if text:
        return "\n".join(text)
    return b"".join(_first_bytes(input)).decode("utf-8", "ignore")


def _beginning_of_document(input: Path, format: str | None, about: Mapping[str, Any]) -> str:
    """The first segments of a document, or the first records of a folder of shards."""
    found = ""
    with suppress(DragomanError, OSError):  # reported by what reads it
        for text in _shard_texts(input, about) if format is None else _segments(input, format, about):
            found += f"{text}\n"
            if len(found) >= LOOKED_AT:
                break
    return found


def _segments(input: Path, format: str, about: Mapping[str, Any]) -> Iterator[str]:
    from dragoman.documents.document import Options, text_of
    from dragoman.documents.formats import parse_document

    return (text_of(segment.parts) for segment in parse_document(input, Options(**about), format).segments)


def _shard_texts(folder: Path, about: Mapping[str, Any]) -> Iterator[str]:
    from dragoman.data.shards import find_shards, shard_format

    column = (*about.get("columns", ()), "text")[0]
    for name in find_shards(folder)[:1]:
        with closing(shard_format(name).windows(folder / name, column, SHARD_RECORDS)) as windows:
            for window in windows:
                yield from (line.text for line in window.lines if not line.problem)
                return


def _first_bytes(input: Path | None) -> Iterator[bytes]:
    with suppress(OSError, EOFError, AttributeError, LZMAError, zlib.error):  # reported by what reads it
        if input is None:
            yield peek_stdin()[:LOOKED_AT]
            return
        if input.exists() and not input.is_file():
            raise ConfigError(f"{input}: is a pipe, whose language cannot be detected in advance; add --to or --model")
        if input.is_file():
            from dragoman.data.corpus import OPENERS

            with OPENERS.get(input.suffix.lower(), open)(input, "rb") as stream:
                yield stream.read(LOOKED_AT)
