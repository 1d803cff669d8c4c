"""What README shows is run as it stands, on a smaller corpus and for fewer steps."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import the_server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKER = {
    "generate": ["--size", "200"],
    "train": [item for setting in ("train.max_steps=6", "train.save_every=6", "text.vocab_size=400", "model.d_model=32",
              "model.num_layers=1", "train.valid_sentences=5", "decode.max_extra=2") for item in ("--set", setting)],
}  # fmt: skip


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which README's commands have been run, one after the other."""
    place = tmp_path_factory.mktemp("readme")
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) >= 8
    for line in commands:
        name, command, *arguments = shlex.split(line)
        assert name == "dragoman"
        done = the_server().run([command, *arguments, *QUICKER.get(command, [])], cwd=place)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout.strip() or "--output" in arguments, line
    return place


@pytest.mark.slow
def test_the_commands_of_readme(place: Path) -> None:
    assert (place / "out.de").read_bytes().count(b"\n") == 1_000


@pytest.mark.parametrize("number", range(len(blocks("python"))))
@pytest.mark.slow
def test_the_python_of_readme(place: Path, number: int) -> None:
    done = subprocess.run([sys.executable, "-c", blocks("python")[number]], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_the_make_targets_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("setup", "demo", "test", "test-slow", "check", "bench"):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
