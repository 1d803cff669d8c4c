"""The pairs of a run, step by step: which batches a step takes, of which store. Knows nothing of what they teach."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.data.batching import Part
from dragoman.data.sampled import sampled_store
from dragoman.data.store import Store
from dragoman.train.checkpoint import Progress
from dragoman.train.distributed import Ranks
from dragoman.train.layout import Ids, Layout
from dragoman.train.prepare import Prepared
from dragoman.train.report import Reporter

PAIRS_FOR_PROCESSES = 200_000  # fewer are segmented anew sooner than processes start


@dataclass(frozen=True)
class Plan:
    """The pairs of one step, on all ranks: batches as (epoch, rows)."""

    batches: list[tuple[int, Ids]]
    epoch: int
    following: int  # the number of the epoch's batch after these
    tokens: int  # target tokens


class EpochStores:
    """The training pairs as each epoch sees them: always the same, or segmented anew."""

    def __init__(self, prepared: Prepared, run: Path, ranks: Ranks, reporter: Reporter) -> None:
        self._prepared, self._run, self._ranks, self._reporter = prepared, run, ranks, reporter
        self._stores: dict[int, Store] = {}

    def __call__(self, epoch: int) -> Store:
        prepared = self._prepared
        text, settings = prepared.config.text, prepared.config.train
        if not text.sampling:
            return prepared.train
        if epoch not in self._stores:
            workers = settings.loader_workers if len(prepared.train) >= PAIRS_FOR_PROCESSES else 0
            self._stores[epoch] = self._ranks.first(
                lambda: sampled_store(
                    prepared.train, prepared.tokenizers.source, prepared.tokenizers.target, strength=text.sampling,
                    seed=settings.seed, epoch=epoch, max_length=text.max_length,
                    directory=self._run / "data", workers=workers,
                    progress=lambda done: self._reporter.working(f"segmenting pairs for epoch {epoch + 1}", done),
                )
            )  # fmt: skip
        return self._stores[epoch]

    def forget_before(self, epoch: int) -> None:
        """Only when a step is done: batches of several epochs may be in the making, in threads that must not wait."""
        self._stores = {number: store for number, store in self._stores.items() if number >= epoch}


class Feed:
    """What every step is given, always in the same order."""

    def __init__(self, stores: EpochStores, layout: Layout, accumulate: int, ranks: Ranks) -> None:
        self.stores, self.layout = stores, layout
        self._accumulate, self._ranks = accumulate, ranks

    def plans(self, start: Progress) -> Iterator[Plan]:
        """From where a run stands, on and on: as many batches a step as accumulate and ranks need."""
        numbered = self._numbered_batches(start.epoch, start.batch, start.earlier)
        while True:
            taken = list(islice(numbered, self._accumulate * self._ranks.world))
            batches = [(epoch, rows) for epoch, _, rows in taken]
            tokens = sum(self.layout.tokens(epoch, rows) for epoch, rows in batches)
            yield Plan(batches, taken[-1][0], taken[-1][1], tokens)

    def _numbered_batches(self, epoch: int, number: int, earlier: Sequence[Part]) -> Iterator[tuple[int, int, Ids]]:
        """(epoch, the number of the batch after this one, rows), without end."""
        while True:
            for rows in self.layout.epoch(epoch, earlier)[number:]:
                number += 1
                yield epoch, number, rows
            epoch, number, earlier = epoch + 1, 0, ()

    def make(self, plan: Plan) -> list[Any]:
        """This rank's batches of a step: ranks take turns, so that no pair is read twice."""
        own = plan.batches[self._ranks.rank :: self._ranks.world]
        return [self.layout.make(epoch, rows) for epoch, rows in own]
