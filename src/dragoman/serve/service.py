"""The engine room as the routes see it: which model, who is calling, how much is under way, until when.

Knows the requests of Starlette, to notice a client that hangs up, and nothing of routes.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from dragoman.errors import ConfigError
from dragoman.serve.access import Access
from dragoman.serve.languages import Detector
from dragoman.serve.metrics import Metrics
from dragoman.serve.pool import ModelWorker, Overdue, WorkerDied
from dragoman.serve.settings import KeySettings, ModelSettings, ServeSettings

RETRY_SECONDS = 1  # for a client that was refused for lack of room
T = TypeVar("T")


class Failure(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_seconds = status, message, retry_seconds


class HungUp(Exception):
    """The client did not wait for its answer."""


class Service:
    def __init__(
        self, settings: ServeSettings, models: Sequence[ModelSettings], keys: Sequence[KeySettings] = ()
    ) -> None:
        self.settings, self.metrics, self.access = settings, Metrics(), Access(settings, keys)
        self.workers = [ModelWorker(model) for model in models]
        self.is_draining = False
        self.files = Path()  # translated documents
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # Models

    async def start(self) -> None:
        """Load all models."""
        self._folder = tempfile.TemporaryDirectory(prefix="dragoman-files-")
        self.files = Path(self._folder.name)
        await asyncio.gather(*(worker.start(self.settings.watch_seconds) for worker in self.workers))
        pairs = [self.pair_of(worker) for worker in self.workers]
        for pair in pairs:
            if "" in pair:
                name = self.workers[pairs.index(pair)].settings.name
                raise ConfigError(f"{name}: its languages are not known; give source and target in the settings")
            if pairs.count(pair) > 1:
                raise ConfigError(f"models: two translate {pair[0]} to {pair[1]}; leave one out")
        self.detector = Detector(sorted({code for pair in pairs for code in pair}))

    def pair_of(self, worker: ModelWorker) -> tuple[str, str]:
        own, found = worker.settings, worker.description
        return own.source or found.get("source", ""), own.target or found.get("target", "")

    @property
    def is_ready(self) -> bool:
        return not self.is_draining and all(worker.is_ready for worker in self.workers)

    @property
    def sources(self) -> dict[str, list[str]]:
        """Source languages, and the targets of each."""
        found: dict[str, list[str]] = {}
        for worker in self.workers:
            source, target = self.pair_of(worker)
            found.setdefault(source, []).append(target)
        return {source: sorted(targets) for source, targets in sorted(found.items())}

    def worker_for(self, source: str, target: str) -> ModelWorker | None:
        wanted = source.lower(), target.lower()
        return next((worker for worker in self.workers if self.pair_of(worker) == wanted), None)

    def worker_named(self, name: str) -> ModelWorker | None:
        return next((worker for worker in self.workers if worker.settings.name == name), None)

    # Requests

    @contextmanager
    def _room(self) -> Iterator[None]:
        """A place in the queue for as long as the block lasts."""
        if self.is_draining:
            self.metrics.refused.labels("draining").inc()
            raise Failure(503, "the service is shutting down; try again elsewhere", RETRY_SECONDS)
        if self._under_way >= self.settings.queue:
            self.metrics.refused.labels("queue").inc()
            raise Failure(503, "too much to do; try again soon", RETRY_SECONDS)
        self._under_way += 1
        self._idle.clear()
        self.metrics.in_flight.set(self._under_way)
        try:
            yield
        finally:
            self._under_way -= 1
            self.metrics.in_flight.set(self._under_way)
            if not self._under_way:
                self._idle.set()

    async def ask(
        self,
        request: Request,
        worker: ModelWorker,
        operation: str,
        payload: dict[str, Any],
        seconds: float,
    ) -> dict[str, Any]:
        """The result of an operation, unless it takes too long or the client hangs up."""
        with self._room(), _failures():
            return await self._unless_hung_up(request, worker.ask(operation, payload, seconds))

    async def stream(
        self, worker: ModelWorker, operation: str, payload: dict[str, Any], seconds: float
    ) -> AsyncIterator[dict[str, Any]]:
        """The parts and the result. Who iterates gives it up by closing the iterator."""
        with self._room(), _failures():
            async for message in worker.stream(operation, payload, seconds):
                yield message

    async def _unless_hung_up(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hang_up(request))
        try:
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            self.metrics.given_up.inc()
            raise HungUp
        finally:
            for each in (task, gone):
                each.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await each

    async def measure(self) -> None:
        """Bring the gauges of workers up to date."""
        for worker in self.workers:
            name = worker.settings.name
            self.metrics.ready.labels(name).set(worker.is_ready)
            self.metrics.restarts.labels(name).set(worker.restarts)
            with suppress(Overdue, WorkerDied):
                for state, count in (await worker.status()).items():
                    self.metrics.sentences.labels(name, state).set(count)

    # The end

    async def drain(self) -> bool:
        """Accept nothing more and wait for what is under way; whether all of it was finished."""
        self.is_draining = True
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        if self._folder is not None:
            self._folder.cleanup()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except Overdue:
        raise Failure(504, "the deadline passed before the translation was done; ask for less at a time") from None
    except WorkerDied:
        raise Failure(500, "the worker of this model ended; it is being restarted", RETRY_SECONDS) from None


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
