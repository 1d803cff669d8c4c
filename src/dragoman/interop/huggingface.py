"""Writes a model as Hugging Face Marian: `MarianMTModel` and `MarianTokenizer` load the directory.

Files are written directly; transformers is needed only for the check. Marian's positions are not stored: it computes
[sines | cosines] where ours alternate, so every axis of width d_model is permuted in the same way.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import Tokenizers
from dragoman.config import ModelConfig, TransformerConfig
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
    stacks,
)
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual
from dragoman.tensors import weights_to_bytes

LIBRARY = "Hugging Face Marian"
MARIAN_CLASSES = ("MarianTokenizer", "MarianMTModel")
# what a model's own generation_config.json may add to a search, and ours does not have
PLAIN_SEARCH = {"forced_bos_token_id": None, "min_length": 0, "no_repeat_ngram_size": 0}
CARD_HEAD = """\
---
library_name: transformers
pipeline_tag: translation
tags: [marian, dragoman]
---

"""  # what the hub reads of a model card


def to_huggingface(model: str | os.PathLike[str], out: str | os.PathLike[str], *, check: bool = True) -> Exported:
    """Export a model directory, or a bundled model, to the new directory `out`.

    check: compare a few sentences with transformers, if it is installed.
    """
    out = Path(out)
    with new_directory(out) as directory:
        source = load_source(model, refuse)
        for name, content in _files(source).items():
            write_synced(directory / name, content)
        checked = None
        if check and is_installed("transformers"):
            checked = check_tokens(source, lambda *given: translate(directory, *given), "transformers", out)
    return Exported(out, "transformers", directory_size(out), checked)


def refuse(config: ModelConfig) -> None:
    """Raise an error that names everything that Marian cannot express."""
    refuse_recurrent(config, LIBRARY)
    assert isinstance(config, TransformerConfig)
    found = []
    if config.norm != "post":
        found.append(f"model.norm: {config.norm} is not possible in {LIBRARY}, which has post-norm only")
    if config.positions != "sinusoidal":
        found.append(
            f"model.positions: {config.positions} is not possible in {LIBRARY}, which has sinusoidal positions only"
        )
    if config.embedding_norm:
        found.append(f"model.embedding_norm: true is not possible in {LIBRARY}, which does not normalize embeddings")
    if config.decoder.d_model != config.encoder.d_model:
        found.append(
            f"model.decoder_d_model: {config.decoder.d_model} is not possible in {LIBRARY}, which has one width, "
            f"here d_model={config.encoder.d_model}"
        )
    for name in ("d_k", "d_v"):
        odd = [stack for stack in stacks(config).values() if getattr(stack, name) * stack.num_heads != stack.d_model]
        if odd:
            found.append(
                f"model.{name}: {getattr(config, name)} is not possible in {LIBRARY}, where it is d_model / num_heads, "
                f"here {odd[0].d_model} / {odd[0].num_heads}"
            )
    if found:
        raise ConfigError("; ".join(found) + "; export to ctranslate2")


# Weights


def permutation(d_model: int) -> Tensor:
    """Where Marian's dimensions come from: the even ones, which hold sines, before the odd ones."""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def weights(source: Source) -> dict[str, Tensor]:
    """The tensors of `MarianMTModel`; a matrix that several layers share is stored once."""
    model, config = source.model, source.shape
    order = permutation(config.encoder.d_model)
    stored: dict[str, Tensor] = {}
    for number, layer in enumerate(model.encoder.layers):
        assert isinstance(layer, EncoderLayer)
        prefix = f"model.encoder.layers.{number}"
        stored |= _attention(f"{prefix}.self_attn", layer.self_attention, layer.self_attention_residual, order)
        stored |= _feed_forward(prefix, layer.feed_forward, layer.feed_forward_residual, order)
    for number, layer in enumerate(model.decoder.layers):
        assert isinstance(layer, DecoderLayer)
        prefix = f"model.decoder.layers.{number}"
        stored |= _attention(f"{prefix}.self_attn", layer.self_attention, layer.self_attention_residual, order)
        stored |= _attention(f"{prefix}.encoder_attn", layer.cross_attention, layer.cross_attention_residual, order)
        stored |= _feed_forward(prefix, layer.feed_forward, layer.feed_forward_residual, order)

    if _is_shared(config):
        stored["model.shared.weight"] = model.source_embedding.weight[:, order]
    else:
        stored["model.encoder.embed_tokens.weight"] = model.source_embedding.weight[:, order]
        stored["model.decoder.embed_tokens.weight"] = model.target_embedding.weight[:, order]
    if not config.share_target_output:
        stored["lm_head.weight"] = model.output.weight[:, order]
    bias = model.output.bias if config.output_bias else torch.zeros(config.target_vocabulary)
    stored["final_logits_bias"] = bias[None]
    return {name: tensor.detach().float() for name, tensor in stored.items()}


def _is_shared(config: TransformerConfig) -> bool:
    """Whether one matrix serves all three uses; any other sharing is stored as separate matrices."""
    return config.share_source_target and config.share_target_output


def _attention(name: str, attention: MultiHeadAttention, residual: Residual, order: Tensor) -> dict[str, Tensor]:
    """A layer of attention and its norm. Heads stay as they are: only their inputs and outputs are d_model wide."""
    stored = {}
    for theirs, ours in (("q_proj", attention.query), ("k_proj", attention.key), ("v_proj", attention.value)):
        stored[f"{name}.{theirs}.weight"] = ours.weight[:, order]
        stored[f"{name}.{theirs}.bias"] = torch.zeros(ours.out_features) if ours.bias is None else ours.bias
    out = attention.output
    stored[f"{name}.out_proj.weight"] = out.weight[order]
    stored[f"{name}.out_proj.bias"] = torch.zeros(out.out_features) if out.bias is None else out.bias[order]
    return stored | _norm(f"{name}_layer_norm", residual, order)


def _feed_forward(prefix: str, layer: FeedForward, residual: Residual, order: Tensor) -> dict[str, Tensor]:
    return {
        f"{prefix}.fc1.weight": layer.inner.weight[:, order],
        f"{prefix}.fc1.bias": layer.inner.bias,
        f"{prefix}.fc2.weight": layer.outer.weight[order],
        f"{prefix}.fc2.bias": layer.outer.bias[order],
    } | _norm(f"{prefix}.final_layer_norm", residual, order)


def _norm(name: str, residual: Residual, order: Tensor) -> dict[str, Tensor]:
    norm = residual.layer_norm
    return {f"{name}.weight": norm.weight[order], f"{name}.bias": norm.bias[order]}


# Files


def _files(source: Source) -> dict[str, bytes]:
    return {
        "config.json": to_json(model_config(source)),
        "generation_config.json": to_json(_generation_config(source)),
        **_tokenizer_files(source),
        "README.md": _readme(source).encode(),
        "model.safetensors": weights_to_bytes(weights(source), metadata={"format": "pt"}),
    }


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def special_ids(source: Source) -> dict[str, int | None]:
    ids = source.tokenizers.target.vocabulary
    return {
        "pad_token_id": ids.pad,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos,
        "decoder_start_token_id": ids.bos,
        "forced_eos_token_id": None,  # Marian's default is 0, which is padding here
    }


def model_config(source: Source) -> dict[str, Any]:
    config = source.shape
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "dtype": "float32",
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": config.target_vocabulary,
        "d_model": config.encoder.d_model,
        "encoder_layers": config.encoder.num_layers,
        "encoder_attention_heads": config.encoder.num_heads,
        "encoder_ffn_dim": config.encoder.d_ff,
        "decoder_layers": config.decoder.num_layers,
        "decoder_attention_heads": config.decoder.num_heads,
        "decoder_ffn_dim": config.decoder.d_ff,
        "activation_function": config.activation,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": _is_shared(config),
        "tie_word_embeddings": config.share_target_output,
        "max_position_embeddings": source.num_positions,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "is_encoder_decoder": True,
        **special_ids(source),
    }


def _generation_config(source: Source) -> dict[str, Any]:
    decode = source.config.decode
    return {
        **special_ids(source),
        "suppress_tokens": list(source.tokenizers.target.vocabulary.never_predicted),
        "max_new_tokens": source.config.text.max_length + decode.max_extra,  # with </s>
        "num_beams": decode.beam,
        "length_penalty": decode.length_penalty,
        "early_stopping": False,
    }


def _tokenizer_files(source: Source) -> dict[str, bytes]:
    tokenizers = source.tokenizers
    joint = tokenizers.source is tokenizers.target
    names = {"unk_token": "unk", "bos_token": "bos", "eos_token": "eos", "pad_token": "pad"}
    ids = tokenizers.target.vocabulary
    config = {
        "tokenizer_class": "MarianTokenizer",
        **{theirs: tokenizers.target.pieces([getattr(ids, ours)])[0] for theirs, ours in names.items()},
        "model_max_length": source.config.text.max_length,
        "separate_vocabs": not joint,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "</s>" in a text is text
    }
    return {
        "tokenizer_config.json": to_json(config),
        "source.spm": tokenizers.source.to_bytes(),
        "target.spm": tokenizers.target.to_bytes(),
        "vocab.json": to_json(_ids_of_pieces(tokenizers, "source")),
        **({} if joint else {"target_vocab.json": to_json(_ids_of_pieces(tokenizers, "target"))}),
    }


def _ids_of_pieces(tokenizers: Tokenizers, side: str) -> dict[str, int]:
    tokenizer = getattr(tokenizers, side)
    return {piece: index for index, piece in enumerate(tokenizer.pieces(range(tokenizer.size)))}


def _readme(source: Source) -> str:
    form, decode = source.config.text.normalization, source.config.decode
    program = f"""\
{normalization_imports(form)}
from transformers import MarianMTModel, MarianTokenizer

tokenizer, model = MarianTokenizer.from_pretrained("."), MarianMTModel.from_pretrained(".")
text = "..."  # one sentence
batch = tokenizer([{normalization_code(form)}], return_tensors="pt")
output = model.generate(**batch, max_new_tokens=batch.input_ids.shape[1] + {decode.max_extra})
print(tokenizer.batch_decode(output, skip_special_tokens=True))
"""
    beam = (
        f"`generation_config.json` has beam {decode.beam} and length penalty {decode.length_penalty:g}, as the model."
    )
    return CARD_HEAD + readme(source, "Hugging Face transformers", "huggingface", program, beam)


# The check


def translate(
    directory: Path,
    texts: Sequence[str],
    limit: int,
    never: Sequence[int] = (),
    classes: tuple[str, str] = MARIAN_CLASSES,
) -> list[list[int]]:
    """Greedy search with transformers, by its classes of tokenizer and model.

    `never`: ids that it must not produce, beside those of the folder.
    """
    import transformers
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        tokenizer = getattr(transformers, classes[0]).from_pretrained(directory)
        model = getattr(transformers, classes[1]).from_pretrained(directory, dtype=torch.float32).eval()
        options = {"suppress_tokens": list(never)} if never else {}
        model.generation_config.update(**PLAIN_SEARCH)
        found = []
        for text in texts:
            batch = tokenizer([text], return_tensors="pt")
            row = model.generate(**batch, **options, num_beams=1, do_sample=False, max_new_tokens=limit)[0]
            found.append(row[1:].tolist())  # without <s>
        return found
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
