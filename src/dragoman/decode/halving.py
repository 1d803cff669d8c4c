"""A batch that may not fit in memory: tried whole, then in halves. Knows nothing of models or text."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from dragoman.device import is_out_of_memory

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_halves(
    work: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    too_big: Callable[[Item], Result],
    device: torch.device,
) -> list[Result]:
    """`work(items)`; out of memory, half of them at a time; `too_big` decides on one that does not fit alone.

    What `work` allocates must be held by its own variables only: they go with the exception, so that the halves find
    the memory free.
    """
    try:
        return work(items)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # after the except clause, which frees the exception, its traceback and all variables of `work`
    if device.type == "cuda":
        torch.cuda.empty_cache()  # in blocks of the failed sizes, which the halves may not fit
    if len(items) == 1:
        return [too_big(items[0])]
    half = len(items) // 2
    return [result for part in (items[:half], items[half:]) for result in in_halves(work, part, too_big, device)]
