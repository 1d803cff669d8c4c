"""A process with one model: requests on standard input, answers on standard output, a line of JSON each.

    {"id": 7, "operation": "translate", "seconds": 30, "payload": {...}}    asks
    {"id": 7, "operation": "give up"}                                       nobody waits for it any more
    {"id": 7, "result": {...}}                                              answers
    {"id": 7, "error": "...", "kind": "ConfigError"}                        says why there is no result
    {"id": 8, "part": "Das"}                                                a part of a stream, before its result

First it writes {"ready": {...}}, or {"failed": "..."} and ends; it also ends with its input. Every request runs on a
thread of its own, and the sentences of all are searched together. Knows nothing of HTTP.
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from dragoman.decode.continuous import GivenUp, Ticket, serving
from dragoman.decode.translator import Translator
from dragoman.errors import DragomanError
from dragoman.serve import operations

REQUESTS = 256  # at once; others wait for a thread
GIVE_UP, STREAM, STATUS, INTERNAL = "give up", "stream", "status", "internal"

Send = Callable[[dict[str, Any]], None]


class Worker:
    def __init__(self, translator: Translator, threads: int, send: Send) -> None:
        self._translator, self._send = translator, send
        self._search = translator.search_continuously(threads)
        self._tickets: dict[int, Ticket] = {}
        self._pool = ThreadPoolExecutor(REQUESTS, "request")

    def accept(self, message: dict[str, Any]) -> None:
        number, operation = message["id"], message["operation"]
        if operation == GIVE_UP:
            if (ticket := self._tickets.get(number)) is not None:
                ticket.give_up()
        elif operation == STATUS:
            self._send({"id": number, "result": {"running": self._search.running, "waiting": self._search.waiting}})
        else:
            self._tickets[number] = ticket = Ticket(message["seconds"])
            self._pool.submit(self._answer, number, operation, message["payload"], ticket)

    def _answer(self, number: int, operation: str, payload: dict[str, Any], ticket: Ticket) -> None:
        try:
            with serving(ticket):
                if ticket.is_over:
                    raise GivenUp
                result = self._run(number, operation, payload, ticket)
            self._send({"id": number, "result": result})
        except GivenUp:
            self._send({"id": number, "error": "given up", "kind": "GivenUp"})
        except DragomanError as error:
            self._send({"id": number, "error": str(error), "kind": _kind(error)})
        except Exception as error:  # a fault of ours: this request fails, the others go on
            trace = traceback.format_tb(error.__traceback__)
            self._send({"id": number, "error": type(error).__name__, "kind": INTERNAL, "trace": trace})
        finally:
            self._tickets.pop(number, None)

    def _run(self, number: int, operation: str, payload: dict[str, Any], ticket: Ticket) -> dict[str, Any]:
        if operation != STREAM:
            return operations.run(self._translator, operation, payload)
        parts = operations.stream(self._translator, payload)
        while True:
            try:
                part = next(parts)
            except StopIteration as end:
                result: dict[str, Any] = end.value
                return result
            if ticket.is_over:
                raise GivenUp
            self._send({"id": number, "part": part})


def _kind(error: DragomanError) -> str:
    """Its class; of one that is defined elsewhere, the one that it is derived from."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == DragomanError.__module__)


def _sender(out: BinaryIO) -> Send:
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with lock:
            out.write(line)
            out.flush()

    return send


def main() -> None:
    """The arguments are one JSON object: model, device, precision, engine, threads."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints must not come between the answers
    send, how = _sender(out), json.loads(sys.argv[1])
    try:
        translator = Translator.load(how["model"], how["device"], how["precision"], engine=how["engine"])
        worker = Worker(translator, how["threads"] or os.cpu_count() or 1, send)
        operations.translate(translator, {"texts": ["a"]})  # so that the first request finds everything loaded
    except DragomanError as error:
        send({"failed": str(error)})
        return
    send({"ready": operations.describe(translator)})
    for line in sys.stdin.buffer:
        worker.accept(json.loads(line))
    os._exit(0)  # whatever the threads are doing, nobody reads it any more


if __name__ == "__main__":
    main()
