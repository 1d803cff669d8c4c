"""What exports share: the model to export, refusals, a directory that appears when complete, and the check.

Knows nothing of the files of any format.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from dragoman.bundle import Tokenizers, load_bundle, load_card, model_name, require_task, resolve_model
from dragoman.config import TRANSLATION, Config, ModelConfig, StackSize, TransformerConfig
from dragoman.decode.assembly import produced
from dragoman.decode.engines.plain import Engine
from dragoman.decode.search import greedy
from dragoman.errors import ConfigError, DiskError, ModelError
from dragoman.files import make_directory, partial_path, sync_directory
from dragoman.model.transformer import Transformer
from dragoman.text.byte_level import ByteLevelTokenizer
from dragoman.text.normalize import Normalization, is_lowercase, keeps_no_break_spaces
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.vocabulary import NUM_SPECIAL

MIN_POSITIONS = 1024  # of the position tables, even if the model's own limits are lower
PACKAGES = {
    "ctranslate2": "ctranslate2 sentencepiece",
    "huggingface": "transformers torch sentencepiece sacremoses",
    "onnx": "onnxruntime tokenizers",
}
CHECKED_SENTENCES, CHECKED_TOKENS = 5, 32
# Two programs that sum in a different order agree to about 1e-5; the next token is usually 0.1 or more behind.
TIE = 1e-3


@dataclass(frozen=True)
class Exported:
    """What an export wrote. `checked` sentences gave the same tokens in the other library; None: not checked."""

    directory: Path
    library: str
    num_bytes: int
    checked: int | None


@dataclass(frozen=True)
class Source:
    """The model to export."""

    name: str
    config: Config
    shape: TransformerConfig
    tokenizers: Tokenizers
    model: Transformer
    card: str

    @property
    def num_positions(self) -> int:
        """The rows of a position table: all learned ones, or enough for the longest sentence and more."""
        if self.shape.longest is not None:
            return self.shape.longest
        return max(MIN_POSITIONS, self.config.text.max_length + self.config.decode.max_extra + 1)


def load_source(
    model: str | os.PathLike[str], refuse: Callable[[ModelConfig], None], *, byte_level: bool = False
) -> Source:
    """Load a model directory, or a bundled model, unless `refuse` raises an error for its configuration.

    byte_level: whether its vocabulary may be byte-level BPE, which no export can write.
    """
    directory = resolve_model(Path(model))
    bundle = load_bundle(directory)
    require_task(bundle.config, TRANSLATION, directory)
    refuse(bundle.config.model)
    both = (bundle.tokenizers.source, bundle.tokenizers.target)
    if not byte_level and any(isinstance(tokenizer, ByteLevelTokenizer) for tokenizer in both):
        raise ConfigError(
            "export: byte-level BPE is not possible in an export; use the model this one was imported from"
        )
    assert isinstance(bundle.model, Transformer)
    assert isinstance(bundle.config.model, TransformerConfig)
    card = load_card(directory) or "# A dragoman translation model\n"
    name = model_name(model)
    return Source(name, bundle.config, bundle.config.model, bundle.tokenizers, bundle.model, card)


# Refusals


def refuse_recurrent(config: ModelConfig, library: str) -> None:
    if not isinstance(config, TransformerConfig):
        raise ConfigError(
            f"model.architecture: {config.architecture} is not possible in {library}, which runs Transformers only; "
            "export a Transformer"
        )


def stacks(config: TransformerConfig) -> dict[str, StackSize]:
    return {"encoder": config.encoder, "decoder": config.decoder}


def is_installed(library: str) -> bool:
    return find_spec(library) is not None


# The directory


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield an empty directory that gets the name `out` once the block ends; after an error nothing is left.

    `out` must not exist or be empty.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError(f"{out}: is not an empty directory; give another one")
    place = out.resolve()  # not `.`, which cannot be replaced
    new_parents = [path for path in place.parents if not path.exists()]
    partial = partial_path(place)
    try:
        make_directory(partial.parent)
        shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
        make_directory(partial)
        yield partial
        for path in sorted(partial.rglob("*")):
            if path.is_dir():
                sync_directory(path)
                continue
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(partial)
        if place.is_dir():
            place.rmdir()  # empty; not every system can rename onto it
        partial.rename(place)
        sync_directory(place.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):
            for path in new_parents:
                path.rmdir()
        if isinstance(error, OSError):
            raise DiskError(f"{out}: cannot be written ({error.strerror}); choose another place") from None
        raise


def directory_size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


# The page in the directory


def readme(source: Source, library: str, to: str, program: str, *notes: str) -> str:
    """How to use the export from its library, what to mind, and the model's own card."""
    decode, form = source.config.decode, source.config.text.normalization
    if decode.length_penalty_form == "power":
        penalty = f"{library} divides a score by length ** alpha in beam search, as the model does."
    else:
        penalty = (
            f"{library} divides a score by length ** alpha in beam search, the model by ((5 + length) / 6) ** alpha: "
            "beams of more than 1 may choose another translation."
        )
    notes = (
        f'Normalise text before tokenizing, as above (`text.normalization = "{form}"`). If your text may have control '
        "characters or U+2581, also replace control characters with spaces and U+2581 with underscores.",
        f"A text of more than {source.config.text.max_length} tokens is longer than any in training: split it. More "
        f"than {source.num_positions:,} on either side are an error.",
        *notes,
        penalty,
    )
    listed = "\n".join(f"- {note}" for note in notes)
    return (
        f"# {source.name} for {library}\n\n"
        f"Exported from a dragoman model by `dragoman export --to {to}`: the same weights, the same tokens.\n\n"
        f"Run this in the directory itself, after `pip install {PACKAGES[to]}`, with a sentence of your own:\n\n"
        f"```python\n{program}```\n\n{listed}\n\nThe model card follows.\n\n{source.card}"
    )


def normalization_code(form: Normalization) -> str:
    """A Python expression that normalises `text` as the model's tokenizer does, except for control characters."""
    composed = f'unicodedata.normalize("{"NFKC" if form.startswith("nfkc") else "NFC"}", text)'
    if is_lowercase(form):  # compose again: the lower case of some capitals is two characters
        composed = composed.replace("text)", f"{composed}.lower())")
    if keeps_no_break_spaces(form):
        return f're.sub(r"[^\\S\\u00a0\\u2007\\u202f]+", " ", {composed}).strip()'
    return f'" ".join({composed}.split())'


def normalization_imports(form: Normalization) -> str:
    return "import re\nimport unicodedata" if keeps_no_break_spaces(form) else "import unicodedata"


# The check

Translate = Callable[[Sequence[str], int], list[list[int]]]
"""Texts and a number of tokens in; the ids of greedy search out, with </s> if it ended before that number."""


def check_tokens(source: Source, translate: Translate, library: str, out: Path) -> int:
    """Compare greedy search in the other library with ours; return the number of sentences, or raise ModelError."""
    texts = sample_texts(source)
    limit = min(CHECKED_TOKENS, source.num_positions - 1)
    expected = greedy_ids(source, texts, limit)
    for text, ours, theirs in zip(texts, expected, translate(texts, limit), strict=True):
        if ours != theirs and not is_tie(source, text, ours, theirs):
            raise ModelError(
                f"{out}: {library} gives other tokens than dragoman for {text!r}: "
                f"{_show(source, theirs)} instead of {_show(source, ours)}; nothing was written, please report it"
            )
    return len(texts)


def _show(source: Source, ids: Sequence[int]) -> str:
    return " ".join(source.tokenizers.target.pieces(ids))


def sample_texts(source: Source) -> list[str]:
    """Some text in the model's own pieces, the same every time: words at random, in any language."""
    tokenizer, generator = source.tokenizers.source, random.Random(0)
    every = range(NUM_SPECIAL, tokenizer.size)
    names = zip(every, tokenizer.pieces(every), strict=True)
    usable = [piece for piece, name in names if name.strip("\u2581").isalpha()] or list(every)
    longest = min(12, source.config.text.max_length - 1, source.num_positions - 1)
    texts: list[str] = []
    for _ in range(1_000):  # a strange tokenizer may have no text at all
        ids = generator.choices(usable, k=generator.randint(min(3, longest), longest))
        text = tokenizer.decode(ids)
        if text and len(tokenizer.encode(text)) <= longest:
            texts.append(text)
        if len(texts) == CHECKED_SENTENCES:
            break
    return texts


def source_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [*tokenizer.encode(text), tokenizer.vocabulary.eos]


def greedy_ids(source: Source, texts: Sequence[str], limit: int) -> list[list[int]]:
    """The first `limit` ids of greedy search, with </s> if it is among them."""
    ids = source.tokenizers.target.vocabulary
    with torch.inference_mode():
        decoding = Engine(source.model, torch.device("cpu")).start(
            [source_ids(source.tokenizers.source, text) for text in texts]
        )
        found = greedy(decoding, [limit] * len(texts), start=ids.bos, end=ids.eos, forbidden=ids.never_predicted)
    return [produced(hypothesis, ids.eos)[:limit] for hypothesis in found]


def is_tie(source: Source, text: str, ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether the first tokens that differ have the same probability up to rounding."""
    common = next((place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if common is None:  # one is a prefix of the other
        return False
    target = [source.tokenizers.target.vocabulary.bos, *ours[:common]]
    with torch.inference_mode():
        given = torch.tensor([source_ids(source.tokenizers.source, text)])
        log_prob_V = source.model(given, torch.tensor([target]))[0, -1].log_softmax(dim=-1)
    return abs(float(log_prob_V[ours[common]] - log_prob_V[theirs[common]])) < TIE
