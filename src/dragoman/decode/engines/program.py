"""Slots, a queue and caches on a GPU, whose steps are a CUDA graph. Knows nothing of layers or text.

Sentences are added in loads. A fixed number of slots decode them; a slot whose sentence is done takes the next one in
the same step (model/kernels/decoding.py). The host adds the next load before the slots run out of work, and reads the
results of a load while the device works on the next.

Shapes: B slots, W hypotheses of each, T target positions, R results, Q places for sentences, S for source tokens.
"""

import functools
import itertools
import math
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.config import DecodeConfig
from dragoman.decode.search import length_penalty

STEPS = 8  # of a graph
GRAPHS_AHEAD = 4  # while the host reads results: it takes a few milliseconds
MOST_LOADS = 16  # under way
MOST_QUESTIONS = 64  # under way

Array = npt.NDArray[Any]
_CAPTURE = threading.Lock()


class Shape(NamedTuple):
    """What a graph is captured for."""

    slots: int
    hypotheses: int
    results: int
    positions: int  # of a translation, with the start symbol
    sentences: int  # of the queue
    source_tokens: int
    special: tuple[int, ...]  # start, end, and what is never predicted

    def holds(self, other: "Shape") -> bool:
        """Whether it can do all that the other one can, with as many slots."""
        same = (self.hypotheses, self.results, self.special) == (other.hypotheses, other.results, other.special)
        sizes = zip(self._sizes(), other._sizes(), strict=True)
        return same and all(own >= others for own, others in sizes)

    def _sizes(self) -> tuple[int, ...]:
        return self.slots, self.positions, self.sentences, self.source_tokens


class Load(NamedTuple):
    """Sentences that were added together."""

    first: int  # sentences added before
    first_token: int  # source tokens added before
    sentences: int
    place: int  # of its counter
    done_at: int  # what the counter says when all are done


class Results(NamedTuple):
    lengths_QR: Array  # -1: no such hypothesis
    scores_QR: Array
    finished_QR: Array
    ids_QRT: Array


class _Answer(NamedTuple):
    """How many sentences of each load were done after some step; to be read after the event."""

    done: Tensor
    event: torch.cuda.Event | None

    def is_answered(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]


class Decoder(Protocol):
    """What the program runs."""

    def step(self, program: "Program") -> None: ...
    def caches(self, shape: Shape) -> tuple[list[Tensor], list[Tensor], list[Tensor]]: ...
    def position_table(self, count: int) -> Tensor | None: ...


class Program:
    """A search of one shape. Call `begin`, then `add` and `wait` in turns."""

    def __init__(self, decoder: Decoder, shape: Shape, device: torch.device) -> None:
        from dragoman.model.kernels.decoding import Queue, Slots

        def empty(*sizes: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(sizes, device=device, dtype=dtype)

        long, double, (slots, beam, results, positions, sentences, *_) = torch.int64, torch.float64, shape
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
            counters=empty(2, dtype=long),
            sentences=empty(sentences, 4),
            done=empty(MOST_LOADS, dtype=long),
            scores=empty(sentences, results, dtype=double),
            lengths=empty(sentences, results),
            finished=empty(sentences, results),
            ids=empty(sentences, results, positions),
        )
        self.penalties = empty(positions + 1, dtype=double)
        self.position_table = decoder.position_table(positions)
        self.keys, self.values, self.sources = decoder.caches(shape)
        # without a reference to the decoder, both are freed with their caches when nobody uses them any more
        self._graph = self._capture(decoder) if device.type == "cuda" else None
        self._step = functools.partial(decoder.step, self) if self._graph is None else None
        self._beside = torch.cuda.Stream(device) if self._graph is not None else None  # type: ignore[no-untyped-call]
        # the answer to a question is read while the steps before the next one run
        self._ahead = 1 if self._graph is None else 2
        self._answers = torch.zeros(
            (MOST_QUESTIONS, MOST_LOADS), dtype=torch.int64, pin_memory=self._graph is not None
        )  # in turns

    def _capture(self, decoder: Decoder) -> torch.cuda.CUDAGraph:
        self.slots.sentence.fill_(-1)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):  # kernels are compiled before the capture
            decoder.step(self)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # one capture at a time in a process; other threads may allocate memory meanwhile
        with _CAPTURE, torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            for _ in range(STEPS):
                decoder.step(self)
        return graph

    def begin(self, options: DecodeConfig) -> None:
        """Forget what an earlier search left."""
        slots = self.slots
        slots.sentence.fill_(-1)
        slots.position.zero_()
        slots.ids.fill_(self.shape.special[0])
        slots.tokens[:, 0] = self.shape.special[0]
        slots.scores.fill_(-math.inf)[:, 0] = 0.0
        slots.finished_order.fill_(-1)
        self.queue.counters.zero_()
        self.queue.done.zero_()
        self.penalties.copy_(
            on_device(torch.from_numpy(penalties(self.shape.positions, options)), self._device), non_blocking=True
        )
        self._loads: deque[Load] = deque()  # under way
        self._added, self._tokens = 0, 0  # so far
        self._totals = [0] * MOST_LOADS  # what the counters of loads will say
        self._questions: deque[_Answer] = deque()
        self._numbers = itertools.cycle(range(MOST_QUESTIONS))
        self._done, self._known = [0] * MOST_LOADS, _Answer(self._answers[0], None)  # the newest answer
        self._steps, self._end = 0, 0.0  # steps started; how many everything added takes, if no slot is idle

    def has_room(self, sentences: int, tokens: int) -> bool:
        """Whether so many can be added now, and not only when other loads are done."""
        if not self._loads:
            return True
        oldest = self._loads[0]
        return (
            len(self._loads) < MOST_LOADS
            and self._added + sentences - oldest.first <= self.shape.sentences
            and self._tokens + tokens - oldest.first_token <= self.shape.source_tokens
        )

    @property
    def next_token(self) -> int:
        """Where the source tokens of the next load begin, in the ring."""
        return self._tokens

    def add(self, lengths: Array, limits: Array) -> Load:
        """Queue sentences of these source lengths, longest first, after their keys and values were written.

        Start as many steps as the slots have work for.
        """
        from dragoman.model.kernels.decoding import admit

        count, taken = len(lengths), {load.place for load in self._loads}
        place = next(place for place in range(MOST_LOADS) if place not in taken)
        starts = (self._tokens + np.cumsum(lengths) - lengths) % self.shape.source_tokens
        rows = np.stack([starts, lengths, limits, np.full(count, place)], axis=1).astype(np.int32)
        write(self.queue.sentences, self._added, on_device(torch.from_numpy(rows), self._device))
        self._totals[place] += count
        load = Load(self._added, self._tokens, count, place, self._totals[place])
        self._loads.append(load)
        self._added, self._tokens = self._added + count, self._tokens + int(lengths.sum())
        self.queue.counters[1].fill_(self._added)
        admit(self.slots, self.queue)
        self._start_steps(lengths)
        return load

    def _start_steps(self, lengths: Array) -> None:
        """As many as can be expected to leave no slot idle: a translation is about as long as its source."""
        slots = self.shape.slots
        before = max(self._end, self._steps)
        busy = before + int(lengths[:-slots].sum()) / slots + int(lengths[-slots:].min())
        self._end = before + int(lengths.sum()) / slots
        if self._graph is not None:
            while self._steps + STEPS <= busy:
                self._run()

    def _run(self) -> None:
        """Start some steps, and ask which sentences are done after them."""
        if len(self._questions) == MOST_QUESTIONS:
            self._read_answer()
        answer, event = self._answers[next(self._numbers)], None
        if self._graph is None:
            assert self._step is not None
            self._step()
            self._steps += 1
        else:
            self._graph.replay()
            self._steps += STEPS
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        answer.copy_(self.queue.done, non_blocking=True)
        if event is not None:
            event.record()
        self._questions.append(_Answer(answer, event))

    def _read_answer(self) -> None:
        self._known = self._questions.popleft()
        if self._known.event is not None:
            self._known.event.synchronize()
        self._done = self._known.done.tolist()

    def wait(self, load: Load) -> Results:
        """Step until every sentence of the load is done; return what was found."""
        while self._done[load.place] < load.done_at:
            while len(self._questions) < self._ahead:
                self._run()
            self._read_answer()
        self._loads.remove(load)
        self._keep_busy()
        with self._beside_the_steps():
            lengths_QR = self._read(self.queue.lengths, load)
            ids_QRT = self._read(self.queue.ids[:, :, : max(1, int(lengths_QR.max()))], load)
            scores_QR, finished_QR = (self._read(part, load) for part in (self.queue.scores, self.queue.finished))
        return Results(lengths_QR, scores_QR, finished_QR, ids_QRT)

    def _keep_busy(self) -> None:
        """Start steps for the time in which the host does something else."""
        if self._graph is None:
            return
        while self._questions and self._questions[0].is_answered():
            self._read_answer()
        while self._loads and len(self._questions) < GRAPHS_AHEAD:
            self._run()

    @contextmanager
    def _beside_the_steps(self) -> Iterator[None]:
        """Copies made here do not wait for the steps that were started ahead."""
        if self._beside is None:
            yield
            return
        assert self._known.event is not None
        self._beside.wait_event(self._known.event)
        with torch.cuda.stream(self._beside):
            yield

    @staticmethod
    def _read(ring: Tensor, load: Load) -> Array:
        first = load.first % len(ring)
        parts = ring[first : first + load.sentences], ring[: max(0, first + load.sentences - len(ring))]
        array: Array = torch.cat(parts).cpu().numpy()
        return array


def write(ring: Tensor, first: int, rows: Tensor) -> None:
    """Write rows into a ring: after the last place comes the first."""
    first %= len(ring)
    fit = len(ring) - first
    ring[first : first + len(rows)] = rows[:fit]
    if len(rows) > fit:
        ring[: len(rows) - fit] = rows[fit:]


def on_device(given: Tensor, device: torch.device) -> Tensor:
    """On a GPU, a copy from pinned memory: the host does not wait for it."""
    return given.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else given


def penalties(longest: int, options: DecodeConfig) -> Array:
    """The divisors of scores by length, with the end symbol; there is none of length 0."""
    lengths = range(1, longest + 1)
    form = options.length_penalty_form
    return np.array([1.0, *(length_penalty(length, options.length_penalty, form) for length in lengths)])
