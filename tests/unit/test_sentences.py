"""Where sentences end, and that nothing is lost between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.sentences import sentences


@pytest.mark.parametrize(
    "expected",
    [
        ["Hello. ", "How are you? ", "I am fine!"],
        ["One sentence only"],
        ["It cost 3.5 million. ", "That is much."],
        ['He said: "I am tired." ', "Then he left."],
        ["(He left.) ", "“Why?” ", "Nobody knows…  ", "2011 was better."],
        ["今日は。", "元気ですか？", "はい"],
        ["Wirklich?! ", "Ja."],
        ["สวัสดี. ", "ครับ"],  # letters that have no case
    ],
)
def test_sentences_end(expected: list[str]) -> None:
    assert sentences("".join(expected)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "Mr. Smith met Dr. Jones and Prof. Miller.",
        "J. S. Bach was born in Eisenach.",
        "The U.S. Congress met at 3 p.m. Eastern time.",
        "Am 3. Oktober ist frei.",
        "Well... maybe.",
        "See www.example.com. for more",
        "He asked why? and left",
        "...",
        "",
        "   ",
    ],
)
def test_sentences_are_not_cut(line: str) -> None:
    assert sentences(line) == ([line] if line else [])


@given(st.text(alphabet='aB 1.!?…。"” \t', max_size=40))
def test_nothing_is_lost(line: str) -> None:
    found = sentences(line)
    assert "".join(found) == line
    assert "" not in found
