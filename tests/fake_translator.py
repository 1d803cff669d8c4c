"""Stand-ins for a translator: they change every word and keep every mark, in place or in any order."""

import itertools
import random
import re

from dragoman.documents.document import Kept, Mark, Parts, merge_text


def shout(parts: Parts) -> Parts:
    return tuple(part.upper() if isinstance(part, str) else part for part in parts)


def shuffle(parts: Parts, seed: int = 0) -> Parts:
    """Words reversed, and what stands side by side in a new order; an element keeps what is in it.

    Spaces that come to stand side by side are one.
    """
    chance = random.Random(seed)
    outer: list[list[str | Mark | Kept]] = []  # each what moves as a whole
    levels = [outer]
    for part in parts:
        if isinstance(part, str):
            levels[-1].append([part[::-1]])
        elif isinstance(part, Kept) or part.kind == "single":
            levels[-1].append([part])
        elif part.kind == "open":
            levels.append([])
        else:
            inner = levels.pop()
            chance.shuffle(inner)
            levels[-1].append([Mark(part.number, "open"), *itertools.chain.from_iterable(inner), part])
    chance.shuffle(outer)
    joined = merge_text(itertools.chain.from_iterable(outer))
    return tuple(re.sub(" +", " ", part) if isinstance(part, str) else part for part in joined)
