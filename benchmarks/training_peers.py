"""Shared by the training benchmarks: generated sentences, batches of them, and the same model in other libraries.

Every peer is a module (source [B, S], target [B, T], allowed [B, S]) -> logits [B, T, V]. Its library is imported when
it is built. JoeyNMT and OpenNMT-py are optional: if a library is missing, a benchmark says so and continues.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.config import TransformerConfig
from dragoman.data.batching import Batch, BatchPlan, teacher_forcing
from dragoman.model.footprint import parameter_counts
from dragoman.model.positions import sinusoids

VOCABULARY = 37_000
LONGEST = 120  # tokens of a sentence


@dataclass(frozen=True)
class Sentences:
    """A generated corpus: lengths of a WMT-like distribution, mean 27, source and target similar but not equal."""

    source: list[list[int]]
    target: list[list[int]]


def make_sentences(count: int) -> Sentences:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3.08, 0.62, size=count), 2, LONGEST).astype(int)
    others = np.clip(lengths * random.normal(1.03, 0.15, size=count), 2, LONGEST).astype(int)
    sides = []
    for sizes in (lengths, others):
        flat = random.integers(4, VOCABULARY, size=sizes.sum())
        sides.append([part.tolist() for part in np.split(flat, np.cumsum(sizes)[:-1])])
    return Sentences(*sides)


def padded_batches(sentences: Sentences, tokens: int, count: int) -> list[Batch]:
    """Sorted by length, as the peers' own loaders do it; the same average length as above."""
    source_lengths, target_lengths = (np.array(list(map(len, side))) for side in (sentences.source, sentences.target))
    plan = BatchPlan(np.maximum(source_lengths, target_lengths) + 1, batch_tokens=tokens, seed=1)
    return [
        teacher_forcing([sentences.source[row] for row in rows], [sentences.target[row] for row in rows])
        for rows in plan.epoch(0)[:count]
    ]


def uniform_batches(tokens: int, count: int) -> list[Batch]:
    """One shape for all: sentences of 25 to 31 tokens, padded to 32 with their </s>."""
    random = np.random.default_rng(1)
    batches = []
    for _ in range(count):
        lengths = random.integers(25, 32, size=(2, tokens // 32))
        lengths[:, 0] = 31
        sides = [[random.integers(4, VOCABULARY, size=length).tolist() for length in side] for side in lengths]
        batches.append(teacher_forcing(sides[0], sides[1]))
    return batches


class TorchTransformer(nn.Module):
    """A typical model around torch.nn.Transformer: shared embeddings, sinusoids, a causal mask."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        size = config.encoder
        self.scale = size.d_model**0.5
        self.embedding = nn.Embedding(config.vocab_size, size.d_model)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.body = nn.Transformer(
            size.d_model, size.num_heads, size.num_layers, size.num_layers, size.d_ff, config.dropout, batch_first=True
        )
        self.register_buffer("positions", sinusoids(torch.arange(512), size.d_model).float())

    def forward(self, source: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
        hidden = ~allowed
        embedded = [self.embedding(ids) * self.scale + self.positions[: ids.size(1)] for ids in (source, target)]  # type: ignore[index]
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1)) < 0
        out = self.body(
            *embedded, tgt_mask=mask, src_key_padding_mask=hidden, memory_key_padding_mask=hidden, tgt_is_causal=True
        )
        return out @ self.embedding.weight.T


class Marian(nn.Module):
    """Hugging Face's Marian with the same sizes."""

    def __init__(self, config: TransformerConfig) -> None:
        from transformers import MarianConfig, MarianMTModel

        super().__init__()
        size = config.encoder
        self.body = MarianMTModel(
            MarianConfig(
                vocab_size=config.vocab_size, d_model=size.d_model, encoder_layers=size.num_layers,
                decoder_layers=size.num_layers, encoder_attention_heads=size.num_heads,
                decoder_attention_heads=size.num_heads, encoder_ffn_dim=size.d_ff, decoder_ffn_dim=size.d_ff,
                dropout=config.dropout, activation_function="relu", scale_embedding=True, pad_token_id=0,
                eos_token_id=3, bos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
            )
        )  # fmt: skip

    def forward(self, source: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
        result = self.body(input_ids=source, attention_mask=allowed, decoder_input_ids=target, use_cache=False)
        return result.logits


class JoeyNMT(nn.Module):
    """JoeyNMT's encoder, decoder and embeddings with the same sizes."""

    def __init__(self, config: TransformerConfig) -> None:
        from joeynmt.decoders import TransformerDecoder  # type: ignore[import-not-found]
        from joeynmt.embeddings import Embeddings  # type: ignore[import-not-found]
        from joeynmt.encoders import TransformerEncoder  # type: ignore[import-not-found]

        super().__init__()
        size = config.encoder
        sizes = {
            "hidden_size": size.d_model, "ff_size": size.d_ff, "num_layers": size.num_layers,
            "num_heads": size.num_heads, "dropout": config.dropout, "emb_dropout": config.dropout,
            "layer_norm": config.norm,
        }  # fmt: skip
        self.embedding = Embeddings(size.d_model, scale=True, vocab_size=config.vocab_size, padding_idx=0)
        nn.init.normal_(self.embedding.lut.weight, std=size.d_model**-0.5)
        self.encoder = TransformerEncoder(**sizes)
        self.decoder = TransformerDecoder(**sizes, vocab_size=config.vocab_size)
        self.decoder.output_layer.weight = self.embedding.lut.weight

    def forward(self, source: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
        mask = allowed[:, None, :]
        memory, _ = self.encoder(self.embedding(source), None, mask)
        # its look-ahead mask hides padding from all real tokens
        everything = torch.ones_like(target, dtype=torch.bool)[:, None, :]
        logits: Tensor = self.decoder(self.embedding(target), memory, None, mask, None, None, everything)[0]
        return logits


class OpenNMT(nn.Module):
    """OpenNMT-py's encoder, decoder and embeddings with the same sizes (its only norm is pre-norm)."""

    def __init__(self, config: TransformerConfig) -> None:
        from onmt.decoders.transformer import TransformerDecoder  # type: ignore[import-not-found]
        from onmt.encoders.transformer import TransformerEncoder  # type: ignore[import-not-found]
        from onmt.models import NMTModel  # type: ignore[import-not-found]
        from onmt.modules import Embeddings  # type: ignore[import-not-found]

        super().__init__()
        size = config.encoder
        tables = [
            Embeddings(size.d_model, config.vocab_size, 0, position_encoding=True, dropout=config.dropout)
            for _ in range(2)
        ]
        nn.init.normal_(tables[0].word_lut.weight, std=size.d_model**-0.5)
        tables[1].word_lut.weight = tables[0].word_lut.weight
        encoder = TransformerEncoder(
            size.num_layers, size.d_model, size.num_heads, size.d_ff, config.dropout, 0.0, tables[0], 0, 0,
            add_qkvbias=True,
        )  # fmt: skip
        decoder = TransformerDecoder(
            size.num_layers, size.d_model, size.num_heads, size.d_ff, False, "scaled-dot-flash", config.dropout, 0.0,
            tables[1], 0, 0, False, False, 0, 0, add_qkvbias=True,
        )  # fmt: skip
        self.body = NMTModel(encoder, decoder)
        for weight in self.body.parameters():  # its layers are uninitialised
            if weight is not tables[0].word_lut.weight:
                nn.init.xavier_uniform_(weight) if weight.dim() > 1 else nn.init.zeros_(weight)
        for module in self.body.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
        self.weight = tables[0].word_lut.weight

    def forward(self, source: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
        # it drops the last target id itself
        target = torch.nn.functional.pad(target, (0, 1))
        out, _ = self.body(source[:, :, None], target[:, :, None], allowed.sum(dim=1))
        return nn.functional.linear(out, self.weight)


def drop_as_the_paper(model: nn.Module) -> nn.Module:
    """Restrict dropout to embeddings and sub-layer outputs: some peers also drop attention weights and inner values."""
    for module in model.modules():
        needless: nn.Module | None = None
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            needless = module.dropout
        elif type(module).__name__ in ("MultiHeadedAttention", "PositionwiseFeedForward"):  # JoeyNMT, OpenNMT-py
            needless = next(each for each in module.modules() if isinstance(each, nn.Dropout))
        if isinstance(needless, nn.Dropout):
            needless.p = 0.0
    return model


def flops_per_token(config: TransformerConfig) -> float:
    """Six per parameter that is used for a target token (and as many for a source token), without attention itself."""
    counts = parameter_counts(config)
    layers = sum(count for part, count in counts.items() if part.startswith(("encoder", "decoder")))
    return 6.0 * (layers + config.target_vocabulary * config.decoder.d_model)
