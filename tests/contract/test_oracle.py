"""The PyTorch model against the NumPy reference: the same weights, every activation, every parameter's gradient."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dragoman.config import TransformerConfig
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.model.transformer import Transformer
from dragoman.reference import attention, check, functions, training, transformer
from dragoman.reference.functions import Array, Mask, Saved
from dragoman.reference.parameters import Config, initialise, shapes
from dragoman.reference.training import Batch

AGREEMENT = 1e-10


def reference_config(config: TransformerConfig) -> Config:
    return Config(**{each.name: getattr(config, each.name) for each in fields(Config)})


def random_model(config: TransformerConfig, seed: int) -> Transformer:
    """Biases and norms are random too: at 0 and 1 they would hide mistakes."""
    torch.manual_seed(seed)
    model = Transformer(config).double()
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    return model


def numpy_weights(model: Transformer) -> dict[str, Array]:
    return {name: weight.detach().numpy().copy() for name, weight in model.named_parameters()}


# One pass of each


def torch_pass(model: Transformer, batch: Batch, need_weights: bool) -> tuple[dict[str, Array], dict[str, Array]]:
    """Every module's output by its name, and every parameter's gradient."""
    outputs: dict[str, list[Array]] = {}

    def capture(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor: Tensor = output[0] if isinstance(output, tuple) else output
            outputs.setdefault(name, []).append(tensor.detach().numpy().copy())

        return hook

    handles = [module.register_forward_hook(capture(name)) for name, module in model.named_modules() if name]
    source_ids, source_allowed, target_ids, goal_ids = map(torch.from_numpy, batch)
    if need_weights:
        logits, weights = model(source_ids, target_ids, source_allowed, need_weights=True)
    else:
        logits = model(source_ids, target_ids, source_allowed)
    for handle in handles:
        handle.remove()

    activations = {name: output[0] for name, output in outputs.items()}
    if model.config.share_source_target:  # one module, used for the source first
        activations["target_embedding"] = outputs["source_embedding"][1]
    if need_weights:
        for kind, layers in (
            ("encoder.layers.{}.self_attention", weights.encoder),
            ("decoder.layers.{}.self_attention", weights.decoder),
            ("decoder.layers.{}.cross_attention", weights.cross),
        ):
            for number, layer in enumerate(layers):
                activations[f"{kind.format(number)}.weights"] = layer.detach().numpy()

    loss = smoothed_cross_entropy(logits, goal_ids, 0.1) / (goal_ids != training.PAD).sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    return activations, {name: gradient.numpy() for name, gradient in zip(names, gradients, strict=True)}


def reference_pass(
    model: Transformer, batch: Batch, masks: dict[str, Array] | None = None
) -> tuple[dict[str, Array], dict[str, Array]]:
    parameters, config = numpy_weights(model), reference_config(model.config)
    _, run = transformer.forward(parameters, config, batch.source_ids, batch.target_ids, batch.source_allowed, masks)
    _, gradients = training.loss_and_gradients(parameters, config, batch, masks)
    return run.activations, gradients


def largest_difference(ours: dict[str, Array], theirs: dict[str, Array]) -> float:
    """The largest difference of two arrays of the same name, relative for values above 1."""
    return float(np.max([check.difference(ours[name], theirs[name]) for name in theirs]))  # keeps a NaN, unlike max()


def disagreement(model: Transformer, batch: Batch, need_weights: bool) -> tuple[float, float]:
    """The largest differences of activations and of gradients."""
    activations, gradients = torch_pass(model, batch, need_weights)
    expected_activations, expected_gradients = reference_pass(model, batch)
    containers = {"encoder.layers", "decoder.layers"}
    silent = {name for name, _ in model.named_modules() if name.endswith("_residual")} | containers | {""}
    modules = {name for name, _ in model.named_modules()} - silent
    assert modules <= activations.keys(), "every module that computes something was captured"
    assert activations.keys() <= expected_activations.keys()
    assert gradients.keys() == expected_gradients.keys() == dict(model.named_parameters()).keys()
    return largest_difference(expected_activations, activations), largest_difference(expected_gradients, gradients)


# Random configurations


@st.composite
def configurations(draw: st.DrawFn) -> TransformerConfig:
    """Small Transformers of every kind that the reference has."""
    d_model, num_heads = draw(st.sampled_from([(4, 1), (4, 2), (5, 1), (6, 3), (8, 2), (8, 4)]))
    shared = draw(st.booleans())
    vocab_size = draw(st.integers(4, 9))
    decoder: dict[str, Any] = {}
    if not shared and draw(st.booleans()):
        decoder = {"decoder_d_model": 6, "decoder_num_heads": 2, "decoder_d_ff": 5, "target_vocab_size": 7}
    return TransformerConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=draw(st.integers(1, 9)),
        num_layers=draw(st.integers(1, 2)),
        decoder_num_layers=draw(st.sampled_from([None, 1, 2])),
        d_k=draw(st.sampled_from([None, 1, 3])),
        d_v=draw(st.sampled_from([None, 1, 3])),
        norm=draw(st.sampled_from(["post", "pre"])),
        positions=draw(st.sampled_from(["sinusoidal", "none"])),
        activation=draw(st.sampled_from(["relu", "gelu", "swish"])),
        attention_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        share_source_target=shared,
        share_target_output=draw(st.booleans()),
        dropout=0.0,
        **decoder,
    )


@st.composite
def batches(draw: st.DrawFn, config: TransformerConfig) -> Batch:
    """Ragged sentences; some have no source token, some only the first target token."""
    rows, source, target = (draw(st.integers(1, most)) for most in (3, 5, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    source_lengths = np.array([[draw(st.integers(0, source))] for _ in range(rows)])
    target_lengths = np.array([[draw(st.integers(1, target))] for _ in range(rows)])
    goal_ids = random.integers(1, config.target_vocabulary, (rows, target))
    return Batch(
        source_ids=random.integers(0, config.vocab_size, (rows, source)),
        source_allowed=np.arange(source) < source_lengths,
        target_ids=random.integers(0, config.target_vocabulary, (rows, target)),
        goal_ids=np.where(np.arange(target) < target_lengths, goal_ids, training.PAD),
    )


def check_agreement(data: st.DataObject) -> None:
    config = data.draw(configurations())
    batch = data.draw(batches(config))
    model = random_model(config, data.draw(st.integers(0, 2**32)))
    for need_weights in (False, True):
        activations, gradients = disagreement(model, batch, need_weights)
        assert activations < AGREEMENT
        assert gradients < AGREEMENT


@settings(max_examples=100)
@given(st.data())
def test_every_activation_and_gradient_agrees(data: st.DataObject) -> None:
    check_agreement(data)


@pytest.mark.slow
@settings(max_examples=2_000)
@given(st.data())
def test_every_activation_and_gradient_agrees_in_many_examples(data: st.DataObject) -> None:
    check_agreement(data)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"share_source_target": False},
    {"share_target_output": False},
    {"share_source_target": False, "share_target_output": False},
    {"norm": "pre", "activation": "gelu", "output_bias": True, "attention_bias": False, "positions": "none"},
]
IDS = [",".join(map(str, variant)) or "paper" for variant in VARIANTS]


def case(**options: Any) -> tuple[Transformer, Batch]:
    """A small model, and ragged sentences of which one is only padding."""
    sizes = {"vocab_size": 9, "d_model": 8, "d_ff": 12, "num_heads": 2, "num_layers": 2, "dropout": 0.0}
    config = TransformerConfig(**{**sizes, **options})
    return random_model(config, seed=0), check.random_batch(reference_config(config), np.random.default_rng(0))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_each_variant_agrees(variant: dict[str, Any], need_weights: bool) -> None:
    activations, gradients = disagreement(*case(**variant), need_weights)
    assert activations < AGREEMENT
    assert gradients < AGREEMENT


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
@pytest.mark.parametrize("same", [True, False])
def test_activations_and_gradients_agree_with_dropout(variant: dict[str, Any], same: bool) -> None:
    """With the same masks in the same places; the control hands PyTorch other masks."""
    model, batch = case(**variant)
    activations, _ = reference_pass(model, batch)
    masks = check.random_masks(activations, 0.3, np.random.default_rng(1))
    others = check.random_masks(activations, 0.3, np.random.default_rng(2))
    remaining = list((masks if same else others).values())

    def given_dropout(x: Tensor, *rate: Any) -> Tensor:
        return x * torch.from_numpy(remaining.pop(0))

    with patch.object(F, "dropout", given_dropout):
        activations, gradients = torch_pass(model, batch, need_weights=True)
    assert not remaining, "the same number of dropouts in both"
    expected_activations, expected_gradients = reference_pass(model, batch, masks)
    apart = max(
        largest_difference(expected_activations, activations), largest_difference(expected_gradients, gradients)
    )
    assert apart < AGREEMENT if same else apart > 1e-3


# Controls: a wrong reference is found out. Those wrong only on the way back show in the gradients alone.


def without_padding_mask(allowed_BK: Mask) -> Mask:
    return np.ones_like(allowed_BK)[:, None, None, :]


def without_look_ahead_mask(length: int) -> Mask:
    return np.ones((length, length), dtype=np.bool_)


def positions_by_row(length: int, d_model: int) -> Array:
    """Sine in even rows, cosine in odd ones: the formula on the wrong index."""
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(d_model) // 2 * 2 / d_model)
    return np.where(np.arange(length)[:, None] % 2 == 0, np.sin(angles), np.cos(angles))


def softmax_without_its_sum(d_p: Array, saved: Saved) -> Array:
    return saved[0] * d_p


def layer_norm_with_constant_statistics(d_y: Array, saved: Saved) -> tuple[Array, Array, Array]:
    n, deviation, scale = saved
    return d_y * scale / deviation, (d_y * n).sum(axis=(0, 1)), d_y.sum(axis=(0, 1))


def embedding_of_last_use_only(d_x: Array, saved: Saved) -> Array:
    d_table = np.zeros_like(saved[1])
    d_table[saved[0]] = d_x
    return d_table


def gradient_of_last_use_only(run: transformer.Pass, name: str, gradient: Array) -> None:
    if run.config.tied(name) in run.parameters:
        run.gradients[run.config.tied(name)] = gradient


FORWARD: list[tuple[Any, str, Any]] = [
    (attention, "scale", lambda d_k: 1.0),
    (attention, "padding_mask", without_padding_mask),
    (attention, "look_ahead_mask", without_look_ahead_mask),
    (functions, "sinusoids", positions_by_row),
    (functions, "EPSILON", 1e-3),
]
BACKWARD: list[tuple[Any, str, Any]] = [
    (attention, "softmax_backward", softmax_without_its_sum),
    (functions, "layer_norm_backward", layer_norm_with_constant_statistics),
    (functions, "embedding_backward", embedding_of_last_use_only),
    (transformer.Pass, "add_gradient", gradient_of_last_use_only),
]


@pytest.mark.parametrize(("owner", "name", "wrong"), FORWARD, ids=[each[1] for each in FORWARD])
def test_wrong_forward_is_detected(owner: Any, name: str, wrong: Any) -> None:
    with patch.object(owner, name, wrong):
        activations, gradients = disagreement(*case(), need_weights=True)
    assert activations > 1e-5
    assert gradients > 1e-5


@pytest.mark.parametrize(("owner", "name", "wrong"), BACKWARD, ids=[each[1] for each in BACKWARD])
def test_wrong_backward_is_detected(owner: Any, name: str, wrong: Any) -> None:
    with patch.object(owner, name, wrong):
        activations, gradients = disagreement(*case(), need_weights=True)
    assert activations < AGREEMENT
    assert gradients > 1e-5


# Names


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_parameter_names_shapes_and_order_match_pytorch(variant: dict[str, Any]) -> None:
    model, _ = case(**variant)
    expected = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    config = reference_config(model.config)
    assert list(shapes(config).items()) == list(expected.items())
    drawn = initialise(config, np.random.default_rng(0))
    assert {name: weight.shape for name, weight in drawn.items()} == expected


def test_rotary_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="positions='rotary': the reference has the paper's only; use sinusoidal or"):
        reference_config(TransformerConfig(positions="rotary"))
