"""Weights in NumPy arrays: their names and shapes, their types, and the model that is built of them."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

import dragoman
from dragoman import bundle, tensors
from dragoman.bundle import Bundle
from dragoman.config import DecoderConfig, EncoderConfig, ModelConfig, RecurrentConfig, TransformerConfig
from dragoman.errors import ModelError
from dragoman.int8 import compact, expanded
from dragoman.model.build import build_model
from dragoman.model.shapes import weight_shapes
from dragoman.weights import read_weights

PATH = Path("model/weights.safetensors")
SIZES: dict[str, Any] = {"vocab_size": 11, "num_layers": 2, "d_model": 12}


def transformer(**settings: Any) -> TransformerConfig:
    return TransformerConfig(**{**SIZES, "d_ff": 20, "num_heads": 3, **settings})


def recurrent(**settings: Any) -> RecurrentConfig:
    return RecurrentConfig(**{**SIZES, **settings})


SMALL: dict[str, Any] = {**SIZES, "d_ff": 20, "num_heads": 3}
HALVES: list[dict[str, Any]] = [{}, {"norm": "pre", "positions": "learned", "max_positions": 7, "embedding_norm": True}]
CONFIGS = [
    transformer(),
    transformer(norm="pre", positions="learned", max_positions=7),
    transformer(positions="rotary", attention_bias=False, output_bias=True),
    transformer(embedding_norm=True, norm="pre", positions="learned", max_positions=7),
    transformer(share_source_target=False),
    transformer(share_target_output=False),
    transformer(share_source_target=False, share_target_output=False, target_vocab_size=13, output_bias=True),
    transformer(decoder_d_model=8, decoder_num_heads=2, decoder_num_layers=1, share_source_target=False),
    transformer(d_k=5, d_v=7, norm="pre", positions="learned", share_source_target=False, target_vocab_size=9),
    *(DecoderConfig(**SMALL, **more) for more in HALVES),
    DecoderConfig(**SMALL, share_target_output=False, output_bias=True),
    *(EncoderConfig(**SMALL, num_labels=3, **more) for more in HALVES),
    *(
        recurrent(cell=cell, score=score, context="source")
        for cell in ("rnn", "lstm")
        for score in ("dot", "scaled_dot", "general", "additive")
    ),
    recurrent(context="none"),
    recurrent(context="self", share_source_target=False, share_target_output=False, target_vocab_size=13),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_shapes_are_those_of_the_model(config: ModelConfig) -> None:
    own = {name: tuple(weight.shape) for name, weight in build_model(config).named_parameters()}
    assert list(weight_shapes(config).items()) == list(own.items()), "and in the same order"


def read(weights: dict[str, torch.Tensor], *shape: int) -> np.ndarray[Any, Any]:
    return read_weights(save(weights), {"a": shape}, PATH)["a"]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_type_of_number_is_read_as_torch_reads_it(kind: torch.dtype) -> None:
    a = (torch.randn(5, 7, generator=torch.Generator().manual_seed(1)) * torch.logspace(-4, 4, 7)).to(kind)
    found = read({"a": a}, 5, 7)
    assert found.dtype == np.float32
    assert (found == a.float().numpy()).all()


def test_int8_is_read_as_it_is() -> None:
    a, scales = torch.arange(-6, 6, dtype=torch.int8).reshape(3, 4), torch.tensor([0.5, 1.0, 2.0])
    stored = read_weights(save({"a": a, "a.scale": scales}), {"a": (3, 4)}, PATH)
    assert {name: str(array.dtype) for name, array in stored.items()} == {"a": "int8", "a.scale": "float32"}
    assert (expanded(stored)["a"] == (a * scales[:, None]).numpy()).all()


@pytest.mark.parametrize(
    ("scale", "refused"), [(torch.nan, True), (torch.inf, True), (3e38, True), (2e36, False), (0.0, False)]
)
def test_scales_that_make_no_finite_numbers_are_refused(scale: float, refused: bool) -> None:
    weights = {"a": torch.ones(2, 3, dtype=torch.int8), "a.scale": torch.tensor([1.0, scale])}
    if not refused:
        assert np.isfinite(read(weights, 2, 3)).all()
        return
    with pytest.raises(ModelError, match=r"^model/weights.safetensors: a and 0 more hold numbers that are not finite$"):
        read(weights, 2, 3)


def test_numbers_beyond_float32_are_refused() -> None:
    with pytest.raises(ModelError, match="a and 0 more hold numbers that are not finite"):
        read({"a": torch.tensor([1.0, 1e300], dtype=torch.float64)}, 2)


def test_scales_of_nothing_are_an_unknown_weight() -> None:
    with pytest.raises(ModelError, match=r"does not fit its config.toml: b.scale is unknown; c is missing$"):
        read_weights(save({"a": torch.ones(2), "b.scale": torch.ones(3)}), {"a": (2,), "c": (3,)}, PATH)


# The model


def test_a_loaded_model_is_built_once_by_whoever_needs_it_first(
    quick_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, build = [], tensors.model_from
    start = threading.Barrier(4)

    def counted(*arguments: Any) -> Any:
        built.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(tensors, "model_from", counted)
    loaded = bundle.load_bundle(quick_run)
    assert not built
    found: list[Any] = []

    def use() -> None:
        start.wait()
        found.append(loaded.model)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len({id(model) for model in found}) == 1
    assert not found[0].training


@pytest.mark.parametrize("stored_as", [dict, compact], ids=["float32", "int8"])
def test_the_model_has_the_weights_that_were_stored(
    quick_run: Path, stored_as: Callable[[Any], dict[str, np.ndarray[Any, Any]]]
) -> None:
    loaded = bundle.load_bundle(quick_run)
    weights = stored_as(loaded.weights)
    again = Bundle(loaded.config, loaded.tokenizers, weights)
    assert again.int8 == (stored_as is compact)
    own = tensors.named_arrays(again.model)
    assert again.int8 == (stored_as is compact), "as before the model was built"
    assert (again.weights is weights) == again.int8, "float32 weights are not kept twice"
    assert list(own) == list(weight_shapes(loaded.config.model))
    for name, array in expanded(weights).items():
        assert (own[name] == array).all()


def test_a_model_that_is_built_during_inference_can_be_trained(quick_run: Path) -> None:
    translator = dragoman.load(quick_run, "cpu", engine="cpu")
    translator.score(["a b"], ["b a"])  # builds it within torch.inference_mode
    model = translator.engine.model
    assert not any(weight.is_inference() for weight in model.parameters())
    model(torch.tensor([[4, 5]]), torch.tensor([[2, 4]])).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_model_in_memory_gives_its_own_weights(quick_run: Path) -> None:
    loaded = bundle.load_bundle(quick_run)
    own = Bundle(loaded.config, loaded.tokenizers, loaded.model)
    assert own.model is loaded.model
    assert not own.int8
    with torch.no_grad():
        loaded.model.output.weight[0, 0] = 7.0
    assert own.weights["source_embedding.weight"][0, 0] == 7.0, "as they are now"
