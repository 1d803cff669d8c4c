"""Triton kernels for CUDA: attention over packed sentences, the residual and norm around a sub-layer, the loss.

Imported only if Triton and CUDA are available. The plain formulas in model/attention.py, model/transformer.py and
model/loss.py are their oracle.

Shapes: N packed tokens, H heads, D padded width of a head, C = H D, G blocks of a sentence's tokens, V vocabulary.
"""

from dragoman.model.kernels.attention import (
    BLOCK,
    LONGEST_WHOLE,
    cross_attention,
    fits,
    self_attention,
    self_attention_forward,
    width_for,
)
from dragoman.model.kernels.loss import loss_and_gradient_, two_losses_and_gradients_
from dragoman.model.kernels.sublayers import linear_relu, linear_relu_forward, residual_norm, residual_norm_forward

__all__ = [
    "BLOCK", "LONGEST_WHOLE", "cross_attention", "fits", "linear_relu", "linear_relu_forward", "loss_and_gradient_",
    "residual_norm", "residual_norm_forward", "self_attention", "self_attention_forward", "two_losses_and_gradients_",
    "width_for",
]  # fmt: skip
