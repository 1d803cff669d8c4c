"""docs/reliability.md names existing tests and lists all forty promises."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    files = list((ROOT / "tests").rglob("*.py"))
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    existing = set(re.findall(r"^def (test_\w+)\(", source, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 80
    assert sorted(named - existing) == []
    for path in re.findall(r"`((?:tests/)\S+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path


def test_all_forty_promises_are_listed() -> None:
    listed: set[int] = set()
    for cell in re.findall(r"^\| ([\d, to]+) \|", PAGE, re.MULTILINE):
        first, _, last = cell.partition(" to ")
        numbers = range(int(first), int(last) + 1) if last else map(int, cell.split(","))
        listed.update(numbers)
    assert sorted(listed) == list(range(1, 41))
