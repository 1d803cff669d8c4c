"""Alignment error rate, precision and recall of word links (Och and Ney, 2003). Knows nothing of models or files.

A reference has sure links, `0-0` in Pharaoh format, and possible ones, `1p2`, which are not missed if absent and not
wrong if present.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from dragoman.errors import DataError

Link = tuple[int, int]  # source word, target word, from 0
_LINK = re.compile(r"([0-9]{1,9})([-p])([0-9]{1,9})", re.ASCII)


class Reference(NamedTuple):
    """The right links of one pair; sure ones are possible too."""

    sure: frozenset[Link]
    possible: frozenset[Link]

    @classmethod
    def parse(cls, line: str) -> "Reference":
        """Read a line in Pharaoh format."""
        sure: set[Link] = set()
        possible: set[Link] = set()
        for word in line.split():
            match = _LINK.fullmatch(word)
            if match is None:
                raise DataError(f"{word!r} is not a link; write 1-2, or 1p2 for a possible one")
            (sure if match[2] == "-" else possible).add((int(match[1]), int(match[3])))
        return cls(frozenset(sure), frozenset(sure | possible))


@dataclass(frozen=True)
class AlignmentScore:
    """All in percent. An error rate of 0 is best; precision and recall of no links are 100."""

    aer: float
    precision: float
    recall: float
    links: int  # found
    pairs: int

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def alignment_score(found: Iterable[Iterable[Link]], references: Iterable[Reference]) -> AlignmentScore:
    """Score the links of each pair against its reference; the counts of all pairs are added up."""
    right_sure = right_possible = links = sure = pairs = 0
    for own, reference in zip(found, references, strict=True):
        mine = {*own}
        right_sure += len(mine & reference.sure)
        right_possible += len(mine & reference.possible)
        links, sure, pairs = links + len(mine), sure + len(reference.sure), pairs + 1
    right, every = right_sure + right_possible, links + sure
    return AlignmentScore(
        aer=100.0 - _percent(right, every),
        precision=_percent(right_possible, links),
        recall=_percent(right_sure, sure),
        links=links,
        pairs=pairs,
    )


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 100.0
