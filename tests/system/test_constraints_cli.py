"""`dragoman translate` with constraints: what it prints, and what it refuses."""

import json

import pytest

from tests.forked import shared_server

TEXT = "The house is big and the house is old."


def translate(*words: str) -> tuple[int, str, str]:
    ended = shared_server().run(["translate", *words])
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.slow
def test_constraints_change_the_translation() -> None:
    _, free, _ = translate(TEXT)
    assert free == "Das Haus ist groß und das Haus ist alt.\n"
    code, shown, _ = translate(TEXT, "--banned", "Haus", "--banned", "alt")
    assert code == 0
    assert not {"Haus", "alt", "alt."} & set(shown.split())
    code, shown, _ = translate(TEXT, "--prefix", "Das Geb", "--json")
    record = json.loads(shown)
    assert record["translation"].startswith("Das Gebäude ist")
    assert record["status"] == "translated"
    assert translate(TEXT, "--prefix", "Das Geb", "--beam", "1")[1].startswith("Das Geb")


def test_wrong_constraints_are_refused() -> None:
    for words, message in (
        (["a", "b", "--prefix", "x"], "--prefix: begins the translation of one text; give exactly one as an argument"),
        (["a", "--banned", ""], "decode.banned: a word is blank; leave it out"),
    ):
        code, shown, errors = translate(*words)
        assert code == 2
        assert shown == ""
        assert errors == f"dragoman: {message}\n"
