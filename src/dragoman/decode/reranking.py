"""Another order for what a search found: by a reverse model, by agreement among samples, by coverage of the source.

`normalized_score` is what ranks, so each of these replaces it; `score` stays the log-probability of the search.
Knows nothing of files. Shapes: T target positions, S source positions, L layers.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dragoman.data.batching import Batch, batch_of_padded, bucket_by_length, pad_rows
from dragoman.decode.chrf import Array, pairwise_chrf
from dragoman.decode.search import NEVER, Hypothesis, length_penalty
from dragoman.errors import ConfigError
from dragoman.text.normalize import is_blank

if TYPE_CHECKING:
    from dragoman.config import DecodeConfig
    from dragoman.decode.translator import Translator

COVERED_TOKENS = 4_096  # per batch of teacher forcing, on the longer side, including padding
LEAST_ATTENTION = 1e-6  # a source token that nothing attends to would make the penalty infinite


def ordered(hypotheses: Sequence[Hypothesis], values: Sequence[float]) -> list[Hypothesis]:
    """With these values in place of the normalized scores: finished ones first, each kind by its value."""
    replaced = [each._replace(normalized_score=value) for each, value in zip(hypotheses, values, strict=True)]
    return sorted(replaced, key=lambda each: (not each.finished, -each.normalized_score))


# By a reverse model


def by_reverse_model(
    translator: "Translator",
    reverse: "Translator",
    sources: Sequence[list[int]],
    found: Sequence[list[Hypothesis]],
    options: "DecodeConfig",
) -> list[list[Hypothesis]]:
    """By (1 - w) * normalized score + w * log P(source | translation), normalized in the same way."""
    weight = options.rerank_weight
    if not weight:
        return list(found)
    source_texts = translator.tokenizers.source.decode_batch([_without_special(translator, ids) for ids in sources])
    targets = translator.tokenizers.target.decode_batch([each.ids for hypotheses in found for each in hypotheses])
    pairs = list(zip(targets, _repeated(source_texts, found), strict=True))
    scores = iter(_reverse_scores(reverse, pairs, options))
    return [
        ordered(hypotheses, [(1 - weight) * each.normalized_score + weight * next(scores) for each in hypotheses])
        for hypotheses in found
    ]


def _repeated(items: Sequence[str], found: Sequence[list[Hypothesis]]) -> list[str]:
    return [item for item, hypotheses in zip(items, found, strict=True) for _ in hypotheses]


def _without_special(translator: "Translator", source: list[int]) -> list[int]:
    """The ids of the text itself: without </s> and the tag of a target language."""
    tokenizer = translator.tokenizers.source
    special = {tokenizer.vocabulary.eos, *(tokenizer.tag(language) for language in tokenizer.languages)}
    return [token for token in source if token not in special]


def _reverse_scores(reverse: "Translator", pairs: Sequence[tuple[str, str]], options: "DecodeConfig") -> list[float]:
    """log P(source | translation) of (translation, source), normalized; NEVER if the reverse model cannot read it."""
    tokenizers, longest = reverse.tokenizers, reverse.config.model.longest or math.inf
    sizes = [
        tuple(map(len, ids))
        for ids in zip(
            tokenizers.source.encode_batch([text for text, _ in pairs]),
            tokenizers.target.encode_batch([source for _, source in pairs]),
            strict=True,
        )
    ]
    scores = [NEVER] * len(pairs)
    fit = [
        number
        for number, (pair, size) in enumerate(zip(pairs, sizes, strict=True))
        if not is_blank(pair[0]) and max(size) < longest
    ]
    given = reverse.score([pairs[number][0] for number in fit], [pairs[number][1] for number in fit])
    for number, score in zip(fit, given, strict=True):
        penalty = length_penalty(sizes[number][1] + 1, options.length_penalty, options.length_penalty_form)
        scores[number] = score / penalty
    return scores


# By agreement with other samples


def by_agreement(translator: "Translator", found: Sequence[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """Minimum Bayes risk: by the mean chrF against the other samples; each text appears once."""
    return [_by_agreement(samples, translator.tokenizers.target.decode_batch([each.ids for each in samples]))
            for samples in found]  # fmt: skip


def _by_agreement(samples: list[Hypothesis], texts: list[str]) -> list[Hypothesis]:
    counts = Counter(texts)
    best = dict(zip(reversed(texts), reversed(samples), strict=True))  # of equal texts, the first
    utility = expected_utility(list(counts), list(counts.values()))
    return ordered([best[text] for text in counts], utility.tolist())


def expected_utility(texts: Sequence[str], counts: Sequence[int]) -> Array:
    """The mean chrF of each text against the other samples, of which each text is so many."""
    utility_NN, count_N = pairwise_chrf(texts), np.array(counts)
    total = count_N.sum()
    if total == 1:
        return np.diagonal(utility_NN).copy()
    mean_N: Array = (utility_NN @ count_N - np.diagonal(utility_NN)) / (total - 1)
    return mean_N


# By coverage of the source


def by_coverage(
    translator: "Translator", sources: Sequence[list[int]], found: Sequence[list[Hypothesis]], beta: float
) -> list[list[Hypothesis]]:
    """By normalized score + beta * sum of log(min(attention a source token received, 1)), not counting </s>."""
    rows = [(number, each) for number, hypotheses in enumerate(found) for each in hypotheses]
    weights: dict[int, Array] = {}
    sizes = np.array([max(len(sources[number]), len(each.ids) + 1) for number, each in rows], dtype=np.int64)
    groups = [group.tolist() for group in bucket_by_length(np.arange(len(rows)), sizes, COVERED_TOKENS)]
    batches = [
        _batch(translator, [sources[rows[row][0]] for row in group], [rows[row][1] for row in group])
        for group in groups
    ]
    for group, predictions in zip(groups, translator.predict(batches, 1), strict=True):
        if not len(predictions.weight_LBTS):
            raise ConfigError("coverage_penalty: the model does not look back at the source; leave it out")
        for place, row in enumerate(group):
            number, each = rows[row]
            real = slice(len(each.ids) + each.finished), slice(len(sources[number]) - 1)
            weights[row] = predictions.weight_LBTS[:, place, *real]
    rest = iter(range(len(rows)))
    ranked = []
    for hypotheses in found:
        own = [weights[next(rest)] for _ in hypotheses]
        ranked.append(
            ordered(
                hypotheses,
                [
                    each.normalized_score + beta * penalty
                    for each, penalty in zip(hypotheses, coverage_penalties(own), strict=True)
                ],
            )
        )
    return ranked


def _batch(translator: "Translator", sources: Sequence[list[int]], hypotheses: Sequence[Hypothesis]) -> Batch:
    vocabularies = translator.tokenizers.source.vocabulary, translator.tokenizers.target.vocabulary
    return batch_of_padded(*pad_rows(sources, vocabularies[0].pad), [each.ids for each in hypotheses], vocabularies[1])


def coverage_penalties(weights: Sequence[Array]) -> list[float]:
    """Of the hypotheses of one sentence, given the attention of each to its source: [L, T, S].

    The layer is the one whose heads agree most on what to attend to, over all hypotheses of the sentence.
    """
    if not all(weight_LTS.shape[1] and weight_LTS.shape[2] for weight_LTS in weights):
        return [0.0] * len(weights)  # nothing was written, or there is nothing to cover
    layer = int(np.mean([weight_LTS.max(axis=2).mean(axis=1) for weight_LTS in weights], axis=0).argmax())
    received = [weight_LTS[layer].sum(axis=0) for weight_LTS in weights]
    return [float(np.log(np.clip(each_S, LEAST_ATTENTION, 1.0)).sum()) for each_S in received]
