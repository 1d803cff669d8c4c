"""Models of the Hugging Face hub, from a cache as huggingface_hub makes it: no hub can be reached in tests."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import hub
from dragoman.bundle import load_bundle
from dragoman.errors import ConfigError, ModelError
from tests.exporting import random_model
from tests.marian import marian_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(home: Path, name: str, folder: Path) -> Path:
    """Put a folder into the cache: files are links to blobs, and `main` is a commit."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot, blobs, refs = repository / "snapshots" / COMMIT, repository / "blobs", repository / "refs"
    for place in (snapshot, blobs, refs):
        place.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    shared = home / "hub" / "blobs" / "ab"
    shared.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.copy(path, shared / f"{number:064}" if path.suffix == ".safetensors" else blobs / f"{number:040}")
        if path.suffix == ".safetensors":  # large files are shared by all models
            (blobs / f"{number:040}").symlink_to(shared / f"{number:064}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"{number:040}")
    return snapshot


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: huggingface_hub reads its environment when it is imported."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_model_is_loaded_by_its_name(tmp_path: Path) -> None:
    cached(tmp_path, "somebody/small", random_model(tmp_path / "model"))
    here = run(tmp_path, "translate", "--model", str(tmp_path / "model"), "the cat sat", "--json")
    there = run(tmp_path, "translate", "--model", "hf://somebody/small", "the cat sat", "--json")
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert run(tmp_path, "info", "--model", "hf://somebody/small@main").returncode == 0
    assert run(tmp_path, "shortlist", "--model", "hf://somebody/small", "--source", "x").stderr == (
        "dragoman: --model hf://somebody/small: is a download; give --out\n"
    )
    unknown = run(tmp_path, "info", "--model", "hf://somebody/else")
    assert unknown.returncode == 4
    assert unknown.stderr.startswith("dragoman: hf://somebody/else: cannot be downloaded (LocalEntryNotFoundError: ")
    assert unknown.stderr.endswith("check the name and the network\n")
    assert unknown.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_marian_model_is_imported_by_its_name(tmp_path: Path) -> None:
    cached(tmp_path, "somebody/opus-mt-en-de", marian_folder(tmp_path / "theirs"))
    done = run(tmp_path, "import", "huggingface", "hf://somebody/opus-mt-en-de", str(tmp_path / "ours"))
    assert done.returncode == 0, done.stderr
    assert "checked: 5 sentences give the same tokens in transformers" in done.stdout
    assert (tmp_path / "ours" / "card.md").read_text().startswith("# opus-mt-en-de\n")
    name = "hf://somebody/opus-mt-en-de"
    wrong = run(tmp_path, "translate", "--model", name, "the cat")
    assert wrong.returncode == 4
    assert wrong.stderr == f"dragoman: {name}: not a model of dragoman; try `dragoman import huggingface {name} OUT`\n"


def test_links_lead_nowhere_but_into_the_cache_of_the_model(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "somebody/small", random_model(tmp_path / "model"))
    assert load_bundle(snapshot).config.model.d_model == 32
    (snapshot / "config.toml").unlink()
    (snapshot / "config.toml").symlink_to(tmp_path / "model" / "config.toml")
    with pytest.raises(ModelError, match=r"config\.toml: links to a file outside of its directory; copy the file"):
        load_bundle(snapshot)


def test_names_without_an_owner_are_refused() -> None:
    for name in ("hf://small", "hf://a/b/c", "hf://"):
        with pytest.raises(ConfigError, match=r"not the name of a model; write hf://owner/name$"):
            hub.download(name, ("config.toml",))


def test_without_the_package_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = r"^hf://a/b: huggingface_hub is not installed; pip install \"dragoman\[hub\]\"$"
    with pytest.raises(ConfigError, match=message):
        hub.download("hf://a/b", ("other.toml",))
