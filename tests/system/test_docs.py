"""The commands of README and docs are run as written, on a smaller corpus and for fewer steps."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import shared_server

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
QUICKER = {
    "corpus": ["--size", "200"],
    "train": [item for setting in ("train.max_steps=6", "train.save_every=6", "text.vocab_size=400", "model.d_model=32",
              "model.num_layers=1", "train.valid_sentences=5", "decode.max_extra=2") for item in ("--set", setting)],
}  # fmt: skip


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def run_command(line: str, place: Path) -> None:
    name, command, *arguments = shlex.split(line)
    assert name == "dragoman"
    done = shared_server().run([command, *arguments, *QUICKER.get(command, [])], cwd=place)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    assert done.stdout.strip() or "--output" in arguments, line


def run_program(program: str, place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, f"{program}\n{done.stderr}"


RUNNABLE = [page for page in PAGES if blocks(page, "sh") or blocks(page, "python")]


@pytest.mark.parametrize("page", RUNNABLE)
@pytest.mark.slow
def test_commands_and_python_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, block in re.findall(r"```(sh|python)\n(.*?)```", text, flags=re.DOTALL):
        if language == "python":
            run_program(block, tmp_path)
            continue
        for line in block.splitlines():
            run_command(line, tmp_path)
    if "out.de" in "".join(blocks(page, "sh")):
        assert (tmp_path / "out.de").read_bytes().count(b"\n") == 1_000


def test_pages_have_commands_to_run() -> None:
    """The control: README and the tutorial are among those above, and their commands are found."""
    assert {"README.md", "docs/tutorial.md", "docs/python.md", "docs/translating.md"} <= set(RUNNABLE)
    assert min(len(blocks(page, "sh")) for page in ("README.md", "docs/tutorial.md")) >= 2


@pytest.mark.slow
def test_failing_command_is_detected(tmp_path: Path) -> None:
    """The control: a command of the tutorial where nothing has been trained."""
    translate, *_ = blocks("docs/tutorial.md", "sh")[2].splitlines()
    assert shared_server().run(shlex.split(translate)[1:], cwd=tmp_path).returncode == 4


def string_literals() -> list[str]:
    """Every literal piece of text in the package."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quoted_messages() -> list[str]:
    """The messages that troubleshooting.md explains."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return [row.split(" | ")[0].removeprefix("| ") for row in page.splitlines() if row.startswith("| `")]


def share_found(message: str, source: str) -> float:
    """The share of the word pairs of a message that is in the source; the rest are names and numbers."""
    words = message.strip("`").split()
    pairs = [" ".join(words[number : number + 2]) for number in range(len(words) - 1)]
    return sum(pair in source for pair in pairs) / len(pairs)


def test_messages_in_troubleshooting_exist_in_the_source() -> None:
    source = "\n".join([*string_literals(), (ROOT / "Makefile").read_text(encoding="utf-8")])
    messages = quoted_messages()
    assert len(messages) > 25
    assert [message for message in messages if share_found(message, source) < 0.3] == []
    assert share_found("`the moon is too bright; close the curtains`", source) < 0.2, "the control"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("setup", "demo", "test", "test-slow", "check", "bench"):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
