"""The provenance of a run: versions, data, seed, commit, machine. Written into its directory and every checkpoint."""

import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import dragoman
from dragoman.bundle import WEIGHTS, resolve_model
from dragoman.config import Config, DataConfig
from dragoman.data.corpus import file_hash
from dragoman.files import write_file
from dragoman.tasks.choice import task_of
from dragoman.training.checkpoint import PROVENANCE

PACKAGES = ("torch", "numpy", "sentencepiece", "safetensors", "sacrebleu", "triton")


def describe(config: Config, corpora: DataConfig, device: torch.device, world: int) -> dict[str, Any]:
    """Everything that determines a run, with the SHA-256 of every corpus file."""
    task = task_of(config)
    sides = (*task.files, *task.test_files)
    return {
        "dragoman": dragoman.__version__,
        "git_commit": _commit(Path(dragoman.__file__).parent),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "seed": config.train.seed,
        "start_from": _origin(config.train.start_from),
        "configuration": config.to_toml(),
        "data": {side: {name: file_hash(Path(name)) for name in getattr(corpora, side)} for side in sides},
        "machine": {
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "processes": world,
            "threads": torch.get_num_threads(),
        },
        "command": [_program(sys.argv[0]), *sys.argv[1:]],
    }


def source_commit() -> str | None:
    """The commit of dragoman itself, if it runs from a checkout."""
    return _commit(Path(dragoman.__file__).parent)


def _origin(start_from: str) -> dict[str, str] | None:
    """The initial model of a run, identified by its weights: the directory may change or disappear."""
    path = resolve_model(start_from) / WEIGHTS if start_from else None
    if path is None:
        return None
    return {"model": start_from, "sha256": file_hash(path) if path.exists() else "no longer there"}


def record(run: Path, described: dict[str, Any], step: int) -> None:
    """Append a start of the run to DIR/provenance.json."""
    path = run / PROVENANCE
    starts = json.loads(path.read_bytes())["starts"] if path.exists() else []
    starts.append({"at": datetime.now(UTC).isoformat(timespec="seconds"), "from_step": step, **described})
    write_file(path, json.dumps({"starts": starts}, indent=1, ensure_ascii=False).encode())


def _program(path: str) -> str:
    """The name of the program without its path; `python -m dragoman` is dragoman."""
    name = Path(path).name
    return "dragoman" if name == "__main__.py" else name


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit(directory: Path) -> str | None:
    """The commit of a checkout, marked if it has uncommitted changes."""
    git = shutil.which("git")
    if git is None:
        return None
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}

    def ask(*words: str) -> str | None:
        done = subprocess.run([git, "-C", str(directory), *words], capture_output=True, text=True, env=environment)
        return done.stdout.strip() if done.returncode == 0 else None

    if ask("ls-files", "__init__.py") != "__init__.py":
        return None  # installed somewhere inside another project's checkout
    commit = ask("rev-parse", "HEAD")
    return f"{commit} with changes" if commit and ask("status", "--porcelain", "--", ".") else commit
