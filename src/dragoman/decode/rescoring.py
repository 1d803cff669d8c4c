"""What happens to hypotheses between search and text: another order, or more about them. Knows nothing of files.

A source is the ids of a sentence, as the model reads it, with </s>.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dragoman.config import DecodeConfig
from dragoman.data.batching import batch_of_padded, bucket_by_length, pad_rows
from dragoman.decode.batches import Outcome
from dragoman.decode.halving import in_halves
from dragoman.decode.search import Hypothesis

if TYPE_CHECKING:
    from dragoman.decode.translator import Translator

FORCED_TOKENS = 8_192  # per batch of teacher forcing, on the longer side, including padding


@functools.lru_cache(256)  # checking every field takes longer than all else that is done for a request
def search_options(options: DecodeConfig, *, reranks: bool) -> DecodeConfig:
    """What to ask of the search: what its results must keep is in its jobs, and `rescored` puts them in their order."""
    options = replace(options, min_length=0, no_repeat_ngram=0, banned=())
    if options.mbr:
        return replace(options, sampling=True, n_best=options.mbr, mbr=0)
    if (reranks or options.coverage_penalty) and not options.sampling:
        return replace(options, n_best=options.beam)
    return options


def rescored(
    translator: "Translator", sources: Sequence[list[int]], outcomes: list[Outcome], options: DecodeConfig
) -> list[Outcome]:
    """The outcomes of a search as `options` want them."""
    found = {number: outcome for number, outcome in enumerate(outcomes) if not isinstance(outcome, str)}
    changed = _rescored(translator, [sources[number] for number in found], list(found.values()), options)
    found = dict(zip(found, changed, strict=True))
    return [found.get(number, outcome) for number, outcome in enumerate(outcomes)]


def _rescored(
    translator: "Translator", sources: Sequence[list[int]], found: list[list[Hypothesis]], options: DecodeConfig
) -> list[list[Hypothesis]]:
    reverse = translator.reverse
    if options.mbr or options.coverage_penalty or reverse is not None:
        from dragoman.decode import reranking

        if options.mbr:
            found = reranking.by_agreement(translator, found)
        if options.coverage_penalty:
            found = reranking.by_coverage(translator, sources, found, options.coverage_penalty)
        if reverse is not None:
            found = reranking.by_reverse_model(translator, reverse, sources, found, options)
    if options.token_scores or options.confidence:
        found = _with_token_scores(translator, sources, found)
    return found


def _with_token_scores(
    translator: "Translator", sources: Sequence[list[int]], found: list[list[Hypothesis]]
) -> list[list[Hypothesis]]:
    """Those of the best hypothesis of each sentence; the CUDA engine does not return them."""
    missing = [number for number, hypotheses in enumerate(found) if not hypotheses[0].token_scores]
    if not missing:
        return found
    scores = token_log_probs(
        translator, [sources[number] for number in missing], [found[number][0] for number in missing]
    )
    found = list(found)
    for number, own in zip(missing, scores, strict=True):
        first, *others = found[number]
        found[number] = [first._replace(token_scores=tuple(own)), *others]
    return found


def token_log_probs(
    translator: "Translator", sources: Sequence[list[int]], hypotheses: Sequence[Hypothesis]
) -> list[list[float]]:
    """The log-probability of each token of hypotheses, with </s> where they are finished, by teacher forcing.

    One that does not fit in memory has none.
    """
    target, pad = translator.tokenizers.target.vocabulary, translator.tokenizers.source.vocabulary.pad

    def forced(rows: Sequence[int]) -> list[list[float]]:
        padded = pad_rows([sources[row] for row in rows], pad)
        batch = batch_of_padded(*padded, [hypotheses[row].ids for row in rows], target)
        with translator.inference():
            scores_BT = translator.engine.token_log_probs(batch).tolist()
        lengths = [len(hypotheses[row].ids) + hypotheses[row].finished for row in rows]
        return [scores[:length] for scores, length in zip(scores_BT, lengths, strict=True)]

    found: dict[int, list[float]] = {}
    sizes = np.array([max(len(source), len(each.ids) + 1) for source, each in zip(sources, hypotheses, strict=True)])
    for group in bucket_by_length(np.arange(len(hypotheses)), sizes, FORCED_TOKENS):
        rows = group.tolist()
        found.update(zip(rows, in_halves(forced, rows, lambda row: [], translator.device), strict=True))
    return [found[row] for row in range(len(hypotheses))]
