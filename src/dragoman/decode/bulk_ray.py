"""Bulk translation on a cluster: a pool of Ray actors, each with a loaded model, and one task per shard.

Ray restarts an actor that was killed and repeats its task. A task writes its shard aside and renames it, so repeating
one changes nothing. Input, output and model must be on a file system that every machine sees. Knows nothing of
manifests.
"""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dragoman import errors
from dragoman.decode.bulk import Entry, Job, ShardTranslator, largest_first
from dragoman.errors import ConfigError, DragomanError
from dragoman.progress import Advance

LONGEST_JOIN = 10.0  # seconds


@contextmanager
def on_ray(job: Job, workers: int | None, address: str | None) -> Iterator["_Cluster"]:
    """Connect to a cluster, or start one on this machine for as long as the block lasts."""
    ray = _import_ray()
    address = address or os.environ.get("RAY_ADDRESS")
    here = {"num_cpus": workers and workers * (job.threads or 1), "include_dashboard": False}
    try:
        with _quiet(), _own_signals():
            ray.init(address, log_to_driver=False, logging_level="ERROR", **({} if address else here))
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"--ray-address {address}: no cluster there ({error}); start one with `ray start`") from None
    try:
        yield _Cluster(ray, _located(job), workers)
    finally:
        ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # a restarted worker is no error of ours
    try:
        import ray.data
    except ImportError:
        raise ConfigError('--engine ray: needs ray; pip install "dragoman[ray]"') from None
    for name in ("ray.data", "ray.data._internal"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return ray


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard what native code prints to stderr."""
    with Path(os.devnull).open("wb") as nothing:
        kept = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore how this process handles SIGTERM: Ray would abort it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _located(job: Job) -> Job:
    """The same job for a process with another working directory."""
    model = Path(job.model)
    return replace(
        job,
        input=job.input.resolve(),
        output=job.output.resolve(),
        model=str(model.resolve()) if model.is_dir() else job.model,
        glossary=None if job.glossary is None else job.glossary.resolve(),
    )


class _Cluster:
    def __init__(self, ray: Any, job: Job, workers: int | None) -> None:
        self._ray = ray
        total = ray.cluster_resources()
        gpus = 0 if job.device == "cpu" else int(total.get("GPU", 0))
        cpus = job.threads or 1
        if job.device.startswith("cuda") and not gpus:
            raise ConfigError(f"--device {job.device}: the cluster has no GPUs; use auto or cpu")
        self._resources = {"num_cpus": cpus, "num_gpus": 1 if gpus else 0}
        nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        fit = gpus or sum(int(cores) // cpus for cores in nodes)  # a worker runs on one of them
        if max(nodes, default=0) < cpus:
            raise ConfigError(f"--threads {cpus}: no machine of the cluster has so many cores; give fewer")
        self._workers = workers or fit
        # a worker sees only its own GPU
        self._job = replace(job, device="cuda" if gpus else "cpu", threads=cpus)
        self.made_from: Mapping[str, Any] = self._describe()

    def _describe(self) -> dict[str, Any]:
        """Have a worker load the model: this machine may have no GPU."""
        task = self._ray.remote(**self._resources)(_describe)
        answer = json.loads(self._ray.get(task.remote(self._job)))
        _raise_if_error(answer)
        return dict(answer["made_from"])

    def translate(self, names: Sequence[str], advance: Advance) -> Iterator[Entry]:
        if not names:
            return
        data = self._ray.data
        data.DataContext.get_current().enable_progress_bars = False
        shards = data.from_items(
            [{"name": name} for name in largest_first(names, self._job.input)], override_num_blocks=len(names)
        )
        entries = shards.map(
            _Actor,
            fn_constructor_args=(self._job, json.dumps(self.made_from)),
            compute=data.ActorPoolStrategy(size=min(self._workers, len(names))),
            **self._resources,
        )
        before, rows = {*threading.enumerate()}, iter(entries.iter_rows())
        try:
            for row in rows:
                answer = json.loads(row["answer"])
                _raise_if_error(answer)
                entry = Entry(**answer["entry"])
                advance(entry.records)
                yield entry
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise DragomanError(f"--engine ray: the cluster failed ({reason})") from None
        finally:
            rows.close()
            _join({*threading.enumerate()} - before)


def _join(threads: Iterable[threading.Thread]) -> None:
    """Wait for what Ray started to read rows: if one is left when the cluster stops, Ray ends this process."""
    end = time.monotonic() + LONGEST_JOIN
    for thread in threads:
        if thread.name != "Prefetcher":  # it only waits, and does so to the end
            thread.join(max(0.0, end - time.monotonic()))


def _raise_if_error(answer: Mapping[str, Any]) -> None:
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"])


# On a worker. What is sent back is JSON; an error of ours is an answer, so that Ray does not repeat the task.


def _describe(job: Job) -> str:
    try:
        return json.dumps({"made_from": ShardTranslator(job).made_from})
    except DragomanError as error:
        return json.dumps({"error": type(error).__name__, "message": str(error)})


class _Actor:
    """Loads the model once and translates one shard per call."""

    def __init__(self, job: Job, made_from: str) -> None:
        self._error: DragomanError | None = None
        try:
            self._translator = ShardTranslator(job)
            differing = [k for k, v in json.loads(made_from).items() if self._translator.made_from.get(k) != v]
            if differing:
                raise ConfigError(
                    f"--engine ray: {os.uname().nodename} has another {', '.join(differing)}; use equal machines"
                )
        except DragomanError as error:
            self._error = error

    def __call__(self, row: dict[str, Any]) -> dict[str, str]:
        try:
            if self._error is not None:
                raise self._error
            return {"answer": json.dumps({"entry": asdict(self._translator.translate(str(row["name"])))})}
        except DragomanError as error:
            return {"answer": json.dumps({"error": type(error).__name__, "message": str(error)})}
