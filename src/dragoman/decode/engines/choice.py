"""Which engine a search runs in, in which precision, and why. Runs nothing."""

import warnings
from dataclasses import dataclass
from importlib.util import find_spec

from dragoman.config import ModelConfig, TransformerConfig, require_choice
from dragoman.errors import ConfigError
from dragoman.machine import has_compiler

ENGINES = ("auto", "plain", "cuda", "cpu")
PRECISIONS = ("auto", "float32", "bfloat16", "int8")
WIDEST_HEAD = 256
MOST_IDS = 1 << 17  # of a vocabulary
OLDEST_GPU = (8, 0)  # compute capability: bfloat16, and what the kernels were written for


@dataclass(frozen=True)
class EngineChoice:
    engine: str  # plain, cuda or cpu
    precision: str  # of the search
    reason: str

    def describe(self) -> str:
        """One line for people."""
        return f"{self.engine} engine in {self.precision}: {self.reason}"


def choose_engine(
    engine: str, precision: str, model: ModelConfig, device: str, *, int8_weights: bool = False
) -> EngineChoice:
    """Resolve `auto`: the fastest engine and precision that lose no quality worth mentioning (docs/performance.md).

    On a CPU, weights are not rounded unasked: int8 is for a model that is stored in int8. Rounding can undo a short
    fine-tuning of such a model, whose weights have hardly left their int8 levels.
    """
    require_choice("engine", engine, ENGINES)
    require_choice("precision", precision, PRECISIONS)
    if engine == "plain":
        return EngineChoice("plain", _plain(precision), "as requested")
    if engine == "cpu" or (engine == "auto" and _kind(device) == "cpu"):
        return _for_cpu(engine, precision, model, device, int8_weights)
    machine = _obstacle_of_machine(device)
    obstacle = "int8 runs in the plain engine" if precision == "int8" else machine or _obstacle_of_model(model)
    if engine == "cuda" and obstacle:
        raise ConfigError(f"engine: 'cuda' cannot run: {obstacle}; use auto or plain")
    if obstacle:
        if _kind(device) == "cuda" and obstacle == machine:
            warnings.warn(f"engine: using the plain engine, which is many times slower: {machine}", stacklevel=3)
        return EngineChoice("plain", _plain(precision), obstacle)
    reason = "as requested" if engine == "cuda" else f"the fastest on {_kind(device)}"
    return EngineChoice("cuda", "bfloat16" if precision == "auto" else precision, reason)


def choose_for_ensemble(engine: str, precision: str) -> EngineChoice:
    """Several models at once run in the plain engine only."""
    require_choice("engine", engine, ENGINES)
    require_choice("precision", precision, PRECISIONS)
    if engine in ("cpu", "cuda"):
        raise ConfigError(f"engine: {engine!r} runs one model, not an ensemble; use auto or plain")
    return EngineChoice("plain", _plain(precision), "as requested" if engine == "plain" else "it is an ensemble")


def _kind(device: str) -> str:
    """The device without its number."""
    return device.partition(":")[0]


def _plain(precision: str) -> str:
    return "float32" if precision == "auto" else precision


def _for_cpu(engine: str, precision: str, model: ModelConfig, device: str, int8_weights: bool) -> EngineChoice:
    obstacle = _obstacle_for_cpu(precision, model, device)
    if engine == "cpu" and obstacle:
        raise ConfigError(f"engine: 'cpu' cannot run: {obstacle}; use auto or plain")
    if obstacle:
        return EngineChoice("plain", _plain(precision), obstacle)
    reason = "as requested" if engine == "cpu" else "the fastest on cpu"
    if precision == "auto":
        precision = "int8" if int8_weights and int8_is_exact() else "float32"
    return EngineChoice("cpu", precision, reason)


def int8_is_exact() -> bool:
    """Whether this processor has an exact int8 product."""
    from dragoman.decode.engines import products  # takes a while to import

    return products.int8_is_exact()


def _obstacle_for_cpu(precision: str, model: ModelConfig, device: str) -> str:
    """Why the CPU engine cannot run this; empty if it can."""
    if _kind(device) != "cpu":
        return f"the device is {_kind(device)}"
    if not isinstance(model, TransformerConfig):
        return "the model is recurrent"
    if model.positions == "rotary":
        return "the model has rotary positions"
    if precision == "bfloat16":
        return "bfloat16 runs in the plain engine"
    try:
        import numba  # noqa: F401
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        obstacle = f"a package it needs cannot be imported: {error}"
        warnings.warn(f"engine: using the plain engine, which is several times slower: {obstacle}", stacklevel=4)
        return obstacle
    if precision == "int8" and not int8_is_exact():
        return "this processor has no exact int8 product"
    return ""


def _obstacle_of_machine(device: str) -> str:
    """Why the CUDA engine cannot run here; empty if it can."""
    if _kind(device) != "cuda":
        return f"the device is {_kind(device)}"
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not has_compiler():
        return "Triton needs a C compiler, and none was found"
    import torch

    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_GPU:
        return f"the GPU's compute capability is {capability[0]}.{capability[1]}, below {OLDEST_GPU[0]}.{OLDEST_GPU[1]}"
    return ""


def _obstacle_of_model(model: ModelConfig) -> str:
    """Why the CUDA engine cannot run this model; empty if it can."""
    if not isinstance(model, TransformerConfig):
        return "the model is recurrent"
    widest = max(model.decoder.d_k, model.decoder.d_v)
    if widest > WIDEST_HEAD:
        return f"heads of {widest} are wider than {WIDEST_HEAD}"
    if model.target_vocabulary > MOST_IDS:
        return f"{model.target_vocabulary:,} target pieces are more than {MOST_IDS:,}"
    return ""
