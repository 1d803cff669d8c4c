"""Cuts lines into pieces short enough for a model, and joins their translations. Knows nothing of searches."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.data.corpus import Line, text_line
from dragoman.decode.names import Names, find_names
from dragoman.decode.translation import Translation
from dragoman.text.casing import Recaser, knows_case
from dragoman.text.normalize import is_blank
from dragoman.text.sentences import sentences
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.words import KnownWords


class Piece(NamedTuple):
    """A part of one line, short enough for the model."""

    line: int
    number: int  # among the pieces of its line
    text: str
    ids: list[int]
    glue: str  # joins its translation to that of the previous piece
    cut: bool  # part of a sentence that was too long
    in_capitals: bool = False  # the model reads it as it is usually written
    names: Names | None = None  # in its text, that the model has never read

    def write(self, translation: str) -> str:
        """What the model wrote, with names as they are in the text, and in capitals if the text is."""
        translation = self.names.restore(translation) if self.names else translation
        return translation.upper() if self.in_capitals else translation


@dataclass(frozen=True)
class Window:
    """Lines that are translated together. All dictionaries are by the number of a line."""

    texts: list[str]
    results: dict[int, Translation]  # of lines that need no translation
    sentences_of: dict[int, list[str]]  # of the others
    pieces_of: dict[int, list[Piece]]
    inputs_of: dict[int, list[str]] = field(default_factory=dict)  # the sentences as the model reads them
    altered: dict[int, str] = field(default_factory=dict)  # lines that could not be kept as asked, and why

    @property
    def inputs(self) -> list[str]:
        return list(itertools.chain.from_iterable(self.inputs_of.values()))

    @functools.cached_property
    def pieces(self) -> list[Piece]:
        return list(itertools.chain.from_iterable(self.pieces_of.values()))


class Cutter:
    """From lines to pieces of at most `longest` ids, with </s>."""

    def __init__(self, tokenizer: Tokenizer, longest: int, known: KnownWords | None = None) -> None:
        self.tokenizer, self.longest, self._known = tokenizer, longest, known
        self._recaser = Recaser(tokenizer, known.source if known else None) if knows_case(tokenizer) else None

    def into_sentences(self, lines: Sequence[str | Line], split: str, recase: bool = False) -> Window:
        """Set aside blank and invalid lines; split the others into sentences. `recase` those that are in capitals."""
        recaser = self._recaser if recase else None
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
                own = sentences(text) if split == "sentences" else [text]
                window.sentences_of[number] = own
                window.inputs_of[number] = [recaser.recase(each) for each in own] if recaser else own
        return window

    def into_pieces(self, window: Window, ids: list[list[int]], tag: list[int], restore_names: bool = False) -> Window:
        """Cut lines into pieces, given the ids of all inputs; `tag` comes before each."""
        rest, known = iter(ids), self._known if restore_names else None
        for number, parts in window.sentences_of.items():
            pieces = window.pieces_of[number] = []
            for sentence, read in zip(parts, window.inputs_of[number], strict=True):
                for text, own, glue, is_cut in self._cut(sentence, read, next(rest), tag):
                    names = find_names(text if is_cut else read, known) if known else None
                    pieces.append(Piece(number, len(pieces), text, own, glue, is_cut, read != sentence, names))
        return window

    def _cut(
        self, sentence: str, read: str, ids: list[int], tag: list[int]
    ) -> Iterator[tuple[str, list[int], str, bool]]:
        """What a model is given of a sentence that it reads as `read`: texts, ids, what joins them, and whether it is
        too long as a whole."""
        if len(tag) + len(ids) < self.longest:  # as `split` would, but this is the usual case
            yield sentence, [*tag, *ids, self.tokenizer.vocabulary.eos], " ", False
            return
        parts = self.split(read, tag, ids)
        for part, (text, own, glue) in enumerate(parts):
            yield text, own, glue if part else " ", len(parts) > 1

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
        return pieces[0].write(next(texts))
    return "".join([piece.glue + piece.write(next(texts)) for piece in pieces]).strip()


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
