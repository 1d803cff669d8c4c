"""From a configuration to the model it describes. Knows nothing of weights."""

from typing import Any, TypeAlias

from dragoman.config import ModelConfig
from dragoman.model.recurrent import Recurrent
from dragoman.model.transformer import Transformer
from dragoman.model.variants import DecoderOnly, EncoderOnly

Model: TypeAlias = Any  # one of MODELS; what else it has than a forward pass depends on its architecture

MODELS: dict[str, Any] = {
    "transformer": Transformer,
    "decoder": DecoderOnly,
    "encoder": EncoderOnly,
    "rnn": Recurrent,
    "lstm": Recurrent,
}


def build_model(config: ModelConfig) -> Model:
    """The model of this configuration, of the class that its architecture has in MODELS."""
    return MODELS[config.architecture](config)
