"""Find the first layer of a step whose values are not finite. Knows nothing of optimizers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def first_nonfinite(model: nn.Module, loss_of: Callable[[], Tensor]) -> str | None:
    """Run one batch again, forward and backward, and name the first value that is not finite.

    None if all are finite this time. The gradients of `model` are restored; its weights do not change.
    """
    kept = {parameter: parameter.grad for parameter in model.parameters()}
    try:
        for parameter in kept:
            parameter.grad = None
        with _watched(model) as faults:
            loss = loss_of()
            if faults:
                return faults[0]
            if not torch.isfinite(loss).all():
                return "the loss itself: every layer's output is finite"
            loss.backward()  # type: ignore[no-untyped-call]
        broken = [name for name, parameter in model.named_parameters() if _broken(parameter.grad)]
        gradients = [parameter.grad for parameter in model.parameters()]
        if faults and len(broken) != 1:  # a single parameter: only its own gradient broke, not what flowed into it
            return faults[0]
        if broken:
            return f"the gradient of {broken[-1]}"
        norm = torch.nn.utils.get_total_norm([grad for grad in gradients if grad is not None])
        return None if torch.isfinite(norm) else "the norm of the gradients: each is finite, their squares overflow"
    finally:
        for parameter, gradient in kept.items():
            parameter.grad = gradient


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[str]]:
    """Non-finite values in the order they occur: forward from the first layer, backward from the last."""
    faults: list[str] = []
    handles = []
    for name, module in model.named_modules():
        if next(module.children(), None) is not None or not name:
            continue  # the innermost modules are more specific

        def check(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            for part in _tensors(output):
                if _broken(part):
                    faults.append(f"the output of {name}")
                elif part.requires_grad:
                    part.register_hook(lambda gradient: _note(faults, gradient, name))  # type: ignore[no-untyped-call]

        handles.append(module.register_forward_hook(check))
    try:
        yield faults
    finally:
        for handle in handles:
            handle.remove()


def _note(faults: list[str], gradient: Tensor, name: str) -> None:
    if _broken(gradient):
        faults.append(f"the gradient that reaches {name}")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _broken(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
