"""Several processes, one run: who they are, what they agree on, how a model is shared out. Knows nothing of batches.

`torchrun --nproc-per-node N -m dragoman train ...` starts them. Each computes the gradients of its own batches; DDP adds
them up, or FSDP2 shards weights, gradients and optimiser over all. Rank 0 alone writes.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from dragoman.config import TrainConfig
from dragoman.errors import ConfigError
from dragoman.model.device import choose_device

PATIENCE = timedelta(hours=6)  # the others wait while rank 0 prepares a corpus or measures the model

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among all of the run; one alone is rank 0 of 1."""

    rank: int = 0
    world: int = 1
    local: int = 0  # among the processes of this machine

    @property
    def main(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()

    def first(self, work: Callable[[], T]) -> T:
        """Rank 0 does it while the others wait; then they do, and find it done."""
        if self.main:
            result = work()
            self.wait()
            return result
        self.wait()
        return work()

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process: all get the same answer."""
        if self.world == 1:
            return flag
        answer = torch.tensor([float(flag)])
        dist.all_reduce(answer, dist.ReduceOp.MAX)
        return bool(answer.item())

    def from_main(self, numbers: list[float]) -> list[float]:
        """Rank 0's numbers, everywhere."""
        if self.world == 1:
            return numbers
        told = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(told, 0)
        return [float(number) for number in told]

    def gathered(self, own: Tensor) -> list[Tensor]:
        """Every process's tensor, all of one shape, in the order of ranks."""
        if self.world == 1:
            return [own]
        parts = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(parts, own)
        return parts

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            dist.all_reduce(value)
        return value


@contextmanager
def joined(settings: TrainConfig) -> Iterator[tuple[Ranks, torch.device]]:
    """The processes that torchrun started, or this one alone; and the device of this one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(), choose_device(settings.device)
        return
    ranks = Ranks(int(os.environ["RANK"]), world, int(os.environ["LOCAL_RANK"]))
    device = choose_device(settings.device)
    if device.type == "cuda":
        if ":" in settings.device:
            raise ConfigError(f"train.device: {settings.device} is one for all processes; write cuda or auto")
        device = torch.device("cuda", ranks.local)
        torch.cuda.set_device(device)
    if device.type == "mps":
        raise ConfigError("train.device: mps takes one process; start it without torchrun or set cpu")
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield ranks, device
    finally:
        dist.destroy_process_group()


def shard(model: nn.Module, ranks: Ranks) -> None:
    """FSDP2: each layer's weights live in parts on all ranks and come together only while it computes."""
    assert ranks.world > 1
    # keys and values are views, which is safe: nothing here changes a tensor in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if name.endswith(".cross_attention"):  # used before its layer runs: the source's keys and values are made once
            fully_shard(module)
            register_fsdp_forward_method(module, "keys_values")
    for name, module in modules.items():
        if name.rpartition(".")[0].endswith("layers"):
            fully_shard(module)
    fully_shard(model)


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered from all ranks, which all must ask; any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(full: Tensor, place: Tensor) -> Tensor:
    """The part of `full` that belongs where `place` is."""
    full = full.to(place.device)
    return distribute_tensor(full, place.device_mesh, place.placements) if isinstance(place, DTensor) else full


def data_parallel(module: nn.Module, ranks: Ranks, device: torch.device) -> DistributedDataParallel:
    """DDP: every rank has all weights; gradients are averaged while backward still runs."""
    return DistributedDataParallel(
        module, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )


@contextmanager
def adding_up(module: nn.Module, last: bool) -> Iterator[None]:
    """Gradients of all but the last batch of a step stay on their rank; the last brings them together."""
    if isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    yield


def gradient_norm(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """The norm of all gradients before they are clipped at `limit`."""
    return whole(torch.nn.utils.clip_grad_norm_(list(parameters), limit))
