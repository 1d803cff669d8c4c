"""Batches sentences for search: by length, on several threads, in halves when out of memory.

Knows nothing of text or model classes.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple, Protocol, TypeVar

from dragoman.config import DecodeConfig
from dragoman.decode.constraints import Constrained, Rule
from dragoman.decode.halving import in_halves
from dragoman.decode.phrases import Phrases, search_with_phrases
from dragoman.decode.search import Decoding, Hypothesis, search, search_with_joins
from dragoman.machine import is_out_of_memory

T = TypeVar("T")
U = TypeVar("U")
Outcome = list[Hypothesis] | str  # a string is the reason why there are none
Outcomes = Iterator[tuple[int, Outcome]]  # the number of a job, and its outcome; in the order in which they are done
LEAST_SHARE = 1 / 4  # of a batch, of those that join: encoding one sentence takes nearly as long as encoding several


class Job(NamedTuple):
    """A sentence to be searched."""

    source: list[int]
    limit: int  # tokens of its translation, at most
    key: int  # of its random numbers
    rules: Sequence[Rule] = ()  # that its translation keeps
    phrases: Phrases | None = None  # that appear in its translation
    wishes: Sequence[Rule] = ()  # rules of a search for phrases that give way if they leave no hypothesis


class Special(NamedTuple):
    """Ids of the target vocabulary."""

    start: int
    end: int
    forbidden: Sequence[int]


class JoinableDecoding(Decoding, Protocol):
    def join(self, sources: Sequence[Sequence[int]]) -> None:
        """Add sentences at the end, with as many hypotheses as the others have."""
        ...


Start = Callable[[list[list[int]]], Decoding]
StartJoinable = Callable[[list[list[int]]], JoinableDecoding]


def search_in_batches(
    start: Start, jobs: Sequence[Job], options: DecodeConfig, special: Special, device: str
) -> Outcomes:
    """Batch by batch, the shortest sentences first."""
    by_length = sorted(range(len(jobs)), key=lambda number: len(jobs[number].source))
    for first in range(0, len(jobs), options.batch_size):
        numbers = by_length[first : first + options.batch_size]
        outcomes = search_batch(start, [jobs[number] for number in numbers], options, special, device)
        yield from zip(numbers, outcomes, strict=True)


def search_batch(
    start: Start, batch: Sequence[Job], options: DecodeConfig, special: Special, device: str
) -> list[Outcome]:
    """What was found for each job, or why nothing was; if out of memory, retry in halves."""

    def found(jobs: Sequence[Job]) -> list[Outcome]:
        decoding = start([job.source for job in jobs])
        if any(job.rules for job in jobs):
            decoding = Constrained(decoding, [job.rules for job in jobs])
        limits, keys = [job.limit for job in jobs], [job.key for job in jobs]
        return [*search(decoding, limits, options, keys, **special._asdict())]

    return in_halves(found, batch, lambda job: out_of_memory(job.source), device)


def search_phrases(
    start: Start, jobs: Sequence[Job], options: DecodeConfig, special: Special, device: str, threads: int
) -> list[list[Hypothesis]]:
    """Hypotheses in which the phrases of each job appear; none if there is no such hypothesis, or memory for it."""
    strict = [job._replace(rules=[*job.rules, *job.wishes]) for job in jobs]
    results = _search_phrases(start, strict, options, special, device, threads)
    left = [number for number, job in enumerate(jobs) if job.wishes and not results[number]]
    if left:
        again = _search_phrases(start, [jobs[number] for number in left], options, special, device, threads)
        for number, hypotheses in zip(left, again, strict=True):
            results[number] = hypotheses
    return results


def _search_phrases(
    start: Start, jobs: Sequence[Job], options: DecodeConfig, special: Special, device: str, threads: int
) -> list[list[Hypothesis]]:
    def found(numbers: Sequence[int]) -> list[list[Hypothesis]]:
        batch = [jobs[number] for number in numbers]
        decoding = start([job.source for job in batch])
        if any(job.rules for job in batch):
            decoding = Constrained(decoding, [job.rules for job in batch])
        phrases = [job.phrases or Phrases(()) for job in batch]
        return search_with_phrases(decoding, [job.limit for job in batch], options, phrases, **special._asdict())

    def search_some(numbers: Sequence[int]) -> list[list[Hypothesis]]:
        return in_halves(found, numbers, lambda number: list[Hypothesis](), device)

    # the number of hypotheses grows with the phrases, and all sentences of a batch have as many
    order = sorted(range(len(jobs)), key=lambda number: (len(jobs[number].phrases or ()), len(jobs[number].source)))
    size = max(1, options.batch_size // 4)
    batches = [order[first : first + size] for first in range(0, len(order), size)]
    results = itertools.chain.from_iterable(map_in_threads(search_some, batches, threads))
    by_number = dict(zip(order, results, strict=True))
    return [by_number[number] for number in range(len(jobs))]


def out_of_memory(source: Sequence[int]) -> Outcome:
    return f"out of memory at {len(source)} tokens"


def search_on_threads(
    start: StartJoinable, jobs: Sequence[Job], options: DecodeConfig, special: Special, threads: int, *, joining: bool
) -> Outcomes:
    """A search on each thread, the longest sentences first; others join when some are done, if `joining`."""
    size = min(options.batch_size, -(-len(jobs) // threads))
    longest_first = sorted(range(len(jobs)), key=lambda number: -len(jobs[number].source))
    at_once, later = longest_first[: threads * size], longest_first[threads * size :]
    searches = _Searches(start, jobs, later, options, special, size, joining=joining)
    if threads == 1:
        yield from searches.run(at_once)
    else:  # by turns, so that no search gets all the long ones
        runs = [searches.run(at_once[place::threads]) for place in range(threads)]
        yield from _merge_on_threads(runs, searches.stop)
    yield from searches.retry()


class _Searches:
    """Searches that take their sentences from one queue."""

    def __init__(
        self,
        start: StartJoinable,
        jobs: Sequence[Job],
        waiting: Iterable[int],
        options: DecodeConfig,
        special: Special,
        size: int,
        *,
        joining: bool,
    ) -> None:
        self._start, self._jobs, self._options, self._special = start, jobs, options, special
        self._queue, self._size, self._joining = deque(waiting), size, joining
        self._are_constrained = any(job.rules for job in jobs)
        self._unfit: list[int] = []  # jobs that did not fit in memory together
        self._stopped = False

    def stop(self) -> None:
        """Make every search return when a sentence is done."""
        self._queue.clear()
        self._stopped = True

    def run(self, numbers: list[int]) -> Outcomes:
        """One search, which starts with the jobs of these numbers and goes on until the queue is empty."""
        while numbers:
            pending = set(numbers)
            try:
                for number, hypotheses in self._search(numbers, pending):
                    pending.remove(number)
                    yield number, hypotheses
                    if self._stopped:
                        return
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._unfit += pending
                self._size = max(1, self._size // 2)
            numbers = self._take(self._size)

    def retry(self) -> Outcomes:
        """Search what did not fit, when no other search takes memory."""
        if self._unfit:
            batch = [self._jobs[number] for number in self._unfit]
            outcomes = search_batch(self._start, batch, self._options, self._special, "cpu")
            yield from zip(self._unfit, outcomes, strict=True)

    def _search(self, numbers: list[int], pending: set[int]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Search the jobs of these numbers and all that join. Those that join are added to both arguments."""
        decoding = self._start([self._jobs[number].source for number in numbers])
        rules = [self._jobs[number].rules for number in numbers]
        searched = Constrained(decoding, rules) if self._are_constrained else decoding

        def join(others: int) -> list[int]:
            free = self._size - others
            new = self._take(free) if free >= LEAST_SHARE * self._size else []
            numbers.extend(new)
            pending.update(new)
            if new:
                decoding.join([self._jobs[number].source for number in new])
                if isinstance(searched, Constrained):
                    searched.join([self._jobs[number].rules for number in new])
            return [self._jobs[number].limit for number in new]

        limits = [self._jobs[number].limit for number in numbers]
        joins = join if self._joining else None
        for place, hypotheses in search_with_joins(searched, limits, self._options, joins, **self._special._asdict()):
            yield numbers[place], hypotheses

    def _take(self, most: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < most:
            try:
                taken.append(self._queue.popleft())  # other threads take from it too
            except IndexError:
                break
        return taken


def _merge_on_threads(iterators: Sequence[Iterator[T]], stop: Callable[[], None]) -> Iterator[T]:
    """What the iterators yield, each on its own thread; call `stop` to end them early."""
    results: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()  # None: an iterator has ended

    def run(iterator: Iterator[T]) -> None:
        try:
            for item in iterator:
                results.put((item,))
        except BaseException as error:  # to be raised where the results are read
            results.put(error)
        results.put(None)

    pool = ThreadPoolExecutor(len(iterators))
    try:
        for iterator in iterators:
            pool.submit(run, iterator)
        running = len(iterators)
        while running:
            result = results.get()
            if result is None:
                running -= 1
            elif isinstance(result, BaseException):
                try:
                    raise result
                finally:
                    del result  # it refers to this frame
            else:
                yield result[0]
    finally:
        stop()
        pool.shutdown()


def map_in_threads(work: Callable[[T], U], items: Iterable[T], threads: int) -> Iterator[U]:
    """The results of `work`, in order, by `threads` threads; an error cancels what has not begun."""
    if threads == 1:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)
