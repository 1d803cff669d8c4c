"""The engine room as the routes see it: which model, who is calling, how much is under way, until when.

Knows the requests of Starlette, to notice a client that hangs up, and nothing of routes.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import Request

from dragoman.errors import ConfigError
from dragoman.serve.access import Access
from dragoman.serve.backoff import Backoff
from dragoman.serve.files import TranslatedFiles
from dragoman.serve.metrics import Metrics
from dragoman.serve.pool import ModelWorker, NotReady, Overdue, WorkerDied
from dragoman.serve.settings import KeySettings, ModelSettings, ServeSettings
from dragoman.text.language import Detected, Detector

RETRY_SECONDS = 1  # for a client whose worker is away
NO_ROOM = "too much to do; try again soon"
READ_SECONDS = 5.0  # that a client has, beyond its deadline, to read a stream
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
        self.files = TranslatedFiles(settings.keep_seconds, settings.max_kept)
        self.backoff = Backoff()
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # Models

    async def start(self) -> None:
        """Load all models."""
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
        """Its languages, in lower case."""
        own, found = worker.settings, worker.description
        pair = own.source or found.get("source", ""), own.target or found.get("target", "")
        return pair[0].lower(), pair[1].lower()

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

    def detect_source(self, text: str, target: str | None) -> Detected | None:
        """The language of a text that is to be translated, to the target if there is one."""
        pairs = map(self.pair_of, self.workers)
        return self.detector.detect_one_of(text, {own for own, other in pairs if (target or other).lower() == other})

    def worker_named(self, name: str) -> ModelWorker | None:
        return next((worker for worker in self.workers if worker.settings.name == name), None)

    # Requests

    @property
    def is_full(self) -> bool:
        return self._under_way >= self.settings.queue

    @contextmanager
    def _room(self) -> Iterator[None]:
        """A place in the queue for as long as the block lasts."""
        if self.is_draining:
            self.metrics.refused.labels("draining").inc()
            raise _shutting_down()
        if self.is_full:
            self.metrics.refused.labels("queue").inc()
            raise Failure(503, NO_ROOM, self.backoff.refuse())
        self._under_way += 1
        self._idle.clear()
        self.metrics.in_flight.set(self._under_way)
        try:
            yield
        finally:
            self._under_way -= 1
            self.backoff.note_done()
            self.metrics.in_flight.set(self._under_way)
            if not self._under_way:
                self._idle.set()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """What goes wrong with a worker, as an answer."""
        try:
            yield
        except NotReady:
            raise Failure(503, "the worker of this model is being restarted; try again soon", RETRY_SECONDS) from None
        except Overdue:
            raise Failure(504, "the deadline passed before the translation was done; ask for less at a time") from None
        except WorkerDied:
            if self.is_draining:
                raise _shutting_down() from None
            raise Failure(500, "the worker of this model ended; it is being restarted", RETRY_SECONDS) from None

    async def ask(
        self,
        request: Request,
        worker: ModelWorker,
        operation: str,
        payload: dict[str, Any],
        seconds: float,
    ) -> dict[str, Any]:
        """The result of an operation, unless it takes too long or the client hangs up."""
        with self._room(), self._failures():
            return await self._unless_hung_up(request, worker.ask(operation, payload, seconds))

    async def stream(
        self, request: Request, worker: ModelWorker, operation: str, payload: dict[str, Any], seconds: float
    ) -> "Stream":
        """The parts and the result. What fails before the first of them is raised here, so that it has a status."""
        messages = self._messages(worker, operation, payload, seconds)
        deadline = asyncio.get_running_loop().time() + seconds + READ_SECONDS
        first = await self._unless_hung_up(request, _next(messages))
        return Stream(first, messages, deadline, self.metrics)

    async def _messages(
        self, worker: ModelWorker, operation: str, payload: dict[str, Any], seconds: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        with self._room(), self._failures():
            async with aclosing(worker.stream(operation, payload, seconds)) as messages:
                async for message in messages:
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
            with suppress(Overdue, NotReady, WorkerDied):
                for state, count in (await worker.status()).items():
                    self.metrics.sentences.labels(name, state).set(count)

    # The end

    async def drain(self, hurry: asyncio.Event) -> bool:
        """Accept nothing more and wait for what is under way, unless in a hurry; whether all of it was finished."""
        self.is_draining = True
        ends = [asyncio.ensure_future(event.wait()) for event in (self._idle, hurry)]
        await asyncio.wait(ends, timeout=self.settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        is_done = self._idle.is_set()
        self.stop_workers()  # what is still under way is answered with 503
        return is_done

    def stop_workers(self) -> None:
        for worker in self.workers:
            worker.kill()

    def stop(self) -> None:
        self.stop_workers()
        self.files.close()


class Stream:
    """An answer in parts, of which the first is there. It must be closed."""

    def __init__(
        self, first: dict[str, Any], rest: AsyncGenerator[dict[str, Any], None], deadline: float, metrics: Metrics
    ) -> None:
        self._first, self._rest, self._metrics = first, rest, metrics
        self._is_done = False
        self.deadline = deadline  # by the clock of the event loop

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        yield self._first
        async for message in self._rest:
            yield message
        self._is_done = True

    async def close(self) -> None:
        if not self._is_done:
            self._metrics.given_up.inc()
        await self._rest.aclose()


def _shutting_down() -> Failure:
    return Failure(503, "the service is shutting down; try again elsewhere", RETRY_SECONDS)


async def _next(messages: AsyncGenerator[T, None]) -> T:
    return await anext(messages)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
