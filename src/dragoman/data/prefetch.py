"""Batches made ahead of time in a thread of their own. Knows nothing of what a batch is."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items in the same order, up to `depth` of them made while the last one is in use.

    An error in making one is raised where that one would have come. Closing the iterator ends the thread.
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=depth)
    closed = threading.Event()

    def offer(item: T | None, error: BaseException | None) -> None:
        while not closed.is_set():
            try:
                return ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                offer(item, None)
                if closed.is_set():
                    return
            offer(None, StopIteration())
        except BaseException as error:
            offer(None, error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join()
