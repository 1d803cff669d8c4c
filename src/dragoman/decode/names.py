"""Copies names from the source that a model has misspelled. Knows nothing of models.

A model spells a name that it has never read from small pieces, and may get one wrong: of Snowden it makes Sneden. A
word of the translation is taken for such a name if it is not in the source, no text of its language was known to have
it, and it resembles a name of the source that was not known either.

At the start of a sentence, or where most words have a capital, an unknown word may be an ordinary one, rightly
translated: Bioinformatik resembles Bioinformatics. Such words differ at their end, where misspelled names hardly ever
do.
"""

import difflib
import functools
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dragoman.text.words import KnownWords, WordList, compose, replace_words, words_in

SHORTEST, LONGEST = 4, 40  # letters of a name; a misspelling may have one fewer
SIMILAR = 0.6  # share of the letters that a name and its misspelling have in common, in order
SIMILAR_IN_COMPOUND = 0.8  # of the first part of one
SIMILAR_IF_ALONE = 0.35  # of the only name that is missing and the only unknown word
MOST_LONGER = 3  # letters that a misspelling may have more than the name
LEAST_REST = 4  # letters of the second part of a compound
LEAST_PART = 4  # letters of each part of an ordinary one
LINKING = "s"  # between such parts
SENTENCE_ENDS = frozenset(".!?:…")
_CAPITALIZED = re.compile(rf"(?<![^\W\d_])[^\W\d_a-zß-öø-ÿ][^\W\d_]{{{SHORTEST - 1},}}")  # and some other words


class Names(NamedTuple):
    """Names of a source text that its model has never read."""

    unknown: tuple[str, ...]
    doubtful: frozenset[str]  # those that may be ordinary words
    allowed: frozenset[str]  # words that may be in the translation as they are
    known: WordList  # of the target language

    def excluding(self, texts: Iterable[str]) -> "Names":
        """The same, but the words of these texts are allowed too."""
        return self._replace(allowed=self.allowed.union(*map(words_in, texts)))

    def restore(self, translation: str) -> str:
        found = replace_words(translation, self._correct)
        missing = [name for name in self.unknown if name.lower() not in found.lower()]
        wrong = {word for word in words_in(found) if self._may_be_wrong(word)} if len(missing) == 1 else set()
        if len(wrong) != 1:
            return found
        (name,), (word,) = missing, wrong  # they belong together
        is_similar = _likeness(name, word) >= SIMILAR_IF_ALONE and _have_same_end(name, word)
        is_whole = len(word) <= len(name) + MOST_LONGER and not any(self._first_parts(word))
        is_same = is_similar and is_whole
        return replace_words(found, lambda each: name if each == word else each) if is_same else found

    def _correct(self, word: str) -> str:
        if not self._may_be_wrong(word):
            return word
        candidates = (
            (_likeness(name, stem), name, stem)
            for stem in self._stems(word)
            for name in self.unknown
            if _likeness_bound(name, stem) >= SIMILAR
        )
        forms = [each for each in candidates if self._is_form(*each, word)]
        if not forms:
            return word
        _, name, stem = max(forms)
        rest = word[len(stem) :]
        return name if rest == "s" and name.lower().endswith("s") else name + rest

    def _is_form(self, likeness: float, name: str, stem: str, word: str) -> bool:
        is_compound = len(stem) + LEAST_REST <= len(word)
        is_surer = is_compound or name in self.doubtful
        if is_surer and not _have_same_end(name, stem):
            return False
        return likeness >= (SIMILAR_IN_COMPOUND if is_compound else SIMILAR) and len(stem) <= len(name) + MOST_LONGER

    def _stems(self, word: str) -> Iterator[str]:
        """What of a word may be a name: all of it, without the `s` of a genitive, or the first part of a compound."""
        yield word
        if word.endswith("s"):
            yield word[:-1]
        yield from self._first_parts(word)

    def _first_parts(self, word: str) -> Iterator[str]:
        for end in range(SHORTEST - 1, len(word) - LEAST_REST + 1):
            if word[end:] in self.known:
                yield word[:end]

    def _may_be_wrong(self, word: str) -> bool:
        is_name = SHORTEST - 1 <= len(word) <= LONGEST and word[0].isupper()
        if not is_name or word in self.allowed or word in self.known:
            return False
        return not any(name.lower() in word.lower() for name in self.unknown)  # inflected, or part of a compound


def find_names(text: str, known: KnownWords) -> Names | None:
    """The names of a source text that are not known; None if it has none."""
    text = compose(text)
    found = [match for match in _CAPITALIZED.finditer(text) if _is_unknown(match.group(), known.source)]
    if not found:
        return None
    names = dict.fromkeys(match.group() for match in found)
    doubtful = {match.group() for match in found if _starts_sentence(text, match.start())}
    words = words_in(text)
    ordinary = [word for word in words[1:] if word not in names]
    if 2 * sum(word[0].isupper() for word in ordinary) >= len(ordinary):  # a title
        doubtful.update(names)
    return Names((*names,), frozenset(doubtful), frozenset(words), known.target)


def _starts_sentence(text: str, place: int) -> bool:
    """Whether no letter stands before this place, or the end of a sentence between them."""
    while place and not text[place - 1].isalpha():
        place -= 1
        if text[place] in SENTENCE_ENDS:
            return True
    return place == 0


def _is_unknown(word: str, known: WordList) -> bool:
    is_candidate = SHORTEST <= len(word) <= LONGEST and word[0].isupper() and word not in known
    return is_candidate and not _is_compound(word, known)


def _is_compound(word: str, known: WordList) -> bool:
    """Whether it consists of known words, as Charakterrolle does: an ordinary noun."""
    ends = {0}  # where parts end
    for start in range(len(word) - LEAST_PART + 1):
        if start in ends:
            for end in range(start + LEAST_PART, len(word) + 1):
                if word[start:end] in known:
                    ends |= {end, end + 1} if word[end : end + 1] == LINKING else {end}
    return len(word) in ends


def _have_same_end(name: str, word: str) -> bool:
    """Or differ in one letter."""
    return name[-1].lower() == word[-1].lower() or (len(name) == len(word) and sum(map(operator.ne, name, word)) == 1)


def _likeness_bound(one: str, other: str) -> float:
    """What `_likeness` cannot exceed, whatever the order of the letters; it takes less time."""
    return 2 * sum((Counter(one) & Counter(other)).values()) / (len(one) + len(other))


@functools.lru_cache(1 << 12)
def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
