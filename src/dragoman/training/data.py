"""Prepare the data of a run: tokenizers, encoded corpora, validation text. Knows nothing of models."""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.bundle import CONFIG, Tokenizers, load_tokenizers, resolve_model, tokenizer_names
from dragoman.config import Config, DataConfig
from dragoman.data import generated
from dragoman.data.corpus import CorpusReport, content_hash, read_pairs
from dragoman.data.store import Store, build_store
from dragoman.errors import ConfigError, DataError
from dragoman.files import make_directory, write_file
from dragoman.text.byte_level import ByteLevelTokenizer
from dragoman.text.normalize import normalize
from dragoman.text.tokenizer import Tokenizer
from dragoman.training.reports.log import Reporter

FILES = ("source", "target", "valid_source", "valid_target")
TEST_FILES = ("test_source", "test_target")
FOLDER = "$DRAGOMAN_DATA"
VOCABULARY_FORMAT = 1  # version of vocabulary training; part of its cache key


Verify = Callable[[dict[str, str], DataConfig], None]


@dataclass(frozen=True)
class PreparedData:
    config: Config  # with the actual vocabulary sizes
    corpora: DataConfig  # with the actual files
    tokenizers: Tokenizers
    train: Store
    valid: Store
    valid_sources: list[str]  # text, to be translated
    valid_references: list[str]
    identity: dict[str, str]  # SHA-256 of the training corpus and the vocabularies


def prepare_data(
    config: Config, run: Path, reporter: Reporter, verify: Verify = lambda identity, data: None,
    data_folder: Path | None = None,
) -> PreparedData:  # fmt: skip
    """Cache everything under `run`, keyed by content, so that a second start does no work twice.

    `verify` gets the identity of the run and its files before any work is done, and may raise.
    """
    folder = str(data_folder or os.environ.get(FOLDER.removeprefix("$"), ""))
    data = _corpora(config.data, run, config.train.seed, folder)
    # before hours of work: does every file exist?
    contents = {
        f"data.{name}": content_hash([Path(path) for path in getattr(data, name)]) for name in (*FILES, *TEST_FILES)
    }
    for source, target in zip(data.test_source, data.test_target, strict=True):
        deque(_pairs([source], [target], config), maxlen=0)  # and is every line of the test sets valid?
    identity = {name: contents[name] for name in ("data.source", "data.target")}
    verify(identity, data)
    tokenizers = _tokenizers(config, data, run, reporter)
    identity |= {"source vocabulary": tokenizers.source.digest, "target vocabulary": tokenizers.target.digest}
    verify(identity, data)
    config = config.with_vocabulary(tokenizers.source.size, tokenizers.target.size)
    train = _store("training", data.source, data.target, config, tokenizers, run, reporter)
    valid = _store("validation", data.valid_source, data.valid_target, config, tokenizers, run, reporter)
    pairs = list(islice(_pairs(data.valid_source, data.valid_target, config), config.train.valid_sentences))
    sources = [source for source, _ in pairs]
    references = [normalize(target, config.text.normalization) for _, target in pairs]  # as translations are
    return PreparedData(config, data, tokenizers, train, valid, sources, references, identity)


def _corpora(data: DataConfig, run: Path, seed: int, folder: str) -> DataConfig:
    """The settings with a generated corpus written to files, and $DRAGOMAN_DATA replaced."""
    if data.generated:
        files = generated.write(data.generated, data.generated_size, run / "corpus", seed)
        tested = data.generated_test
        data = replace(
            data,
            generated="",
            generated_test=False,  # its files are listed below
            source=(str(files.train_source),),
            target=(str(files.train_target),),
            valid_source=(str(files.valid_source),),
            valid_target=(str(files.valid_target),),
            test_source=(*([str(files.test_source)] if tested else []), *data.test_source),
            test_target=(*([str(files.test_target)] if tested else []), *data.test_target),
        )
    for name in FILES:
        if not getattr(data, name):
            raise ConfigError(
                f"data.{name}: missing; give --source, --target, --valid-source and --valid-target, "
                "or data.generated for a generated corpus"
            )
    placed: dict[str, Any] = {
        name: tuple(_in_folder(path, name, folder) for path in getattr(data, name)) for name in (*FILES, *TEST_FILES)
    }
    return replace(data, **placed)


def _in_folder(path: str, name: str, folder: str) -> str:
    """Replace $DRAGOMAN_DATA in a path. The configuration keeps it, so that a recipe works on any machine."""
    if not path.startswith(FOLDER):
        return path
    if not folder:
        raise ConfigError(f"data.{name}: {path} needs {FOLDER}, the folder of the corpora; set it, or give --data")
    if not Path(folder).is_dir():
        raise ConfigError(f"--data {folder}: no such folder; it is where the corpora of data.{name} and others are")
    placed = folder + path.removeprefix(FOLDER)
    if not Path(placed).exists():
        raise DataError(
            f"{placed}: no such file; --data names the folder of the corpora, and the recipe needs this one"
        )
    return placed


def _tokenizers(config: Config, data: DataConfig, run: Path, reporter: Reporter) -> Tokenizers:
    """The tokenizers of the run or of the model it starts from; otherwise trained on the training text, once."""
    if (run / CONFIG).exists():
        return load_tokenizers(run, config)
    if config.train.start_from:
        tokenizers = load_tokenizers(resolve_model(config.train.start_from), config)
        if tokenizers.source.languages:
            raise ConfigError(
                f"train.start_from: {config.train.start_from} translates into several languages, and training does not "
                "add their tags to sources; start from a model with one target language"
            )
        if config.text.sampling and isinstance(tokenizers.source, ByteLevelTokenizer):
            raise ConfigError("text.sampling: not possible with the byte-level BPE of train.start_from; set it to 0")
        return tokenizers
    kept = run / "data" / f"tokenizer-{_vocabulary_key(config, data)[:16]}"
    names = list(dict.fromkeys(tokenizer_names(config.text.joint)))
    if not all((kept / name).exists() for name in names):
        reporter.note(f"learning a vocabulary of up to {config.text.vocab_size:,} {config.text.model} pieces")
        make_directory(kept)
        for name, content in _learned(config, data).files().items():
            write_file(kept / name, content)
    tokenizers = load_tokenizers(kept, config)
    for tokenizer in dict.fromkeys((tokenizers.source, tokenizers.target)):
        if tokenizer.size < config.text.vocab_size:
            wanted = f"text.vocab_size={config.text.vocab_size:,}"
            reporter.note(f"the text supports {tokenizer.size:,} pieces, fewer than {wanted}; using {tokenizer.size:,}")
    return tokenizers


def _vocabulary_key(config: Config, data: DataConfig) -> str:
    """What a vocabulary follows from."""
    files = [content_hash([Path(name) for name in side]) for side in (data.source, data.target)]
    parts = [*files, asdict(config.text), data.on_bad_line, VOCABULARY_FORMAT]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _learned(config: Config, data: DataConfig) -> Tokenizers:
    def side(index: int) -> Iterator[str]:
        return (pair[index] for pair in _pairs(data.source, data.target, config))

    if config.text.joint:
        both = (text for pair in _pairs(data.source, data.target, config) for text in pair)
        joint = Tokenizer.train(both, config.text)
        return Tokenizers(joint, joint)
    return Tokenizers(Tokenizer.train(side(0), config.text), Tokenizer.train(side(1), config.text))


def _pairs(source: Sequence[str], target: Sequence[str], config: Config) -> Iterator[tuple[str, str]]:
    report = CorpusReport()
    paths = ([Path(name) for name in source], [Path(name) for name in target])
    for pair in read_pairs(*paths, on_bad_line=config.data.on_bad_line, report=report):
        yield pair.source, pair.target


def _store(
    what: str,
    source: Sequence[str],
    target: Sequence[str],
    config: Config,
    tokenizers: Tokenizers,
    run: Path,
    reporter: Reporter,
) -> Store:
    store = build_store(
        run / "data",
        [Path(name) for name in source],
        [Path(name) for name in target],
        tokenizers.source,
        tokenizers.target,
        max_length=config.text.max_length,
        on_bad_line=config.data.on_bad_line,
        progress=lambda done: reporter.working(f"encoding {what} pairs", done),
    )
    reporter.note(f"{len(store):,} {what} pairs")
    for note in store.report.notes():
        reporter.note(note)
    return store
