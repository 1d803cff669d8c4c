"""What every request passes first: its size and time, and what every answer has: headers, a log line, a count.

Plain ASGI, because a framework would read a body before anybody could refuse it.
"""

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serve.service import NO_ROOM, Service

log = logging.getLogger("dragoman.serve")
FILES = ("/translate_file", "/v1/files")  # routes whose bodies may be larger
TRANSLATING = ("/translate", "/v1/translate")  # where most requests go, and are refused, when there are too many
MOST_HELD = 512 << 20  # bytes of all bodies together
SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; frame-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


class _Refuse(Exception):
    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message


class Guard:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._settings, self._metrics = service.settings, service.metrics
        self._held = 0  # bytes of all bodies
        # others need an answer that depends on what they sent
        self._may_refuse_early = not service.access.needs_key and not service.settings.cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer, parts, start = _Answer(send, self._service), list[bytes](), time.monotonic()
        try:
            body = await self._read(scope, receive, parts)
            if self._refuses(scope):  # before it is parsed: many who are refused must not slow down the others
                self._metrics.refused.labels("queue").inc()
                await _error(answer.send, 503, NO_ROOM, retry_seconds=self._service.backoff.refuse())
                return
            await self._app(scope, _replay(body, receive), answer.send)
        except _Refuse as refused:
            self._metrics.refused.labels("body").inc()
            await _error(answer.send, refused.status, refused.message, self._rest(receive, refused.status))
        except Exception as error:
            log.error("internal error", exc_info=error)
            if not answer.has_begun:
                await _error(answer.send, 500, "internal error; see the log of the service", self._rest(receive, 500))
        finally:
            self._held -= sum(map(len, parts))
            self._note(scope, answer.status, time.monotonic() - start)

    def _refuses(self, scope: Scope) -> bool:
        is_work = scope["method"] == "POST" and scope["path"] in TRANSLATING
        return is_work and self._may_refuse_early and self._service.is_full and not self._service.is_draining

    async def _read(self, scope: Scope, receive: Receive, parts: list[bytes]) -> bytes:
        """The whole body, or refuse it as soon as it is known to be too large or too slow."""
        headers = dict(scope["headers"])
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise _Refuse(400, "Content-Encoding: compressed bodies are not accepted; send it as it is")
        most = self._settings.max_file if scope["path"] in FILES else self._settings.max_body
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > most:
            raise _Refuse(413, f"the body has {int(declared):,} bytes, at most {most:,} are accepted; send less")
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refuse(400, "the body is incomplete")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    self._held += len(parts[-1])
                    if self._held > MOST_HELD:
                        raise _Refuse(503, "too much to read; try again soon")
                    if size > most:
                        raise _Refuse(413, f"the body has more than {most:,} bytes; send less")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise _Refuse(408, f"the body took longer than {self._settings.body_seconds:g} s; send it faster") from None

    async def _rest(self, receive: Receive, status: int) -> None:
        """Read what is left of a body that is too large: many clients read the answer only when they have sent it."""
        if status == 413:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.body_seconds):
                    while (await receive()).get("more_body"):
                        pass

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and log the answer. Neither has texts, queries or keys."""
        route = getattr(scope.get("route"), "path", scope["path"] if scope["path"] in TRANSLATING else "unknown")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        log.info(
            "request",
            extra={
                "method": scope["method"], "route": route, "status": status, "seconds": round(seconds, 4),
                "caller": scope.get("state", {}).get("caller"), **scope.get("state", {}).get("noted", {}),
            },
        )  # fmt: skip


class _Answer:
    """Adds headers to an answer, and remembers its status."""

    def __init__(self, send: Send, service: Service) -> None:
        self._send, self._service = send, service
        self.status, self.has_begun = 499, False  # until there is one: the client hung up

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.has_begun = message["status"], True
            given = {name.decode().lower() for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in SECURITY.items() if name not in given]
            if self._service.is_draining:
                added.append((b"connection", b"close"))
            message = {**message, "headers": [*message["headers"], *added]}
        await self._send(message)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message; then what the client does next."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return pending.pop() if pending else await receive()

    return next_message


async def _error(
    send: Send, status: int, message: str, rest: Awaitable[None] | None = None, retry_seconds: int = 1
) -> None:
    """Answer; then wait for `rest`, if a part of the body is still to come, before the connection is closed."""
    body = json.dumps({"error": message}, separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if rest is not None and status in (408, 413, 503):  # what still comes is not the next request
        headers.append((b"connection", b"close"))
    if status == 503:
        headers.append((b"retry-after", str(retry_seconds).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if rest is not None:
        await rest
    await send({"type": "http.response.body", "body": b""})


ORDINARY = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime", "color_message"}  # of every log record


class JsonLines(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        extra: dict[str, Any] = {k: v for k, v in record.__dict__.items() if k not in ORDINARY and v is not None}
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)), "level": record.levelname}
        if record.exc_info and (error := record.exc_info[1]) is not None:  # not its message, which may have texts
            trace = getattr(error, "trace", None) or traceback.format_tb(error.__traceback__)
            extra |= {"error": type(error).__name__, "trace": trace}
        return json.dumps({**line, "event": record.getMessage(), **extra}, default=str)
