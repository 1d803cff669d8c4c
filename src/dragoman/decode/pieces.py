"""Cuts lines into pieces short enough for a model, and joins their translations. Knows nothing of searches."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.data.corpus import Line, text_line
from dragoman.decode.translation import Translation
from dragoman.text.normalize import is_blank
from dragoman.text.sentences import sentences
from dragoman.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """A part of one line, short enough for the model."""

    line: int
    number: int  # among the pieces of its line
    text: str
    ids: list[int]
    glue: str  # joins its translation to that of the previous piece
    cut: bool  # part of a sentence that was too long


@dataclass(frozen=True)
class Window:
    """Lines that are translated together. All dictionaries are by the number of a line."""

    texts: list[str]
    results: dict[int, Translation]  # of lines that need no translation
    sentences_of: dict[int, list[str]]  # of the others
    pieces_of: dict[int, list[Piece]]
    altered: dict[int, str] = field(default_factory=dict)  # lines that could not be kept as asked, and why

    @property
    def sentences(self) -> list[str]:
        return list(itertools.chain.from_iterable(self.sentences_of.values()))

    @functools.cached_property
    def pieces(self) -> list[Piece]:
        return list(itertools.chain.from_iterable(self.pieces_of.values()))


class Cutter:
    """From lines to pieces of at most `longest` ids, with </s>."""

    def __init__(self, tokenizer: Tokenizer, longest: int) -> None:
        self.tokenizer, self.longest = tokenizer, longest

    def into_sentences(self, lines: Sequence[str | Line], split: str) -> Window:
        """Set aside blank and invalid lines; split the others into sentences."""
        window = Window([], {}, {}, {})
        for number, given in enumerate(lines):
            line = given if isinstance(given, Line) else text_line(given)
            text = line.text
            window.texts.append(text)
            if line.problem:
                source = text if isinstance(given, Line) else given
                window.results[number] = Translation(source, "", "failed", reason=line.problem)
            elif is_blank(text):
                window.results[number] = Translation(text, "", "empty")
            else:
                window.sentences_of[number] = sentences(text) if split == "sentences" else [text]
        return window

    def into_pieces(self, window: Window, ids: list[list[int]], tag: list[int]) -> Window:
        """Cut lines into pieces, given the ids of all sentences; `tag` comes before each."""
        rest = iter(ids)
        for number, parts in window.sentences_of.items():
            window.pieces_of[number] = self._pieces(number, parts, rest, tag)
        return window

    def _pieces(self, number: int, sentences: list[str], ids_of: Iterator[list[int]], tag: list[int]) -> list[Piece]:
        """The model's inputs of a line, given its sentences and their ids; anything too long is cut into parts."""
        pieces: list[Piece] = []
        room, end = self.longest - len(tag), self.tokenizer.vocabulary.eos
        for sentence in sentences:
            ids = next(ids_of)
            if len(ids) < room:  # as `split` would, but this is the usual case
                pieces.append(Piece(number, len(pieces), sentence, [*tag, *ids, end], " ", cut=False))
                continue
            parts = self.split(sentence, tag, ids)
            for part, (text, ids, glue) in enumerate(parts):
                pieces.append(Piece(number, len(pieces), text, ids, glue if part else " ", cut=len(parts) > 1))
        return pieces

    def split(self, line: str, tag: list[int], ids: list[int] | None = None) -> list[tuple[str, list[int], str]]:
        """Split a line into as many pieces as the model's longest input requires: texts, ids, and what joins them."""
        ids = self.tokenizer.encode(line) if ids is None else ids
        if len(tag) + len(ids) < self.longest or len(line) < 2:
            return [(line, [*tag, *ids, self.tokenizer.vocabulary.eos], "")]
        place = middle(line)
        first, second = line[:place], line[place:]
        if is_blank(first) or is_blank(second):
            return self.split(second if is_blank(first) else first, tag)
        (text, ids, _), *rest = self.split(second, tag)
        glue = " " if first[-1].isspace() or second[0].isspace() else ""
        return [*self.split(first, tag), (text, ids, glue), *rest]


def join(pieces: list[Piece], texts: Iterator[str]) -> str:
    """A line from the translations of its pieces."""
    if len(pieces) == 1:
        return next(texts)
    return "".join([piece.glue + next(texts) for piece in pieces]).strip()


_BOUNDARIES = (
    re.compile(r"(?<=[.!?。！？…])\s+|(?<=[。！？])"),
    re.compile(r"(?<=[,;:、，；])\s*"),
    re.compile(r"\s+"),
)


def middle(line: str) -> int:
    """Where to cut a line that is too long: the sentence end, else clause end, else space nearest to its middle."""
    for boundary in _BOUNDARIES:
        places = [match.end() for match in boundary.finditer(line) if len(line) // 8 < match.end() < len(line)]
        if places:
            return min(places, key=lambda place: abs(place - len(line) // 2))
    return len(line) // 2
