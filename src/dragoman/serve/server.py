"""Runs the application until SIGTERM or SIGINT, and lets it finish what is under way."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dragoman.errors import ConfigError
from dragoman.serve.app import create_app
from dragoman.serve.guard import JsonLines
from dragoman.serve.service import Service
from dragoman.serve.settings import KeySettings, ModelSettings, ServeSettings

log = logging.getLogger("dragoman.serve")
KEEP_ALIVE_SECONDS = 15
LAST_SECONDS = 2  # for answers that are being sent when everything is done
MOST_HEAD = 64 << 10  # bytes of the headers of a request, at least


def _protocol(seconds: float) -> type[HttpToolsProtocol]:
    """HTTP, but a client that takes longer for its headers, or has too many of them, is disconnected."""

    class Protocol(HttpToolsProtocol):
        _overdue: asyncio.TimerHandle | None = None
        _head = 0  # bytes of headers that are not complete

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._overdue = self.loop.call_later(seconds, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._overdue is not None:
                self._head += len(data)
                if self._head > MOST_HEAD:
                    self.transport.abort()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._overdue is None:
                self._overdue = self.loop.call_later(seconds, self.transport.abort)

        def on_headers_complete(self) -> None:
            self._stop_clock()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_clock()
            super().connection_lost(exc)

        def _stop_clock(self) -> None:
            if self._overdue is not None:
                self._overdue.cancel()
                self._overdue, self._head = None, 0

    return Protocol


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to `serve`."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket, so that a port in use is reported before any model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise ConfigError(f"--port {port}: cannot be used on {host} ({error.strerror}); give another") from None
    found.listen(2048)
    return found


def run(settings: ServeSettings, models: Sequence[ModelSettings], keys: Sequence[KeySettings]) -> int:
    """Serve until a signal; return the exit code."""
    _log_to_stderr()
    _raise_file_limit()
    with listen(settings.host, settings.port) as sock:
        try:
            import uvloop

            return uvloop.run(_serve(Service(settings, models, keys), sock))
        except ImportError:  # not on Windows
            return asyncio.run(_serve(Service(settings, models, keys), sock))


async def _serve(service: Service, sock: socket.socket) -> int:
    asked, hurry = asyncio.Event(), asyncio.Event()  # the first signal, and the second
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if asked.is_set() else asked).set())
    try:
        if not await _unless(asked, service.start()):
            return 0
        how: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", "server_header": False}
        protocol = _protocol(service.settings.header_seconds)
        how |= {"timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": LAST_SECONDS}
        server = _Server(uvicorn.Config(create_app(service), http=protocol, ws="none", **how))
        serving = asyncio.create_task(server.serve([sock]))
        host, port = sock.getsockname()[:2]
        names = ", ".join(f"{source} to {target}" for source, target in map(service.pair_of, service.workers))
        print(f"serving {names} at http://{host}:{port}", file=sys.stderr, flush=True)
        await asyncio.wait([serving, asyncio.create_task(asked.wait())], return_when=asyncio.FIRST_COMPLETED)
        log.info("draining")
        is_done = await service.drain(hurry)
        server.should_exit = True
        await serving
        log.info("ended", extra={"all_finished": is_done})
        return 0 if is_done else 1
    finally:
        service.stop()


async def _unless(asked: asyncio.Event, work: Any) -> bool:
    """Wait for it; False if the signal came first."""
    task, signalled = asyncio.ensure_future(work), asyncio.ensure_future(asked.wait())
    await asyncio.wait([task, signalled], return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    return False


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.captureWarnings(True)
    logging.getLogger().handlers = [handler]
    logging.getLogger("dragoman.serve").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _raise_file_limit() -> None:
    """Every connection is an open file, and the usual limit is 1,024."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
