"""A translation service in a process of its own, and ways to ask it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 120  # seconds for anything that must happen, however busy the machine
SENTENCE = "The committee that met yesterday in the old town hall has decided to postpone the vote on the new budget. "
LINES = [  # different, so that nothing is answered from memory
    f"In the year {year} the {who} of the city wrote {what} to their friends in the north."
    for year in range(1900, 1906)
    for who in ("bakers", "teachers", "soldiers", "doctors", "farmers")
    for what in ("letters", "books", "songs", "poems", "reports", "postcards", "stories")
]


def wait_until(happens: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.02)


def new_client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=PATIENCE, verify=False)  # certificates take long to load


ONE_MODEL = '[[models]]\nmodel = "en-de"\n'


class RunningService:
    """`dragoman serve` with these settings, on a free port of this machine."""

    def __init__(self, folder: Path, settings: str = "", *options: str, models: str = ONE_MODEL) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        models = "" if "[[models]]" in settings else models
        (folder / "serve.toml").write_text(f"port = 0\n{settings}\n{models}")
        self._log = folder / "log"
        command = [sys.executable, "-m", "dragoman", "serve", "--settings", str(folder / "serve.toml"), *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, "TMPDIR": str(folder)})
        wait_until(lambda: "serving" in self.log or self.process.poll() is not None)
        found = re.search(r"at http://(\S+):(\d+)", self.log)
        assert found, self.log
        self.host, self.port = found[1], int(found[2])
        self.url = f"http://{self.host}:{self.port}"
        self.client = new_client(self.url)

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of the log, which are JSON, without the first, which is for people."""
        return [json.loads(line) for line in self.log.splitlines() if not line.startswith("serving ")]

    @property
    def workers(self) -> list[int]:
        """Process numbers of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def memory(self, process: int) -> int:
        """Bytes that a process has in memory."""
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def post(self, route: str, content: Any, **more: Any) -> httpx.Response:
        return self.client.post(route, json=content, **more)

    def translate(self, text: str | list[str], **more: Any) -> httpx.Response:
        """By /v1."""
        return self.post("/v1/translate", {"text": text, **more})

    def metrics(self, **more: Any) -> dict[str, float]:
        answer = self.client.get("/metrics", **more)
        assert answer.status_code == 200, answer.text
        lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def is_idle(self) -> bool:
        """Whether nothing is under way, at the front and in the worker."""
        found = self.metrics()
        names = [name for name in found if name.startswith(("dragoman_requests_in_flight", "dragoman_sentences{"))]
        return not any(found[name] for name in names)

    def connect(self, timeout: float = PATIENCE) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def send(self, route: str, content: Any) -> socket.socket:
        """Ask without waiting for the answer."""
        body = json.dumps(content).encode()
        sock = self.connect()
        head = f"POST {route} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        sock.sendall(head.encode() + b"\r\n" + body)
        return sock

    def stop(self, seconds: float = PATIENCE) -> int:
        """End it as an operator does; return its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextmanager
def running(folder: Path, settings: str = "", *options: str, models: str = ONE_MODEL) -> Iterator[RunningService]:
    service = RunningService(folder, settings, *options, models=models)
    try:
        yield service
    finally:
        service.stop()


def receive_all(sock: socket.socket) -> bytes:
    """What comes until the other side closes the connection."""
    received = b""
    try:
        while part := sock.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def slow_work(number: int = 0, texts: int = 40) -> dict[str, Any]:
    """A request of /v1/translate that keeps a worker busy for many seconds."""
    return {
        "text": [f"{SENTENCE * 3}{number} {each}" for each in range(texts)],
        "options": {"beam": 16, "max_extra": 900},
    }
