"""Where a run's numbers go besides its log: TensorBoard, Weights & Biases, MLflow, each an optional install.

Nothing leaves the machine unless the user's own environment says so: a key for Weights & Biases, a server for MLflow.
"""

import json
import math
import netrc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from dragoman.config import Config
from dragoman.errors import ConfigError, suggestion
from dragoman.files import make_directory, write_file
from dragoman.training.reports.log import Tracker, read_log

IDS = "trackers.json"  # which run of each tracker this one is
PROJECT = "dragoman"  # where the environment names no other
MLFLOW_DEFAULTS = {  # where the environment says nothing; read at the import
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # the terminal is the reporter's
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # its own 7 would hold training up for minutes
}


def check_installed(names: Sequence[str]) -> None:
    """Whether every tracker that was asked for is there."""
    for name in names:
        if name != "tensorboard" and find_spec(name) is None:
            raise ConfigError(
                f"train.trackers: {name} is not installed; run pip install 'dragoman[{name}]', or leave it out"
            )


def open_trackers(
    names: Sequence[str], run: Path, config: Config, resume_step: int, note: Callable[[str], None] = lambda text: None
) -> list[Tracker]:
    """One tracker a name. TensorBoard is left out where it is not installed; the others are an error then.

    A run that goes on from `resume_step` goes on in the trackers' runs too; call this before RunLog cuts the log to
    that step. `note` hears of a tracker that fails later.
    """
    trackers: list[Tracker] = []
    try:
        for name in dict.fromkeys(names):
            if name not in _TRACKERS:
                raise ConfigError(f"train.trackers: {name!r} is not a tracker; {suggestion(name, _TRACKERS)}")
            tracker = _open(name, run, config, resume_step)
            if tracker is not None:
                trackers.append(_Tolerant(name, tracker, note))
    except BaseException:
        for tracker in trackers:
            tracker.close()
        raise
    return trackers


def _open(name: str, run: Path, config: Config, resume_step: int) -> Tracker | None:
    try:
        return _TRACKERS[name](run, config, resume_step)
    except ImportError as error:
        if name == "tensorboard":
            return None
        raise ConfigError(
            f"train.trackers: {name} is not installed ({error}); run pip install 'dragoman[{name}]', or leave it out"
        ) from None
    except ConfigError:
        raise
    except Exception as error:  # each tool has its own types for a refused key or a server that is not there
        raise ConfigError(
            f"train.trackers: {name} did not start ({_first_line(error)}); fix its settings, or leave it out"
        ) from None


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record under kind/name; its step is where they stand, not one of them."""
    return {
        f"{record['kind']}/{name}": value
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step" and math.isfinite(value)
    }


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class _Tolerant:
    """A tracker that may fail: it says so once and hears no more. A server must not end hours of training."""

    def __init__(self, name: str, tracker: Tracker, note: Callable[[str], None]) -> None:
        self._name, self._note = name, note
        self._tracker: Tracker | None = tracker

    def write(self, record: Mapping[str, Any]) -> None:
        if self._tracker is not None:
            try:
                self._tracker.write(record)
            except Exception as error:
                self._disable(error)

    def close(self) -> None:
        if self._tracker is not None:
            try:
                self._tracker.close()
            except Exception as error:
                self._disable(error)

    def _disable(self, error: Exception) -> None:
        self._tracker = None
        self._note(f"{self._name}: {_first_line(error)}; it gets no further numbers; log.jsonl has them all")


# Which run of a tracker continues


def _known_id(run: Path, name: str) -> str | None:
    return _ids(run).get(name)


def _remember_id(run: Path, name: str, identifier: str) -> None:
    ids = _ids(run)
    if ids.get(name) != identifier:
        write_file(run / IDS, json.dumps({**ids, name: identifier}, indent=1).encode())


def _ids(run: Path) -> dict[str, str]:
    path = run / IDS
    try:
        found = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not a JSON object; remove it, and the trackers begin new runs")
    return found


# The trackers


class _TensorBoard:
    def __init__(self, run: Path, config: Config, resume_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what came after the checkpoint will be written again
        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=resume_step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, run: Path, config: Config, resume_step: int) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at the import; else crashes go to its makers
        import wandb

        known = _known_id(run, "wandb")
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", run.resolve().name),
            dir=os.environ.get("WANDB_DIR", str(run)),
            id=known,
            resume="allow" if known else None,
            config=asdict(config),
            allow_val_change=True,  # a resumed run may have more steps or another rate
            mode=_wandb_mode(),
            reinit="create_new",  # the process may have a run of its own
            # the terminal, the program and its repository are none of its business
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        _remember_id(run, "wandb", self._run.id)
        # It takes steps in order only. Offline nobody can tell it where it stood, but what it had the log has too.
        self._first_step = int(self._run.starting_step)
        had = read_log(run) if known and self._run.offline else []
        self._written = {(record["kind"], record["step"]) for record in had}

    def write(self, record: Mapping[str, Any]) -> None:
        if record["step"] >= self._first_step and (record["kind"], record["step"]) not in self._written:
            self._run.log(scalars(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()


def _wandb_mode() -> str | None:
    """Offline where no key is set; else None, which leaves the choice to the user's settings."""
    environment = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
    return None if any(os.environ.get(name) for name in environment) or _has_netrc_key() else "offline"


def _has_netrc_key() -> bool:
    """Whether `wandb login` left a key."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    paths = [Path(os.environ["NETRC"])] if "NETRC" in os.environ else [Path.home() / ".netrc", Path.home() / "_netrc"]
    try:
        return any(netrc.netrc(path).authenticators(host) for path in paths if path.exists())
    except (netrc.NetrcParseError, OSError):
        return False


class _MLflow:
    def __init__(self, run: Path, config: Config, resume_step: int) -> None:
        for name, value in MLFLOW_DEFAULTS.items():
            os.environ.setdefault(name, value)
        mlflow = _import_mlflow()
        self._metric: Any = mlflow.entities.Metric
        self._client: Any = mlflow.MlflowClient(tracking_uri=_mlflow_store(run))
        known = _known_id(run, "mlflow")
        self._id = known if known and self._exists(known) else self._create(run, config)
        _remember_id(run, "mlflow", self._id)
        self._client.update_run(self._id, status="RUNNING")
        # a second number at the same step would stand beside the first
        self._written = {
            (name, point.step)
            for name in self._client.get_run(self._id).data.metrics
            for point in self._client.get_metric_history(self._id, name)
        }

    def _exists(self, identifier: str) -> bool:
        """Not on another server, nor once it was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            return bool(self._client.get_run(identifier).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def _create(self, run: Path, config: Config) -> str:
        from mlflow.entities import Param

        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID") or self._experiment(run)
        created = self._client.create_run(experiment, run_name=run.resolve().name)
        settings = [
            Param(f"{section}.{name}", str(value))
            for section, values in asdict(config).items()
            for name, value in values.items()
        ]
        self._client.log_batch(created.info.run_id, params=settings)
        return str(created.info.run_id)

    def _experiment(self, run: Path) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        local = None if os.environ.get("MLFLOW_TRACKING_URI") else (run / "mlflow" / "artifacts").resolve().as_uri()
        return str(self._client.create_experiment(name, artifact_location=local))

    def write(self, record: Mapping[str, Any]) -> None:
        step, now = record["step"], int(time.time() * 1000)
        fresh = {name: value for name, value in scalars(record).items() if (name, step) not in self._written}
        if fresh:
            metrics = [self._metric(name, value, now, step) for name, value in fresh.items()]
            self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _import_mlflow() -> ModuleType:
    import mlflow
    import mlflow.entities

    return mlflow


def _mlflow_store(run: Path) -> str | None:
    """The server the environment names (None: MLflow reads it itself), or a database in the run's directory."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return None
    make_directory(run / "mlflow")
    path = (run / "mlflow" / "mlflow.db").resolve().as_posix()
    return f"sqlite:///{path.replace('%', '%25').replace('?', '%3F')}"  # what SQLAlchemy would take for its own


_TRACKERS: dict[str, Callable[[Path, Config, int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}
