"""Writes a model for CTranslate2: `ctranslate2.Translator` loads the directory.

Positions are written as a table, since CTranslate2's own sinusoids differ; rotary positions are the same in both.
Its heads have one width: where d_k and d_v differ, zeros fill up the narrower one, which changes no result.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig, StackSize, TransformerConfig, require_choice
from dragoman.errors import ConfigError
from dragoman.files import write_synced
from dragoman.interop.common import (
    Exported,
    Source,
    check_tokens,
    directory_size,
    is_installed,
    load_source,
    new_directory,
    normalization_code,
    normalization_imports,
    readme,
    refuse_recurrent,
    source_ids,
)
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual, Stack

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swish": "SWISH"}


class Linear(NamedTuple):
    weight: Tensor
    bias: Tensor | None


def to_ctranslate2(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    quantization: str | None = None,
    check: bool = True,
) -> Exported:
    """Export a model directory, or a bundled model, to the new directory `out`.

    quantization: how weights are stored: int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16 or
    float32; None is float32.
    check: compare a few sentences with CTranslate2, before weights are rounded.
    """
    if quantization is not None:
        require_choice("quantization", quantization, QUANTIZATIONS)
    if not is_installed("ctranslate2"):
        raise ConfigError('export: ctranslate2 is not installed; pip install "dragoman[ctranslate2]"')
    out = Path(out)
    with new_directory(out) as directory:
        source = load_source(model, refuse)
        checked = None
        if check:
            _save(source, directory, None)
            checked = check_tokens(source, partial(translate, directory, source), "ctranslate2", out)
        if not check or quantization is not None:
            _save(source, directory, quantization)
        for name, content in _files(source).items():
            write_synced(directory / name, content)
    return Exported(out, "ctranslate2", directory_size(out), checked)


def refuse(config: ModelConfig) -> None:
    refuse_recurrent(config, "CTranslate2")


# Weights


def _save(source: Source, directory: Path, quantization: str | None) -> None:
    """Write model.bin, config.json and the vocabularies."""
    spec = build_spec(source)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(directory))


def build_spec(source: Source) -> Any:
    """The `TransformerSpec` of a model."""
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    model, config = source.model, source.shape
    spec = TransformerSpec(
        TransformerEncoderSpec(**_stack_options(config.encoder, config)),
        TransformerDecoderSpec(**_stack_options(config.decoder, config)),
    )
    _set_stack(spec.encoder, model.encoder, source)
    _set_stack(spec.decoder, model.decoder, source)
    for part, layer in zip(spec.encoder.layer, model.encoder.layers, strict=True):
        assert isinstance(layer, EncoderLayer)
        _set_self_attention(part.self_attention, layer.self_attention, layer.self_attention_residual)
        _set_feed_forward(part.ffn, layer.feed_forward, layer.feed_forward_residual)
    for part, layer in zip(spec.decoder.layer, model.decoder.layers, strict=True):
        assert isinstance(layer, DecoderLayer)
        _set_self_attention(part.self_attention, layer.self_attention, layer.self_attention_residual)
        _set_cross_attention(part.attention, layer.cross_attention, layer.cross_attention_residual)
        _set_feed_forward(part.ffn, layer.feed_forward, layer.feed_forward_residual)
    spec.encoder.embeddings[0].weight = _array(model.source_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.target_embedding.weight)
    _set_linear(spec.decoder.projection, model.output)

    tokenizers, ids = source.tokenizers, source.tokenizers.target.vocabulary
    spec.register_source_vocabulary(tokenizers.source.pieces(range(tokenizers.source.size)))
    spec.register_target_vocabulary(tokenizers.target.pieces(range(tokenizers.target.size)))
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = tokenizers.target.pieces(
        [ids.unk, ids.bos, ids.eos]
    )
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.add_source_eos = True
    return spec


def _stack_options(size: StackSize, config: TransformerConfig) -> dict[str, Any]:
    from ctranslate2.specs.common_spec import Activation

    return {
        "num_layers": size.num_layers,
        "num_heads": size.num_heads,
        "pre_norm": config.norm == "pre",
        "activation": Activation[ACTIVATIONS[config.activation]],
        "head_dim": max(size.d_k, size.d_v),
        "rotary_dim": size.d_k if config.positions == "rotary" else None,
        "layernorm_embedding": config.embedding_norm,
    }


def _set_stack(spec: Any, stack: Stack, source: Source) -> None:
    """Positions, the norm of embeddings if there is one and, in pre-norm, the final norm."""
    if source.shape.positions != "rotary":
        positions = torch.arange(source.num_positions)
        table_TM = stack.positions.vectors(positions, torch.float32)
        # none: without a table, CTranslate2 would add its own sinusoids
        zeros_TM = torch.zeros(source.num_positions, stack.size.d_model)
        spec.position_encodings.encodings = _array(zeros_TM if table_TM is None else table_TM)
    if stack.embedding_norm is not None:
        _set_norm(spec.layernorm_embedding, stack.embedding_norm)
    if stack.final_norm is not None:
        _set_norm(spec.layer_norm, stack.final_norm)


def _set_self_attention(spec: Any, attention: MultiHeadAttention, residual: Residual) -> None:
    query, key, value, output = _projections(attention)
    _set_linear(spec.linear[0], query, key, value)
    _set_linear(spec.linear[1], output)
    _set_scale_and_norm(spec, attention, residual)


def _set_cross_attention(spec: Any, attention: MultiHeadAttention, residual: Residual) -> None:
    query, key, value, output = _projections(attention)
    _set_linear(spec.linear[0], query)
    _set_linear(spec.linear[1], key, value)
    _set_linear(spec.linear[2], output)
    _set_scale_and_norm(spec, attention, residual)


def _set_scale_and_norm(spec: Any, attention: MultiHeadAttention, residual: Residual) -> None:
    d_k = attention.query.out_features // attention.num_heads
    spec.queries_scale = np.float32(d_k**-0.5)  # its default is that of the filled width
    _set_norm(spec.layer_norm, residual.layer_norm)


def _projections(attention: MultiHeadAttention) -> tuple[Linear, Linear, Linear, Linear]:
    """Query, key, value and output; queries, keys and values of a head get the same width."""
    heads = attention.num_heads
    width = max(attention.query.out_features, attention.value.out_features) // heads
    query, key, value = (
        Linear(_fill(layer.weight, heads, width), None if layer.bias is None else _fill(layer.bias, heads, width))
        for layer in (attention.query, attention.key, attention.value)
    )
    output = Linear(_fill(attention.output.weight.T, heads, width).T, attention.output.bias)
    return query, key, value, output


def _fill(rows: Tensor, heads: int, width: int) -> Tensor:
    """Add rows of zeros to each head."""
    per_head = rows.reshape(heads, -1, *rows.shape[1:])
    missing = per_head.new_zeros(heads, width - per_head.size(1), *rows.shape[1:])
    return torch.cat((per_head, missing), dim=1).flatten(0, 1)


def _set_feed_forward(spec: Any, layer: FeedForward, residual: Residual) -> None:
    _set_linear(spec.linear_0, layer.inner)
    _set_linear(spec.linear_1, layer.outer)
    _set_norm(spec.layer_norm, residual.layer_norm)


def _set_linear(spec: Any, *layers: Linear | nn.Linear) -> None:
    """One layer that computes all of `layers`, their outputs one after the other."""
    spec.weight = _array(torch.cat([layer.weight for layer in layers]))
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if biases:
        spec.bias = _array(torch.cat(biases))


def _set_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    # a copy: quantization changes its input in place
    return tensor.detach().float().clone().numpy()


# Files


def _files(source: Source) -> dict[str, bytes]:
    tokenizers = source.tokenizers
    return {
        "source.spm": tokenizers.source.to_bytes(),
        "target.spm": tokenizers.target.to_bytes(),
        "README.md": _readme(source).encode(),
    }


def never_predicted(source: Source) -> list[list[str]]:
    """The value of `suppress_sequences` with which search never produces a special token; `disable_unk` does <unk>."""
    ids = source.tokenizers.target.vocabulary
    return [
        [piece] for piece in source.tokenizers.target.pieces(each for each in ids.never_predicted if each != ids.unk)
    ]


def _readme(source: Source) -> str:
    form, decode = source.config.text.normalization, source.config.decode
    suppressed = str(never_predicted(source)).replace("'", '"')
    program = f"""\
{normalization_imports(form)}
import ctranslate2
import sentencepiece

translator = ctranslate2.Translator(".")
source, target = (sentencepiece.SentencePieceProcessor(f"{{side}}.spm") for side in ("source", "target"))
text = "..."  # one sentence
pieces = source.encode({normalization_code(form)}, out_type=str)  # CTranslate2 adds </s>
result = translator.translate_batch(
    [pieces], beam_size={decode.beam}, length_penalty={decode.length_penalty:g},
    min_decoding_length=0, max_decoding_length=len(pieces) + {decode.max_extra + 1},
    disable_unk=True, suppress_sequences={suppressed},
)
print(target.decode(result[0].hypotheses[0]))
"""
    limit = f"There are {source.num_positions:,} positions; a longer input or output is an error."
    return readme(
        source, "CTranslate2", "ctranslate2", program, *([] if source.shape.positions == "rotary" else [limit])
    )


# The check


def translate(directory: Path, source: Source, texts: Sequence[str], limit: int) -> list[list[int]]:
    """Greedy search with CTranslate2."""
    import ctranslate2

    tokenizers = source.tokenizers
    ids = {piece: index for index, piece in enumerate(tokenizers.target.pieces(range(tokenizers.target.size)))}
    # </s> is added by CTranslate2
    batch = [tokenizers.source.pieces(source_ids(tokenizers.source, text)[:-1]) for text in texts]
    translator = ctranslate2.Translator(str(directory), device="cpu", compute_type="float32", intra_threads=1)
    results = translator.translate_batch(
        batch,
        beam_size=1,
        min_decoding_length=0,  # its default, 1, rules out an empty translation
        max_decoding_length=limit,
        disable_unk=True,
        suppress_sequences=never_predicted(source),
        return_end_token=True,
    )
    return [[ids[piece] for piece in result.hypotheses[0]] for result in results]
