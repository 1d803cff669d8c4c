"""Reads and writes model directories; resolves the names of bundled models. Knows nothing of training or search.

    DIR/weights.safetensors   the best weights so far, replaced by one rename; int8 where `dragoman compress` made it
    DIR/config.toml           every setting
    DIR/tokenizer.model       or source.model and target.model
    DIR/labels.txt            the labels of a classifier
    DIR/scale.json            the mean and the standard deviation of feature vectors
    DIR/shortlist.safetensors which target pieces can translate a source piece, if `dragoman shortlist` made it
    DIR/confidence.json       how likely a translation needs no review, if `dragoman calibrate` made it
    DIR/source.words.xz       the words that the model has read, and those of its translations in target.words.xz, if
                              `dragoman words` made them
    DIR/card.md               what it is, for humans
    DIR/manifest.json         SHA-256 of all but config.toml and card.md, which users may edit; verified on load

No pickle on any path. Directories are untrusted: a file is refused if it is a pipe, links out of its directory, or is
larger than such a file can be.
"""

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open

from dragoman import hub
from dragoman.confidence import MAX_BYTES, RECALIBRATE, Calibration, read_calibration
from dragoman.config import CLASSIFICATION, FORECASTING, LANGUAGE_MODEL, TRANSCRIPTION, TRANSLATION, Config, DataConfig
from dragoman.errors import ConfigError, ModelError
from dragoman.files import RefusedFile, make_directory, partial_path, read_checked, write_file
from dragoman.model.shapes import weight_shapes
from dragoman.scale import Scale
from dragoman.shortlist import RELEARN, Shortlist, max_bytes, read_shortlist
from dragoman.text.labels import Labels
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.words import LIST_AGAIN, KnownWords, WordList
from dragoman.text.words import MAX_BYTES as MAX_WORDS
from dragoman.weights import MAX_HEADER, RESTORE, Weights, read_weights

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.model.build import Model

T = TypeVar("T")
_BUILDING = threading.Lock()  # held while a module is built
BUNDLED_MODELS = Path(__file__).parent / "models"
WEIGHTS, CONFIG, CARD, MANIFEST = "weights.safetensors", "config.toml", "card.md", "manifest.json"
SHORTLIST, CONFIDENCE, WORDS = "shortlist.safetensors", "confidence.json", ("source.words.xz", "target.words.xz")
# added after training: optional, and how to make them
LEARNED = {SHORTLIST: RELEARN, CONFIDENCE: RECALIBRATE, **dict.fromkeys(WORDS, LIST_AGAIN)}
CHECKPOINTS = "checkpoints"
TOKENIZERS = ("tokenizer.model", "source.model", "target.model")
LABELS, SCALE = "labels.txt", "scale.json"
FILES_WITHOUT_TEXT: dict[type, str] = {Labels: LABELS, Scale: SCALE}  # where a side is not text
MODEL_FILES = (MANIFEST, *TOKENIZERS, LABELS, SCALE, CONFIG, WEIGHTS, *LEARNED, CARD)

# In bytes, far above any real file; larger ones are refused before they are read.
MAX_TEXT = 4_000_000  # config.toml, card.md, manifest.json
MAX_TOKENIZER = 100_000_000  # a million pieces have 15 to 40 million
MAX_BYTES_PER_PARAMETER = 8  # float64
MAX_DOTS = 20  # in a key of config.toml: tomllib takes quadratic time for them


@dataclass(frozen=True)
class Tokenizers:
    """What stands between data and a model, for each side: of text a tokenizer, of labels their list, of feature
    vectors their scale. The same object twice when joint.
    """

    input: Tokenizer | Scale
    output: Tokenizer | Labels | Scale

    @property
    def source(self) -> Tokenizer:
        """Of a model that reads text."""
        assert not isinstance(self.input, Scale)
        return self.input

    @property
    def target(self) -> Tokenizer:
        """Of a model that writes text."""
        assert not isinstance(self.output, Labels | Scale)
        return self.output

    @property
    def labels(self) -> Labels:
        """Of a classifier."""
        assert isinstance(self.output, Labels)
        return self.output

    @property
    def scale(self) -> Scale:
        """Of a model that reads vectors."""
        assert isinstance(self.input, Scale)
        return self.input

    def files(self) -> dict[str, bytes]:
        """The content of the files that hold them."""
        one = self.input is self.output or isinstance(self.input, Scale) or isinstance(self.output, Labels)
        named = zip((self.input, self.output), tokenizer_names(joint=one), strict=True)
        return {FILES_WITHOUT_TEXT.get(type(side), name): side.to_bytes() for side, name in named}


class Bundle:
    """A model with its configuration and tokenizers: from a model directory, or made of a model in memory."""

    def __init__(
        self,
        config: Config,
        tokenizers: Tokenizers,
        model: "Model | Weights",
        shortlist: Shortlist | None = None,
        calibration: Calibration | None = None,
        known_words: KnownWords | None = None,
    ) -> None:
        self.config, self.tokenizers, self.shortlist, self.calibration = config, tokenizers, shortlist, calibration
        self.known_words = known_words
        self._weights: Weights | None = None
        self._model: Model | None = None
        if isinstance(model, Mapping):
            self._weights = model
        else:
            self._model = model

    @property
    def model(self) -> "Model":
        """The model as a PyTorch module, built when first used."""
        with _BUILDING:
            if self._model is None:
                from dragoman.tensors import model_from

                assert self._weights is not None
                self._model = model_from(self.config, self._weights)
                if not self.int8:
                    self._weights = None  # the model has the same numbers
            return self._model

    @property
    def weights(self) -> Weights:
        """The weights as they were stored, or those of the model in memory."""
        stored = self._weights
        if stored is not None:
            return stored
        from dragoman.tensors import named_arrays

        return named_arrays(self.model)

    @property
    def int8(self) -> bool:
        """Whether matrices were stored in int8."""
        stored = self._weights
        return stored is not None and any(array.dtype == np.int8 for array in stored.values())


@contextmanager
def removed_on_error(directory: Path) -> Iterator[None]:
    """If writing a new model directory fails, remove the files and directories that did not exist before."""
    new_directories = [path for path in (directory, *directory.parents) if not path.exists()]
    names = [name for model_file in MODEL_FILES for name in (model_file, partial_path(Path(model_file)).name)]
    new_files = [directory / name for name in names if not (directory / name).exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            for path in new_files:
                path.unlink(missing_ok=True)
            for path in new_directories:
                path.rmdir()
        raise


def _read(directory: Path, name: str, max_bytes: float) -> bytes:
    """Read a file of a model directory."""
    # installers may link every file of a package, and a download is links within the cache of the hub
    within = () if directory.parent == BUNDLED_MODELS else hub.cache_of(directory) or (directory,)
    try:
        return read_checked(directory, name, max_bytes, within=within)
    except RefusedFile as refused:
        raise ModelError(f"{directory / name}: {refused.reason}; {refused.remedy}") from None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# The model directory


def save_bundle(
    directory: Path,
    config: Config,
    tokenizers: Tokenizers,
    weights: Mapping[str, "Tensor"],
    card: str,
    shortlist: Shortlist | None = None,
    calibration: Calibration | None = None,
    known_words: KnownWords | None = None,
) -> None:
    """Write or update a model directory: tokenizers before the config that refers to them, the card last.

    What was added after training belongs to the weights that were there, and is replaced or removed.
    """
    from dragoman.tensors import weights_to_bytes

    make_directory(directory)
    files = {
        **tokenizers.files(),
        CONFIG: config.to_toml().encode(),
        WEIGHTS: weights_to_bytes(weights),
        **({} if shortlist is None else {SHORTLIST: shortlist.to_bytes()}),
        **({} if calibration is None else {CONFIDENCE: calibration.to_bytes()}),
        **({} if known_words is None else _word_files(known_words)),
        CARD: card.encode(),
    }
    for name in LEARNED:
        (directory / name).unlink(missing_ok=True)  # first, because the manifest no longer accepts it
    _replace_files(directory, files, {name: [_sha256(files[name])] for name in files if name not in (CONFIG, CARD)})


def save_shortlist(directory: Path, shortlist: Shortlist) -> None:
    """Add a shortlist to a model directory."""
    _add_files(directory, {SHORTLIST: shortlist.to_bytes()})


def save_calibration(directory: Path, calibration: Calibration) -> None:
    """Add the calibration of confidence to a model directory."""
    _add_files(directory, {CONFIDENCE: calibration.to_bytes()})


def save_words(directory: Path, known_words: KnownWords) -> None:
    """Add the words that a model has read to its directory."""
    _add_files(directory, _word_files(known_words))


def _word_files(known_words: KnownWords) -> dict[str, bytes]:
    return {name: words.to_bytes() for name, words in zip(WORDS, known_words, strict=True)}


def _add_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Without a manifest there, nothing is verified, and none is written."""
    manifest = _manifest(directory)
    if manifest is None:
        for name, content in files.items():
            write_file(directory / name, content)
    else:
        _replace_files(directory, files, {**manifest, **{name: [_sha256(files[name])] for name in files}})


def copy_model(source: Path, target: Path, without: Collection[str] = ()) -> None:
    """Copy the files of a model that was loaded, without those that are to be made anew, checkpoints and logs."""
    make_directory(target)
    for name in MODEL_FILES:
        if name not in without and (source / name).exists():
            write_file(target / name, _read(source, name, math.inf))


def _replace_files(directory: Path, files: Mapping[str, bytes], final: dict[str, list[str]]) -> None:
    """Write files one by one, and the manifest `final`. The process may be killed between any two.

    Until all are new, the manifest also accepts the old ones.
    """
    before = _admitted_before(directory, final)
    during = {name: list(dict.fromkeys([*new, *before.get(name, [])])) for name, new in final.items()}
    _write_manifest(directory, during)
    for name, content in files.items():
        path = directory / name
        if not path.is_file() or path.read_bytes() != content:
            write_file(path, content)
    if during != final:
        _write_manifest(directory, final)


def _admitted_before(directory: Path, names: Collection[str]) -> dict[str, list[str]]:
    """The SHA-256 of files that are about to be replaced."""
    try:
        manifest = _manifest(directory)
    except ModelError:
        return {}  # damaged: the right files are unknown
    if manifest is not None:
        return manifest
    return {name: [_sha256((directory / name).read_bytes())] for name in names if (directory / name).is_file()}


def _write_manifest(directory: Path, admitted: Mapping[str, list[str]]) -> None:
    path, content = directory / MANIFEST, json.dumps(admitted, indent=1).encode()
    if not path.is_file() or path.read_bytes() != content:
        write_file(path, content)


def _manifest(directory: Path) -> dict[str, list[str]] | None:
    """The accepted SHA-256 of each file; None if there is no manifest: older versions wrote none."""
    path = directory / MANIFEST
    if not os.path.lexists(path):
        return None
    content = _read(directory, MANIFEST, MAX_TEXT)
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        manifest = None
    hashes = list(manifest.values()) if isinstance(manifest, dict) else [None]
    if not all(isinstance(each, list) and all(isinstance(digest, str) for digest in each) for each in hashes):
        raise ModelError(f"{path}: not a manifest of SHA-256; restore the file, or remove it to load without checks")
    return manifest


@contextmanager
def _verified(directory: Path, name: str, most: float) -> Iterator[bytes]:
    """Yield a file's content while a thread computes its SHA-256, which takes as long as the rest of loading.

    On exit, raise an error if the manifest has a different one. It replaces any error that the content has caused.
    """
    manifest = _manifest(directory)
    content = _read(directory, name, most)
    if manifest is None:
        yield content
        return
    with ThreadPoolExecutor(1) as threads:
        computed = threads.submit(_sha256, content)
        try:
            yield content
        finally:
            digest = computed.result()
            remedy = LEARNED.get(name, RESTORE)
            # the manifest is read again before refusing: a run may have published between the two reads
            if digest not in manifest.get(name, ()) and digest not in (_manifest(directory) or {}).get(name, ()):
                raise ModelError(f"{directory / name}: its SHA-256 is not the one in {MANIFEST}; {remedy}") from None


def load_card(directory: Path) -> str | None:
    """Read the model card; None if there is none."""
    if not (directory / CARD).exists():
        return None
    return _read(directory, CARD, MAX_TEXT).decode(errors="replace")


def resolve_model(model: str | Path) -> Path:
    """Return the directory of a model: an existing one, else the bundled model of that name; hf:// is downloaded."""
    if hub.is_on_hub(model):
        folder = hub.download(model, MODEL_FILES)
        if not (folder / CONFIG).exists():
            name = hub.hub_name(model)
            raise ModelError(f"{name}: not a model of dragoman; try `dragoman import huggingface {name} OUT`")
        return folder
    here = Path(model)
    # a folder that only has the same name, such as a corpus, does not count
    is_run = any((here / part).exists() for part in (CONFIG, WEIGHTS, CHECKPOINTS))
    return here if is_run or str(model) not in bundled_models() else BUNDLED_MODELS / model


def model_name(model: str | os.PathLike[str]) -> str:
    """The last part of a model's name, for titles."""
    if hub.is_on_hub(model):
        return hub.hub_name(model).partition("@")[0].rpartition("/")[2]
    return resolve_model(Path(model)).resolve().name


def bundled_models() -> list[str]:
    """The names of the bundled models."""
    return sorted(path.parent.name for path in BUNDLED_MODELS.glob(f"*/{CONFIG}"))


def languages_of(data: DataConfig) -> tuple[str, str]:
    """Codes of source and target if the training files' names give them, as train.en.gz does; otherwise empty."""
    sides = []
    for paths in (data.source, data.target):
        parts = {part for path in paths for part in Path(path).name.split(".")[1:]}
        codes = [part for part in parts - {"gz", "xz"} if re.fullmatch("[a-z]{2}", part)]
        sides += codes if len(codes) == 1 else []
    return (sides[0], sides[1]) if len(sides) == 2 else ("", "")


def load_config(directory: Path) -> Config:
    _require_directory(directory)
    path = directory / CONFIG
    content = _read(directory, CONFIG, MAX_TEXT)
    keys = (line.partition(b"=")[0] for line in content.splitlines() if b"=" in line or line.lstrip().startswith(b"["))
    if any(key.count(b".") > MAX_DOTS for key in keys):
        raise ModelError(f"{path}: not valid TOML: nested too deeply; {RESTORE}")
    try:
        return Config.from_toml(content, path)
    except ConfigError as error:  # its message names the file
        raise ModelError(str(error)) from None


COMMANDS = {  # what uses a model of each task
    TRANSLATION: "dragoman translate",
    LANGUAGE_MODEL: "dragoman generate",
    CLASSIFICATION: "dragoman classify",
    TRANSCRIPTION: "dragoman transcribe",
    FORECASTING: "dragoman forecast",
}
NAMES = {
    TRANSLATION: "a translation model",
    LANGUAGE_MODEL: "a language model",
    CLASSIFICATION: "a classifier",
    TRANSCRIPTION: "a transcriber",
    FORECASTING: "a forecaster",
}


def require_task(config: Config, task: str, model: str | Path) -> None:
    """Refuse a model of another task, with the command that fits it."""
    if config.task != task:
        raise ModelError(
            f"{model}: is {NAMES[config.task]}, and {NAMES[task]} is needed; "
            f"use `{COMMANDS[config.task]} --model {model}`"
        )


def tokenizer_names(joint: bool) -> tuple[str, str]:
    """The file names of both sides' tokenizers."""
    joint_name, source_name, target_name = TOKENIZERS
    return (joint_name, joint_name) if joint else (source_name, target_name)


def _side_files(config: Config) -> tuple[str, str]:
    """The file of each side."""
    source, target = tokenizer_names(config.text.joint)
    if config.model.reads_vectors:
        source = SCALE
    return source, {CLASSIFICATION: LABELS, FORECASTING: SCALE}.get(config.task, target)


def tokenizer_files(config: Config) -> list[str]:
    """The names of all files with vocabularies, labels and scales."""
    return [*dict.fromkeys(_side_files(config))]


def load_tokenizers(directory: Path, config: Config) -> Tokenizers:
    """The tokenizers of a model directory, its labels if it is a classifier, the scale of vectors."""

    def load(name: str, read: Callable[[bytes], T]) -> T:
        with _verified(directory, name, MAX_TOKENIZER) as content:
            try:
                return read(content)
            except ModelError as error:
                raise ModelError(f"{directory / name}: {error}") from None

    def tokenizer(content: bytes) -> Tokenizer:
        return Tokenizer.from_bytes(content, config.text.normalization)

    readers: dict[str, Callable[[bytes], Any]] = {LABELS: Labels.from_bytes, SCALE: Scale.from_bytes}
    names = _side_files(config)
    loaded = {name: load(name, readers.get(name, tokenizer)) for name in dict.fromkeys(names)}
    return Tokenizers(loaded[names[0]], loaded[names[1]])


def load_bundle(directory: Path) -> Bundle:
    """Load a model directory and check that its configuration, tokenizers and weights fit together."""
    config = load_config(directory)
    tokenizers = load_tokenizers(directory, config)
    sizes = (tokenizers.input.size, tokenizers.output.size)
    if sizes != (config.model.input_size, config.model.target_vocabulary):
        raise ModelError(
            f"{directory}: its vocabularies have {sizes[0]} and {sizes[1]} entries, its config.toml says "
            f"{config.model.input_size} and {config.model.target_vocabulary}; restore the files that belong together"
        )
    path = directory / WEIGHTS
    if not path.exists():
        raise ModelError(f"{path}: missing; training writes it at its first save")
    shapes = weight_shapes(config.model)
    parameters = sum(map(math.prod, shapes.values()))
    with _verified(directory, WEIGHTS, parameters * MAX_BYTES_PER_PARAMETER + MAX_HEADER) as content:
        weights = read_weights(content, shapes, path)
    shortlist, calibration = _load_shortlist(directory, tokenizers), _load_calibration(directory)
    return Bundle(config, tokenizers, weights, shortlist, calibration, load_words(directory))


def _load_shortlist(directory: Path, tokenizers: Tokenizers) -> Shortlist | None:
    path, sizes = directory / SHORTLIST, (tokenizers.input.size, tokenizers.output.size)
    if not os.path.lexists(path):
        return None
    with _verified(directory, SHORTLIST, max_bytes(*sizes) + MAX_HEADER) as content:
        return read_shortlist(content, *sizes, tokenizers.target.vocabulary.eos, path)


def _load_calibration(directory: Path) -> Calibration | None:
    if not os.path.lexists(directory / CONFIDENCE):
        return None
    with _verified(directory, CONFIDENCE, MAX_BYTES) as content:
        return read_calibration(content, directory / CONFIDENCE)


def load_words(directory: Path) -> KnownWords | None:
    """Both lists, or nothing: they are read when they are first needed."""
    lists = []
    for name in WORDS:
        if not os.path.lexists(directory / name):
            return None
        with _verified(directory, name, MAX_WORDS) as content:
            lists.append(WordList(content, directory / name))
    return KnownWords(*lists)


def stores_int8(directory: Path) -> bool:
    """Whether a model directory has int8 matrices, from the header of its weights; False if that cannot be read."""
    try:
        with safe_open(directory / WEIGHTS, framework="np") as content:
            return any(content.get_slice(name).get_dtype() == "I8" for name in content.keys())  # noqa: SIM118
    except (OSError, SafetensorError):
        return False


def _require_directory(directory: Path) -> None:
    if directory.is_file():
        raise ModelError(f"{directory}: is a file; give the model directory, {directory.parent}")
    if not directory.is_dir():
        raise ModelError(
            f"{directory}: no such model directory; train one with `dragoman train ... --out {directory}`"
            + (f", or use a bundled one: {', '.join(bundled_models())}" if bundled_models() else "")
        )
    if not (directory / CONFIG).is_file():
        raise ModelError(f"{directory}: not a model directory (no {CONFIG}); give the --out of a training run")
