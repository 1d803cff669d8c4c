"""Prepare the data of a run: tokenizers, encoded corpora, validation text. Knows nothing of models."""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dragoman.bundle import CONFIG, Tokenizers, load_config, load_tokenizers, resolve_model, tokenizer_files
from dragoman.config import TRANSLATION, Config, DataConfig
from dragoman.data import generated
from dragoman.data.corpus import content_hash
from dragoman.errors import ConfigError, DataError
from dragoman.files import make_directory, write_file
from dragoman.tasks.choice import TASKS, task_of
from dragoman.tasks.task import AnyStore, PreparedData, Task
from dragoman.text.byte_level import ByteLevelTokenizer
from dragoman.text.tokenizer import Tokenizer
from dragoman.training.reports.log import Reporter

FILES = {name for task in TASKS.values() for name in (*task.files, *task.test_files)}
FOLDER = "$DRAGOMAN_DATA"
VOCABULARY_FORMAT = 1  # version of vocabulary training; part of its cache key


Verify = Callable[[dict[str, str], DataConfig], None]


def prepare_data(
    config: Config, run: Path, reporter: Reporter, verify: Verify = lambda identity, data: None,
    data_folder: Path | None = None,
) -> PreparedData:  # fmt: skip
    """Cache everything under `run`, keyed by content, so that a second start does no work twice.

    `verify` gets the identity of the run and its files before any work is done, and may raise.
    """
    task = task_of(config)
    folder = str(data_folder or os.environ.get(FOLDER.removeprefix("$"), ""))
    data = _corpora(task, config.data, run, config.train.seed, folder)
    vectors = [path for path in data.source if path.endswith((".npz", ".npy"))]
    if vectors and not config.model.reads_vectors:
        raise ConfigError(f"data.source: {vectors[0]} has vectors; set model.source_features to the size of one")
    training, validation = _halves(task.files)
    # before hours of work: does every file exist?
    contents = {
        f"data.{name}": content_hash([Path(path) for path in getattr(data, name)])
        for name in (*task.files, *task.test_files)
    }
    if any(getattr(data, name) for name in task.test_files):
        deque(task.read(data, task.test_files, config), maxlen=0)  # and is every line of the test sets valid?
    identity = {f"data.{name}": contents[f"data.{name}"] for name in training}
    verify(identity, data)
    tokenizers = _tokenizers(task, config, data, run, reporter)
    identity |= {"source vocabulary": tokenizers.input.digest, "target vocabulary": tokenizers.output.digest}
    verify(identity, data)
    config = config.with_vocabulary(tokenizers.input.size, tokenizers.output.size)
    train = _store(task, "training", data, training, config, tokenizers, run, reporter)
    valid = _store(task, "validation", data, validation, config, tokenizers, run, reporter)
    sources, references = task.read_validation(data, validation, config)
    return PreparedData(config, data, tokenizers, train, valid, sources, references, identity)


def _halves(files: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The settings of the training corpus, and of the validation corpus."""
    return files[: len(files) // 2], files[len(files) // 2 :]


def _corpora(task: Task, data: DataConfig, run: Path, seed: int, folder: str) -> DataConfig:
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
    for name in sorted({*FILES} - {*task.files, *task.test_files}):
        if getattr(data, name):
            remedy = "the model.architecture that uses it"
            if name.endswith("series"):
                remedy = "model.source_features and model.target_features to its number of columns"
            raise ConfigError(f"data.{name}: not used in {task.name}; leave it out, or set {remedy}")
    for name in task.files:
        if not getattr(data, name):
            raise ConfigError(f"data.{name}: missing; give {task.options}")
    placed: dict[str, Any] = {
        name: tuple(_in_folder(path, name, folder) for path in getattr(data, name))
        for name in (*task.files, *task.test_files)
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


def _tokenizers(task: Task, config: Config, data: DataConfig, run: Path, reporter: Reporter) -> Tokenizers:
    """The tokenizers of the run or of the model it starts from; otherwise trained on the training text, once."""
    if (run / CONFIG).exists():
        return load_tokenizers(run, config)
    if config.train.start_from:
        start = resolve_model(config.train.start_from)
        tokenizers = task.adopt_tokenizers(load_tokenizers(start, load_config(start)), data, config)
        if tokenizers.input.languages:
            raise ConfigError(
                f"train.start_from: {config.train.start_from} translates into several languages, and training does not "
                "add their tags to sources; start from a model with one target language"
            )
        if config.text.sampling and isinstance(tokenizers.input, ByteLevelTokenizer):
            raise ConfigError("text.sampling: not possible with the byte-level BPE of train.start_from; set it to 0")
        return tokenizers
    kept = run / "data" / f"tokenizer-{_vocabulary_key(task, config, data)[:16]}"
    names = tokenizer_files(config)
    if not all((kept / name).exists() for name in names):
        if any(name.endswith(".model") for name in names):
            reporter.note(f"learning a vocabulary of up to {config.text.vocab_size:,} {config.text.model} pieces")
        make_directory(kept)
        for name, content in task.learn_tokenizers(data, config).files().items():
            write_file(kept / name, content)
    tokenizers = load_tokenizers(kept, config)
    for tokenizer in dict.fromkeys((tokenizers.input, tokenizers.output)):
        if isinstance(tokenizer, Tokenizer) and tokenizer.size < config.text.vocab_size:
            wanted = f"text.vocab_size={config.text.vocab_size:,}"
            reporter.note(f"the text supports {tokenizer.size:,} pieces, fewer than {wanted}; using {tokenizer.size:,}")
    return tokenizers


def _vocabulary_key(task: Task, config: Config, data: DataConfig) -> str:
    """What a vocabulary follows from."""
    files = [content_hash([Path(name) for name in getattr(data, side)]) for side in _halves(task.files)[0]]
    parts = [*files, asdict(config.text), data.on_bad_line, VOCABULARY_FORMAT]
    parts += [] if task.name == TRANSLATION else [task.name]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _store(
    task: Task,
    what: str,
    data: DataConfig,
    files: tuple[str, ...],
    config: Config,
    tokenizers: Tokenizers,
    run: Path,
    reporter: Reporter,
) -> AnyStore:
    store = task.build_store(what, data, files, config, tokenizers, run / "data", reporter.working)
    reporter.note(f"{len(store):,} {what} {task.rows}{task.describe_rows(store, tokenizers)}")
    for note in store.report.notes():
        reporter.note(note)
    return store
