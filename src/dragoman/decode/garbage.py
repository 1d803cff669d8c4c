"""Pauses Python's garbage collector while many results are created. Knows nothing of translation."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MANY_LINES = 512
WINDOWS_BEFORE_COLLECTION = 64  # of at least MANY_LINES


class _Pause:
    """How many threads want no garbage collection, and whether it was on before the first of them."""

    lock = threading.Lock()
    paused_by = 0
    before = False
    large_windows = 0  # since the last full collection


@contextmanager
def without_garbage_collection(lines: int) -> Iterator[None]:
    """The results of a window are thousands of objects and no garbage; looking for some takes half the host's time.

    After many lines they are made old before the collector is on again, which would scan them at once. That resets its
    counters, so it runs in full now and then.
    """
    with _Pause.lock:
        if not _Pause.paused_by:
            _Pause.before = gc.isenabled()
            gc.disable()
        _Pause.paused_by += 1
    try:
        yield
    finally:
        with _Pause.lock:
            _Pause.paused_by -= 1
            if not _Pause.paused_by and _Pause.before:
                if lines >= MANY_LINES and not gc.get_freeze_count():  # it would undo what the program froze itself
                    gc.freeze()
                    gc.unfreeze()
                    _Pause.large_windows += 1
                gc.enable()
                if _Pause.large_windows >= WINDOWS_BEFORE_COLLECTION:
                    _Pause.large_windows = 0
                    gc.collect()
