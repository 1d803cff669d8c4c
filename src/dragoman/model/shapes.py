"""The names and shapes of a model's weights, from its configuration alone. Knows nothing of torch."""

from collections.abc import Callable, Iterator
from typing import Any

from dragoman.config import (
    DecoderConfig,
    EncoderConfig,
    LayersConfig,
    ModelConfig,
    RecurrentConfig,
    StackSize,
    TransformerConfig,
)

Named = Iterator[tuple[str, tuple[int, ...]]]


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight once, in the order of the model; a shared matrix has its first name."""
    return dict(_SHAPES[config.architecture](config))


def _transformer(config: TransformerConfig) -> Named:
    encoder, decoder = config.encoder, config.decoder
    yield from _input("source_embedding", config.vocab_size, config.source_features, encoder.d_model)
    if not config.share_source_target:
        yield from _input("target_embedding", config.target_vocabulary, config.target_features, decoder.d_model)
    yield from _stack("encoder", encoder, config, {"self_attention": encoder.d_model})
    memories = {"self_attention": decoder.d_model, "cross_attention": encoder.d_model}
    yield from _stack("decoder", decoder, config, memories)
    if not config.share_target_output:
        yield "output.weight", (config.target_vocabulary, decoder.d_model)
    if config.output_bias:
        yield "output.bias", (config.target_vocabulary,)


def _decoder_only(config: DecoderConfig) -> Named:
    yield "target_embedding.weight", (config.vocab_size, config.d_model)
    yield from _stack("decoder", config.stacks["decoder"], config, {"self_attention": config.d_model})
    if not config.share_target_output:
        yield "output.weight", (config.vocab_size, config.d_model)
    if config.output_bias:
        yield "output.bias", (config.vocab_size,)


def _encoder_only(config: EncoderConfig) -> Named:
    yield from _input("source_embedding", config.vocab_size, config.source_features, config.d_model)
    yield from _stack("encoder", config.stacks["encoder"], config, {"self_attention": config.d_model})
    yield from _linear("output", config.d_model, config.num_labels)


def _stack(name: str, size: StackSize, config: LayersConfig, memories: dict[str, int]) -> Named:
    """`memories` gives the width of what each attention of a layer looks at."""
    width = size.d_model
    if config.positions == "learned":
        yield f"{name}.positions.learned.weight", (config.max_positions, width)
    if config.embedding_norm:
        yield from _norm(f"{name}.embedding_norm", width)
    if config.norm == "pre":
        yield from _norm(f"{name}.final_norm", width)
    for number in range(size.num_layers):
        layer = f"{name}.layers.{number}"
        keys, values = size.num_heads * size.d_k, size.num_heads * size.d_v
        for attention, memory in memories.items():
            yield from _linear(f"{layer}.{attention}.query", width, keys, config.attention_bias)
            yield from _linear(f"{layer}.{attention}.key", memory, keys, config.attention_bias)
            yield from _linear(f"{layer}.{attention}.value", memory, values, config.attention_bias)
            yield from _linear(f"{layer}.{attention}.output", values, width, config.attention_bias)
        yield from _linear(f"{layer}.feed_forward.inner", width, size.d_ff)
        yield from _linear(f"{layer}.feed_forward.outer", size.d_ff, width)
        for sublayer in (*memories, "feed_forward"):
            yield from _norm(f"{layer}.{sublayer}_residual.layer_norm", width)


def _recurrent(config: RecurrentConfig) -> Named:
    width, gates = config.d_model, {"rnn": 1, "lstm": 4}[config.cell]
    yield from _input("source_embedding", config.vocab_size, config.source_features, width)
    if not config.share_source_target:
        yield from _input("target_embedding", config.target_vocabulary, config.target_features, width)
    for side in ("encoder", "decoder"):
        for number in range(config.num_layers):
            for kind in ("ih", "hh"):
                yield f"{side}.weight_{kind}_l{number}", (gates * width, width)
            for kind in ("ih", "hh"):
                yield f"{side}.bias_{kind}_l{number}", (gates * width,)
    if config.context != "none":
        if config.score == "general":
            yield "score.matrix.weight", (width, width)
        if config.score == "additive":
            yield "score.query.weight", (width, width)
            yield "score.key.weight", (width, width)
            yield "score.vector.weight", (1, width)
        yield from _linear("join", 2 * width, width)
    if not config.share_target_output:
        yield "output.weight", (config.target_vocabulary, width)
    yield "output.bias", (config.target_vocabulary,)


def _input(name: str, vocab_size: int, features: int | None, width: int) -> Named:
    """An embedding, or the projection of vectors."""
    if features is None:
        yield f"{name}.weight", (vocab_size, width)
    else:
        yield from _linear(name, features, width)


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Named:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _norm(name: str, width: int) -> Named:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


_SHAPES: dict[str, Callable[[Any], Named]] = {
    "transformer": _transformer,
    "decoder": _decoder_only,
    "encoder": _encoder_only,
    "rnn": _recurrent,
    "lstm": _recurrent,
}
