"""Beam search on a GPU without waiting for the host: its steps are CUDA graphs. Knows nothing of text.

A job's sentences are encoded, longest first, and queued on the device. A fixed number of slots decode them; a slot
whose sentence is done takes the next one in the same step (model/kernels/decoding.py). The host only replays the graph
and asks now and then how many sentences are done. `engines/plain.py` with decode/search.py says what is correct.

Shapes: B slots, W hypotheses of each, N = B W rows, M width of a position, S source tokens of all sentences, T target
positions, V vocabulary, Q sentences of the queue.
"""

import copy
import functools
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
from dragoman.data.packing import pack_sources
from dragoman.decode.search import Hypothesis, length_penalty
from dragoman.machine import is_out_of_memory
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.packed import PackedTransformer, kernels_fit
from dragoman.model.positions import rotate, rotation_at
from dragoman.model.transformer import DecoderLayer, Transformer

MOST_HYPOTHESES = 16
STEPS = 8  # of a graph
SOURCE_TOKENS = 1 << 17  # of a queue, at most
ENCODED_TOKENS = 1 << 17  # of a pass of the encoder, at most
SENTENCES_PER_SLOT = 16  # of a queue, at most
SHORTEST = 128  # target positions of the smallest cache
KEPT_SHAPES = 4
CACHE_SHARE = 0.15  # of the device's memory, at most, for the keys and values of one shape

Array = npt.NDArray[Any]
_CAPTURE = threading.Lock()


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


class Shape(NamedTuple):
    """What a graph is captured for."""

    slots: int
    hypotheses: int
    results: int
    positions: int  # of a translation, with the start symbol
    sentences: int  # of the queue
    source_tokens: int
    special: tuple[int, ...]  # start, end, and what is never predicted


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
        self._norms = [Norm(norm.weight.float(), norm.bias.float(), norm.eps) for norm in norms]
        self._activation = layers[0].feed_forward.activation
        bias = model.output.bias
        self._output = Linear(model.output.weight.to(precision), None if bias is None else bias.float())
        self._encoder_model = self._in_precision(model)
        self._encoder: PackedTransformer | None = None
        self._longest = 0
        self._programs: dict[Shape, Program] = {}
        self._lock = threading.RLock()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other threads out, and make this search's device the current one: Triton launches kernels there."""
        with self._lock, torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            yield

    def begin(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        options: DecodeConfig,
        *,
        start: int,
        end: int,
        forbidden: Sequence[int],
    ) -> "Search":
        """Start a search on the device. The host is free to do other work before it calls `wait`."""
        jobs = [Job(source, limit) for source, limit in zip(sources, limits, strict=True)]
        return Search(self, jobs, options, (start, end, *forbidden))

    def launch(
        self, jobs: Sequence[Job], options: DecodeConfig, special: tuple[int, ...], slots: int
    ) -> "Program | None":
        """Encode the sentences and start to decode them; None if they do not fit in memory."""
        try:
            return self._launch(jobs, options, special, slots)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self._programs.clear()  # after the except clause, whose end frees the traceback
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _launch(self, jobs: Sequence[Job], options: DecodeConfig, special: tuple[int, ...], slots: int) -> "Program":
        program = self._program(jobs, options, special, slots)
        first = 0
        for batch in split_by_tokens([job.source for job in jobs], ENCODED_TOKENS):
            memory_SM = self._encode(batch)
            for kv, layer in zip(program.sources, self._layers, strict=True):
                kv[first : first + len(memory_SM)] = layer.cross_memory(memory_SM)
            first += len(memory_SM)
        program.start(jobs, options)
        return program

    def _program(self, jobs: Sequence[Job], options: DecodeConfig, special: tuple[int, ...], slots: int) -> "Program":
        # few shapes: capturing a graph takes longer than using it for a page of text
        positions = _next_power_of_two(max(SHORTEST, max(job.limit for job in jobs) + 2))
        slots = min(_next_power_of_two(len(jobs)), slots, self._most_slots(positions * options.beam))
        tokens = sum(len(job.source) for job in jobs)
        shape = Shape(
            slots=slots,
            hypotheses=options.beam,
            results=options.n_best,
            positions=positions,
            sentences=slots if len(jobs) <= slots else max(SENTENCES_PER_SLOT * slots, _next_power_of_two(len(jobs))),
            source_tokens=_next_power_of_two(max(SOURCE_TOKENS if len(jobs) > slots else slots * SHORTEST, tokens)),
            special=special,
        )
        program = self._programs.pop(shape, None)
        while program is None and len(self._programs) >= KEPT_SHAPES:
            del self._programs[next(iter(self._programs))]  # the least recently used
        self._programs[shape] = program or Program(self, shape, self._device)
        return self._programs[shape]

    def _most_slots(self, entries: int) -> int:
        """The most slots whose caches, of so many entries in a layer, fit in CACHE_SHARE of the memory."""
        if self._device.type != "cuda":
            return sys.maxsize
        each = entries * self._heads * (self._d_k + self._d_v) * len(self._layers) * self._precision.itemsize
        room = CACHE_SHARE * torch.cuda.get_device_properties(self._device).total_memory
        return max(1, _next_power_of_two(int(room / each) + 1) // 2)  # a power of two

    # The encoder

    def _in_precision(self, model: Transformer) -> Transformer:
        """The model with the encoder's matrices in the precision of the search; norms and embeddings stay float32."""
        if self._precision == torch.float32:
            return model
        shared: dict[int, Any] = {id(part): part for part in (model.decoder, model.output, *model.parameters())}
        converted = copy.deepcopy(model, shared)
        for part in converted.encoder.modules():
            if isinstance(part, nn.Linear):
                part.weight = nn.Parameter(part.weight.to(self._precision), requires_grad=False)
                if part.bias is not None:
                    part.bias = nn.Parameter(part.bias.to(self._precision), requires_grad=False)
        return converted

    def _encode(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """[S, M]: the encoder's output, sentences end to end, in the precision of the search."""
        longest = max(map(len, sources))
        if self._encoder is None or longest > self._longest:
            self._longest = _next_power_of_two(longest)
            self._encoder = PackedTransformer(self._encoder_model, self._longest)
        half = self._precision != torch.float32
        tile = None
        if half and kernels_fit(self._model.config, self._device):
            from dragoman.model.kernels import BLOCK, LONGEST_WHOLE

            tile = (LONGEST_WHOLE, BLOCK)
        ids_S, segments = pack_sources(sources, tile)
        ids_S, segments = ids_S.to(self._device), segments.map(lambda part: part.to(self._device))
        with torch.autocast(self._device.type, self._precision, enabled=half):
            return self._encoder.encode(ids_S, segments).to(self._precision)

    # The decoder

    def step(self, program: "Program") -> None:
        """One more id for every hypothesis."""
        from dragoman.model.kernels import decoding as kernels

        slots, queue, shape, precision = program.slots, program.queue, program.shape, self._precision
        table = self._model.target_embedding.weight
        stream = torch.float32 if self._pre_norm else precision
        x_NM = kernels.embed(slots, table, program.position_table, math.sqrt(table.size(1)), stream)
        norms = iter(self._norms)
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
    lengths_QR: Array | None  # -1: no such hypothesis; None: the source does not fit in memory
    scores_QR: Array | None = None
    finished_QR: Array | None = None
    ids_QRT: Array | None = None

    def hypotheses(self, options: DecodeConfig) -> Iterator[tuple[int, list[Hypothesis] | None]]:
        """Yield the number of every source with its hypotheses, best first; None if it does not fit in memory."""
        if self.lengths_QR is None or self.scores_QR is None or self.finished_QR is None or self.ids_QRT is None:
            yield from ((number, None) for number in self.numbers)
            return
        real_QR = self.lengths_QR >= 0
        lengths, scores, finished = (
            each_QR[real_QR] for each_QR in (self.lengths_QR, self.scores_QR, self.finished_QR.astype(bool))
        )
        with_end = lengths + finished
        normalized = scores / _penalties(int(with_end.max(initial=1)), options)[with_end.clip(1)]
        real_QRT = np.arange(self.ids_QRT.shape[2]) < self.lengths_QR[..., np.newaxis]
        ids = tuple(self.ids_QRT[real_QRT].tolist())
        ends = np.cumsum(lengths)
        rows = [ids[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]
        every = map(Hypothesis, rows, scores.tolist(), normalized.tolist(), finished.tolist())
        for number, count in zip(self.numbers, real_QR.sum(axis=1).tolist(), strict=True):
            yield number, list(itertools.islice(every, count))


class Search:
    """A search under way. The device works on its first queue; `wait` waits for it and runs the others."""

    def __init__(
        self, engine: CudaSearch, jobs: Sequence[Job], options: DecodeConfig, special: tuple[int, ...]
    ) -> None:
        self._engine, self._options, self._special = engine, options, special
        # longest first: slots idle at the end of a queue, and only briefly if the last sentences are short
        order = sorted(range(len(jobs)), key=lambda number: -jobs[number].limit)
        self._jobs = jobs
        self._queues = list(_queues(order, jobs, SENTENCES_PER_SLOT * options.batch_size))
        self._first = self._launch(self._queues[0], options.batch_size) if self._queues else None

    def wait(self) -> list[Found]:
        """Return what was found, once everything is done."""
        found: list[Found] = []
        for place, numbers in enumerate(self._queues):
            slots = self._options.batch_size
            found += self._finish(self._first if place == 0 else self._launch(numbers, slots), numbers, slots)
        return found

    def _launch(self, numbers: Sequence[int], slots: int) -> "Program | None":
        return self._engine.launch([self._jobs[number] for number in numbers], self._options, self._special, slots)

    def _finish(self, program: "Program | None", numbers: Sequence[int], slots: int) -> list[Found]:
        """The results of a program; without one, with half the slots and half the sentences at a time."""
        if program is not None:
            program.run(len(numbers))
            return [program.found(numbers)]
        if len(numbers) == 1:
            return [Found(numbers, None)]
        half, slots = len(numbers) // 2, max(1, slots // 2)
        return [
            found
            for part in (numbers[:half], numbers[half:])
            for found in self._finish(self._launch(part, slots), part, slots)
        ]


class Program:
    """The tensors of a search of one shape, and its steps as a CUDA graph."""

    def __init__(self, search: CudaSearch, shape: Shape, device: torch.device) -> None:
        from dragoman.model.kernels.decoding import Queue, Slots

        def empty(*sizes: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(sizes, device=device, dtype=dtype)

        double, (slots, beam, results, positions, sentences, *_) = torch.float64, shape
        self.shape, self._device = shape, device
        self.slots = Slots(
            sentence=empty(slots),
            position=empty(slots),
            ids=empty(slots, beam),
            scores=empty(slots, beam, dtype=double),
            ancestors=empty(slots, beam, positions, dtype=torch.int8),
            tokens=empty(slots, positions, beam),
            finished_order=empty(slots, beam),
            finished_scores=empty(slots, beam, dtype=double),
            finished_normalized=empty(slots, beam, dtype=double),
            finished_lengths=empty(slots, beam),
            finished_ids=empty(slots, beam, positions),
        )
        self.queue = Queue(
            counters=empty(3),
            starts=empty(sentences + 1),
            limits=empty(sentences),
            scores=empty(sentences, results, dtype=double),
            lengths=empty(sentences, results),
            finished=empty(sentences, results),
            ids=empty(sentences, results, positions),
        )
        self.penalties = empty(positions + 1, dtype=double)
        self.position_table = search.position_table(positions)
        self.keys, self.values, self.sources = search.caches(shape)
        # without a reference to the engine, both are freed with their caches when nobody uses them any more
        self._graph = self._capture(search) if device.type == "cuda" else None
        self._step = functools.partial(search.step, self) if self._graph is None else None

    def _capture(self, search: CudaSearch) -> torch.cuda.CUDAGraph:
        self.slots.sentence.fill_(-1)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):  # kernels are compiled before the capture
            search.step(self)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # one capture at a time in a process; other threads may allocate memory meanwhile
        with _CAPTURE, torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            for _ in range(STEPS):
                search.step(self)
        return graph

    def start(self, jobs: Sequence[Job], options: DecodeConfig) -> None:
        """Queue the sentences, give the first ones to the slots, and start most of the steps they will take."""
        count, slots, queue = len(jobs), self.slots, self.queue
        starts = np.cumsum([0, *(len(job.source) for job in jobs)], dtype=np.int32)
        sentences = np.arange(self.shape.slots, dtype=np.int32)
        sentences[count:] = -1
        self._set(queue.starts, starts)
        self._set(queue.limits, np.array([job.limit for job in jobs], dtype=np.int32))
        self._set(queue.counters, np.array([min(count, self.shape.slots), count, 0], dtype=np.int32))
        self._set(slots.sentence, sentences)
        self._set(self.penalties, _penalties(self.shape.positions, options))
        slots.position.zero_()
        slots.ids.fill_(self.shape.special[0])
        slots.tokens[:, 0] = self.shape.special[0]
        slots.scores.fill_(-math.inf)[:, 0] = 0.0
        slots.finished_order.fill_(-1)
        if self._graph is not None:
            # a translation is about as long as its source; the last steps are left to `run`
            for _ in range(int(starts[-1]) // (self.shape.slots * STEPS)):
                self._graph.replay()

    def _set(self, target: Tensor, values: Array) -> None:
        given = torch.from_numpy(values)
        # pinned: the copy does not block the host
        target[: len(values)].copy_(given.pin_memory() if self._graph is not None else given, non_blocking=True)

    def run(self, count: int) -> None:
        """Step until `count` sentences are done."""
        done = self.queue.counters[2]
        if self._graph is None:
            assert self._step is not None
            while int(done) < count:
                self._step()
            return
        # the answer to a question is read while the next steps run
        hosts = [torch.zeros((), dtype=torch.int32, pin_memory=True) for _ in range(2)]
        events = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        for number in itertools.count():
            hosts[number % 2].copy_(done, non_blocking=True)
            events[number % 2].record()
            self._graph.replay()
            before = (number + 1) % 2
            if number:
                events[before].synchronize()
                if int(hosts[before]) >= count:
                    return

    def found(self, numbers: Sequence[int]) -> Found:
        """The hypotheses of the first sentences of the queue, which have these numbers."""
        queue, count = self.queue, len(numbers)
        lengths_QR = queue.lengths[:count].cpu().numpy()
        ids_QRT = queue.ids[:count, :, : max(1, int(lengths_QR.max()))].cpu().numpy()
        scores_QR, finished_QR = (part[:count].cpu().numpy() for part in (queue.scores, queue.finished))
        return Found(numbers, lengths_QR, scores_QR, finished_QR, ids_QRT)


def _penalties(longest: int, options: DecodeConfig) -> Array:
    """The divisors of scores by length, with the end symbol; there is none of length 0."""
    lengths = range(1, longest + 1)
    form = options.length_penalty_form
    return np.array([1.0, *(length_penalty(length, options.length_penalty, form) for length in lengths)])


def supports(options: DecodeConfig) -> bool:
    """Whether this search can run with these options; the plain engine runs the others."""
    return not options.sampling and options.beam <= MOST_HYPOTHESES


def _queues(order: Sequence[int], jobs: Sequence[Job], sentences: int) -> Iterator[list[int]]:
    """Cut a job into queues of at most so many `sentences` and SOURCE_TOKENS tokens; a sentence may have more."""
    queue: list[int] = []
    tokens = 0
    for number in order:
        length = len(jobs[number].source)
        if queue and (tokens + length > SOURCE_TOKENS or len(queue) == sentences):
            yield queue
            queue, tokens = [], 0
        queue.append(number)
        tokens += length
    if queue:
        yield queue


def _next_power_of_two(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << (number - 1).bit_length()
