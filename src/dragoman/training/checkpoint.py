"""The complete state of a run as files of a checkpoint: weights, optimizer, RNG state, position in the data.

No pickle: tensors go into safetensors, the rest into JSON. Sharded tensors are gathered, so that a checkpoint does not
depend on the number of processes.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from dragoman import bundle, tensors
from dragoman.config import DataConfig
from dragoman.data.batching import Part, PlanParameters
from dragoman.data.corpus import file_hash
from dragoman.errors import ModelError
from dragoman.training.checkpoint_files import checkpoint_path, checkpoint_step, checkpoints, read_checkpoint
from dragoman.training.distributed import Ranks, gather_full, shard_like
from dragoman.training.optimizer import MovingAverage
from dragoman.training.reports.log import json_values

OPTIMIZER, STATE, AVERAGE = "optimizer.safetensors", "state.json", "average.safetensors"
PROVENANCE = "provenance.json"


@dataclass
class Progress:
    """The position of a run. With weights, optimizer and RNG state it is enough to resume bit for bit."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # the index of this epoch's next batch
    tokens: int = 0  # target tokens seen
    seconds: float = 0.0
    best_metric: float | None = None
    best_step: int = 0
    without_better: int = 0  # validations since the best
    nonfinite: int = 0  # steps skipped in a row
    recent_loss: float = 0.0  # summed over the tokens since the last log record
    recent_tokens: int = 0
    judge: str = ""  # identifies the metric and data behind best_metric
    validated: int = 0  # the last validated step: a signal may have interrupted the current one's validation
    plan: PlanParameters = field(default_factory=dict)  # how this epoch is batched; missing in older checkpoints
    earlier: list[Part] = field(default_factory=list)  # parts of this epoch that were batched by other plans

    def move_to(self, epoch: int, batch: int) -> None:
        """Set the position of the next batch."""
        if epoch != self.epoch:
            self.earlier = []
        self.epoch, self.batch = epoch, batch

    def change_plan(self, plan: PlanParameters) -> bool:
        """Batch by `plan` from here on. Returns whether that changes the rest of the epoch."""
        changed = bool(self.plan) and self.plan != plan and self.batch > 0
        if changed:
            self.earlier = [*self.earlier, (self.plan, self.batch)]
            self.batch = 0
        self.plan = plan
        return changed


@dataclass(frozen=True)
class Learner:
    """A model, its optimizer, and the moving average of its weights if there is one."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None

    def evaluated_weights(self) -> dict[str, Tensor]:
        """The weights to validate and publish, gathered: a collective call."""
        own = tensors.named_weights(self.model)
        if self.average is None:
            return {name: gather_full(tensor) for name, tensor in own.items()}
        return {name: gather_full(tensor) for name, tensor in zip(own, self.average.weights, strict=True)}


def pack(
    learner: Learner,
    progress: Progress,
    random: Mapping[str, Tensor],
    identity: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> dict[str, bytes]:
    """The files of a checkpoint. `identity` is what must not change on resume."""
    weights = {name: gather_full(tensor) for name, tensor in tensors.named_weights(learner.model).items()}
    state = {"progress": json_values(asdict(progress)), "identity": dict(identity)}
    files = {
        bundle.WEIGHTS: tensors.weights_to_bytes(weights),
        OPTIMIZER: tensors.weights_to_bytes(_moments(learner) | dict(random)),
        STATE: json.dumps(state, indent=1).encode(),
        PROVENANCE: json.dumps(dict(provenance), indent=1, ensure_ascii=False).encode(),
    }
    if learner.average is not None:
        files[AVERAGE] = tensors.weights_to_bytes(learner.evaluated_weights())
    return files


def unpack(path: Path, files: Mapping[str, bytes], learner: Learner) -> tuple[Progress, dict[str, Tensor]]:
    """Load a checkpoint into `learner`. Returns the progress and RNG states to resume from."""
    for name in (bundle.WEIGHTS, OPTIMIZER, STATE):
        if name not in files:
            raise ModelError(f"{path}: its {bundle.MANIFEST} does not list {name}; restore it or give another --out")
    own = tensors.named_weights(learner.model)
    weights = tensors.weights_from_bytes(files[bundle.WEIGHTS], path / bundle.WEIGHTS)
    tensors.set_weights(
        learner.model, {name: shard_like(weights[name], own[name]) for name in weights if name in own}, path
    )
    if learner.average is not None:
        # a run that adds an average on resume starts it from the current weights
        kept = tensors.weights_from_bytes(files[AVERAGE], path / AVERAGE) if AVERAGE in files else weights
        tensors.check_tensors_fit(own, kept, path / AVERAGE)
        for name, tensor in zip(own, learner.average.weights, strict=True):
            tensor.copy_(shard_like(kept[name], tensor))
    saved = tensors.weights_from_bytes(files[OPTIMIZER], path / OPTIMIZER)
    random = {name: saved.pop(name) for name in list(saved) if name.startswith("random.")}
    _set_moments(learner, saved, path / OPTIMIZER)
    saved_progress = read_state(files[STATE], path)["progress"]
    known = {entry.name for entry in fields(Progress)}
    progress = Progress(**{name: value for name, value in saved_progress.items() if name in known})
    if progress.best_metric is not None:
        progress.best_metric = float(progress.best_metric)  # text where it is not finite
    return progress, random


def read_state(content: bytes, path: Path) -> dict[str, dict[str, Any]]:
    """`progress` and `identity` of the checkpoint at `path`."""
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict) or not all(isinstance(state.get(part), dict) for part in ("progress", "identity")):
        raise ModelError(f"{path / STATE}: not the state of a run; restore it or give another --out")
    return state


# RNG states: each rank has its own


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """The RNG state of this process."""
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def set_rng_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    try:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state and device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], device)
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"{OPTIMIZER}: not an RNG state ({error}); restore it or give another --out") from None


def gather_rng_states(state: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The RNG states of all ranks."""
    return {
        f"random.{kind}.{rank}": part for kind, own in state.items() for rank, part in enumerate(ranks.all_gather(own))
    }


def own_rng_state(saved: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor] | None:
    """This rank's RNG state; None if the checkpoint was saved by fewer processes."""
    kinds = ("cpu", "cuda")
    own = {kind: saved[f"random.{kind}.{ranks.rank}"] for kind in kinds if f"random.{kind}.{ranks.rank}" in saved}
    return own if "cpu" in own else None


# What must not change


REMEDY = "restore it, or give another --out for a new run"


class RunIdentity:
    """What a run was started with, according to its newest checkpoint; empty if there is none."""

    def __init__(self, run: Path) -> None:
        self._path, self._identity = run, {}
        self._files: dict[str, dict[str, str]] = {}  # SHA-256 of every corpus file, by the setting that names it
        for path in checkpoints(run):
            with suppress(ModelError):  # a damaged one is named when the run resumes
                state = read_state(read_checkpoint(path, [STATE])[STATE], path)
                self._path, self._files = path, _corpus_files(path)
                self._identity = {"train.optimizer": "adam", **state["identity"]}  # once it was the only one

    def verify(self, identity: Mapping[str, Any], corpora: DataConfig | None = None) -> None:
        """Refuse to resume with another model, vocabulary or corpus. `corpora` are the current files."""
        for name, now in identity.items():
            before = self._identity.get(name, now)
            if before == now:
                continue
            if name in self._files and corpora is not None:
                files = getattr(corpora, name.removeprefix("data."))
                self._refuse_files(name, {path: file_hash(Path(path)) for path in files})
            self._refuse(name, _shown(before), _shown(now))

    def _refuse_files(self, name: str, now: Mapping[str, str]) -> NoReturn:
        """Name the file that changed; if it was replaced, name both."""
        before = self._files[name]
        for path, digest in now.items():
            if before.get(path, digest) != digest:
                raise ModelError(
                    f"{path}: changed since this run began ({name}, SHA-256 {_short(before[path])} then, "
                    f"{_short(digest)} now); {REMEDY}"
                )
        self._refuse(name, _listed(before, set(now.values())), _listed(now, set(before.values())))

    def _refuse(self, name: str, before: str, now: str) -> NoReturn:
        raise ModelError(f"{self._path}: {name} was {before} when this run began and is {now} now; {REMEDY}")


def _corpus_files(path: Path) -> dict[str, dict[str, str]]:
    try:
        recorded = json.loads(read_checkpoint(path, [PROVENANCE])[PROVENANCE])["data"]
        return {f"data.{side}": dict(files) for side, files in recorded.items()}
    except (ModelError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}  # missing or invalid: the message names no files


def _listed(files: Mapping[str, str], known: set[str]) -> str:
    """The files with unknown content; all of them if only their order differs."""
    other = {path: digest for path, digest in files.items() if digest not in known} or files
    return ", ".join(f"{path} (SHA-256 {_short(digest)})" for path, digest in other.items())


def _shown(value: Any) -> str:
    return _short(value) if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else repr(value)


def _short(digest: str) -> str:
    return digest[:12]


def newest(run: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, bytes]] | None:
    """The newest intact checkpoint; damaged ones are reported and skipped; None if there are no checkpoints."""
    found = checkpoints(run)
    for path in reversed(found):
        try:
            return path, read_checkpoint(path)
        except ModelError as error:
            warn(f"{error}; falling back to the previous one")
    if found:
        raise ModelError(f"{run}: none of its {len(found)} checkpoints is intact; restore one or give another --out")
    return None


def newest_on_rank_0(run: Path, ranks: Ranks, warn: Callable[[str], None]) -> tuple[Path, dict[str, bytes]] | None:
    """The same checkpoint on all ranks: a shared file system may show the others an older state."""
    found = newest(run, warn) if ranks.is_main else None
    (step,) = ranks.broadcast([checkpoint_step(found[0]) if found else -1.0])
    if ranks.is_main or step < 0:
        return found
    path = checkpoint_path(run, int(step))
    return path, read_checkpoint(path)


def _moments(learner: Learner) -> dict[str, Tensor]:
    """Sorted, since gathering is collective and a resumed rank has them in the order of the file."""
    return {
        f"{entry}.{name}": gather_full(torch.as_tensor(value))
        for name, parameter in learner.model.named_parameters()
        for entry, value in sorted(learner.optimizer.state.get(parameter, {}).items())
    }


def _set_moments(learner: Learner, saved: Mapping[str, Tensor], path: Path) -> None:
    parameters = dict(learner.model.named_parameters())
    for key, value in saved.items():
        entry, _, name = key.partition(".")
        parameter = parameters.get(name)
        if (
            parameter is None
            or value.shape != (torch.Size() if entry == "step" else parameter.shape)
            or not value.is_floating_point()
        ):
            what = f"{key}, {list(value.shape)} of {value.dtype},"
            raise ModelError(f"{path}: {what} belongs to no weight; restore it or give another --out")
        if not parameter.requires_grad:
            continue  # frozen on resume
        if entry == "step":
            # Adam's step counter stays on the CPU unless the optimiser is fused
            fused = learner.optimizer.defaults.get("fused")
            learner.optimizer.state[parameter][entry] = value.to(parameter.device if fused else "cpu")
        else:
            learner.optimizer.state[parameter][entry] = shard_like(value, parameter)
