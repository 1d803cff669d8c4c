"""What commands share that add a file to a model after its training."""

from pathlib import Path

from dragoman.errors import ConfigError


def resolve_extensible(model: Path, out: Path | None) -> Path:
    """The directory of a model to add something to: to a copy in `out`, or to the model itself."""
    from dragoman import bundle, hub

    directory = bundle.resolve_model(model)
    if out is None and directory.parent == bundle.BUNDLED_MODELS:
        raise ConfigError(f"--model {model}: is part of the package; give --out")
    if out is None and hub.is_on_hub(model):
        raise ConfigError(f"--model {hub.hub_name(model)}: is a download; give --out")
    if out is not None and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise ConfigError(f"--out {out}: is not an empty directory; give another one")
    return directory
