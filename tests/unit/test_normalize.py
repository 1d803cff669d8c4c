import re
import sys
import typing
import unicodedata
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.normalize import GROUP_SIZE, Normalization, is_blank, normalize, normalize_all

FORMS = typing.get_args(Normalization)
NO_BREAK_SPACES = "\u00a0\u2007\u202f"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
GAPS_AND_MARKS = st.text(
    st.sampled_from("ae \t\n\r\0\x1c\x85\xa0\u0301\u0308\u00a8\u2028\u2029\u2581_ﬁ\u3000\u2007\u202f\u2060\ufeff")
)


@pytest.mark.parametrize("form", FORMS)
@given(text=ANY_TEXT | GAPS_AND_MARKS)
def test_normalising_twice_changes_nothing(form: Normalization, text: str) -> None:
    once = normalize(text, form)
    assert normalize(once, form) == once


@pytest.mark.parametrize("form", FORMS)
def test_normalising_any_character_twice_changes_nothing(form: Normalization) -> None:
    every_character = map(chr, range(sys.maxunicode + 1))
    characters = (one for one in every_character if one.lower() != one or unicodedata.normalize("NFKC", one) != one)
    once = [normalize(f"a{character}\u0307", form) for character in characters]
    assert [text for text in once if normalize(text, form) != text] == []


@given(text=ANY_TEXT | GAPS_AND_MARKS)
def test_the_result_is_one_line_with_single_inner_spaces(text: str) -> None:
    result = normalize(text)
    assert all(char == " " or not (char.isspace() or unicodedata.category(char) == "Cc") for char in result)
    assert "  " not in result
    assert result == result.strip()
    assert "\u2581" not in result
    assert len(result.splitlines()) <= 1


@given(text=ANY_TEXT | GAPS_AND_MARKS)
def test_blank_text_normalises_to_nothing_in_every_form(text: str) -> None:
    assert {is_blank(text)} == {normalize(text, form) == "" for form in FORMS if form != "none"}


@given(text=ANY_TEXT | GAPS_AND_MARKS)
def test_white_space_and_controls_become_one_space(text: str) -> None:
    gap = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
    assert normalize(text) == gap.sub(" ", unicodedata.normalize("NFC", text).replace("\u2581", "_")).strip()


@given(text=ANY_TEXT | GAPS_AND_MARKS)
def test_nbsp_forms_keep_no_break_spaces_and_change_nothing_else(text: str) -> None:
    composed = unicodedata.normalize("NFC", text).replace("\u2581", "_")
    gaps = {char for char in composed if char.isspace() or unicodedata.category(char) == "Cc"} - set(NO_BREAK_SPACES)
    spaced = "".join(" " if char in gaps else char for char in composed)
    kept = normalize(text, "nfc-nbsp")
    assert kept == re.sub(" +", " ", spaced).strip(f" {NO_BREAK_SPACES}")
    assert normalize(kept) == normalize(text)
    assert normalize(text, "nfc-nbsp-lowercase") == unicodedata.normalize("NFC", kept.lower())


@pytest.mark.parametrize("form", FORMS)
@given(text=st.text(st.sampled_from("ab  \u2581\u0308Ä\u00a0\t"), max_size=8))
def test_the_shortcut_for_plain_lines_changes_no_result(form: Normalization, text: str) -> None:
    with mock.patch("dragoman.text.normalize._is_normal", return_value=False):
        in_full = normalize(text, form)
    assert normalize(text, form) == in_full


@pytest.mark.parametrize("form", FORMS)
@given(texts=st.lists(st.text(st.sampled_from("ab  \u2581\u0308Ä\u00a0\t"), max_size=4), max_size=2 * GROUP_SIZE))
def test_many_texts_are_normalised_as_each_one_is(form: Normalization, texts: list[str]) -> None:
    assert normalize_all(texts, form) == [normalize(text, form) for text in texts]


def test_texts_that_need_no_change_are_examined_together() -> None:
    with mock.patch("dragoman.text.normalize.normalize") as one:
        assert normalize_all(["a b", "Ä"] * GROUP_SIZE) == ["a b", "Ä"] * GROUP_SIZE
    one.assert_not_called()


def test_normalisation_examples() -> None:
    assert normalize("a  b") == "a b"
    assert normalize(" a ") == "a"
    assert normalize("Straße IN İzmir", "nfc-lowercase") == "straße in i̇zmir"
    assert normalize("𝕬 ﬁne", "nfkc-lowercase") == "a fine"
    assert normalize("  cafe\u0301\t\u2028 au\x00\x85lait \r") == "caf\u00e9 au lait"
    assert normalize("a\u2581b") == "a_b"
    assert normalize("ﬁne ２") == "ﬁne ２"
    assert normalize("ﬁne ２", "nfkc") == "fine 2"
    assert (
        normalize("«\u00a0Vraiment\u202f?\u00a0»  10\u2007000\n", "nfc-nbsp")
        == "«\u00a0Vraiment\u202f?\u00a0» 10\u2007000"
    )
    assert normalize("«\u00a0Vraiment\u202f?\u00a0»  10\u2007000\n") == "« Vraiment ? » 10 000"
    assert normalize("\u00a0 É\u00a0 \u202f\tb \u2007", "nfc-nbsp-lowercase") == "é\u00a0 \u202f b"
    for form in FORMS:
        assert normalize("a\u2060b\ufeffc", form) == "a\u2060b\ufeffc"  # no width, no white space
    assert normalize("zero\u200bwidth") == "zero\u200bwidth"  # a format character, neither space nor control
