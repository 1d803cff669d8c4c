"""The probability of a given translation: pairs in, log-probabilities out. Knows nothing of files."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dragoman.data.batching import bucket_by_length, teacher_forcing
from dragoman.data.corpus import text_line
from dragoman.decode.halving import in_halves
from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.decode.translator import Translator

Ids = tuple[list[int], list[int]]  # of source and target
SCORED_TOKENS = 8_192  # per batch, on the longer side, including padding


class PairError(DataError):
    """A pair that cannot be scored: its number, from 1, and why."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"pair {number}: {problem}")
        self.number, self.problem = number, problem


def valid_pairs(sources: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """The texts without a byte order mark, or raise a PairError for the first that is not valid text."""
    lines = {"source": [text_line(text) for text in sources], "target": [text_line(text) for text in targets]}
    for side, own in lines.items():
        for number, line in enumerate(own, start=1):
            if line.problem:
                raise PairError(number, f"{side}: {line.problem}; fix the text")
    return [line.text for line in lines["source"]], [line.text for line in lines["target"]]


def encoded_pairs(translator: "Translator", sources: Sequence[str], targets: Sequence[str]) -> list[Ids]:
    """The ids of pairs, without special ids; each is checked to be valid text that fits the model."""
    source_lines, target_lines = valid_pairs(sources, targets)
    tag = translator.language_tag(translator.config.decode)
    source_ids = [[*tag, *ids] for ids in translator.tokenizers.source.encode_batch(source_lines)]
    pairs = list(zip(source_ids, translator.tokenizers.target.encode_batch(target_lines), strict=True))
    require_room(translator, pairs)
    return pairs


def require_room(translator: "Translator", pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
    """Raise a PairError for the first pair of ids, without </s>, that is longer than the model can take."""
    longest = translator.config.model.longest or sys.maxsize
    for number, pair in enumerate(pairs, start=1):
        if max(map(len, pair)) >= longest:
            raise PairError(number, f"{max(map(len, pair)) + 1} pieces; this model takes at most {longest}")


def score_pairs(translator: "Translator", pairs: list[Ids], batch_size: int) -> list[float]:
    """Score in batches bucketed by length, of at most `batch_size` pairs and SCORED_TOKENS tokens."""

    def total_log_probs(rows: Sequence[int]) -> list[float]:
        sources, targets = zip(*(pairs[row] for row in rows), strict=True)
        vocabularies = (translator.tokenizers.source.vocabulary, translator.tokenizers.target.vocabulary)
        batch = teacher_forcing(sources, targets, *vocabularies)
        with translator.inference():
            return translator.engine.token_log_probs(batch).sum(dim=-1).tolist()

    def too_big(row: int) -> float:
        source, target = (len(ids) + 1 for ids in pairs[row])
        raise PairError(row + 1, f"out of memory at {source} source and {target} target tokens; shorten it")

    sizes = np.array([max(map(len, pair)) + 1 for pair in pairs], dtype=np.int64)  # </s>
    scores = [0.0] * len(pairs)
    for group in bucket_by_length(np.arange(len(pairs)), sizes, SCORED_TOKENS):
        for start in range(0, len(group), batch_size):
            rows = group[start : start + batch_size].tolist()
            for row, score in zip(rows, in_halves(total_log_probs, rows, too_big, translator.device), strict=True):
                scores[row] = score
    return scores
