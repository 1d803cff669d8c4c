"""Runs a model on given pairs for what its heads attend to, from which words are aligned. Knows nothing of files."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from dragoman.config import RecurrentConfig, TransformerConfig
from dragoman.data.batching import bucket_by_length
from dragoman.decode.alignment import Head, HeadChoice, PairAttention
from dragoman.decode.batches import map_in_threads
from dragoman.decode.halving import in_halves
from dragoman.decode.scoring import PairError, require_room, valid_pairs
from dragoman.decode.translator import Translator
from dragoman.errors import ConfigError
from dragoman.int8 import Array
from dragoman.text.casing import knows_case, lower_capitals
from dragoman.text.normalize import is_blank
from dragoman.text.offsets import PieceSpans, piece_spans
from dragoman.text.tokenizer import Tokenizer

BATCH_TOKENS = 2_048  # on the longer side, including padding: the weights of all heads are kept
PAIRS_AT_ONCE = 256  # whose weights are in memory
LEARNED_PAIRS = 200  # more do not change the choice
LEAST_WORDS = 100  # of the target, to choose heads from


def heads_of(translator: Translator, names: Sequence[str] | None) -> list[Head]:
    """The heads of these names, or those of the model's settings; it must have them."""
    options = translator.config.decode if names is None else translator.options(alignment_heads=names)
    return [Head.parse(name, *_shape(translator)) for name in options.alignment_heads]


def choose_heads(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> list[Head]:
    """The heads that align best; none if there are too few words to tell."""
    choice = HeadChoice(*_shape(translator))
    usable = (pair for pair in zip(sources, targets, strict=True) if not is_blank(pair[0]) and not is_blank(pair[1]))
    some = list(itertools.islice(usable, LEARNED_PAIRS))
    for pair in cross_attention(translator, [source for source, _ in some], [target for _, target in some]):
        choice.add(pair)
    return choice.best() if choice.num_words >= LEAST_WORDS else []


def cross_attention(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> Iterator[PairAttention]:
    """Yield the attention of each pair, in order; raise PairError for one that is not valid text or too long."""
    if not all(_shape(translator)):
        raise ConfigError("align: the model does not look back at the source; use one with attention to it")
    for start in range(0, len(sources), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        try:
            yield from _of_some(translator, sources[part], targets[part])
        except PairError as error:
            raise PairError(start + error.number, error.problem) from None


def _shape(translator: Translator) -> tuple[int, int]:
    """How many layers attend to the source, and with how many heads each."""
    model = translator.config.model
    if isinstance(model, TransformerConfig):
        return model.decoder.num_layers, model.decoder.num_heads
    looks_back = isinstance(model, RecurrentConfig) and model.context == "source"
    return int(looks_back), int(looks_back)


def _of_some(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> Iterator[PairAttention]:
    valid = valid_pairs(sources, targets)
    tokenizers, tag = translator.tokenizers, translator.language_tag(translator.config.decode)
    sides = zip((tokenizers.source, tokenizers.target), valid, strict=True)
    pairs = list(zip(*(piece_spans(tokenizer, _readable(tokenizer, texts)) for tokenizer, texts in sides), strict=True))
    require_room(translator, (([*tag, *source.ids], target.ids) for source, target in pairs))
    rows = [row for row, texts in enumerate(zip(*valid, strict=True)) if not (is_blank(texts[0]) or is_blank(texts[1]))]

    def weights_of(some: Sequence[int]) -> list[Array]:
        """[L, H, T, S] of each, without tag and </s>."""
        found = translator.cross_attention(
            [[*tag, *pairs[row][0].ids, tokenizers.source.vocabulary.eos] for row in some],
            [[tokenizers.target.vocabulary.bos, *pairs[row][1].ids] for row in some],
        )
        return [weight_LHTS[..., len(tag) : -1] for weight_LHTS in found]

    def too_big(row: int) -> Array:
        source, target = (len(side.ids) + 1 for side in pairs[row])
        raise PairError(row + 1, f"out of memory at {source} source and {target} target tokens; shorten it")

    found: dict[int, Array] = {}
    sizes = np.array([max(len(source.ids) + len(tag), len(target.ids)) + 1 for source, target in pairs], np.int64)
    groups = [group.tolist() for group in bucket_by_length(np.array(rows, np.int64), sizes, BATCH_TOKENS)]
    weights = map_in_threads(
        lambda some: in_halves(weights_of, some, too_big, translator.device), groups, translator.batches_at_once
    )
    for some, each in zip(groups, weights, strict=True):
        found.update(zip(some, each, strict=True))
    for row, (source, target) in enumerate(pairs):
        weight = found.pop(row, None)
        if weight is None:  # blank on a side
            weight = np.zeros((*_shape(translator), len(target.ids) + 1, len(source.ids)))
        source = _moved(source, len(sources[row]) - len(valid[0][row]))
        target = _moved(target, len(targets[row]) - len(valid[1][row]))
        yield PairAttention(sources[row], targets[row], source, target, weight)


def _readable(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Texts as long as these: a model knows words in capitals by their usual form only."""
    return [lower_capitals(text) if knows_case(tokenizer) else text for text in texts]


def _moved(pieces: PieceSpans, lead: int) -> PieceSpans:
    """Spans in the text as given, which may begin with a byte order mark."""
    return PieceSpans(pieces.ids, [(start + lead, end + lead) for start, end in pieces.spans]) if lead else pieces
