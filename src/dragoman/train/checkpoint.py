"""The state of a run, all of it, as files of a checkpoint: weights, optimiser, random numbers, place in the data.

No pickle: tensors go into safetensors, the rest into JSON.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman import bundle
from dragoman.errors import ModelError

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"


@dataclass
class Progress:
    """Where a run stands. With the weights, the optimiser and the random state: enough to go on to the bit."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # the next one of this epoch
    tokens: int = 0  # target tokens seen
    seconds: float = 0.0
    best_metric: float | None = None
    best_step: int = 0
    without_better: int = 0  # validations since the best
    nonfinite: int = 0  # steps in a row that had to be left out
    recent_loss: float = 0.0  # summed over the tokens since the last line of the log
    recent_tokens: int = 0
    judge: str = ""  # what best_metric was measured with


def pack(
    model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, identity: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files of a checkpoint. `identity` says what a resumed run must agree on."""
    random = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random |= {f"random.cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    state = {"progress": asdict(progress), "identity": dict(identity)}
    return {
        bundle.WEIGHTS: bundle.weights_to_bytes(bundle.named_weights(model)),
        OPTIMIZER: bundle.weights_to_bytes(_moments(model, optimizer) | random),
        STATE: json.dumps(state, indent=1).encode(),
    }


def unpack(path: Path, files: Mapping[str, bytes], model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a checkpoint back: into the model, the optimiser and torch's random state. Returns where the run stood."""
    bundle.set_weights(model, bundle.weights_from_bytes(files[bundle.WEIGHTS], path), path)
    saved = bundle.weights_from_bytes(files[OPTIMIZER], path)
    torch.set_rng_state(saved.pop("random.cpu"))
    devices = sorted(
        (name for name in saved if name.startswith("random.cuda.")), key=lambda name: int(name.split(".")[2])
    )
    cuda = [saved.pop(name) for name in devices]
    if torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
    _set_moments(model, optimizer, saved)
    progress = json.loads(files[STATE])["progress"]
    return Progress(**{entry.name: progress[entry.name] for entry in fields(Progress)})


def check_identity(path: Path, files: Mapping[str, bytes], identity: Mapping[str, Any]) -> None:
    """A run goes on only with the model, vocabulary and corpus it began with."""
    saved = json.loads(files[STATE])["identity"]
    for name, value in identity.items():
        refuse_change(path, name, saved.get(name), value)


def refuse_change(path: Path, name: str, before: Any, now: Any) -> None:
    if before != now:
        raise ModelError(
            f"{path}: {name} was {before!r} when this run began and is {now!r} now; "
            "restore it, or give another --out for a new run"
        )


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


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{entry}.{name}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def _set_moments(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for key, value in saved.items():
        entry, _, name = key.partition(".")
        parameter = parameters[name]
        # Adam's step counter stays on the CPU unless the optimiser is fused
        device = parameter.device if entry != "step" or optimizer.defaults.get("fused") else torch.device("cpu")
        optimizer.state[parameter][entry] = value.to(device)
