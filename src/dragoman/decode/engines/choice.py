"""Which engine a search runs in, in which precision, and why. Runs nothing."""

import warnings
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from dragoman.config import ModelConfig, TransformerConfig, require_choice
from dragoman.device import has_compiler
from dragoman.errors import ConfigError

ENGINES = ("auto", "plain", "cuda")
PRECISIONS = ("auto", "float32", "bfloat16", "int8")
WIDEST_HEAD = 256
MOST_IDS = 1 << 17  # of a vocabulary
OLDEST_GPU = (8, 0)  # compute capability: bfloat16, and what the kernels were written for


@dataclass(frozen=True)
class EngineChoice:
    engine: str  # plain or cuda
    precision: str  # of the search
    reason: str

    def describe(self) -> str:
        """One line for people."""
        return f"{self.engine} engine in {self.precision}: {self.reason}"


def choose_engine(engine: str, precision: str, model: ModelConfig, device: torch.device) -> EngineChoice:
    """Resolve `auto`: the fastest engine and precision that lose no quality worth mentioning (docs/performance.md)."""
    require_choice("engine", engine, ENGINES)
    require_choice("precision", precision, PRECISIONS)
    machine = _obstacle_of_machine(device)
    obstacle = "int8 runs in the plain engine" if precision == "int8" else machine or _obstacle_of_model(model)
    if engine == "cuda" and obstacle:
        raise ConfigError(f"engine: 'cuda' cannot run: {obstacle}; use auto or plain")
    if engine == "plain" or obstacle:
        if engine == "auto" and device.type == "cuda" and obstacle == machine:
            warnings.warn(f"engine: using the plain engine, which is many times slower: {machine}", stacklevel=3)
        return EngineChoice("plain", "float32" if precision == "auto" else precision, obstacle or "as requested")
    reason = "as requested" if engine == "cuda" else f"the fastest on {device.type}"
    return EngineChoice("cuda", "bfloat16" if precision == "auto" else precision, reason)


def _obstacle_of_machine(device: torch.device) -> str:
    """Why the engine for CUDA cannot run here; empty if it can."""
    if device.type != "cuda":
        return f"the device is {device.type}"
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not has_compiler():
        return "Triton needs a C compiler, and none was found"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_GPU:
        return f"the GPU's compute capability is {capability[0]}.{capability[1]}, below {OLDEST_GPU[0]}.{OLDEST_GPU[1]}"
    return ""


def _obstacle_of_model(model: ModelConfig) -> str:
    """Why the engine for CUDA cannot run this model; empty if it can."""
    if not isinstance(model, TransformerConfig):
        return "the model is recurrent"
    widest = max(model.decoder.d_k, model.decoder.d_v)
    if widest > WIDEST_HEAD:
        return f"heads of {widest} are wider than {WIDEST_HEAD}"
    if model.target_vocabulary > MOST_IDS:
        return f"{model.target_vocabulary:,} target pieces are more than {MOST_IDS:,}"
    return ""
