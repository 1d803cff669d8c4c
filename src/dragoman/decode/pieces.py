"""Cuts lines into pieces short enough for a model, and joins their translations. Knows nothing of searches."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dragoman.data.corpus import Line, text_line
from dragoman.decode.names import Names, find_names
from dragoman.decode.terms import Term
from dragoman.decode.translation import Translation
from dragoman.text.casing import Recaser, in_capitals, is_in_capitals, knows_case
from dragoman.text.normalize import is_blank
from dragoman.text.sentences import FINAL_ABBREVIATIONS, menu_items, sentences, without_open_brackets
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.words import KnownWords

_ADDED_MARK = re.compile(r"(?<=[^\W\d_][^\W\d_])[.!]\Z")
_ABBREVIATED = re.compile(rf"\b(?:{'|'.join(FINAL_ABBREVIATIONS)})\.\Z")


class Sentence(NamedTuple):
    """A part of one line that is translated by itself."""

    text: str
    model_input: str  # the same, unless it is in capitals
    separator: str = " "  # from the one before
    is_label: bool = False  # it does not end as a sentence does
    before: str = ""  # a bracket that another sentence closes
    after: str = ""  # one that another has opened


class Piece(NamedTuple):
    """A part of one line, short enough for the model."""

    line: int
    number: int  # among the pieces of its line
    text: str
    ids: list[int]
    glue: str  # joins its translation to that of the previous piece
    cut: bool  # part of a sentence that was too long
    in_capitals: bool = False  # the model reads it as it is usually written
    is_label: bool = False  # no sentence
    before: str = ""  # what its translation begins with
    after: str = ""
    names: Names | None = None  # in its text, that the model has never read
    terms: tuple[Term, ...] = ()  # that its translation was asked to have
    prefix: str = ""  # that it was asked to begin with

    @property
    def may_change(self) -> bool:
        """Whether a translation may be another than what the model wrote."""
        return self.in_capitals or self.is_label or self.names is not None or bool(self.before or self.after)

    def finish(self, translation: str, *, is_complete: bool = True) -> str:
        """What the model wrote, with names as they are in the text, in capitals if the text is, without a full stop
        that the text has not. Terms and a prefix stay as they are."""
        if self.is_label and not any(span[1] == len(translation) for span in self._asked_for(translation)):
            translation = without_added_mark(translation)
        translation = self.names.restore(translation) if self.names else translation
        if self.in_capitals:
            translation = in_capitals(translation, self._asked_for(translation))
        before = "" if self.prefix else self.before
        return before + translation + (self.after if is_complete else "")

    def _asked_for(self, translation: str) -> list[tuple[int, int]]:
        spans = [span for term in self.terms for span in term.spans_in(translation)]
        return [(0, len(self.prefix)), *spans] if translation.startswith(self.prefix) else spans


@dataclass(frozen=True)
class Window:
    """Lines that are translated together. All dictionaries are by the number of a line."""

    texts: list[str]
    results: dict[int, Translation]  # of lines that need no translation
    sentences_of: dict[int, list[Sentence]]  # of the others
    pieces_of: dict[int, list[Piece]]
    altered: dict[int, str] = field(default_factory=dict)  # lines that could not be kept as asked, and why

    @property
    def inputs(self) -> list[str]:
        return [sentence.model_input for own in self.sentences_of.values() for sentence in own]

    @functools.cached_property
    def pieces(self) -> list[Piece]:
        return list(itertools.chain.from_iterable(self.pieces_of.values()))


class Cutter:
    """From lines to pieces of at most `longest` ids, with </s>."""

    def __init__(self, tokenizer: Tokenizer, longest: int, known: KnownWords | None = None) -> None:
        self.tokenizer, self.longest, self.known_words = tokenizer, longest, known
        self._recaser = Recaser(tokenizer, known.source if known else None) if knows_case(tokenizer) else None

    def into_sentences(self, lines: Sequence[str | Line], split: str, recase: bool = False) -> Window:
        """Set aside blank and invalid lines; split the others into sentences. `recase` those that are in capitals."""
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
                window.sentences_of[number] = self._sentences(text, split, self._recaser if recase else None)
        return window

    def _sentences(self, text: str, split: str, recaser: Recaser | None) -> list[Sentence]:
        if split == "sentences" and (menu := menu_items(text)):
            read = recaser.to_usual_case if recaser and is_in_capitals(text) else str
            return [Sentence(item, read(item), f" {sign} ", is_label=True) for sign, item in menu]
        if split != "sentences":
            return [Sentence(text, recaser.recase(text) if recaser else text)]
        parts = sentences(text)
        if len(parts) == 1:
            return [Sentence(text, recaser.recase(text) if recaser else text, is_label=is_label(text))]
        found = []
        for part in parts:
            before, inner, after = without_open_brackets(part)
            model_input = recaser.recase(inner, text) if recaser else inner
            found.append(Sentence(inner, model_input, is_label=is_label(inner), before=before, after=after))
        return found

    def into_pieces(self, window: Window, ids: list[list[int]], tag: list[int], restore_names: bool = False) -> Window:
        """Cut lines into pieces, given the ids of all inputs; `tag` comes before each."""
        rest, known = iter(ids), self.known_words if restore_names else None
        for number, parts in window.sentences_of.items():
            pieces = window.pieces_of[number] = []
            for sentence in parts:
                is_recased = sentence.model_input != sentence.text
                cut = [*self._cut(sentence, next(rest), tag)]
                for part, (text, own, glue, is_cut) in enumerate(cut):
                    names = find_names(text if is_cut else sentence.model_input, known) if known else None
                    shown = text.upper() if is_cut and is_recased else text
                    before, after = sentence.before * (part == 0), sentence.after * (part == len(cut) - 1)
                    is_label = sentence.is_label and part == len(cut) - 1
                    about = glue, is_cut, is_recased, is_label, before, after, names
                    pieces.append(Piece(number, len(pieces), shown, own, *about))
        return window

    def _cut(self, sentence: Sentence, ids: list[int], tag: list[int]) -> Iterator[tuple[str, list[int], str, bool]]:
        """What a model is given of a sentence: texts, ids, what joins them, and whether it is too long as a whole."""
        if len(tag) + len(ids) < self.longest:  # as `split` would, but this is the usual case
            yield sentence.text, [*tag, *ids, self.tokenizer.vocabulary.eos], sentence.separator, False
            return
        parts = self.split(sentence.model_input, tag, ids)
        for part, (text, own, glue) in enumerate(parts):
            yield text, own, glue if part else sentence.separator, len(parts) > 1

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


def is_label(text: str) -> bool:
    """Whether this ends with a word, as titles and buttons do, and sentences do not."""
    return text.rstrip()[-1:].isalnum()


def without_added_mark(translation: str) -> str:
    """Models that have read sentences end everything like one."""
    return translation if _ABBREVIATED.search(translation) else _ADDED_MARK.sub("", translation)


def join(pieces: Sequence[Piece], texts: Sequence[str]) -> str:
    """A line from the finished translations of its pieces."""
    if len(pieces) == 1:
        return texts[0]
    return "".join([piece.glue + text for piece, text in zip(pieces, texts, strict=True)]).strip()


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
