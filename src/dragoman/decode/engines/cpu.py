"""Greedy and beam search on a CPU, in int8 or float32. Knows nothing of text.

`engines/plain.py` says what is correct. Matrix products are ONNX Runtime's (`products.py`), everything between them is
compiled loops (`loops.py`). Sentences lie end to end, without padding, and may join at any time. Every hypothesis has a
list of the entries of its past: when the search moves hypotheses, only these lists move; keys and values stay.

Shapes: B sentences, W hypotheses of each, N rows, T target positions, S source positions, M width of a position,
H heads, D and E width of a head's keys and values, L layers, C candidates.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dragoman.config import TransformerConfig
from dragoman.data.batching import Batch, split_by_tokens
from dragoman.decode.engines import loops
from dragoman.decode.engines.candidates import Candidates, ShortlistCandidates, VocabularyCandidates
from dragoman.decode.engines.entries import Cache, Entries, new_cache
from dragoman.decode.engines.layers import Builder
from dragoman.decode.engines.predictions import Predictions
from dragoman.decode.engines.products import Product, Rows
from dragoman.int8 import Array
from dragoman.shortlist import Shortlist
from dragoman.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

TOKENS_PER_PASS = 256  # at most, unless a source is longer: more do not fit in a core's own cache


class CpuEngine:
    """A Transformer. Sources are ids that end in </s>."""

    def __init__(self, config: TransformerConfig, weights: Weights, precision: str) -> None:
        build = Builder(config, weights, int8=precision == "int8")
        self._source, self._encoder, self._memory = build.source_embedding(), build.encoder(), build.memory()
        self.target, self.decoder, self._output = build.target_embedding(), build.decoder(), build.output()
        self.cross_attentions = build.cross_attentions()

    def start(self, sources: Sequence[Sequence[int]], shortlist: Shortlist | None = None) -> "CpuDecoding":
        """Encode a batch, which is decoded into the pieces of a shortlist or into all pieces."""
        candidates = (
            VocabularyCandidates(self._output)
            if shortlist is None
            else ShortlistCandidates(self._output, shortlist.allowed(sources))
        )
        decoding = CpuDecoding(self, candidates)
        decoding.add(sources)
        return decoding

    def encode(self, sources: Sequence[Sequence[int]], memory: Sequence[Cache]) -> None:
        """Write keys and values of the sources, end to end, for every decoder layer."""
        done = 0
        for part in split_by_tokens(sources, TOKENS_PER_PASS):
            product = self._encode(part)
            tokens = slice(done, done + len(product[0]))
            _restore_side_by_side(product, [array[tokens] for cache in memory for array in cache])
            done = tokens.stop

    def predict(self, batch: Batch, count: int) -> Predictions:
        """What the model predicts at every position, by teacher forcing."""
        lengths = batch.source_allowed.sum(dim=1).tolist()
        sources = [ids[:length] for ids, length in zip(batch.source_ids.tolist(), lengths, strict=True)]
        decoding = self.start(sources)
        weights, log_probs, ids = list[Array](), list[Array](), list[Array]()
        for rows, weight_LNHS in decoding.teacher_force(batch.target_input.tolist()):
            weights.append(weight_LNHS.mean(axis=2))
            log_prob_NC, id_NC = decoding.best_of(rows, count)
            log_probs.append(log_prob_NC)
            ids.append(id_NC)
        weight_LNS, shape = np.concatenate(weights, axis=1), batch.target_input.shape
        return Predictions(
            weight_LNS.reshape(len(weight_LNS), *shape, -1),
            np.concatenate(log_probs).reshape(*shape, -1),
            np.concatenate(ids).reshape(*shape, -1),
        )

    def cross_attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Array]:
        """What every head attends to in the source when these ids are fed to the decoder: [L, H, T, S] of each."""
        parts = [weight_LNHS for _, weight_LNHS in self.start(sources).teacher_force(targets)]
        ends = np.cumsum([len(target) for target in targets])
        by_sentence = np.split(np.concatenate(parts, axis=1), ends[:-1], axis=1)
        return [
            weight_LTHS[..., : len(source)].transpose(0, 2, 1, 3)
            for weight_LTHS, source in zip(by_sentence, sources, strict=True)
        ]

    def _encode(self, sources: Sequence[Sequence[int]]) -> Product:
        """Keys and values of all decoder layers for every token, side by side."""
        length_B = np.array([len(source) for source in sources])
        first_B = np.cumsum(length_B) - length_B
        place_N = np.concatenate([np.arange(length) for length in length_B])
        stream = self._encoder.stream(self._source(np.fromiter(itertools.chain(*sources), np.int64), place_N))
        keys_and_values = new_cache(self._encoder.size, length_B.max())
        rows = stream.begin(self._encoder.layers[0].attention.before)
        for layer, following in zip(self._encoder.layers, self._encoder.matrices_after(self._memory), strict=True):
            context = layer.attention.after.rows(len(place_N))
            loops.attend_to_sentence(*layer.attention.before(rows), first_B, length_B, *keys_and_values, *context)
            rows = stream.add(layer.attention.after(context), layer.inner)
            rows = layer.feed_forward(rows, stream, following)
        return self._memory(rows)


class CpuDecoding:
    """One batch being decoded (search's Decoding protocol)."""

    def __init__(self, engine: CpuEngine, candidates: Candidates) -> None:
        self._engine, self._candidates = engine, candidates
        self._memory, self._past = Entries(engine.decoder.size), Entries(engine.decoder.size)
        self._first_B, self._length_B = np.zeros((2, 0), np.int64)  # entries of the memory
        self._entry_BWT = np.zeros((0, 1, 0), np.int64)  # entries of the past; those of a sentence are at the end
        self._steps_B = np.zeros(0, np.int64)  # how many of them

    def join(self, sources: Sequence[Sequence[int]]) -> None:
        """Add sentences at the end, with as many hypotheses as the others have."""
        assert isinstance(self._candidates, VocabularyCandidates), "a shortlist belongs to its sentences"
        self.add(sources)

    def add(self, sources: Sequence[Sequence[int]]) -> None:
        length_B = np.array([len(source) for source in sources])
        tokens = int(length_B.sum())
        if not self._memory.has_room(tokens):
            self._reclaim_memory(tokens)
        first = self._memory.take(tokens)
        room = slice(first, first + tokens)
        self._engine.encode(sources, [(keys[room], values[room]) for keys, values in self._memory.caches])
        self._first_B = np.concatenate([self._first_B, first + np.cumsum(length_B) - length_B])
        self._length_B = np.concatenate([self._length_B, length_B])
        new_BWT = np.zeros((len(sources), *self._entry_BWT.shape[1:]), np.int64)
        self._entry_BWT = np.concatenate([self._entry_BWT, new_BWT])
        self._steps_B = np.concatenate([self._steps_B, np.zeros(len(sources), np.int64)])

    def best(self, id_BW: Array, count: int) -> tuple[Array, Array]:
        return self._candidates.best(self._step(id_BW), count)

    def best_of(self, rows: Rows, count: int) -> tuple[Array, Array]:
        """The same for what `teacher_force` yields."""
        return self._candidates.best(rows, count)

    def teacher_force(self, targets: Sequence[Sequence[int]]) -> Iterator[tuple[Rows, Array]]:
        """Feed ids to a batch that has just started, those of all sentences end to end.

        Yield, part by part, what the output matrix takes and the attention to the source: [L, N, H, S].
        """
        length_B = np.array([len(target) for target in targets])
        id_N = np.fromiter(itertools.chain(*targets), np.int64)
        place_N = np.concatenate([np.arange(length) for length in length_B])
        sentence_N = np.repeat(np.arange(len(targets)), length_B)
        self._past.reclaim(np.zeros(0, np.int64), len(id_N))
        # each attends to itself and those before it in its sentence, which are written first
        entry_NT = self._past.take(len(id_N)) + np.arange(len(id_N))[:, np.newaxis] + np.arange(1 - length_B.max(), 1)
        size = self._engine.decoder.size
        for first in range(0, len(id_N), TOKENS_PER_PASS):
            some = slice(first, first + TOKENS_PER_PASS)
            weight_LNHS = np.empty((size.num_layers, len(id_N[some]), size.num_heads, self._length_B.max()), np.float32)
            sources = self._first_B[sentence_N[some]], self._length_B[sentence_N[some]]
            yield self._run_decoder(id_N[some], place_N[some], entry_NT[some], *sources, weight_LNHS), weight_LNHS

    def _step(self, id_BW: Array) -> Rows:
        """Feed an id to every hypothesis. Return what the output matrix takes."""
        self._add_entries()
        place_N = np.repeat(self._steps_B - 1, id_BW.shape[1])
        entry_NT = self._entry_BWT.reshape(id_BW.size, -1)
        sources = np.repeat(self._first_B, id_BW.shape[1]), np.repeat(self._length_B, id_BW.shape[1])
        return self._run_decoder(id_BW.reshape(-1), place_N, entry_NT, *sources)

    def _run_decoder(
        self,
        id_N: Array,
        place_N: Array,
        entry_NT: Array,
        first_N: Array,
        length_N: Array,
        weight_LNHS: Array | None = None,
    ) -> Rows:
        """Feed ids at their places, which attend to the last of their entries and to their source, from its first.

        Return what the output matrix takes.
        """
        decoder, count = self._engine.decoder, len(id_N)
        stream = decoder.stream(self._engine.target(id_N, place_N))
        rows = stream.begin(decoder.layers[0].attention.before)
        followings = decoder.matrices_after(self._candidates.matrix)
        parts = (decoder.layers, self._past.caches, self._engine.cross_attentions, self._memory.caches, followings)
        for number, (layer, past, cross, memory, following) in enumerate(zip(*parts, strict=True)):
            context = layer.attention.after.rows(count)
            loops.attend_to_past(*layer.attention.before(rows), *past, entry_NT, place_N + 1, *context)
            rows = stream.add(layer.attention.after(context), cross.before)
            product, context = cross.before(rows), cross.after.rows(count)
            loops.attend_to_source(*product, *memory, first_N, length_N, *context)
            if weight_LNHS is not None:
                loops.weigh_source(*product, memory[0], first_N, length_N, weight_LNHS[number])
            rows = stream.add(cross.after(context), layer.inner)
            rows = layer.feed_forward(rows, stream, following)
        return rows

    def log_probs(self, id_BW: Array) -> "Tensor":
        """For searches with constraints; those without do not need PyTorch."""
        import torch

        return torch.from_numpy(self._candidates.logits(self._step(id_BW))).log_softmax(dim=-1)

    def reorder(self, parent_BW: Array) -> None:
        self._entry_BWT = np.take_along_axis(self._entry_BWT, parent_BW[:, :, np.newaxis], axis=1)

    def select(self, sentence_B: Array) -> None:
        self._steps_B = self._steps_B[sentence_B]
        unused = self._entry_BWT.shape[2] - self._steps_B.max(initial=0)
        self._entry_BWT = self._entry_BWT[sentence_B, :, unused:]
        self._first_B, self._length_B = self._first_B[sentence_B], self._length_B[sentence_B]
        self._candidates.select(sentence_B)

    def _add_entries(self) -> None:
        """One for every hypothesis."""
        sentences, width, _ = self._entry_BWT.shape
        more = sentences * width
        if not self._past.has_room(more):
            self._reclaim_past(more)
        first = self._past.take(more)
        new_BW1 = np.arange(first, first + more).reshape(sentences, width, 1)
        self._entry_BWT = np.concatenate([self._entry_BWT, new_BW1], axis=2)
        self._steps_B = self._steps_B + 1

    def _reclaim_past(self, more: int) -> None:
        """The entries of hypotheses that the search gave up, and of sentences that are done."""
        columns = self._entry_BWT.shape[2]
        own_BT = np.arange(columns) >= columns - self._steps_B[:, np.newaxis]
        needed = np.unique(self._entry_BWT.transpose(0, 2, 1)[own_BT])
        renumbered = self._past.reclaim(needed, more)
        self._entry_BWT = renumbered[self._entry_BWT]

    def _reclaim_memory(self, tokens: int) -> None:
        """Of sentences that are done. A sentence's entries still follow each other."""
        ranges = [np.arange(first, first + count) for first, count in zip(self._first_B, self._length_B, strict=True)]
        needed = np.concatenate([np.zeros(0, np.int64), *ranges])
        self._first_B = self._memory.reclaim(needed, tokens)[self._first_B]


def _restore_side_by_side(product: Product, arrays: Sequence[Array]) -> None:
    """Write the numbers of a product of several matrices to an array each: [N, H, D]."""
    first = 0
    for array in arrays:
        flat = array.reshape(len(array), -1)
        loops.restore(*product, first, flat)
        first += flat.shape[1]
