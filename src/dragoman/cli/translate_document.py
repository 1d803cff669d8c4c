"""`dragoman translate --input FILE` for a document: every segment translated, everything else as it was."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.streams import opened
from dragoman.cli.tally import Tally, is_to_review
from dragoman.errors import ConfigError, suggestion
from dragoman.files import is_stream, require_writable, write_file

if TYPE_CHECKING:
    from dragoman.config import DecodeConfig
    from dragoman.decode.terms import Glossary
    from dragoman.decode.translator import Translator
    from dragoman.documents.document import Document, Parts

Format = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of the input: text, html, po ...  \\[default: by its name]")
]
Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="PATH", help="JSON: which values, as items.*.title; repeatable.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME",
        help="CSV, TSV: by name, or number from 1; repeatable. Of a folder: the field with the text.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="PO, XLIFF, TMX: replace translations that exist, too.")]
Fuzzy = Annotated[bool, typer.Option("--fuzzy", help="PO, XLIFF: mark translations as needing review.")]


_FORMATS_WITH = {
    "keys": ("--key", ("json", "jsonl")),
    "columns": ("--column", ("csv", "tsv")),
    "all": ("--all", ("po", "xliff", "tmx")),
    "fuzzy": ("--fuzzy", ("po", "xliff")),
}


def document_format(input: Path | None, format: str | None) -> str | None:
    """The format of a document; None if the input is lines of text."""
    from dragoman.documents.formats import FORMATS, recognise, refuse_unreadable

    if format is not None and format not in FORMATS:
        raise ConfigError(f"--format: {format!r} is unknown; {suggestion(format, FORMATS)}")
    if input is None or input.is_dir():
        return None
    if format is None:
        refuse_unreadable(input)
    found = format or recognise(input)
    return None if found == "text" else found


def require_document(document: str | None, input: Path | None, format: str | None, about: dict[str, Any]) -> None:
    """Refuse options that would have no effect."""
    if input is None and format is not None:
        raise ConfigError("--format: is that of a document; give it with --input")
    for name, (option, formats) in _FORMATS_WITH.items():
        if not about[name] or document in formats:
            continue
        if document is None:
            what = "a document or a folder" if option == "--column" else "a document"
            raise ConfigError(f"{option}: says how to read {what}; give one with --input")
        raise ConfigError(f"{option}: has no meaning in {document}, only in {', '.join(formats)}; leave it out")


def refuse_for_document(given: Mapping[str, bool]) -> None:
    """Refuse options of lines of text."""
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(f"{option}: not possible for a document; leave it out, or add --format text")


@dataclass(frozen=True)
class DocumentJob:
    """How to translate the segments of a document."""

    translator: "Translator"
    options: "DecodeConfig"
    glossary: "Glossary | None"
    as_json: bool
    min_confidence: float | None = None  # a segment below it is to be reviewed

    def write(self, input: Path, output: Path | None, format: str, about: dict[str, Any]) -> Tally:
        from dragoman.documents.document import Options
        from dragoman.documents.formats import ARCHIVES, parse_document

        if self.as_json and output is None:
            raise ConfigError("--json: prints a record for each segment; give --output for the document")
        if output is None and format in ARCHIVES and (sys.stdout is None or sys.stdout.isatty()):
            raise ConfigError(f"--output: give a file for the translated .{format}")
        if output is not None and not is_stream(output):
            require_writable(output)
        source, target = self.translator.languages
        document = parse_document(input, Options(source_language=source, target_language=target, **about), format)
        tally = Tally("segments", language=self.translator.languages[0])
        content = document.render(self._translations(document, tally))
        if output is None:
            with opened(None) as stream:
                stream.flush()
                stream.buffer.write(content)
        elif is_stream(output):
            output.write_bytes(content)
        else:
            write_file(output, content)
        return tally

    def _translations(self, document: "Document", tally: Tally) -> "list[Parts | None]":
        from dragoman.cli.progress import LineProgress
        from dragoman.decode.translator import windows

        segments: Sequence[Any] = document.segments
        size = self.translator.window_size(self.options)
        found: list[Parts | None] = []
        with LineProgress("translate", len(segments), unit="segments") as progress:
            parts = windows((segment.parts for segment in segments), size)
            results = self.translator.stream_parts(
                parts, options=self.options, glossary=self.glossary, advance=progress.advance
            )
            for segment, (translation, own) in zip(segments, results, strict=True):
                to_review = is_to_review(translation, self.min_confidence)
                tally.add(translation, to_review, segment.place)
                found.append(own)
                if self.as_json:
                    record = {"place": segment.place, **translation.to_dict()}
                    record |= {} if self.min_confidence is None else {"review": to_review}
                    print(json.dumps(record, ensure_ascii=False))
        return found
