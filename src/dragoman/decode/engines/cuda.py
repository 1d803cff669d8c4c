"""Beam search on a GPU without waiting for the host. Knows nothing of text.

Sentences are encoded and queued on the device, whose steps are a CUDA graph (engines/program.py). More can be added
while others are decoded. `engines/plain.py` with decode/search.py says what is correct.

Shapes: B slots, W hypotheses of each, N = B W rows, M width of a position, S source tokens of all sentences, T target
positions, V vocabulary, Q sentences of the queue.
"""

import itertools
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import DecodeConfig
from dragoman.data.batching import split_by_tokens
from dragoman.decode.engines.encoder import SourceEncoder
from dragoman.decode.engines.program import Load, Program, Shape, length_penalties, next_power_of_two, write
from dragoman.decode.search import Hypothesis
from dragoman.errors import ConfigError
from dragoman.machine import is_out_of_memory
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.positions import rotate, rotation_at
from dragoman.model.transformer import DecoderLayer, Transformer

MOST_HYPOTHESES = 16
SOURCE_TOKENS = 1 << 17  # capacity of a queue; more if a single sentence needs it
SENTENCES_PER_SLOT = 16  # capacity of a queue
MIN_LOADS = 2  # that fit in a queue together
SHORTEST = 128  # target positions of the smallest cache
KEPT_SHAPES = 4
CACHE_SHARE = 0.15  # of the device's memory, at most, for the keys and values of one shape

Array = npt.NDArray[Any]
Hypotheses = tuple[int, list[Hypothesis] | None]  # the number of a source, and what was found; None: no memory for it


class Linear(NamedTuple):
    """A matrix in the precision of the search, and its bias."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x_NM: Tensor) -> Tensor:
        return F.linear(x_NM, self.weight, self.bias)


class Norm(NamedTuple):
    weight: Tensor
    bias: Tensor
    epsilon: float


@dataclass(frozen=True)
class Layer:
    """The weights of a decoder layer, those that meet the same input side by side."""

    self_input: Linear  # queries, keys, values
    self_output: Linear
    cross_query: Linear
    cross_memory: Linear  # keys, values
    cross_output: Linear
    inner: Linear
    outer: Linear


class Job(NamedTuple):
    source: Sequence[int]
    limit: int


class CudaSearch:
    """Greedy and beam search of one Transformer. Search within `exclusive`: there is one set of caches."""

    @torch.no_grad()
    def __init__(self, model: Transformer, device: torch.device, precision: torch.dtype) -> None:
        self._model, self._device, self._precision = model, device, precision
        config = model.config
        self._pre_norm = config.norm == "pre"
        size = config.decoder
        self._heads, self._d_k, self._d_v = size.num_heads, size.d_k, size.d_v
        layers: list[DecoderLayer] = list(model.decoder.layers)  # type: ignore[arg-type]
        self._layers = [self._layer(layer) for layer in layers]
        norms = [
            residual.layer_norm
            for layer in layers
            for residual in (
                layer.self_attention_residual, layer.cross_attention_residual, layer.feed_forward_residual,
            )
        ]  # fmt: skip
        if model.decoder.final_norm is not None:
            norms.append(model.decoder.final_norm)
        if model.decoder.embedding_norm is not None:
            norms.insert(0, model.decoder.embedding_norm)
        self._norms = [Norm(norm.weight.float(), norm.bias.float(), norm.eps) for norm in norms]
        self._activation = layers[0].feed_forward.activation
        bias = model.output.bias
        self._output = Linear(model.output.weight.to(precision), None if bias is None else bias.float())
        maps = [layer.cross_memory for layer in self._layers]
        self._encoder = SourceEncoder(model, lambda memory_SM: [each(memory_SM) for each in maps], device, precision)
        self._programs: dict[Shape, Program] = {}
        self._lock = threading.RLock()  # so that a nested call is an error and not a deadlock
        self._busy = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other threads out, and work on the device's default stream, where earlier steps may still run."""
        with self._lock:
            if self._busy:
                raise ConfigError("translate: called within another translation of the same model; wait for its end")
            self._busy = True
            try:
                # Triton launches kernels on the current device
                on_gpu = self._device.type == "cuda"
                device = torch.cuda.device(self._device) if on_gpu else nullcontext()
                stream = torch.cuda.stream(torch.cuda.default_stream(self._device)) if on_gpu else nullcontext()
                with device, stream:
                    yield
            finally:
                self._busy = False

    def begin(
        self,
        options: DecodeConfig,
        expected: int,
        *,
        start: int,
        end: int,
        forbidden: Sequence[int],
        runs_ahead: bool = True,
    ) -> "Search":
        """A search to which about `expected` sentences will be added; `runs_ahead` as of a program."""
        return Search(self, options, expected, (start, end, *forbidden), runs_ahead)

    def shape(
        self, jobs: Sequence[Job], options: DecodeConfig, special: tuple[int, ...], slots: int, expected: int
    ) -> Shape:
        """The shape for these jobs among the expected ones, with at most `slots` slots."""
        # few shapes: capturing a graph takes longer than using it for a page of text
        positions = next_power_of_two(max(SHORTEST, max(job.limit for job in jobs) + 2))
        expected = max(expected, len(jobs))
        slots = min(next_power_of_two(expected), slots, self._most_slots(positions * options.beam))
        tokens = sum(len(job.source) for job in jobs)
        return Shape(
            slots=slots,
            hypotheses=options.beam,
            results=options.n_best,
            positions=positions,
            sentences=slots
            if expected <= slots
            else max(SENTENCES_PER_SLOT * slots, MIN_LOADS * next_power_of_two(len(jobs))),
            source_tokens=next_power_of_two(
                max(SOURCE_TOKENS if expected > slots else MIN_LOADS * slots * SHORTEST, tokens)
            ),
            special=special,
        )

    def program(self, shape: Shape) -> Program:
        program = self._programs.pop(shape, None)
        while program is None and len(self._programs) >= KEPT_SHAPES:
            del self._programs[next(iter(self._programs))]  # the least recently used
        self._programs[shape] = program or Program(self, shape, self._device)
        return self._programs[shape]

    def add(self, program: Program, jobs: Sequence[Job]) -> Load:
        """Encode the sentences and start to decode them."""
        place = program.next_token
        for memory in self._encoder([job.source for job in jobs]):
            for ring, memory_SC in zip(program.sources, memory, strict=True):
                write(ring, place, memory_SC)
            place += len(memory[0])
        lengths = np.array([len(job.source) for job in jobs], dtype=np.int64)
        return program.add(lengths, np.array([job.limit for job in jobs], dtype=np.int64))

    def free_memory(self) -> None:
        """Drop all programs; one that is in use is freed with its last reference."""
        self._programs.clear()
        self._encoder.free_memory()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _most_slots(self, entries: int) -> int:
        """The most slots whose caches, of so many entries in a layer, fit in CACHE_SHARE of the memory."""
        if self._device.type != "cuda":
            return sys.maxsize
        each = entries * self._heads * (self._d_k + self._d_v) * len(self._layers) * self._precision.itemsize
        room = CACHE_SHARE * torch.cuda.get_device_properties(self._device).total_memory
        return max(1, next_power_of_two(int(room / each) + 1) // 2)  # a power of two

    # The decoder

    def step(self, program: "Program") -> None:
        """One more id for every hypothesis."""
        from dragoman.model.kernels import decoding as kernels

        slots, queue, shape, precision = program.slots, program.queue, program.shape, self._precision
        table = self._model.target_embedding.weight
        stream = torch.float32 if self._pre_norm else precision
        x_NM = kernels.embed(slots, table, program.position_table, math.sqrt(table.size(1)), stream)
        norms = iter(self._norms)
        if self._model.decoder.embedding_norm is not None:
            _, x_NM = kernels.add_norm(x_NM, None, *next(norms), stream, keep=False)
        h_NM = x_NM
        if self._pre_norm:
            _, h_NM = kernels.add_norm(x_NM, None, *next(norms), precision, keep=False)

        def join(out_NM: Tensor) -> None:
            nonlocal x_NM, h_NM
            x_NM, h_NM = kernels.add_norm(x_NM, out_NM, *next(norms), precision, keep=self._pre_norm)
            if not self._pre_norm:
                x_NM = h_NM

        turns = None
        if self._model.decoder.rotary:
            turns = rotation_at(slots.position.repeat_interleave(shape.hypotheses), self._d_k)
        scale = self._d_k**-0.5
        for layer, keys, values, kv in zip(self._layers, program.keys, program.values, program.sources, strict=True):
            qkv_NC = layer.self_input(h_NM)
            if turns is not None:
                qkv_NC = self._rotate(qkv_NC, turns)
            join(layer.self_output(kernels.self_attention(slots, qkv_NC, keys, values, self._heads, scale)))
            q_NC = layer.cross_query(h_NM)
            heads_NC = kernels.cross_attention(slots, queue, q_NC, kv, self._heads, self._d_k, self._d_v, scale)
            join(layer.cross_output(heads_NC))
            join(self._feed_forward(layer, h_NM))
        count = min(2 * shape.hypotheses, self._output.weight.size(0))
        values_NC, ids_NC = kernels.best_candidates(slots, self._logits(h_NM), count, shape.special[2:])
        kernels.advance(slots, queue, values_NC, ids_NC, program.penalties, *shape.special[:2])

    def _feed_forward(self, layer: Layer, h_NM: Tensor) -> Tensor:
        if self._activation is F.relu and h_NM.is_cuda:
            assert layer.inner.bias is not None
            return layer.outer(torch._addmm_activation(layer.inner.bias, h_NM, layer.inner.weight.t()))
        return layer.outer(self._activation(layer.inner(h_NM)))

    def _logits(self, h_NM: Tensor) -> Tensor:
        """In float32: bfloat16 would round the log-probabilities of likely ids to a few percent."""
        weight, bias = self._output
        if h_NM.is_cuda and h_NM.dtype != torch.float32:
            logits_NV = torch.mm(h_NM, weight.t(), out_dtype=torch.float32)
        else:
            logits_NV = (h_NM @ weight.t()).float()
        return logits_NV if bias is None else logits_NV + bias

    def _rotate(self, qkv_NC: Tensor, turns: Tensor) -> Tensor:
        both, rest = torch.split(qkv_NC, [2 * self._heads * self._d_k, self._heads * self._d_v], dim=1)
        heads_HND = both.view(len(both), 2 * self._heads, self._d_k).transpose(0, 1)
        return torch.cat([rotate(heads_HND, turns).transpose(0, 1).flatten(1), rest], dim=1)

    # Weights

    def _linear(self, *maps: nn.Linear) -> Linear:
        weight = torch.cat([each.weight for each in maps]).to(self._precision)
        bias = None if maps[0].bias is None else torch.cat([each.bias for each in maps]).to(self._precision)
        return Linear(weight.contiguous(), bias)

    def _layer(self, layer: DecoderLayer) -> Layer:
        own: MultiHeadAttention = layer.self_attention
        cross: MultiHeadAttention = layer.cross_attention
        return Layer(
            self_input=self._linear(own.query, own.key, own.value),
            self_output=self._linear(own.output),
            cross_query=self._linear(cross.query),
            cross_memory=self._linear(cross.key, cross.value),
            cross_output=self._linear(cross.output),
            inner=self._linear(layer.feed_forward.inner),
            outer=self._linear(layer.feed_forward.outer),
        )

    def caches(self, shape: Shape) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """For each layer: keys [B, H, T, W, D], values [B, H, T, W, E], and both of all sources [S, H D + H E]."""

        def empty(*sizes: int) -> list[Tensor]:
            return [torch.empty(sizes, device=self._device, dtype=self._precision) for _ in self._layers]

        past = (shape.slots, self._heads, shape.positions, shape.hypotheses)
        both = self._heads * (self._d_k + self._d_v)
        return empty(*past, self._d_k), empty(*past, self._d_v), empty(shape.source_tokens, both)

    def position_table(self, count: int) -> Tensor | None:
        """[T, M] in float32; None if the model adds no positions to its embeddings."""
        positions = self._model.decoder.positions
        if positions.learned is not None:
            count = min(count, positions.learned.num_embeddings)
        return positions.vectors(torch.arange(count, device=self._device), torch.float32)


@dataclass(frozen=True)
class Found:
    """What a search left, as arrays: nothing is converted while the device could work on the next search."""

    numbers: Sequence[int]  # of the sources
    lengths_QR: Array | None = None  # -1: no such hypothesis; None: the sources do not fit in memory
    scores_QR: Array | None = None
    finished_QR: Array | None = None
    ids_QRT: Array | None = None

    def hypotheses(self, options: DecodeConfig) -> Iterator[Hypotheses]:
        """Yield the number of every source with its hypotheses, best first; None if it does not fit in memory."""
        if self.lengths_QR is None or self.scores_QR is None or self.finished_QR is None or self.ids_QRT is None:
            yield from ((number, None) for number in self.numbers)
            return
        real_QR = self.lengths_QR >= 0
        lengths, scores, finished = (
            each_QR[real_QR] for each_QR in (self.lengths_QR, self.scores_QR, self.finished_QR.astype(bool))
        )
        with_end = lengths + finished
        normalized = scores / length_penalties(int(with_end.max(initial=1)), options)[with_end.clip(1)]
        real_QRT = np.arange(self.ids_QRT.shape[2]) < self.lengths_QR[..., np.newaxis]
        ids = tuple(self.ids_QRT[real_QRT].tolist())
        ends = np.cumsum(lengths)
        rows = [ids[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]
        every = map(Hypothesis, rows, scores.tolist(), normalized.tolist(), finished.tolist())
        for number, count in zip(self.numbers, real_QR.sum(axis=1).tolist(), strict=True):
            yield number, list(itertools.islice(every, count))


class Search:
    """A running search. Either `take` the results of one `add` after the other, or `advance` and take what is done."""

    def __init__(
        self,
        engine: CudaSearch,
        options: DecodeConfig,
        expected: int,
        special: tuple[int, ...],
        runs_ahead: bool,
    ) -> None:
        self._engine, self._options, self._expected, self._special = engine, options, expected, special
        self._runs_ahead = runs_ahead
        self._slots = options.batch_size  # fewer once they did not fit in memory
        self._programs: list[Program] = []  # begun
        self._added: dict[int, list[_Pending]] = {}  # by the number of the load, the oldest first
        self._numbers = itertools.count()

    def add(self, sources: Sequence[Sequence[int]], limits: Sequence[int]) -> int:
        """Start to decode sentences; what does not fit in memory is decoded in halves before this returns.

        Return the number of this load.
        """
        jobs = [Job(source, limit) for source, limit in zip(sources, limits, strict=True)]
        # longest first: slots idle at the end, and only briefly if the last sentences are short
        order = sorted(range(len(jobs)), key=lambda number: -jobs[number].limit)
        added: list[_Pending] = []
        load = next(self._numbers)
        self._added[load] = added
        tokens, sentences = SOURCE_TOKENS // MIN_LOADS, SENTENCES_PER_SLOT * self._slots // MIN_LOADS
        for numbers in split_by_tokens(order, tokens, sentences, size=lambda number: len(jobs[number].source)):
            added += self._start([jobs[number] for number in numbers], numbers, self._slots, self._expected)
        return load

    def is_ready(self) -> bool:
        """Whether `take` would not wait."""
        return all(pending.is_done() for pending in next(iter(self._added.values())))

    def take(self) -> list[Found]:
        """What was found for the sentences added first, of those not taken yet."""
        return self._finish(next(iter(self._added)))

    def advance(self) -> "list[tuple[int, Iterator[Hypotheses]]]":
        """Wait for some steps. Return the loads that are done, by their numbers, with what was found."""
        for program in self._programs:
            if any(pending.program is program for pending in self._pending()):
                program.advance()
        done = [load for load, parts in self._added.items() if all(pending.is_done() for pending in parts)]
        return [(load, self._hypotheses(self._finish(load))) for load in done]

    def give_up(self, load: int, number: int) -> None:
        """Let a sentence of a load be done soon, with what was found until then."""
        for pending in self._added[load]:
            pending.give_up(number)

    def _finish(self, load: int) -> list[Found]:
        return [pending.finish() for pending in self._added.pop(load)]

    def _hypotheses(self, parts: Sequence[Found]) -> "Iterator[Hypotheses]":
        return itertools.chain.from_iterable(part.hypotheses(self._options) for part in parts)

    def _pending(self) -> "Iterator[_Pending]":
        """The oldest first."""
        return itertools.chain.from_iterable(self._added.values())

    def _start(self, jobs: Sequence[Job], numbers: Sequence[int], slots: int, expected: int) -> "list[_Pending]":
        started = self._try(jobs, numbers, slots, expected)
        if started is not None:
            return [started]
        for pending in self._pending():
            pending.finish()
        self._programs.clear()
        self._engine.free_memory()
        if len(jobs) == 1:
            return [_Pending(numbers)]
        self._slots = min(self._slots, max(1, slots // 2))
        parts, half = [], len(jobs) // 2
        for part in (slice(half), slice(half, None)):
            parts += self._start(jobs[part], numbers[part], max(1, slots // 2), expected=0)
            for pending in parts:
                pending.finish()
        return parts

    def _try(self, jobs: Sequence[Job], numbers: Sequence[int], slots: int, expected: int) -> "_Pending | None":
        """Start to decode sentences; None if they do not fit in memory. Nothing of the attempt is left then."""
        try:
            program = self._program(self._engine.shape(jobs, self._options, self._special, slots, expected))
            self._make_room(program, jobs)
            return _Pending(numbers, program, self._engine.add(program, jobs))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _program(self, shape: Shape) -> Program:
        for program in self._programs:
            if program.shape.covers(shape):
                return program
        self._programs.append(self._engine.program(shape))
        self._programs[-1].begin(self._options, runs_ahead=self._runs_ahead)
        return self._programs[-1]

    def _make_room(self, program: Program, jobs: Sequence[Job]) -> None:
        tokens = sum(len(job.source) for job in jobs)
        for pending in self._pending():
            if program.has_room(len(jobs), tokens):
                break
            pending.finish()


class _Pending:
    """Sentences on the device, unless they do not fit in its memory."""

    def __init__(self, numbers: Sequence[int], program: Program | None = None, load: Load | None = None) -> None:
        self._numbers, self.program, self._load = numbers, program, load
        self._found = Found(numbers) if program is None else None

    def is_done(self) -> bool:
        return self.program is None or self._load is None or self.program.is_done(self._load)

    def give_up(self, number: int) -> None:
        if number in self._numbers and self.program is not None and self._load is not None:
            self.program.give_up(self._load, self._numbers.index(number))

    def finish(self) -> Found:
        """Wait until all are done."""
        if self._found is None:
            assert self.program is not None
            assert self._load is not None
            self._found = Found(self._numbers, *self.program.wait(self._load))
            self.program = None
        return self._found


def supports(options: DecodeConfig) -> bool:
    """Whether this search can run with these options; the plain engine runs the others."""
    is_plain_beam = options.diversity_groups == 1 and options.beam <= MOST_HYPOTHESES
    return not options.sampling and is_plain_beam
