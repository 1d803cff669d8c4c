"""Half a Transformer: the decoder alone, which models text, and the encoder alone, which classifies it.

The layers are those of transformer.py. Knows nothing of text or loss. Shapes as there; C labels.
"""

from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor, nn

from dragoman.config import DecoderConfig, EncoderConfig
from dragoman.model.attention import AttentionWeights
from dragoman.model.cache import DecoderCache
from dragoman.model.transformer import Decoder, Encoder, embed, initialise, input_layer


class DecoderOnly(nn.Module):
    """The text so far in, logits of the next id at every position out: a Transformer without a source.

    `forward` takes all positions at once; `start` and `step` one at a time, with the past in a cache.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.target_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.decoder = Decoder(config.stacks["decoder"], config, d_memory=None)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.apply(partial(initialise, gain=config.init_gain))
        if config.share_target_output:
            self.output.weight = self.target_embedding.weight

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.decode(ids_BT, self.start())

    def start(self) -> DecoderCache:
        """The state before the first id."""
        return self.decoder.start(None)

    def decode(self, ids_BT: Tensor, cache: DecoderCache, weights: AttentionWeights | None = None) -> Tensor:
        """[B, T] more ids -> [B, T, V] logits; the cache grows by T."""
        return self.output(self.decode_states(ids_BT, cache, weights))

    def decode_states(self, ids_BT: Tensor, cache: DecoderCache, weights: AttentionWeights | None = None) -> Tensor:
        """The same before the output projection: [B, T, M]."""
        return self.decoder(embed(self.target_embedding, ids_BT), cache, weights)

    def step(self, ids_B: Tensor, cache: DecoderCache) -> Tensor:
        """[B] newest ids -> [B, V] logits of the next ones."""
        return self.decode(ids_B[:, None], cache)[:, -1]


class EncoderOnly(nn.Module):
    """A text in, logits of its label out: a Transformer without a target."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = input_layer(config.vocab_size, config.source_features, config.d_model)
        self.encoder = Encoder(config.stacks["encoder"], config)
        self.output = nn.Linear(config.d_model, config.num_labels)
        self.dropout = nn.Dropout(config.dropout)
        self.apply(partial(initialise, gain=config.init_gain))

    @overload
    def forward(
        self, source_ids: Tensor, source_allowed: Tensor | None = None, *, need_weights: Literal[False] = False
    ) -> Tensor: ...
    @overload
    def forward(
        self, source_ids: Tensor, source_allowed: Tensor | None = None, *, need_weights: Literal[True]
    ) -> tuple[Tensor, AttentionWeights]: ...
    def forward(
        self, source_ids: Tensor, source_allowed: Tensor | None = None, *, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, AttentionWeights]:
        """[B, S] ids that end in </s>, [B, S] bool (True = real token) -> [B, C] logits, and attention on request."""
        weights = AttentionWeights() if need_weights else None
        logits_BC = self.classify(embed(self.source_embedding, source_ids), source_allowed, weights)
        return logits_BC if weights is None else (logits_BC, weights)

    def classify(self, x_BSM: Tensor, source_allowed: Tensor | None, weights: AttentionWeights | None) -> Tensor:
        """From embeddings to logits."""
        states_BSM = self.encoder(x_BSM, source_allowed, weights)
        real_BS = torch.ones_like(states_BSM[..., 0], dtype=torch.bool) if source_allowed is None else source_allowed
        return self.output(self.dropout(self._pool(states_BSM, real_BS)))

    def _pool(self, states_BSM: Tensor, real_BS: Tensor) -> Tensor:
        length_B = real_BS.sum(dim=1)
        if self.config.pooling == "end":
            return states_BSM[torch.arange(len(length_B), device=length_B.device), length_B - 1]
        # at least fp32: bf16 cannot represent a length of 257
        real_BSM = states_BSM.masked_fill(~real_BS[:, :, None], 0.0)
        precise = torch.promote_types(states_BSM.dtype, torch.float32)
        return (real_BSM.sum(dim=1, dtype=precise) / length_B[:, None]).to(states_BSM.dtype)
