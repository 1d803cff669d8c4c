"""Attention (section 3.2 of the paper): the scaled dot product, its masks, its heads. Knows nothing of layers or text.

Shapes, as suffixes of names:
    B  sentences in the batch       H  heads
    Q  query positions              K  key positions
    L  layers
    M  width of a position (d_model; M2 where the memory's differs)
    D  width of a head's queries and keys (d_k)      E  width of a head's values (d_v)

Masks say what is allowed: True = may attend.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.positions import rotate

# cuDNN's attention, PyTorch's first choice for bf16 on Hopper, builds a plan for every new shape, 40 to 500 ms each;
# decoding has a new shape at every step. The other kernels take any shape. The switch is process-wide.
torch.backends.cuda.enable_cudnn_sdp(False)


class KeysValues(NamedTuple):
    """What a query attends to: keys to match, values to read."""

    k_BHKD: Tensor
    v_BHKE: Tensor


@dataclass
class AttentionWeights:
    """The attention of every head of every layer: one [B, H, Q, K] per layer, each row summing to 1."""

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)


class HeadMask(NamedTuple):
    """Which heads take part (True); the others contribute nothing. One row per sentence, as in every batch."""

    encoder_LBH: Tensor
    decoder_LBH: Tensor
    cross_LBH: Tensor


def padding_mask(allowed_BK: Tensor) -> Tensor:
    """Real source positions (True) as a mask shared by all heads and queries."""
    return allowed_BK[:, None, None, :]


def look_ahead_mask(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
    """Position i may attend to every j <= i. The queries are the last of the keys, as when decoding with a cache."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


def attend(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKE: Tensor,
    allowed: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(Q K^T / sqrt(d_k)) V, and the softmax itself on request (before dropout).

    `allowed` broadcasts to [B, H, Q, K]; `causal` adds the look-ahead mask. A query with no allowed key gets zeros.
    Without weights the fused kernel runs, with them the plain formula; both give the same result.
    """
    if causal:
        num_queries, num_keys = q_BHQD.size(-2), k_BHKD.size(-2)
        if allowed is None and num_queries == num_keys and not need_weights:  # the kernel's own, faster mask
            return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKE, is_causal=True, dropout_p=dropout), None
        past_QK = look_ahead_mask(num_queries, num_keys, q_BHQD.device)
        allowed = past_QK if allowed is None else allowed & past_QK
    if not need_weights:
        heads_BHQE = F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKE, attn_mask=allowed, dropout_p=dropout)
        if allowed is not None and heads_BHQE.is_cuda:
            # CUDA's bf16 kernels give a query with no allowed key the mean of all values
            heads_BHQE = heads_BHQE.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
        return heads_BHQE, None

    weights_BHQK = masked_softmax(q_BHQD @ k_BHKD.mT / math.sqrt(q_BHQD.size(-1)), allowed)
    dropped_BHQK = F.dropout(weights_BHQK, dropout).to(v_BHKE.dtype)
    return dropped_BHQK @ v_BHKE, weights_BHQK


def masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the last dimension, zero where not allowed; all zeros where nothing is allowed."""
    # at least fp32: a bf16 softmax loses the tail
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if allowed is None:
        return scores.softmax(dim=-1)
    # The lowest finite number, not -inf: a row with no allowed key must not become NaN.
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~allowed, 0.0)


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own projection of queries, keys and values.

    The three uses differ only in where queries and memory come from: encoder self-attention (both the source),
    masked decoder self-attention (both the target so far), encoder-decoder attention (query from the decoder, keys
    and values from the encoder).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        *,
        d_memory: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, num_heads * d_k, bias=bias)
        self.key = nn.Linear(d_memory or d_model, num_heads * d_k, bias=bias)
        self.value = nn.Linear(d_memory or d_model, num_heads * d_v, bias=bias)
        self.output = nn.Linear(num_heads * d_v, d_model, bias=bias)

    def keys_values(self, memory_BKM: Tensor, rotation: Tensor | None = None) -> KeysValues:
        k_BHKD = self._split(self.key(memory_BKM))
        return KeysValues(k_BHKD if rotation is None else rotate(k_BHKD, rotation), self._split(self.value(memory_BKM)))

    def forward(
        self,
        x_BQM: Tensor,
        memory: KeysValues,
        allowed: Tensor | None = None,
        *,
        causal: bool = False,
        rotation: Tensor | None = None,
        head_mask_BH: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        q_BHQD = self._split(self.query(x_BQM))
        if rotation is not None:
            q_BHQD = rotate(q_BHQD, rotation)
        heads_BHQE, weights_BHQK = attend(
            q_BHQD,
            memory.k_BHKD,
            memory.v_BHKE,
            allowed,
            causal=causal,
            dropout=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        if head_mask_BH is not None:
            heads_BHQE = heads_BHQE.masked_fill(~head_mask_BH[:, :, None, None], 0.0)
        return self.output(heads_BHQE.transpose(1, 2).flatten(2)), weights_BHQK

    def _split(self, x_BKM: Tensor) -> Tensor:
        return x_BKM.view(*x_BKM.shape[:-1], self.num_heads, -1).transpose(1, 2)
