"""What a document is to a translator: segments of text with inline markup. Knows nothing of models.

A format is a function `parse(content: bytes, options: Options) -> Document`. A document keeps whatever is not text.
Rendering it with the parts of its own segments gives the same bytes where the format allows, else the same tree.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

LARGEST = 64 << 20  # bytes of a document; an archive has limits of its own


class Mark(NamedTuple):
    """Where inline markup begins, ends or stands. The reader sees no text: `<b>`, `</b>`, `<br>`."""

    number: int  # of the element within its segment; `open` and `close` of one have the same
    kind: Literal["open", "close", "single"]


class Kept(NamedTuple):
    """Words of a sentence that are not translated: inline code, a placeholder with a text."""

    number: int  # of the element within its segment; marks are counted with them
    text: str  # what the reader sees, and the model too


Parts: TypeAlias = tuple[str | Mark | Kept, ...]


@dataclass(frozen=True)
class Segment:
    """Text that is translated as a whole: a paragraph, a heading, a message, a cell.

    Its parts have no white space at either end (it belongs to the document), and some text that is not blank. In a
    translation, every mark and every kept text occurs exactly once, properly nested, in any order. A newline ends a
    line: each is translated alone, and a format that has its own mark for it (`<br>`) gives the mark and a newline.
    """

    parts: Parts
    place: str = ""  # for people: "line 12", "entry 7", "row 3, column text"

    @property
    def text(self) -> str:
        """What the reader sees."""
        return text_of(self.parts)


class Document(Protocol):
    """A parsed file."""

    @property
    def segments(self) -> Sequence[Segment]:
        """What is to be translated, in reading order."""
        ...

    def render(self, translations: Sequence[Parts | None]) -> bytes:
        """The file with one translation for each segment; None leaves a segment as it was."""
        ...


@dataclass(frozen=True)
class Options:
    """What a user says about a document. A format ignores what does not concern it."""

    source_language: str = ""  # as a file writes it, "en"; empty: as it says itself
    target_language: str = ""
    keys: tuple[str, ...] = ()  # JSON: which values; empty is all strings
    columns: tuple[str, ...] = ()  # CSV and TSV: by name, or by number from 1; empty is all that hold text
    all: bool = False  # PO, XLIFF, TMX: replace translations that exist, too
    fuzzy: bool = False  # PO: mark what was translated as fuzzy; XLIFF: as needing review


def text_of(parts: Parts) -> str:
    return "".join(part if isinstance(part, str) else part.text if isinstance(part, Kept) else "" for part in parts)


def merge_text(parts: Iterable[str | Mark | Kept]) -> Parts:
    """The same parts with neighbouring text joined, and without empty text."""
    merged: list[str | Mark | Kept] = []
    texts: list[str] = []  # since the last part that is none; joined once, for there may be very many
    for part in parts:
        if isinstance(part, str):
            if part:
                texts.append(part)
            continue
        if texts:
            merged.append("".join(texts))
            texts = []
        merged.append(part)
    return (*merged, "".join(texts)) if texts else tuple(merged)
