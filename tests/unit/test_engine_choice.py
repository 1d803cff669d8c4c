"""Which engine and precision `auto` takes, why, and what is refused."""

import json
import sys
import warnings
from dataclasses import replace

import pytest
import torch

import dragoman
from dragoman.cli.app import app
from dragoman.config import Config, ModelConfig
from dragoman.decode.engines import choice
from dragoman.decode.engines.choice import EngineChoice, choose_engine
from dragoman.errors import ConfigError

CPU, CUDA = "cpu", "cuda"


def model(*settings: str, size: int = 1000) -> ModelConfig:
    return Config.build("tiny", None, settings).with_vocabulary(size, size).model


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a recent GPU with Triton and a compiler were there."""
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    monkeypatch.setattr(choice, "has_compiler", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


WIDE = ("model.d_model=256",)


@pytest.fixture
def exact_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on every processor but older ones of x86."""
    monkeypatch.setattr(choice, "int8_is_exact", lambda: True)


@pytest.mark.usefixtures("exact_int8")
def test_auto_on_a_cpu_is_the_cpu_engine_in_int8_for_int8_weights() -> None:
    expected = EngineChoice("cpu", "int8", "the fastest on cpu")
    assert choose_engine("auto", "auto", model(*WIDE), CPU, int8_weights=True) == expected
    assert choose_engine("auto", "int8", model(*WIDE), CPU) == expected
    assert choose_engine("auto", "auto", model(*WIDE), CPU) == replace(expected, precision="float32"), (
        "not rounded unasked"
    )
    assert choose_engine("auto", "float32", model(*WIDE), CPU) == EngineChoice("cpu", "float32", "the fastest on cpu")
    assert choose_engine("plain", "auto", model(*WIDE), CPU) == EngineChoice("plain", "float32", "as requested")


@pytest.mark.usefixtures("exact_int8")
def test_a_narrow_model_runs_in_the_cpu_engine_too() -> None:
    assert choose_engine("auto", "auto", model(), CPU) == EngineChoice("cpu", "float32", "the fastest on cpu")
    assert choose_engine("cpu", "auto", model(), CPU, int8_weights=True) == EngineChoice("cpu", "int8", "as requested")


@pytest.mark.parametrize(
    ("settings", "precision", "obstacle"),
    [
        (("model.architecture=rnn",), "auto", "the model is recurrent"),
        (("model.positions=rotary",), "auto", "the model has rotary positions"),
        ((), "bfloat16", "bfloat16 runs in the plain engine"),
    ],
)
def test_what_the_cpu_engine_cannot_run_gets_the_plain_one(
    settings: tuple[str, ...], precision: str, obstacle: str
) -> None:
    own = model(*WIDE, *settings)
    expected = EngineChoice("plain", precision if precision != "auto" else "float32", obstacle)
    assert choose_engine("auto", precision, own, CPU) == expected
    with pytest.raises(ConfigError) as refused:
        choose_engine("cpu", precision, own, CPU)
    assert str(refused.value) == f"engine: 'cpu' cannot run: {obstacle}; use auto or plain"


def test_without_an_exact_int8_product_a_cpu_searches_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "int8_is_exact", lambda: False)
    assert choose_engine("auto", "auto", model(*WIDE), CPU, int8_weights=True).precision == "float32"
    reason = "this processor has no exact int8 product"
    assert choose_engine("auto", "int8", model(*WIDE), CPU) == EngineChoice("plain", "int8", reason)


def test_without_its_runtime_the_cpu_engine_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    slower = "^engine: using the plain engine, which is several times slower: a package it needs cannot be imported: "
    with pytest.warns(UserWarning, match=slower):
        found = choose_engine("auto", "auto", model(*WIDE), CPU)
    assert (found.engine, found.precision) == ("plain", "float32")
    assert found.reason.startswith("a package it needs cannot be imported: import of onnxruntime halted")
    with pytest.raises(ConfigError, match=r"^engine: 'cpu' cannot run: the device is cuda; use auto or plain$"):
        choose_engine("cpu", "auto", model(*WIDE), CUDA)


def test_auto_on_a_gpu_is_the_cuda_engine_in_bfloat16(gpu: None) -> None:
    assert choose_engine("auto", "auto", model(), CUDA) == EngineChoice("cuda", "bfloat16", "the fastest on cuda")
    assert choose_engine("auto", "float32", model(), CUDA).precision == "float32"
    assert choose_engine("cuda", "auto", model(), CUDA) == EngineChoice("cuda", "bfloat16", "as requested")
    assert choose_engine("plain", "auto", model(), CUDA) == EngineChoice("plain", "float32", "as requested")


def test_int8_runs_in_the_plain_engine_without_a_warning(gpu: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = EngineChoice("plain", "int8", "int8 runs in the plain engine")
        assert choose_engine("auto", "int8", model(), CUDA) == expected


@pytest.mark.parametrize(
    ("name", "value", "obstacle"),
    [
        ("find_spec", lambda name: None, "Triton is not installed"),
        ("has_compiler", lambda: False, "Triton needs a C compiler, and none was found"),
    ],
)
def test_a_gpu_without_triton_runs_the_plain_engine_with_one_warning(
    gpu: None, monkeypatch: pytest.MonkeyPatch, name: str, value: object, obstacle: str
) -> None:
    monkeypatch.setattr(choice, name, value)
    with pytest.warns(UserWarning, match="^engine: ") as caught:
        assert choose_engine("auto", "auto", model(), CUDA) == EngineChoice("plain", "float32", obstacle)
    expected = f"engine: using the plain engine, which is many times slower: {obstacle}"
    assert [str(each.message) for each in caught] == [expected]
    with pytest.raises(ConfigError) as refused:
        choose_engine("cuda", "auto", model(), CUDA)
    assert str(refused.value) == f"engine: 'cuda' cannot run: {obstacle}; use auto or plain"


@pytest.mark.parametrize(("capability", "engine"), [((7, 5), "plain"), ((8, 0), "cuda")])
def test_an_older_gpu_runs_the_plain_engine(
    gpu: None, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], engine: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = choose_engine("auto", "auto", model(), CUDA)
    assert found.engine == engine
    if engine == "plain":
        assert found.reason == "the GPU's compute capability is 7.5, below 8.0"


@pytest.mark.parametrize(
    ("settings", "size", "obstacle"),
    [
        (("model.architecture=rnn",), 1000, "the model is recurrent"),
        (("model.d_k=320",), 1000, "heads of 320 are wider than 256"),
        (("model.d_k=256",), 1000, ""),
        ((), 200_000, "200,000 target pieces are more than 131,072"),
        ((), 131_072, ""),
    ],
)
def test_models_that_the_cuda_engine_cannot_run_get_the_plain_one_without_a_warning(
    gpu: None, settings: tuple[str, ...], size: int, obstacle: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = choose_engine("auto", "auto", model(*settings, size=size), CUDA)
    assert (found.engine, found.reason) == (("plain", obstacle) if obstacle else ("cuda", "the fastest on cuda"))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="engine: 'gpu' is not a choice; did you mean cpu"):
        choose_engine("gpu", "auto", model(), CPU)
    with pytest.raises(ConfigError, match="precision: 'bf16' is not a choice; did you mean bfloat16"):
        choose_engine("auto", "bf16", model(), CPU)


@pytest.mark.usefixtures("exact_int8")
def test_info_names_the_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dragoman.device.choose_device", lambda name: CPU)
    app(["info", "--preset", "tiny"], standalone_mode=False)
    assert "translates here with the cpu engine in float32: the fastest on cpu\n" in capsys.readouterr().out
    app(["info", "--preset", "tiny", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["engine"]["engine"] == "cpu"
    app(["info", "--model", "en-de"], standalone_mode=False)
    assert "translates here with the cpu engine in int8: the fastest on cpu\n" in capsys.readouterr().out


@pytest.mark.usefixtures("exact_int8")
def test_the_translator_names_its_choice() -> None:
    translator = dragoman.load("en-de", "cpu")
    assert translator.choice == EngineChoice("cpu", "int8", "the fastest on cpu")
    assert "int8" in repr(translator)
    assert translator.options(batch_size=0).batch_size == 32
    assert translator.choice_for(translator.options(beam=100)) == translator.choice
    for own in (translator.options(sampling=True), translator.options(beam=101)):
        reason = "the CPU engine has no sampling, head masks or beams wider than 100"
        assert translator.choice_for(own) == EngineChoice("plain", "float32", reason)
        assert own.batch_size == 64


def test_options_that_only_the_plain_engine_has_run_there(gpu: None) -> None:
    translator = dragoman.load("en-de", "cpu")
    translator.searcher.choice = EngineChoice("cuda", "bfloat16", "as if on a GPU")
    assert translator.choice_for(translator.options(beam=16)) == translator.choice
    for options in ({"beam": 17}, {"sampling": True}):
        own = translator.options(**options)
        found = translator.choice_for(own)
        assert (found.engine, found.precision, own.batch_size) == ("plain", "float32", 64)
    assert translator.options(batch_size=0).batch_size == 512
