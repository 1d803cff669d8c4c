"""Dropout is applied wherever it is configured, in training only, padded and packed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import RecurrentConfig, TransformerConfig
from dragoman.data.batching import teacher_forcing
from dragoman.data.packing import pack_sentences
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.packed import PackedTransformer
from dragoman.model.recurrent import Recurrent
from dragoman.model.transformer import Transformer

SOURCES, TARGETS = [[7, 8, 9, 10, 11], [5, 6]], [[4, 12, 13], [14, 15, 16, 17]]
LAYOUTS = ("padded", "packed")
SUB_LAYERS = {
    "encoder": ("self_attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}
RESIDUAL = [f"{stack}.layers.0.{name}_residual.dropout" for stack, names in SUB_LAYERS.items() for name in names]
ATTENTION = [f"{stack}.layers.0.{name}" for stack, names in SUB_LAYERS.items() for name in names if "attention" in name]
EMBEDDING = ["encoder.dropout", "decoder.dropout"]


def model_with(norm: str = "post", **dropout: float) -> Transformer:
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "num_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2}
    return Transformer(TransformerConfig(**sizes, norm=norm, **dropout))  # type: ignore[arg-type]


def dropouts(model: Transformer) -> dict[str, float]:
    """Every dropout of a model with its rate."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            found[name] = module.p
        elif isinstance(module, MultiHeadAttention):
            found[name] = module.dropout
    return found


def disable_all_but(model: Transformer, place: str) -> None:
    for name, module in model.named_modules():
        if name != place and isinstance(module, nn.Dropout):
            module.p = 0.0
        elif name != place and isinstance(module, MultiHeadAttention):
            module.dropout = 0.0


def run_of(model: Transformer, layout: str) -> Callable[[int], Tensor]:
    """The output of the model for a few pairs, as a function of the seed."""
    if layout == "padded":
        batch = teacher_forcing(SOURCES, TARGETS)

        def run(seed: int) -> Tensor:
            torch.manual_seed(seed)
            return model(batch.source_ids, batch.target_input, batch.source_allowed)
    else:
        packed, packed_model = pack_sentences(SOURCES, TARGETS, None), PackedTransformer(model, 16)

        def run(seed: int) -> Tensor:
            torch.manual_seed(seed)
            out: Tensor = packed_model(packed.source_ids_N, packed.target_input_N, packed.source, packed.target)
            return out

    return run


def test_every_dropout_has_the_configured_rate() -> None:
    found = dropouts(model_with(dropout=0.3, attention_dropout=0.2))
    assert found == dict.fromkeys([*EMBEDDING, *RESIDUAL], 0.3) | dict.fromkeys(ATTENTION, 0.2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_each_dropout_is_active_in_training_only(layout: str, norm: str) -> None:
    for place in [*EMBEDDING, *RESIDUAL, *ATTENTION]:
        model = model_with(norm, dropout=0.5, attention_dropout=0.5)
        disable_all_but(model, place)
        run = run_of(model, layout)
        model.train()
        assert torch.equal(run(1), run(1)), place
        assert not torch.equal(run(1), run(2)), f"the dropout of {place} is never applied"
        model.eval()
        assert torch.equal(run(1), run(2)), place
    model.train()
    disable_all_but(model, "nowhere")
    assert torch.equal(run(1), run(2)), "the control: nothing else is random"


@pytest.mark.parametrize("num_layers", [1, 2])
def test_recurrent_dropout_is_active_in_training_only(num_layers: int) -> None:
    torch.manual_seed(0)
    batch = teacher_forcing(SOURCES, TARGETS)
    for dropout in (0.5, 0.0):
        model = Recurrent(RecurrentConfig(vocab_size=30, d_model=16, num_layers=num_layers, dropout=dropout))
        between = dropout if num_layers > 1 else 0.0  # layers
        assert (model.dropout.p, model.encoder.dropout, model.decoder.dropout) == (dropout, between, between)

        def run(seed: int, model: Recurrent = model) -> Tensor:
            torch.manual_seed(seed)
            logits = model(batch.source_ids, batch.target_input, batch.source_allowed)
            assert isinstance(logits, Tensor)
            return logits

        assert torch.equal(run(1), run(2)) == (dropout == 0.0)
        model.eval()
        assert torch.equal(run(1), run(2))
