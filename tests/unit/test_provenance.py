"""Provenance of a run: the hash of every corpus file and the commit of the source, also in every checkpoint."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.config import Config
from dragoman.training.checkpoint_files import checkpoints, read_checkpoint
from dragoman.training.loop import Trainer, train
from tests.survival import SETTINGS, Corpus, write_corpus

GIT = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing it would take most of the time."""
    monkeypatch.setattr(Trainer, "_write_reports", lambda self, reason: None)


def trained(corpus: Corpus, run: Path, *settings: str, **data: list[str]) -> list[dict[str, Any]]:
    """The provenance of the run and of each checkpoint."""
    steps = ("train.max_steps=2", "train.save_every=1", "train.average=1", "train.seed=7")
    train(Config.build("tiny", None, [*SETTINGS, *steps, *settings], data={**corpus.data, **data}), run)
    starts: list[dict[str, Any]] = json.loads((run / "provenance.json").read_bytes())["starts"]
    saved = [read_checkpoint(path)["provenance.json"] for path in checkpoints(run)]
    assert len(saved) == 2
    return [*starts, *map(json.loads, saved)]


def test_hash_of_every_corpus_file_is_recorded(tmp_path: Path) -> None:
    corpus, tests = write_corpus(tmp_path / "corpus"), write_corpus(tmp_path / "tests", pairs=9)
    more = {"test_source": [str(tests.source)], "test_target": [str(tests.target)]}
    paths = [*vars(corpus).values(), tests.source, tests.target]
    hashes = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    assert len(set(hashes.values())) == 6
    for told in trained(corpus, tmp_path / "run", **more):
        found = {name: digest for files in told["data"].values() for name, digest in files.items()}
        assert found == hashes
        assert told["seed"] == 7
        assert "seed = 7" in told["configuration"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that stands in for the checkout of the package."""
    package = tmp_path / "checkout" / "dragoman"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for words in (["init"], ["add", "."], ["commit", "-m", "All"]):
        git(package.parent, *words)
    monkeypatch.setattr(dragoman, "__file__", str(package / "__init__.py"))
    return package


def git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    command = ["git", "-C", str(directory), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@GIT
def test_commit_and_uncommitted_changes_are_recorded(tmp_path: Path, checkout: Path) -> None:
    corpus, commit = write_corpus(tmp_path / "corpus"), git(checkout, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert {told["git_commit"] for told in trained(corpus, tmp_path / "clean")} == {commit}
    (checkout / "__init__.py").write_text("changed")
    assert {told["git_commit"] for told in trained(corpus, tmp_path / "changed")} == {f"{commit} with changes"}


@GIT
def test_a_checkout_around_an_installed_package_is_not_its_source(tmp_path: Path, checkout: Path) -> None:
    git(checkout, "rm", "--cached", "__init__.py")
    corpus = write_corpus(tmp_path / "corpus")
    assert {told["git_commit"] for told in trained(corpus, tmp_path / "run")} == {None}
