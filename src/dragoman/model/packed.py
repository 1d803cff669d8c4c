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
from dragoman.model.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer, Transformer, embed


class Segments(NamedTuple):
    """Where sentences lie in a packed row of tokens. Every token belongs to one; what fills up a batch is one more."""

    positions_N: Tensor  # of each token within its sentence
    starts: Tensor  # [B + 1]: sentence b is tokens starts[b] to starts[b + 1]
    blocks: Tensor | None = None  # [G, 2] for the kernel: sentence, and which of its blocks; -1 where there is none
    grid_BL: Tensor | None = None  # for the padded view: the token at each place, any token in padding
    real_BL: Tensor | None = None  # and which places are real


class PackedTransformer(nn.Module):
    """A Transformer run over packed ids; its parameters are that model's own."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_ids_N: Tensor, target_ids_N: Tensor, source: Segments, target: Segments) -> Tensor:
        """What the output projection is applied to, for every target token: [N, M]."""
        encoder, decoder = self.model.encoder, self.model.decoder
        x_NM, turns = _place(encoder, embed(self.model.source_embedding, source_ids_N), source)
        for layer in encoder.layers:
            x_NM = _encoder_layer(layer, x_NM, source, turns)  # type: ignore[arg-type]
        memory_NM = encoder.finish(x_NM)

        x_NM, turns = _place(decoder, embed(self.model.target_embedding, target_ids_N), target)
        for layer in decoder.layers:
            x_NM = _decoder_layer(layer, x_NM, memory_NM, source, target, turns)  # type: ignore[arg-type]
        return decoder.finish(x_NM)


def _place(stack: Encoder | Decoder, x_NM: Tensor, segments: Segments) -> tuple[Tensor, Tensor | None]:
    vectors_NM = stack.positions.vectors(segments.positions_N, x_NM.dtype)
    turns = rotation_at(segments.positions_N, stack.size.d_k) if stack.rotary else None
    return stack.dropout(x_NM if vectors_NM is None else x_NM + vectors_NM), turns


def _encoder_layer(layer: EncoderLayer, x_NM: Tensor, source: Segments, turns: Tensor | None) -> Tensor:
    h_NM = layer.self_attention_residual.enter(x_NM)
    out_NM = _attention(layer.self_attention, h_NM, h_NM, source, source, turns=turns)
    x_NM = layer.self_attention_residual.leave(x_NM, out_NM)

    h_NM = layer.feed_forward_residual.enter(x_NM)
    return layer.feed_forward_residual.leave(x_NM, layer.feed_forward(h_NM))


def _decoder_layer(
    layer: DecoderLayer, x_NM: Tensor, memory_NM: Tensor, source: Segments, target: Segments, turns: Tensor | None
) -> Tensor:
    h_NM = layer.self_attention_residual.enter(x_NM)
    out_NM = _attention(layer.self_attention, h_NM, h_NM, target, target, turns=turns, causal=True)
    x_NM = layer.self_attention_residual.leave(x_NM, out_NM)

    h_NM = layer.cross_attention_residual.enter(x_NM)
    x_NM = layer.cross_attention_residual.leave(
        x_NM, _attention(layer.cross_attention, h_NM, memory_NM, target, source)
    )

    h_NM = layer.feed_forward_residual.enter(x_NM)
    return layer.feed_forward_residual.leave(x_NM, layer.feed_forward(h_NM))


def _attention(
    attention: MultiHeadAttention,
    x_NM: Tensor,
    memory_NM: Tensor,
    queries: Segments,
    keys: Segments,
    *,
    turns: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    q_NHD, k_NHD, v_NHE = _heads(attention, x_NM, memory_NM)
    if turns is not None:
        q_NHD, k_NHD = (rotate(part.transpose(0, 1), turns).transpose(0, 1) for part in (q_NHD, k_NHD))
    dropout = attention.dropout if attention.training else 0.0
    if queries.blocks is not None and keys.blocks is not None and dropout == 0.0:
        from dragoman.model.kernels import packed_attention

        heads_NHE, _ = packed_attention(
            q_NHD.contiguous(), k_NHD.contiguous(), v_NHE.contiguous(), queries.blocks, keys.blocks,
            queries.starts, keys.starts, causal,
        )  # fmt: skip
    else:
        heads_NHE = _padded_attention(q_NHD, k_NHD, v_NHE, queries, keys, causal, dropout)
    return attention.output(heads_NHE.flatten(1))


def _heads(attention: MultiHeadAttention, x_NM: Tensor, memory_NM: Tensor) -> list[Tensor]:
    """Queries, keys and values of all heads; in self-attention by one product with the three matrices stacked."""
    maps = [attention.query, attention.key, attention.value]
    if x_NM is memory_NM:
        weight = torch.cat([each.weight for each in maps])
        bias = None if attention.query.bias is None else torch.cat([each.bias for each in maps])
        widths = [each.out_features for each in maps]
        parts = torch.split(nn.functional.linear(x_NM, weight, bias), widths, dim=-1)
    else:
        parts = (attention.query(x_NM), attention.key(memory_NM), attention.value(memory_NM))
    return [part.reshape(part.size(0), attention.num_heads, -1) for part in parts]


def _padded_attention(
    q_NHD: Tensor, k_NHD: Tensor, v_NHE: Tensor, queries: Segments, keys: Segments, causal: bool, dropout: float
) -> Tensor:
    """The plain way: each sentence a row, padded to the longest."""
    assert queries.grid_BL is not None
    assert queries.real_BL is not None
    assert keys.grid_BL is not None
    assert keys.real_BL is not None
    q_BHLD = q_NHD[queries.grid_BL].transpose(1, 2)
    k_BHLD, v_BHLE = (part[keys.grid_BL].transpose(1, 2) for part in (k_NHD, v_NHE))
    # In causal self-attention padding comes after all that is real, so the look-ahead mask hides it already.
    allowed = None if causal else padding_mask(keys.real_BL)
    heads_BHLE, _ = attend(q_BHLD, k_BHLD, v_BHLE, allowed, causal=causal, dropout=dropout)
    return heads_BHLE.transpose(1, 2)[queries.real_BL]
