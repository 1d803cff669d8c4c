"""The state of a run, all of it, as files of a checkpoint: weights, optimiser, random numbers, place in the data.

No pickle: tensors go into safetensors, the rest into JSON. Sharded tensors are gathered: a checkpoint does not know how
many processes made it.
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

from dragoman import bundle
from dragoman.config import DataConfig
from dragoman.data.batching import Part, PlanParameters
from dragoman.data.corpus import file_hash
from dragoman.errors import ModelError
from dragoman.train.distributed import Ranks, like, whole
from dragoman.train.report import json_values
from dragoman.train.starting import MovingAverage

OPTIMIZER, STATE, AVERAGE = "optimizer.safetensors", "state.json", "average.safetensors"
PROVENANCE = "provenance.json"


@dataclass
class Progress:
    """Where a run stands. With the weights, the optimiser and the random state: enough to go on to the bit."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # the next one of this epoch, as it is batched now
    tokens: int = 0  # target tokens seen
    seconds: float = 0.0
    best_metric: float | None = None
    best_step: int = 0
    without_better: int = 0  # validations since the best
    nonfinite: int = 0  # steps in a row that had to be left out
    recent_loss: float = 0.0  # summed over the tokens since the last line of the log
    recent_tokens: int = 0
    judge: str = ""  # what best_metric was measured with
    validated: int = 0  # the last step that was: a signal may have ended the validation of this one
    plan: PlanParameters = field(default_factory=dict)  # how this epoch is batched; older checkpoints do not tell
    earlier: list[Part] = field(default_factory=list)  # parts of this epoch that were batched otherwise

    def move_to(self, epoch: int, batch: int) -> None:
        """Where in the data the next step begins."""
        if epoch != self.epoch:
            self.earlier = []
        self.epoch, self.batch = epoch, batch

    def change_plan(self, plan: PlanParameters) -> bool:
        """From here on batches are made by `plan`. Returns whether that changes the rest of an epoch."""
        changed = bool(self.plan) and self.plan != plan and self.batch > 0
        if changed:
            self.earlier = [*self.earlier, (self.plan, self.batch)]
            self.batch = 0
        self.plan = plan
        return changed


@dataclass(frozen=True)
class Learner:
    """What learns: a model, its optimiser, and the moving average of its weights if there is one."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None

    def judged(self) -> dict[str, Tensor]:
        """The weights that are measured and kept, gathered: all ranks must ask."""
        own = bundle.named_weights(self.model)
        if self.average is None:
            return {name: whole(tensor) for name, tensor in own.items()}
        return {name: whole(tensor) for name, tensor in zip(own, self.average.weights, strict=True)}


def pack(
    learner: Learner,
    progress: Progress,
    random: Mapping[str, Tensor],
    identity: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> dict[str, bytes]:
    """The files of a checkpoint. `identity` says what a resumed run must agree on."""
    weights = {name: whole(tensor) for name, tensor in bundle.named_weights(learner.model).items()}
    state = {"progress": json_values(asdict(progress)), "identity": dict(identity)}
    files = {
        bundle.WEIGHTS: bundle.weights_to_bytes(weights),
        OPTIMIZER: bundle.weights_to_bytes(_moments(learner) | dict(random)),
        STATE: json.dumps(state, indent=1).encode(),
        PROVENANCE: json.dumps(dict(provenance), indent=1, ensure_ascii=False).encode(),
    }
    if learner.average is not None:
        files[AVERAGE] = bundle.weights_to_bytes(learner.judged())
    return files


def unpack(path: Path, files: Mapping[str, bytes], learner: Learner) -> tuple[Progress, dict[str, Tensor]]:
    """Put a checkpoint back into what learns. Returns where the run stood, and the random state to go on with."""
    for name in (bundle.WEIGHTS, OPTIMIZER, STATE):
        if name not in files:
            raise ModelError(f"{path}: its {bundle.MANIFEST} does not list {name}; restore it or give another --out")
    own = bundle.named_weights(learner.model)
    weights = bundle.weights_from_bytes(files[bundle.WEIGHTS], path / bundle.WEIGHTS)
    bundle.set_weights(learner.model, {name: like(weights[name], own[name]) for name in weights if name in own}, path)
    if learner.average is not None:
        # a run that asks for an average only now begins it with what there is
        kept = bundle.weights_from_bytes(files[AVERAGE], path / AVERAGE) if AVERAGE in files else weights
        bundle.check_fit(own, kept, path / AVERAGE)
        for name, tensor in zip(own, learner.average.weights, strict=True):
            tensor.copy_(like(kept[name], tensor))
    saved = bundle.weights_from_bytes(files[OPTIMIZER], path / OPTIMIZER)
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


# Random numbers: each rank has its own


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Of this process."""
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    try:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state and device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], device)
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"{OPTIMIZER}: not an RNG state ({error}); restore it or give another --out") from None


def gathered_random_state(state: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Of all processes, by rank."""
    return {
        f"random.{kind}.{rank}": part for kind, own in state.items() for rank, part in enumerate(ranks.gathered(own))
    }


def own_random_state(saved: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor] | None:
    """This rank's; None where the run had fewer processes when it was saved."""
    kinds = ("cpu", "cuda")
    own = {kind: saved[f"random.{kind}.{ranks.rank}"] for kind in kinds if f"random.{kind}.{ranks.rank}" in saved}
    return own if "cpu" in own else None


# What must not change


REMEDY = "restore it, or give another --out for a new run"


class Origin:
    """What a run began with, as its newest checkpoint tells it; nothing where there is none."""

    def __init__(self, run: Path) -> None:
        self._path, self._identity = run, {}
        self._files: dict[str, dict[str, str]] = {}  # SHA-256 of every corpus file, by the setting that names it
        for path in bundle.checkpoints(run):
            with suppress(ModelError):  # a damaged one is named when the run resumes
                state = read_state(bundle.read_checkpoint(path, [STATE])[STATE], path)
                self._path, self._identity, self._files = path, state["identity"], _corpus_files(path)

    def agree(self, identity: Mapping[str, Any], corpora: DataConfig | None = None) -> None:
        """A run goes on only with the model, vocabulary and corpus it began with. `corpora` are today's files."""
        for name, now in identity.items():
            before = self._identity.get(name, now)
            if before == now:
                continue
            if name in self._files and corpora is not None:
                files = getattr(corpora, name.removeprefix("data."))
                self._refuse_files(name, {path: file_hash(Path(path)) for path in files})
            self._refuse(name, _shown(before), _shown(now))

    def _refuse_files(self, name: str, now: Mapping[str, str]) -> NoReturn:
        """Name the file that changed; where there are others in its place, both."""
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
        recorded = json.loads(bundle.read_checkpoint(path, [PROVENANCE])[PROVENANCE])["data"]
        return {f"data.{side}": dict(files) for side, files in recorded.items()}
    except (ModelError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}  # missing or not ours: the message will do without


def _listed(files: Mapping[str, str], known: set[str]) -> str:
    """The files whose content is not among what is known; all, if only their order differs."""
    other = {path: digest for path, digest in files.items() if digest not in known} or files
    return ", ".join(f"{path} (SHA-256 {_short(digest)})" for path, digest in other.items())


def _shown(value: Any) -> str:
    return _short(value) if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else repr(value)


def _short(digest: str) -> str:
    return digest[:12]


def newest(run: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, bytes]] | None:
    """The newest checkpoint that is whole; a damaged one is named and passed over; None when there is none at all."""
    found = bundle.checkpoints(run)
    for path in reversed(found):
        try:
            return path, bundle.read_checkpoint(path)
        except ModelError as error:
            warn(f"{error}; falling back to the one before")
    if found:
        raise ModelError(f"{run}: none of its {len(found)} checkpoints is whole; restore one or give another --out")
    return None


def agreed(run: Path, ranks: Ranks, warn: Callable[[str], None]) -> tuple[Path, dict[str, bytes]] | None:
    """The same as rank 0 finds it: to the others a shared file system may show an older picture for a while."""
    found = newest(run, warn) if ranks.main else None
    (step,) = ranks.from_main([bundle.checkpoint_step(found[0]) if found else -1.0])
    if ranks.main or step < 0:
        return found
    path = bundle.checkpoint_path(run, int(step))
    return path, bundle.read_checkpoint(path)


def _moments(learner: Learner) -> dict[str, Tensor]:
    """Sorted: ranks gather one after the other, and a resumed one has them in the order that a file gave."""
    return {
        f"{entry}.{name}": whole(torch.as_tensor(value))
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
            continue  # frozen since
        if entry == "step":
            # Adam's step counter stays on the CPU unless the optimiser is fused
            fused = learner.optimizer.defaults.get("fused")
            learner.optimizer.state[parameter][entry] = value.to(parameter.device if fused else "cpu")
        else:
            learner.optimizer.state[parameter][entry] = like(value, parameter)
