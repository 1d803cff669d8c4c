"""Faults, bad input and load against a running service. Each protection is switched off once, and is missed."""

import http.client
import json
import os
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.serve.backoff import LONGEST_SECONDS
from tests.serving import LINES, PATIENCE, RunningService, new_client, receive_all, running, slow_work, wait_until

QUEUE = 4
KEY, LIMITED_KEY = "a-key-of-the-test-0123456789", "a-limited-key-0123456789abcd"
TIGHT = f"files = false\nqueue = {QUEUE}\nheader_seconds = 1.0\nbody_seconds = 1.0\nmax_body = 200_000\n"
WIDE = f"""
queue = 128
log_text = true
max_texts = 1000
cors = ["https://a.example"]
[[keys]]
key = "{KEY}"
name = "ann"
[[keys]]
key = "{LIMITED_KEY}"
name = "bob"
requests_per_minute = 3
"""
OWN = {"x-api-key": KEY}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Little room, little time, no keys."""
    with running(tmp_path_factory.mktemp("tight"), TIGHT) as service:
        yield service


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """More room, for those who have a key."""
    with running(tmp_path_factory.mktemp("wide"), WIDE) as service:
        service.client.headers.update(OWN)
        yield service


def plain_client(service: RunningService) -> httpx.Client:
    """Without a key."""
    return new_client(service.url)


# 24


class Load:
    """Clients that ask again and again, and wait as long as they are told to."""

    def __init__(self, service: RunningService, clients: int, seconds: float) -> None:
        self.statuses, self.refusals = Counter[int](), list[httpx.Response]()
        self._service, self._seconds, self._together = service, seconds, threading.Barrier(clients)
        threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.per_second = self.statuses[200] / seconds

    def _ask(self, number: int) -> None:
        with plain_client(self._service) as client:
            self._together.wait(PATIENCE)
            end = time.monotonic() + self._seconds
            while time.monotonic() < end:
                answer = client.post("/v1/translate", json={"text": LINES[number % len(LINES)], "options": {"beam": 1}})
                self.statuses[answer.status_code] += 1
                if answer.status_code == 503:
                    self.refusals.append(answer)
                    time.sleep(min(float(answer.headers["retry-after"]), max(0.0, end - time.monotonic())))
                number += 7


def seconds_of(service: RunningService, status: int) -> list[float]:
    return [event["seconds"] for event in service.events if event.get("status") == status]


def test_24_more_clients_than_room_are_refused_at_once(tight: RunningService) -> None:
    memory = tight.memory(tight.process.pid)
    load = Load(tight, 10 * QUEUE, 0.8)
    assert set(load.statuses) == {200, 503}
    assert {int(answer.headers["retry-after"]) for answer in load.refusals} <= {*range(1, 2 * LONGEST_SECONDS)}
    assert {answer.text for answer in load.refusals} == {'{"error":"too much to do; try again soon"}'}
    assert statistics.median(seconds_of(tight, 503)) < 0.1
    assert tight.memory(tight.process.pid) - memory < 50 << 20
    assert set(Load(tight, QUEUE, 0.3).statuses) == {200}, "the control: as many as there is room for"


def test_24_a_stream_without_room_is_refused_as_any_other_request(tight: RunningService) -> None:
    sockets = [tight.send("/v1/translate", slow_work(number)) for number in range(QUEUE)]
    try:
        wait_until(lambda: in_flight(tight) == QUEUE)
        answer = tight.translate("a", stream=True)
        assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
    finally:
        for sock in sockets:
            sock.close()
    wait_until(tight.is_idle)
    assert tight.translate("a", stream=True).status_code == 200, "the control: there is room"


@pytest.mark.slow
def test_24_long_load_costs_no_memory(tight: RunningService) -> None:
    """benchmarks/serve_load.py --overload measures throughput, which depends on what else runs here."""
    processes = [tight.process.pid, *tight.workers]
    memory = list[list[int]]()
    for _ in range(5):
        assert Load(tight, 10 * QUEUE, 6).per_second > 0
        memory.append([tight.memory(process) for process in processes])
    for before, after in zip(memory[1], memory[-1], strict=True):
        assert after - before < 30 << 20, memory
    assert statistics.median(seconds_of(tight, 503)) < 0.1


# 25


@pytest.mark.slow
def test_25_a_client_over_its_limit_does_not_disturb_others(wide: RunningService) -> None:
    def ask(key: str) -> httpx.Response:
        return wide.translate("Good morning!", api_key=key)

    answers = [ask(key) for _ in range(6) for key in (LIMITED_KEY, KEY)]
    assert [answer.status_code for answer in answers[::2]] == [200] * 3 + [429] * 3
    assert [answer.status_code for answer in answers[1::2]] == [200] * 6, "the control: no limit"
    assert 0 < int(answers[-2].headers["retry-after"]) <= 20
    assert answers[-2].json() == {"error": f"too many requests; try again in {answers[-2].headers['retry-after']} s"}
    assert wide.metrics()['dragoman_refused_total{reason="limit"}'] >= 3


# 26


def in_flight(service: RunningService) -> float:
    return service.metrics()["dragoman_requests_in_flight"]


def test_26_the_slots_of_clients_that_hang_up_are_free_within_a_second(wide: RunningService) -> None:
    before = wide.metrics().get("dragoman_given_up_total", 0)
    best = float("inf")
    for _ in range(3):  # other programs use this machine too
        sockets = [wide.send("/v1/translate", {**slow_work(number, 2), "api_key": KEY}) for number in range(100)]
        wait_until(lambda: in_flight(wide) == 100)
        time.sleep(0.5)
        assert in_flight(wide) == 100, "the control: the slots of those that wait are not free"
        for sock in sockets:
            sock.close()
        start = time.monotonic()
        wait_until(wide.is_idle)
        best = min(best, time.monotonic() - start)
        if best < 1:
            break
    assert best < 1
    wait_until(lambda: wide.metrics()["dragoman_given_up_total"] >= before + 100)
    assert wide.translate("Good morning!").json()["translations"][0]["translation"] == "Guten Morgen!"


def test_26_a_client_that_hangs_up_in_a_stream_frees_its_slot(wide: RunningService) -> None:
    text = " ".join(LINES[:100])
    with wide.client.stream("POST", "/v1/translate", json={"text": text, "stream": True}) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        assert next(lines) == "event: part"
        assert in_flight(wide) == 1
    wait_until(wide.is_idle)


# 27


def test_27_a_deadline_ends_slow_work_and_does_not_change_its_mates(wide: RunningService) -> None:
    texts = LINES[:3]
    how = {"options": slow_work()["options"]}  # so that they are searched together
    expected = wide.translate(texts, options={**how["options"], "min_length": 0}).json()
    slow = {**slow_work(), "seconds": 1}
    slow["options"] = {**slow["options"], "min_length": 0}
    with ThreadPoolExecutor(2) as pool:
        overdue = pool.submit(wide.post, "/v1/translate", slow)
        wait_until(lambda: in_flight(wide) >= 1)
        mates = pool.submit(wide.post, "/v1/translate", {"text": texts, "options": slow["options"]})
        assert overdue.result().status_code == 504
        assert overdue.result().json() == {
            "error": "the deadline passed before the translation was done; ask for less at a time"
        }
        assert mates.result().json() == expected
    wait_until(wide.is_idle)
    quick = {**slow, "text": texts[:1], "seconds": 60}
    assert wide.post("/v1/translate", quick).status_code == 200, "the control: enough time"


# 28

DEEP = 10_000
BROKEN = {
    "cut off": b'{"text": "a"',
    "empty": b"",
    "not an object": b'["a"]',
    "null": b"null",
    "not UTF-8": b'{"text": "\xff"}',
    "nested lists": b"[" * DEEP + b"]" * DEEP,
    "nested objects": b'{"text":' * DEEP + b"1" + b"}" * DEEP,
    "nested text": b'{"text": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "NaN alone": b"NaN",
}
WRONG: dict[str, list[Any]] = {  # the field, and a value
    "text": [1, None, {}, {"a": 1}, [[]], ["a", 1], True, [], "\ud800", ["a", "\udfff"]],
    "source": [1, "", "e", "e" * 100, "\ud800", "<script>", ["en"]],
    "target": [1, "", [], "xx\n", "\ud800"],
    "model": [1, [], "\ud800"],
    "seconds": [0, -1, "1", 1e9, float("nan"), float("inf")],
    "api_key": [1, [], "a" * 501],
    "n_best": [0, -1, 1.5, "2", True, 10**6, 2**70],
    "prefix": [1, ["a", "b"], "\ud800"],
    "glossary": [
        1,
        {},
        ["a"],
        [{"source": "a"}],
        [{"source": "", "target": "b"}],
        [{"source": "\ud800", "target": ""}],
    ],
    "alignment": [1, "yes", None],
    "stream": ["yes", 2],
    "options": [1, [], "beam"],
    "options.beam": [0, -1, 10**6, "4", 4.0, 2**70],
    "options.max_extra": [0, -5, 10**9],
    "options.min_length": [-1, 10**9],
    "options.length_penalty": [-1, float("nan"), float("inf"), "1"],
    "options.temperature": [0, 1e9],
    "options.top_p": [0, 2, float("nan")],
    "options.seed": [-1, 2**64],
    "options.banned": ["a", [1], [""], ["\ud800"]],
    "options.protect": [["everything"], "tags"],
    "options.diversity_groups": [0, 10**6, 3],
    "options.bean": [4],
    "unknown": [1],
}
LIBRE_WRONG: dict[str, list[Any]] = {
    "q": [1, None, {}, [1], [[]], True, "", [], "\ud800", ["a", "\udfff"], "a\0b"],
    "source": [1, [], "\ud800", "xx"],
    "target": [1, "", None, [], "\ud800", "xx"],
    "format": [1, "", "xml", "\ud800"],
    "alternatives": [-1, 11, 1.5, [1], {}, "x", "9" * 5000, 2**70],
}


def request_with(name: str, value: Any, base: dict[str, Any]) -> bytes:
    content = json.loads(json.dumps(base))
    place = content.setdefault("options", {}) if name.startswith("options.") else content
    place[name.removeprefix("options.")] = value
    return json.dumps(content).encode()


def post_bytes(service: RunningService, route: str, body: bytes) -> httpx.Response:
    return service.client.post(route, content=body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("route", ["/v1/translate", "/v1/score", "/v1/inspect", "/translate", "/detect", "/suggest"])
def test_28_broken_json_is_refused(tight: RunningService, route: str) -> None:
    for name, body in BROKEN.items():
        answer = post_bytes(tight, route, body)
        assert answer.status_code in (400, 403 if route == "/suggest" else 400), (name, answer.text)
        assert list(answer.json()) == ["error"]
        if name not in ("empty", "nested objects") and route != "/suggest":
            assert answer.json()["error"].startswith(("the body: ", "text: ")), (name, answer.text)


def test_28_wrong_values_are_refused_by_name(tight: RunningService) -> None:
    for name, values in WRONG.items():
        for value in values:
            answer = post_bytes(tight, "/v1/translate", request_with(name, value, {"text": "a"}))
            assert answer.status_code == 400, (name, value, answer.text)
            named = name if name != "target" else ("target", "source, target")
            assert answer.json()["error"].startswith(named), (name, value, answer.text)
    assert tight.translate("a").status_code == 200, "the control"


def test_28_wrong_values_are_refused_by_name_as_libretranslate_does(tight: RunningService) -> None:
    good = {"q": "a", "source": "en", "target": "de"}
    for name, values in LIBRE_WRONG.items():
        for value in values:
            answer = post_bytes(tight, "/translate", request_with(name, value, good))
            assert answer.status_code == 400, (name, value, answer.text)
            error = answer.json()["error"]
            assert name in error or "is not supported" in error or "not available" in error, (name, value, error)
    assert tight.post("/translate", good).status_code == 200, "the control"


def test_28_odd_forms_queries_and_methods_are_refused(tight: RunningService) -> None:
    def form(body: bytes, kind: str = "application/x-www-form-urlencoded") -> httpx.Response:
        return tight.client.post("/translate", content=body, headers={"content-type": kind})

    part = b'--x\r\nContent-Disposition: form-data; name="%d"\r\n\r\n1\r\n'
    many = b"".join(part % number for number in range(2_000)) + b"--x--\r\n"
    assert "1,000 fields" in form(b"&" * 190_000).json()["error"]
    assert "1,000 fields" in form(b"a=1&" * 2_000).json()["error"]
    assert "Too many fields" in form(many, "multipart/form-data; boundary=x").json()["error"]
    for body, kind in [
        (b"abc", "multipart/form-data; boundary=x"),
        (many[:99], "multipart/form-data; boundary=x"),
        (many, "multipart/form-data"),
        (b"q=%ff%00&source=en&target=de", "application/x-www-form-urlencoded"),
    ]:
        assert form(body, kind).status_code == 400
    for route, allowed in (("/health", "GET"), ("/translate", "POST"), ("/v1/translate", "POST"), ("/", "GET")):
        for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
            if method == "HEAD" and allowed == "GET":
                continue
            answer = tight.client.request(method, route)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert tight.client.request("GET", "/health", content=b"a body").json() == {"status": "ok"}
    off = tight.post("/suggest", {"q": "a", "s": "b", "source": "en", "target": "de"})
    assert (off.status_code, off.json()) == (403, {"error": "Suggestions are disabled on this server."})
    off = tight.client.post("/translate_file", files={"file": ("a.txt", b"a")})
    assert (off.status_code, off.json()) == (403, {"error": "Files translation are disabled on this server."})
    assert tight.client.get("/download_file/" + "a" * 5_000).status_code == 404
    assert form(b"q=Good+morning!&source=en&target=de").json() == {"translatedText": "Guten Morgen!"}, "the control"
    assert all("internal" not in event["event"] for event in tight.events)


# 29


class Health:
    """How long /health takes, as long as the block lasts."""

    def __init__(self, service: RunningService) -> None:
        self._service, self._over = service, threading.Event()
        self.seconds = list[float]()

    def _look(self) -> None:
        with plain_client(self._service) as client:
            while not self._over.is_set():
                start = time.monotonic()
                assert client.get("/health").status_code == 200
                self.seconds.append(time.monotonic() - start)
                self._over.wait(0.02)

    def __enter__(self) -> "Health":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


HEAD = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def drip(service: RunningService, first: bytes, rest: bytes, pause: float = 0.1) -> tuple[float, bytes]:
    """Send `rest` again and again; the seconds until the connection is closed, and what came."""
    with service.connect() as sock:
        start = time.monotonic()
        try:
            sock.sendall(first)
            while time.monotonic() - start < PATIENCE:
                sock.sendall(rest)
                time.sleep(pause)
        except OSError:  # closed
            pass
        return time.monotonic() - start, receive_all(sock)


def wait_silently(service: RunningService) -> bytes:
    with service.connect() as sock:
        return receive_all(sock)


def test_29_slow_and_endless_requests_are_closed_and_do_not_slow_others(tight: RunningService) -> None:
    with Health(tight) as health, ThreadPoolExecutor(4) as pool:
        slow_head = pool.submit(drip, tight, b"POST /translate HTTP/1.1\r\n", b"X-A: b\r\n")
        slow_body = pool.submit(drip, tight, HEAD + b"Content-Length: 1000\r\n\r\n", b"x")
        endless = pool.submit(drip, tight, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")
        silent = pool.submit(wait_silently, tight)
        for each in (slow_head, slow_body, endless):
            seconds, answer = each.result()
            assert 0.9 < seconds < 30
            assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), answer
        assert silent.result() == b""
    assert statistics.median(health.seconds) < 0.1
    with tight.connect() as sock:  # the control: slow, but in time
        for byte in b"GET /health HTTP/1.1\r\nConnection: close\r\nHost: a\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert receive_all(sock).startswith(b"HTTP/1.1 200")


def test_29_a_body_in_tiny_chunks_is_cut_off(tight: RunningService) -> None:
    with Health(tight) as health, tight.connect() as sock:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(300):
                sock.sendall(b"1\r\nx\r\n" * 10_000)  # three million bytes, if it were let
            received = receive_all(sock)
        except OSError:
            received = b""
        assert received == b"" or received.startswith((b"HTTP/1.1 413", b"HTTP/1.1 408"))
    assert max(health.seconds) < 1.5
    assert tight.metrics()['dragoman_refused_total{reason="body"}'] >= 1


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nX-A: ", b"GET / HTTP/1.1\r\nX-"])
def test_29_headers_without_end_are_cut_off(tight: RunningService, begin: bytes) -> None:
    before = tight.memory(tight.process.pid)
    with tight.connect() as sock:
        try:
            sock.sendall(begin)
            for _ in range(400):
                sock.sendall(b"a" * 100_000)
            raise AssertionError("40 MB of headers were read")
        except ConnectionError:
            pass
    assert tight.memory(tight.process.pid) - before < 20 << 20


# 30


def accepted(service: RunningService, count: int, work: dict[str, Any]) -> list[Any]:
    def ask() -> httpx.Response:
        with plain_client(service) as client:
            return client.post("/v1/translate", json=work)

    pool = ThreadPoolExecutor(count)
    asked = [pool.submit(ask) for _ in range(count)]
    wait_until(lambda: service.metrics()["dragoman_requests_in_flight"] == count)
    pool.shutdown(wait=False)
    return asked


def test_30_sigterm_under_load_finishes_what_was_accepted(tmp_path: Path) -> None:
    with running(tmp_path, "drain_seconds = 100\nseconds = 100\n") as service:
        asked = accepted(service, 3, {"text": LINES[:8], "options": {"beam": 8}})
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in service.log)
        ready = service.client.get("/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
        assert ready.headers["connection"] == "close"
        assert service.client.get("/health").status_code == 200
        for content in ({"text": "a"}, {"text": "a", "stream": True}):
            refused = service.post("/v1/translate", content)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert not all(each.done() for each in asked)
        assert [len(each.result().json()["translations"]) for each in asked] == [8] * 3
        assert service.process.wait(PATIENCE) == 0
        assert [event["all_finished"] for event in service.events if event["event"] == "ended"] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["limit", "second signal"])
def test_30_the_control_too_little_time(tmp_path: Path, how: str) -> None:
    """What is not finished by then is cut off, and the exit code says so."""
    with running(tmp_path, f"drain_seconds = {0.2 if how == 'limit' else 100}\n") as service:
        (asked,) = accepted(service, 1, slow_work())
        service.process.send_signal(signal.SIGTERM)
        if how == "second signal":
            wait_until(lambda: "draining" in service.log)
            service.process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert service.process.wait(PATIENCE) == 1
        assert time.monotonic() - start < 20
        assert (asked.result().status_code, asked.result().headers["retry-after"]) == (503, "1")
        assert asked.result().json() == {"error": "the service is shutting down; try again elsewhere"}
        assert [event["all_finished"] for event in service.events if event["event"] == "ended"] == [False]
        assert all(event["level"] == "INFO" for event in service.events)


# 31


def test_31_a_worker_that_dies_is_replaced(tight: RunningService) -> None:
    (worker,) = tight.workers
    before = tight.metrics()['dragoman_worker_restarts{model="en-de"}']
    asked = accepted(tight, 2, slow_work())
    os.kill(worker, signal.SIGKILL)
    for each in asked:
        assert each.result().status_code == 500
        assert each.result().json() == {"error": "the worker of this model ended; it is being restarted"}
    ready = tight.client.get("/ready")
    assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
    meanwhile = tight.translate("Good morning!")
    assert (meanwhile.status_code, meanwhile.headers["retry-after"]) == (503, "1")
    assert tight.client.get("/health").status_code == 200
    wait_until(lambda: tight.client.get("/ready").status_code == 200)
    assert tight.translate("Good morning!").json()["translations"][0]["translation"] == "Guten Morgen!"
    assert tight.metrics()['dragoman_worker_restarts{model="en-de"}'] == before + 1
    assert tight.workers != [worker]
    assert any(event["event"] == "worker ended" for event in tight.events)


def test_31_requests_that_fail_do_not_fail_their_mates(wide: RunningService) -> None:
    bad = [
        {"text": "a\0b"},
        {"text": "a", "glossary": [{"source": "|", "target": "|"}]},
        {"text": "a", "options": {"banned": [" "]}},
    ]
    with ThreadPoolExecutor(12) as pool:
        asked = [
            pool.submit(wide.post, "/v1/translate", {"text": LINES[number]} if number % 2 else bad[number // 2 % 3])
            for number in range(24)
        ]
    statuses = [each.result().status_code for each in asked]
    assert statuses[1::2] == [200] * 12
    assert statuses[::2] == [200, 400, 400] * 4, "the first is a failed text in an answer"
    assert asked[0].result().json()["translations"][0]["status"] == "failed"
    assert [each.result().json()["translations"][0]["status"] for each in asked[1::2]] == ["translated"] * 12


@pytest.mark.slow
def test_31_workers_end_with_a_service_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        (worker,) = service.workers
        service.process.kill()
        wait_until(
            lambda: not Path(f"/proc/{worker}").exists() or "(zombie)" in Path(f"/proc/{worker}/status").read_text()
        )


# 34


@pytest.mark.slow
def test_34_what_would_take_too_much_is_refused_before_it_does(tight: RunningService) -> None:
    assert tight.post("/v1/inspect", {"text": "a"}).status_code == 200  # imports PyTorch
    assert tight.post("/v1/score", {"sources": ["a"], "targets": ["b"]}).status_code == 200
    processes = [tight.process.pid, *tight.workers]
    before = [tight.memory(process) for process in processes]
    many = ["a"] * 30_000
    for route, content in [
        ("/v1/translate", {"text": "a", "options": {"beam": 10**6}}),
        ("/v1/translate", {"text": "a", "n_best": 10**6}),
        ("/v1/translate", {"text": "a", "options": {"max_extra": 10**9}}),
        ("/v1/translate", {"text": "a", "options": {"beam": -1}}),
        ("/v1/translate", {"text": many}),
        ("/v1/translate", {"text": "a" * 100_000}),
        ("/v1/translate", {"text": "a", "prefix": "a" * 100_000}),
        ("/v1/score", {"sources": many[:20_000], "targets": many[:20_000]}),
        ("/v1/score", {"sources": ["a " * 9_000], "targets": ["a"]}),
        ("/v1/score", {"sources": ["a"], "targets": ["a " * 9_000]}),
        ("/v1/inspect", {"text": "house " * 3_000}),
        ("/translate", {"q": many, "source": "en", "target": "de"}),
        ("/translate", {"q": many, "target": "de"}),
        ("/translate", {"q": "a", "source": "en", "target": "de", "alternatives": 10**6}),
        ("/detect", {"q": "a" * 100_000}),
    ]:
        answer = tight.post(route, content)
        assert answer.status_code == 400, (route, answer.text)
    large = json.dumps({"text": ["a"] * 100_000}).encode()
    assert post_bytes(tight, "/v1/translate", large).status_code == 413
    chunks = (large[at : at + 1_000] for at in range(0, len(large), 1_000))
    assert tight.client.post("/v1/translate", content=chunks).status_code == 413
    for encoding in ("gzip", "deflate", "br", "zstd"):
        answer = tight.client.post("/v1/translate", content=b"\x1f\x8b", headers={"content-encoding": encoding})
        assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (400, "Content-Encoding")
    for process, memory in zip(processes, before, strict=True):
        assert tight.memory(process) - memory < 60 << 20


def test_34_a_client_that_reads_late_learns_why_its_body_was_refused(tight: RunningService) -> None:
    statuses = []
    for _ in range(5):
        connection = http.client.HTTPConnection(tight.host, tight.port, timeout=PATIENCE)
        connection.request("POST", "/translate", body=b"x" * 20_000_000)  # all of it, before it reads
        statuses.append(connection.getresponse().status)
        connection.close()
    assert statuses == [413] * 5
    assert tight.memory(tight.process.pid) < 500 << 20


def test_34_the_control_limits_are_settings(wide: RunningService, tight: RunningService) -> None:
    texts = [""] * 300
    assert tight.translate(texts).status_code == 400
    assert wide.translate(texts).status_code == 200


# 35

OPEN = ["/health", "/ready", "/", "/docs", "/frontend/settings"]
CLOSED = [
    ("GET", "/languages"),
    ("GET", "/metrics"),
    ("GET", "/spec"),
    ("GET", "/v1/models"),
    ("POST", "/translate"),
    ("POST", "/detect"),
    ("POST", "/suggest"),
    ("POST", "/translate_file"),
    ("POST", "/v1/translate"),
    ("POST", "/v1/score"),
    ("POST", "/v1/inspect"),
]
GOOD: dict[str, dict[str, Any]] = {
    "/translate": {"q": "a", "source": "en", "target": "de"},
    "/detect": {"q": "a"},
    "/v1/translate": {"text": "a"},
    "/v1/score": {"sources": ["a"], "targets": ["b"]},
    "/v1/inspect": {"text": "a"},
}


def test_35_every_route_needs_a_key(wide: RunningService) -> None:
    """Translated documents are not among them: their names are as long as keys."""
    described = {
        (method.upper(), route) for route, own in wide.client.get("/spec").json()["paths"].items() for method in own
    }
    known = {*CLOSED, ("GET", "/download_file/{name}"), *(("GET", route) for route in OPEN)}
    assert described <= known, "a route that this test does not know"
    wrong = [None, "", KEY.upper(), KEY[:-1], KEY + "a", "a" * 16, "ä" * 20]
    with plain_client(wide) as client:
        for route in OPEN:
            assert client.get(route).status_code == 200
        for method, route in CLOSED:
            for key in wrong:
                bodies = [None] if method == "GET" else [None, GOOD.get(route, {}), {"api_key": key} if key else {}]
                for body in bodies:
                    headers = {} if not key or body else {"authorization": f"Bearer {key}".encode()}
                    answer = client.request(method, route, json=body, headers=headers)  # type: ignore[arg-type]
                    assert answer.status_code == 401, (route, key, body, answer.text)
                    assert answer.json() == {"error": "api_key: missing or wrong; give a valid key"}


def test_35_a_key_is_given_in_the_body_the_query_or_a_header(wide: RunningService) -> None:
    libre = GOOD["/translate"]
    with plain_client(wide) as client:
        answers = [
            client.post("/translate", json={**libre, "api_key": KEY}),
            client.post("/translate", data={**libre, "api_key": KEY}),
            client.post("/translate", params={**libre, "api_key": KEY}),
            client.post("/translate", json=libre, headers={"X-API-Key": KEY}),
            client.post("/translate", json=libre, headers={"Authorization": f"Bearer {KEY}"}),
            client.post("/v1/translate", json={"text": "a", "api_key": KEY}),
            client.post("/v1/translate", json={"text": "a"}, headers={"Authorization": f"bearer {KEY}"}),
            client.get("/languages", params={"api_key": KEY}),
            client.get("/v1/models", headers={"X-API-Key": KEY}),
            client.get("/spec", headers={"X-API-Key": KEY}),
        ]
    assert [answer.status_code for answer in answers] == [200] * 10
    assert wide.post("/v1/translate", {"text": "a", "api_key": KEY, "unknown": 1}).status_code == 400


def test_35_no_key_is_in_logs_metrics_or_errors(wide: RunningService) -> None:
    guess = "a-wrong-key-9876543210"
    answers = [
        wide.post("/v1/translate", {"text": 1, "api_key": KEY}),
        wide.post("/v1/translate", {"text": "a", "api_key": [KEY]}),
        wide.client.post("/translate", params={"api_key": KEY, "q": "", "target": "de"}),
        wide.client.post("/translate", content=b"{" + KEY.encode()),
        wide.client.get(f"/{KEY}", params={"api_key": KEY}),
        wide.post("/v1/translate", {"text": "a", "api_key": guess}),
        wide.post("/v1/translate", {"text": "a", "api_key": KEY * 20}),
        post_bytes(wide, "/v1/translate", json.dumps({"text": "a\ud83d", "api_key": KEY}).encode()),
        wide.client.post("/translate", data={"q": "a", "target": KEY[:2]}),
    ]
    assert all(answer.status_code >= 400 for answer in answers)
    metrics = wide.client.get("/metrics").text
    for text in (wide.log, metrics, *(answer.text for answer in answers)):
        assert KEY not in text
        assert LIMITED_KEY not in text
        assert guess not in text
    assert '"caller": "ann"' in wide.log, "the control: who it was is logged"
    wide.translate("Zanzibar")
    wait_until(lambda: "Zanzibar" in wide.log)  # what it was, because log_text is on


# 36

ESCAPES = [
    "../app.py",
    "..%2fapp.py",
    "%2e%2e/app.py",
    "....//app.py",
    "%2fetc%2fpasswd",
    "index.html%00.js",
    "..\\app.py",
]


def test_36_no_name_leads_out_of_a_folder(tight: RunningService) -> None:
    for name in ESCAPES:
        for folder in ("web", "download_file"):
            with tight.connect() as sock:  # a client might tidy the path
                sock.sendall(f"GET /{folder}/{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
                assert receive_all(sock).startswith(b"HTTP/1.1 404"), name
        for model in (name, f"/{name}", "/etc/passwd", "en-de/../en-de"):
            answer = tight.translate("a", model=model)
            assert answer.status_code == 404
    assert tight.translate("a", model="en-de").status_code == 200, "the control"


@pytest.mark.slow  # the inspector takes some seconds
def test_36_markup_is_inert(tight: RunningService) -> None:
    script = "<script>alert(1)</script>"
    answer = tight.translate(f"Say {script} now.", alignment=True)
    assert answer.headers["content-type"] == "application/json"
    assert script in answer.json()["translations"][0]["source"]
    page = tight.post("/v1/inspect", {"text": f"{script} <img src=x onerror=alert(1)>"})
    assert page.status_code == 200
    assert script not in page.text
    assert "<img src=x" not in page.text
    refused = tight.translate("a", model=script)
    for each in (answer, page, refused, tight.client.get("/"), tight.client.get("/health"), tight.client.get("/none")):
        policy = each.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert each.headers["x-content-type-options"] == "nosniff"


def test_36_other_origins_are_refused_unless_allowed(tight: RunningService, wide: RunningService) -> None:
    assert tight.host == "127.0.0.1"
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for service, expected in ((tight, None), (wide, "https://a.example")):
        answer = service.client.get("/health", headers={"origin": "https://a.example"})
        assert answer.headers.get("access-control-allow-origin") == expected
        asked = service.client.options("/translate", headers=preflight)
        assert (asked.status_code, asked.headers.get("access-control-allow-origin")) == (
            200 if expected else 405,
            expected,
        )
    other = wide.client.get("/health", headers={"origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
