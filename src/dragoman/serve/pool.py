"""Worker processes as seen from the front: asks them, restarts them, replaces them. Knows nothing of HTTP.

A request belongs to the process it was sent to. If that dies, the request fails and a new process is started. When the
files of a model change, a process with the new ones is started, gets all new requests once it is ready, and the old one
ends when its last request is answered.
"""

import asyncio
import itertools
import json
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from dragoman import errors
from dragoman.bundle import resolve_model
from dragoman.decode.bulk import model_hash
from dragoman.errors import DragomanError, ModelError
from dragoman.serve.settings import ModelSettings
from dragoman.serve.worker import GIVE_UP, INTERNAL, STATUS, STREAM

LONGEST_MESSAGE = 1 << 28  # bytes
PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before a process is started again; the last one for ever
GRACE = 0.5  # seconds that a worker has, beyond a deadline, to say that it was missed
log = logging.getLogger("dragoman.serve")


class WorkerDied(Exception):
    """The process ended before it answered."""


class NotReady(Exception):
    """There is no process that could be asked."""


class Overdue(Exception):
    """The deadline passed before there was an answer."""


class InternalError(Exception):
    """A fault of ours in the worker; `trace` says where."""

    def __init__(self, message: str, trace: list[str]) -> None:
        super().__init__(message)
        self.trace = trace


class _Process:
    """One worker process, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}  # None: the process has ended
        self.description: dict[str, Any] = {}
        self.is_ready = False
        self.ended = asyncio.Event()

    @classmethod
    async def start(cls, model: ModelSettings) -> "_Process":
        """Start one and wait until its model is loaded."""
        how = {
            "model": model.model, "device": model.device, "precision": model.precision, "engine": model.engine,
            "threads": model.threads,
        }  # fmt: skip
        process = cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "dragoman.serve.worker",
                json.dumps(how),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LONGEST_MESSAGE,
                start_new_session=True,  # Ctrl-C is for the front, which lets workers finish
            )
        )
        assert process._process.stdout is not None
        first = await process._process.stdout.readline()
        message: dict[str, Any] = {"failed": f"{model.model}: the worker ended while it loaded the model"}
        with suppress(ValueError):  # cut off when it was killed
            message = json.loads(first)
        if "failed" in message:
            raise ModelError(message["failed"])
        process.description, process.is_ready = message["ready"], True
        asyncio.create_task(process._read())  # noqa: RUF006 - it ends with the process
        return process

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # cut off when it was killed
            async for line in self._process.stdout:
                message = json.loads(line)
                if (queue := self._answers.get(message["id"])) is not None:
                    queue.put_nowait(message)
        self.is_ready = False
        self.kill()  # if it still runs, it cannot be understood
        await self._process.wait()
        for queue in self._answers.values():
            queue.put_nowait(None)
        self.ended.set()

    async def ask(
        self, operation: str, payload: dict[str, Any], seconds: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield all messages of an answer."""
        number = next(self._numbers)
        queue = self._answers[number] = asyncio.Queue[dict[str, Any] | None]()
        deadline, is_answered = asyncio.get_running_loop().time() + seconds + GRACE, False
        try:
            self._write({"id": number, "operation": operation, "seconds": seconds, "payload": payload})
            while not is_answered:
                async with asyncio.timeout_at(deadline):
                    message = await queue.get()
                if message is None:
                    raise WorkerDied
                is_answered = "part" not in message
                yield message
        except TimeoutError:
            raise Overdue from None
        finally:
            del self._answers[number]
            if not is_answered:
                self._write({"id": number, "operation": GIVE_UP})

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def stop(self) -> None:
        """End it when its last request is answered."""
        while self._answers and not self.ended.is_set():
            await asyncio.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()


class ModelWorker:
    """A model, whatever process has it loaded."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self.restarts = 0
        self.failure = ""  # why a process could not be started again, until one could
        self._process: _Process | None = None
        self._hash, self._files = "", list[tuple[str, int, int, int]]()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, watch_seconds: float) -> None:
        """Load the model, and keep it loaded. What prevents it is raised."""
        with suppress(OSError):  # the worker says better what is wrong with a folder
            self._files, self._hash = _files_of(self.settings.model), model_hash(self.settings.model)
        self._process = await _Process.start(self.settings)
        self._tasks = [asyncio.create_task(self._keep_alive()), asyncio.create_task(self._reload(watch_seconds))]

    @property
    def is_ready(self) -> bool:
        return self._process is not None and self._process.is_ready

    @property
    def description(self) -> dict[str, Any]:
        return {} if self._process is None else self._process.description

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def _keep_alive(self) -> None:
        while True:
            process = self._process
            assert process is not None
            await process.ended.wait()
            if process is self._process:
                await self._restart()

    async def _restart(self) -> None:
        self.restarts += 1
        log.error("worker ended", extra={"model": self.settings.name, "restarts": self.restarts})
        dead = self._process
        for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
            await asyncio.sleep(pause)
            if self._process is not dead:  # the model has been replaced
                return
            try:
                new = await _Process.start(self.settings)
            except (OSError, DragomanError) as error:
                self.failure = str(error)
                log.error("worker does not start", extra={"model": self.settings.name, "reason": self.failure})
                continue
            self.failure = ""
            if self._process is dead:
                self._process = new
            else:
                new.kill()
            return

    async def _reload(self, seconds: float) -> None:
        """Replace the process when the files of the model have changed."""
        while True:
            await asyncio.sleep(seconds)
            try:
                files = await asyncio.to_thread(_files_of, self.settings.model)
                if files == self._files:  # reading them all takes long
                    continue
                found = await asyncio.to_thread(model_hash, self.settings.model)
                self._files = files
                if found == self._hash:
                    continue
                new = await _Process.start(self.settings)
            except (OSError, DragomanError) as error:  # perhaps only half written yet
                log.warning("new model not loaded", extra={"model": self.settings.name, "reason": str(error)})
                continue
            old, self._process, self._hash, self.failure = self._process, new, found, ""
            log.info("model replaced", extra={"model": self.settings.name})
            if old is not None:
                asyncio.create_task(old.stop())  # noqa: RUF006 - it ends with its requests

    async def ask(self, operation: str, payload: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The result of an operation, or raise what the worker reports."""
        async with aclosing(self.stream(operation, payload, seconds)) as messages:
            async for message in messages:
                if "result" in message:
                    result: dict[str, Any] = message["result"]
                    return result
        raise WorkerDied

    async def stream(
        self, operation: str, payload: dict[str, Any], seconds: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield {"part": ...} as they come, and in the end {"result": ...}."""
        process = self._process
        if process is None or not process.is_ready:
            raise NotReady
        async with aclosing(process.ask(operation, payload, seconds)) as messages:
            async for message in messages:
                _raise_error(message)
                yield message

    async def status(self) -> dict[str, int]:
        """How many sentences are being searched, and how many wait."""
        return dict(await self.ask(STATUS, {}, 1.0))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._process is not None:
            await self._process.stop()

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._process is not None:
            self._process.kill()


def _files_of(model: str) -> list[tuple[str, int, int, int]]:
    """What tells whether the files of a model have been replaced."""
    found = [(path.name, path.stat()) for path in sorted(resolve_model(model).iterdir())]
    return [(name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in found]


def _raise_error(message: dict[str, Any]) -> None:
    if "error" not in message:
        return
    kind, text = message["kind"], message["error"]
    if kind == "GivenUp":
        raise Overdue
    if kind == INTERNAL:
        raise InternalError(text, message["trace"])
    error: DragomanError = getattr(errors, kind)(text)
    raise error


__all__ = ["STREAM", "InternalError", "ModelWorker", "NotReady", "Overdue", "WorkerDied"]
