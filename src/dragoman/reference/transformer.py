"""The Transformer (section 3 of the paper): the forward pass, and the same steps backward. Knows nothing of the loss.

Each forward function has its backward right below it, the same steps in reverse order. A value used in two places
gets the sum of both gradients: residual connections, self-attention (a position is query, key and value), the
encoder's output (every decoder layer attends to it), tied matrices.

Shapes, as suffixes of names:
    B  sentences      S  source positions      T  target positions      M  width of a position (d_model)
    V  target vocabulary      H, Q, K as in attention.py
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dragoman.reference import attention, functions
from dragoman.reference.functions import Array, Ids, Mask, Saved
from dragoman.reference.parameters import Config, Parameters, StackSize


@dataclass
class Pass:
    """One forward pass: every activation by name, what its backward needs, and the gradients collected so far."""

    config: Config
    parameters: Parameters
    dropout_masks: Mapping[str, Array]
    activations: dict[str, Array] = field(default_factory=dict)
    saved: dict[str, Saved] = field(default_factory=dict)
    gradients: Parameters = field(default_factory=dict)

    def parameter(self, name: str) -> Array | None:
        return self.parameters.get(self.config.tied(name))

    def weight(self, name: str) -> Array:
        return self.parameters[self.config.tied(name)]

    def add_gradient(self, name: str, gradient: Array) -> None:
        """Add up the gradients of a parameter used twice; drop those of a bias that the model does not have."""
        name = self.config.tied(name)
        if name in self.parameters:
            self.gradients[name] = self.gradients[name] + gradient if name in self.gradients else gradient

    def keep(self, name: str, output: Array, saved: Saved = ()) -> Array:
        self.activations[name], self.saved[name] = output, saved
        return output

    def linear(self, name: str, x: Array) -> Array:
        return self.keep(name, *functions.linear(x, self.weight(f"{name}.weight"), self.parameter(f"{name}.bias")))

    def linear_backward(self, name: str, d_y: Array) -> Array:
        d_x, d_weight, d_bias = functions.linear_backward(d_y, self.saved[name])
        self.add_gradient(f"{name}.weight", d_weight)
        self.add_gradient(f"{name}.bias", d_bias)
        return d_x

    def layer_norm(self, name: str, x: Array) -> Array:
        return self.keep(name, *functions.layer_norm(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")))

    def layer_norm_backward(self, name: str, d_y: Array) -> Array:
        d_x, d_scale, d_shift = functions.layer_norm_backward(d_y, self.saved[name])
        self.add_gradient(f"{name}.weight", d_scale)
        self.add_gradient(f"{name}.bias", d_shift)
        return d_x

    def dropout(self, name: str, x: Array) -> Array:
        return self.keep(name, *functions.dropout(x, self.dropout_masks.get(name)))

    def dropout_backward(self, name: str, d_y: Array) -> Array:
        return functions.dropout_backward(d_y, self.saved[name])


# 3.4 and 3.5: embeddings and positions


def embed(run: Pass, side: str, stack: str, ids_BT: Ids) -> Array:
    """sqrt(d_model) * table[ids] + positions, then dropout."""
    table_VM = run.weight(f"{side}_embedding.weight")
    d_model = table_VM.shape[1]
    rows_BTM = run.keep(f"{side}_embedding", *functions.embedding(ids_BT, table_VM))
    x_BTM = rows_BTM * math.sqrt(d_model)
    if run.config.positions == "sinusoidal":
        x_BTM = x_BTM + functions.sinusoids(ids_BT.shape[1], d_model)
    run.keep(f"{stack}.positions", x_BTM)
    return run.dropout(f"{stack}.dropout", x_BTM)


def embed_backward(run: Pass, side: str, stack: str, d_x_BTM: Array) -> None:
    d_x_BTM = run.dropout_backward(f"{stack}.dropout", d_x_BTM)
    d_rows_BTM = d_x_BTM * math.sqrt(d_x_BTM.shape[-1])
    d_table_VM = functions.embedding_backward(d_rows_BTM, run.saved[f"{side}_embedding"])
    run.add_gradient(f"{side}_embedding.weight", d_table_VM)


# 3.2: multi-head attention


def multi_head(run: Pass, name: str, size: StackSize, x_BQM: Array, memory_BKM: Array, allowed: Mask | None) -> Array:
    """Queries from x, keys and values from the memory; all heads attend, and a final linear map mixes them."""
    q_BHQD = attention.split_heads(run.linear(f"{name}.query", x_BQM), size.num_heads)
    k_BHKD = attention.split_heads(run.linear(f"{name}.key", memory_BKM), size.num_heads)
    v_BHKE = attention.split_heads(run.linear(f"{name}.value", memory_BKM), size.num_heads)
    heads_BHQE, weights_BHQK, saved = attention.attend(
        q_BHQD, k_BHKD, v_BHKE, allowed, run.dropout_masks.get(f"{name}.dropout")
    )
    run.keep(f"{name}.weights", weights_BHQK, saved)
    return run.keep(name, run.linear(f"{name}.output", attention.merge_heads(heads_BHQE)))


def multi_head_backward(run: Pass, name: str, d_out_BQM: Array) -> tuple[Array, Array]:
    """The gradients of x and of the memory."""
    num_heads = run.activations[f"{name}.weights"].shape[1]
    d_heads_BHQE = attention.split_heads(run.linear_backward(f"{name}.output", d_out_BQM), num_heads)
    d_q_BHQD, d_k_BHKD, d_v_BHKE = attention.attend_backward(d_heads_BHQE, run.saved[f"{name}.weights"])
    d_x_BQM = run.linear_backward(f"{name}.query", attention.merge_heads(d_q_BHQD))
    d_memory_BKM = run.linear_backward(f"{name}.key", attention.merge_heads(d_k_BHKD))
    d_memory_BKM = d_memory_BKM + run.linear_backward(f"{name}.value", attention.merge_heads(d_v_BHKE))
    return d_x_BQM, d_memory_BKM


# 3.3: the feed-forward network


def feed_forward(run: Pass, name: str, x_BTM: Array) -> Array:
    """f(x W1^T + b1) W2^T + b2 with f = max(0, .) in the paper."""
    hidden, slope = functions.ACTIVATIONS[run.config.activation](run.linear(f"{name}.inner", x_BTM))
    run.keep(f"{name}.activation", hidden, (slope,))
    return run.keep(name, run.linear(f"{name}.outer", hidden))


def feed_forward_backward(run: Pass, name: str, d_out_BTM: Array) -> Array:
    (slope,) = run.saved[f"{name}.activation"]
    return run.linear_backward(f"{name}.inner", run.linear_backward(f"{name}.outer", d_out_BTM) * slope)


# 3.1: around a sub-layer. Post-norm: LayerNorm(x + Dropout(f(x))). Pre-norm: x + Dropout(f(LayerNorm(x))).


def enter(run: Pass, name: str, x_BTM: Array) -> Array:
    """The input of the sub-layer."""
    return run.layer_norm(f"{name}.layer_norm", x_BTM) if run.config.norm == "pre" else x_BTM


def enter_backward(run: Pass, name: str, d_h_BTM: Array) -> Array:
    return run.layer_norm_backward(f"{name}.layer_norm", d_h_BTM) if run.config.norm == "pre" else d_h_BTM


def leave(run: Pass, name: str, x_BTM: Array, out_BTM: Array) -> Array:
    """The input of the next sub-layer."""
    x_BTM = x_BTM + run.dropout(f"{name}.dropout", out_BTM)
    return x_BTM if run.config.norm == "pre" else run.layer_norm(f"{name}.layer_norm", x_BTM)


def leave_backward(run: Pass, name: str, d_x_BTM: Array) -> tuple[Array, Array]:
    """The gradients of x along the residual connection and of the sub-layer's output."""
    if run.config.norm == "post":
        d_x_BTM = run.layer_norm_backward(f"{name}.layer_norm", d_x_BTM)
    return d_x_BTM, run.dropout_backward(f"{name}.dropout", d_x_BTM)


# 3.1: the layers


def encoder_layer(run: Pass, name: str, x_BSM: Array, allowed: Mask | None) -> Array:
    h_BSM = enter(run, f"{name}.self_attention_residual", x_BSM)
    out_BSM = multi_head(run, f"{name}.self_attention", run.config.encoder, h_BSM, h_BSM, allowed)
    x_BSM = leave(run, f"{name}.self_attention_residual", x_BSM, out_BSM)

    h_BSM = enter(run, f"{name}.feed_forward_residual", x_BSM)
    out_BSM = feed_forward(run, f"{name}.feed_forward", h_BSM)
    return run.keep(name, leave(run, f"{name}.feed_forward_residual", x_BSM, out_BSM))


def encoder_layer_backward(run: Pass, name: str, d_x_BSM: Array) -> Array:
    d_x_BSM = feed_forward_sublayer_backward(run, name, d_x_BSM)
    return self_attention_sublayer_backward(run, name, d_x_BSM)


def decoder_layer(run: Pass, name: str, x_BTM: Array, memory_BSM: Array, allowed: Mask | None) -> Array:
    past_QK = attention.look_ahead_mask(x_BTM.shape[1])
    h_BTM = enter(run, f"{name}.self_attention_residual", x_BTM)
    out_BTM = multi_head(run, f"{name}.self_attention", run.config.decoder, h_BTM, h_BTM, past_QK)
    x_BTM = leave(run, f"{name}.self_attention_residual", x_BTM, out_BTM)

    h_BTM = enter(run, f"{name}.cross_attention_residual", x_BTM)
    out_BTM = multi_head(run, f"{name}.cross_attention", run.config.decoder, h_BTM, memory_BSM, allowed)
    x_BTM = leave(run, f"{name}.cross_attention_residual", x_BTM, out_BTM)

    h_BTM = enter(run, f"{name}.feed_forward_residual", x_BTM)
    out_BTM = feed_forward(run, f"{name}.feed_forward", h_BTM)
    return run.keep(name, leave(run, f"{name}.feed_forward_residual", x_BTM, out_BTM))


def decoder_layer_backward(run: Pass, name: str, d_x_BTM: Array) -> tuple[Array, Array]:
    """The gradients of the layer's input and of the encoder's output."""
    d_x_BTM = feed_forward_sublayer_backward(run, name, d_x_BTM)

    d_x_BTM, d_out_BTM = leave_backward(run, f"{name}.cross_attention_residual", d_x_BTM)
    d_h_BTM, d_memory_BSM = multi_head_backward(run, f"{name}.cross_attention", d_out_BTM)
    d_x_BTM = d_x_BTM + enter_backward(run, f"{name}.cross_attention_residual", d_h_BTM)

    return self_attention_sublayer_backward(run, name, d_x_BTM), d_memory_BSM


def feed_forward_sublayer_backward(run: Pass, name: str, d_x_BTM: Array) -> Array:
    d_x_BTM, d_out_BTM = leave_backward(run, f"{name}.feed_forward_residual", d_x_BTM)
    d_h_BTM = feed_forward_backward(run, f"{name}.feed_forward", d_out_BTM)
    return d_x_BTM + enter_backward(run, f"{name}.feed_forward_residual", d_h_BTM)


def self_attention_sublayer_backward(run: Pass, name: str, d_x_BTM: Array) -> Array:
    d_x_BTM, d_out_BTM = leave_backward(run, f"{name}.self_attention_residual", d_x_BTM)
    d_query_BTM, d_memory_BTM = multi_head_backward(run, f"{name}.self_attention", d_out_BTM)
    return d_x_BTM + enter_backward(run, f"{name}.self_attention_residual", d_query_BTM + d_memory_BTM)


# 3.1: the stacks, and the whole model


def finish(run: Pass, stack: str, x_BTM: Array) -> Array:
    """Apply the final norm of a stack in pre-norm, where nothing else has normalised its output."""
    return run.keep(stack, run.layer_norm(f"{stack}.final_norm", x_BTM) if run.config.norm == "pre" else x_BTM)


def finish_backward(run: Pass, stack: str, d_x_BTM: Array) -> Array:
    return run.layer_norm_backward(f"{stack}.final_norm", d_x_BTM) if run.config.norm == "pre" else d_x_BTM


def forward(
    parameters: Parameters,
    config: Config,
    source_ids: Ids,
    target_ids: Ids,
    source_allowed: Mask | None = None,
    dropout_masks: Mapping[str, Array] | None = None,
) -> tuple[Array, Pass]:
    """[B, S] and [B, T] ids, [B, S] mask (True = real token) -> [B, T, V] logits, and the pass for `backward`."""
    run = Pass(config, parameters, dropout_masks or {})
    allowed = None if source_allowed is None else attention.padding_mask(source_allowed)

    x_BSM = embed(run, "source", "encoder", source_ids)
    for number in range(config.encoder.num_layers):
        x_BSM = encoder_layer(run, f"encoder.layers.{number}", x_BSM, allowed)
    memory_BSM = finish(run, "encoder", x_BSM)

    x_BTM = embed(run, "target", "decoder", target_ids)
    for number in range(config.decoder.num_layers):
        x_BTM = decoder_layer(run, f"decoder.layers.{number}", x_BTM, memory_BSM, allowed)
    return run.linear("output", finish(run, "decoder", x_BTM)), run


def backward(run: Pass, d_logits_BTV: Array) -> Parameters:
    """The gradient of the loss by the logits -> its gradient by every parameter, under the parameter's name."""
    run.gradients = {}
    d_x_BTM = finish_backward(run, "decoder", run.linear_backward("output", d_logits_BTV))
    d_memory_BSM = np.zeros_like(run.activations["encoder"])
    for number in reversed(range(run.config.decoder.num_layers)):
        d_x_BTM, d_more_BSM = decoder_layer_backward(run, f"decoder.layers.{number}", d_x_BTM)
        d_memory_BSM = d_memory_BSM + d_more_BSM
    embed_backward(run, "target", "decoder", d_x_BTM)

    d_x_BSM = finish_backward(run, "encoder", d_memory_BSM)
    for number in reversed(range(run.config.encoder.num_layers)):
        d_x_BSM = encoder_layer_backward(run, f"encoder.layers.{number}", d_x_BSM)
    embed_backward(run, "source", "encoder", d_x_BSM)
    return run.gradients
