"""dragoman: the Transformer of "Attention Is All You Need", from parallel text to a translator.

    import dragoman
    translator = dragoman.load("runs/en-de")
    translator.translate("A man rides a horse.").text

Names are imported when first used, so that `import dragoman` costs nothing.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Before torch loads OpenMP. By default its threads wait by spinning for milliseconds, which starves them where another
# job runs on the same cores (one sentence took 22 times as long). About one millisecond costs nothing on idle cores, no
# spinning at all does (docs/performance.md, benchmarks/threads.py).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # GNU's OpenMP
    os.environ.setdefault("KMP_BLOCKTIME", "1")  # LLVM's and Intel's, in milliseconds

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dragoman.config import Config, TransformerConfig
    from dragoman.decode.translator import Attention, Translation, Translator
    from dragoman.errors import ConfigError, DataError, DiskError, DragomanError, ModelError, NonFiniteError, Stopped
    from dragoman.model.transformer import Transformer
    from dragoman.train.loop import train

_HOMES = {
    "Attention": "dragoman.decode.translator",
    "Config": "dragoman.config",
    "ConfigError": "dragoman.errors",
    "DataError": "dragoman.errors",
    "DiskError": "dragoman.errors",
    "DragomanError": "dragoman.errors",
    "ModelError": "dragoman.errors",
    "NonFiniteError": "dragoman.errors",
    "Stopped": "dragoman.errors",
    "Transformer": "dragoman.model.transformer",
    "TransformerConfig": "dragoman.config",
    "Translation": "dragoman.decode.translator",
    "Translator": "dragoman.decode.translator",
    "train": "dragoman.train.loop",
}

__all__ = [
    "Attention",
    "Config",
    "ConfigError",
    "DataError",
    "DiskError",
    "DragomanError",
    "ModelError",
    "NonFiniteError",
    "Stopped",
    "Transformer",
    "TransformerConfig",
    "Translation",
    "Translator",
    "load",
    "train",
]


def load(
    model: "str | os.PathLike[str]", device: str = "auto", precision: str = "float32", threads: int | None = None
) -> "Translator":
    """A translator from a model directory. `precision` is float32, bfloat16 or int8; `threads` are those of the CPU."""
    from dragoman.decode.translator import Translator

    return Translator.load(model, device, precision, threads)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
