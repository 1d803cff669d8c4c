"""Muon: the matrices of the layers move by their orthogonal momentum, everything else by Adam. Knows nothing of models.

The momentum of a matrix has a few large directions and many small ones. Made orthogonal, all of them count the same
(Jordan et al. 2024). The update is scaled so that it is as large as one of Adam (Liu et al. 2025).

Shapes: N matrices of the same size, R rows, C columns, S the smaller of the two.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.device import kernels_run

MOMENTUM = 0.95
SIZE = 0.2  # root mean square of an update of Adam, in learning rates
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of a polynomial that moves singular values towards 1, in five steps
STEPS = 5


class Muon(torch.optim.Optimizer):
    """Two groups of parameters: matrices, and what Adam updates. `scale` is of the learning rate of matrices."""

    def __init__(self, matrices: Sequence[Tensor], others: torch.optim.Adam, scale: float) -> None:
        self._adam, self._scale = others, scale
        own = [parameter for group in others.param_groups for parameter in group["params"]]
        super().__init__([{"params": list(matrices)}, {"params": own}], {"lr": 0.0, "fused": others.defaults["fused"]})
        others.state = self.state
        self.found_inf: Tensor | None = None  # 1 if a number of the step is not finite: then nothing changes
        by_size: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            by_size[tuple(matrix.shape)].append(matrix)
        self._same_size = list(by_size.values())
        is_compiled = bool(matrices) and matrices[0].is_cuda and kernels_run()
        self._update = torch.compile(orthogonal_update, dynamic=False) if is_compiled else orthogonal_update

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        rate = self.param_groups[0]["lr"]
        for group in self._adam.param_groups:
            group["lr"] = rate
        if self.found_inf is not None:
            self._adam.found_inf = self.found_inf  # type: ignore[attr-defined]
        self._adam.step()
        for all_matrices in self._same_size:
            matrices = [matrix for matrix in all_matrices if matrix.grad is not None]
            if not matrices:
                continue
            moments = [self._moment(matrix) for matrix in matrices]
            gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
            moment_NRC, update_NRC = self._update(gradients, moments, self.found_inf)
            torch._foreach_copy_(moments, list(moment_NRC.unbind()))
            torch._foreach_add_(matrices, list(update_NRC.unbind()), alpha=-rate * self._scale)

    def _moment(self, matrix: Tensor) -> Tensor:
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        moment: Tensor = state["momentum"]
        return moment


def orthogonal_update(
    gradients: Sequence[Tensor], moments: Sequence[Tensor], found_inf: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The new momentum, and the update for a learning rate of 1."""
    gradient_NRC, old_NRC = torch.stack(list(gradients)), torch.stack(list(moments))
    moment_NRC = old_NRC.lerp(gradient_NRC, 1 - MOMENTUM)
    ahead_NRC = gradient_NRC.lerp(moment_NRC, MOMENTUM)  # Nesterov's
    size = SIZE * max(gradient_NRC.shape[1:]) ** 0.5
    update_NRC = size * orthogonalize(ahead_NRC).to(gradient_NRC.dtype)
    if found_inf is not None:
        is_finite = found_inf == 0
        moment_NRC = torch.where(is_finite, moment_NRC, old_NRC)
        update_NRC = torch.where(is_finite, update_NRC, 0.0)
    return moment_NRC, update_NRC


def orthogonalize(matrix_NRC: Tensor) -> Tensor:
    """Nearly U V^T for U S V^T: singular values between about 0.7 and 1.2 instead of any."""
    is_tall = matrix_NRC.shape[-2] > matrix_NRC.shape[-1]
    x = matrix_NRC.bfloat16() if matrix_NRC.is_cuda else matrix_NRC  # a CPU without AMX is slow in bfloat16
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square_NSS = x @ x.mT
        x = a * x + (b * square_NSS + c * square_NSS @ square_NSS) @ x
    return x.mT if is_tall else x
