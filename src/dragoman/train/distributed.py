"""Several processes, one run: who they are, what they agree on, how a model is shared out. Knows nothing of batches.

`torchrun --nproc-per-node N -m dragoman train ...` starts them. Each computes the gradients of its own batches; DDP
adds them up, or FSDP2 shards weights, gradients and optimiser over all. Rank 0 alone writes. FSDP2 and its tensors are
imported where they are used: that takes a second, which a process alone need not wait for.
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
from dragoman.errors import ConfigError, DragomanError
from dragoman.model.device import choose_device

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

PATIENCE = timedelta(hours=6)  # the others wait while rank 0 prepares a corpus or measures the model
TIME_TO_TELL = timedelta(seconds=10)  # when one process fails, torchrun ends all the others: they let it speak first

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
        """For all; on the CPU, where a process that is no more is noticed at once."""
        self.any(False)

    def first(self, work: Callable[[], T]) -> T:
        """Rank 0 does it while the others wait; then they do, and find it done; nobody goes on before all have it."""
        if not self.main:
            self.wait()
        result = work()
        if self.main:
            self.wait()
        self.wait()
        return result

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process: all get the same answer."""
        return bool(self.most(int(flag)))

    def most(self, count: int) -> int:
        """The largest of all processes' numbers."""
        if self.world == 1:
            return count
        answer = torch.tensor([count])
        dist.all_reduce(answer, dist.ReduceOp.MAX)
        return int(answer.item())

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
    with told_once():
        device = _own_device(settings.device, ranks)
        life, store = _meet(ranks)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=world, timeout=PATIENCE)
    try:
        with told_once(life):
            yield ranks, device
            ranks.wait()  # until rank 0 has written all
    finally:
        dist.destroy_process_group()


def _meet(ranks: Ranks) -> tuple[str, Any]:
    """A name for this life of the run, the same in all its processes, and a store for it alone.

    Torchrun keeps one store through all restarts, and how often it restarted differs from host to host: without a name
    of its own a process would look for the others where they were in an earlier life, and wait for ever.
    """
    own = uuid4().hex
    store, _, _ = next(rendezvous("env://"))
    if ranks.main:
        answered = dict.fromkeys(range(1, ranks.world), "")
        while answered:
            for rank, last in list(answered.items()):
                other = store.get(f"dragoman/{rank}").decode()  # of an earlier life, until the new one comes
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


def _own_device(name: str, ranks: Ranks) -> torch.device:
    device = choose_device(name)
    if device.type == "mps":
        raise ConfigError("train.device: mps takes one process; start it without torchrun or set cpu")
    if device.type == "cuda":
        if ":" in name:
            raise ConfigError(f"train.device: {name} is one for all processes; write cuda or auto")
        if ranks.local >= torch.cuda.device_count():
            raise ConfigError(
                f"train.device: process {ranks.local + 1} of this machine has no GPU, there are "
                f"{torch.cuda.device_count()}; lower --nproc-per-node or set cpu"
            )
        device = torch.device("cuda", ranks.local)
        torch.cuda.set_device(device)
    return device


@contextmanager
def told_once(life: str = "") -> Iterator[None]:
    """Of several processes that fail, the first one tells why; the others leave in silence as soon as it has."""
    try:
        yield
    except Exception as error:
        _leave_if_told(life or os.environ.get("TORCHELASTIC_RESTART_COUNT", ""), getattr(error, "exit_code", 1))
        if " by peer" in str(error) or isinstance(error, dist.DistError):  # gloo: Connection closed, Connection reset
            raise DragomanError(
                "torchrun: another process of this run came to an unforeseen end, for want of memory perhaps; "
                "the same command goes on from the last checkpoint"
            ) from error
        raise


def _leave_if_told(life: str, exit_code: int) -> None:
    """Return in the first process to fail. Torchrun's own store knows which that is: it outlives all processes."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return  # nobody to ask
    rank = os.environ["RANK"]
    try:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*address, is_master=False, timeout=TIME_TO_TELL)  # type: ignore[attr-defined]
        teller = store.compare_set(f"dragoman/{life}/teller", "", rank).decode()
    except RuntimeError:
        return  # torchrun is no more
    if teller == rank:
        atexit.register(_has_told, store, f"dragoman/{life}/told")
        return
    try:
        store.wait([f"dragoman/{life}/told"])
    finally:
        os._exit(exit_code)


def _has_told(store: Any, name: str) -> None:
    with suppress(RuntimeError):
        store.set(name, "")


def shard(model: nn.Module, ranks: Ranks) -> None:
    """FSDP2: each layer's weights live in parts on all ranks and come together only while it computes."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

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
    if not dist.is_initialized():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def _is_part(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether other ranks have the rest of it."""
    if not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered from all ranks, which all must ask; any other as it is.

    Only rank 0 gets it, on the CPU: all weights and moments at once have no room where they had to be sharded.
    """
    if not _is_part(tensor):
        return tensor
    full = tensor.full_tensor()
    return full.cpu() if dist.get_rank() == 0 else full.new_empty(0)


def like(full: Tensor, place: Tensor) -> Tensor:
    """The part of `full`, which every rank has, that belongs where `place` is."""
    full = full.to(place.device)
    if not _is_part(place):
        return full
    from torch.distributed.tensor import distribute_tensor

    # None: each rank cuts its own part; they need not ask in the same order, and files give none
    return distribute_tensor(full, place.device_mesh, place.placements, src_data_rank=None)


def data_parallel(module: nn.Module, ranks: Ranks, device: torch.device) -> DistributedDataParallel:
    """DDP: every rank has all weights; gradients are averaged while backward still runs."""
    return DistributedDataParallel(
        module, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )


def set_apart(module: nn.Module) -> None:
    """Undo `data_parallel` while the processes are still joined.

    Freed later, DDP would take the last process group with it, holding Python's lock, and wait for a thread of that
    group that may itself wait for the lock.
    """
    if isinstance(module, DistributedDataParallel):
        del module.reducer, module.logger


@contextmanager
def adding_up(module: nn.Module, last: bool) -> Iterator[None]:
    """Gradients of all but the last batch of a step stay on their rank; the last brings them together."""
    if isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
        return
    if is_sharded(module):
        module.set_requires_gradient_sync(last)  # type: ignore[operator]
    yield


def gradient_norm(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """The norm of all gradients before they are clipped at `limit`."""
    norm = torch.nn.utils.clip_grad_norm_(list(parameters), limit)
    return norm.full_tensor() if _is_part(norm) else norm
