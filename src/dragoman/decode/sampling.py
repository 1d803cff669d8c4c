"""Sampling over search's step protocol. Owns the choice of the next ids; needs all log-probabilities, as tensors.

Shape suffixes
    N  rows of the decoding      V  vocabulary      C  candidates, best first      T  tokens chosen so far
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.config import DecodeConfig
from dragoman.decode.ranking import largest, to_host
from dragoman.decode.search import NEVER, Array, Decoding, Hypothesis, rank, single_paths, without_nan


def sample(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    keys: Sequence[int],
    *,
    start: int,
    end: int,
    forbidden: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Draw `n_best` independent samples per sentence, sorted by normalized score, best first.

    A draw depends only on (seed, the sentence's key, sample number, step), so a sentence gets the same samples in any
    batch. Scores are the model's own, before temperature, top-k and top-p.
    """
    assert len(keys) == len(max_lengths)
    if not max_lengths:
        return []
    count, longest = options.n_best, max(max_lengths)
    if count > 1:
        decoding.select(np.arange(len(max_lengths)).repeat(count))
    limits = [limit for limit in max_lengths for _ in range(count)]
    streams = [uniforms(options.seed, key, number, longest + 1) for key in keys for number in range(count)]
    uniform_NT = torch.from_numpy(np.stack(streams))

    def drawn(id_N: Array, path_N: Array, length_N: Array) -> tuple[Array, Array]:
        log_prob_NV = forbid(decoding.log_probs(id_N[:, np.newaxis]), forbidden)
        drawn_N1 = draw(log_prob_NV, uniform_NT[path_N, length_N].to(log_prob_NV.device), options)
        value_N1, id_N1 = to_host(log_prob_NV.gather(1, drawn_N1), drawn_N1)
        return without_nan(value_N1), id_N1

    paths = single_paths(decoding, limits, drawn, options, start, end)
    groups = (paths[first : first + count] for first in range(0, len(paths), count))
    return [sorted(group, key=rank) for group in groups]


def draw(log_prob_NV: Tensor, uniform_N: Tensor, options: DecodeConfig) -> Tensor:
    """Draw one id per row, [N, 1], by inverse CDF, after temperature, then top-k, then top-p."""
    value_NC, id_NC = log_prob_NV, None
    if 0 < options.top_k < log_prob_NV.shape[1] or options.top_p < 1.0:  # only these need sorted values
        value_NC, id_NC = largest(log_prob_NV, options.top_k or log_prob_NV.shape[1])
    prob_NC = torch.softmax(value_NC.float() / options.temperature, dim=1)
    if options.top_p < 1.0:
        before_NC = prob_NC.cumsum(dim=1) - prob_NC
        prob_NC = prob_NC.masked_fill(before_NC >= options.top_p, 0.0)
    reached_NC = prob_NC.cumsum(dim=1)
    hit_NC = (reached_NC > uniform_N[:, None] * reached_NC[:, -1:]) & (prob_NC > 0.0)
    chosen_N1 = hit_NC.to(torch.uint8).argmax(dim=1, keepdim=True)  # the first hit
    return chosen_N1 if id_NC is None else id_NC.gather(1, chosen_N1)


def uniforms(seed: int, key: int, number: int, count: int) -> Array:
    """The first `count` numbers of the random stream in [0, 1) for (seed, key, number)."""
    words = np.array([seed % 2**64, key % 2**64], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=words, counter=[0, 0, 0, number]))
    return generator.random(count, dtype=np.float32)


def forbid(log_prob_NV: Tensor, forbidden: Sequence[int]) -> Tensor:
    """Rule out ids, in place and without renormalizing: a hypothesis keeps the model's own score."""
    for token in forbidden:
        log_prob_NV[:, token] = NEVER
    return log_prob_NV
