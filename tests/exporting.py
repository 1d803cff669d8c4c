"""Small random models of many shapes, for the tests of exports."""

from pathlib import Path

import torch

from dragoman import bundle, tensors
from dragoman.config import Config
from dragoman.model.build import build_model
from dragoman.text.tokenizer import Tokenizer

LINES = ["the cat sat on the mat", "a dog ran in the park", "we see red and green birds", "forty two and seven"] * 5
SIZES = ["text.vocab_size=300", "text.max_length=40", "model.d_model=32", "model.d_ff=48", "model.num_heads=4",
         "model.num_layers=2", "decode.beam=1", "decode.max_extra=8"]  # fmt: skip
SEPARATE = ["text.joint=false", "model.share_source_target=false"]


def random_model(directory: Path, *settings: str) -> Path:
    """A model directory with random weights, biases and norms among them, large enough for confident predictions."""
    config = Config.build("tiny", None, [*SIZES, *settings])
    source = Tokenizer.train(LINES, config.text)
    target = source if config.text.joint else Tokenizer.train([*(line.upper() for line in LINES), "Ä Ö ß"], config.text)
    config = config.with_vocabulary(source.size, target.size)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = build_model(config.model)
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    tokenizers = bundle.Tokenizers(source, target)
    bundle.save_bundle(directory, config, tokenizers, tensors.named_weights(model), "# A card\n\nLicence: none.\n")
    return directory
