"""Which batches each step takes, and from which store. Knows nothing of losses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.data.batching import Part
from dragoman.data.sampled import Draw, SampledEpochs
from dragoman.data.workers import spare_cores
from dragoman.tasks.task import AnyStore, PreparedData
from dragoman.training.checkpoint import Progress
from dragoman.training.distributed import Ranks
from dragoman.training.gradients import Ids, Layout
from dragoman.training.reports.log import Reporter

PAIRS_FOR_PROCESSES = 200_000  # fewer are segmented faster than processes start


@dataclass(frozen=True)
class StepPlan:
    """The batches of one step on all ranks, as (epoch, rows)."""

    batches: list[tuple[int, Ids]]
    epoch: int
    following: int  # the index of the epoch's next batch
    tokens: int  # target tokens


class EpochStores:
    """The training data of each epoch: as the store has it, or segmented again by subword sampling."""

    def __init__(self, prepared: PreparedData, run: Path, ranks: Ranks, reporter: Reporter) -> None:
        self._prepared, self._ranks, self._reporter = prepared, ranks, reporter
        self._sampled = _sampled_epochs(prepared, run, ranks) if prepared.config.text.sampling else None
        self._stores: dict[int, AnyStore] = {}

    def __call__(self, epoch: int) -> AnyStore:
        if epoch not in self._stores:
            self._stores[epoch] = self._make(epoch)
        return self._stores[epoch]

    def _make(self, epoch: int) -> AnyStore:
        sampled = self._sampled
        if sampled is None:
            return self._prepared.train.for_epoch(self._prepared.config.train.seed, epoch)

        def progress(done: int) -> None:
            self._reporter.working(f"segmenting pairs for epoch {epoch + 1}", done)

        return self._ranks.main_first(lambda: sampled.open(epoch, progress))

    def close(self) -> None:
        if self._sampled is not None:
            self._sampled.close()

    def drop_before(self, epoch: int) -> None:
        """Called after a step, not while loading: threads may be loading batches of several epochs."""
        self._stores = {number: store for number, store in self._stores.items() if number >= epoch}


def _sampled_epochs(prepared: PreparedData, run: Path, ranks: Ranks) -> SampledEpochs:
    """Many pairs are segmented on most cores, while the epoch before is in use."""
    text, settings, train, tokenizers = (
        prepared.config.text, prepared.config.train, prepared.train, prepared.tokenizers,
    )  # fmt: skip
    draw = Draw(train, tokenizers.source, tokenizers.target, text.sampling, settings.seed, 0, text.max_length)
    is_large = len(train) >= PAIRS_FOR_PROCESSES
    cores = spare_cores() if is_large else 0
    workers = cores or (settings.loader_workers if is_large else 0)
    return SampledEpochs(draw, run / "data", workers, prefetch=cores > 0, is_owner=ranks.is_main)


class BatchLoader:
    """Plans and loads the batches of every step, always in the same order."""

    def __init__(self, stores: EpochStores, layout: Layout, accumulate: int, ranks: Ranks) -> None:
        self.stores, self._layout = stores, layout
        self._accumulate, self._ranks = accumulate, ranks

    def plan_steps(self, start: Progress) -> Iterator[StepPlan]:
        """The steps from `start` on, without end; each has train.accumulate batches per rank."""
        numbered = self._numbered_batches(start.epoch, start.batch, start.earlier)
        while True:
            taken = list(islice(numbered, self._accumulate * self._ranks.world))
            batches = [(epoch, rows) for epoch, _, rows in taken]
            tokens = sum(self._layout.tokens(epoch, rows) for epoch, rows in batches)
            yield StepPlan(batches, taken[-1][0], taken[-1][1], tokens)

    def _numbered_batches(self, epoch: int, number: int, earlier: Sequence[Part]) -> Iterator[tuple[int, int, Ids]]:
        """(epoch, index of the following batch, rows), without end."""
        while True:
            for rows in self._layout.epoch(epoch, earlier)[number:]:
                number += 1
                yield epoch, number, rows
            epoch, number, earlier = epoch + 1, 0, ()

    def load(self, plan: StepPlan) -> list[Any]:
        """This rank's batches of a step: ranks take turns, so no pair is read twice."""
        own = plan.batches[self._ranks.rank :: self._ranks.world]
        return [self._layout.make(epoch, rows) for epoch, rows in own]

    def drop_before(self, epoch: int) -> None:
        """Free the stores of earlier epochs, once no step needs them."""
        self.stores.drop_before(epoch)

    def close(self) -> None:
        self.stores.close()
