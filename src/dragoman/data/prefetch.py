"""Batches made ahead of time in threads of their own. Knows nothing of what a batch is."""

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
    """Each item with what `make` makes of it, in the items' order, however many threads make them.

    Up to `depth` are in the making while the last one is in use; without workers each is made when it is asked for.
    `items` is only ever read by the caller's thread. An error is raised where its item would have come, and ends the
    iteration. Closing the iterator waits for what is being made, and ends the threads.
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
    except Exception as error:  # of `items` itself: what came before it goes first
        failed: Future[tuple[T, Made]] = Future()
        failed.set_exception(error)
        yield failed
