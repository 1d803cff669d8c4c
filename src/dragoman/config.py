"""All settings: frozen dataclasses, presets, and reading and writing TOML. Knows nothing of tensors or corpora.

A configuration is built from these layers, later ones winning: dataclass defaults (the paper's base model), a preset,
a TOML file, `--set section.key=value`. An unknown key is an error with a suggestion.

Every section checks its own fields on construction, so a mistake gives the same error from a constructor,
`dataclasses.replace`, a file, `--set` or an option.
"""

import functools
import json
import math
import numbers
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from dragoman.errors import ConfigError, suggestion

DEVICES = ("auto", "cpu", "cuda", "mps")
LARGEST = 1_000_000  # far above any size in a model; exceeded only by hostile or mistyped files
_ALIGNMENT_HEAD = re.compile(r"[1-9][0-9]{0,5}\.[1-9][0-9]{0,5}\.(output|input)")


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def require_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    known = tuple(choices)
    if value not in known:  # not require(): a suggestion takes longer than all the checks of a section
        raise ConfigError(f"{name}: {value!r} is not a choice; {suggestion(str(value), known)}")


def require_device(name: str, value: str) -> None:
    """Require the name of a device, whether or not this machine has it."""
    kind = value.partition(":")[0]
    if kind not in DEVICES:
        raise ConfigError(f"{name}: {value!r} is not a device; {suggestion(kind, DEVICES, {'gpu': 'cuda'})}")


def _require_range(section: str, name: str, value: float | None, low: float, high: float) -> None:
    """None is a setting left at its default, which is in range. NaN is in no range."""
    require(value is None or low <= value <= high, f"{section}.{name}: {value} is out of range; use {low} to {high}")


def check_fields(section: str, config: Any) -> None:
    """Check each field of a dataclass against its type, and normalise it: 1 to 1.0, "a" and ["a"] to ("a",)."""
    for name, hint in _type_hints(config.__class__).items():
        object.__setattr__(config, name, _checked(f"{section}.{name}", getattr(config, name), hint))


@functools.cache
def _type_hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Return `value` as the type `hint`, or raise an error that names both."""
    if isinstance(hint, types.UnionType):  # a type or None
        return None if value is None else _checked(name, value, hint.__args__[0])
    if typing.get_origin(hint) is Literal:
        require_choice(name, value, typing.get_args(hint))
        return value
    if typing.get_origin(hint) is tuple:
        parts = [value] if isinstance(value, str) else value
        require(
            isinstance(parts, (list, tuple)) and all(isinstance(part, str) for part in parts),
            f"{name}: {value!r} is not a string or a list of strings",
        )
        return tuple(_checked(name, part, str) for part in parts)
    if isinstance(value, int) and value.bit_length() > (63 if hint is int else 4_096):
        # without the number: Python refuses to print thousands of digits
        raise ConfigError(f"{name}: the number has {value.bit_length()} bits, at most 63 are allowed")
    kind, words = _KINDS[hint]
    is_kind = isinstance(value, kind) and (hint is bool or not isinstance(value, bool))  # in Python, True is a number
    require(is_kind, f"{name}: {value!r} is not {words}")
    if hint is str:
        # a file name may hold other bytes, which Python represents as surrogates; TOML and JSON cannot
        require(_is_unicode(value), f"{name}: {value!r} is not valid UTF-8; rename the file or change the setting")
        return value
    try:
        return hint(value)
    except OverflowError:  # an integer that no float can hold
        return math.inf if value > 0 else -math.inf


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


_KINDS: dict[Any, tuple[type, str]] = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: (bool, "true or false"),
    str: (str, "a string"),
}


@dataclass(frozen=True)
class StackSize:
    """The sizes of one stack of layers, encoder or decoder, with every default filled in."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    d_k: int
    d_v: int


SIZES = (  # of a model, in the order in which they are checked
    "vocab_size",
    "target_vocab_size",
    "source_features",
    "target_features",
    "num_labels",
    "d_model",
    "d_ff",
    "num_heads",
    "d_k",
    "d_v",
    "decoder_d_model",
    "decoder_d_ff",
    "decoder_num_heads",
    "max_positions",
)


@dataclass(frozen=True)
class LayersConfig:
    """What every kind of Transformer has: the shape of its layers. Defaults are the paper's base model."""

    architecture: str = ""  # the kind of model
    vocab_size: int = 37_000  # pieces of the vocabulary
    num_layers: int = 6  # layers of the stack
    d_model: int = 512  # width of embeddings and layers
    d_ff: int = 2048  # inner width of the feed-forward networks
    num_heads: int = 8  # attention heads per layer
    d_k: int | None = None  # width of a head's queries and keys; None: d_model / num_heads
    d_v: int | None = None  # width of a head's values; None: d_model / num_heads
    norm: Literal["post", "pre"] = "post"  # layer norm after each sub-layer, as in the paper, or before
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"  # how positions are encoded
    max_positions: int = 1024  # learned positions only; the others have no limit
    embedding_norm: bool = False  # a layer norm on embeddings with their positions, as in BART
    activation: Literal["relu", "gelu", "swish"] = "relu"  # of the feed-forward networks
    dropout: float = 0.1  # on embeddings and on the output of every sub-layer
    attention_dropout: float = 0.0  # on attention weights
    attention_bias: bool = True  # biases in the projections of attention
    init_gain: float = 1.0  # factor on the Xavier uniform initialisation of matrices

    def __post_init__(self) -> None:
        check_fields("model", self)
        for name in SIZES:
            _require_range("model", name, getattr(self, name, None), 1, LARGEST)
        _require_range("model", "num_layers", self.num_layers, 1, 1000)
        _require_range("model", "dropout", self.dropout, 0.0, 0.999)
        _require_range("model", "attention_dropout", self.attention_dropout, 0.0, 0.999)
        _require_range("model", "init_gain", self.init_gain, 0.001, 1_000.0)
        stacks = self.stacks  # checks that the heads divide the width
        if self.positions == "rotary":
            for side, stack in stacks.items():
                require(
                    stack.d_k % 2 == 0,
                    f"model.positions: rotary turns pairs, and the {side}'s d_k={stack.d_k} is odd; use an even d_k",
                )

    @property
    def stacks(self) -> dict[str, StackSize]:
        """The stacks of layers by name: encoder, decoder."""
        raise NotImplementedError

    @property
    def reads_vectors(self) -> bool:
        """Whether the source is vectors, not text."""
        return getattr(self, "source_features", None) is not None

    @property
    def input_size(self) -> int:
        """How many ids the source may consist of; of vectors, how many numbers each has."""
        return getattr(self, "source_features", None) or self.vocab_size

    @property
    def target_vocabulary(self) -> int:
        """How many ids the model chooses from; of a forecaster, how many numbers it predicts at once."""
        return self.vocab_size

    @property
    def longest(self) -> int | None:
        """The maximum number of positions in a sentence; None if there is no limit."""
        return self.max_positions if self.positions == "learned" else None

    def _stack(self, num_layers: int, d_model: int, d_ff: int, num_heads: int) -> StackSize:
        if self.d_k is None or self.d_v is None:
            near = [n for n in range(1, min(2 * num_heads, d_model) + 1) if d_model % n == 0]
            near = sorted(sorted(near, key=lambda n: abs(n - num_heads))[:2])
            require(
                d_model % num_heads == 0,
                f"model.num_heads: num_heads={num_heads} must divide d_model={d_model}; "
                f"try {' or '.join(map(str, near))}, or set d_k and d_v",
            )
        width = d_model // num_heads
        return StackSize(num_layers, d_model, d_ff, num_heads, self.d_k or width, self.d_v or width)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        require_choice("preset", name, PRESETS)
        return cls(**{**PRESETS[name]["model"], **overrides})

    @classmethod
    def tiny(cls, **overrides: Any) -> Self:
        return cls.preset("tiny", **overrides)

    @classmethod
    def small(cls, **overrides: Any) -> Self:
        return cls.preset("small", **overrides)

    @classmethod
    def base(cls, **overrides: Any) -> Self:
        return cls.preset("base", **overrides)

    @classmethod
    def big(cls, **overrides: Any) -> Self:
        return cls.preset("big", **overrides)


@dataclass(frozen=True)
class TransformerConfig(LayersConfig):
    """The shape of the Transformer: encoder and decoder. Defaults are the paper's base model."""

    architecture: Literal["transformer"] = "transformer"  # the kind of model
    vocab_size: int = 37_000  # of the source, and of the target unless target_vocab_size is given
    num_layers: int = 6  # layers of the encoder, and of the decoder unless decoder_num_layers is given
    target_vocab_size: int | None = None  # of the target, where it has a vocabulary of its own
    source_features: int | None = None  # numbers in each vector of a source that is no text: frames, patches, rows
    target_features: int | None = None  # the same of the target: the model forecasts a series
    decoder_num_layers: int | None = None  # layers of the decoder; None: as the encoder
    decoder_d_model: int | None = None  # width of the decoder; None: as the encoder
    decoder_d_ff: int | None = None  # inner width of the decoder's feed-forward networks; None: as the encoder
    decoder_num_heads: int | None = None  # heads of the decoder; None: as the encoder
    output_bias: bool = False  # a bias in the output projection
    share_source_target: bool = True  # one embedding for source and target
    share_target_output: bool = True  # the output projection is the target embedding

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_range("model", "decoder_num_layers", self.decoder_num_layers, 1, 1000)
        if self.share_source_target:
            require(
                self.encoder.d_model == self.decoder.d_model,
                f"model.share_source_target: one embedding cannot have widths {self.encoder.d_model} and "
                f"{self.decoder.d_model}; make d_model and decoder_d_model equal or set share_source_target = false",
            )
        _require_one_vocabulary(self)
        _require_unshared_features(self)

    @property
    def stacks(self) -> dict[str, StackSize]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def encoder(self) -> StackSize:
        return self._stack(self.num_layers, self.d_model, self.d_ff, self.num_heads)

    @property
    def decoder(self) -> StackSize:
        return self._stack(
            self.decoder_num_layers or self.num_layers,
            self.decoder_d_model or self.d_model,
            self.decoder_d_ff or self.d_ff,
            self.decoder_num_heads or self.num_heads,
        )

    @property
    def target_vocabulary(self) -> int:
        return self.target_features or self.target_vocab_size or self.vocab_size

    def with_vocabulary(self, source_size: int, target_size: int, *, joint: bool) -> Self:
        return replace(self, **_vocabulary_sizes(self, source_size, target_size, joint))  # type: ignore[arg-type]


@dataclass(frozen=True)
class DecoderConfig(LayersConfig):
    """The shape of a decoder alone, which has no source to attend to: a language model."""

    architecture: Literal["decoder"] = "decoder"  # the kind of model
    output_bias: bool = False  # a bias in the output projection
    share_target_output: bool = True  # the output projection is the embedding

    @property
    def stacks(self) -> dict[str, StackSize]:
        return {"decoder": self._stack(self.num_layers, self.d_model, self.d_ff, self.num_heads)}

    def with_vocabulary(self, source_size: int, target_size: int, *, joint: bool) -> Self:
        return replace(self, vocab_size=target_size)


@dataclass(frozen=True)
class EncoderConfig(LayersConfig):
    """The shape of an encoder alone: a classifier."""

    architecture: Literal["encoder"] = "encoder"  # the kind of model
    source_features: int | None = None  # numbers in each vector of a source that is no text: frames, patches, rows
    num_labels: int = 2  # labels to choose from
    pooling: Literal["end", "mean"] = "end"  # what is classified: the last state, of </s> in a text, or the mean of all

    @property
    def stacks(self) -> dict[str, StackSize]:
        return {"encoder": self._stack(self.num_layers, self.d_model, self.d_ff, self.num_heads)}

    @property
    def target_vocabulary(self) -> int:
        return self.num_labels

    def with_vocabulary(self, source_size: int, target_size: int, *, joint: bool) -> Self:
        return replace(self, vocab_size=source_size if self.source_features is None else 1, num_labels=target_size)


@dataclass(frozen=True)
class RecurrentConfig:
    """The shape of a recurrent encoder-decoder, the Transformer's ancestor."""

    architecture: Literal["rnn", "lstm"] = "rnn"  # the kind of model; lstm: with cell = lstm
    vocab_size: int = 37_000  # of the source, and of the target unless target_vocab_size is given
    target_vocab_size: int | None = None  # of the target, where it has a vocabulary of its own
    source_features: int | None = None  # numbers in each vector of a source that is no text: frames, patches, rows
    target_features: int | None = None  # the same of the target: the model forecasts a series
    cell: Literal["rnn", "lstm"] = "lstm"  # the recurrent cell
    context: Literal["none", "source", "self"] = "source"  # what a step attends to: nothing, the source, earlier steps
    score: Literal["dot", "scaled_dot", "general", "additive"] = "scaled_dot"  # how attention compares two states
    num_layers: int = 1  # layers of the encoder and of the decoder
    d_model: int = 512  # width of embeddings and states
    dropout: float = 0.1  # on embeddings and between layers
    share_source_target: bool = True  # one embedding for source and target
    share_target_output: bool = True  # the output projection is the target embedding

    def __post_init__(self) -> None:
        check_fields("model", self)
        for name in SIZES:
            _require_range("model", name, getattr(self, name, None), 1, LARGEST)
        _require_range("model", "num_layers", self.num_layers, 1, 1000)
        _require_range("model", "dropout", self.dropout, 0.0, 0.999)
        require(
            self.architecture == "rnn" or self.cell == "lstm",
            f"model.cell: {self.cell} is not the cell of an lstm; set model.architecture = rnn",
        )
        _require_one_vocabulary(self)
        _require_unshared_features(self)

    @property
    def reads_vectors(self) -> bool:
        return self.source_features is not None

    @property
    def input_size(self) -> int:
        return self.source_features or self.vocab_size

    @property
    def target_vocabulary(self) -> int:
        return self.target_features or self.target_vocab_size or self.vocab_size

    @property
    def longest(self) -> int | None:
        return None

    def with_vocabulary(self, source_size: int, target_size: int, *, joint: bool) -> Self:
        return replace(self, **_vocabulary_sizes(self, source_size, target_size, joint))  # type: ignore[arg-type]


ModelConfig = TransformerConfig | DecoderConfig | EncoderConfig | RecurrentConfig
ARCHITECTURES: dict[str, type[ModelConfig]] = {
    "transformer": TransformerConfig,
    "decoder": DecoderConfig,
    "encoder": EncoderConfig,
    "rnn": RecurrentConfig,
    "lstm": RecurrentConfig,
}


def _vocabulary_sizes(
    model: TransformerConfig | RecurrentConfig, source_size: int, target_size: int, joint: bool
) -> dict[str, int | None]:
    if model.target_features is not None:
        return {"vocab_size": 1}  # no text on either side
    if model.source_features is not None:
        return {"vocab_size": target_size}
    return {"vocab_size": source_size, "target_vocab_size": None if joint else target_size}


def _require_unshared_features(model: TransformerConfig | RecurrentConfig) -> None:
    """What projects vectors cannot be the embedding of ids."""
    require(
        model.source_features is not None or model.target_features is None,
        "model.target_features: a forecast needs a series to start from; set model.source_features too",
    )
    require(
        model.source_features is None or not model.share_source_target,
        "model.share_source_target: vectors have no embedding to share; set it to false",
    )
    require(
        model.target_features is None or not model.share_target_output,
        "model.share_target_output: vectors have no embedding to share; set it to false",
    )


def _require_one_vocabulary(model: TransformerConfig | RecurrentConfig) -> None:
    require(
        not model.share_source_target or model.target_vocab_size in (None, model.vocab_size),
        f"model.share_source_target: one embedding cannot have {model.vocab_size} and "
        f"{model.target_vocab_size} rows; use one joint vocabulary or set share_source_target = false",
    )


@dataclass(frozen=True)
class DataConfig:
    """Where text comes from: files, or the name of a corpus the project generates by itself."""

    source: tuple[str, ...] = ()  # training text: one or more files, read one after the other
    target: tuple[str, ...] = ()  # its translation, line by line
    valid_source: tuple[str, ...] = ()  # held-out text for validation
    valid_target: tuple[str, ...] = ()  # its translation
    test_source: tuple[str, ...] = ()  # test sets, each a file of its own, evaluated once at the end
    test_target: tuple[str, ...] = ()  # their translations
    text: tuple[str, ...] = ()  # of a language model: training text, one or more files
    valid_text: tuple[str, ...] = ()  # of a language model: held-out text for validation
    test_text: tuple[str, ...] = ()  # of a language model: test sets, each a file of its own, scored once at the end
    series: tuple[str, ...] = ()  # of a forecaster: training series, one or more .csv files
    valid_series: tuple[str, ...] = ()  # of a forecaster: held-out series for validation
    test_series: tuple[str, ...] = ()  # of a forecaster: test sets, each a file of its own, forecast once at the end
    lookback: int = 96  # of a forecaster: the rows it is given
    horizon: int = 96  # of a forecaster: the rows it forecasts
    # of a forecaster: what the values of a window are measured from: the mean of the training data, the last row given,
    # or the mean of the rows given, in units of their standard deviation
    relative_to: Literal["training", "last", "window"] = "last"
    generated: str = ""  # a generated corpus such as "numbers-th", instead of source, target and their validation files
    generated_size: int = 30_000  # training pairs; validation and test get 1,000 each
    generated_test: bool = False  # evaluate the test pairs of the generated corpus at the end
    on_bad_line: Literal["fail", "skip"] = "fail"  # what to do with pairs that are not valid text

    def __post_init__(self) -> None:
        check_fields("data", self)
        _require_range("data", "generated_size", self.generated_size, 100, 100_000_000)
        for name in ("lookback", "horizon"):
            _require_range("data", name, getattr(self, name), 1, 100_000)
        require(
            not (self.generated and (self.source or self.target or self.valid_source or self.valid_target)),
            f"data.generated: {self.generated!r} replaces data.source, data.target and the validation files; "
            "give one or the other",
        )
        require(
            not self.generated_test or bool(self.generated),
            "data.generated_test: measures the test pairs of data.generated, and none is named; give data.test_source",
        )
        require(
            len(self.test_source) == len(self.test_target),
            f"data.test_source: {len(self.test_source)} files, data.test_target: {len(self.test_target)}; "
            "give as many of one as of the other",
        )


@dataclass(frozen=True)
class TextConfig:
    """How text becomes ids."""

    model: Literal["bpe", "unigram", "char", "word"] = "bpe"  # the kind of subword vocabulary
    vocab_size: int = 37_000  # pieces at most; it shrinks, with a note, to what the text supports
    joint: bool = True  # one tokenizer for both sides
    byte_fallback: bool = True  # characters never seen become bytes instead of <unk>
    # Unicode normalisation; -nbsp keeps no-break spaces, which otherwise become plain spaces; none keeps all characters
    normalization: Literal[
        "nfc", "nfkc", "nfc-lowercase", "nfkc-lowercase", "nfc-nbsp", "nfc-nbsp-lowercase", "none"
    ] = "nfc"
    training_lines: int = 2_000_000  # at most this many lines train the tokenizer
    # pieces; longer pairs are left out of training, longer input is split; of a language model, how far it looks back
    max_length: int = 256
    # subword sampling: other pieces for the same text in every epoch; 0: off. For bpe the probability of skipping a
    # merge (0.1 is usual), for unigram the exponent on a segmentation's probability (0.2 is usual)
    sampling: float = 0.0

    def __post_init__(self) -> None:
        check_fields("text", self)
        _require_range("text", "sampling", self.sampling, 0.0, 0.9)
        require(
            self.sampling == 0.0 or self.model in ("bpe", "unigram"),
            f"text.sampling: a {self.model} vocabulary has one segmentation only; use bpe or unigram, or sampling = 0",
        )
        _require_range("text", "vocab_size", self.vocab_size, 8, LARGEST)
        _require_range("text", "training_lines", self.training_lines, 1, 10**9)
        _require_range("text", "max_length", self.max_length, 4, 100_000)


@dataclass(frozen=True)
class TrainConfig:
    """One run: optimizer, schedule, batches, validation, stopping. Defaults are the paper's."""

    seed: int = 1  # of initialisation, dropout and data order
    max_steps: int = 100_000  # updates of the weights
    batch_tokens: int = 25_000  # at most: padded, on either side including padding; packed, on the target side
    accumulate: int = 1  # batches per step, and per process
    layout: Literal["auto", "padded", "packed"] = "auto"  # auto: packed on CUDA, and on the CPU in bfloat16
    learning_rate: float | None = None  # the peak; None: the paper's (d_model * warmup_steps) ** -0.5
    warmup_steps: int = 4_000  # steps in which the learning rate rises to its peak
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"  # after the warm-up
    final_learning_rate: float = 0.0  # where cosine and linear end, at max_steps
    optimizer: Literal["adam", "muon"] = "adam"  # muon: for the matrices of the layers, and Adam for the rest
    muon_scale: float = 3.0  # the learning rate of these matrices, in learning rates
    adam_beta1: float = 0.9  # decay of Adam's first moment
    adam_beta2: float = 0.98  # decay of Adam's second moment
    adam_epsilon: float = 1e-9  # in the denominator of Adam's update
    label_smoothing: float = 0.1  # share of the target distribution spread over all tokens
    r_drop: float = 0.0  # R-Drop: weight of the divergence between two passes with different dropout; 0: one pass
    clip_norm: float = 1.0  # largest norm of the gradients; 0: no clipping
    ema: float = 0.0  # decay of a moving average of the weights, which is then validated and published; 0: none
    freeze: tuple[str, ...] = ()  # parts that are not trained, such as "encoder" or "decoder.layers.0"
    start_from: str = ""  # a model directory whose weights and vocabulary to start from
    source_vectors: str = ""  # word vectors to start the source embeddings from: word2vec, GloVe, fastText (.vec)
    target_vectors: str = ""  # the same for the target; freeze "source_embedding" to keep vectors as they are
    save_every: int = 1_000  # steps between checkpoints; each is validated
    keep_checkpoints: int = 5  # checkpoints on disk, at least as many as average needs
    average: int = 5  # how many of the last checkpoints are averaged at the end
    valid_sentences: int = 1_000  # sentences translated at each validation, at most
    # what checkpoints are selected by: chrF suits languages without spaces too, exact_match counts equal lines; a
    # language model has loss only, a classifier accuracy, `macro_f1` and loss, a transcriber also word_error_rate, a
    # forecaster mse and mae
    valid_metric: Literal[
        "chrf", "bleu", "loss", "exact_match", "accuracy", "macro_f1", "word_error_rate", "mse", "mae"
    ] = "chrf"
    class_weights: Literal["none", "balanced"] = "none"  # of a classifier; balanced: rare labels count more
    patience: int = 0  # validations without a better metric before stopping; 0: never
    log_every: int = 50  # steps between records in log.jsonl
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    parallel: Literal["ddp", "fsdp"] = "ddp"  # how several processes under torchrun share the work
    loader_workers: int = 2  # threads that prefetch batches; 0: none
    trackers: tuple[str, ...] = ("tensorboard",)  # tensorboard (where it is installed), wandb, mlflow
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on CUDA, float32 elsewhere
    threads: int = 0  # CPU threads; 0: one for a small model, else one per core, unless OMP_NUM_THREADS is set
    deterministic: bool = False  # deterministic algorithms on CUDA too, for a bit-exact resume
    nonfinite_limit: int = 10  # steps in a row with a non-finite loss or gradient before giving up

    def __post_init__(self) -> None:
        check_fields("train", self)
        for name in ("max_steps", "batch_tokens", "accumulate", "warmup_steps", "save_every", "log_every"):
            _require_range("train", name, getattr(self, name), 1, 10**12)
        for name in ("keep_checkpoints", "average", "valid_sentences", "nonfinite_limit"):
            _require_range("train", name, getattr(self, name), 1, 10**9)
        for name in ("seed", "patience", "clip_norm"):
            _require_range("train", name, getattr(self, name), 0, 2**62)
        _require_range("train", "loader_workers", self.loader_workers, 0, 256)
        _require_range("train", "threads", self.threads, 0, 1024)
        _require_range("train", "r_drop", self.r_drop, 0.0, 1_000.0)
        _require_range("train", "ema", self.ema, 0.0, 0.999999)
        _require_range("train", "final_learning_rate", self.final_learning_rate, 0.0, 100.0)
        for name in ("source_vectors", "target_vectors"):
            require(
                not (getattr(self, name) and self.start_from),
                f"train.{name}: {getattr(self, name)} would replace the embeddings of {self.start_from}; "
                "leave one of them out",
            )
        for name in self.trackers:
            require_choice("train.trackers", name, ("tensorboard", "wandb", "mlflow"))
        require_device("train.device", self.device)
        _require_range("train", "muon_scale", self.muon_scale, 0.0, 1_000.0)
        require(
            self.optimizer == "adam" or self.parallel == "ddp",
            "train.optimizer: muon needs whole matrices, and train.parallel=fsdp divides them; use ddp or adam",
        )
        for name in ("adam_beta1", "adam_beta2", "label_smoothing"):
            _require_range("train", name, getattr(self, name), 0.0, 0.9999)
        _require_range("train", "adam_epsilon", self.adam_epsilon, 0.0, 1.0)
        _require_range("train", "learning_rate", self.learning_rate, 0.0, 100.0)


# Spans that a translation can keep; the last two only on request
PROTECTED = ("placeholders", "addresses", "tags", "code", "symbols", "quotes", "numbers")


@dataclass(frozen=True)
class DecodeConfig:
    """How a translation is searched for. Defaults are the paper's: beam 4, alpha 0.6, at most input + 50."""

    beam: int = 4  # hypotheses kept at each step; 1: greedy
    n_best: int = 1  # translations returned per line
    length_penalty: float = 0.6  # alpha: the higher, the longer the translations
    length_penalty_form: Literal["gnmt", "power"] = "gnmt"  # ((5 + length) / 6) ** alpha, or length ** alpha
    max_extra: int = 50  # the output may have this many tokens more than the input
    split: Literal["long", "sentences"] = "long"  # split only lines that are too long, or every line into sentences
    # text in capitals is translated as it is usually written, and its translation put in capitals; false: as it is
    recase: bool = True
    restore_names: bool = True  # copy names that the model misspells, if `dragoman words` listed what it has read
    target_language: str = ""  # which one, of an imported model that translates into several: its tag, such as deu
    sampling: bool = False  # sample tokens instead of beam search
    temperature: float = 1.0  # of sampling: below 1 sharper, above 1 flatter
    top_k: int = 0  # sample from this many of the most likely tokens; 0: all
    top_p: float = 1.0  # sample from the most likely tokens with this total probability
    seed: int = 1  # of sampling
    min_length: int = 0  # a translation has at least this many tokens, each sentence by itself
    no_repeat_ngram: int = 0  # no sequence of this many tokens occurs twice in a sentence; 0: any may
    banned: tuple[str, ...] = ()  # words that do not appear in a translation
    protect: tuple[str, ...] = PROTECTED[:-2]  # what stays as it is; quotes and numbers too, on request
    shortlist: bool = False  # use the model's shortlist of target pieces, if it has one and the CPU engine searches
    alignment_heads: tuple[str, ...] = ()  # that align words, such as 2.4.output; none: of the layer where they agree
    diversity_groups: int = 1  # divide the beam into this many groups, each of which avoids the tokens of those before
    diversity_penalty: float = 0.5  # how much; 0: the groups ignore each other
    coverage_penalty: float = 0.0  # beta: how much a source token that was not attended to counts against a hypothesis
    rerank_weight: float = 0.5  # of a reverse model, if there is one, in the choice among the hypotheses of the beam
    mbr: int = 0  # draw this many samples and choose the one that agrees most with the others, by chrF; 0: search
    token_scores: bool = False  # keep the log-probability of every token of a translation
    confidence: bool = False  # estimate how likely a translation needs no review, if the model is calibrated
    batch_size: int = 0  # sentences at a time; 0: 64, 512 with the CUDA engine, 32 with the CPU engine
    threads: int = 0  # CPU threads; 0: one for a small model, else one per core, unless OMP_NUM_THREADS is set

    def __post_init__(self) -> None:
        check_fields("decode", self)
        _require_range("decode", "beam", self.beam, 1, 10_000)
        _require_range("decode", "batch_size", self.batch_size, 0, 1_000_000)
        _require_range("decode", "threads", self.threads, 0, 1024)
        _require_range("decode", "max_extra", self.max_extra, 1, 100_000)
        _require_range("decode", "length_penalty", self.length_penalty, 0.0, 10.0)
        _require_range("decode", "temperature", self.temperature, 0.01, 100.0)
        _require_range("decode", "top_k", self.top_k, 0, LARGEST)
        _require_range("decode", "top_p", self.top_p, 0.001, 1.0)
        _require_range("decode", "n_best", self.n_best, 1, 10_000)
        _require_range("decode", "min_length", self.min_length, 0, 100_000)
        _require_range("decode", "no_repeat_ngram", self.no_repeat_ngram, 0, 100_000)
        _require_range("decode", "diversity_groups", self.diversity_groups, 1, 10_000)
        _require_range("decode", "diversity_penalty", self.diversity_penalty, 0.0, 100.0)
        _require_range("decode", "coverage_penalty", self.coverage_penalty, 0.0, 100.0)
        _require_range("decode", "rerank_weight", self.rerank_weight, 0.0, 1.0)
        _require_range("decode", "mbr", self.mbr, 0, 1_000)
        require(all(word.strip() for word in self.banned), "decode.banned: a word is blank; leave it out")
        for name in self.protect:
            require_choice("decode.protect", name, PROTECTED)
        for name in self.alignment_heads:
            require(
                _ALIGNMENT_HEAD.fullmatch(name) is not None,
                f"decode.alignment_heads: {name!r} is not LAYER.HEAD.output or LAYER.HEAD.input; write 2.4.output",
            )
        require(
            self.sampling or self.mbr > 0 or self.n_best <= self.beam,
            f"decode.n_best: {self.n_best} is more than beam={self.beam}; widen the beam or ask for fewer",
        )
        require(
            self.sampling or self.mbr > 0 or (self.top_k == 0 and self.top_p == 1.0 and self.temperature == 1.0),
            "decode.sampling: top_k, top_p and temperature do not apply to beam search; set sampling = true",
        )
        self._check_ranking()

    def _check_ranking(self) -> None:
        """Refuse ways to rank hypotheses that contradict each other."""
        samples = self.sampling or self.mbr > 0
        require(
            self.mbr == 0 or self.n_best <= self.mbr,
            f"decode.n_best: {self.n_best} is more than mbr={self.mbr}; draw more samples or ask for fewer",
        )
        require(self.mbr != 1, "decode.mbr: 1 sample has no other to agree with; draw at least 2")
        require(
            not samples or self.coverage_penalty == 0.0,
            "decode.coverage_penalty: ranks the hypotheses of a beam, not samples; leave it out",
        )
        require(
            not samples or self.diversity_groups == 1,
            "decode.diversity_groups: divides a beam, and samples have none; leave it out",
        )
        require(
            self.beam % self.diversity_groups == 0,
            f"decode.diversity_groups: {self.diversity_groups} do not divide beam={self.beam}; change one of them",
        )


@dataclass(frozen=True)
class Config:
    """All of it. `Config.build` is the way in."""

    data: DataConfig = field(default_factory=DataConfig)
    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=TransformerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    def __post_init__(self) -> None:
        for section, hint in _type_hints(Config).items():
            value, kinds = getattr(self, section), typing.get_args(hint) or (hint,)
            wanted = ", ".join(kind.__name__ for kind in kinds)
            require(
                isinstance(value, kinds), f"{section}: {value!r} is not {'one of' if len(kinds) > 1 else 'a'} {wanted}"
            )
        task, metric, longest = self.task, self.train.valid_metric, self.model.longest
        require(
            longest is None or task == FORECASTING or longest >= self.text.max_length,
            f"model.max_positions: {longest} learned positions cannot hold text.max_length="
            f"{self.text.max_length} pieces; raise one or lower the other",
        )
        require(
            longest is None or task != FORECASTING or longest >= max(self.data.lookback, self.data.horizon),
            f"model.max_positions: {longest} learned positions cannot hold data.lookback={self.data.lookback} and "
            f"data.horizon={self.data.horizon} rows; raise it or lower them",
        )
        require(
            self.text.normalization != "none" or task != TRANSLATION,
            "text.normalization: none is for language models and classifiers; use nfc or another form",
        )
        require(
            metric in TASK_METRICS[task],
            f"train.valid_metric: {metric} is not measured in {task}; use {' or '.join(TASK_METRICS[task])}",
        )
        require(
            task != FORECASTING or not self.train.r_drop,
            "train.r_drop: compares distributions over ids, and a forecaster has none; leave it out",
        )
        require(
            task == CLASSIFICATION or self.train.class_weights == "none",
            f"train.class_weights: there are no classes in {task}; leave it out",
        )
        require(
            task == TRANSLATION or self.text.joint,
            "text.joint: only translation has two vocabularies; leave it out",
        )
        require(
            task == TRANSLATION or not self.text.sampling,
            "text.sampling: segments pairs of sentences only; leave it out",
        )
        require(
            self.text.joint or not getattr(self.model, "share_source_target", False),
            "text.joint: two vocabularies cannot share one embedding; set model.share_source_target = false",
        )

    @property
    def task(self) -> str:
        """What the model is for."""
        return _task(vars(self.model))

    @classmethod
    def build(
        cls,
        preset: str | None = None,
        file: Path | None = None,
        settings: Iterable[str] = (),
        *,
        saved: bool = False,
        **sections: Mapping[str, Any],
    ) -> Self:
        """Build from a preset, then a TOML file, then `sections`, then `section.key=value` strings; later ones win.

        `saved`: the file is the config.toml of a model directory, which states the size of the vocabulary.
        """
        if preset is not None:
            require_choice("preset", preset, PRESETS)
        document = read_toml(file) if file is not None else {}
        asked: list[Mapping[str, Any]] = [sections, *map(_parse_setting, settings)]
        try:
            return cls._from_layers(preset, document, asked, saved)
        except ConfigError as error:
            if file is not None and str(error) == cls._fault(preset, document, saved):
                raise ConfigError(f"{file}: {error}") from None
            raise

    @classmethod
    def _fault(cls, preset: str | None, document: Mapping[str, Any], saved: bool) -> str | None:
        """The error of the file alone, without the settings beside it, which may be at fault or correct it."""
        try:
            cls._from_layers(preset, document, [], saved)
        except ConfigError as error:
            return str(error)
        return None

    @classmethod
    def _from_layers(
        cls, preset: str | None, document: Mapping[str, Any], asked: list[Mapping[str, Any]], saved: bool
    ) -> Self:
        if "preset" in document:
            require_choice("preset", document["preset"], PRESETS)
        file = {name: entries for name, entries in document.items() if name != "preset"}
        preset = document.get("preset") if preset is None else preset
        values: dict[str, dict[str, Any]] = {section.name: {} for section in fields(cls)}
        for layer in (file, *asked):
            for name, entries in layer.items():
                if name not in values:
                    raise ConfigError(f"{name}: unknown section; {suggestion(name, values)}")
                require(isinstance(entries, Mapping), f"{name}: is a section; write {name}.key = value")
                values[name].update(entries)
        for layer in asked if saved else (file, *asked):
            for key in ("vocab_size", "target_vocab_size", "num_labels"):
                origin = "labels; leave it out" if key == "num_labels" else FROM_TOKENIZER
                require(key not in layer.get("model", ()), f"model.{key}: follows from the {origin}")
        kinds = {**_SECTIONS, "model": _architecture(values["model"])}
        usual = TASK_DEFAULTS.get(_task({"architecture": kinds["model"].architecture, **values["model"]}), {})
        for defaults in (PRESETS[preset] if preset is not None else {}, usual):
            for name, entries in defaults.items():
                # drop a preset's fields that do not apply to a recurrent model, such as heads
                entries = {key: value for key, value in entries.items() if key in kinds[name].__dataclass_fields__}
                values[name] = {**entries, **values[name]}
        return cls(**{name: _section(name, kinds[name], entries) for name, entries in values.items()})

    @classmethod
    def from_toml(cls, content: bytes, path: Path) -> Self:
        """Build from the config.toml of a model directory, as `to_toml` writes it; `path` is only used in errors."""
        document = _parse_toml(content, path)
        try:
            return cls._from_layers(None, document, [], saved=True)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def with_vocabulary(self, source_size: int, target_size: int) -> Self:
        """Return the configuration with the vocabulary sizes, once the tokenizers exist."""
        joint = source_size == target_size and self.text.joint
        return replace(self, model=self.model.with_vocabulary(source_size, target_size, joint=joint))

    def to_toml(self) -> str:
        lines: list[str] = []
        for section in fields(self):
            lines.append(f"[{section.name}]")
            values = getattr(self, section.name)
            for entry in fields(values):
                value = getattr(values, entry.name)
                if value is None:  # TOML has no null
                    lines.append(f"# {entry.name} is not set")
                else:
                    lines.append(f"{entry.name} = {toml_value(value)}")
            lines.append("")
        return "\n".join(lines)


FROM_TOKENIZER = "tokenizer; leave it out and set text.vocab_size"
TRANSLATION, LANGUAGE_MODEL, CLASSIFICATION = "translation", "language modelling", "classification"
TRANSCRIPTION, FORECASTING = "transcription", "forecasting"
TASKS = {  # what a model of each architecture does with text
    "transformer": TRANSLATION,
    "rnn": TRANSLATION,
    "lstm": TRANSLATION,
    "decoder": LANGUAGE_MODEL,
    "encoder": CLASSIFICATION,
}
TASK_METRICS = {  # what train.valid_metric may be
    TRANSLATION: ("chrf", "bleu", "loss", "exact_match"),
    LANGUAGE_MODEL: ("loss",),
    CLASSIFICATION: ("accuracy", "macro_f1", "loss"),
    TRANSCRIPTION: ("word_error_rate", "exact_match", "chrf", "bleu", "loss"),
    FORECASTING: ("mse", "mae", "loss"),
}
# Where a task differs from translation. A preset, a file and settings win over these.
TASK_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    LANGUAGE_MODEL: {"text": {"normalization": "none"}, "train": {"valid_metric": "loss", "label_smoothing": 0.0}},
    CLASSIFICATION: {"train": {"valid_metric": "accuracy"}},
    TRANSCRIPTION: {"model": {"share_source_target": False}, "train": {"valid_metric": "word_error_rate"}},
    FORECASTING: {
        "model": {"share_source_target": False, "share_target_output": False},
        "train": {"valid_metric": "mse", "label_smoothing": 0.0},
    },
}
LOWER_IS_BETTER = ("loss", "word_error_rate", "mse", "mae")  # metrics

_SECTIONS: dict[str, Any] = {"data": DataConfig, "text": TextConfig, "train": TrainConfig, "decode": DecodeConfig}


def _task(model: Mapping[str, Any]) -> str:
    """What a model with these settings is for."""
    text_task = TASKS[model["architecture"]]
    if model.get("target_features") is not None:
        return FORECASTING
    return TRANSCRIPTION if text_task == TRANSLATION and model.get("source_features") is not None else text_task


def _architecture(entries: Mapping[str, Any]) -> type[ModelConfig]:
    name = entries.get("architecture", TransformerConfig.architecture)
    require_choice("model.architecture", name, ARCHITECTURES)
    return ARCHITECTURES[name]


def toml_value(value: Any) -> str:
    """JSON's strings, numbers and lists are valid TOML, except for one character that TOML requires escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a TOML file or the --source ... options") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    return _parse_toml(content, path)


def _parse_toml(content: bytes, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML; or thousands of digits or brackets
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _parse_setting(setting: str) -> dict[str, dict[str, Any]]:
    name, equals, text = setting.partition("=")
    section, dot, key = name.strip().partition(".")
    require(
        bool(equals and dot and section and key),
        f"--set {setting}: write section.key=value, as train.max_steps=500",
    )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # bare words are strings: text.model=unigram
    return {section: {key: value}}


def _section(name: str, kind: type, entries: Mapping[str, Any]) -> Any:
    known = [entry.name for entry in fields(kind)]
    for key in entries:
        if key not in known:
            raise ConfigError(f"{name}.{key}: unknown key; {suggestion(key, known)}")
    return kind(**entries)


# Sizes, warm-up, batch and learning rate belong together: 4,000 warm-up steps would ruin a short run.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {
        "model": {"num_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4},
        "text": {"vocab_size": 4_000},
        "train": {
            "max_steps": 3_000,
            "batch_tokens": 2_048,
            "learning_rate": 2e-3,
            "warmup_steps": 250,
            "save_every": 500,
        },
    },
    "small": {
        "model": {"num_layers": 3, "d_model": 256, "d_ff": 1024, "num_heads": 4},
        "text": {"vocab_size": 8_000},
        "train": {
            "max_steps": 20_000,
            "batch_tokens": 4_096,
            "learning_rate": 1e-3,
            "warmup_steps": 1_000,
            "save_every": 1_000,
        },
    },
    "base": {
        "model": {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "dropout": 0.1},
        "text": {"vocab_size": 37_000},
        "train": {"max_steps": 100_000, "batch_tokens": 25_000, "warmup_steps": 4_000, "save_every": 1_000},
    },
    "big": {
        "model": {"num_layers": 6, "d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
        "text": {"vocab_size": 37_000},
        "train": {"max_steps": 300_000, "batch_tokens": 25_000, "warmup_steps": 4_000, "save_every": 1_000},
    },
}
