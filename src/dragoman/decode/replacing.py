"""What a second search, for the terms of a glossary, must not write: the words that the terms replace.

The first translation shows which words these are: those aligned to the source of a term and needed for nothing else.
Without them a search writes the term in their place; with them it finds the term a place beside them. Knows nothing of
searches.
"""

import re
from collections.abc import Sequence

from dragoman.decode.alignment import LEAST_FROM_SOURCE, Alignment
from dragoman.decode.batches import Outcome
from dragoman.decode.constraints import SENTENCE_ENDS, Banned, OneSentence, Rule, Spelling
from dragoman.decode.keeping import Align
from dragoman.decode.terms import Term
from dragoman.errors import ConfigError, DataError
from dragoman.text.offsets import word_spans
from dragoman.text.tokenizer import Span, Tokenizer

LEAST_STEM = 3  # letters
_WORD = re.compile(r"\w+")


def rules_for_terms(
    align: Align,
    tokenizer: Tokenizer,
    spelling: Spelling,
    source: str,
    outcome: Outcome,
    terms: Sequence[Term],
    prefix: str = "",
) -> list[Rule]:
    """What holds in the search for a translation with these terms, given the outcome of one without them.

    The tokenizer and its spelling are those of the target.
    """
    if isinstance(outcome, str) or all(term.once for term in terms):  # numbers in place of kept words stay free
        return []
    translation = tokenizer.decode(outcome[0].ids)
    stems = replaced_stems(align, source, translation, terms, prefix)
    rules: list[Rule] = [Banned(spelling, stems, longer=True)] if stems else []
    has_several = any(_has_inner_end(text) for text in (translation, prefix))
    return rules if has_several else [*rules, OneSentence(spelling)]  # a term would come after the sentence


def _has_inner_end(text: str) -> bool:
    """Whether a word follows a full stop."""
    between_words = _WORD.split(text)[1:-1]
    return any(SENTENCE_ENDS & {*gap} and any(map(str.isspace, gap)) for gap in between_words)


def replaced_stems(align: Align, source: str, translation: str, terms: Sequence[Term], prefix: str = "") -> list[str]:
    """How words begin that terms replace; none where the model cannot align the pair."""
    try:  # alone, because other pairs change the last bits of the attention
        (alignment,) = align([source], [translation])
    except (ConfigError, DataError):
        return []
    needed = [prefix, *(target for term in terms for target in term.targets)]
    return aligned_stems(alignment, terms, needed)


def aligned_stems(alignment: Alignment, terms: Sequence[Term], needed: Sequence[str]) -> list[str]:
    """How words of the target begin that translate a term, if no other word of it or of `needed` begins so."""
    words = [(match.group(), match.span()) for match in _WORD.finditer(alignment.target)]
    linked = _linked_to_terms(alignment, terms)
    replaced = [word for word, span in words if any(_overlap(span, own) for own in linked)]
    others = [word for word, span in words if not any(_overlap(span, own) for own in linked)]
    others += [word for text in needed for word in _WORD.findall(text)]
    stems = dict.fromkeys(_stem(word) for word in replaced if len(word) >= LEAST_STEM and _is_cased(word))
    return [stem for stem in stems if not any(other.casefold().startswith(stem.casefold()) for other in others)]


def _linked_to_terms(alignment: Alignment, terms: Sequence[Term]) -> list[Span]:
    """Of each source word of a term: the target word that attends to it most, unless that has another source."""
    weight_JI = alignment.word_weights
    if not weight_JI.size:
        return []
    places = [place for term in terms for place in term.places_in(alignment.source)]
    own = [
        number for number, span in enumerate(word_spans(alignment.source)) if any(_overlap(span, at) for at in places)
    ]
    best_I, best_J = weight_JI.argmax(axis=0), weight_JI.argmax(axis=1)
    linked = {int(best_I[i]) for i in own if weight_JI[best_I[i], i] >= LEAST_FROM_SOURCE and best_J[best_I[i]] in own}
    spans = word_spans(alignment.target)
    return [spans[place] for place in sorted(linked)]


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _stem(word: str) -> str:
    """Half of a word: a search should neither inflect it nor break it off."""
    return word[: max(LEAST_STEM, (len(word) + 1) // 2)]


def _is_cased(word: str) -> bool:
    """Whether it is of a language that separates words."""
    return word[0].isupper() or word[0].islower()
