"""The sizes of a Transformer and its weights, by name and freshly drawn. Knows nothing of the computation.

The names are those of the PyTorch model, so that both can use the same weights. A matrix with two uses is stored once,
under the name of its first use.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.reference.functions import Array

Parameters = dict[str, Array]


@dataclass(frozen=True)
class StackSize:
    """The sizes of one stack of layers, encoder or decoder."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    d_k: int
    d_v: int


@dataclass(frozen=True)
class Config:
    """The shape of a Transformer; the fields mean the same as in the PyTorch model's configuration."""

    vocab_size: int
    target_vocab_size: int | None = None
    num_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    decoder_num_layers: int | None = None
    decoder_d_model: int | None = None
    decoder_d_ff: int | None = None
    decoder_num_heads: int | None = None
    norm: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    activation: Literal["relu", "gelu", "swish"] = "relu"
    attention_bias: bool = True
    output_bias: bool = False
    share_source_target: bool = True
    share_target_output: bool = True

    def __post_init__(self) -> None:
        if self.positions not in ("sinusoidal", "none"):
            raise ValueError(
                f"positions={self.positions!r}: the reference has the paper's only; use sinusoidal or none"
            )

    @property
    def encoder(self) -> StackSize:
        return self._stack(self.num_layers, self.d_model, self.d_ff, self.num_heads)

    @property
    def decoder(self) -> StackSize:
        return self._stack(
            self.decoder_num_layers or self.num_layers,
            self.decoder_d_model or self.d_model,
            self.decoder_d_ff or self.d_ff,
            self.decoder_num_heads or self.num_heads,
        )

    @property
    def target_vocabulary(self) -> int:
        return self.target_vocab_size or self.vocab_size

    def tied(self, name: str) -> str:
        """The name under which a shared matrix is stored."""
        if name == "output.weight" and self.share_target_output:
            name = "target_embedding.weight"
        if name == "target_embedding.weight" and self.share_source_target:
            name = "source_embedding.weight"
        return name

    def _stack(self, num_layers: int, d_model: int, d_ff: int, num_heads: int) -> StackSize:
        width = d_model // num_heads
        return StackSize(num_layers, d_model, d_ff, num_heads, self.d_k or width, self.d_v or width)


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Every parameter's name and shape. A linear map from I to O is a matrix [O, I], as in PyTorch."""
    encoder, decoder, vocabulary = config.encoder, config.decoder, config.target_vocabulary
    listed = {
        "source_embedding.weight": (config.vocab_size, encoder.d_model),
        "target_embedding.weight": (vocabulary, decoder.d_model),
        **dict(_stack_shapes("encoder", encoder, encoder.d_model, config)),
        **dict(_stack_shapes("decoder", decoder, encoder.d_model, config)),
        **dict(_linear_shapes("output", decoder.d_model, vocabulary, config.output_bias)),
    }
    return {name: shape for name, shape in listed.items() if config.tied(name) == name}


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _linear_shapes(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _norm_shapes(name: str, width: int) -> Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _attention_shapes(name: str, size: StackSize, d_memory: int, bias: bool) -> Shapes:
    yield from _linear_shapes(f"{name}.query", size.d_model, size.num_heads * size.d_k, bias)
    yield from _linear_shapes(f"{name}.key", d_memory, size.num_heads * size.d_k, bias)
    yield from _linear_shapes(f"{name}.value", d_memory, size.num_heads * size.d_v, bias)
    yield from _linear_shapes(f"{name}.output", size.num_heads * size.d_v, size.d_model, bias)


def _stack_shapes(stack: str, size: StackSize, d_memory: int, config: Config) -> Shapes:
    if config.norm == "pre":
        yield from _norm_shapes(f"{stack}.final_norm", size.d_model)
    for number in range(size.num_layers):
        layer = f"{stack}.layers.{number}"
        yield from _attention_shapes(f"{layer}.self_attention", size, size.d_model, config.attention_bias)
        if stack == "decoder":
            yield from _attention_shapes(f"{layer}.cross_attention", size, d_memory, config.attention_bias)
        yield from _linear_shapes(f"{layer}.feed_forward.inner", size.d_model, size.d_ff)
        yield from _linear_shapes(f"{layer}.feed_forward.outer", size.d_ff, size.d_model)
        sub_layers = ("self_attention", "cross_attention", "feed_forward")
        for sub_layer in sub_layers if stack == "decoder" else sub_layers[::2]:
            yield from _norm_shapes(f"{layer}.{sub_layer}_residual.layer_norm", size.d_model)


def initialise(config: Config, random: np.random.Generator) -> Parameters:
    """Embeddings N(0, 1/d_model), matrices Xavier uniform, norms the identity, biases 0, as in the paper's code."""
    drawn: Parameters = {}
    for name, shape in shapes(config).items():
        if "embedding" in name:
            drawn[name] = random.normal(0.0, shape[1] ** -0.5, shape)
        elif len(shape) == 2:
            bound = math.sqrt(6.0 / sum(shape))
            drawn[name] = random.uniform(-bound, bound, shape)
        else:
            drawn[name] = np.ones(shape) if name.endswith("norm.weight") else np.zeros(shape)
    return drawn
