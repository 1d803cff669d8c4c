"""Prefetches batches in background threads. Knows nothing of what a batch is."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
Made = TypeVar("Made")


def prefetch(
    items: Iterable[T], make: Callable[[T], Made], workers: int, depth: int = 4
) -> Generator[tuple[T, Made], None, None]:
    """Yield each item with the result of `make(item)`, in the items' order, regardless of the number of threads.

    Up to `depth` results are prefetched while the last one is in use; without workers each is made on demand. Only the
    caller's thread reads `items`. An error is raised when its item is due and ends the iteration. Closing the iterator
    waits for calls in progress and ends the threads.
    """
    if not workers:
        for item in items:
            yield item, make(item)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        started = _started(items, make, pool)
        making = deque(islice(started, depth))
        while making:
            first = making.popleft()
            making.extend(islice(started, 1))
            yield first.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _started(
    items: Iterable[T], make: Callable[[T], Made], pool: ThreadPoolExecutor
) -> Iterator[Future[tuple[T, Made]]]:
    def both(item: T) -> tuple[T, Made]:
        return item, make(item)

    try:
        for item in items:
            yield pool.submit(both, item)
    except Exception as error:  # from `items` itself: earlier results are yielded first
        failed: Future[tuple[T, Made]] = Future()
        failed.set_exception(error)
        yield failed
