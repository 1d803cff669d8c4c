"""The Transformer over packed batches: sentences end to end, nothing paid for padding. Knows nothing of text or loss.

The modules and weights are transformer.py's, and so are the results; only attention has to know where a sentence ends.
On CUDA a kernel for short sentences does (kernels.py); elsewhere attention alone unpacks to a padded view.

Shapes: N packed tokens, B sentences, L longest sentence, M width of a position, H heads, D and E widths of a head.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dragoman.model.attention import MultiHeadAttention, attend, padding_mask
from dragoman.model.positions import rotate, rotation_at
from dragoman.model.transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    Residual,
    Transformer,
    embed,
)

MOST_SUB_LAYERS = 5_000  # two a layer in the encoder, three in the decoder; a stack has at most 1,000 layers


class Segments(NamedTuple):
    """Where sentences lie in a packed row of tokens. Every token belongs to one; what fills up a batch is one more."""

    positions_N: Tensor  # of each token within its sentence
    starts: Tensor  # [B + 1]: sentence b is tokens starts[b] to starts[b + 1]
    blocks: Tensor | None = None  # [G, 2], of long sentences, for the kernel: which, and which block of it; -1: none
    grid_BL: Tensor | None = None  # for the padded view: the token at each place, any token in padding
    real_BL: Tensor | None = None  # and which places are real


class PackedTransformer(nn.Module):
    """A Transformer run over packed ids; its parameters are that model's own."""

    def __init__(self, model: Transformer, longest: int) -> None:
        """`longest`: tokens of the longest sentence, </s> among them."""
        super().__init__()
        self.model = model
        for side, stack in (("source", model.encoder), ("target", model.decoder)):
            # made once: sines of every token's own position would take longer than a layer's attention
            sinusoidal = stack.positions.kind == "sinusoidal"
            weight = model.output.weight
            positions = torch.arange(longest, device=weight.device)
            table_LM = stack.positions.vectors(positions, weight.dtype) if sinusoidal else None
            self.register_buffer(f"{side}_table", table_LM, persistent=False)
        self.source_table: Tensor | None
        self.target_table: Tensor | None

    def forward(self, source_ids_N: Tensor, target_ids_N: Tensor, source: Segments, target: Segments) -> Tensor:
        """What the output projection is applied to, for every target token: [N, M]."""
        encoder, decoder = self.model.encoder, self.model.decoder
        join = _Join(fused=target.blocks is not None, device=target_ids_N.device)
        x_NM, turns = _place(encoder, self.source_table, embed(self.model.source_embedding, source_ids_N), source)
        for layer in encoder.layers:
            x_NM = _encoder_layer(layer, join, x_NM, source, turns)  # type: ignore[arg-type]
        memory_NM = encoder.finish(x_NM)

        x_NM, turns = _place(decoder, self.target_table, embed(self.model.target_embedding, target_ids_N), target)
        for layer in decoder.layers:
            x_NM = _decoder_layer(layer, join, x_NM, memory_NM, source, target, turns)  # type: ignore[arg-type]
        return decoder.finish(x_NM)


def _place(
    stack: Encoder | Decoder, table_LM: Tensor | None, x_NM: Tensor, segments: Segments
) -> tuple[Tensor, Tensor | None]:
    positions_N = segments.positions_N
    added_NM = stack.positions.vectors(positions_N, x_NM.dtype) if table_LM is None else table_LM[positions_N]
    turns = rotation_at(positions_N, stack.size.d_k) if stack.rotary else None
    x_NM = stack.dropout(x_NM if added_NM is None else x_NM + added_NM.to(x_NM.dtype))
    return _stream(x_NM, pre_norm=stack.final_norm is not None), turns


def _stream(x_NM: Tensor, *, pre_norm: bool) -> Tensor:
    """What goes from layer to layer. In post-norm it is normalised, and autocast's precision is enough.

    In pre-norm it is a sum over all layers and stays in float32.
    """
    device = x_NM.device.type
    if pre_norm or not torch.is_autocast_enabled(device):
        return x_NM
    return x_NM.to(torch.get_autocast_dtype(device))


class _Join:
    """Residual.leave for every sub-layer of a forward pass; fused where the kernels run and the model is post-norm."""

    def __init__(self, *, fused: bool, device: torch.device) -> None:
        self.fused = fused
        self.seeds = torch.randint(2**31, (MOST_SUB_LAYERS,), device=device) if fused else None
        self.number = 0

    def __call__(self, residual: Residual, x_NM: Tensor, out_NM: Tensor) -> Tensor:
        if self.seeds is None or residual.pre_norm:
            return _stream(residual.leave(x_NM, out_NM), pre_norm=residual.pre_norm)
        from dragoman.model import kernels

        norm, dropout = residual.layer_norm, residual.dropout.p if residual.training else 0.0
        joined_NM, *_ = kernels.residual_norm(
            x_NM, out_NM.to(x_NM.dtype), norm.weight, norm.bias, self.seeds, self.number, dropout, norm.eps
        )
        self.number += 1
        return joined_NM


def _encoder_layer(layer: EncoderLayer, join: _Join, x_NM: Tensor, source: Segments, turns: Tensor | None) -> Tensor:
    h_NM = layer.self_attention_residual.enter(x_NM)
    out_NM = _self_attention(layer.self_attention, h_NM, source, turns, causal=False)
    x_NM = join(layer.self_attention_residual, x_NM, out_NM)

    h_NM = layer.feed_forward_residual.enter(x_NM)
    return join(layer.feed_forward_residual, x_NM, _feed_forward(layer.feed_forward, h_NM, fused=join.fused))


def _decoder_layer(
    layer: DecoderLayer,
    join: _Join,
    x_NM: Tensor,
    memory_NM: Tensor,
    source: Segments,
    target: Segments,
    turns: Tensor | None,
) -> Tensor:
    h_NM = layer.self_attention_residual.enter(x_NM)
    out_NM = _self_attention(layer.self_attention, h_NM, target, turns, causal=True)
    x_NM = join(layer.self_attention_residual, x_NM, out_NM)

    h_NM = layer.cross_attention_residual.enter(x_NM)
    out_NM = _cross_attention(layer.cross_attention, h_NM, memory_NM, target, source)
    x_NM = join(layer.cross_attention_residual, x_NM, out_NM)

    h_NM = layer.feed_forward_residual.enter(x_NM)
    return join(layer.feed_forward_residual, x_NM, _feed_forward(layer.feed_forward, h_NM, fused=join.fused))


def _feed_forward(feed_forward: FeedForward, x_NM: Tensor, *, fused: bool) -> Tensor:
    if not fused or feed_forward.activation is not nn.functional.relu or not torch.is_autocast_enabled("cuda"):
        return feed_forward(x_NM)
    from dragoman.model import kernels

    inner, precision = feed_forward.inner, torch.get_autocast_dtype("cuda")
    return feed_forward.outer(kernels.linear_relu(*(part.to(precision) for part in (x_NM, inner.weight, inner.bias))))


def _self_attention(
    attention: MultiHeadAttention, x_NM: Tensor, segments: Segments, turns: Tensor | None, *, causal: bool
) -> Tensor:
    qkv_NC = _project(x_NM, attention.query, attention.key, attention.value)
    if segments.blocks is None or turns is not None:
        q_NHD, k_NHD, v_NHE = _heads(attention, qkv_NC, attention.query, attention.key, attention.value)
        if turns is not None:
            q_NHD, k_NHD = (rotate(part.transpose(0, 1), turns).transpose(0, 1) for part in (q_NHD, k_NHD))
        if segments.blocks is None:
            return _plain(attention, q_NHD, k_NHD, v_NHE, segments, segments, causal)
        qkv_NC = torch.cat([part.flatten(1) for part in (q_NHD, k_NHD, v_NHE)], dim=1)
    from dragoman.model import kernels

    heads_NC, _ = kernels.self_attention(qkv_NC, segments.blocks, segments.starts, attention.num_heads, causal)
    return attention.output(heads_NC)


def _cross_attention(
    attention: MultiHeadAttention, x_NM: Tensor, memory_NM: Tensor, queries: Segments, keys: Segments
) -> Tensor:
    q_NC, kv_NC = attention.query(x_NM), _project(memory_NM, attention.key, attention.value)
    if queries.blocks is None or keys.blocks is None:
        (q_NHD,) = _heads(attention, q_NC, attention.query)
        k_NHD, v_NHE = _heads(attention, kv_NC, attention.key, attention.value)
        return _plain(attention, q_NHD, k_NHD, v_NHE, queries, keys, causal=False)
    from dragoman.model import kernels

    heads_NC, _ = kernels.cross_attention(
        q_NC, kv_NC, queries.blocks, keys.blocks, queries.starts, keys.starts, attention.num_heads
    )
    return attention.output(heads_NC)


def _project(x_NM: Tensor, *maps: nn.Linear) -> Tensor:
    """Several linear maps of one input as one product with their matrices stacked; results side by side."""
    bias = None if maps[0].bias is None else torch.cat([each.bias for each in maps])
    return nn.functional.linear(x_NM, torch.cat([each.weight for each in maps]), bias)


def _heads(attention: MultiHeadAttention, x_NC: Tensor, *maps: nn.Linear) -> list[Tensor]:
    parts = torch.split(x_NC, [each.out_features for each in maps], dim=-1)
    return [part.reshape(len(part), attention.num_heads, -1) for part in parts]


def _plain(
    attention: MultiHeadAttention,
    q_NHD: Tensor,
    k_NHD: Tensor,
    v_NHE: Tensor,
    queries: Segments,
    keys: Segments,
    causal: bool,
) -> Tensor:
    dropout = attention.dropout if attention.training else 0.0
    return attention.output(_padded_attention(q_NHD, k_NHD, v_NHE, queries, keys, causal, dropout).flatten(1))


LIKE_LENGTH = 16  # lengths are rounded up to a multiple of it to find sentences of like length


def _padded_attention(
    q_NHD: Tensor, k_NHD: Tensor, v_NHE: Tensor, queries: Segments, keys: Segments, causal: bool, dropout: float
) -> Tensor:
    """The plain way: each sentence a row, padded to the longest; on the CPU, to the longest of those of like length."""
    assert queries.real_BL is not None
    assert keys.real_BL is not None
    groups = [torch.arange(len(queries.real_BL), device=q_NHD.device)]
    if q_NHD.device.type == "cpu":
        lengths_B = torch.maximum(queries.real_BL.sum(dim=1), keys.real_BL.sum(dim=1))
        steps_B = (lengths_B - 1) // LIKE_LENGTH
        groups = [(steps_B == step).nonzero()[:, 0] for step in torch.unique(steps_B)]
    query_view = _PaddedView(queries, groups)
    key_view = query_view if keys is queries else _PaddedView(keys, groups)

    parts = (query_view.unpack(q_NHD), key_view.unpack(k_NHD), key_view.unpack(v_NHE))
    heads = []
    for q_BLHD, k_BLHD, v_BLHE, real_BL in zip(*parts, key_view.reals, strict=True):
        # In causal self-attention padding comes after all that is real, so the look-ahead mask hides it already.
        allowed = None if causal else padding_mask(real_BL)
        q_BHLD, k_BHLD, v_BHLE = (part.transpose(1, 2) for part in (q_BLHD, k_BLHD, v_BLHE))
        heads_BHLE, _ = attend(q_BHLD, k_BHLD, v_BHLE, allowed, causal=causal, dropout=dropout)
        heads.append(heads_BHLE.transpose(1, 2))
    return query_view.pack(heads)


class _PaddedView:
    """Packed tokens as rows of sentences, one tensor for each group of them, and back; P places in all."""

    def __init__(self, segments: Segments, groups: list[Tensor]) -> None:
        assert segments.grid_BL is not None
        assert segments.real_BL is not None
        self.reals, tokens = [], []
        for rows_B in groups:
            real_BL = segments.real_BL[rows_B]
            longest = int(real_BL.sum(dim=1).max()) if len(groups) > 1 else real_BL.size(1)
            self.reals.append(real_BL[:, :longest])
            tokens.append(segments.grid_BL[rows_B, :longest].flatten())
        self.tokens_P = torch.cat(tokens)
        real_P = torch.cat([real_BL.flatten() for real_BL in self.reals])
        self.places_N = torch.empty_like(segments.positions_N)
        self.places_N[self.tokens_P[real_P]] = real_P.nonzero()[:, 0]

    # index_select, not []: the gradient of [] takes twenty times as long on two threads as on one
    def unpack(self, x_NHD: Tensor) -> list[Tensor]:
        parts = torch.split(x_NHD.index_select(0, self.tokens_P), [real_BL.numel() for real_BL in self.reals])
        return [part.view(*real_BL.shape, *x_NHD.shape[1:]) for part, real_BL in zip(parts, self.reals, strict=True)]

    def pack(self, parts: list[Tensor]) -> Tensor:
        return torch.cat([part_BLHE.flatten(0, 1) for part_BLHE in parts]).index_select(0, self.places_N)
