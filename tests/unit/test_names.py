"""Names that a model misspells are copied from the source."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

import dragoman
from dragoman.decode.names import LONGEST, Names, find_names
from dragoman.decode.translator import Translator
from dragoman.text.words import KnownWords, WordList

KNOWN = KnownWords(
    WordList.of(["edward", "lives", "in", "moscow", "the", "of", "is", "here"]),
    WordList.of(["edward", "lebt", "in", "moskau", "der", "schnee", "von", "sneeden", "straße"]),
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


def test_compounds_of_known_words_are_no_names() -> None:
    known = KnownWords(WordList.of(["hafen", "stadt", "zeitung", "die", "rat"]), KNOWN.target)
    assert find_names("die Hafenstadt, Stadtzeitung und Zeitungsstadt", known) is None
    found = find_names("die Hafenratte, der Stadtrat und Hafen", known)
    assert found is not None
    assert found.unknown == ("Hafenratte", "Stadtrat"), "the control: parts that are not known, or too short"


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
    assert names_in(TEXT).excluding(["Sneden", "Haus"]).restore("Sneden und Snedenn") == "Sneden und Snowden"


def test_the_most_similar_name_is_meant() -> None:
    names = names_in("Tulfenov met Tulfenik")
    assert names.restore("Tulfenow traf Tulfenick") == "Tulfenov traf Tulfenik"


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("Bioinformatics is here.", "Bioinformatik lebt.", None),
        ("Edward lives here. Coronaviruses too.", "Coronaviren", None),
        ("Kickboxers In The Moscow Of Astrophysicists", "Kickboxer in Astrophysiker", None),
        ("Snowden is here.", "Sneden lebt.", "Snowden lebt."),  # as misspelt names do, it ends as the name does
        ("Edward of Bioinformatics is here.", "Bioinformatik", "Bioinformatics"),  # within a sentence: a name
    ],
)
def test_words_that_may_be_ordinary_are_changed_only_if_their_end_is_right(
    text: str, translation: str, expected: str | None
) -> None:
    assert names_in(text).restore(translation) == (expected or translation)


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("Die Snewdenstraße", "Die Snowdenstraße"),
        ("Die Schneidenstraße", "Die Schneidenstraße"),  # too different for a part of a word
        ("Die Snewdenhalle", "Die Snewdenhalle"),  # the rest is no word, so the whole may be none of them
    ],
)
def test_the_first_part_of_a_compound_is_corrected(translation: str, expected: str) -> None:
    assert names_in(TEXT).restore(f"{translation} in Latakia") == f"{expected} in Latakia"


def test_the_only_missing_name_is_the_only_unknown_word() -> None:
    names = names_in("Edward of Gulyk lives in Latakia.")
    assert names.restore("Edward von Gicek lebt in Latakia.") == "Edward von Gulyk lebt in Latakia."
    assert names.restore("Gicek, Gicek") == "Gicek, Gicek", "two names are missing"
    assert names.restore("Gicek und Gifek in Latakia") == "Gicek und Gifek in Latakia", "two words are unknown"
    assert names.restore("Gicen in Latakia") == "Gicen in Latakia", "another end"
    assert names.restore("Zifabrek in Latakia") == "Zifabrek in Latakia", "too different"
    for longer in ("Gicekstrek", "Giceknenek"):
        assert names.restore(f"{longer} in Latakia") == f"{longer} in Latakia", "too long"
    compound = find_names("Edward of Elbrige lives here.", KNOWN)
    assert compound is not None
    assert compound.restore("Elbrigstraße") == "Elbrigstraße", "its end is a word of its own"


def test_accents_are_parts_of_letters() -> None:
    text = unicodedata.normalize("NFD", "Edward of Ibrahimović lives here.")
    assert names_in(text).unknown == ("Ibrahimović",)
    assert names_in(text).restore("Ibrahimović") == "Ibrahimović"


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
    line = f"Please close the window. {MISSPELT}"
    parts = [*german.stream_text(line)]
    assert "".join(parts) == german.translate(line).text
    assert parts[-1].strip() == german.translate(MISSPELT).text, "a sentence with names comes as a whole"


def test_names_in_capitals_are_restored(german: Translator) -> None:
    assert "PROCTOR" in german.translate("WE MET PROCTOR IN THE CITY.").text
    assert "PROCTOR" not in german.translate("WE MET PROCTOR IN THE CITY.", restore_names=False).text, "the control"


def test_long_text_that_is_cut_keeps_its_names(german: Translator) -> None:
    translator = dragoman.load("en-de", "cpu", "float32")
    translator.cutter.longest = 14
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
