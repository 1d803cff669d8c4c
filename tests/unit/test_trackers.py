"""Trackers: what TensorBoard, Weights & Biases and MLflow receive, and that nothing is sent twice.

Weights & Biases and MLflow are small fakes with the signatures of the real ones; if these are installed, they are
compared with the fakes and used offline.
"""

import inspect
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dragoman.config import Config
from dragoman.errors import ConfigError
from dragoman.training.reports.log import RunLog, Tracker
from dragoman.training.reports.trackers import MLFLOW_DEFAULTS, open_trackers, scalars

CONFIG = Config.build("tiny")
ENVIRONMENT = (
    "WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_NAME",
    "WANDB_DIR", "WANDB_ERROR_REPORTING", "NETRC", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_EXPERIMENT_ID", *MLFLOW_DEFAULTS,
)  # fmt: skip


@pytest.fixture(autouse=True)
def plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without tracker variables, restored after the test."""
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def step(number: int, loss: float | None = None) -> dict[str, Any]:
    return {"kind": "step", "step": number, "loss": loss or 1 / number, "epoch": 0, "sample": {"source": "a"}}


def train(names: Sequence[str], run: Path, steps: Sequence[int], resume: int, loss: float | None = None) -> None:
    """A run from `resume` on that logs `steps`."""
    run.mkdir(exist_ok=True)
    log = RunLog(run, resume, open_trackers(names, run, CONFIG, resume))
    for number in steps:
        log.write(step(number, loss))
    log.close()


def test_only_finite_numbers_are_scalars_named_by_kind() -> None:
    record = {
        "kind": "valid",
        "step": 3,
        "loss": 1.5,
        "count": 2,
        "best": True,
        "sample": {},
        "text": "x",
        "off": 1e999,
    }
    assert scalars(record) == {"valid/loss": 1.5, "valid/count": 2}


# TensorBoard


def tensorboard_points(run: Path, name: str) -> list[tuple[int, float]]:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [(event.step, round(event.value, 3)) for event in events.Scalars(name)]


@pytest.mark.parametrize("resume", [0, 5])
def test_tensorboard_holds_every_step_once(tmp_path: Path, resume: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files of the same second are read in the order of a number in their names, as text: 10 would come before 9.
    writing = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    monkeypatch.setattr(writing, "_global_uid", writing.AtomicCounter(100))
    train(["tensorboard"], tmp_path, range(1, 9), 0)  # killed at 8, its last checkpoint at `resume`
    train(["tensorboard"], tmp_path, range(resume + 1, 11), resume, loss=7.0)
    expected = [(number, round(1 / number, 3) if number <= resume else 7.0) for number in range(1, 11)]
    assert tensorboard_points(tmp_path, "step/loss") == expected
    assert not (tmp_path / "trackers.json").exists()


def test_missing_tensorboard_is_silently_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert open_trackers(["tensorboard"], tmp_path, CONFIG, 0) == []
    assert list(tmp_path.iterdir()) == []


# What may go wrong


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_tracker_package_is_an_error_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=rf"^train.trackers: {name} is not installed .*pip install 'dragoman\[{name}\]'"
    ):
        open_trackers([name], tmp_path, CONFIG, 0)


def test_unknown_tracker_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^train.trackers: 'tensorbord' is not a tracker; did you mean tensorboard\?"
    ):
        open_trackers(["tensorbord"], tmp_path, CONFIG, 0)


def test_damaged_list_of_runs_is_reported(tmp_path: Path, wandb: "FakeWandb") -> None:
    (tmp_path / "trackers.json").write_text("[")
    with pytest.raises(ConfigError, match=r"trackers\.json: not a JSON object; remove it"):
        open_trackers(["wandb"], tmp_path, CONFIG, 0)


def test_a_tracker_that_does_not_start_is_an_error_and_the_others_are_closed(
    tmp_path: Path, wandb: "FakeWandb", mlflow: "FakeMLflow"
) -> None:
    mlflow.down = True
    with pytest.raises(ConfigError, match=r"^train.trackers: mlflow did not start \(no route to server\); fix"):
        open_trackers(["wandb", "mlflow"], tmp_path, CONFIG, 0)
    assert [run.finished for run in wandb.runs] == [True]


def test_failing_tracker_is_reported_once_and_training_continues(tmp_path: Path, mlflow: "FakeMLflow") -> None:
    notes: list[str] = []
    log = RunLog(tmp_path, 0, open_trackers(["mlflow"], tmp_path, CONFIG, 0, notes.append))
    log.write(step(1))
    mlflow.down = True
    log.write(step(2))
    log.write(step(3))
    log.close()
    assert notes == ["mlflow: no route to server; it gets no further numbers; log.jsonl has them all"]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3


# Weights & Biases


@dataclass
class FakeRun:
    id: str
    offline: bool
    starting_step: int  # 0 offline: nobody knows
    told: dict[str, Any]
    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    finished: bool = False

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert step is not None
        assert step >= max([self.starting_step, *(row for row, _ in self.rows)]), "steps in order only"
        self.rows.append((step, data))

    def finish(self, exit_code: int | None = None) -> None:
        self.finished = True


class FakeWandb(ModuleType):
    """wandb 0.31: runs, and a server that knows the last step of those sent to it."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeRun] = []

    class Settings:
        def __init__(self, *, console: str, silent: bool, disable_git: bool, save_code: bool) -> None:
            self.console = console

    def init(
        self,
        *,
        project: str | None = None,
        dir: str | None = None,
        id: str | None = None,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        allow_val_change: bool | None = None,
        mode: str | None = None,
        reinit: str | None = None,
        resume: str | None = None,
        settings: Settings | None = None,
    ) -> FakeRun:
        told = {"project": project, "dir": dir, "name": name, "config": config, "mode": mode, "resume": resume}
        offline = (mode or os.environ.get("WANDB_MODE", "online")) == "offline"
        before = [row for run in self.runs if run.id == id and not run.offline for row, _ in run.rows]
        first = 0 if offline else max(before, default=-1) + 1
        self.runs.append(FakeRun(id or f"new{len(self.runs)}", offline, first, told))
        return self.runs[-1]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.mark.parametrize("mode", ["offline", "online"])
@pytest.mark.parametrize("resume", [0, 5])
def test_resumed_wandb_run_is_one_run_with_every_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: FakeWandb, mode: str, resume: int
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    train(["wandb"], tmp_path, range(1, 9), 0)
    train(["wandb"], tmp_path, range(resume + 1, 11), resume)
    first, second = wandb.runs
    assert (first.id, first.told["resume"], second.told["resume"]) == (second.id, None, "allow")
    assert [number for run in wandb.runs for number, _ in run.rows] == list(range(1, 11))
    assert first.rows[1] == (2, {"step/loss": 0.5, "step/epoch": 0})
    assert json.loads((tmp_path / "trackers.json").read_bytes()) == {"wandb": first.id}
    assert first.finished
    assert second.finished


def test_validation_interrupted_by_a_kill_is_logged_on_resume(tmp_path: Path, wandb: FakeWandb) -> None:
    train(["wandb"], tmp_path, range(1, 6), 0)
    log = RunLog(tmp_path, 5, open_trackers(["wandb"], tmp_path, CONFIG, 5))
    log.write({"kind": "valid", "step": 5, "loss": 2.0})
    log.write(step(6))
    log.close()
    told = [(number, *data) for number, data in wandb.runs[1].rows]
    assert told == [(5, "valid/loss"), (6, "step/loss", "step/epoch")]


def test_wandb_gets_the_settings_and_writes_to_the_run_directory(tmp_path: Path, wandb: FakeWandb) -> None:
    train(["wandb"], tmp_path / "en-de", [1], 0)
    told = wandb.runs[0].told
    assert (told["project"], told["name"], told["dir"]) == ("dragoman", "en-de", str(tmp_path / "en-de"))
    assert told["config"]["train"]["max_steps"] == CONFIG.train.max_steps
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


@pytest.mark.parametrize(
    ("environment", "entry", "mode"),
    [
        ({}, "", "offline"),
        ({}, "machine elsewhere.org login user password key", "offline"),
        ({}, "not a netrc", "offline"),
        ({"WANDB_BASE_URL": "https://own.org"}, "machine api.wandb.ai login user password key", "offline"),
        ({}, "machine api.wandb.ai login user password key", None),
        ({"WANDB_BASE_URL": "https://own.org"}, "machine own.org login user password key", None),
        ({"WANDB_API_KEY": "key"}, "", None),
        ({"WANDB_MODE": "disabled"}, "", None),
    ],
)
def test_wandb_is_offline_unless_the_environment_has_a_key_or_a_mode(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wandb: FakeWandb,
    environment: Mapping[str, str],
    entry: str,
    mode: str | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if entry:
        (tmp_path / "netrc").write_text(entry)
        (tmp_path / "netrc").chmod(0o600)
    train(["wandb"], tmp_path / "run", [1], 0)
    assert wandb.runs[0].told["mode"] == mode  # None: wandb decides by the user's own settings


# MLflow


@dataclass(frozen=True)
class FakeMetric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class FakeParam:
    key: str
    value: str


class FakeMlflowException(Exception):
    def __init__(self, message: str, error_code: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass
class FakeStored:
    name: str
    status: str = "RUNNING"
    lifecycle_stage: str = "active"
    metrics: list[FakeMetric] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)


class FakeMLflow(ModuleType):
    """mlflow 3.17: stores by their address, runs by their id."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.down = False
        self.stores: dict[str, dict[str, FakeStored]] = {}
        self.experiments: dict[str, str | None] = {}
        self.entities = ModuleType("mlflow.entities")
        self.entities.__dict__.update(Metric=FakeMetric, Param=FakeParam)
        self.exceptions = ModuleType("mlflow.exceptions")
        self.exceptions.__dict__.update(MlflowException=FakeMlflowException)

    def MlflowClient(self, tracking_uri: str | None = None) -> "FakeClient":
        address = tracking_uri or os.environ["MLFLOW_TRACKING_URI"]
        return FakeClient(self, self.stores.setdefault(address, {}))


class FakeClient:
    def __init__(self, server: FakeMLflow, store: dict[str, FakeStored]) -> None:
        self._server, self._store = server, store

    def _find(self, run_id: str) -> FakeStored:
        if self._server.down:
            raise FakeMlflowException("no route to server\nTraceback", "INTERNAL_ERROR")
        if run_id not in self._store:
            raise FakeMlflowException(f"Run with id={run_id} not found", "RESOURCE_DOES_NOT_EXIST")
        return self._store[run_id]

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        if self._server.down:
            raise FakeMlflowException("no route to server", "INTERNAL_ERROR")
        return SimpleNamespace(experiment_id=f"id of {name}") if name in self._server.experiments else None

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        self._server.experiments[name] = artifact_location
        return f"id of {name}"

    def create_run(self, experiment_id: str, run_name: str | None = None) -> SimpleNamespace:
        assert experiment_id in {f"id of {name}" for name in self._server.experiments}
        self._store[f"run{len(self._store)}"] = FakeStored(str(run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=list(self._store)[-1]))

    def get_run(self, run_id: str) -> SimpleNamespace:
        run = self._find(run_id)
        latest = {metric.key: metric.value for metric in run.metrics}
        info = SimpleNamespace(run_id=run_id, lifecycle_stage=run.lifecycle_stage)
        return SimpleNamespace(info=info, data=SimpleNamespace(metrics=latest))

    def get_metric_history(self, run_id: str, key: str) -> list[FakeMetric]:
        return [metric for metric in self._find(run_id).metrics if metric.key == key]

    def log_batch(self, run_id: str, metrics: Sequence[FakeMetric] = (), params: Sequence[FakeParam] = ()) -> None:
        run = self._find(run_id)
        run.metrics += metrics
        for param in params:
            assert run.params.setdefault(param.key, param.value) == param.value, "params cannot change"

    def update_run(self, run_id: str, status: str | None = None) -> None:
        self._find(run_id).status = str(status)

    def set_terminated(self, run_id: str, status: str | None = None) -> None:
        self._find(run_id).status = status or "FINISHED"


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMLflow]:
    fake = FakeMLflow()
    for name, module in (("", fake), (".entities", fake.entities), (".exceptions", fake.exceptions)):
        monkeypatch.setitem(sys.modules, f"mlflow{name}", module)
    yield fake
    statuses = {run.status for store in fake.stores.values() for run in store.values()}
    assert fake.down or statuses <= {"FINISHED"}


@pytest.mark.parametrize("resume", [0, 5])
def test_mlflow_has_one_run_with_every_step_once(tmp_path: Path, mlflow: FakeMLflow, resume: int) -> None:
    run_directory = tmp_path / "50% ?"
    train(["mlflow"], run_directory, range(1, 9), 0)
    train(["mlflow"], run_directory, range(resume + 1, 11), resume)
    ((address, runs),) = mlflow.stores.items()
    assert address == f"sqlite:///{tmp_path}/50%25 %3F/mlflow/mlflow.db"
    assert mlflow.experiments == {"dragoman": (run_directory / "mlflow" / "artifacts").as_uri()}
    ((identifier, run),) = runs.items()
    assert [metric.step for metric in run.metrics if metric.key == "step/loss"] == list(range(1, 11))
    assert run.params["train.max_steps"] == str(CONFIG.train.max_steps)
    assert run.name == "50% ?"
    assert json.loads((run_directory / "trackers.json").read_bytes()) == {"mlflow": identifier}
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_each_mlflow_server_of_the_environment_gets_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow: FakeMLflow
) -> None:
    for server in ("https://one", "https://two"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
        mlflow.stores[server] = {"already there": FakeStored("other", "FINISHED")} if server == "https://two" else {}
        train(["mlflow"], tmp_path, [1], 0)
    assert {server: len(runs) for server, runs in mlflow.stores.items()} == {"https://one": 1, "https://two": 2}
    assert not (tmp_path / "mlflow").exists()


def test_deleted_mlflow_run_is_replaced_by_a_new_one(tmp_path: Path, mlflow: FakeMLflow) -> None:
    train(["mlflow"], tmp_path, [1], 0)
    (runs,) = mlflow.stores.values()
    runs["run0"].lifecycle_stage = "deleted"
    train(["mlflow"], tmp_path, [2], 1)
    assert [len(run.metrics) for run in runs.values()] == [2, 2]
    assert json.loads((tmp_path / "trackers.json").read_bytes()) == {"mlflow": "run1"}


# The real ones, where they are installed


def names_of(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


@pytest.mark.filterwarnings("ignore")
def test_fakes_have_the_signatures_of_the_real_packages() -> None:
    wandb, mlflow = pytest.importorskip("wandb"), pytest.importorskip("mlflow")
    from mlflow.entities import Metric, Param

    assert names_of(FakeWandb.init) <= names_of(wandb.init)
    assert names_of(FakeWandb.Settings) <= set(wandb.Settings.model_fields)
    real = wandb.sdk.wandb_run.Run
    assert names_of(FakeRun.log) == names_of(real.log)
    assert all(hasattr(real, name) for name in ("id", "offline", "starting_step", "finish"))
    calls = {name for name in vars(FakeClient) if not name.startswith("_")}
    for name in calls:
        assert names_of(getattr(FakeClient, name)) <= names_of(getattr(mlflow.MlflowClient, name)), name
    assert list(inspect.signature(Metric).parameters)[:4] == list(inspect.signature(FakeMetric).parameters)
    assert list(inspect.signature(Param).parameters) == list(inspect.signature(FakeParam).parameters)


@pytest.mark.filterwarnings("ignore")
def test_real_mlflow_has_one_run_with_every_step_once(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    run = tmp_path / "a run"
    train(["mlflow"], run, range(1, 9), 0)
    train(["mlflow"], run, range(6, 11), 5)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run}/mlflow/mlflow.db")
    identifier = json.loads((run / "trackers.json").read_bytes())["mlflow"]
    points = client.get_metric_history(identifier, "step/loss")
    assert sorted((point.step, point.value) for point in points) == [(number, 1 / number) for number in range(1, 11)]
    stored = client.get_run(identifier)
    assert (stored.info.status, stored.info.run_name) == ("FINISHED", "a run")
    assert stored.data.params["train.max_steps"] == str(CONFIG.train.max_steps)


@pytest.mark.filterwarnings("ignore")
def test_real_wandb_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(["wandb"], tmp_path, range(1, 9), 0)
    time.sleep(1.1)  # its directories are named by the second they began
    train(["wandb"], tmp_path, range(6, 11), 5)
    identifier = json.loads((tmp_path / "trackers.json").read_bytes())["wandb"]
    kept = list((tmp_path / "wandb").glob(f"offline-run-*-{identifier}/run-{identifier}.wandb"))
    assert len(kept) == 2
    deadline = time.monotonic() + 20  # another process writes them
    while time.monotonic() < deadline and not all(path.stat().st_size > 500 for path in kept):
        time.sleep(0.1)
    assert all(path.stat().st_size > 500 for path in kept)


def test_a_tracker_is_any_object_with_write_and_close(tmp_path: Path) -> None:
    class Remembers:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def write(self, record: Mapping[str, Any]) -> None:
            self.seen.append(record["step"])

        def close(self) -> None:
            self.seen.append("closed")

    mine = Remembers()
    trackers: list[Tracker] = [mine]
    log = RunLog(tmp_path, 0, trackers)
    log.write(step(4))
    log.close()
    assert mine.seen == [4, "closed"]
