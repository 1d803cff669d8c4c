"""The list of mutants itself: each can be applied, and names tests that exist."""

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, Mutant, read_mutants

MUTANTS = read_mutants()


def test_mutant_names_are_unique() -> None:
    names = [(mutant.area, mutant.name) for mutant in MUTANTS]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("area", sorted({mutant.area for mutant in MUTANTS}))
def test_mutants_can_be_applied(area: str) -> None:
    problems = {mutant.name: mutant.check(ROOT) for mutant in MUTANTS if mutant.area == area}
    assert {name: problem for name, problem in problems.items() if problem} == {}


@pytest.mark.parametrize("area", sorted({mutant.area for mutant in MUTANTS}))
def test_mutants_still_parse_and_name_tests_that_exist(area: str) -> None:
    for mutant in MUTANTS:
        if mutant.area != area:
            continue
        changed = (ROOT / mutant.file).read_text(encoding="utf-8").replace(mutant.old, mutant.new)
        if mutant.file.endswith(".py"):
            ast.parse(changed)
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if name:
                function = name.partition("[")[0].rpartition("::")[2]
                assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_a_mutant_that_cannot_be_applied_says_why(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = 1\nb = 1\n")
    (tmp_path / "test_code.py").write_text("")

    def problem(file: str, old: str, *tests: str) -> str:
        return Mutant("area", "name", file, old, "", tests).check(tmp_path)

    assert problem("code.py", "a = 1", "test_code.py::test_a") == ""
    assert problem("other.py", "a", "test_code.py") == "other.py does not exist"
    assert problem("code.py", " = 1", "test_code.py") == "its old text occurs 2 times in code.py, not once"
    assert problem("code.py", "a = 1") == "it names no test"
    assert problem("code.py", "a = 1", "test_other.py") == "test_other.py does not exist"
