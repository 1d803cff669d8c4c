"""`dragoman words`: list the words that a model has read, so that names among the others can be restored."""

import itertools
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.additions import resolve_extensible
from dragoman.cli.options import DEFAULT_MODEL, Json, Model
from dragoman.errors import DataError
from dragoman.progress import Advance, no_progress

if TYPE_CHECKING:
    from dragoman.text.words import WordList

LINES_AT_A_TIME = 10_000
LEAST = 3  # times that a word occurs


def command(
    source: Annotated[list[Path], typer.Option(help="Text in the source language; repeatable.")],
    target: Annotated[list[Path], typer.Option(help="Text in the target language; repeatable.")],
    model: Model = DEFAULT_MODEL,
    out: Annotated[
        Path | None, typer.Option(help="Write a copy of the model with its words here, not into the model itself.")
    ] = None,
    least: Annotated[int, typer.Option(min=1, help="A word is known if it occurs so often.")] = LEAST,
    as_json: Json = False,
) -> None:
    """List the words of a model's training text; `translate` then restores unknown names that the model misspells."""
    from dragoman import bundle
    from dragoman.cli.progress import LineProgress
    from dragoman.config import TRANSLATION
    from dragoman.data.corpus import count_lines
    from dragoman.text.words import KnownWords

    directory = resolve_extensible(model, out)
    bundle.require_task(bundle.load_config(directory), TRANSLATION, model)
    with nullcontext() if out is None else bundle.removed_on_error(out):
        if out is not None:
            bundle.copy_model(directory, out, bundle.WORDS)
        with LineProgress("words", sum(map(count_lines, [*source, *target]))) as progress:
            known = KnownWords(*(list_words(files, least, progress.advance) for files in (source, target)))
        bundle.save_words(out or directory, known)
    paths = [(out or directory) / name for name in bundle.WORDS]
    record = {str(path): len(words) for path, words in zip(paths, known, strict=True)}
    if as_json:
        print(json.dumps({"files": record, "least": least}))
    else:
        for path, words in zip(paths, known, strict=True):
            print(f"{path}: {len(words):,} words that occur {least} times or more, {path.stat().st_size:,} bytes")


def list_words(files: Sequence[Path], least: int = LEAST, advance: Advance = no_progress) -> "WordList":
    """The words that occur so often in all of these files."""
    from dragoman.data.corpus import read_lines, valid_line
    from dragoman.text.words import MAX_TEXT, MAX_WORDS, WordCounter

    counter = WordCounter()
    texts = (valid_line(line, file).text for file in files for line in read_lines(file))
    while own := list(itertools.islice(texts, LINES_AT_A_TIME)):
        counter.add(own)
        advance(len(own))
    count, size = counter.size_at_least(least)
    if not count:
        raise DataError(f"{files[0]}: no word occurs {least} times; give more text, or a lower --least")
    if count > MAX_WORDS or size > MAX_TEXT:
        raise DataError(
            f"{files[0]}: {count:,} words in {size:,} bytes occur {least} times or more, at most {MAX_WORDS:,} in "
            f"{MAX_TEXT:,} are allowed; give a higher --least"
        )
    return counter.at_least(least)
