"""The size of a model, predicted from its configuration alone: nothing is allocated. Knows nothing of training."""

from dragoman.config import ModelConfig, RecurrentConfig, StackSize, TransformerConfig


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, in the order of the forward pass. Shared matrices are counted once, where first used."""
    counts = _recurrent(config) if isinstance(config, RecurrentConfig) else _transformer(config)
    return {part: count for part, count in counts.items() if count}


def _transformer(config: TransformerConfig) -> dict[str, int]:
    encoder, decoder = config.encoder, config.decoder
    source_table = config.vocab_size * encoder.d_model
    target_table = config.target_vocabulary * decoder.d_model
    return {
        "source embedding": source_table,
        "target embedding": 0 if config.share_source_target else target_table,
        "positions": config.max_positions * (encoder.d_model + decoder.d_model) if config.positions == "learned" else 0,
        "encoder self-attention": encoder.num_layers * _attention(encoder, encoder.d_model, config),
        "encoder feed-forward": encoder.num_layers * _feed_forward(encoder),
        "encoder layer norm": _norms(encoder, 2, config),
        "decoder self-attention": decoder.num_layers * _attention(decoder, decoder.d_model, config),
        "decoder cross-attention": decoder.num_layers * _attention(decoder, encoder.d_model, config),
        "decoder feed-forward": decoder.num_layers * _feed_forward(decoder),
        "decoder layer norm": _norms(decoder, 3, config),
        "output projection": (0 if config.share_target_output else target_table)
        + (config.target_vocabulary if config.output_bias else 0),
    }


def _recurrent(config: RecurrentConfig) -> dict[str, int]:
    width = config.d_model
    gates = {"rnn": 1, "lstm": 4}[config.cell]
    stack = config.num_layers * gates * 2 * (width * width + width)
    score = {"dot": 0, "scaled_dot": 0, "general": width * width, "additive": 2 * width * width + width}[config.score]
    target_table = config.target_vocabulary * width
    looks = config.context != "none"
    return {
        "source embedding": config.vocab_size * width,
        "target embedding": 0 if config.share_source_target else target_table,
        "encoder cells": stack,
        "decoder cells": stack,
        "attention score": score if looks else 0,
        "context and state joined": 2 * width * width + width if looks else 0,
        "output projection": (0 if config.share_target_output else target_table) + config.target_vocabulary,
    }


def _attention(size: StackSize, d_memory: int, config: TransformerConfig) -> int:
    keys, values = size.num_heads * size.d_k, size.num_heads * size.d_v
    matrices = size.d_model * keys + d_memory * keys + d_memory * values + values * size.d_model
    return matrices + (2 * keys + values + size.d_model if config.attention_bias else 0)


def _feed_forward(size: StackSize) -> int:
    return 2 * size.d_model * size.d_ff + size.d_ff + size.d_model


def _norms(size: StackSize, per_layer: int, config: TransformerConfig) -> int:
    return (size.num_layers * per_layer + (config.norm == "pre")) * 2 * size.d_model


def parameter_table(config: ModelConfig) -> str:
    """The same as text: one line per part with its share, and the total."""
    counts = parameter_counts(config)
    total = sum(counts.values())
    rows = [f"{part:<24} {count:>13,}  {count / total:>6.1%}" for part, count in counts.items()]
    return "\n".join([*rows, f"{'total':<24} {total:>13,}  {total / 1e6:.1f}M"])
