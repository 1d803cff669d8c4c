"""int8 linear layers: close to float32, exact in their integers, each row independent of its neighbours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import dragoman
from dragoman import int8
from dragoman.cli.app import app
from dragoman.config import RecurrentConfig, TransformerConfig
from dragoman.decode import quantized as module
from dragoman.decode.engines import plain as engine
from dragoman.decode.engines.plain import PRECISIONS, in_precision
from dragoman.decode.quantized import QuantizedLinear, integer_product, quantize_rows, quantized
from dragoman.errors import ConfigError
from dragoman.int8 import LEVELS
from dragoman.model.recurrent import Recurrent
from dragoman.model.transformer import Transformer


def randoms(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(in_features: int = 24, out_features: int = 30, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(in_features, out_features, bias=bias)


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    """Clear the cached probe of the int8 product before and after."""
    module._int_mm_is_exact.cache_clear()
    yield
    module._int_mm_is_exact.cache_clear()


# Rows and their scales


def test_row_maximum_becomes_127_and_errors_are_at_most_half_a_scale() -> None:
    x_NI = randoms(50, 16) * torch.logspace(-30, 30, 50)[:, None]
    integers_NI, scale_N1 = quantize_rows(x_NI)
    assert integers_NI.dtype == torch.int8
    assert (integers_NI.abs().amax(dim=1) == LEVELS).all()
    assert ((integers_NI * scale_N1 - x_NI).abs() <= 0.5001 * scale_N1).all()


def test_arrays_are_quantized_like_tensors() -> None:
    x_NI = randoms(200, 33) * torch.logspace(-40, 30, 200)[:, None]
    x_NI[7] = 0.0
    for array, tensor in zip(int8.quantize_rows(x_NI.numpy()), quantize_rows(x_NI), strict=True):
        assert array.dtype == tensor.numpy().dtype
        assert (array == tensor.numpy()).all()


def test_zero_and_subnormal_rows_are_quantized_safely() -> None:
    x_NI = torch.zeros(3, 8)
    x_NI[1], x_NI[2] = 1e-45, torch.finfo(torch.float32).tiny
    integers_NI, scale_N1 = quantize_rows(x_NI)
    assert (integers_NI[0] == 0).all()
    assert (scale_N1 > 0).all()
    layer = linear(8)
    torch.testing.assert_close(QuantizedLinear(layer)(x_NI), layer.bias.expand(3, -1))


def test_nan_is_propagated() -> None:
    x_NI = randoms(3, 24)
    x_NI[1, 5] = torch.nan
    y_NO = QuantizedLinear(linear())(x_NI)
    assert y_NO[1].isnan().all()
    assert y_NO[[0, 2]].isfinite().all()


# The integers


@pytest.mark.parametrize("rows", [1, 7, 17, 64])
@pytest.mark.parametrize("inputs", [8, 24, 2048])
def test_integer_product_is_exact(rows: int, inputs: int) -> None:
    random = torch.Generator().manual_seed(rows)
    x_NI = torch.randint(-LEVELS, LEVELS + 1, (rows, inputs), generator=random).to(torch.int8)
    weight_OI = torch.randint(-LEVELS, LEVELS + 1, (16, inputs), generator=random).to(torch.int8)
    x_NI[0], weight_OI[0] = LEVELS, LEVELS
    assert torch.equal(integer_product(x_NI, weight_OI).long(), x_NI.long() @ weight_OI.long().T)


def saturating(x_NI: Tensor, weight_IO: Tensor) -> Tensor:
    """Like x86 processors without VNNI: x made unsigned by adding 128, pairs of products added in 16 bits."""
    terms_NIO = (x_NI.int() + 128)[:, :, None] * weight_IO.int()
    pairs_NIO = (terms_NIO[:, 0::2] + terms_NIO[:, 1::2]).clamp(-(2**15), 2**15 - 1)
    return (pairs_NIO.sum(dim=1) - 128 * weight_IO.int().sum(dim=0)).int()


def missing(x_NI: Tensor, weight_IO: Tensor) -> Tensor:
    raise NotImplementedError("no such kernel")


@pytest.mark.usefixtures("fresh_probe")
@pytest.mark.parametrize("product", [saturating, missing])
def test_inexact_int8_product_is_replaced_by_an_exact_one(
    product: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x_NI = QuantizedLinear(linear(64)), randoms(7, 64)
    expected = layer(x_NI)
    most_NI = torch.full((2, 64), LEVELS, dtype=torch.int8)
    module._int_mm_is_exact.cache_clear()
    monkeypatch.setattr(torch, "_int_mm", product)
    assert not module._int_mm_is_exact(x_NI.device)
    assert (integer_product(most_NI, most_NI) == 64 * LEVELS**2).all()
    assert torch.equal(layer(x_NI), expected)


def test_control_saturating_product_is_wrong_and_integer_product_is_not() -> None:
    most_NI = torch.full((2, 64), LEVELS, dtype=torch.int8)
    assert (saturating(most_NI, most_NI.T) != 64 * LEVELS**2).all()
    small_NI = torch.full((2, 64), 3, dtype=torch.int8)
    assert (saturating(small_NI, small_NI.T) == 64 * 9).all(), "small values do not saturate"


# A linear layer


def share_of_bound(layer: nn.Linear, x_NI: Tensor) -> float:
    """The largest error against float64, as a share of the bound of half a scale per number."""
    y_NO = QuantizedLinear(layer)(x_NI)
    x_NI, weight_OI = x_NI.double(), layer.weight.detach().double()
    exact_NO = x_NI @ weight_OI.T + (0.0 if layer.bias is None else layer.bias.detach().double())
    scale_N1 = x_NI.abs().amax(dim=1, keepdim=True) / 127
    scale_O = weight_OI.abs().amax(dim=1) / 127
    # |x w - x' w'| <= |x| |w - w'| + |w'| |x - x'|, each difference half a scale at most, summed over the inputs
    weight_sum_O = weight_OI.abs().sum(dim=1) + weight_OI.size(1) * scale_O / 2
    bound_NO = x_NI.abs().sum(dim=1, keepdim=True) * scale_O / 2 + weight_sum_O * scale_N1 / 2
    return float(((y_NO - exact_NO).abs() / (bound_NO + 1e-6)).max())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("in_features", [1, 3, 8, 30, 512])
def test_output_is_within_the_quantization_error_of_the_float_layer(in_features: int, bias: bool) -> None:
    assert share_of_bound(linear(in_features, bias=bias), randoms(500, in_features)) <= 1.0


def test_fewer_levels_exceed_the_error_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEVELS", 31)
    assert share_of_bound(linear(3), randoms(500, 3)) > 1.5


@pytest.mark.parametrize("out_features", [1, 8, 31])
def test_any_width_and_leading_dimensions_work(out_features: int) -> None:
    layer = QuantizedLinear(linear(10, out_features))
    x = randoms(2, 3, 4, 10)
    y = layer(x)
    assert y.shape == (2, 3, 4, out_features)
    assert torch.equal(y[1, 2], layer(x[1, 2]))
    assert layer(x[:, :0]).shape == (2, 0, 4, out_features)


def whole_batch(x_NI: Tensor) -> tuple[Tensor, Tensor]:
    """The control: one scale for all rows."""
    scale_N1 = (x_NI.abs().amax() / LEVELS).expand(x_NI.size(0), 1)
    return (x_NI / scale_N1).round().to(torch.int8), scale_N1


def in_batches(layer: QuantizedLinear, x_NI: Tensor, size: int) -> Tensor:
    return torch.cat([layer(x_NI[first : first + size]) for first in range(0, len(x_NI), size)])


def rows_changed_by_the_batch(layer: QuantizedLinear) -> int:
    """How many of 64 rows change in some batch: of another size, shuffled, or with huge neighbours."""
    x_NI = randoms(64, 24)
    alone_NO = in_batches(layer, x_NI, 1)
    order_N = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    batches = [
        layer(x_NI),
        in_batches(layer, x_NI, 7),
        layer(x_NI[order_N])[order_N.argsort()],
        layer(torch.cat((x_NI, 1e6 * randoms(300, 24, seed=2))))[:64],
    ]
    return int(sum((batch_NO != alone_NO).any(dim=1) for batch_NO in batches).count_nonzero())


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    assert rows_changed_by_the_batch(QuantizedLinear(linear())) == 0


def test_one_scale_per_batch_changes_rows_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = QuantizedLinear(linear())
    monkeypatch.setattr(module, "quantize_rows", whole_batch)
    assert rows_changed_by_the_batch(layer) > 60


# Models


def transformer(**options: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "num_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4}
    return Transformer(TransformerConfig(**{**sizes, **options})).eval()


def recurrent(**options: Any) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(RecurrentConfig(vocab_size=30, d_model=16, **options)).eval()


MODELS: dict[str, Callable[[], Transformer | Recurrent]] = {
    "tied": transformer,
    "untied": lambda: transformer(share_source_target=False, share_target_output=False),
    "rotary": lambda: transformer(positions="rotary", norm="pre"),
    "lstm": lambda: recurrent(cell="lstm", context="source", score="additive"),
    "rnn": lambda: recurrent(cell="rnn", context="self", score="general"),
}


def some_ids() -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    source_ids, target_ids = (
        torch.randint(4, 30, (3, 8), generator=random),
        torch.randint(4, 30, (3, 6), generator=random),
    )
    return source_ids, target_ids, torch.arange(8) < torch.tensor([[8], [7], [5]])


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_every_linear_layer_is_replaced_in_a_copy_of_the_model(name: str) -> None:
    model, ids = MODELS[name](), some_ids()
    before, weights = model(*ids), {key: value.clone() for key, value in model.state_dict().items()}
    small: Any = quantized(model)
    linears = sum(isinstance(part, nn.Linear) for part in model.modules())
    assert sum(isinstance(part, QuantizedLinear) for part in small.modules()) == linears > 0
    assert not any(isinstance(part, nn.Linear) for part in small.modules())
    assert torch.equal(model(*ids), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert small.target_embedding.weight is model.target_embedding.weight, "shared, and still float32"
    after = small(*ids)
    assert after.dtype == torch.float32
    assert 0 < (after - before).abs().max() < 0.1 * before.abs().max()


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_step_by_step_decoding_matches_one_pass(name: str) -> None:
    model: Any = quantized(MODELS[name]())
    source_ids, target_ids, allowed = some_ids()
    expected = model(source_ids, target_ids, allowed)
    state = model.start(model.encode(source_ids, allowed), allowed)
    steps = torch.stack([model.step(target_ids[:, place], state) for place in range(6)], dim=1)
    # attention's float32 rows differ by about 1e-7; where that turns a rounding, an int8 number moves by one
    off = (steps - expected).abs().amax(dim=-1)
    assert off.max() < 0.05
    assert (off < 1e-5).float().mean() > 0.8
    late = model.start(model.encode(source_ids, allowed), allowed)
    forgetful = torch.stack([model.step(target_ids[:, place], late) for place in range(1, 6)], dim=1)
    assert (forgetful - expected[:, 1:]).abs().max() > 0.1, "the control: a cache without the first step"


@torch.inference_mode()
def test_attention_weights_are_returned_in_int8() -> None:
    logits, weights = quantized(transformer())(*some_ids(), need_weights=True)
    assert logits.shape == (3, 6, 30)
    for layers in (weights.encoder, weights.decoder, weights.cross):
        assert len(layers) == 2
        for each in layers:
            torch.testing.assert_close(each.sum(dim=-1), torch.ones(each.shape[:-1]))


# Asking for a precision


def test_unknown_or_unsupported_precision_is_refused() -> None:
    model, cpu = transformer(), torch.device("cpu")
    assert in_precision(model, cpu, "float32") is model
    with pytest.raises(ConfigError, match=r"precision: 'int' is not a choice; did you mean int8\?"):
        in_precision(model, cpu, "int")
    with pytest.raises(ConfigError, match="precision: 'x' is not a choice; known: bfloat16, float32, int8"):
        in_precision(model, cpu, "x")
    with pytest.raises(ConfigError, match="precision: 'int8' is not supported on MPS; use float32"):
        in_precision(model, torch.device("mps"), "int8")


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_bfloat16_converts_a_copy_of_the_model(name: str) -> None:
    model, ids = MODELS[name](), some_ids()
    half: Any = in_precision(model, torch.device("cpu"), "bfloat16")
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    before = model(*ids)
    assert 0 < (half(*ids).float() - before).abs().max() < 0.1 * before.abs().max()


@pytest.mark.parametrize(("slow", "precision"), [(True, "bfloat16"), (True, "float32"), (False, "bfloat16")])
def test_a_cpu_without_bfloat16_instructions_warns(
    slow: bool, precision: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(engine, "is_slow_in_bfloat16", lambda device: slow)
    in_precision(MODELS["tied"](), torch.device("cpu"), precision)
    expected = "precision: this CPU has no bfloat16 instructions and is far slower in it; use float32 or int8"
    assert [str(warning.message) for warning in recwarn] == [expected] * (slow and precision == "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "margin"), [pytest.param("int8", 0.05, marks=pytest.mark.slow), ("bfloat16", 0.5)]
)
def test_scores_and_attention_of_translations_match_in_each_precision(
    quick_run: Path, precision: str, margin: float
) -> None:
    translator = dragoman.load(str(quick_run), device="cpu", precision=precision)
    lines = ["a b c", "d e f g h i j", "k", "b a", "t s r q p o"]
    for beam in (1, 4):
        results = translator.translate(lines, beam=beam, attention=True)
        whole = [result for result in results if result.status == "translated"]
        assert len(whole) >= 4
        scores = translator.score([result.source for result in whole], [result.text for result in whole])
        others = translator.score([result.source for result in whole], [result.text + " a" for result in whole])
        for result, score, other in zip(whole, scores, others, strict=True):
            assert result.score == pytest.approx(score, abs=margin)
            assert abs(other - score) > 2 * margin, "the control: another translation has another score"
            assert result.attention is not None
            np.testing.assert_allclose(result.attention.cross.sum(axis=-1), 1.0, atol=1e-2)


@pytest.mark.slow
def test_commands_accept_a_precision(quick_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("a b c\nd e\n")
    model = ["--model", str(quick_run), "--device", "cpu"]
    commands = {
        "translate": ["translate", *model, "--input", str(source), "--output", str(tmp_path / "out")],
        "score": ["score", *model, str(source), str(source)],
        "evaluate": ["evaluate", *model, "--source", str(source), "--reference", str(source)],
    }
    for arguments in commands.values():
        done = CliRunner().invoke(app, [*arguments, "--precision", "int16"])
        assert isinstance(done.exception, ConfigError)
        assert str(done.exception) == "precision: 'int16' is not a choice; did you mean int8?"
        assert CliRunner().invoke(app, [*arguments, "--precision", "int8"]).exit_code == 0
    scores = [CliRunner().invoke(app, [*commands["score"], "--precision", name]).output for name in PRECISIONS]
    assert len(set(scores)) == len(PRECISIONS), "each was used"
