"""Copies names from the source that a model has misspelt. Knows nothing of models.

A model spells a name that it has never read from small pieces, and may get one wrong: of Snowden it makes Sneden. A
word of the translation is taken for such a name if it is not in the source, no text of its language was known to have
it, and it resembles a name of the source that was not known either.
"""

import difflib
from collections.abc import Iterable
from typing import NamedTuple

from dragoman.text.words import KnownWords, WordList, replace_words, words_in

SHORTEST, LONGEST = 4, 40  # letters of a name; a misspelling may have one fewer
SIMILAR = 0.6  # share of the letters that a name and its misspelling have in common, in order


class Names(NamedTuple):
    """Names of a source text that its model has never read."""

    unknown: tuple[str, ...]
    right: frozenset[str]  # words that may be in the translation as they are
    known: WordList  # of the target language

    def sparing(self, texts: Iterable[str]) -> "Names":
        """The same, but the words of these texts are right too."""
        return self._replace(right=self.right.union(*map(words_in, texts)))

    def restore(self, translation: str) -> str:
        return replace_words(translation, self._right_form)

    def _right_form(self, word: str) -> str:
        is_name = SHORTEST - 1 <= len(word) <= LONGEST and word[0].isupper()
        if not is_name or word in self.right or word in self.known:
            return word
        lower = word.lower()
        if any(name.lower() in lower for name in self.unknown):  # inflected, or part of a compound
            return word
        likeness, name = max((_likeness(name, word), name) for name in self.unknown)
        if likeness < SIMILAR:
            return word
        is_genitive = lower.endswith("s") and not name.lower().endswith("s") and _likeness(name, word[:-1]) > likeness
        return f"{name}s" if is_genitive else name


def find_names(text: str, known: KnownWords) -> Names | None:
    """The names of a source text that are not known; None if it has none."""
    words = words_in(text)
    unknown = dict.fromkeys(
        word for word in words if SHORTEST <= len(word) <= LONGEST and word[0].isupper() and word not in known.source
    )
    return Names((*unknown,), frozenset(words), known.target) if unknown else None


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
