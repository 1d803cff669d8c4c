"""From a configuration to the model it describes. Knows nothing of weights."""

from dragoman.config import ModelConfig, RecurrentConfig
from dragoman.model.recurrent import Recurrent
from dragoman.model.transformer import Transformer

Model = Transformer | Recurrent


def build_model(config: ModelConfig) -> Model:
    return Recurrent(config) if isinstance(config, RecurrentConfig) else Transformer(config)
