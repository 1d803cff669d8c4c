"""A model directory and its checkpoints, read and written. Knows nothing of training or search.

    DIR/weights.safetensors   the best weights so far, replaced by one rename; int8 where `dragoman compress` made it
    DIR/config.toml           every setting
    DIR/tokenizer.model       or source.model and target.model
    DIR/card.md               what it is, for people
    DIR/checkpoints/step-000060/   files of a run, manifest.json with their SHA-256 written last

No pickle on any path. A checkpoint is a new directory, every file fsynced, renamed into place once it is whole.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dragoman.config import Config
from dragoman.errors import ConfigError, DiskError, ModelError
from dragoman.model.build import Model, build_model
from dragoman.model.footprint import parameter_counts
from dragoman.model.rows import expanded, without_scales
from dragoman.text.tokenizer import Tokenizer

IN_THE_BOX = Path(__file__).parent / "models"
WEIGHTS, CONFIG, CARD, MANIFEST = "weights.safetensors", "config.toml", "card.md", "manifest.json"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Tokenizers:
    """One for each side; the same object twice when joint."""

    source: Tokenizer
    target: Tokenizer

    def files(self) -> dict[str, bytes]:
        if self.source is self.target:
            return {"tokenizer.model": self.source.to_bytes()}
        return {"source.model": self.source.to_bytes(), "target.model": self.target.to_bytes()}


@dataclass(frozen=True)
class Bundle:
    """A model directory in memory."""

    config: Config
    tokenizers: Tokenizers
    model: Model


# Files


def after(event: str, path: Path) -> None:
    """Called after each write and each rename, and does nothing: tests let a process die here, or a disk be full."""


def write_file(path: Path, content: bytes) -> None:
    """Replace `path` by one rename, so that a reader sees the old file or the new one, never half of either."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        _write_synced(partial, content)
        partial.replace(path)
        after("rename", path)
        _sync_directory(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise disk_error(path, len(content), error) from None


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"{path}: cannot make this directory ({error.strerror}); choose another place") from None


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    after("write", path)


def _sync_directory(path: Path) -> None:
    if os.name == "posix":  # elsewhere a directory cannot be opened
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def disk_error(path: Path, size: int, error: OSError) -> DiskError:
    return DiskError(f"{path}: cannot write {size:,} bytes ({error.strerror}); free some space or choose another place")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One run at a time in a directory. The lock ends with the process, however it ends.

    A directory that was made for it goes again where nothing came into it: the run was refused.
    """
    new = not directory.exists()
    make_directory(directory)
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    path = directory / ".lock"
    try:
        lock = path.open("w")
    except OSError as error:
        raise disk_error(path, 0, error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ModelError(f"{directory}: another run is training here; wait for it or give another --out") from None
        try:
            yield
        finally:
            if new:
                _remove_if_empty(directory, path)


def _remove_if_empty(directory: Path, lock: Path) -> None:
    with suppress(OSError):  # somebody else has removed it, or a folder in it is not empty
        for folder in sorted((each for each in directory.rglob("*") if each.is_dir()), reverse=True):
            folder.rmdir()
        if list(directory.iterdir()) == [lock]:
            lock.unlink()
            directory.rmdir()


# Weights


def weights_to_bytes(weights: Mapping[str, Tensor]) -> bytes:
    return bytes(safetensors.torch.save({name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}))


def weights_from_bytes(content: bytes, path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file; `path` only names it in errors."""
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # safetensors raises its own type, and others for hostile headers
        raise ModelError(f"{path}: not a safetensors file ({error}); restore it or train again") from None


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once: a shared matrix goes by its first name."""
    return dict(model.named_parameters())


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into a model; all that do not fit are reported at once."""
    own = named_weights(model)
    faults = [f"{name} is missing" for name in own.keys() - weights.keys()]
    faults += [f"{name} is unknown" for name in weights.keys() - own.keys()]
    faults += [
        f"{name} is {list(weights[name].shape)} and should be {list(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    if faults:
        raise ModelError(f"{path}: does not fit its config.toml: {'; '.join(sorted(faults))}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


# The model directory


def save_bundle(
    directory: Path, config: Config, tokenizers: Tokenizers, weights: Mapping[str, Tensor], card: str
) -> None:
    """Write or update a model directory: tokenizers before the config that promises them, the card last."""
    make_directory(directory)
    files = {
        **tokenizers.files(),
        CONFIG: config.to_toml().encode(),
        WEIGHTS: weights_to_bytes(weights),
        CARD: card.encode(),
    }
    for name, content in files.items():
        path = directory / name
        if not path.exists() or path.read_bytes() != content:
            write_file(path, content)


def located(model: str | Path) -> Path:
    """The directory of a model: one that is there, else one that comes with dragoman, by its name."""
    here = Path(model)
    # a folder that merely has the name, of a corpus say, is not in the way
    is_run = any((here / part).exists() for part in (CONFIG, WEIGHTS, CHECKPOINTS))
    return here if is_run or str(model) not in in_the_box() else IN_THE_BOX / model


def in_the_box() -> list[str]:
    """The models that come with dragoman."""
    return sorted(path.parent.name for path in IN_THE_BOX.glob(f"*/{CONFIG}"))


def load_config(directory: Path) -> Config:
    _require_directory(directory)
    try:
        return Config.build(file=directory / CONFIG, saved=True)
    except ConfigError as error:  # which names the file
        raise ModelError(str(error)) from None


def tokenizer_names(joint: bool) -> tuple[str, str]:
    """The files of both sides."""
    return ("tokenizer.model", "tokenizer.model") if joint else ("source.model", "target.model")


def load_tokenizers(directory: Path, config: Config) -> Tokenizers:
    names = tokenizer_names(config.text.joint)
    loaded = {}
    for name in sorted(set(names)):
        try:
            loaded[name] = Tokenizer.from_bytes(_read(directory / name), config.text.normalization)
        except ModelError as error:
            raise ModelError(f"{directory / name}: {str(error).removeprefix(f'{directory / name}: ')}") from None
    return Tokenizers(loaded[names[0]], loaded[names[1]])


def load_bundle(directory: Path) -> Bundle:
    """A model directory, checked: its configuration, tokenizers and weights must fit each other."""
    config = load_config(directory)
    tokenizers = load_tokenizers(directory, config)
    sizes = (tokenizers.source.size, tokenizers.target.size)
    if sizes != (config.model.vocab_size, config.model.target_vocabulary):
        raise ModelError(
            f"{directory}: its tokenizers have {sizes[0]} and {sizes[1]} pieces, its config.toml says "
            f"{config.model.vocab_size} and {config.model.target_vocabulary}; restore the files that belong together"
        )
    path = directory / WEIGHTS
    expected, found = sum(parameter_counts(config.model).values()), _count_weights(path)
    if expected != found:  # before anything is allocated
        raise ModelError(f"{path}: holds {found:,} parameters, its config.toml describes {expected:,}")
    model = empty_model(config, torch.device("cpu"))
    try:
        weights = expanded(weights_from_bytes(_read(path), path))
    except (ModelError, RuntimeError) as error:  # RuntimeError: more or fewer scales than rows
        raise ModelError(f"{path}: {str(error).removeprefix(f'{path}: ')}; restore it or train again") from None
    set_weights(model, weights, path)
    broken = [name for name, tensor in named_weights(model).items() if not tensor.isfinite().all()]
    if broken:
        raise ModelError(f"{path}: {broken[0]} and {len(broken) - 1} more hold numbers that are not finite")
    return Bundle(config, tokenizers, model.eval())


class _Unfilled(TorchFunctionMode):
    """Draws no weights, which would be overwritten. The meta device draws none too, and imports for a second."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def empty_model(config: Config, device: torch.device) -> Model:
    """A model whose weights are still to be set: none is drawn, and chance stays as it was."""
    with device, _Unfilled():
        return build_model(config.model)


def _count_weights(path: Path) -> int:
    if not path.is_file():
        raise ModelError(f"{path}: missing; training writes it at its first save")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = without_scales(set(file.keys()))
            return sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in names)
    except Exception as error:
        raise ModelError(f"{path}: not a safetensors file ({error}); restore it or train again") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); is this a model directory?") from None


def _require_directory(directory: Path) -> None:
    if directory.is_file():
        raise ModelError(f"{directory}: is a file; give the model directory, {directory.parent}")
    if not directory.is_dir():
        raise ModelError(
            f"{directory}: no such model directory; train one with `dragoman train ... --out {directory}`"
            + (f", or take one that is there: {', '.join(in_the_box())}" if in_the_box() else "")
        )
    if not (directory / CONFIG).is_file():
        raise ModelError(f"{directory}: not a model directory (no {CONFIG}); give the --out of a training run")


# Checkpoints


def checkpoint_path(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:06d}"


def checkpoints(run: Path) -> list[Path]:
    """Oldest first. Those being written or removed have other names and are never chosen."""
    found = (path for path in (run / CHECKPOINTS).glob("step-*") if path.name.removeprefix("step-").isdecimal())
    return sorted(found, key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def remove_checkpoints(run: Path, *, keep: Collection[Path]) -> None:
    """All but those to keep."""
    for path in checkpoints(run):
        if path in keep:
            continue
        # renamed first: a half-removed directory must not look like a checkpoint
        doomed = path.with_name(f".{path.name}.removed")
        try:
            path.rename(doomed)
            after("rename", doomed)
        except OSError as error:
            raise disk_error(path, 0, error) from None
        shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(run: Path) -> None:
    """What a kill left of checkpoints being written or removed, and of encoded corpora."""
    for replaced in (run / CHECKPOINTS).glob(".step-*.replaced"):
        path = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))
        if not path.exists():  # what was to take its place never did
            replaced.rename(path)
    for leftover in (*(run / CHECKPOINTS).glob(".step-*"), *(run / "data").glob(".*")):
        shutil.rmtree(leftover, ignore_errors=True)


def write_checkpoint(path: Path, files: Mapping[str, bytes]) -> None:
    """All files, then their manifest, then one rename; one that is there already is put aside by another."""
    partial, replaced = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.replaced")
    size = sum(map(len, files.values()))
    manifest = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in files.items():
            _write_synced(partial / name, content)
        _write_synced(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        _sync_directory(partial)
        if path.exists():
            path.rename(replaced)
            after("rename", replaced)
        partial.rename(path)
        after("rename", path)
        _sync_directory(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise disk_error(path, size, error) from None


def read_checkpoint(path: Path, only: Collection[str] = ()) -> dict[str, bytes]:
    """Every file of a checkpoint, or only some, each checked against the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        files = {name: (path / name).read_bytes() for name in only or manifest}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: damaged checkpoint ({error})") from None
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != manifest.get(name):
            raise ModelError(f"{path}: damaged checkpoint ({name} is not what was saved)")
    return files
