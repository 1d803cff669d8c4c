"""The training loss (sections 5.3 and 5.4 of the paper): cross-entropy with label smoothing. Knows nothing of models.

Shapes: B sentences, T target positions, N packed target tokens, M width of a position, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.device import kernels_run

PAD = 0  # in vocabularies trained by dragoman
CUDA_CHUNK, CHUNK = 12_800, 2_048  # target tokens whose logits are held at once
CPU_ROWS = 32  # rows that stay in the CPU's cache from logits to gradient


def smoothed_cross_entropy(logits_BTV: Tensor, target_BT: Tensor, label_smoothing: float, pad: int = PAD) -> Tensor:
    """Summed over the target tokens that are not `pad`.

    The target is 1 - e on the right token plus e spread evenly over all.
    """
    # fp32: a bf16 log-softmax loses the tail; the caller divides by the tokens of all batches in a step
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).float() if logits_BTV.element_size() < 4 else logits_BTV.flatten(0, 1),
        target_BT.flatten(),
        ignore_index=pad,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def divergence(logits_BTV: Tensor, real_BT: Tensor) -> Tensor:
    """R-Drop (Liang et al. 2021): the divergence of two passes under different dropout, KL both ways, over 4.

    The passes are the halves of the batch. Half of their loss, as the loss here is the mean of both passes.
    """
    one, two = logits_BTV.log_softmax(dim=-1, dtype=_at_least_float32(logits_BTV)).chunk(2)
    ways = (
        F.kl_div(one, two, reduction="none", log_target=True),
        F.kl_div(two, one, reduction="none", log_target=True),
    )
    return (ways[0] + ways[1])[real_BT].sum() / 4


def rows_at_once(device: torch.device, r_drop: float = 0.0) -> int:
    rows = CUDA_CHUNK if device.type == "cuda" else CHUNK
    if r_drop and not (device.type == "cuda" and kernels_run()):
        return rows // 4  # without the kernel a divergence takes several float32 numbers for each logit
    return rows


def projected_cross_entropy(
    hidden_NM: Tensor,
    weight_VM: Tensor,
    bias_V: Tensor | None,
    target_N: Tensor,
    label_smoothing: float,
    r_drop: float = 0.0,
    pad: int = PAD,
) -> Tensor:
    """The same from the input of the output projection, some rows at a time, never holding all logits.

    With `r_drop`, rows 2n and 2n + 1 are a token's two passes: the mean of their losses, and their divergence.
    """
    loss: Tensor = _ProjectedCrossEntropy.apply(hidden_NM, weight_VM, bias_V, target_N, label_smoothing, r_drop, pad)  # type: ignore[no-untyped-call]
    return loss


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Gradients are computed in forward, while a chunk's logits exist; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NM: Tensor,
        weight_VM: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        label_smoothing: float,
        r_drop: float,
        pad: int,
    ) -> Tensor:
        weight = weight_VM.to(hidden_NM.dtype)
        bias = None if bias_V is None else bias_V.to(hidden_NM.dtype)
        d_hidden_NM = torch.empty_like(hidden_NM)
        d_weight_VM = torch.zeros_like(weight_VM)
        d_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
        total = hidden_NM.new_zeros((), dtype=_at_least_float32(hidden_NM))
        count = rows_at_once(hidden_NM.device, r_drop)
        for start in range(0, hidden_NM.size(0), count):
            rows = slice(start, start + count)
            logits = F.linear(hidden_NM[rows], weight, bias)
            if r_drop:
                total += _loss_and_gradient_of_two_(logits, target_N[rows], label_smoothing, r_drop, pad)
            else:
                total += _loss_and_gradient_(logits, target_N[rows], label_smoothing, pad).sum()
            torch.mm(logits, weight, out=d_hidden_NM[rows])
            d_weight_VM += logits.T @ hidden_NM[rows]
            if d_bias_V is not None:
                d_bias_V += logits.sum(dim=0)
            del logits  # before the next are allocated
        ctx.save_for_backward(d_hidden_NM, d_weight_VM, d_bias_V)
        return total

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> Any:
        # d_loss is 1 / tokens, a third of a percent off in bfloat16: the product is taken in the precision it has
        scaled = (
            None if part is None else (part.to(d_loss.dtype) * d_loss).to(part.dtype) for part in ctx.saved_tensors
        )
        return *scaled, None, None, None, None


def _loss_and_gradient_(logits_NV: Tensor, target_N: Tensor, label_smoothing: float, pad: int) -> Tensor:
    """The loss of each row; in place of the logits their gradient, p - q, zero in padding."""
    if logits_NV.is_cuda and kernels_run():
        from dragoman.model.kernels import loss_and_gradient_

        return loss_and_gradient_(logits_NV, target_N, label_smoothing, pad)
    losses = [
        _loss_and_gradient_of_rows_(*rows, label_smoothing, pad)
        for rows in zip(torch.split(logits_NV, CPU_ROWS), torch.split(target_N, CPU_ROWS), strict=True)
    ]
    return torch.cat(losses)


def _loss_and_gradient_of_two_(
    logits_NV: Tensor, target_N: Tensor, label_smoothing: float, r_drop: float, pad: int
) -> Tensor:
    """The mean loss of two passes with their divergence; in place of the logits their gradient, zero in padding."""
    if logits_NV.is_cuda and kernels_run():
        from dragoman.model.kernels import two_losses_and_gradients_

        return two_losses_and_gradients_(logits_NV, target_N, label_smoothing, r_drop, pad).sum()
    log_p_N2V = logits_NV.view(-1, 2, logits_NV.size(1)).log_softmax(dim=-1, dtype=_at_least_float32(logits_NV))
    apart_N2V = log_p_N2V - log_p_N2V.flip(1)  # of either from the other
    p_N2V = log_p_N2V.exp_()
    kl_N21 = (p_N2V * apart_N2V).sum(dim=-1, keepdim=True)
    # of KL(p, q) towards the logits of p: p (log p - log q - KL); of KL(q, p): p - q
    d_apart_N2V = apart_N2V.sub_(kl_N21).mul_(p_N2V).add_(p_N2V).sub_(p_N2V.flip(1))
    real_N = target_N != pad
    loss = _loss_and_gradient_(logits_NV, target_N, label_smoothing, pad).sum() / 2
    d_apart_NV = d_apart_N2V.view_as(logits_NV).mul_(real_N[:, None] * (r_drop / 4))
    logits_NV.copy_(d_apart_NV.add_(logits_NV, alpha=0.5))
    return loss + r_drop / 4 * (kl_N21.flatten() * real_N).sum()


def _loss_and_gradient_of_rows_(logits_NV: Tensor, target_N: Tensor, label_smoothing: float, pad: int) -> Tensor:
    real_N, places_N1 = target_N != pad, target_N[:, None]
    log_p_NV = logits_NV.log_softmax(dim=-1, dtype=_at_least_float32(logits_NV))
    right_N = log_p_NV.gather(1, places_N1)[:, 0]
    losses_N = -(1 - label_smoothing) * right_N - label_smoothing * log_p_NV.mean(dim=-1)
    gradient_NV = log_p_NV.exp_().sub_(label_smoothing / logits_NV.size(1))
    gradient_NV.scatter_add_(1, places_N1, gradient_NV.new_full(places_N1.shape, label_smoothing - 1))
    logits_NV.copy_(gradient_NV.mul_(real_N[:, None]))
    return losses_N * real_N


def _at_least_float32(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
