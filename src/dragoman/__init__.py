"""dragoman: the Transformer of "Attention Is All You Need", from parallel text to a translator.

    import dragoman
    translator = dragoman.load("runs/en-de")
    translator.translate("A man rides a horse.").text

Names are imported when first used, so that `import dragoman` costs nothing.
"""

import os

# Set before torch loads OpenMP. By default its threads spin for milliseconds while they wait, which starves them when
# another job runs on the same cores (one sentence took 22 times as long). Spinning for about one millisecond costs
# nothing on idle cores; not spinning at all does (docs/lab/performance.md, benchmarks/threads.py).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # GNU's OpenMP
    os.environ.setdefault("KMP_BLOCKTIME", "1")  # LLVM's and Intel's, in milliseconds

__version__ = "0.1.0"

TYPE_CHECKING = False  # instead of typing's, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dragoman.config import Config, TransformerConfig
    from dragoman.decode.classifier import Classifier
    from dragoman.decode.forecaster import Forecaster
    from dragoman.decode.language_model import LanguageModel
    from dragoman.decode.options import DecodeOptions
    from dragoman.decode.transcriber import Transcriber
    from dragoman.decode.translation import Attention, Translation
    from dragoman.decode.translator import Translator
    from dragoman.errors import ConfigError, DataError, DiskError, DragomanError, ModelError, NonFiniteError, Stopped
    from dragoman.model.transformer import Transformer
    from dragoman.training.loop import train

_HOMES = {
    "Attention": "dragoman.decode.translation",
    "Classifier": "dragoman.decode.classifier",
    "Config": "dragoman.config",
    "ConfigError": "dragoman.errors",
    "DataError": "dragoman.errors",
    "DecodeOptions": "dragoman.decode.options",
    "DiskError": "dragoman.errors",
    "DragomanError": "dragoman.errors",
    "Forecaster": "dragoman.decode.forecaster",
    "LanguageModel": "dragoman.decode.language_model",
    "ModelError": "dragoman.errors",
    "NonFiniteError": "dragoman.errors",
    "Stopped": "dragoman.errors",
    "Transcriber": "dragoman.decode.transcriber",
    "Transformer": "dragoman.model.transformer",
    "TransformerConfig": "dragoman.config",
    "Translation": "dragoman.decode.translation",
    "Translator": "dragoman.decode.translator",
    "train": "dragoman.training.loop",
}

__all__ = [
    "Attention",
    "Classifier",
    "Config",
    "ConfigError",
    "DataError",
    "DecodeOptions",
    "DiskError",
    "DragomanError",
    "Forecaster",
    "LanguageModel",
    "ModelError",
    "NonFiniteError",
    "Stopped",
    "Transcriber",
    "Transformer",
    "TransformerConfig",
    "Translation",
    "Translator",
    "load",
    "train",
]


def load(
    model: "str | os.PathLike[str]",
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    engine: str = "auto",
    *,
    ensemble: "Sequence[str | os.PathLike[str]]" = (),
    rerank_with: "str | os.PathLike[str] | None" = None,
) -> "Translator":
    """Load a model: a directory, or the name of a bundled one.

    device: auto, cpu, cuda, cuda:1 or mps. precision: float32, bfloat16 or int8; auto searches in bfloat16 on a GPU, in
    int8 on a CPU if the weights are stored in int8, and runs everything else in float32. threads: CPU threads; by
    default one per core, or one for a small model. engine: auto, plain (any device), cuda or cpu. ensemble: other
    models with the same vocabulary, which translate together with this one. rerank_with: a model of the other
    direction, which helps to choose among the hypotheses of the beam.
    """
    from dragoman.decode.translator import Translator

    return Translator.load(model, device, precision, threads, engine, ensemble=ensemble, rerank_with=rerank_with)


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
