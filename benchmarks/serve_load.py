"""Load on the service, beside a CTranslate2-backed server of the same model (benchmarks/serve_peer.py), in one run.

    python -m benchmarks.serve_load --input FILE [--clients 1 8 64 512] [--seconds 20] [--model en-de] [--alone]
    python -m benchmarks.serve_load --input FILE --overload 120 [--queue 128]   as many clients as it holds, then 10x
    python -m benchmarks.serve_load --input FILE --soak 600          memory while 64 clients are at work
    python -m benchmarks.serve_load --input FILE --kill 30           kill -9 of the worker, again and again

Every client sends one line at a time and waits for the answer; lines come from the file in turn. Server and clients
share the machine. The servers take turns at each number of clients; requests per second and the time of an answer
(p50, p95, p99) are of all answers that were right. `--overload` and `--kill` count every answer: each request gets
exactly one. `--overload` also has the answers per second of processor time of the server: clients that are refused
take time of their own on the same cores.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.interop import to_ctranslate2

OURS, PEER = "dragoman", "CTranslate2 + Flask"
START_SECONDS = 120
RAMP = 0.15  # of the time is not counted: the servers warm up


@dataclass
class Load:
    """What clients saw."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    lost: int = 0  # connections that ended without an answer
    mismatched: int = 0  # answers to another request
    refusal_times: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        p50, p95, p99 = np.percentile(self.times, [50, 95, 99]) * 1000 if self.times else [float("nan")] * 3
        return {
            "requests_per_second": round(len(self.times) / self.seconds, 1),
            "p50_ms": round(float(p50), 1), "p95_ms": round(float(p95), 1), "p99_ms": round(float(p99), 1),
            "statuses": dict(self.statuses), "lost": self.lost, "mismatched": self.mismatched,
        }  # fmt: skip


class Connection:
    """A client with one connection, kept alive."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, content: dict[str, Any]) -> tuple[int, Any, float]:
        """The status, the answer, and the seconds to wait before the next try."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        body = json.dumps(content).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            answer = await reader.readexactly(int(headers["content-length"]))
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            raise ConnectionError from None
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), json.loads(answer), float(headers.get("retry-after", 0))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def run_clients(
    port: int, lines: Sequence[str], clients: int, seconds: float, expected: dict[str, str], pause: float | None = 0.1
) -> Load:
    """Clients that ask one thing after the other, for so long. `expected` is filled at first, then compared with.

    One that is refused asks again after about `pause` seconds; None: as long as it is told to wait.
    """
    load, start = Load(), time.monotonic()
    counted_from, end = start + RAMP * seconds, start + seconds

    async def client(number: int) -> None:
        connection, draw = Connection(port), random.Random(number)
        while (before := time.monotonic()) < end:
            line = draw.choice(lines)
            try:
                content = {"q": line, "source": "en", "target": "de"}
                status, answer, told = await connection.post("/translate", content)
            except ConnectionError:
                load.lost += 1
                await asyncio.sleep(0.01)
                continue
            now = time.monotonic()
            load.statuses[status] += 1
            if status == 200:
                load.mismatched += expected.setdefault(line, answer["translatedText"]) != answer["translatedText"]
                if now >= counted_from:
                    load.times.append(now - before)
            else:
                load.refusal_times.append(now - before)
                if pause is None:
                    connection.close()  # the server would, before the client asks again
                wait = (told if pause is None else pause) * (0.5 + draw.random())
                await asyncio.sleep(min(wait, max(0.0, end - time.monotonic())))

    await asyncio.gather(*(client(number) for number in range(clients)))
    load.seconds = time.monotonic() - counted_from
    return load


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def server(command: Sequence[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{' '.join(command)} did not start") from None
                time.sleep(0.1)
        asyncio.run(_wait_until_ready(port))
        yield process
    finally:
        process.terminate()
        process.wait(60)


async def _wait_until_ready(port: int) -> None:
    await Connection(port).post("/translate", {"q": "Hello.", "source": "en", "target": "de"})


def our_command(model: str, port: int, settings: Path) -> list[str]:
    return ["dragoman", "serve", "--model", model, "--port", str(port), "--settings", str(settings)]


def resident_bytes(pid: int) -> int:
    """Of a process and its children."""
    total = 0
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for each in [pid, *(int(child) for child in children.read_text().split())]:
        if each != pid:
            total += resident_bytes(each)
        else:
            pages = int(Path(f"/proc/{each}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


def processor_seconds(pid: int) -> float:
    """Of a process and its children, so far."""
    ticks = 0
    for each in [pid, *(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def worker_pid(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def stolen() -> int:
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])


def compare(arguments: argparse.Namespace, lines: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    ports = {OURS: free_port(), PEER: free_port()}
    settings = _settings(folder, queue=4_096, seconds=60.0)
    commands = {
        OURS: our_command(arguments.model, ports[OURS], settings),
        PEER: ["benchmarks.serve_peer", str(folder / "ctranslate2"), str(ports[PEER])],
    }
    if arguments.alone:
        del commands[PEER]
    else:
        to_ctranslate2(arguments.model, folder / "ctranslate2")
    rows: list[dict[str, Any]] = []
    expected: dict[str, dict[str, str]] = {OURS: {}, PEER: {}}
    for clients in arguments.clients:
        for name, command in commands.items():
            with server(command, ports[name]):
                before = stolen()
                load = asyncio.run(run_clients(ports[name], lines, clients, arguments.seconds, expected[name]))
                row = {"server": name, "clients": clients, **load.row(), "stolen_ticks": stolen() - before}
                rows.append(row)
                if not arguments.json:
                    print(row, flush=True)
    return rows


def overload(arguments: argparse.Namespace, lines: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """First as many clients as there is room, then ten times as many: who wait as Retry-After says, and who do not."""
    queue, port = arguments.queue, free_port()
    rows = []
    with server(our_command(arguments.model, port, _settings(folder, queue=queue, seconds=30.0)), port) as process:
        for clients, pause in ((queue, 0.1), (10 * queue, None), (10 * queue, 0.1)):
            before, stolen_before = processor_seconds(process.pid), stolen()
            load = asyncio.run(run_clients(port, lines, clients, arguments.overload, {}, pause))
            used = processor_seconds(process.pid) - before
            refused = np.percentile(np.array(load.refusal_times or [0.0]) * 1000, 99)
            server_use = {
                "resident_mb": resident_bytes(process.pid) // 1_000_000,
                "answers_per_server_second": round(load.statuses[200] / used, 1),
                "stolen_ticks": stolen() - stolen_before,
            }
            row = {"clients": clients, "pause": pause, **load.row(), "refused_p99_ms": round(float(refused), 1)}
            rows.append({**row, **server_use})
    return rows


def soak(arguments: argparse.Namespace, lines: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    port, rows = free_port(), []
    with server(our_command(arguments.model, port, _settings(folder, queue=4_096, seconds=60.0)), port) as process:
        for _ in range(10):
            load = asyncio.run(run_clients(port, lines, 64, arguments.soak / 10, {}))
            rows.append({"server": OURS, **load.row(), "resident_mb": resident_bytes(process.pid) // 1_000_000})
    return rows


def kill(arguments: argparse.Namespace, lines: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    port = free_port()
    with server(our_command(arguments.model, port, _settings(folder, queue=4_096, seconds=60.0)), port) as process:

        async def run() -> tuple[Load, int]:
            killed, end = 0, time.monotonic() + arguments.kill

            async def killer() -> None:
                nonlocal killed
                while time.monotonic() < end - 5:
                    await asyncio.sleep(5)
                    if (pid := worker_pid(process.pid)) is not None:
                        os.kill(pid, signal.SIGKILL)
                        killed += 1

            load, _ = await asyncio.gather(run_clients(port, lines, 32, arguments.kill, {}), killer())
            return load, killed

        load, killed = asyncio.run(run())
    return [{"server": OURS, "killed": killed, **load.row()}]


def _settings(folder: Path, **values: Any) -> Path:
    path = folder / "serve.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True, help="lines of English")
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--lines", type=int, default=1_000)
    parser.add_argument("--alone", action="store_true", help="without the peer")
    parser.add_argument("--overload", type=float)
    parser.add_argument("--queue", type=int, default=128, help="room for so many requests, in --overload")
    parser.add_argument("--soak", type=float)
    parser.add_argument("--kill", type=float)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines = [line for line in arguments.input.read_text().splitlines() if line.strip()][: arguments.lines]
    what = overload if arguments.overload else soak if arguments.soak else kill if arguments.kill else compare
    with tempfile.TemporaryDirectory() as folder:
        rows = what(arguments, lines, Path(folder))
    if arguments.json:
        print(json.dumps({"cores": os.cpu_count(), "lines": len(lines), "rows": rows}))
    elif what is not compare:
        for row in rows:
            print(row)


if __name__ == "__main__":
    main()
