"""Prefetched batches: the same items in the same order, errors in their place, no threads left running."""

import threading
import time
from collections.abc import Iterator
from random import Random

import pytest

from dragoman.data.prefetch import prefetch

ANY_WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])


@ANY_WORKERS
@pytest.mark.parametrize("depth", [1, 4, 200])
def test_each_item_is_yielded_once_in_order(workers: int, depth: int) -> None:
    made: list[int] = []

    def make(item: int) -> int:
        made.append(item)
        return item * item

    assert list(prefetch(range(100), make, workers, depth)) == [(item, item * item) for item in range(100)]
    assert sorted(made) == list(range(100))
    assert list(prefetch([], make, workers, depth)) == []


def test_order_does_not_depend_on_which_item_is_finished_first() -> None:
    finished: list[int] = []

    def make(item: int) -> str:
        time.sleep(Random(item).random() / 50)
        finished.append(item)
        return str(item)

    assert list(prefetch(range(40), make, 4)) == [(item, str(item)) for item in range(40)]
    assert finished != sorted(finished), "the control: they were finished in another order"


def test_without_workers_items_are_made_lazily_in_the_calling_thread() -> None:
    stream = prefetch(range(9), lambda _: threading.get_ident(), 0)
    assert [next(stream) for _ in range(3)] == [(item, threading.get_ident()) for item in range(3)]
    made: list[int] = []
    stream_of_none = prefetch(range(9), made.append, 0)
    next(stream_of_none)
    assert made == [0]


def test_at_most_depth_items_are_prefetched() -> None:
    made = [threading.Event() for _ in range(9)]
    stream = prefetch(range(9), lambda item: made[item].set(), 2, depth=3)
    next(stream)
    assert all(event.wait(timeout=300) for event in made[:4])
    assert not any(event.is_set() for event in made[4:])
    stream.close()


@ANY_WORKERS
def test_error_in_making_an_item_is_raised_in_its_place(workers: int) -> None:
    before = threading.active_count()

    def make(item: int) -> int:
        if item == 2:
            raise ValueError("broken")
        return item

    stream = prefetch(range(9), make, workers)
    assert [next(stream), next(stream)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="broken"):
        next(stream)
    assert list(stream) == []
    assert threading.active_count() == before


@ANY_WORKERS
@pytest.mark.parametrize("good", [0, 3])
def test_error_of_the_iterator_is_raised_after_earlier_items(workers: int, good: int) -> None:
    def items() -> Iterator[int]:
        yield from range(good)
        raise ValueError("broken")

    stream = prefetch(items(), str, workers)
    assert [next(stream) for _ in range(good)] == [(item, str(item)) for item in range(good)]
    with pytest.raises(ValueError, match="broken"):
        next(stream)


@ANY_WORKERS
def test_closing_ends_all_threads(workers: int) -> None:
    before = threading.active_count()
    stream = prefetch(iter(range(10**9)), str, workers)
    next(stream)
    stream.close()
    assert threading.active_count() == before
    prefetch(range(9), str, workers).close()  # before it was begun
    assert threading.active_count() == before
