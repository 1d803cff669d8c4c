"""Batches made ahead: the same items, the same order, errors in their place, no thread left behind."""

import threading
from collections.abc import Iterator

import pytest

from dragoman.data.prefetch import ahead


def test_the_same_items_in_the_same_order() -> None:
    assert list(ahead(iter(range(100)), 3)) == list(range(100))


def test_items_are_made_before_they_are_asked_for() -> None:
    made = [threading.Event() for _ in range(5)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    stream = ahead(items(), 2)
    assert next(stream) == 0
    assert made[2].wait(timeout=30), "the third is made while the first is in use"
    stream.close()  # type: ignore[attr-defined]


def test_an_error_comes_where_its_item_would_have() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    stream = ahead(items(), 4)
    assert next(stream) == 1
    with pytest.raises(ValueError, match="broken"):
        next(stream)


def test_closing_ends_the_thread() -> None:
    before = threading.active_count()
    stream = ahead(iter(range(10**9)), 2)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
