"""Learns a shortlist: which target pieces a model predicts while it attends to a source piece.

Shapes: B sentences, S source positions, T target positions, N real target positions, P pairs of such a position and a
source position, C predictions at a position, V target vocabulary, K pieces kept for a source piece.
"""

from collections.abc import Sequence

import numpy as np

from dragoman.bundle import Tokenizers
from dragoman.config import TransformerConfig
from dragoman.data.batching import Batch, bucket_by_length, teacher_forcing
from dragoman.decode.translator import Translator, windows
from dragoman.errors import ConfigError
from dragoman.int8 import Array
from dragoman.progress import Advance, no_progress
from dragoman.shortlist import Shortlist
from dragoman.text.byte_level import ByteLevelTokenizer
from dragoman.text.normalize import SPACE_MARK

BATCH_TOKENS, BATCHES_AT_ONCE = 2_048, 64  # tokens are on the longer side, including padding
CANDIDATES = 8  # predictions counted at every position
LEAST_WEIGHT = 0.05  # of attention: less is noise, and would make counts large
LEAST_PRODUCT = 0.001  # of attention and probability

Pair = tuple[list[int], list[int]]  # ids of a source and its translation, without special ids


class Associations:
    """How often a model predicts every target piece while it attends to every source piece, over many sentences."""

    def __init__(self, target_size: int) -> None:
        self.frequency_V = np.zeros(target_size)  # expected, of target pieces
        self._key: Array = np.zeros(0, np.int64)  # source id * target_size + target id
        self._weight: Array = np.zeros(0)
        self._new: list[tuple[Array, Array]] = []

    def add(self, source_BS: Array, real_BT: Array, weight_BTS: Array, probability_BTC: Array, id_BTC: Array) -> None:
        """Count what is predicted at real positions, in proportion to the attention to each source token."""
        id_NC, probability_NC = id_BTC[real_BT], probability_BTC[real_BT]
        self.frequency_V += np.bincount(id_NC.ravel(), probability_NC.ravel(), len(self.frequency_V))
        sentence_N, _ = np.nonzero(real_BT)
        weight_NS = weight_BTS[real_BT]
        n, s = np.nonzero(weight_NS >= LEAST_WEIGHT)
        weight_PC = weight_NS[n, s][:, np.newaxis] * probability_NC[n]
        key_PC = source_BS[sentence_N[n], s][:, np.newaxis] * len(self.frequency_V) + id_NC[n]
        kept_PC = weight_PC >= LEAST_PRODUCT
        self._new.append((key_PC[kept_PC], weight_PC[kept_PC]))
        if sum(len(key) for key, _ in self._new) > max(1 << 22, len(self._key)):
            self._merge()

    def _merge(self) -> None:
        keys, weights = zip((self._key, self._weight), *self._new, strict=True)
        self._key, place_N = np.unique(np.concatenate(keys), return_inverse=True)
        self._weight = np.bincount(place_N, np.concatenate(weights), len(self._key))
        self._new = []

    def best(self, source_size: int, count: int, without: Array, unused: int) -> Array:
        """The `count` target pieces with most attention to each source piece, best first: [source vocabulary, count].

        Those of `without` are left out; places for which there are none hold `unused`.
        """
        self._merge()
        source_N, target_N = np.divmod(self._key, len(self.frequency_V))
        kept_N = ~np.isin(target_N, without)
        source_N, target_N, weight_N = source_N[kept_N], target_N[kept_N], self._weight[kept_N]
        order_N = np.lexsort((target_N, -weight_N, source_N))
        source_N, target_N = source_N[order_N], target_N[order_N]
        rank_N = np.arange(len(source_N)) - np.searchsorted(source_N, source_N)
        best_SK = np.full((source_size, count), unused)
        top_N = rank_N < count
        best_SK[source_N[top_N], rank_N[top_N]] = target_N[top_N]
        return best_SK

    def shortlist(self, tokenizers: Tokenizers, count: int, frequent: int) -> Shortlist:
        """`count` pieces for each source piece; always the `frequent` most frequent ones and all single characters.

        If both languages share a vocabulary, a source piece allows itself: names and numbers are copied.
        """
        target, end = tokenizers.target, tokenizers.target.vocabulary.eos
        order_V = np.argsort(-self.frequency_V, kind="stable")[:frequent]
        always = np.union1d([end, *_spelling(tokenizers)], order_V[self.frequency_V[order_V] > 0])
        joint = tokenizers.source is tokenizers.target
        pieces_SK = self.best(tokenizers.source.size, count - joint, always, end)
        if joint:
            pieces_SK = np.column_stack([np.arange(target.size), pieces_SK])
        return Shortlist(pieces_SK, always, target.size)


def _spelling(tokenizers: Tokenizers) -> list[int]:
    """The target pieces of one character, with and without a space before it, and of one byte."""
    table = tokenizers.target.piece_table()
    return [*(each for piece, each in table.ids.items() if len(piece.removeprefix(SPACE_MARK)) <= 1), *table.byte_ids]


def require_transformer(translator: Translator) -> None:
    """Whose vocabulary has pieces of characters, all of which a shortlist must allow."""
    if not isinstance(translator.config.model, TransformerConfig):
        raise ConfigError("shortlist: the model is recurrent; a shortlist is learned from a Transformer's attention")
    if isinstance(translator.tokenizers.target, ByteLevelTokenizer):
        raise ConfigError("shortlist: not possible with byte-level BPE; use a model with another vocabulary")


def learn_shortlist(
    translator: Translator, pairs: Sequence[Pair], count: int, frequent: int, advance: Advance = no_progress
) -> Shortlist:
    """Learn from sentences and their translations, by teacher forcing; `advance` counts the pairs."""
    require_transformer(translator)
    associations = Associations(translator.tokenizers.target.size)
    source, target = translator.tokenizers.source.vocabulary, translator.tokenizers.target.vocabulary
    sizes = np.array([max(map(len, pair)) + 1 for pair in pairs], np.int64)  # </s>
    groups = bucket_by_length(np.arange(len(pairs)), sizes, BATCH_TOKENS)
    for some in windows(groups, BATCHES_AT_ONCE):
        batches = [
            teacher_forcing([pairs[row][0] for row in rows], [pairs[row][1] for row in rows], source, target)
            for rows in some
        ]
        for batch, predictions in zip(batches, translator.predict(batches, CANDIDATES), strict=True):
            weight_BTS = alignment(predictions.weight_LBTS, batch, source.eos)
            probability_BTC, real_BT = np.exp(predictions.log_prob_BTC), batch.target_real.numpy()
            associations.add(batch.source_ids.numpy(), real_BT, weight_BTS, probability_BTC, predictions.id_BTC)
            advance(len(batch.source_ids))
    return associations.shortlist(translator.tokenizers, count, frequent)


def alignment(weight_LBTS: Array, batch: Batch, end: int) -> Array:
    """The attention, [B, T, S], of the layer whose heads agree most on what to attend to, not counting </s>."""
    text_B1S = (batch.source_ids != end).numpy()[:, np.newaxis]
    agreement_L = [(weight_BTS * text_B1S).max(axis=2)[batch.target_real.numpy()].mean() for weight_BTS in weight_LBTS]
    best_BTS: Array = weight_LBTS[int(np.argmax(agreement_L))]
    return best_BTS


def encode_pairs(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> list[Pair]:
    """The ids of pairs, without those that are blank or longer than what the model was trained on."""
    longest = translator.config.text.max_length
    tag = translator.language_tag(translator.config.decode)
    encoded = zip(
        [[*tag, *ids] for ids in translator.tokenizers.source.encode_batch(sources)],
        translator.tokenizers.target.encode_batch(targets),
        strict=True,
    )
    return [
        (source, target)
        for source, target in encoded
        if len(source) > len(tag) and target and max(len(source), len(target)) < longest
    ]
