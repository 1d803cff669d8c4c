"""Text all in capitals: which is, and how its words are usually written. Knows nothing of models.

A vocabulary learned from ordinary text spells capitals letter by letter, and a model has hardly ever seen them. What it
knows is the usual form of each word: the one that takes the fewest pieces.
"""

import functools
import re

from dragoman.text.normalize import is_lowercase
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.words import WordList

LEAST_WORDS = 2  # one word in capitals may be an abbreviation
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_START = re.compile(r"(?:^|[.!?]\s+)\W*[^\W\d_]")


def knows_case(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary tells how words are usually written: one of subwords, with both cases."""
    is_subword = type(tokenizer) is Tokenizer and tokenizer.kind in ("bpe", "unigram")
    return is_subword and not is_lowercase(tokenizer.normalization)


def is_in_capitals(text: str) -> bool:
    """Whether all letters are capitals, in several words of more than one letter."""
    return text.isupper() and sum(len(word) > 1 for word in _WORD.findall(text)) >= LEAST_WORDS


class Recaser:
    """Writes text in capitals as the vocabulary knows it."""

    def __init__(self, tokenizer: Tokenizer, known: WordList | None = None) -> None:
        self._tokenizer, self._known = tokenizer, known
        self._usual_form = functools.lru_cache(1 << 16)(self._find_usual_form)

    def recase(self, text: str) -> str:
        """Text in capitals in the usual form of each word, with a capital at the start of each sentence; other text."""
        if not is_in_capitals(text):
            return text
        text = _WORD.sub(lambda match: self._usual_form(match.group()), text)
        return _START.sub(lambda match: match.group()[:-1] + match.group()[-1].upper(), text)

    def _find_usual_form(self, word: str) -> str:
        if self._known is not None and word not in self._known:
            return word.capitalize()  # a name
        forms = dict.fromkeys((word.lower(), word.capitalize(), word))

        def cost(form: str) -> tuple[int, int]:
            ids = self._tokenizer.encode(form)
            return len(ids), sum(ids)  # of as many pieces, the more frequent ones: they have lower ids

        return min(forms, key=cost)
