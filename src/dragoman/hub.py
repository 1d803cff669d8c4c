"""Models of the Hugging Face hub: hf://owner/name, hf://owner/name@revision. Loading connects to nothing else."""

import functools
import os
from pathlib import Path, PurePath

from dragoman.errors import ConfigError, ModelError

PREFIX = "hf:/"  # paths lose the second slash


def is_on_hub(model: str | os.PathLike[str]) -> bool:
    return PurePath(model).as_posix().startswith(PREFIX)


def hub_name(model: str | os.PathLike[str]) -> str:
    """The same name with both slashes: hf://owner/name, perhaps with a revision."""
    return "hf://" + PurePath(model).as_posix().removeprefix(PREFIX).strip("/")


def download(model: str | os.PathLike[str], files: tuple[str, ...]) -> Path:
    """Return the folder with these files of a model, from the cache of huggingface_hub or from the hub."""
    return _download(hub_name(model), files)


@functools.cache  # a command asks for its model several times
def _download(model: str, files: tuple[str, ...]) -> Path:
    name, _, revision = model.removeprefix("hf://").partition("@")
    try:
        import huggingface_hub
    except ImportError:
        raise ConfigError(f'{model}: huggingface_hub is not installed; pip install "dragoman[hub]"') from None
    if name.count("/") != 1:
        raise ConfigError(f"{model}: not the name of a model; write hf://owner/name")
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=list(files)))
    except Exception as error:  # its own types, and those of two HTTP libraries
        reason = "".join(filter(str.isprintable, " ".join(str(error).split())))[:200]
        raise ModelError(
            f"{model}: cannot be downloaded ({type(error).__name__}: {reason}); check the name and the network"
        ) from None


def cache_of(folder: Path) -> tuple[Path, ...]:
    """Where the files of a snapshot in huggingface_hub's cache lie: they are links. Empty for other folders."""
    repository = folder.absolute().parent.parent
    is_snapshot = folder.absolute().parent.name == "snapshots" and repository.name.startswith("models--")
    return (repository, repository.parent / "blobs") if is_snapshot else ()  # some blobs are shared by all models
