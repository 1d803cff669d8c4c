"""Models of the Hugging Face hub: hf://owner/name, hf://owner/name@revision. Nothing else here opens a connection."""

import functools
import os
from pathlib import Path

from dragoman.errors import ConfigError, ModelError

PREFIX = "hf:/"  # paths lose the second slash


def is_on_hub(model: str | os.PathLike[str]) -> bool:
    return os.fspath(model).startswith(PREFIX)


def download(model: str | os.PathLike[str], files: tuple[str, ...]) -> Path:
    """Return the folder with these files of a model, from the cache of huggingface_hub or from the hub."""
    return _download(os.fspath(model), files)


@functools.cache  # a command asks for its model several times
def _download(model: str, files: tuple[str, ...]) -> Path:
    name, _, revision = model.removeprefix(PREFIX).strip("/").partition("@")
    try:
        import huggingface_hub
    except ImportError:
        raise ConfigError(f'hf://{name}: huggingface_hub is not installed; pip install "dragoman[hub]"') from None
    if name.count("/") != 1:
        raise ConfigError(f"hf://{name}: not the name of a model; write hf://owner/name")
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=list(files)))
    except Exception as error:  # its own types, and those of two HTTP libraries
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"hf://{name}: cannot be downloaded ({type(error).__name__}: {reason}); check the name and the network"
        ) from None


def cache_of(folder: Path) -> Path | None:
    """The part of huggingface_hub's cache that a snapshot of a model lies in: its files are links to others there."""
    repository = folder.absolute().parent.parent
    is_snapshot = folder.absolute().parent.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_snapshot else None
