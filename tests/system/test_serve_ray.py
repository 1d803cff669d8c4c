"""The service on Ray Serve: `serve run` with deploy/ray_serve.yaml, on a Ray of this machine.

The tests share one Ray, which the last of them stops.
"""

import asyncio
import json
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import dragoman
from dragoman.bundle import resolve_model
from dragoman.decode.translator import Translator
from dragoman.errors import ConfigError
from tests.serving import LINES, PATIENCE, new_client, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of ray.serve, when it is imported
]

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy/ray_serve.yaml"
LIMIT = 4 * PATIENCE  # for what Ray does in several steps
HOUSE = "The house is old."
SERVE_RUN = """
import signal
import sys

import ray
from ray.serve.scripts import cli

ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, namespace="serve")
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if the tests run in the background
cli(["run", sys.argv[1]])
"""
SETTINGS = """
max_characters = 2_000
max_body = 50_000
watch_seconds = 0.2
[[models]]
model = "{model}"
"""


def descendants(process: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return
    for child in children:
        yield child
        yield from descendants(child)


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class OnRay:
    """`serve run` in a process of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self._log = folder, folder / "log"
        (folder / "serve.toml").write_text(SETTINGS.format(model=model))
        port, config = free_port(), CONFIG.read_text()
        for old, new in (("port: 8000", f"port: {port}"), ('settings: ""', f'settings: "{folder / "serve.toml"}"')):
            assert config.count(old) == 1
            config = config.replace(old, new)
        (folder / "serve.yaml").write_text(config)
        environment = {
            **os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_TMPDIR": "/tmp",
            "TMPDIR": str(folder),
        }  # fmt: skip
        with self._log.open("wb") as log:
            command = [sys.executable, "-c", SERVE_RUN, str(folder / "serve.yaml")]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.client = new_client(f"http://127.0.0.1:{port}")

    def start(self) -> None:
        wait_until(lambda: self.process.poll() is not None or self._answers(), LIMIT)
        assert self.process.poll() is None, self.log
        wait_until(lambda: len(self.workers) == 2)

    def _answers(self) -> bool:
        try:
            return self.client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def requests(self) -> list[tuple[int, dict[str, Any]]]:
        """From the log of each replica: its process, and a request that it answered."""
        found = re.findall(r"\(ServeReplica:dragoman:dragoman pid=(\d+)\)\S* (\{.*\})", self.log)
        return [(int(process), json.loads(line)) for process, line in found if '"request"' in line]

    def replicas_that_answered(self, route: str, status: int = 200) -> set[int]:
        return {process for process, line in self.requests if (line["route"], line["status"]) == (route, status)}

    @property
    def workers(self) -> dict[int, int]:
        """The worker of each replica."""
        replicas = [each for each in descendants(self.process.pid) if "ray::ServeReplica" in command_of(each)]
        return {
            replica: worker
            for replica in replicas
            for worker in descendants(replica)
            if "dragoman.serve.worker" in command_of(worker)
        }

    def translate(self, text: str) -> httpx.Response:
        return self.client.post("/translate", json={"q": text, "source": "en", "target": "de"})

    def insist(self, text: str) -> tuple[str, int]:
        """Translate as a client does that tries again when it is told to; also how often it was refused."""
        refused, end = 0, time.monotonic() + PATIENCE
        while (answer := self.translate(text)).status_code in (500, 503):
            assert "restarted" in answer.json()["error"]
            assert answer.headers["retry-after"] == "1"
            assert time.monotonic() < end, answer.text
            refused += 1
            time.sleep(0.2)
        assert answer.status_code == 200, answer.text
        return answer.json()["translatedText"], refused

    def stop(self) -> int:
        """As Ctrl-C does."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(LIMIT)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A link to a model, which can be set to another one at once."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(resolve_model("en-de"), folder / "good")
    (folder / "house").symlink_to(folder / "good")
    return folder / "house"


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[OnRay]:
    running = OnRay(tmp_path_factory.mktemp("ray"), model)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def translator() -> Translator:
    return dragoman.load("en-de", "cpu")


def test_replicas_answer_as_the_library_does(ray: OnRay, translator: Translator) -> None:
    texts = LINES[:20]
    expected = [each.text for each in translator.translate(texts)]
    by_list = ray.client.post("/translate", json={"q": texts, "source": "en", "target": "de"})
    assert by_list.json() == {"translatedText": expected}
    for text, translation in zip(texts, expected, strict=True):
        by_form = ray.client.post("/translate", data={"q": text, "source": "en", "target": "de"})
        assert by_form.json() == {"translatedText": translation}
        by_v1 = ray.client.post("/v1/translate", json={"text": text})
        assert by_v1.json()["translations"][0]["translation"] == translation
    assert expected[0] != expected[1], "the control"
    assert len(ray.workers) == 2
    wait_until(lambda: ray.insist(HOUSE) and ray.replicas_that_answered("/translate") == ray.workers.keys())
    assert texts[0][:20] not in ray.log, "texts are not logged"


def test_streams_arrive_in_parts(ray: OnRay, translator: Translator) -> None:
    text = f"{HOUSE} I have two cats and a dog. They sleep all day."
    with ray.client.stream("POST", "/v1/translate", json={"text": text, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = list(answer.iter_text())
    events = [event.split("\n", 1) for event in "".join(pieces).split("\n\n") if event]
    kinds = [kind.removeprefix("event: ") for kind, _ in events]
    values = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert kinds == ["part"] * (len(kinds) - 1) + ["result"]
    assert len(kinds) > 2
    (expected,) = translator.translate([text])
    assert "".join(values[:-1]) == values[-1]["translations"][0]["translation"] == expected.text
    assert len(pieces) > 1, "not all at once"


def test_other_routes_answer(ray: OnRay) -> None:
    assert [each["code"] for each in ray.client.get("/languages").json()] == ["de", "en"]
    assert ray.client.post("/detect", json={"q": HOUSE}).json()[0]["language"] == "en"
    assert [each["name"] for each in ray.client.get("/v1/models").json()] == ["house"]
    assert ray.client.get("/health").json() == {"status": "ok"}
    assert "dragoman_requests_total" in ray.client.get("/metrics").text
    page = ray.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "sha256-" in page.headers["content-security-policy"]
    scripts = re.findall(r'src="(/?web/[^"]+)"', page.text)
    assert scripts
    assert {ray.client.get(f"/{name.lstrip('/')}").status_code for name in scripts} == {200}


def test_errors_keep_their_status_and_their_body(ray: OnRay) -> None:
    def asked(**more: Any) -> httpx.Response:
        return ray.client.post("/translate", json={"q": HOUSE, "source": "en", "target": "de", **more})

    of_json = {"Content-Type": "application/json"}
    cases = [
        (asked(target="xx"), 400, "xx is not supported"),
        (asked(q="a" * 2_001), 400, "q: has 2,001 characters, at most 2,000 are possible; send less"),
        (asked(q="a" * 60_000), 413, "the body has 60,036 bytes, at most 50,000 are accepted; send less"),
        (ray.client.post("/v1/translate", content=b"{", headers=of_json), 400, "the body: is not valid JSON"),
        (ray.client.post("/v1/translate", json={"text": LINES[30] * 20, "seconds": 0.001}), 504, "the deadline passed"),
        (ray.client.get("/nothing"), 404, "Not Found"),
        (ray.client.get("/translate"), 405, "Method Not Allowed"),
    ]
    for answer, status, message in cases:
        assert answer.status_code == status, answer.text
        assert answer.json().keys() == {"error"}
        assert answer.json()["error"].startswith(message)
    assert asked().status_code == 200, "the control"


def test_a_translated_file_can_be_downloaded_from_every_replica(ray: OnRay) -> None:
    upload = {"file": ("a.txt", f"{HOUSE}\n".encode(), "text/plain")}
    answer = ray.client.post("/translate_file", files=upload, data={"source": "en", "target": "de"})
    assert answer.status_code == 200, answer.text
    address = answer.json()["translatedFileUrl"]

    def both_have_sent_it() -> bool:
        found = ray.client.get(address)
        assert (found.status_code, found.text) == (200, "Das Haus ist alt.\n")
        return ray.replicas_that_answered("/download_file/{name}") == ray.workers.keys()

    wait_until(both_have_sent_it)
    other = address.replace(".de.txt", ".de.odt")
    assert {ray.client.get(other).status_code for _ in range(8)} == {404}, "no other file is sent"


def test_nothing_is_lost_when_a_worker_is_killed(ray: OnRay, translator: Translator) -> None:
    texts = LINES[40:100]
    expected = [each.text for each in translator.translate(texts)]
    before, begun = ray.workers, threading.Semaphore(0)

    def ask(text: str) -> tuple[str, int]:
        begun.release()
        return ray.insist(text)

    killed = min(before)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, text) for text in texts]
        for _ in range(8):
            begun.acquire()
        os.kill(before[killed], signal.SIGKILL)
        found = [answer.result() for answer in answers]
    assert [translation for translation, _ in found] == expected
    assert sum(refused for _, refused in found) > 0, "the control: requests reached the replica without a worker"
    wait_until(lambda: ray.workers.keys() == before.keys() and ray.workers[killed] != before[killed], LIMIT)
    assert {replica for replica in before if ray.workers[replica] == before[replica]} == before.keys() - {killed}


def test_a_replica_whose_worker_cannot_be_restarted_is_replaced(ray: OnRay, model: Path, tmp_path: Path) -> None:
    def point_to(target: Path) -> None:
        (tmp_path / "link").symlink_to(target)
        (tmp_path / "link").rename(model)

    before = ray.workers
    broken, sound = sorted(before)
    try:
        point_to(tmp_path)  # where there is no model
        os.kill(before[broken], signal.SIGKILL)
        wait_until(lambda: not is_running(broken), LIMIT)
        assert ray.insist(HOUSE)[0] == "Das Haus ist alt.", "the other one goes on"
        assert ray.workers.get(sound) == before[sound]
    finally:
        point_to(model.parent / "good")
    wait_until(lambda: len(ray.workers) == 2, LIMIT)
    (new,) = ray.workers.keys() - {sound}
    wait_until(lambda: ray.insist(HOUSE)[0] and new in ray.replicas_that_answered("/translate"), LIMIT)


def test_nothing_is_left_behind(ray: OnRay) -> None:
    processes = [ray.process.pid, *descendants(ray.process.pid)]
    assert sum("dragoman.serve.worker" in command_of(each) for each in processes) == 2
    assert ray.stop() == 0, ray.log
    wait_until(lambda: not any(map(is_running, processes)))
    assert list(ray.folder.glob("dragoman-*")) == []


def test_arguments_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.serve.on_ray import Arguments, application

    monkeypatch.chdir(tmp_path)
    for arguments in ({"replicas": 0}, {"cpus": 0}, {"gpus": -1}, {"setings": "a"}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Arguments.model_validate(arguments)
    with pytest.raises(ConfigError) as missing:
        application(Arguments(settings="none.toml"))
    assert str(missing.value) == "none.toml: cannot be read (No such file or directory); give another file"
    Path("serve.toml").write_text('que = 3\n[[models]]\nmodel = "en-de"\n')
    with pytest.raises(ConfigError, match=r"serve\.toml: que: unknown setting; did you mean"):
        application(Arguments(settings="serve.toml"))


def test_replicas_have_the_settings_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.serve.on_ray import Arguments, application

    monkeypatch.chdir(tmp_path)
    shutil.copytree(resolve_model("en-de"), "mine")
    Path("en-de").mkdir()  # only has the name of a bundled model
    models = '[[models]]\nmodel = "mine"\nthreads = 3\n[[models]]\nmodel = "en-de"\n'
    Path("serve.toml").write_text(f'queue = 7\ndrain_seconds = 5\nsuggestions = "s.jsonl"\n{models}')
    deployment: Any = application(Arguments(settings="serve.toml", replicas=3, cpus=2))._bound_deployment
    settings, found, keys = deployment.init_args
    assert [(each.model, each.threads) for each in found] == [(str(tmp_path / "mine"), 3), ("en-de", 2)]
    assert (settings.queue, settings.suggestions, list(keys)) == (7, str(tmp_path / "s.jsonl"), [])
    assert (deployment.num_replicas, deployment.max_ongoing_requests, deployment.max_queued_requests) == (3, 14, 7)
    assert deployment.ray_actor_options["num_cpus"] == 2
    assert deployment._deployment_config.graceful_shutdown_timeout_s > settings.drain_seconds


def test_a_worker_that_is_loading_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.serve import on_ray

    worker = SimpleNamespace(failure="", is_ready=False, settings=SimpleNamespace(name="house"))
    replica = object.__new__(on_ray.Replica)
    service: Any = SimpleNamespace(is_ready=True, workers=[worker], stop=lambda: None)
    replica.service, replica._last_ready = service, math.inf

    def check() -> None:
        asyncio.run(replica.check_health())

    check()
    service.is_ready = False
    check()
    worker.failure = "no config.toml"
    with pytest.raises(RuntimeError, match=r"^house: the worker does not start \(no config.toml\)$"):
        check()
    worker.is_ready = True  # another process was started since
    check()
    worker.failure = ""
    check()
    monkeypatch.setattr(on_ray, "LOADING_SECONDS", -1.0)
    with pytest.raises(RuntimeError, match=r"^no worker for"):
        check()
    service.is_ready = True
    monkeypatch.setattr(on_ray, "LOADING_SECONDS", 600.0)
    check()


def test_names_of_files_are_recognized() -> None:
    from dragoman.serve.on_ray import DOWNLOAD

    for _ in range(100):
        assert DOWNLOAD.fullmatch(f"/download_file/{secrets.token_urlsafe(16)}.zh-hans.docx")
    for other in ("", "..", f"{'a' * 22}", f"{'a' * 22}./x", f"{'a' * 22}.{'b' * 100}", f"{'a' * 23}.de.txt"):
        assert not DOWNLOAD.fullmatch(f"/download_file/{other}")
