"""From batches to gradients, in one of two layouts: padded, for every device; packed, fast on CUDA and in bfloat16.

Both give the same loss and gradients for the same pairs. The rest of training uses the `Layout` protocol only.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dragoman.config import TrainConfig
from dragoman.data.batching import AnyBatch, BatchPlan, Part, PlanParameters, bucket_by_length, groups_in
from dragoman.data.feature_store import SeriesStore
from dragoman.data.packing import AnyPackedBatch, PackingPlan, Shape
from dragoman.errors import ConfigError
from dragoman.model.build import Model
from dragoman.model.loss import divergence, projected_cross_entropy
from dragoman.model.packed import can_pack, kernels_fit, packed_model
from dragoman.tasks.task import AnyStore, Task
from dragoman.training.cuda_graph import GradientGraph
from dragoman.training.distributed import Ranks, gradient_sync, is_sharded, unwrap_ddp, wrap_ddp

Ids = npt.NDArray[np.int64]
Stores = Callable[[int], AnyStore]  # the data of an epoch

# Spare room in a packed batch beyond pairs of mean length: targets should fill up first, and short pairs fit too
SPARE_SOURCE, SPARE_SENTENCES = 1.03, 1.25


class Layout(Protocol):
    name: str
    model: Model
    device: torch.device
    plan: PlanParameters

    def epoch(self, epoch: int, earlier: Sequence[Part] = ()) -> list[Ids]:
        """The batches of an epoch, as row numbers; a pure function of (seed, epoch, plan, earlier).

        With `earlier`: the batches of the pairs left over by those parts of the epoch.
        """

    def tokens(self, epoch: int, rows: Ids) -> int:
        """Target tokens of a batch, including </s>."""

    def make(self, epoch: int, rows: Ids) -> Any:
        """A batch of these pairs on the CPU, for `gradients`."""

    def padded(self, epoch: int, rows: Ids) -> list[AnyBatch]:
        """The same pairs in padded batches, bucketed by length."""

    def gradients(self, batches: Sequence[Any], tokens: int) -> Tensor:
        """Backward over `batches`, the loss divided by `tokens`, the total of all ranks. Returns this rank's share."""

    def close(self) -> None:
        """The last batch is done."""


def choose_layout(
    task: Task, settings: TrainConfig, stores: Stores, typical: AnyStore, longest: int, model: Model,
    device: torch.device, precision: torch.dtype, ranks: Ranks,
) -> Layout:  # fmt: skip
    """`auto` packs a Transformer where that is faster: on CUDA, and on the CPU in bfloat16.

    `typical`: pairs with the length distribution of every epoch; `longest`: pieces of the longest side, with </s>.
    """
    name = settings.layout
    if name == "auto":
        name = "packed" if packing_pays(model, device, precision) else "padded"
    if name == "padded":
        return Padded(task, settings, stores, longest, model, device, precision, ranks)
    if not can_pack(model):
        raise ConfigError(
            "train.layout: packed batches are for Transformers that translate or model text; use padded or auto"
        )
    if is_sharded(model):
        raise ConfigError("train.layout: packed batches do not support train.parallel = fsdp; use padded or auto")
    return Packed(task, settings, stores, typical, longest, model, device, precision, ranks)


def packing_pays(model: Model, device: torch.device, precision: torch.dtype) -> bool:
    if not can_pack(model) or is_sharded(model):  # these need the model's own forward
        return False
    # On CUDA one pass instead of several is faster even without the kernels; on the CPU PyTorch's own attention, which
    # padded batches use, is slow in bfloat16
    return device.type == "cuda" or (device.type == "cpu" and precision == torch.bfloat16)


def _shorten_compiler_log() -> None:
    """PyTorch before 2.13 logs the whole expression behind a custom operator, such as ours.

    That text doubles with every sub-layer: eight layers took minutes. Log the operator's name only.
    """
    from torch._inductor import exc

    exc.OperatorIssue.operator_str = staticmethod(lambda target, args, kwargs: f"  target: {target}")  # type: ignore[method-assign]


class _Layout:
    """What both layouts share: the store of an epoch, backward over the batches of a step."""

    plan: PlanParameters

    def __init__(
        self, task: Task, settings: TrainConfig, stores: Stores, longest: int, model: Model, device: torch.device,
        loss: nn.Module, ranks: Ranks,
    ) -> None:  # fmt: skip
        self.task, self.settings, self.model, self.device = task, settings, model, device
        self._stores, self._ranks = stores, ranks
        self._groups = groups_in(settings.batch_tokens, longest)
        self._loss = wrap_ddp(loss, ranks, device) if ranks.world > 1 and not is_sharded(model) else loss

    def epoch(self, epoch: int, earlier: Sequence[Part] = ()) -> list[Ids]:
        store = self._stores(epoch)
        rows = np.arange(len(store))
        for number, (plan, taken) in enumerate(earlier):
            left = self._batches(plan, store, epoch, rows, number)[taken:]
            rows = np.concatenate([rows[:0], *left])
        return self._batches(self.plan, store, epoch, rows, len(earlier))

    def tokens(self, epoch: int, rows: Ids) -> int:
        return int(self._stores(epoch).target_sizes[rows].sum())

    def padded(self, epoch: int, rows: Ids) -> list[AnyBatch]:
        store, tokens = self._stores(epoch), self.settings.batch_tokens // self._groups
        return [self.task.collate(store, group) for group in bucket_by_length(rows, store.sizes, tokens)]

    def gradients(self, batches: Sequence[Any], tokens: int) -> Tensor:
        self.model.train()
        for parameter in self.model.parameters():
            parameter.grad = None
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches):
            with gradient_sync(self.model if is_sharded(self.model) else self._loss, number == len(batches) - 1):
                loss = self._loss(batch.to(self.device)) / tokens
                # DDP and FSDP divide by the number of ranks, but `tokens` already counts all ranks
                (loss * self._ranks.world).backward()
                total += loss.detach()
        return total

    def close(self) -> None:
        unwrap_ddp(self._loss)

    def _batches(self, plan: PlanParameters, store: AnyStore, epoch: int, rows: Ids, part: int) -> list[Ids]:
        raise NotImplementedError


class Padded(_Layout):
    """Each sentence is a row, padded to the longest; a batch has several buckets of similar length."""

    name = "padded"

    def __init__(
        self, task: Task, settings: TrainConfig, stores: Stores, longest: int, model: Model, device: torch.device,
        precision: torch.dtype, ranks: Ranks,
    ) -> None:  # fmt: skip
        loss = PaddedLoss(task, model, precision, settings.label_smoothing, settings.r_drop)
        super().__init__(task, settings, stores, longest, model, device, loss, ranks)
        self.plan = {"batch_tokens": settings.batch_tokens, "groups": self._groups}

    def make(self, epoch: int, rows: Ids) -> list[AnyBatch]:
        return self.padded(epoch, rows)

    def gradients(self, batches: Sequence[list[AnyBatch]], tokens: int) -> Tensor:
        """One bucket after the other, so that memory holds one at a time."""
        groups = [group for batch in batches for group in batch]
        if is_sharded(self.model):  # every rank must take part in every pass, which gathers weights
            missing = self._ranks.max(len(groups)) - len(groups)
            groups += [groups[0].first_row_without_targets()] * missing
        return super().gradients(groups, tokens)

    def _batches(self, plan: PlanParameters, store: AnyStore, epoch: int, rows: Ids, part: int) -> list[Ids]:
        budget = {"batch_tokens": plan["batch_tokens"], "groups": plan["groups"]}
        batching = BatchPlan(store.sizes, **budget, seed=self.settings.seed)
        return batching.epoch(epoch, rows, part)


class PaddedLoss(nn.Module):
    """Summed over what a padded batch has to predict."""

    def __init__(
        self, task: Task, model: Model, precision: torch.dtype, label_smoothing: float, r_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.task, self.model = task, model
        self._precision, self._label_smoothing, self._r_drop = precision, label_smoothing, r_drop

    def forward(self, batch: AnyBatch) -> Tensor:
        passes = batch.twice() if self._r_drop else batch
        device = batch.target_output.device.type
        with torch.autocast(device, self._precision, enabled=self._precision != torch.float32):
            output = self.model(*passes.inputs)
        loss = self.task.loss(output, passes, self._label_smoothing)
        if self._r_drop:
            loss = loss / 2 + self._r_drop * divergence(output, batch.target_real)
        return loss


class Packed(_Layout):
    """Sentences end to end; where the attention kernels fit, in one fixed shape, compiled once."""

    name = "packed"

    def __init__(
        self, task: Task, settings: TrainConfig, stores: Stores, typical: AnyStore, longest: int, model: Model,
        device: torch.device, precision: torch.dtype, ranks: Ranks,
    ) -> None:  # fmt: skip
        target_tokens = settings.batch_tokens
        means = (typical.source_sizes.mean(), typical.target_sizes.mean())
        if target_tokens <= longest:
            raise ConfigError(
                f"train.batch_tokens: {target_tokens} is too small for the longest pair, {longest} pieces plus one; "
                "raise it, lower text.max_length, or use train.layout=padded"
            )
        source_tokens = 0
        if means[0]:
            source_tokens = int(target_tokens * means[0] / means[1] * SPARE_SOURCE)  # both sides fill up together
            source_tokens = -(-max(source_tokens, longest + 1) // 128) * 128
        sentences = int(target_tokens / means[1] * SPARE_SENTENCES) + 8
        self.plan = {"batch_tokens": target_tokens, "source_tokens": source_tokens, "sentences": sentences}
        self._shape: Shape | None = None
        self._graph: GradientGraph | None = None
        run = packed_model(model, longest)
        if kernels_fit(model.config, device):
            from dragoman.model.kernels import BLOCK, LONGEST_WHOLE

            self._shape = Shape(source_tokens, target_tokens, sentences, whole=LONGEST_WHOLE, block=BLOCK)
            _shorten_compiler_log()
            run = torch.compile(run, dynamic=False)  # type: ignore[assignment]
        loss = PackedLoss(model, run, precision, settings.label_smoothing, settings.r_drop)
        super().__init__(task, settings, stores, longest, model, device, loss, ranks)

    def make(self, epoch: int, rows: Ids) -> AnyPackedBatch:
        batch = self.task.pack(self._stores(epoch), rows, self._shape)
        return batch.pinned() if self.device.type == "cuda" else batch

    def gradients(self, batches: Sequence[AnyPackedBatch], tokens: int) -> Tensor:
        if self._shape is None or self._ranks.world > 1:
            return super().gradients(batches, tokens)
        self.model.train()
        if self._graph is None:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            more = self.settings.accumulate > 1
            self._graph = GradientGraph(self._loss, batches[0].to(self.device), trained, accumulates=more)
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches):
            total += self._graph(batch, tokens, first=number == 0)
        return total

    def _batches(self, plan: PlanParameters, store: AnyStore, epoch: int, rows: Ids, part: int) -> list[Ids]:
        budget = {"source_tokens": plan["source_tokens"], "target_tokens": plan["batch_tokens"]}
        assert not isinstance(store, SeriesStore)  # `can_pack` refuses forecasters
        packing = PackingPlan(store, **budget, sentences=plan["sentences"], seed=self.settings.seed)
        return packing.epoch(epoch, rows, part)


class PackedLoss(nn.Module):
    """The same loss over a packed batch, some rows of logits at a time."""

    def __init__(
        self, model: Model, run: nn.Module, precision: torch.dtype, label_smoothing: float, r_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.model, self.run = model, run
        self._precision, self._label_smoothing, self._r_drop = precision, label_smoothing, r_drop

    def forward(self, batch: AnyPackedBatch) -> Tensor:
        hidden_NM, target_N = self._pass(batch), batch.target_output_N
        if self._r_drop:  # a token's two passes side by side
            hidden_NM = torch.stack((hidden_NM, self._pass(batch)), dim=1).flatten(0, 1)
            target_N = target_N.repeat_interleave(2)
        weight, bias = self.model.output.weight, self.model.output.bias
        return projected_cross_entropy(
            hidden_NM, weight, bias, target_N, self._label_smoothing, self._r_drop, batch.pad
        )

    def _pass(self, batch: AnyPackedBatch) -> Tensor:
        device, half = batch.target_output_N.device.type, self._precision != torch.float32
        with torch.autocast(device, self._precision, enabled=half):
            hidden_NM: Tensor = self.run(*batch.inputs)
        return hidden_NM.to(self._precision) if half else hidden_NM
