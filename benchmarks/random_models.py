"""Models with random weights whose translations all have the same length, and text for them.

The vocabulary is invented words, a piece each, so a line of N words has N tokens: tokenization is exact, and cheaper
than of real text. The model can be exported like any other. It never predicts </s> or another special piece, so
every search goes on to its limit. No system needs an option for that, and the output has no bias, which would cost
some systems more time than others.
"""

import itertools
import random
from pathlib import Path

import torch

from dragoman.bundle import Tokenizers, save_bundle
from dragoman.config import Config, TextConfig, TransformerConfig
from dragoman.model.transformer import DecoderLayer, Transformer
from dragoman.tensors import named_weights
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.vocabulary import NUM_SPECIAL

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
SHIFT = 0.1  # added to every number of the decoder's last norm
SPECIAL_LOGIT = -100.0
INIT_GAIN = 0.5  # with 1, a deep random decoder repeats one piece
OUTPUT_SCALE = 3.0  # the likeliest pieces then have some ten percent, as in a trained model, not 1 / vocabulary


def invented_words(count: int) -> list[str]:
    return ["".join(word) for word in itertools.islice(itertools.product(SYLLABLES, repeat=3), count)]


def random_lines(vocabulary: int, count: int, words: int) -> list[str]:
    """Lines of so many words; the same first lines for any count."""
    known, generator = invented_words(vocabulary - NUM_SPECIAL), random.Random(1)
    return [" ".join(generator.choices(known, k=words)) for _ in range(count)]


def save_random_model(directory: Path, shape: TransformerConfig) -> None:
    """Write a model directory; the same shape gives the same weights. The output has a matrix of its own."""
    text = TextConfig(model="word", byte_fallback=False, vocab_size=shape.vocab_size)
    tokenizer = Tokenizer.train(invented_words(shape.vocab_size - NUM_SPECIAL), text)
    torch.manual_seed(1)
    model = Transformer(shape)
    never_predict_special(model)
    save_bundle(
        directory, Config(model=shape, text=text), Tokenizers(tokenizer, tokenizer), named_weights(model), "# Random\n"
    )


@torch.no_grad()
def never_predict_special(model: Transformer) -> None:
    """Give the special pieces the logit SPECIAL_LOGIT, whatever the input.

    The numbers of a layer norm without bias add up to zero, those of the last one, with SHIFT as its bias, to
    SHIFT * d_model. A row of the output matrix that repeats one number therefore gives the same logit every time.
    """
    width = model.config.decoder.d_model
    torch.nn.init.normal_(model.output.weight, std=OUTPUT_SCALE * width**-0.5)
    last = model.decoder.layers[-1]
    assert isinstance(last, DecoderLayer)
    last.feed_forward_residual.layer_norm.bias.fill_(SHIFT)
    model.output.weight[:NUM_SPECIAL] = SPECIAL_LOGIT / (SHIFT * width)


def random_shape(preset: str, vocabulary: int, **sizes: int) -> TransformerConfig:
    """A shape of random models, with `sizes` replaced."""
    return TransformerConfig.preset(
        preset, vocab_size=vocabulary, share_target_output=False, init_gain=INIT_GAIN, norm="post", **sizes
    )
