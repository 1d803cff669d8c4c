"""What searches must keep: makes jobs with rules, prefixes and terms, and finds translations that lack them.

Knows nothing of engines or files, and searches nothing itself.
"""

import functools
import sys
from collections.abc import Mapping, Sequence

from dragoman.config import DecodeConfig
from dragoman.data.corpus import text_line
from dragoman.decode.assembly import produced
from dragoman.decode.batches import Job, Outcome
from dragoman.decode.constraints import Banned, CheckableRule, Prefix, Spelling, rules_of
from dragoman.decode.keeping import Align
from dragoman.decode.phrases import Phrases
from dragoman.decode.pieces import Piece
from dragoman.decode.replacing import rules_for_terms
from dragoman.decode.request import Request
from dragoman.decode.terms import Speller, Term
from dragoman.errors import ConfigError
from dragoman.text.tokenizer import Tokenizer

TermsOf = Mapping[int, list[Term]]  # by the number of a piece


class Steering:
    """Of one model: the tokenizer of its target, and the longest sequence it takes, if there is a limit."""

    def __init__(self, tokenizer: Tokenizer, longest: int | None) -> None:
        self._tokenizer = tokenizer
        self._most_tokens = (longest or sys.maxsize) - 1

    @functools.cached_property
    def spelling(self) -> Spelling:
        return Spelling(self._tokenizer)

    @functools.cached_property
    def speller(self) -> Speller:
        return Speller(self._tokenizer, self.spelling)

    def limit(self, source_length: int, options: DecodeConfig) -> int:
        """Maximum number of tokens in a translation; </s> is counted in the source only."""
        return min(source_length - 1 + options.max_extra, self._most_tokens)

    def jobs(
        self, pieces: Sequence[Piece], request: Request, numbers: Sequence[int], *, constrained: bool = False
    ) -> list[Job]:
        """What to search for each piece. `numbers` of the lines within the job of the caller: samples depend on them.

        Unless `constrained`, only samples and what has a prefix must keep the rules from the first id.
        """
        options, rules = request.options, self._rules(request.options)
        kept = rules if constrained or request.is_sampled else ()
        jobs = [
            Job(piece.ids, self.limit(len(piece.ids), options), numbers[piece.line] + (piece.number << 40), kept)
            for piece in pieces
        ]
        for number, piece in enumerate(pieces) if request.prefixes else ():
            if prefix := request.prefix_of(piece):
                jobs[number] = self._begin_with(jobs[number]._replace(rules=rules), prefix)
        return jobs

    def _rules(self, options: DecodeConfig) -> list[CheckableRule]:
        return rules_of(options, self._tokenizer.vocabulary.eos, lambda: self.spelling)

    def _begin_with(self, job: Job, prefix: str) -> Job:
        """With room for the prefix in any case."""
        if problem := text_line(prefix).problem:
            raise ConfigError(f"prefix: {problem}; fix the text")
        rule = Prefix(self.spelling, prefix)
        if not rule.is_possible:
            raise ConfigError(f"prefix: the vocabulary cannot spell {prefix!r}; use other characters")
        for banned in job.rules:
            if isinstance(banned, Banned) and not rule.is_possible_with(banned):
                raise ConfigError(f"prefix: {prefix!r} has a word that is banned; leave out one of them")
        limit = min(job.limit + rule.most_ids, self._most_tokens)
        return job._replace(limit=limit, rules=[*job.rules, rule])

    def find_broken(self, pieces: Sequence[Piece], outcomes: Sequence[Outcome], request: Request) -> list[int]:
        """The numbers of pieces with a hypothesis that breaks a rule; samples and prefixes were searched with them."""
        rules, end = self._rules(request.options), self._tokenizer.vocabulary.eos
        if not rules or request.is_sampled:
            return []
        return [
            number
            for number, (piece, outcome) in enumerate(zip(pieces, outcomes, strict=True))
            if not isinstance(outcome, str)
            and not request.prefix_of(piece)
            and not all(rule.is_kept((*produced(each, end),)) for each in outcome for rule in rules)
        ]

    def find_missing(self, terms_of: TermsOf, outcomes: Sequence[Outcome]) -> TermsOf:
        """Of the terms of each piece, those that are not in its best translation."""
        best = [outcome[0].ids for number in terms_of if not isinstance(outcome := outcomes[number], str)]
        texts = self._tokenizer.decode_batch(best)
        found = {
            number: [term for term in terms if not term.is_kept(text)]
            for (number, terms), text in zip(terms_of.items(), texts, strict=True)
        }
        return {number: terms for number, terms in found.items() if terms}

    def add_terms(
        self, job: Job, piece: Piece, terms: Sequence[Term], outcome: Outcome, request: Request, align: Align
    ) -> Job:
        """A job with the terms that are missing in the outcome of a search without them, and room for them."""
        phrases = {term: self.speller.phrase(term) for term in terms}
        possible = {term: phrase for term, phrase in phrases.items() if phrase is not None}
        room = sum(len(phrase.forms[0].ids) for phrase in possible.values())
        prefix = request.prefixes[piece.line] if request.prefixes else ""
        return job._replace(
            limit=min(job.limit + room, self._most_tokens),
            phrases=Phrases([*possible.values()]),
            wishes=rules_for_terms(align, self._tokenizer, self.spelling, piece.text, outcome, [*possible], prefix),
        )
