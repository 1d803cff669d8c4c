"""Which ids may come next: words that must not appear, a text to begin with, no repetition, a least length.

A rule is a pure function of the ids written so far. So hypotheses carry nothing, rules combine freely, and a rule
holds in every search that is written over `Decoding`. Most translations keep a rule without being told: it can be
checked too, so that only the others are searched again. Knows nothing of models.

Shapes: B sentences, W hypotheses of each, N rows (B * W), V vocabulary, C candidates.
"""

import bisect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from dragoman.config import DecodeConfig
from dragoman.decode.search import NEVER, Array, Decoding
from dragoman.text.normalize import SPACE_MARK, normalize
from dragoman.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

Ids: TypeAlias = tuple[int, ...]
SENTENCE_ENDS = frozenset(".!?…")
_MARK = SPACE_MARK.encode()


class Choice(NamedTuple):
    """The ids that may come next."""

    only: Collection[int] | None = None  # None: all
    never: Collection[int] = ()


FREE = Choice()
Rule: TypeAlias = Callable[[Ids], Choice]


class CheckableRule(Protocol):
    def __call__(self, ids: Ids) -> Choice: ...

    def is_kept(self, ids: Ids) -> bool:
        """By all of these ids, each given those before it."""
        ...


def rules_of(options: DecodeConfig, end: int, spelling: "Callable[[], Spelling]") -> list[CheckableRule]:
    """What every translation keeps; `spelling` takes time to make, and only banned words need it."""
    return [
        *([AtLeast(options.min_length, end)] if options.min_length else []),
        *([NoRepeatedNgram(options.no_repeat_ngram)] if options.no_repeat_ngram else []),
        *([Banned(spelling(), options.banned)] if options.banned else []),
    ]


def is_kept_at_every_step(rule: Rule, ids: Ids) -> bool:
    """The reference for every `is_kept`."""
    choices = (rule(ids[:place]) for place in range(len(ids)))
    return all(
        (only is None or index in only) and index not in never
        for (only, never), index in zip(choices, ids, strict=True)
    )


@dataclass(frozen=True)
class NoRepeatedNgram:
    """No `size` ids occur twice in the same order."""

    size: int

    def __call__(self, ids: Ids) -> Choice:
        tail = ids[len(ids) - self.size + 1 :]
        starts = range(len(ids) - self.size + 1)
        return Choice(
            never=[ids[start + self.size - 1] for start in starts if ids[start : start + self.size - 1] == tail]
        )

    def is_kept(self, ids: Ids) -> bool:
        ngrams = list(zip(*(ids[start:] for start in range(self.size)), strict=False))
        return len(set(ngrams)) == len(ngrams)


@dataclass(frozen=True)
class AtLeast:
    """At least `length` ids come before the end."""

    length: int
    end: int

    def __call__(self, ids: Ids) -> Choice:
        return Choice(never=(self.end,)) if len(ids) < self.length else FREE

    def is_kept(self, ids: Ids) -> bool:
        return self.end not in ids[: self.length]


class Spelling:
    """How the pieces of a vocabulary spell text, in UTF-8: bytes are pieces too, so letters need not be whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        table = tokenizer.piece_table()
        self._tokenizer = tokenizer
        self.id_of = {name.encode(): index for name, index in table.ids.items()}
        self._of = {index: spelled for spelled, index in self.id_of.items()}
        self._of |= {index: bytes([value]) for value, index in enumerate(table.byte_ids)}
        self._sorted = sorted((spelled, index) for index, spelled in self._of.items())
        self.longest = max(map(len, self._of.values()))
        self.byte_ids = table.byte_ids
        self.continues_word = frozenset(
            index for index, spelled in self._of.items() if _is_word_character(spelled.decode(errors="replace")[:1])
        )
        self.ends_between_words = frozenset(
            index
            for index, spelled in self._of.items()
            if not _is_word_character(spelled.decode(errors="replace")[-1:])
        )
        self.begins_word = frozenset(index for index, spelled in self._of.items() if spelled.startswith(_MARK))
        self.past_a_word = [(spelled, index) for spelled, index in self._sorted if _goes_past_a_word(spelled)]

    def text(self, ids: Ids) -> bytes:
        return b"".join(map(self._of.get, ids, itertools.repeat(b"")))  # without a loop in Python: ids may be many

    def of(self, text: str) -> bytes:
        """A text at the beginning of a line, or a word after a space. A space at its end counts."""
        whole = normalize(text, self._tokenizer.normalization) + (" " if text[-1:].isspace() else "")
        return (" " + whole).replace(" ", SPACE_MARK).encode()

    def beginnings(self, text: bytes) -> "list[tuple[int, int]]":
        """The pieces that a text may begin with, by id, and how many bytes they take; those that end it may go on."""
        found = []
        for size in range(1, min(self.longest, len(text) - 1) + 1):
            if text[:size] in self.id_of:
                found.append((self.id_of[text[:size]], size))
        if self.byte_ids and len(text) > 1:
            found.append((self.byte_ids[text[0]], 1))
        return [*found, *((index, len(text)) for index in self.beginning_with(text))]

    def beginning_with(self, text: bytes) -> list[int]:
        """The pieces that spell at least this text."""
        start = bisect.bisect_left(self._sorted, (text, -1))
        rest = itertools.islice(self._sorted, start, None)
        return [index for _, index in itertools.takewhile(lambda entry: entry[0].startswith(text), rest)]


class Prefix:
    """The output begins with a text, which may end within a word."""

    def __init__(self, spelling: Spelling, text: str) -> None:
        self._spelling, self._text = spelling, spelling.of(text)
        self.most_ids = size = len(self._text)  # if every byte is one
        self._continues: list[list[int]] = [[] for _ in range(size)]  # by the bytes written: the pieces that fit next
        ends = [False] * size + [True]
        for place in reversed(range(size)):
            fitting = spelling.beginnings(self._text[place : place + spelling.longest + 1])
            self._continues[place] = [index for index, taken in fitting if ends[place + taken]]
            ends[place] = bool(self._continues[place])
        self.is_possible = ends[0]

    def __call__(self, ids: Ids) -> Choice:
        written = self._spelling.text(ids)
        if len(written) >= len(self._text) or not self._text.startswith(written):
            return FREE  # it is done, or a search has given the hypothesis up
        return Choice(only=self._continues[len(written)])

    def is_possible_with(self, banned: "Banned") -> bool:
        """Whether some ids write the text and no banned word."""
        spelling, text = self._spelling, self._text
        reached = [True] + [False] * len(text)  # by the bytes written
        for place, continues in enumerate(self._continues):
            never = banned.ids_never_after(text[:place]) if reached[place] else continues
            for index in {*continues} - {*never}:
                reached[min(place + len(spelling.text((index,))), len(text))] = True
        return reached[-1]


class Banned:
    """Some words do not appear, however the vocabulary spells them, nor as the first piece of a longer word.

    With `longer`, no word that begins with one of them appears.
    """

    def __init__(self, spelling: Spelling, words: Sequence[str], *, longer: bool = False) -> None:
        self._spelling, self._longer = spelling, longer
        self._words = [spelling.of(word) for word in words]
        self._unmarked = [word.removeprefix(_MARK) for word in self._words]
        self._ending: dict[bytes, list[int]] = {}  # by what is missing of a word: the ids that write it

    def __call__(self, ids: Ids) -> Choice:
        return Choice(never=self.ids_never_after(self._spelling.text(ids)))

    def ids_never_after(self, text: bytes) -> list[int]:
        never = list[int]()
        for word, unmarked in zip(self._words, self._unmarked, strict=True):
            never += self._ids_that_end(word)
            # in several pieces, or without a space before it, as after a quote or a bracket
            for size in range(len(unmarked)):
                if text.endswith(unmarked[:size]) and _ends_between_words(text[: len(text) - size]):
                    never += self._ids_that_end(unmarked[size:])
        return never

    def is_kept(self, ids: Ids) -> bool:
        text = self._spelling.text(ids)
        return not any(word in text for word in self._unmarked) or is_kept_at_every_step(self, ids)

    def _ids_that_end(self, rest: bytes) -> list[int]:
        if rest not in self._ending:
            spelling = self._spelling
            found = [spelling.id_of[rest]] if rest in spelling.id_of else []
            found += [spelling.byte_ids[rest[0]]] if len(rest) == 1 and spelling.byte_ids else []
            found += [index for spelled, index in spelling.past_a_word if _ends_word(spelled, rest)]
            found += spelling.beginning_with(rest) if self._longer else []
            self._ending[rest] = found
        return self._ending[rest]


class OneSentence:
    """No word follows a full stop."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling

    def __call__(self, ids: Ids) -> Choice:
        written = reversed(self._spelling.text(ids).decode(errors="replace"))
        gap = itertools.takewhile(lambda character: not _is_word_character(character), written)
        return Choice(never=self._spelling.begins_word) if SENTENCE_ENDS & {*gap} else FREE


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "\ufffd"  # part of a letter


def _ends_between_words(text: bytes) -> bool:
    return not _is_word_character(text[-4:].decode(errors="replace")[-1:])  # no letter has more bytes


def _goes_past_a_word(spelled: bytes) -> bool:
    """Whether a piece has a letter and something else after it, as `s.` has."""
    text = spelled.decode(errors="replace")
    return any(one.isalnum() and not other.isalnum() for one, other in itertools.pairwise(text))


def _ends_word(spelled: bytes, rest: bytes) -> bool:
    after = spelled.removeprefix(rest).decode(errors="replace")
    return spelled.startswith(rest) and not after[:1].isalnum()


def _only(choices: Sequence[Choice]) -> list[set[int]]:
    return [{*choice.only} for choice in choices if choice.only is not None]


def _never(choices: Sequence[Choice]) -> set[int]:
    return {index for choice in choices for index in choice.never}


class Constrained:
    """A decoding in which every sentence keeps its own rules (search's Decoding protocol)."""

    def __init__(self, decoding: Decoding, rules: Sequence[Sequence[Rule]]) -> None:
        self._decoding, self._rules = decoding, list(rules)
        self._ids: list[list[Ids]] = [[] for _ in rules]  # of every hypothesis, with the start symbol; at first none

    def join(self, rules: Sequence[Sequence[Rule]]) -> None:
        """Of sentences that have joined the decoding."""
        self._rules += rules
        self._ids += [[] for _ in rules]

    def best(self, id_BW: Array, count: int) -> tuple[Array, Array]:
        from dragoman.decode.ranking import largest, to_host

        return to_host(*largest(self.log_probs(id_BW), count))

    def log_probs(self, id_BW: Array) -> "Tensor":
        """What is not allowed is impossible; the others are not renormalized: they keep the model's own score."""
        import torch

        self._ids = [
            [(*ids, index) for ids, index in zip(own or [()] * len(new), new, strict=True)]
            for own, new in zip(self._ids, id_BW.tolist(), strict=True)
        ]
        value_NV = self._decoding.log_probs(id_BW)
        rows = [(rules, ids[1:]) for rules, own in zip(self._rules, self._ids, strict=True) for ids in own]
        choices = [[rule(ids) for rule in rules] for rules, ids in rows]
        only = {row: set.intersection(*own) for row, own in enumerate(map(_only, choices)) if own}
        never = {row: own for row, own in enumerate(map(_never, choices)) if own}

        def entries(ids_of: Mapping[int, Collection[int]]) -> "tuple[Tensor, Tensor]":
            """All at once: each transfer to a GPU takes longer than a step."""
            numbers = [row for row, ids in ids_of.items() for _ in ids]
            pairs = torch.tensor([numbers, [*itertools.chain.from_iterable(ids_of.values())]], dtype=torch.int64)
            row_E, id_E = pairs.to(value_NV.device)
            return row_E, id_E

        if only:
            allowed = entries(only)
            kept_E = value_NV[allowed]
            value_NV[torch.tensor([*only], device=value_NV.device)] = NEVER
            value_NV[allowed] = kept_E
        if never:
            value_NV[entries(never)] = NEVER
        return value_NV

    def reorder(self, parent_BW: Array) -> None:
        self._decoding.reorder(parent_BW)
        parents = zip(self._ids, parent_BW.tolist(), strict=True)
        self._ids = [[own[parent] for parent in chosen] for own, chosen in parents]

    def select(self, sentence_B: Array) -> None:
        self._decoding.select(sentence_B)
        kept = sentence_B.tolist()
        self._ids, self._rules = ([part[row] for row in kept] for part in (self._ids, self._rules))
