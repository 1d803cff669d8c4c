"""The loss and gradients of a batch as one CUDA graph: hundreds of kernels in one launch. Knows nothing of models.

Launched one by one from Python, the kernels of a packed batch take longer to launch than to run.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dragoman.data.packing import AnyPackedBatch

WARM_UPS = 3  # for compilation and allocations, which must not happen during capture


class GradientGraph:
    """Replays `loss_of(batch).backward()` on batches of one shape."""

    def __init__(
        self,
        loss_of: Callable[[AnyPackedBatch], Tensor],
        example: AnyPackedBatch,
        parameters: Sequence[Tensor],
        *,
        accumulates: bool,
    ) -> None:
        """`accumulates`: whether a step has more than one batch."""
        self._loss_of = loss_of
        self._batch = example
        device = example.target_output_N.device
        self._share = torch.ones((), device=device)  # 1 / tokens of the step
        random = torch.cuda.get_rng_state(device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._backward()
        torch.cuda.current_stream(device).wait_stream(stream)
        for parameter in parameters:
            parameter.grad = None  # the first graph then allocates gradients at fixed addresses
        self._first = self._record()
        self._more = self._record() if accumulates else None  # adds to them
        torch.cuda.set_rng_state(random, device)  # undo the warm-up: a resumed run warms up again

    def _backward(self) -> Tensor:
        loss = self._loss_of(self._batch) * self._share
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _record(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._backward()
        return graph, loss

    def __call__(self, batch: AnyPackedBatch, tokens: int, *, first: bool) -> Tensor:
        """Set the gradients from this batch, or add to them. Returns its share of the loss, overwritten next time."""
        for ours, given in zip(self._batch.tensors(), batch.tensors(), strict=True):
            ours.copy_(given, non_blocking=True)
        self._share.fill_(1.0 / tokens)
        recorded = self._first if first else self._more
        assert recorded is not None
        graph, loss = recorded
        graph.replay()
        return loss
