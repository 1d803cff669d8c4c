"""The copy task: repeat the sentence. Small, yet it needs all of a Transformer. Knows nothing of gradients.

Source: the symbols. Target: the same; the decoder starts from BOS and ends with EOS.
"""

import numpy as np

from dragoman.reference import transformer
from dragoman.reference.functions import Ids, Mask
from dragoman.reference.parameters import Config, Parameters
from dragoman.reference.training import PAD, Batch

BOS, EOS, FIRST_SYMBOL = 1, 2, 3
NUM_SYMBOLS = 10
VOCABULARY = FIRST_SYMBOL + NUM_SYMBOLS
LONGEST = 8


def draw(count: int, random: np.random.Generator) -> Batch:
    """Sentences of 1 to LONGEST symbols, padded."""
    lengths_B1 = random.integers(1, LONGEST + 1, (count, 1))
    symbols_BS = random.integers(FIRST_SYMBOL, VOCABULARY, (count, LONGEST))
    source_allowed = np.arange(LONGEST) < lengths_B1
    source_ids = np.where(source_allowed, symbols_BS, PAD)
    target_ids = np.concatenate((np.full((count, 1), BOS), source_ids), axis=1)
    goal_ids = np.concatenate((source_ids, np.full((count, 1), PAD)), axis=1)
    goal_ids[np.arange(count), lengths_B1[:, 0]] = EOS
    return Batch(source_ids, source_allowed, target_ids, goal_ids)


def say(parameters: Parameters, config: Config, source_ids: Ids, source_allowed: Mask) -> Ids:
    """Greedy decoding: the most likely next symbol at each step, PAD after EOS."""
    said = np.full((len(source_ids), 1), BOS)
    ended = np.zeros(len(source_ids), dtype=np.bool_)
    for _ in range(LONGEST + 1):
        logits_BTV, _ = transformer.forward(parameters, config, source_ids, said, source_allowed)
        newest = np.where(ended, PAD, logits_BTV[:, -1].argmax(axis=-1))
        ended |= newest == EOS
        said = np.concatenate((said, newest[:, None]), axis=1)
    return said[:, 1:]


def share_right(parameters: Parameters, config: Config, batch: Batch) -> float:
    """The share of sentences that are repeated without a mistake."""
    said = say(parameters, config, batch.source_ids, batch.source_allowed)
    return float((said == batch.goal_ids).all(axis=1).mean())
