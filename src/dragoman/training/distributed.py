"""Several processes, one run: ranks, collective operations, DDP and FSDP2. Knows nothing of batches.

`torchrun --nproc-per-node N -m dragoman train ...` starts them. Each computes the gradients of its own batches; DDP
averages them, or FSDP2 shards weights, gradients and optimizer state. Only rank 0 writes. FSDP2 is imported where it is
used: that takes a second, which a single process need not spend.
"""

import atexit
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from dragoman.config import TrainConfig
from dragoman.device import choose_device
from dragoman.errors import ConfigError, DragomanError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

TIMEOUT = timedelta(hours=6)  # the others wait while rank 0 prepares a corpus or validates
REPORT_TIMEOUT = timedelta(seconds=10)  # for the failing process to report, before torchrun ends the others

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run; a single process is rank 0 of 1."""

    rank: int = 0
    world: int = 1
    local: int = 0  # rank on this machine

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all processes; over the CPU's backend, which notices a dead one at once."""
        self.any(False)

    def main_first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0, then on the others, which find its results on disk; return when all are done."""
        if not self.is_main:
            self.barrier()
        result = work()
        if self.is_main:
            self.barrier()
        self.barrier()
        return result

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set on any rank; every rank gets the same answer."""
        return bool(self.max(int(flag)))

    def max(self, count: int) -> int:
        """The largest `count` of all ranks."""
        if self.world == 1:
            return count
        answer = torch.tensor([count])
        dist.all_reduce(answer, dist.ReduceOp.MAX)
        return int(answer.item())

    def broadcast(self, numbers: list[float]) -> list[float]:
        """Rank 0's numbers, on every rank."""
        if self.world == 1:
            return numbers
        sent = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(sent, 0)
        return [float(number) for number in sent]

    def all_gather(self, own: Tensor) -> list[Tensor]:
        """Every rank's tensor, all of one shape, ordered by rank."""
        if self.world == 1:
            return [own]
        parts = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(parts, own)
        return parts

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.world > 1:
            dist.all_reduce(value)
        return value


@contextmanager
def join_processes(settings: TrainConfig) -> Iterator[tuple[Ranks, torch.device]]:
    """The ranks that torchrun started, or this process alone, and the device of this process."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(), choose_device(settings.device)
        return
    ranks = Ranks(int(os.environ["RANK"]), world, int(os.environ["LOCAL_RANK"]))
    with report_error_once():
        device = _local_device(settings.device, ranks)
        life, store = _rendezvous(ranks)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=world, timeout=TIMEOUT)
    try:
        with report_error_once(life):
            yield ranks, device
            ranks.barrier()  # until rank 0 has written everything
    finally:
        dist.destroy_process_group()


def _rendezvous(ranks: Ranks) -> tuple[str, Any]:
    """An id for this start of the run, the same in all its processes, and a store of its own.

    Torchrun keeps one store through all restarts, and hosts may count restarts differently: without an id, a process
    could wait forever for keys of an earlier start.
    """
    own = uuid4().hex
    store, _, _ = next(rendezvous("env://"))
    if ranks.is_main:
        answered = dict.fromkeys(range(1, ranks.world), "")
        while answered:
            for rank, last in list(answered.items()):
                other = store.get(f"dragoman/{rank}").decode()  # of an earlier start, until the new one is set
                if other != last:
                    store.set(f"dragoman/{other}/life", own)
                    answered[rank] = other
                elif store.check([f"dragoman/{other}/{own}"]):
                    del answered[rank]
            time.sleep(0.01)
        life = own
    else:
        store.set(f"dragoman/{ranks.rank}", own)
        life = store.get(f"dragoman/{own}/life").decode()
        store.set(f"dragoman/{own}/{life}", "")
    return life, dist.PrefixStore(life, store)  # type: ignore[attr-defined]


def _local_device(name: str, ranks: Ranks) -> torch.device:
    device = choose_device(name)
    if device.type == "mps":
        raise ConfigError("train.device: mps takes one process; start it without torchrun or set cpu")
    if device.type == "cuda":
        if ":" in name:
            raise ConfigError(f"train.device: {name} names one GPU for all processes; use cuda or auto")
        if ranks.local >= torch.cuda.device_count():
            raise ConfigError(
                f"train.device: process {ranks.local + 1} of this machine has no GPU, there are "
                f"{torch.cuda.device_count()}; lower --nproc-per-node or set cpu"
            )
        device = torch.device("cuda", ranks.local)
        torch.cuda.set_device(device)
    return device


@contextmanager
def report_error_once(life: str = "") -> Iterator[None]:
    """Of several failing processes, only the first reports its error; the others then exit silently."""
    try:
        yield
    except Exception as error:
        _exit_if_reported(life or os.environ.get("TORCHELASTIC_RESTART_COUNT", ""), getattr(error, "exit_code", 1))
        if " by peer" in str(error) or isinstance(error, dist.DistError):  # gloo: Connection closed, Connection reset
            raise DragomanError(
                "torchrun: another process of this run ended unexpectedly, possibly out of memory; "
                "run the same command to resume from the last checkpoint"
            ) from error
        raise


def _exit_if_reported(life: str, exit_code: int) -> None:
    """Return in the first process to fail, exit in the others. Torchrun's store decides: it outlives the processes."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return  # no store to ask
    rank = os.environ["RANK"]
    try:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*address, is_master=False, timeout=REPORT_TIMEOUT)  # type: ignore[attr-defined]
        reporting = store.compare_set(f"dragoman/{life}/reporting", "", rank).decode()
    except RuntimeError:
        return  # torchrun has ended
    if reporting == rank:
        atexit.register(_mark_reported, store, f"dragoman/{life}/reported")
        return
    try:
        store.wait([f"dragoman/{life}/reported"])
    finally:
        os._exit(exit_code)


def _mark_reported(store: Any, name: str) -> None:
    with suppress(RuntimeError):
        store.set(name, "")


def shard(model: nn.Module, ranks: Ranks) -> None:
    """FSDP2: shard each layer over all ranks; its weights are gathered only while it computes."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    assert ranks.world > 1
    # keys and values are views, which is safe: nothing is changed in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if name.endswith(
            ".cross_attention"
        ):  # called outside its layer: the source's keys and values are computed once
            fully_shard(module)
            register_fsdp_forward_method(module, "keys_values")
    for name, module in modules.items():
        if name.rpartition(".")[0].endswith("layers"):
            fully_shard(module)
    fully_shard(model)


def is_sharded(model: nn.Module) -> bool:
    if not dist.is_initialized():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def _is_dtensor(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this is a shard of a tensor."""
    if not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def gather_full(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor, a collective call; return any other unchanged.

    Only rank 0 gets the result, on the CPU: a device that needs sharding cannot hold everything at once.
    """
    if not _is_dtensor(tensor):
        return tensor
    full = tensor.full_tensor()
    return full.cpu() if dist.get_rank() == 0 else full.new_empty(0)


def shard_like(full: Tensor, place: Tensor) -> Tensor:
    """The shard of `full`, which every rank has, for the position of `place`."""
    full = full.to(place.device)
    if not _is_dtensor(place):
        return full
    from torch.distributed.tensor import distribute_tensor

    # None: each rank cuts its own shard, so the order of calls may differ
    return distribute_tensor(full, place.device_mesh, place.placements, src_data_rank=None)


def wrap_ddp(module: nn.Module, ranks: Ranks, device: torch.device) -> DistributedDataParallel:
    """DDP: every rank has all weights; gradients are averaged during backward."""
    return DistributedDataParallel(
        module, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )


def unwrap_ddp(module: nn.Module) -> None:
    """Undo `wrap_ddp` while the process group still exists.

    Freed later, DDP would destroy the process group while holding the GIL, and wait for one of its threads, which may
    itself be waiting for the GIL.
    """
    if isinstance(module, DistributedDataParallel):
        del module.reducer, module.logger


@contextmanager
def gradient_sync(module: nn.Module, last: bool) -> Iterator[None]:
    """Synchronise gradients only with the last batch of a step."""
    if isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
        return
    if is_sharded(module):
        module.set_requires_gradient_sync(last)  # type: ignore[operator]
    yield


def gradient_norm(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Clip the gradients to `limit`; return their norm before that."""
    norm = torch.nn.utils.clip_grad_norm_(list(parameters), limit)
    return norm.full_tensor() if _is_dtensor(norm) else norm
