"""Which sentences are searched together changes nothing that is found, whatever happens meanwhile."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dragoman.config import DecodeConfig
from dragoman.decode.batches import Job, Special, search_in_batches, search_on_threads
from dragoman.decode.engines.entries import Entries
from tests.searching import random_model
from tests.unit.test_search import END, LIMITS, MODEL, SENTENCES, START, Fake, Logits, endless

SPECIAL = Special(START, END, (START,))
JOBS = [Job([sentence] * (1 + place % 5), LIMITS[place], 0) for place, sentence in enumerate(SENTENCES)]
BEAM, GREEDY = DecodeConfig(beam=4, n_best=4, batch_size=5), DecodeConfig(beam=1, batch_size=5)
OUT_OF_MEMORY = "Failed to allocate memory for requested buffer of size 99"


class Joinable(Fake):
    """Sources are a sentence's key, repeated."""

    def __init__(self, sources: Sequence[Sequence[int]], logits: Logits = MODEL) -> None:
        super().__init__([source[0] for source in sources], logits)
        self.joined: list[int] = []
        self.width = 1

    def join(self, sources: Sequence[Sequence[int]]) -> None:
        self.joined.append(len(sources))
        self.sentences += [[(source[0], ())] * self.width for source in sources]

    def reorder(self, parent_BW: Any) -> None:
        super().reorder(parent_BW)
        self.width = parent_BW.shape[1]


def in_one_batch(options: DecodeConfig) -> dict[int, Any]:
    whole = DecodeConfig(beam=options.beam, n_best=options.n_best, batch_size=len(JOBS))
    return dict(search_in_batches(Joinable, JOBS, whole, SPECIAL, "cpu"))


def on_threads(start: Callable[[Any], Any], options: DecodeConfig, threads: int = 1, joining: bool = True) -> Any:
    return dict(search_on_threads(start, JOBS, options, SPECIAL, threads, joining=joining))


@pytest.mark.parametrize("options", [BEAM, GREEDY], ids=["beam", "greedy"])
@pytest.mark.parametrize("threads", [1, 2, 3, 12])
def test_what_is_found_does_not_depend_on_threads_and_joining(options: DecodeConfig, threads: int) -> None:
    expected = in_one_batch(options)
    assert on_threads(Joinable, options, threads) == expected
    assert on_threads(Joinable, options, threads, joining=False) == expected
    assert dict(search_in_batches(Joinable, JOBS, options, SPECIAL, "cpu")) == expected
    assert sorted(expected) == list(range(len(JOBS)))


def test_sentences_join_as_soon_as_enough_others_are_done() -> None:
    started: list[Joinable] = []

    def start(sources: Any) -> Joinable:
        started.append(Joinable(sources))
        return started[-1]

    on_threads(start, GREEDY)
    (search,) = started
    assert sum(search.joined) == len(JOBS) - 5
    assert max(search.joined) <= 5
    assert all(count >= 2 for count in search.joined[:-1]), "a quarter of the batch at least, but for the last"
    started.clear()
    on_threads(start, GREEDY, joining=False)
    assert len(started) == 3, "the control: batch after batch"


def test_no_search_gets_all_the_long_sentences() -> None:
    tokens: list[int] = []

    def start(sources: Any) -> Joinable:
        tokens.append(sum(map(len, sources)))
        return Joinable(sources)

    dict(search_on_threads(start, JOBS, DecodeConfig(beam=1, batch_size=6), SPECIAL, 2, joining=True))
    assert len(tokens) == 2
    assert abs(tokens[0] - tokens[1]) <= 5, "the longest"


def test_a_search_that_lists_newcomers_first_is_noticed() -> None:
    """The negative control of the above."""

    class Confused(Joinable):
        def join(self, sources: Sequence[Sequence[int]]) -> None:
            super().join(sources)
            self.sentences = self.sentences[-len(sources) :] + self.sentences[: -len(sources)]

    assert on_threads(Confused, BEAM) != in_one_batch(BEAM)


def test_no_jobs_need_no_search() -> None:
    assert list(search_on_threads(Joinable, [], BEAM, SPECIAL, 1, joining=True)) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_sentences_that_do_not_fit_together_are_searched_in_halves(threads: int) -> None:
    """Memory runs out when they join, and again when those that did not fit begin together."""
    failed: list[str] = []
    begun: list[int] = []

    class Small(Joinable):
        def __init__(self, sources: Sequence[Sequence[int]]) -> None:
            super().__init__(sources)
            begun.append(len(sources))
            if failed and len(sources) > 2:
                failed.append("begin")
                raise MemoryError

        def join(self, sources: Sequence[Sequence[int]]) -> None:
            super().join(sources)
            if len(self.sentences) > 3:
                failed.append("join")
                raise RuntimeError(OUT_OF_MEMORY)

    assert on_threads(Small, BEAM, threads) == in_one_batch(BEAM)
    if threads == 1:  # with two, it depends on their speed how many meet
        assert {*failed} == {"join", "begin"}
        assert begun[-1] <= 2


def test_what_does_not_fit_is_tried_again_when_no_other_search_takes_memory() -> None:
    """There is memory for one of two searches; the one that has it goes on when the other has failed."""
    memory, failed = threading.Lock(), threading.Event()

    class Sharing(Joinable):
        def __init__(self, sources: Sequence[Sequence[int]]) -> None:
            super().__init__(sources)
            if not memory.acquire(blocking=False):
                failed.set()
                raise MemoryError
            weakref.finalize(self, memory.release)

        def best(self, id_BW: Any, count: int) -> Any:
            assert failed.wait(timeout=60)
            return super().best(id_BW, count)

    jobs, options = JOBS[:6], DecodeConfig(beam=4, n_best=4, batch_size=3)
    expected = {number: outcome for number, outcome in in_one_batch(BEAM).items() if number < 6}
    assert dict(search_on_threads(Sharing, jobs, options, SPECIAL, 2, joining=True)) == expected


def test_a_sentence_that_does_not_fit_alone_has_a_reason() -> None:
    class Small(Joinable):
        def __init__(self, sources: Sequence[Sequence[int]]) -> None:
            super().__init__(sources)
            if any(len(source) == 5 for source in sources):
                raise MemoryError

    found, expected = on_threads(Small, BEAM, 2), in_one_batch(BEAM)
    for number, job in enumerate(JOBS):
        assert found[number] == ("out of memory at 5 tokens" if len(job.source) == 5 else expected[number])


@pytest.mark.parametrize("threads", [1, 2])
def test_other_errors_end_the_search_and_its_threads(threads: int) -> None:
    class Broken(Joinable):
        def join(self, sources: Sequence[Sequence[int]]) -> None:
            raise RuntimeError("no such operator")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match=r"^no such operator$"):
        on_threads(Broken, BEAM, threads)
    assert threading.active_count() == before


def test_a_reader_who_leaves_early_ends_the_threads() -> None:
    """At once, though each of them has a sentence that would take long."""
    started: list[Joinable] = []

    def start(sources: Any) -> Joinable:
        started.append(Joinable(sources, endless(6)))
        return started[-1]

    limits = [3_000, 3_000, *range(5, 1_000, 5)]
    jobs = [Job([sentence] * (len(limits) - sentence), limit, 0) for sentence, limit in enumerate(limits)]
    before = threading.active_count()
    found = search_on_threads(start, jobs, GREEDY, SPECIAL, 2, joining=True)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert max(len(each.sizes) for each in started) < 1_000
    assert sum(sum(each.joined) for each in started) < len(jobs) // 2, "most had not begun"


def test_entries_that_are_needed_keep_their_keys_and_values() -> None:
    entries = Entries(random_model(1).config.decoder)
    assert not entries.has_room(1)
    entries.reclaim(np.zeros(0, np.int64), 12)
    assert entries.has_room(12)
    assert not entries.has_room(13)
    assert [entries.take(7), entries.take(5)] == [0, 7]
    with pytest.raises(AssertionError):
        entries.take(1)
    chance = np.random.default_rng(0)
    for cache in entries.caches:
        for array in cache:
            array[:] = chance.random(array.shape)
    needed = np.array([2, 3, 9, 11])
    expected = [[array[needed].copy() for array in cache] for cache in entries.caches]
    for more in (1, 50):  # where they are, and in more room
        renumbered = entries.reclaim(needed, more)
        assert renumbered[needed].tolist() == [0, 1, 2, 3]
        found = [[array[:4] for array in cache] for cache in entries.caches]
        np.testing.assert_array_equal(found, expected)
        assert entries.take(1) == 4
        needed = np.arange(4)
