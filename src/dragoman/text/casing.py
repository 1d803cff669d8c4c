"""Text all in capitals: which is, and how its words are usually written. Knows nothing of models.

A vocabulary learned from ordinary text spells capitals letter by letter, and a model has hardly ever seen them. What it
knows is the usual form of each word: the one that a list of the words it has read says, or else the one that takes the
fewest pieces.
"""

import functools
import re
from collections.abc import Iterable

from dragoman.text.normalize import is_lowercase
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.words import WordList, compose, words_in

LEAST_WORDS = 2  # one word in capitals may be an abbreviation
MIN_LETTERS_OF_WORD = 4  # in a line of its own; shorter ones may be abbreviations: WHO
FEWER_PIECES = 2  # in its usual form, at least: coffee takes three, COFFEE five
LONGEST_CACHED = 40  # letters
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def knows_case(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary tells how words are usually written: one of subwords, with both cases."""
    is_subword = type(tokenizer) is Tokenizer and tokenizer.kind in ("bpe", "unigram")
    return is_subword and not is_lowercase(tokenizer.normalization)


def is_in_capitals(text: str) -> bool:
    """Whether all letters are capitals, in several words of more than one letter."""
    return text.isupper() and sum(len(word) > 1 for word in _WORD.findall(text)) >= LEAST_WORDS


def in_capitals(text: str, kept: Iterable[tuple[int, int]] = ()) -> str:
    """A text in capitals, but for these spans of it."""
    parts, done = [], 0
    for start, end in sorted(kept):
        parts += [text[done:start].upper(), text[max(done, start) : end]]
        done = max(done, end)
    return "".join([*parts, text[done:].upper()])


def lower_capitals(text: str) -> str:
    """A text in capitals in lower case, if that is as long; other text."""
    lower = text.lower() if is_in_capitals(text) else text
    return lower if len(lower) == len(text) else text


class Recaser:
    """Writes text in capitals as the vocabulary knows it."""

    def __init__(self, tokenizer: Tokenizer, known: WordList | None = None) -> None:
        self._tokenizer, self._known = tokenizer, known
        self._cached_form = functools.lru_cache(1 << 16)(self._find_usual_form)

    def recase(self, text: str, line: str = "") -> str:
        """Text in capitals as it is usually written, part of such a line or not; other text as it is."""
        is_shouted = is_in_capitals(text) or (text.isupper() and (is_in_capitals(line) or self._is_known_word(text)))
        return self.to_usual_case(text) if is_shouted else text

    def to_usual_case(self, text: str) -> str:
        """The usual form of each word, with a capital at the start of each sentence."""
        text = _WORD.sub(lambda match: self._usual_form(match.group()), compose(text))
        return _start_with_capitals(text)

    def _is_known_word(self, text: str) -> bool:
        """Whether this is one word that takes clearly fewer pieces as it is usually written; OPEC takes as many."""
        words = _WORD.findall(text)
        if len(words) != 1 or len(words[0]) < MIN_LETTERS_OF_WORD or self._known is None or words[0] not in self._known:
            return False
        usual, own = (len(self._tokenizer.encode(form)) for form in (self._usual_form(words[0]), words[0]))
        return own - usual >= FEWER_PIECES

    def _usual_form(self, word: str) -> str:
        return self._cached_form(word) if len(word) <= LONGEST_CACHED else self._find_usual_form(word)

    def _find_usual_form(self, word: str) -> str:
        forms = self._known.usual_forms(word) if self._known is not None else []
        if not forms:
            if self._known is not None and not all(part in self._known for part in words_in(word)):
                return word.capitalize()  # a name
            forms = [*dict.fromkeys((word.lower(), word.capitalize(), word))]

        def cost(form: str) -> tuple[int, int]:
            ids = self._tokenizer.encode(form)
            return len(ids), sum(ids)  # of as many pieces, the more frequent ones: they have lower ids

        return min(forms, key=cost)


def _start_with_capitals(text: str) -> str:
    """With a capital at the start of each sentence. The time is proportional to the length of the text."""
    characters, has_stop, is_start = [*text], False, True
    for place, character in enumerate(text):
        if character.isalnum():
            if is_start and character.isalpha():
                characters[place] = character.upper()
            has_stop = is_start = False
        elif character in ".!?":
            has_stop = True
        elif character.isspace():
            is_start |= has_stop
    return "".join(characters)
