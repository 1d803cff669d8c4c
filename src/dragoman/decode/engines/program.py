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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.config import DecodeConfig
from dragoman.decode.search import length_penalty

STEPS_PER_GRAPH = 8
GRAPHS_AHEAD = 4  # while the host reads results, which takes a few milliseconds
MAX_LOADS = 16  # under way
MAX_POLLS = 64  # under way; more than GRAPHS_AHEAD
LIMIT = 2  # column of a queue's sentences

Array = npt.NDArray[Any]
Result = TypeVar("Result")
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

    def covers(self, other: "Shape") -> bool:
        """Whether it can do all that the other one can, with at least as many slots."""
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
    tokens: int
    counter: int  # index of the one that counts its sentences that are done
    done_at: int  # what the counter says when all are done


class Results(NamedTuple):
    """The hypotheses of a load, best first."""

    lengths_QR: Array  # -1: no such hypothesis
    scores_QR: Array
    finished_QR: Array
    ids_QRT: Array


class _Poll(NamedTuple):
    """How many sentences of each load were done after some step; to be read after the event."""

    done: Tensor
    event: torch.cuda.Event | None

    def is_ready(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]


class Stepper(Protocol):
    """What a program runs."""

    def step(self, program: "Program") -> None: ...
    def caches(self, shape: Shape) -> tuple[list[Tensor], list[Tensor], list[Tensor]]: ...
    def position_table(self, count: int) -> Tensor | None: ...


class Program:
    """A search of one shape. Call `begin` once for a search, then `add` and `wait` in any order."""

    def __init__(self, stepper: Stepper, shape: Shape, device: torch.device) -> None:
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
            done=empty(MAX_LOADS, dtype=long),
            scores=empty(sentences, results, dtype=double),
            lengths=empty(sentences, results),
            finished=empty(sentences, results),
            ids=empty(sentences, results, positions),
        )
        self.penalties = empty(positions + 1, dtype=double)
        self.position_table = stepper.position_table(positions)
        self.keys, self.values, self.sources = stepper.caches(shape)
        # a graph has no reference to the stepper, so that program and stepper are freed as soon as nobody uses them
        on_gpu = device.type == "cuda"
        self._graph = self._capture(stepper) if on_gpu else None
        self._step = None if on_gpu else functools.partial(stepper.step, self)
        # of high priority: such streams are not those on which other threads capture graphs
        self._copy_stream = torch.cuda.Stream(device, priority=-1) if on_gpu else None  # type: ignore[no-untyped-call]
        self._polls_ahead = 2 if on_gpu else 1  # one is read while the steps before the next run
        self._counts = torch.zeros((MAX_POLLS, MAX_LOADS), dtype=torch.int64, pin_memory=on_gpu)  # used in rotation
        self._loads: deque[Load] = deque()  # under way

    def _capture(self, stepper: Stepper) -> torch.cuda.CUDAGraph:
        self.slots.sentence.fill_(-1)

        def steps() -> None:
            for _ in range(STEPS_PER_GRAPH):
                stepper.step(self)

        graph, _ = capture(steps, self._device)
        return graph

    def begin(self, options: DecodeConfig, *, runs_ahead: bool = True) -> None:
        """Forget what an earlier search left.

        `runs_ahead`: start steps before their results are asked for. What is added or given up later waits for them.
        """
        self._runs_ahead = runs_ahead
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
            copy_to_device(torch.from_numpy(length_penalties(self.shape.positions, options)), self._device)
        )
        self._loads.clear()
        self._added, self._tokens = 0, 0  # so far
        self._totals = [0] * MAX_LOADS  # what the counters of loads will say
        self._polls: deque[_Poll] = deque()  # not read yet
        self._poll_numbers = itertools.cycle(range(MAX_POLLS))
        self._done, self._latest_poll = [0] * MAX_LOADS, _Poll(self._counts[0], None)
        self._steps, self._end = 0, 0.0  # steps started; how many everything added takes, if no slot is idle
        self._ratio = 1.0  # of the lengths of translations and sources

    def has_room(self, sentences: int, tokens: int) -> bool:
        """Whether this many fit without waiting for another load."""
        if not self._loads:
            return True
        oldest = self._loads[0]
        return (
            len(self._loads) < MAX_LOADS
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

        count, tokens, taken = len(lengths), int(lengths.sum()), {load.counter for load in self._loads}
        counter = next(index for index in range(MAX_LOADS) if index not in taken)
        starts = (self._tokens + np.cumsum(lengths) - lengths) % self.shape.source_tokens
        rows = np.stack([starts, lengths, limits, np.full(count, counter)], axis=1).astype(np.int32)
        write(self.queue.sentences, self._added, copy_to_device(torch.from_numpy(rows), self._device))
        self._totals[counter] += count
        load = Load(self._added, self._tokens, count, tokens, counter, self._totals[counter])
        self._loads.append(load)
        self._added, self._tokens = self._added + count, self._tokens + tokens
        self.queue.counters[1].fill_(self._added)
        admit(self.slots, self.queue)
        self._start_steps(lengths)
        return load

    def _start_steps(self, lengths: Array) -> None:
        """As many as can be expected to leave no slot idle, from the lengths of the sources."""
        slots, steps = self.shape.slots, lengths * self._ratio
        before = self._steps if len(self._loads) == 1 else max(self._end, self._steps)
        busy = before + steps[:-slots].sum() / slots + steps[-slots:].min()
        self._end = before + steps.sum() / slots
        if self._graph is not None and self._runs_ahead:
            while self._steps + STEPS_PER_GRAPH <= busy:
                self._run()

    def _run(self) -> None:
        """Start some steps, and ask which sentences are done after them."""
        if len(self._polls) == MAX_POLLS:
            self._read_poll()
        counts, event = self._counts[next(self._poll_numbers)], None
        if self._graph is None:
            assert self._step is not None
            self._step()
            self._steps += 1
        else:
            self._graph.replay()
            self._steps += STEPS_PER_GRAPH
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        counts.copy_(self.queue.done, non_blocking=True)
        if event is not None:
            event.record()
        self._polls.append(_Poll(counts, event))

    def _read_poll(self) -> None:
        self._latest_poll = self._polls.popleft()
        if self._latest_poll.event is not None:
            self._latest_poll.event.synchronize()
        self._done = self._latest_poll.done.tolist()

    def is_done(self, load: Load) -> bool:
        """Whether every sentence of the load is known to be done; does not wait."""
        while self._polls and self._polls[0].is_ready():
            self._read_poll()
        return self._done[load.counter] >= load.done_at

    def advance(self) -> None:
        """Wait for some steps, after starting those that follow them."""
        while len(self._polls) < self._polls_ahead:
            self._run()
        self._read_poll()

    def give_up(self, load: Load, number: int) -> None:
        """Let a sentence of the load be done after the steps that were started."""
        self.queue.sentences[(load.first + number) % len(self.queue.sentences), LIMIT] = 0

    def wait(self, load: Load) -> Results:
        """Step until every sentence of the load is done; return what was found."""
        while not self.is_done(load):
            self.advance()
        self._keep_busy(load)
        with self._after_latest_poll():
            parts = (self.queue.lengths, self.queue.scores, self.queue.finished, self.queue.ids)
            lengths_QR, scores_QR, finished_QR, ids_QRT = (_read(part, load) for part in parts)
        self._loads.remove(load)  # its places may be written again
        self._ratio = float((lengths_QR[:, 0].clip(0) + 1).sum()) / load.tokens
        return Results(lengths_QR, scores_QR, finished_QR, ids_QRT[:, :, : max(1, int(lengths_QR.max()))])

    def _keep_busy(self, done: Load) -> None:
        """Start steps for the time in which the host reads a load that is done, if there are others."""
        if self._graph is not None and self._runs_ahead and any(load is not done for load in self._loads):
            while len(self._polls) < GRAPHS_AHEAD:
                self._run()

    @contextmanager
    def _after_latest_poll(self) -> Iterator[None]:
        """Copies made here do not wait for the steps that were started ahead."""
        if self._copy_stream is None:
            yield
            return
        assert self._latest_poll.event is not None
        self._copy_stream.wait_event(self._latest_poll.event)
        with torch.cuda.stream(self._copy_stream):
            yield


def _read(ring: Tensor, load: Load) -> Array:
    """The rows of a load. Nothing is allocated on the device: its memory may be full."""
    first, last = load.first % len(ring), load.first % len(ring) + load.sentences
    parts = ring[first:last], ring[: max(0, last - len(ring))]
    return np.concatenate([part.cpu().numpy() for part in parts])


def write(ring: Tensor, first: int, rows: Tensor) -> None:
    """Write rows into a ring: after the last place comes the first."""
    first %= len(ring)
    fit = len(ring) - first
    ring[first : first + len(rows)] = rows[:fit]
    if len(rows) > fit:
        ring[: len(rows) - fit] = rows[fit:]


def capture(run: Callable[[], Result], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of what `run` does, and what it returned: tensors that every replay overwrites."""
    graph = torch.cuda.CUDAGraph()
    with _CAPTURE:  # one at a time in a process; other threads may allocate memory meanwhile
        side = _capture_stream(torch.cuda.current_device() if device.index is None else device.index)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # kernels are compiled before the capture
            run()
        torch.cuda.current_stream(device).wait_stream(side)
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            result = run()
    return graph, result


@functools.cache
def _capture_stream(index: int) -> torch.cuda.Stream:
    """One for all graphs of a device: cuBLAS keeps some 32 MiB for every stream on which it ever worked."""
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << (number - 1).bit_length()


def copy_to_device(given: Tensor, device: torch.device) -> Tensor:
    """On a GPU from pinned memory, so that the host does not wait."""
    return given.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else given


def length_penalties(longest: int, options: DecodeConfig) -> Array:
    """The divisors of scores by length, with the end symbol; there is none of length 0."""
    lengths = range(1, longest + 1)
    form = options.length_penalty_form
    return np.array([1.0, *(length_penalty(length, options.length_penalty, form) for length in lengths)])
