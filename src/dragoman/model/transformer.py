"""The Transformer (section 3 of the paper), in the order of the paper. Knows nothing of text or loss.

Shapes, as suffixes of names:
    B  sentences in the batch      S  source positions      T  target positions
    M  width of a position (d_model)      V  target vocabulary
    H, L, Q, K as in attention.py
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, overload

import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import LayersConfig, StackSize, TransformerConfig
from dragoman.model.attention import AttentionWeights, HeadMask, MultiHeadAttention, padding_mask
from dragoman.model.cache import DecoderCache, LayerCache
from dragoman.model.positions import Positions, rotation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, at each position separately and identically (section 3.3)."""

    def __init__(self, size: StackSize, config: LayersConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(size.d_model, size.d_ff)
        self.outer = nn.Linear(size.d_ff, size.d_model)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x_BTM: Tensor) -> Tensor:
        return self.outer(self.activation(self.inner(x_BTM)))


class Residual(nn.Module):
    """The residual connection and norm around every sub-layer.

    Post-norm, as in the paper: LayerNorm(x + Dropout(Sublayer(x))). Pre-norm: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, d_model: int, config: LayersConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.pre_norm = config.norm == "pre"

    def enter(self, x_BTM: Tensor) -> Tensor:
        """The input of the sub-layer."""
        return self.layer_norm(x_BTM) if self.pre_norm else x_BTM

    def leave(self, x_BTM: Tensor, out_BTM: Tensor) -> Tensor:
        """The input of the next sub-layer."""
        return self.settle(x_BTM + self.dropout(out_BTM))

    def settle(self, sum_BTM: Tensor) -> Tensor:
        return sum_BTM if self.pre_norm else self.layer_norm(sum_BTM)


def _attention(size: StackSize, config: LayersConfig, d_memory: int | None = None) -> MultiHeadAttention:
    return MultiHeadAttention(
        size.d_model,
        size.num_heads,
        size.d_k,
        size.d_v,
        d_memory=d_memory,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
    )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    def __init__(self, size: StackSize, config: LayersConfig) -> None:
        super().__init__()
        self.self_attention = _attention(size, config)
        self.feed_forward = FeedForward(size, config)
        self.self_attention_residual = Residual(size.d_model, config)
        self.feed_forward_residual = Residual(size.d_model, config)

    def forward(
        self,
        x_BSM: Tensor,
        allowed: Tensor | None,
        turns: Tensor | None,
        need_weights: bool,
        head_mask_BH: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        h_BSM = self.self_attention_residual.enter(x_BSM)
        out_BSM, weights_BHQK = self.self_attention(
            h_BSM,
            self.self_attention.keys_values(h_BSM, turns),
            allowed,
            rotation=turns,
            head_mask_BH=head_mask_BH,
            need_weights=need_weights,
        )
        x_BSM = self.self_attention_residual.leave(x_BSM, out_BSM)

        h_BSM = self.feed_forward_residual.enter(x_BSM)
        return self.feed_forward_residual.leave(x_BSM, self.feed_forward(h_BSM)), weights_BHQK


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, then feed-forward (section 3.1).

    Without `d_memory`, the width of that output, there is no encoder and no attention over it.
    """

    def __init__(self, size: StackSize, config: LayersConfig, d_memory: int | None) -> None:
        super().__init__()
        self.self_attention = _attention(size, config)
        if d_memory is not None:
            self.cross_attention = _attention(size, config, d_memory)
        self.feed_forward = FeedForward(size, config)
        self.self_attention_residual = Residual(size.d_model, config)
        if d_memory is not None:
            self.cross_attention_residual = Residual(size.d_model, config)
        self.feed_forward_residual = Residual(size.d_model, config)

    def forward(
        self,
        x_BTM: Tensor,
        cache: LayerCache,
        allowed: Tensor | None,
        turns: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        h_BTM = self.self_attention_residual.enter(x_BTM)
        target = cache.extend(self.self_attention.keys_values(h_BTM, turns))
        # A single query, the newest, may attend to everything before it: only several need the look-ahead mask.
        out_BTM, self_weights_BHQK = self.self_attention(
            h_BTM,
            target,
            causal=h_BTM.size(1) > 1,
            rotation=turns,
            head_mask_BH=cache.self_head_mask_BH,
            need_weights=need_weights,
        )
        x_BTM = self.self_attention_residual.leave(x_BTM, out_BTM)

        cross_weights_BHQK = None
        if cache.source is not None:
            # The hypotheses of a sentence share the source's keys and values: there, each is one more query.
            h_BQM = self.cross_attention_residual.enter(x_BTM).reshape(len(cache.source.k_BHKD), -1, x_BTM.size(2))
            out_BQM, cross_weights_BHQK = self.cross_attention(
                h_BQM, cache.source, allowed, head_mask_BH=cache.cross_head_mask_BH, need_weights=need_weights
            )
            x_BTM = self.cross_attention_residual.leave(x_BTM, out_BQM.view_as(x_BTM))

        h_BTM = self.feed_forward_residual.enter(x_BTM)
        x_BTM = self.feed_forward_residual.leave(x_BTM, self.feed_forward(h_BTM))
        return x_BTM, self_weights_BHQK, cross_weights_BHQK


class Stack(nn.Module):
    """What encoder and decoder share: positions and dropout below the layers, in pre-norm a final norm above them.

    BART has one more norm below the layers, which the paper does not have.
    """

    def __init__(self, size: StackSize, config: LayersConfig) -> None:
        super().__init__()
        self.size = size
        self.rotary = config.positions == "rotary"
        self.positions = Positions(config.positions, size.d_model, config.max_positions)
        self.dropout = nn.Dropout(config.dropout)
        self.embedding_norm = nn.LayerNorm(size.d_model) if config.embedding_norm else None
        self.final_norm = nn.LayerNorm(size.d_model) if config.norm == "pre" else None

    def place(self, x_BTM: Tensor, start: int) -> tuple[Tensor, Tensor | None]:
        """Embeddings with their positions, and the rotations of rotary ones."""
        turns = rotation(start, x_BTM.size(1), self.size.d_k, x_BTM.device) if self.rotary else None
        return self.dropout(self.norm_embeddings(self.positions(x_BTM, start))), turns

    def norm_embeddings(self, x_BTM: Tensor) -> Tensor:
        return x_BTM if self.embedding_norm is None else self.embedding_norm(x_BTM)

    def finish(self, x_BTM: Tensor) -> Tensor:
        return x_BTM if self.final_norm is None else self.final_norm(x_BTM)


class Encoder(Stack):
    """Source embeddings in, one vector per source position out."""

    def __init__(self, size: StackSize, config: LayersConfig) -> None:
        super().__init__(size, config)
        self.layers = nn.ModuleList(EncoderLayer(size, config) for _ in range(size.num_layers))

    def forward(
        self,
        x_BSM: Tensor,
        allowed_BS: Tensor | None,
        weights: AttentionWeights | None,
        head_mask: HeadMask | None = None,
    ) -> Tensor:
        allowed = None if allowed_BS is None else padding_mask(allowed_BS)
        x_BSM, turns = self.place(x_BSM, start=0)
        for number, layer in enumerate(self.layers):
            head_mask_BH = None if head_mask is None else head_mask.encoder_LBH[number]
            x_BSM, self_weights = layer(
                x_BSM, allowed, turns, need_weights=weights is not None, head_mask_BH=head_mask_BH
            )
            if weights is not None:
                weights.encoder.append(self_weights)
        return self.finish(x_BSM)


class Decoder(Stack):
    """Target embeddings in, one vector per target position out; each sees the source and the target before it."""

    def __init__(self, size: StackSize, config: LayersConfig, d_memory: int | None) -> None:
        super().__init__(size, config)
        self.layers = nn.ModuleList(DecoderLayer(size, config, d_memory) for _ in range(size.num_layers))

    def start(
        self, memory_BSM: Tensor | None, source_allowed_BS: Tensor | None = None, head_mask: HeadMask | None = None
    ) -> DecoderCache:
        """Return an empty cache for this source. Its keys and values are computed here, once."""
        layers: list[DecoderLayer] = list(self.layers)  # type: ignore[arg-type]
        if memory_BSM is None:
            caches = [LayerCache(source=None) for _ in layers]
        else:
            caches = [LayerCache(layer.cross_attention.keys_values(memory_BSM)) for layer in layers]
        if head_mask is not None:
            for number, cache in enumerate(caches):
                cache.self_head_mask_BH = head_mask.decoder_LBH[number]
                cache.cross_head_mask_BH = head_mask.cross_LBH[number]
        return DecoderCache(caches, source_allowed_BS)

    def forward(self, x_BTM: Tensor, cache: DecoderCache, weights: AttentionWeights | None) -> Tensor:
        allowed = None if cache.source_allowed is None else padding_mask(cache.source_allowed)
        x_BTM, turns = self.place(x_BTM, start=cache.length)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x_BTM, self_weights, cross_weights = layer(
                x_BTM, layer_cache, allowed, turns, need_weights=weights is not None
            )
            if weights is not None:
                weights.decoder.append(self_weights)
                if cross_weights is not None:
                    weights.cross.append(cross_weights)
        cache.length += x_BTM.size(1)
        return self.finish(x_BTM)


class Transformer(nn.Module):
    """Source ids and the target so far in, logits of the next target id at every position out.

    `forward` is teacher forcing: all positions at once. `encode`, `start` and `step` are inference: one at a time,
    with the past in a cache. Both run the same layers.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        source_width, target_width = config.encoder.d_model, config.decoder.d_model
        self.source_embedding = input_layer(config.vocab_size, config.source_features, source_width)
        self.target_embedding = input_layer(config.target_vocabulary, config.target_features, target_width)
        self.encoder = Encoder(config.encoder, config)
        self.decoder = Decoder(config.decoder, config, d_memory=source_width)
        self.output = nn.Linear(target_width, config.target_vocabulary, bias=config.output_bias)
        self.apply(partial(initialise, gain=config.init_gain))
        self.tie()

    def tie(self) -> None:
        """Share matrices as configured; the shared one is the embedding, initialised as embeddings are."""
        if self.config.share_source_target:
            self.target_embedding = self.source_embedding
        if self.config.share_target_output:
            self.output.weight = self.target_embedding.weight

    @overload
    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        source_allowed: Tensor | None = None,
        *,
        head_mask: HeadMask | None = None,
        need_weights: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        source_allowed: Tensor | None = None,
        *,
        head_mask: HeadMask | None = None,
        need_weights: Literal[True],
    ) -> tuple[Tensor, AttentionWeights]: ...
    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        source_allowed: Tensor | None = None,
        *,
        head_mask: HeadMask | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionWeights]:
        """[B, S] and [B, T] ids, [B, S] bool (True = real token) -> [B, T, V] logits, and attention on request."""
        weights = AttentionWeights() if need_weights else None
        memory_BSM = self.encode(source_ids, source_allowed, weights, head_mask)
        logits_BTV = self.decode(target_ids, self.start(memory_BSM, source_allowed, head_mask), weights)
        return logits_BTV if weights is None else (logits_BTV, weights)

    def encode(
        self,
        source_ids: Tensor,
        source_allowed: Tensor | None = None,
        weights: AttentionWeights | None = None,
        head_mask: HeadMask | None = None,
    ) -> Tensor:
        """[B, S] ids -> [B, S, M], the memory that the decoder attends to."""
        return self.encoder(embed(self.source_embedding, source_ids), source_allowed, weights, head_mask)

    def start(
        self, memory_BSM: Tensor, source_allowed: Tensor | None = None, head_mask: HeadMask | None = None
    ) -> DecoderCache:
        """The state before the first target id."""
        return self.decoder.start(memory_BSM, source_allowed, head_mask)

    def decode(self, target_ids: Tensor, cache: DecoderCache, weights: AttentionWeights | None = None) -> Tensor:
        """[B, T] more target ids -> [B, T, V] logits; the cache grows by T."""
        return self.output(self.decode_states(target_ids, cache, weights))

    def decode_states(self, target_ids: Tensor, cache: DecoderCache, weights: AttentionWeights | None = None) -> Tensor:
        """The same before the output projection: [B, T, M]."""
        return self.decoder(embed(self.target_embedding, target_ids), cache, weights)

    def step(self, ids_B: Tensor, cache: DecoderCache) -> Tensor:
        """[B] newest target ids -> [B, V] logits of the next ones."""
        return self.decode(ids_B[:, None], cache)[:, -1]


def input_layer(vocab_size: int, features: int | None, width: int) -> nn.Embedding | nn.Linear:
    """From ids to vectors of the model's width, or from vectors of that many features."""
    return nn.Embedding(vocab_size, width) if features is None else nn.Linear(features, width)


def embed(embedding: nn.Module, ids_BT: Tensor) -> Tensor:
    """Scale embeddings by sqrt(d_model) (section 3.4): they are drawn small to serve as output weights too."""
    if isinstance(embedding, nn.Embedding):
        return embedding(ids_BT) * math.sqrt(embedding.embedding_dim)
    return embedding(ids_BT)  # [B, T, F] features


def initialise(module: nn.Module, gain: float = 1.0) -> None:
    """Xavier uniform times `gain` for matrices, N(0, 1/d_model) for embeddings; `gain` 1 is as in the paper's code."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight, gain)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
