"""Terms whose translation is given: where their source occurs, and whether their target appears. Knows no models.

A glossary is a file of lines `source TAB target [TAB case [TAB note]]`. Both terms may have alternatives, separated by
`|`. A line that starts with `#` is a comment.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from dragoman.data.corpus import read_lines, text_line
from dragoman.decode.constraints import Ids, Spelling
from dragoman.decode.phrases import Form, Phrase
from dragoman.errors import ConfigError, DataError
from dragoman.text.normalize import normalize
from dragoman.text.tokenizer import Tokenizer

Case = Literal["any", "exact"]
MOST_ALTERNATIVES = 32
# What a word may end in and still be the term: inflection that only adds letters. Others are alternatives.
ENDINGS = {
    "": ("s", "es", "'s", "’s"),
    "de": ("e", "n", "en", "er", "ern", "em", "es", "s", "ens", "ns"),
}
ALL_ENDINGS = tuple(sorted({ending for own in ENDINGS.values() for ending in own}))
LONGEST_UNSPACED = 32  # letters of a term in a language without spaces
_WORD, _WORD_OR_MARK = re.compile(r"\w+"), re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Term:
    """Wherever one of the sources occurs, one of the targets must appear."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    case: Case = "any"
    once: bool = False  # and no second time

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(_bounded(re.escape(target), target) for target in self.targets))

    @cached_property
    def _at_start(self) -> re.Pattern[str]:
        """A term in lower case begins with a capital where it begins a sentence."""
        capitals = [target[0].upper() + target[1:] for target in self.targets]
        return re.compile(rf"\W*(?:{'|'.join(_bounded(re.escape(each), each) for each in capitals)})")

    def spans_in(self, text: str) -> list[tuple[int, int]]:
        """Where one of the targets appears in a translation."""
        found = [match.span() for match in self._pattern.finditer(text)]
        first = None if found else self._at_start.match(text)
        return [first.span()] if first else found

    def count_in(self, text: str) -> int:
        return len(self.spans_in(text))

    def is_kept(self, text: str) -> bool:
        return self.count_in(text) == 1 if self.once else self.count_in(text) > 0

    def places_in(self, source: str) -> list[tuple[int, int]]:
        """Where the sources stand in a text, inflected as in any language."""
        patterns = (_source_pattern(own, self.case, ALL_ENDINGS) for own in self.sources)
        return [match.span() for pattern in patterns for match in pattern.finditer(source)]


TermsIn = Callable[[str], list[Term]]  # those that a source text asks for


def no_terms(text: str) -> list[Term]:
    return []


class Glossary:
    """Many terms, found quickly. `language` is that of the source, if it is known: it says how words inflect."""

    def __init__(self, terms: Iterable[Term], language: str = "") -> None:
        self._endings = ENDINGS.get(language, ENDINGS[""])
        self._by_word: dict[str, list[_Entry]] = {}
        for term in terms:
            for source in term.sources:
                first = _WORD.match(source)
                key = first.group().casefold() if first else source[0]
                self._by_word.setdefault(key, []).append(_Entry(source, term, self._endings))

    def __len__(self) -> int:
        return len({id(entry.term) for found in self._by_word.values() for entry in found})

    def terms_in(self, text: str) -> list[Term]:
        """The terms that occur in a source text, each once; of terms that overlap, the one that starts first."""
        found: dict[int, Term] = {}
        place = 0
        for start, word in _words(text):
            if start < place:
                continue
            for entry in self._candidates(word):
                if match := entry.pattern.match(text, start):
                    found.setdefault(id(entry.term), entry.term)
                    place = match.end()
                    break
        return list(found.values())

    def _candidates(self, word: str) -> "list[_Entry]":
        """Terms that may begin with this word, which may be inflected; the longest and exact first."""
        word = word.casefold()
        stems = [word, *(word[: -len(ending)] for ending in self._endings if word.endswith(ending))]
        found = [entry for stem in stems for entry in self._by_word.get(stem, ())]
        if word and not _has_case(word[0]):  # in a language without spaces, a word begins anywhere
            sizes = range(1, min(len(word), LONGEST_UNSPACED))
            found += [entry for size in sizes for entry in self._by_word.get(word[:size], ())]
        return sorted(found, key=lambda entry: (-len(entry.source), entry.term.case != "exact"))


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Where a term may start, and the word there. In a language without spaces that is at every letter."""
    for match in _WORD_OR_MARK.finditer(text):
        yield match.start(), match.group()
        if not _has_case(match.group()[0]):
            for place in range(match.start() + 1, match.end()):
                yield place, text[place : min(match.end(), place + LONGEST_UNSPACED)]


@dataclass(frozen=True)
class _Entry:
    """One source of a term. Its pattern is compiled when it is first needed: a glossary may have very many."""

    source: str
    term: Term
    endings: tuple[str, ...]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return _source_pattern(self.source, self.term.case, self.endings)


def _source_pattern(source: str, case: Case, endings: Sequence[str]) -> re.Pattern[str]:
    """Whole words, the last of which may be inflected."""
    words = r"\s+".join(re.escape(word) for word in source.split())
    ending = f"(?:{'|'.join(map(re.escape, endings))})?" if _has_case(source[-1]) else ""
    return re.compile(_bounded(words + ending, source), re.IGNORECASE if case == "any" else re.NOFLAG)


GlossaryLike = Glossary | str | os.PathLike[str] | Mapping[str, str] | Iterable[Sequence[str]]


def _bounded(pattern: str, text: str) -> str:
    """A pattern that only matches whole words, in a language that separates them.

    `C++` is not in `C+++`, nor `.NET` in `ASP.NET`; but `°C` is in `20°C`, and `%` in `5%`.
    """
    first, last = text[0], text[-1]
    before = after = ""
    if first.isalnum():
        before = "" if _is_unspaced(first) else r"(?<!\w)"
    else:
        before = rf"(?<!{re.escape(first)})" + (r"(?<![^\W\d_])" if _has_word(text) else "")
    if last.isalnum():
        after = "" if _is_unspaced(last) else r"(?!\w)"
    else:
        after = rf"(?!{re.escape(last)})" + (r"(?!\w)" if _has_word(text) else "")
    return before + pattern + after


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _is_unspaced(letter: str) -> bool:
    """Of a language without spaces between words."""
    return letter.isalpha() and not _has_case(letter)


def _has_case(letter: str) -> bool:
    return letter.isupper() or letter.islower()


def read_glossary(path: str | os.PathLike[str], language: str = "") -> Glossary:
    """Read a file of terms; raise DataError, with its line, for one that is wrong."""
    terms: dict[int, Term] = {}
    for number, line in enumerate(read_lines(Path(path)), start=1):
        where = f"{os.fspath(path)}:{number}"
        if line.problem:
            raise DataError(f"{where}: {line.problem}; fix the line")
        if line.text.strip() and not line.text.startswith("#"):
            terms[number] = _term(line.text.split("\t"), where)
    if not terms:
        raise DataError(f"{os.fspath(path)}: has no terms; write `source TAB target` on each line")
    _refuse_conflicts(terms, f"{os.fspath(path)}:", "line")
    return Glossary(terms.values(), language)


def glossary_of(pairs: Mapping[str, str] | Iterable[Sequence[str]], language: str = "") -> Glossary:
    """A glossary from pairs of terms, each with the same fields as a line of a file; or from a dictionary."""
    if isinstance(pairs, Mapping):
        pairs = list(pairs.items())
    if not isinstance(pairs, Iterable):
        raise ConfigError(f"glossary: is {type(pairs).__name__}; give a file or pairs of terms")
    pairs = list(pairs)
    for number, pair in enumerate(pairs, 1):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or not all(isinstance(each, str) for each in pair):
            raise ConfigError(f"glossary: entry {number} is not a pair of strings; give (source, target)")
        problems = [line.problem for line in map(text_line, pair) if line.problem]
        if problems:
            raise DataError(f"glossary: entry {number}: {problems[0]}; fix the text")
    terms = {number: _term(list(pair), f"glossary: entry {number}") for number, pair in enumerate(pairs, 1)}
    _refuse_conflicts(terms, "glossary: entry ", "entry")
    return Glossary(terms.values(), language)


def _refuse_conflicts(terms: Mapping[int, Term], where: str, unit: str) -> None:
    """Raise for a source with two translations: one of them would never apply. `terms` are by their numbers."""
    first: dict[tuple[str, Case], int] = {}
    for number, term in terms.items():
        for source in term.sources:
            before = first.setdefault((source if term.case == "exact" else source.casefold(), term.case), number)
            if {*terms[before].targets} != {*term.targets}:
                raise DataError(
                    f"{where}{number}: {source!r} has another translation in {unit} {before}; "
                    "delete one, or write both in one, separated by |"
                )


def _term(fields: Sequence[str], where: str) -> Term:
    if len(fields) < 2:
        raise DataError(f"{where}: has no target term; write `source TAB target`")
    sources, targets = (_alternatives(field, where) for field in fields[:2])
    given = fields[2].strip() if len(fields) > 2 else ""
    case = given.lower()
    if case and case not in get_args(Case):
        raise DataError(f"{where}: the case rule is {given!r}; write any or exact, or leave it out")
    is_exact = case == "exact" or (not case and sources[0] != sources[0].lower())
    return Term(sources, targets, "exact" if is_exact else "any")


def _alternatives(field: str, where: str) -> tuple[str, ...]:
    found = tuple(normalize(each) for each in field.split("|"))
    if not all(found):
        raise DataError(f"{where}: a term is empty; write `source TAB target`")
    if len(found) > MOST_ALTERNATIVES:
        raise DataError(f"{where}: {len(found)} alternatives; write at most {MOST_ALTERNATIVES}")
    return found


class Speller:
    """Writes terms in the pieces of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer, spelling: Spelling) -> None:
        self._tokenizer, self._spelling = tokenizer, spelling

    def phrase(self, term: Term) -> Phrase | None:
        """What a search must write; None if the vocabulary cannot."""
        forms = [form for target in term.targets for form in self._forms(target)]
        if not forms:
            return None
        ends = {target[-1] for target in term.targets}
        symbols = [index for end in ends if not end.isalnum() for index in self._spelling.beginning_with(end.encode())]
        are_words = all(map(_has_word, term.targets)) and not any(map(_is_unspaced, ends))
        extends = frozenset(symbols) | (self._spelling.continues_word if are_words else frozenset())
        return Phrase(tuple(forms), extends, term.once)

    def _forms(self, target: str) -> list[Form]:
        after_mark = self._after_mark(target)
        if _is_unspaced(target[0]):
            return [Form(after_mark)] if after_mark else []
        word = tuple(self._tokenizer.encode(target))
        if self._tokenizer.vocabulary.unk in word:
            return []
        if not _has_word(target):
            return [*([Form(after_mark)] if after_mark else []), Form(word)]
        if not target[0].isalnum():  # after another mark it would be part of that
            return [Form(word)]
        capital = tuple(self._tokenizer.encode(target[0].upper() + target[1:]))
        start = frozenset([self._tokenizer.vocabulary.bos])
        forms = [Form(word), *([Form(capital, start)] if capital != word else [])]
        return [*forms, Form(after_mark, self._spelling.ends_between_words)] if after_mark else forms

    def _after_mark(self, target: str) -> Ids:
        """Its ids where no space precedes it."""
        mark = "("
        ids = self._tokenizer.encode(mark + target)
        for size in range(1, len(ids)):
            if self._spelling.text(tuple(ids[:size])) == self._spelling.of(mark):
                rest = tuple(ids[size:])
                return () if self._tokenizer.vocabulary.unk in rest else rest
        return ()
