"""The Transformer over packed batches: sentences end to end, no cost for padding. Knows nothing of text or loss.

Modules, weights and results are those of transformer.py; only attention has to know where a sentence ends. Kernels for
short sentences handle that where they run (kernels/); elsewhere attention alone unpacks to a padded view.

Shapes: N packed tokens, B sentences, L longest sentence, M width of a position, H heads, D and E widths of a head,
C all heads side by side, G blocks of long sentences.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dragoman.config import LayersConfig
from dragoman.device import kernels_run
from dragoman.model.attention import MultiHeadAttention, look_ahead_mask
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
from dragoman.model.variants import DecoderOnly

MOST_SUB_LAYERS = 5_000  # two per encoder layer, three per decoder layer; a stack has at most 1,000 layers


class Rows(NamedTuple):
    """A padded view of packed tokens: one row per sentence, and one table for sentences of similar length."""

    tokens: tuple[Tensor, ...]  # [B, L] each: the token at every place, any token in padding
    reals: tuple[Tensor, ...]  # [B, L] each: which places are real
    places_N: Tensor  # where each token is, counting the places of all tables in order

    def map(self, change: Callable[[Tensor], Tensor]) -> "Rows":
        return Rows(tuple(map(change, self.tokens)), tuple(map(change, self.reals)), change(self.places_N))


class Segments(NamedTuple):
    """Where sentences lie in a packed row of tokens.

    In training every token belongs to one; the filling of a batch is one more. The kernels leave nothing defined for
    tokens of none: no sentence attends to them, and everything else works token by token.
    """

    positions_N: Tensor  # of each token within its sentence
    starts: Tensor  # [B + 1]: sentence b is tokens starts[b] to starts[b + 1]
    blocks: Tensor | None = None  # [G, 2], of long sentences, for the kernel: the sentence and its block; -1: none
    rows: Rows | None = None  # for attention without the kernel

    def map(self, change: Callable[[Tensor], Tensor]) -> "Segments":
        """The same with every tensor changed: moved to a device, pinned."""
        blocks = None if self.blocks is None else change(self.blocks)
        rows = None if self.rows is None else self.rows.map(change)
        return Segments(change(self.positions_N), change(self.starts), blocks, rows)


def kernels_fit(config: LayersConfig, device: torch.device) -> bool:
    """Whether the kernels run on this device and support this model."""
    if device.type != "cuda" or not kernels_run():
        return False
    from dragoman.model.kernels import fits

    return fits(config)


class PackedTransformer(nn.Module):
    """A Transformer over packed ids, with that model's own parameters."""

    def __init__(self, model: Transformer, longest: int) -> None:
        """`longest`: tokens of the longest sentence, including </s>."""
        super().__init__()
        self.model = model
        self.register_buffer("source_table", _position_table(model.encoder, longest, model.output.weight), False)
        self.register_buffer("target_table", _position_table(model.decoder, longest, model.output.weight), False)
        self.source_table: Tensor | None
        self.target_table: Tensor | None

    def forward(self, source_ids_N: Tensor, target_ids_N: Tensor, source: Segments, target: Segments) -> Tensor:
        """The input of the output projection, for every target token: [N, M]."""
        decoder = self.model.decoder
        join = _Join(fused=target.blocks is not None, device=target_ids_N.device)
        memory_NM = self._encode(source_ids_N, source, join)
        x_NM, turns = _place(decoder, self.target_table, embed(self.model.target_embedding, target_ids_N), target)
        for layer in decoder.layers:
            x_NM = _decoder_layer(layer, join, x_NM, memory_NM, source, target, turns)  # type: ignore[arg-type]
        return decoder.finish(x_NM)

    def encode(self, source_ids_N: Tensor, source: Segments) -> Tensor:
        """The encoder's output for every source token, of a model in evaluation: [N, M]."""
        assert not self.model.training
        join = _Join(fused=source.blocks is not None, device=source_ids_N.device, dropout=False)
        return self._encode(source_ids_N, source, join)

    def _encode(self, source_ids_N: Tensor, source: Segments, join: "_Join") -> Tensor:
        encoder = self.model.encoder
        x_NM, turns = _place(encoder, self.source_table, embed(self.model.source_embedding, source_ids_N), source)
        for layer in encoder.layers:
            x_NM = _encoder_layer(layer, join, x_NM, source, turns)  # type: ignore[arg-type]
        return encoder.finish(x_NM)


class PackedDecoder(nn.Module):
    """A decoder alone over packed ids, with that model's own parameters."""

    def __init__(self, model: DecoderOnly, longest: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("table", _position_table(model.decoder, longest, model.output.weight), False)
        self.table: Tensor | None

    def forward(self, ids_N: Tensor, segments: Segments) -> Tensor:
        """The input of the output projection, for every token: [N, M]."""
        decoder = self.model.decoder
        join = _Join(fused=segments.blocks is not None, device=ids_N.device)
        x_NM, turns = _place(decoder, self.table, embed(self.model.target_embedding, ids_N), segments)
        for layer in decoder.layers:
            x_NM = _decoder_layer(layer, join, x_NM, None, None, segments, turns)  # type: ignore[arg-type]
        return decoder.finish(x_NM)


def packed_model(model: Any, longest: int) -> nn.Module:
    """The model over packed batches. `longest`: tokens of the longest sentence."""
    return next(make for kind, make in PACKED.items() if isinstance(model, kind))(model, longest)


def can_pack(model: Any) -> bool:
    return not model.config.reads_vectors and isinstance(model, tuple(PACKED))


PACKED: dict[type[nn.Module], Callable[[Any, int], nn.Module]] = {
    Transformer: PackedTransformer,
    DecoderOnly: PackedDecoder,
}


def _position_table(stack: Encoder | Decoder, longest: int, weight: Tensor) -> Tensor | None:
    """Sinusoids, computed once: those of every token's own position would take longer than a layer's attention."""
    if stack.positions.kind != "sinusoidal":
        return None
    return stack.positions.vectors(torch.arange(longest, device=weight.device), weight.dtype)


def _place(
    stack: Encoder | Decoder, table_LM: Tensor | None, x_NM: Tensor, segments: Segments
) -> tuple[Tensor, Tensor | None]:
    positions_N = segments.positions_N
    added_NM = stack.positions.vectors(positions_N, x_NM.dtype) if table_LM is None else table_LM[positions_N]
    turns = rotation_at(positions_N, stack.size.d_k) if stack.rotary else None
    x_NM = x_NM if added_NM is None else x_NM + added_NM.to(x_NM.dtype)
    x_NM = _drop(stack.dropout, stack.norm_embeddings(x_NM))
    return _stream(x_NM, pre_norm=stack.final_norm is not None), turns


def _stream(x_NM: Tensor, *, pre_norm: bool) -> Tensor:
    """What passes from layer to layer. In post-norm it is normalised, and autocast's precision is enough.

    In pre-norm it is a sum over all layers and stays in float32.
    """
    device = x_NM.device.type
    if pre_norm or not torch.is_autocast_enabled(device):
        return x_NM
    return x_NM.to(torch.get_autocast_dtype(device))


class _Join:
    """Residual.leave for every sub-layer of a forward pass; fused where the kernels run and the model is post-norm."""

    def __init__(self, *, fused: bool, device: torch.device, dropout: bool = True) -> None:
        self.fused = fused
        self.seeds: Tensor | None = None
        if fused and dropout:
            self.seeds = torch.randint(2**31, (MOST_SUB_LAYERS,), device=device)
        elif fused:  # a CUDA graph would draw the same random numbers at every replay
            self.seeds = torch.zeros(MOST_SUB_LAYERS, dtype=torch.int64, device=device)
        self.number = 0

    def __call__(self, residual: Residual, x_NM: Tensor, out_NM: Tensor) -> Tensor:
        if self.seeds is None or residual.pre_norm:
            sum_NM = x_NM + _drop(residual.dropout, out_NM)
            return _stream(residual.settle(sum_NM), pre_norm=residual.pre_norm)
        from dragoman.model import kernels

        norm, dropout = residual.layer_norm, residual.dropout.p if residual.training else 0.0
        # an operator that autograd knows takes 0.1 ms of the host; inference does without
        residual_norm = kernels.residual_norm if torch.is_grad_enabled() else kernels.residual_norm_forward
        joined_NM, *_ = residual_norm(
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
    memory_NM: Tensor | None,
    source: Segments | None,
    target: Segments,
    turns: Tensor | None,
) -> Tensor:
    h_NM = layer.self_attention_residual.enter(x_NM)
    out_NM = _self_attention(layer.self_attention, h_NM, target, turns, causal=True)
    x_NM = join(layer.self_attention_residual, x_NM, out_NM)

    if memory_NM is not None and source is not None:
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
    linear_relu = kernels.linear_relu if torch.is_grad_enabled() else kernels.linear_relu_forward
    return feed_forward.outer(linear_relu(*(part.to(precision) for part in (x_NM, inner.weight, inner.bias))))


def _self_attention(
    attention: MultiHeadAttention, x_NM: Tensor, segments: Segments, turns: Tensor | None, *, causal: bool
) -> Tensor:
    maps = (attention.query, attention.key, attention.value)
    qkv_NC = _project(x_NM, *maps)
    q_NHD, k_NHD, v_NHE = _heads(attention, qkv_NC, *maps)
    if turns is not None:
        q_NHD, k_NHD = (rotate(part.transpose(0, 1), turns).transpose(0, 1) for part in (q_NHD, k_NHD))
    if segments.blocks is None:
        return _plain(attention, q_NHD, k_NHD, v_NHE, segments, segments, causal)
    from dragoman.model import kernels

    d_k, d_v = q_NHD.size(-1), v_NHE.size(-1)
    width = kernels.width_for(d_k, d_v)
    if turns is not None or not d_k == d_v == width:
        qkv_NC = _concatenate(width, q_NHD, k_NHD, v_NHE)
    self_attention = kernels.self_attention if torch.is_grad_enabled() else kernels.self_attention_forward
    heads_NC, _ = self_attention(qkv_NC, segments.blocks, segments.starts, attention.num_heads, d_k**-0.5, causal)
    return _output(attention, heads_NC)


def _cross_attention(
    attention: MultiHeadAttention, x_NM: Tensor, memory_NM: Tensor, queries: Segments, keys: Segments
) -> Tensor:
    q_NC, kv_NC = attention.query(x_NM), _project(memory_NM, attention.key, attention.value)
    (q_NHD,) = _heads(attention, q_NC, attention.query)
    k_NHD, v_NHE = _heads(attention, kv_NC, attention.key, attention.value)
    if queries.blocks is None or keys.blocks is None:
        return _plain(attention, q_NHD, k_NHD, v_NHE, queries, keys, causal=False)
    from dragoman.model import kernels

    d_k, d_v = q_NHD.size(-1), v_NHE.size(-1)
    width = kernels.width_for(d_k, d_v)
    if not d_k == d_v == width:
        q_NC, kv_NC = _concatenate(width, q_NHD), _concatenate(width, k_NHD, v_NHE)
    heads_NC, _ = kernels.cross_attention(
        q_NC, kv_NC, queries.blocks, keys.blocks, queries.starts, keys.starts, attention.num_heads, d_k**-0.5
    )
    return _output(attention, heads_NC)


def _concatenate(width: int, *parts: Tensor) -> Tensor:
    """[N, C]: the heads of all parts, each padded with zeros to the kernel's width."""
    return torch.cat([nn.functional.pad(part, (0, width - part.size(-1))).flatten(1) for part in parts], dim=1)


def _output(attention: MultiHeadAttention, heads_NC: Tensor) -> Tensor:
    """The output projection, without the padding of the heads."""
    d_v = attention.output.in_features // attention.num_heads
    heads_NHE = heads_NC.view(len(heads_NC), attention.num_heads, -1)[..., :d_v]
    return attention.output(heads_NHE.flatten(1))


def _project(x_NM: Tensor, *maps: nn.Linear) -> Tensor:
    """Apply several linear maps to one input as one product with their stacked matrices; results are side by side."""
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
    assert queries.rows is not None
    assert keys.rows is not None
    dropout = attention.dropout if attention.training else 0.0
    heads_NHE: Tensor = _PaddedAttention.apply(q_NHD, k_NHD, v_NHE, queries.rows, keys.rows, causal, dropout)  # type: ignore[no-untyped-call]
    return attention.output(heads_NHE.flatten(1))


class _PaddedAttention(torch.autograd.Function):
    """Attention in the padded view, as explicit matrix products.

    In bfloat16 on the CPU, PyTorch's own takes three to ten times as long for sentences this short, mostly in backward.

    Shapes within: X rows, one per sentence and head; Q queries, K keys, L either.
    """

    @staticmethod
    def forward(
        ctx: Any, q_NHD: Tensor, k_NHD: Tensor, v_NHE: Tensor, queries: Rows, keys: Rows, causal: bool, dropout: float
    ) -> Tensor:
        ctx.queries, ctx.keys = queries, keys
        heads: list[Tensor] = []
        saved: list[Tensor | None] = []
        for table in range(len(queries.tokens)):
            q_XQD = _unpack(q_NHD, queries.tokens[table])
            k_XKD, v_XKE = (_unpack(part, keys.tokens[table]) for part in (k_NHD, v_NHE))
            scores_XQK = torch.bmm(q_XQD, k_XKD.mT)
            weights_XQK = _weights(scores_XQK, queries.reals[table], keys.reals[table], causal, q_XQD.size(-1) ** -0.5)
            kept_XQK = _kept(weights_XQK, dropout) if dropout else None
            dropped_XQK = weights_XQK if kept_XQK is None else weights_XQK * kept_XQK
            heads.append(_pack_rows(torch.bmm(dropped_XQK, v_XKE), len(queries.tokens[table])))
            saved += (q_XQD, k_XKD, v_XKE, weights_XQK, kept_XQK)
        ctx.save_for_backward(*saved)
        return torch.cat(heads).index_select(0, queries.places_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_heads_NHE: Tensor) -> Any:
        gradients: tuple[list[Tensor], ...] = ([], [], [])
        tables = zip(*[iter(ctx.saved_tensors)] * 5, strict=True)
        for tokens_BL, (q_XQD, k_XKD, v_XKE, weights_XQK, kept_XQK) in zip(ctx.queries.tokens, tables, strict=True):
            # padding gets some token's gradient here and loses it again: the weights of its row are zero
            d_heads_XQE = _unpack(d_heads_NHE, tokens_BL)
            d_weights_XQK = torch.bmm(d_heads_XQE, v_XKE.mT)
            dropped_XQK = weights_XQK
            if kept_XQK is not None:
                d_weights_XQK, dropped_XQK = d_weights_XQK * kept_XQK, weights_XQK * kept_XQK
            d_scores_XQK = _softmax_gradient(d_weights_XQK, weights_XQK, q_XQD.size(-1) ** -0.5)
            found = (
                torch.bmm(d_scores_XQK, k_XKD),
                torch.bmm(d_scores_XQK.mT, q_XQD),
                torch.bmm(dropped_XQK.mT, d_heads_XQE),
            )
            for parts, part in zip(gradients, found, strict=True):
                parts.append(_pack_rows(part, len(tokens_BL)))
        places = (ctx.queries.places_N, ctx.keys.places_N, ctx.keys.places_N)
        packed = (torch.cat(parts).index_select(0, at_N) for parts, at_N in zip(gradients, places, strict=True))
        return *packed, None, None, None, None


def _unpack(x_NHD: Tensor, tokens_BL: Tensor) -> Tensor:
    """[B * H, L, D]: these tokens as rows, one per sentence and head."""
    x_BLHD = x_NHD.index_select(0, tokens_BL.flatten()).view(*tokens_BL.shape, *x_NHD.shape[1:])
    return x_BLHD.transpose(1, 2).flatten(0, 1)


def _pack_rows(x_XLD: Tensor, sentences: int) -> Tensor:
    """Back to [B * L, H, D]."""
    x_BHLD = x_XLD.view(sentences, -1, *x_XLD.shape[1:])
    return x_BHLD.transpose(1, 2).flatten(0, 1)


def _weights(scores_XQK: Tensor, real_BQ: Tensor, real_BK: Tensor, causal: bool, scale: float) -> Tensor:
    """The softmax over what a query may attend to, in at least float32; zero for queries that are padding."""
    allowed_BQK = real_BK[:, None, :]
    if causal:
        allowed_BQK = allowed_BQK & look_ahead_mask(scores_XQK.size(1), scores_XQK.size(2), scores_XQK.device)
    hidden_B1QK = ~allowed_BQK[:, None]
    exact = torch.promote_types(scores_XQK.dtype, torch.float32)
    scores_BHQK = scores_XQK.view(len(real_BQ), -1, *scores_XQK.shape[1:]).to(exact) * scale
    weights_BHQK = scores_BHQK.masked_fill_(hidden_B1QK, -math.inf).softmax(dim=-1)
    return weights_BHQK.mul_(real_BQ[:, None, :, None]).to(scores_XQK.dtype).flatten(0, 1)


def _softmax_gradient(d_weights_XQK: Tensor, weights_XQK: Tensor, scale: float) -> Tensor:
    exact = torch.promote_types(weights_XQK.dtype, torch.float32)
    d_scores_XQK = torch._softmax_backward_data(d_weights_XQK.to(exact), weights_XQK.to(exact), -1, exact)
    return d_scores_XQK.mul_(scale).to(weights_XQK.dtype)


def _drop(dropout: nn.Dropout, x: Tensor) -> Tensor:
    return x * _kept(x, dropout.p) if dropout.training and dropout.p else x


def _kept(x: Tensor, dropout: float) -> Tensor:
    """The factors of dropout: zero, or enough to keep the mean."""
    if x.device.type != "cpu":
        return torch.empty_like(x).bernoulli_(1 - dropout).div_(1 - dropout)
    # Four values share a 64-bit draw; on the CPU PyTorch's own dropout draws for each value, one after the other
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    lost = round(dropout * 2**16)
    kept = draws[: x.numel()].view(x.shape) >= lost - 2**15
    return kept.to(x.dtype).mul_(1 / (1 - lost / 2**16))
