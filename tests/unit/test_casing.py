"""Text in capitals: what is, how it is read, and that its translation is in capitals again."""

import pytest

import dragoman
from dragoman.config import TextConfig
from dragoman.decode.translator import Translator
from dragoman.text.casing import Recaser, is_in_capitals, knows_case
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.words import WordList

TEXT = [
    "The house is red and Tom sees the house.",
    "Maria sees the red house and the EU.",
    "Tom and Maria see Berlin, and the EU is in Berlin.",
    "Don't the red dogs see the house? Tom doesn't.",
] * 3


@pytest.fixture(scope="module")
def recaser() -> Recaser:
    return Recaser(Tokenizer.train(TEXT, TextConfig(vocab_size=500)))


@pytest.fixture(scope="module")
def german() -> Translator:
    return dragoman.load("en-de", "cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("THE HOUSE", True), ("NO 1 EXIT IN 3 DAYS!", True), ("ДОМ БОЛЬШОЙ", True),
        ("The House", False), ("NATO", False), ("A B C D", False), ("1234", False), ("", False),
        ("the EU AND US", False),
    ],
)  # fmt: skip
def test_several_words_without_small_letters_are_in_capitals(text: str, expected: bool) -> None:
    assert is_in_capitals(text) is expected


def test_words_are_written_as_the_vocabulary_knows_them(recaser: Recaser) -> None:
    assert recaser.recase("THE RED HOUSE AND TOM!") == "The red house and Tom!"
    assert recaser.recase("MARIA SEES BERLIN. THE EU IS RED.") == "Maria sees Berlin. The EU is red."
    assert recaser.recase("“THE HOUSE: 3 DOGS”") == "“The house: 3 dogs”"


def test_unknown_words_are_names(german: Translator) -> None:
    """`proctor` takes fewer pieces of this vocabulary than `Proctor`."""
    tokenizer, text = german.tokenizers.source, "WE MET PROCTOR IN THE CITY."
    assert (
        Recaser(tokenizer, WordList.of(["we", "met", "in", "the", "city"])).recase(text)
        == "We met Proctor in the city."
    )
    assert Recaser(tokenizer).recase(text) == "We met proctor in the city.", "the control"


def test_other_text_stays_as_it_is(recaser: Recaser) -> None:
    for text in ("The HOUSE is RED", "NATO", "3 %", ""):
        assert recaser.recase(text) == text


def test_only_subword_vocabularies_with_case_tell_how_words_are_written() -> None:
    for text, expected in (
        (TextConfig(vocab_size=400), True),
        (TextConfig(vocab_size=400, model="unigram"), True),
        (TextConfig(vocab_size=400, model="char"), False),
        (TextConfig(vocab_size=400, normalization="nfc-lowercase"), False),
    ):
        assert knows_case(Tokenizer.train(TEXT, text)) is expected


def test_capitals_are_translated_into_capitals(german: Translator) -> None:
    text = "The store is closed today."
    plain, result = german.translate([text, text.upper()])
    assert result.text == plain.text.upper() != plain.text
    assert result.source == text.upper()
    assert result.tokens == plain.tokens, "what the model wrote"
    as_it_is = german.translate(text.upper(), recase=False)
    assert as_it_is.text != result.text, "the control"


def test_sentences_are_in_capitals_by_themselves(german: Translator) -> None:
    first, second = "Please close the window.", "Tom is asleep."
    whole = german.translate(f"{first.upper()} {second}", split="sentences").text
    assert whole == f"{german.translate(first).text.upper()} {german.translate(second).text}"


def test_every_alternative_and_every_part_of_a_stream_is_in_capitals(german: Translator) -> None:
    text = "PLEASE CLOSE THE WINDOW."
    result = german.translate(text, n_best=3)
    assert all(each.text.isupper() for each in result.alternatives)
    assert len({each.text for each in result.alternatives}) == 3
    parts = [*german.stream_text(text)]
    assert "".join(parts) == result.text
    assert all(part == part.upper() for part in parts)


def test_long_text_in_capitals_is_translated_in_parts() -> None:
    translator = dragoman.load("en-de", "cpu")
    translator._cutter.longest = 12
    result = translator.translate(
        "THE COMMITTEE WILL VOTE ON THE REPORT TOMORROW, AND THE COUNCIL WILL ADOPT IT ON MONDAY."
    )
    assert result.status == "split"
    assert result.text.isupper()
    assert "KOMMISSION" in result.text or "AUSSCHUSS" in result.text
