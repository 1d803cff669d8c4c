"""Names that a model misspells are copied from the source."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import dragoman
from dragoman.decode.names import LONGEST, Names, find_names
from dragoman.decode.translator import Translator
from dragoman.text.words import KnownWords, WordList

KNOWN = KnownWords(
    WordList.of(["edward", "lives", "in", "moscow", "the", "of"]),
    WordList.of(["edward", "lebt", "in", "moskau", "der", "schnee", "von", "sneeden"]),
)
TEXT = "Edward Snowden lives in Latakia."
MISSPELT = "The Toffee makers of Latakia met Proctor in Geisingen."  # the bundled model misspells three of four names


@pytest.fixture(scope="module")
def german() -> Translator:
    return dragoman.load("en-de", "cpu", "float32")  # the same words on every processor


def names_in(text: str) -> Names:
    names = find_names(text, KNOWN)
    assert names is not None
    return names


def test_unknown_words_with_a_capital_are_names() -> None:
    assert names_in(TEXT).unknown == ("Snowden", "Latakia")
    assert find_names("Edward lives in Moscow.", KNOWN) is None
    assert find_names("the gizmo of a Foo", KNOWN) is None, "small letters, and too few"
    assert find_names(f"A{'b' * LONGEST}", KNOWN) is None, "too many"


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("Edward Sneden lebt in Latakien.", "Edward Snowden lebt in Latakia."),
        ("Edward Snedens Haus", "Edward Snowdens Haus"),
        ("„Sneden-Haus“ (Snoden)", "„Snowden-Haus“ (Snowden)"),
    ],
)
def test_a_misspelt_name_is_copied(translation: str, expected: str) -> None:
    names = names_in(TEXT)
    assert names.restore(translation) == expected
    assert names.restore(expected) == expected, "once is enough"


@pytest.mark.parametrize(
    "translation",
    [
        "Edward Sneeden lebt in Moskau.",  # known
        "Snowdens Snowdenhaus in Latakia",  # inflected, a compound, right
        "die snedenschen Dinge",  # no capital
        "Edward Zabriskie Sn",  # does not resemble a name, too short
    ],
)
def test_other_words_stay(translation: str) -> None:
    assert names_in(TEXT).restore(translation) == translation


def test_words_that_were_asked_for_stay() -> None:
    assert names_in(TEXT).sparing(["Sneden", "Haus"]).restore("Sneden und Snedenn") == "Sneden und Snowden"


def test_the_most_similar_name_is_meant() -> None:
    names = names_in("Tulfenov met Tulfenik")
    assert names.restore("Tulfenow traf Tulfenick") == "Tulfenov traf Tulfenik"


def test_very_many_names_take_little_time() -> None:
    names = names_in(" ".join(f"Snow{'abcdefghij'[n % 10]}{'klmnop'[n % 6]}den" for n in range(2_000)))
    start = time.process_time()
    names.restore("Sneden " * 200)
    assert time.process_time() - start < 20


# With a model


def test_names_of_a_sentence_are_restored(german: Translator) -> None:
    with_names, without = (german.translate(MISSPELT, restore_names=each) for each in (True, False))
    assert all(name in with_names.text for name in ("Latakia", "Proctor", "Geisingen"))
    assert not any(name in without.text for name in ("Latakia", "Proctor", "Geisingen")), "the control"
    assert with_names.tokens == without.tokens, "what the model wrote"
    assert with_names.score == without.score


def test_every_alternative_and_stream_has_the_names(german: Translator) -> None:
    result = german.translate(MISSPELT, n_best=3)
    assert all("Proctor" in each.text for each in result.alternatives)
    assert "".join(german.stream_text(MISSPELT)) == german.translate(MISSPELT).text


def test_names_in_capitals_are_restored(german: Translator) -> None:
    assert "PROCTOR" in german.translate("WE MET PROCTOR IN THE CITY.").text
    assert "PROCTOR" not in german.translate("WE MET PROCTOR IN THE CITY.", restore_names=False).text, "the control"


def test_long_text_that_is_cut_keeps_its_names(german: Translator) -> None:
    translator = dragoman.load("en-de", "cpu", "float32")
    translator._cutter.longest = 14
    result = translator.translate(MISSPELT)
    assert result.status == "split"
    assert "Geisingen" in result.text


def test_a_term_a_prefix_and_banned_words_come_first(german: Translator) -> None:
    def translations(**options: Sequence[object]) -> str:
        return german.translate("We met Proctor in the city.", **options).text  # type: ignore[call-overload]

    assert "Proctor" in translations()
    assert "Proktor" in translations(glossary=[("Proctor", "Proktor")])
    assert translations(prefix="Proktor").startswith("Proktor")
    assert "Proctor" not in translations(banned=["Proctor"])


def test_a_model_without_lists_of_words_restores_no_names(german: Translator, quick_run: Path) -> None:
    assert german._bundle.known_words is not None
    translator = dragoman.load(str(quick_run), "cpu")
    assert translator._bundle.known_words is None
    assert translator.translate("Alpha Beta", restore_names=True).status == "translated"
