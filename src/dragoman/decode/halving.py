"""Runs a batch that may not fit in memory: whole first, then in halves. Knows nothing of models or text."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from dragoman.machine import is_out_of_memory

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_halves(
    work: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    too_big: Callable[[Item], Result],
    device: str,
) -> list[Result]:
    """Return `work(items)`; if out of memory, retry in halves; call `too_big` for an item that does not fit alone.

    Only local variables of `work` may hold what it allocates: they are freed with the exception, so the halves can use
    that memory.
    """
    try:
        return work(items)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # after the except clause, whose end frees the exception, its traceback and all variables of `work`
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()  # cached blocks have the sizes that failed, which may not suit the halves
    if len(items) == 1:
        return [too_big(items[0])]
    half = len(items) // 2
    return [result for part in (items[:half], items[half:]) for result in in_halves(work, part, too_big, device)]
