"""Searches sentences of many callers together: each joins a search that is running, and leaves it when it is done.

A caller waits for its own sentences only. Equal options are searched together; who has waited longest comes first.
In the CPU engine nothing that others ask for changes a result. Knows nothing of text or of who is calling.
"""

import itertools
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

import numpy as np

from dragoman.config import DecodeConfig
from dragoman.decode.batches import (
    Job,
    JoinableDecoding,
    Outcome,
    Outcomes,
    Special,
    Start,
    out_of_memory,
    search_batch,
)
from dragoman.decode.constraints import Constrained
from dragoman.decode.search import Array, Decoding, Hypothesis, search_with_joins
from dragoman.machine import is_out_of_memory

GIVEN_UP = "given up"
LOOK_SECONDS = 0.25  # how often a caller looks whether its time is over
PATIENCE = 0.02  # seconds; so long a sentence waits for others to be encoded with it
TOKENS = 4_096  # of the sources of one search on a CPU, at most
LOADS = 12  # of a search on a device at a time: it may wait for the oldest when there are more


class GivenUp(Exception):
    """Nobody waits for the result any more."""


class Ticket:
    """A request, which any thread may give up. It is over then, or when its time is."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.deadline = time.monotonic() + seconds
        self._is_given_up = False

    def give_up(self) -> None:
        self._is_given_up = True

    @property
    def is_over(self) -> bool:
        return self._is_given_up or time.monotonic() > self.deadline


_UNLIMITED = Ticket()
_TICKET: ContextVar[Ticket] = ContextVar("ticket", default=_UNLIMITED)


@contextmanager
def serving(ticket: Ticket) -> Iterator[None]:
    """What this thread searches in the block belongs to the ticket."""
    token = _TICKET.set(ticket)
    try:
        yield
    finally:
        _TICKET.reset(token)


def current_ticket() -> Ticket:
    return _TICKET.get()


def unless_over(start: Start) -> Start:
    """The same, but GivenUp is raised when the ticket of this thread is over: on whatever thread it is called."""
    ticket = current_ticket()

    def start_in_time(sources: list[list[int]]) -> Decoding:
        if ticket.is_over:
            raise GivenUp
        return start(sources)

    return start_in_time


class Kind(NamedTuple):
    """What sentences must have in common to be searched together."""

    options: DecodeConfig
    is_constrained: bool


class DeviceSearch(Protocol):
    """A search that a device does by itself, in loads of sentences that are added while it goes on."""

    def add(self, sources: Sequence[Sequence[int]], limits: Sequence[int]) -> int:
        """Start to search sentences; return the number of the load."""
        ...

    def advance(self) -> Sequence[tuple[int, Iterable[tuple[int, list[Hypothesis] | None]]]]:
        """Wait a little. Return the loads that are done: the number of each sentence, and what was found.

        None: it does not fit in memory.
        """
        ...

    def give_up(self, load: int, number: int) -> None:
        """Let a sentence of a load be done soon."""
        ...


class Engine(NamedTuple):
    """How to search sentences of one kind."""

    start: Start
    special: Special
    size: int  # sentences, at most
    device: str
    can_join: bool
    context: Callable[[], AbstractContextManager[None]]
    tokens: int = TOKENS  # of the sources, at most
    begin: Callable[[], DeviceSearch] | None = None  # unless the host takes every step


def _room(engine: Engine, pending: "dict[int, _Sentence]") -> int:
    """Tokens of sources that may still be added."""
    return engine.tokens - sum(len(sentence.job.source) for sentence in pending.values())


Answer = tuple[int, Outcome | Exception]  # the number of a sentence, and what became of it


@dataclass(eq=False)
class _Sentence:
    job: Job
    number: int  # among those of its caller
    ticket: Ticket
    answers: SimpleQueue[Answer]
    since: float = field(default_factory=time.monotonic)

    def answer(self, outcome: Outcome | Exception) -> None:
        self.answers.put((self.number, outcome))


def _unless_over(ticket: Ticket, answers: SimpleQueue[Answer]) -> Answer:
    """The next answer. Sentences that wait are forgotten when it is their turn: nobody needs to wait with them."""
    while True:
        with suppress(Empty):
            answer = answers.get(timeout=LOOK_SECONDS)
            if not ticket.is_over:
                return answer
        if ticket.is_over:
            raise GivenUp


class ContinuousSearch:
    """Threads that search whatever is waiting. `engine_of` says how to search a kind of sentences."""

    def __init__(self, engine_of: Callable[[Kind], Engine], threads: int) -> None:
        self._engine_of = engine_of
        self._waiting: dict[Kind, deque[_Sentence]] = {}
        self._changed = threading.Condition()
        self._idle = 0  # threads that have nothing to do
        self.running = 0  # sentences
        self._threads = [threading.Thread(target=self._work, daemon=True, name=f"search-{n}") for n in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Sentences that no search has taken yet."""
        with self._changed:
            return sum(not sentence.ticket.is_over for queue in self._waiting.values() for sentence in queue)

    def search(self, jobs: Sequence[Job], options: DecodeConfig) -> Outcomes:
        """Yield the outcome of each job when it is done; raise GivenUp when the thread's ticket is over."""
        ticket, answers = current_ticket(), SimpleQueue[Answer]()
        with self._changed:
            for number, job in enumerate(jobs):
                kind = Kind(options, bool(job.rules))
                self._waiting.setdefault(kind, deque()).append(_Sentence(job, number, ticket, answers))
            self._changed.notify_all()
        for _ in jobs:
            number, outcome = _unless_over(ticket, answers)
            if isinstance(outcome, Exception):
                raise outcome
            yield number, outcome

    def _work(self) -> None:
        while True:
            kind = self._next()
            try:
                engine = self._engine_of(kind)
            except Exception as error:  # these options are not possible; others are
                for sentence in self._take(kind, sys.maxsize, sys.maxsize):
                    self._done(sentence, error)
                continue
            if sentences := self._take(kind, engine.size, engine.tokens):
                self._search(engine, kind, sentences)

    def _next(self) -> Kind:
        """The kind of the sentence that has waited longest."""
        with self._changed:
            self._idle += 1
            while not self._waiting:
                self._changed.wait()
            self._idle -= 1
            return min(self._waiting, key=lambda kind: self._waiting[kind][0].since)

    def _take(self, kind: Kind, most: int, tokens: int) -> list[_Sentence]:
        """At most so many sentences and tokens, but at least one if there is one."""
        taken: list[_Sentence] = []
        with self._changed:
            queue = self._waiting.get(kind, deque())
            while queue and len(taken) < most:
                if queue[0].ticket.is_over:
                    queue.popleft().answer(GIVEN_UP)
                    continue
                tokens -= len(queue[0].job.source)
                if taken and tokens < 0:
                    break
                taken.append(queue.popleft())
            if not queue:
                self._waiting.pop(kind, None)
            self.running += len(taken)
        return taken

    def _search(self, engine: Engine, kind: Kind, sentences: list[_Sentence], *, alone: bool = False) -> None:
        pending = dict(enumerate(sentences))  # those that are done are forgotten: a search may never end
        search = self._together
        if not alone:
            search = self._on_device if engine.begin else self._joining if engine.can_join else self._together
        try:
            with engine.context():
                for place, outcome in search(engine, kind, pending):
                    self._done(pending.pop(place), outcome)
        except Exception as error:  # of one sentence, which must not take the others with it
            rest = list(pending.values())
            if len(rest) > 1:
                for sentence in rest:
                    if sentence.ticket.is_over:
                        self._done(sentence, GIVEN_UP)
                    else:
                        self._search(engine, kind, [sentence], alone=True)
            elif rest:
                (sentence,) = rest
                self._done(sentence, out_of_memory(sentence.job.source) if is_out_of_memory(error) else error)

    def _done(self, sentence: _Sentence, outcome: Outcome | Exception) -> None:
        with self._changed:
            self.running -= 1
        sentence.answer(outcome)

    def _together(self, engine: Engine, kind: Kind, pending: dict[int, _Sentence]) -> Iterator[tuple[int, Outcome]]:
        """Sentences that start together, without others."""
        jobs = [sentence.job for sentence in pending.values()]
        yield from enumerate(search_batch(engine.start, jobs, kind.options, engine.special, engine.device))

    def _joining(
        self, engine: Engine, kind: Kind, pending: dict[int, _Sentence]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Sentences, and others that join; these are added to `pending`."""
        jobs = [sentence.job for sentence in pending.values()]
        decoding: JoinableDecoding = engine.start([job.source for job in jobs])  # type: ignore[assignment]
        constrained = Constrained(decoding, [job.rules for job in jobs])
        searched: Decoding = constrained if kind.is_constrained else decoding
        numbers = itertools.count(len(jobs))

        def room() -> int:
            return _room(engine, pending)

        def join(others: int) -> list[int]:
            new = self._take(kind, engine.size - others, room()) if self._may_join(kind, others, room()) else []
            pending.update({number: sentence for sentence, number in zip(new, numbers, strict=False)})
            if new:
                decoding.join([sentence.job.source for sentence in new])
                constrained.join([sentence.job.rules for sentence in new] if kind.is_constrained else [])
            return [sentence.job.limit for sentence in new]

        def traffic(sentence_B: Array) -> Array | None:
            left = [pending[place].ticket.is_over for place in sentence_B.tolist()]
            if any(left) or (len(left) < engine.size and self._may_join(kind, len(left), room())):
                return np.array(left)
            return None

        limits = [job.limit for job in jobs]
        yield from search_with_joins(searched, limits, kind.options, join, traffic, **engine.special._asdict())

    def _on_device(self, engine: Engine, kind: Kind, pending: dict[int, _Sentence]) -> Iterator[tuple[int, Outcome]]:
        """Sentences, and others that are added; these are added to `pending`. A load is done when all of it is."""
        assert engine.begin is not None
        search = engine.begin()
        places: dict[tuple[int, int], int] = {}  # in `pending`, by load and number
        given_up: set[int] = set()

        def add(new: dict[int, _Sentence]) -> None:
            load = search.add([each.job.source for each in new.values()], [each.job.limit for each in new.values()])
            places.update({(load, number): place for number, place in enumerate(new)})

        numbers = itertools.count(len(pending))
        add({**pending})
        while places:
            room = _room(engine, pending)
            has_room = len(pending) < engine.size and len({load for load, _ in places}) < LOADS
            if has_room and self._may_join(kind, len(pending), room):
                new = {next(numbers): each for each in self._take(kind, engine.size - len(pending), room)}
                pending.update(new)
                if new:
                    add(new)
            for (load, number), place in places.items():
                if place not in given_up and pending[place].ticket.is_over:
                    given_up.add(place)
                    search.give_up(load, number)
            for load, results in search.advance():
                for number, hypotheses in results:
                    place = places.pop((load, number))
                    given_up.discard(place)
                    yield place, out_of_memory(pending[place].job.source) if hypotheses is None else hypotheses

    def _may_join(self, kind: Kind, others: int, tokens: int) -> bool:
        """Whether enough are waiting to be worth it, and nobody of another kind has waited longer."""
        queue = self._waiting.get(kind)
        if not queue or self._idle or tokens <= 0:  # an idle thread is about to take them
            return False
        with self._changed:
            if not queue:
                return False
            first, count = queue[0].since, len(queue)
            if any(other[0].since < first for other in self._waiting.values() if other is not queue):
                return False
        return not others or 4 * count >= others or time.monotonic() - first > PATIENCE
