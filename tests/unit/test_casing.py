"""Text in capitals: what is, how it is read, and that its translation is in capitals again."""

import unicodedata

import pytest

import dragoman
from dragoman.config import TextConfig
from dragoman.decode.translator import Translator
from dragoman.text.casing import LONGEST_CACHED, Recaser, in_capitals, is_in_capitals, knows_case, lower_capitals
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("STOP! THE “HOUSE” IS RED. “THE EU?” (THE DOG)", "Stop! The “house” is red. “The EU?” (The dog)"),
        ("THE HOUSE 3. THE EU, 4 DOGS", "The house 3. The EU, 4 dogs"),
        ("3 DOGS SEE TOM", "3 dogs see Tom"),
        ("THE ...THE", "The ...the"),
    ],
)
def test_sentences_begin_with_a_capital(recaser: Recaser, text: str, expected: str) -> None:
    assert recaser.recase(text) == expected


def test_letters_with_accents_are_one_letter(german: Translator) -> None:
    recaser = german.cutter._recaser
    assert recaser is not None
    composed = recaser.recase("BÜRO UND TÜR")
    assert recaser.recase(unicodedata.normalize("NFD", "BÜRO UND TÜR")) == composed
    assert "Ü" not in composed


def test_words_with_an_apostrophe_are_known_by_their_parts(german: Translator) -> None:
    recaser = german.cutter._recaser
    assert recaser is not None
    assert recaser.recase("PLEASE DON'T TOUCH THE DOG’S FOOD.") == "Please don't touch the dog’s food."


def test_words_of_any_length_are_read(recaser: Recaser) -> None:
    long = "AB" * LONGEST_CACHED
    assert recaser.recase(f"THE {long} HOUSE").split()[2] == "house"
    assert recaser.recase(f"THE {long} HOUSE").lower() == f"the {long.lower()} house"


def test_unknown_words_are_names(german: Translator) -> None:
    """`proctor` takes fewer pieces of this vocabulary than `Proctor`."""
    tokenizer, text = german.tokenizers.source, "WE MET PROCTOR IN THE CITY."
    assert (
        Recaser(tokenizer, WordList.of(["we", "met", "in", "the", "city"])).recase(text)
        == "We met Proctor in the city."
    )
    assert Recaser(tokenizer).recase(text) == "We met proctor in the city.", "the control"


def test_words_are_written_as_their_list_says(german: Translator) -> None:
    tokenizer, text = german.tokenizers.source, "THE STORE OF TOM AND THE NATO IN MAY"
    words = ["in", "may", "NATO", "of", "sTore", "the", "Tom", "and"]
    assert Recaser(tokenizer, WordList.of(words)).recase(text) == "The sTore of Tom and the NATO in may"
    without_case = WordList.of(map(str.lower, words))
    assert "sTore" not in Recaser(tokenizer, without_case).recase(text), "the control"


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


def test_one_word_in_capitals_is_read_if_it_is_no_abbreviation(german: Translator) -> None:
    for word in ("HOUSE", "HOUSE!", "COFFEE?"):
        assert german.translate(word).text == german.translate(word.capitalize()).text.upper()
    for word in ("NATO", "WHO", "OPEC", "UNHCR", "ZXQWV", "The HOUSE"):
        assert german.cutter.into_sentences([word], "sentences", recase=True).inputs == [word]
    first, second = (german.translate(text).text.upper() for text in ("No!", "The dog is here."))
    assert german.translate("NO! THE DOG IS HERE.").text == f"{first} {second}"


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
    translator.cutter.longest = 12
    result = translator.translate(
        "THE COMMITTEE WILL VOTE ON THE REPORT TOMORROW, AND THE COUNCIL WILL ADOPT IT ON MONDAY."
    )
    assert result.status == "split"
    assert result.text.isupper()
    assert "BERICHT" in result.text


def test_alternatives_that_differ_only_in_case_are_one(german: Translator) -> None:
    plain, shouted = (german.translate(text, n_best=4) for text in ("You are right.", "YOU ARE RIGHT."))
    texts = [each.text.upper() for each in plain.alternatives]
    assert len({*texts}) < len(texts) == 4, "the control"
    assert [each.text for each in shouted.alternatives] == [*dict.fromkeys(texts)]


# What is asked for beside capitals


def test_what_stays_as_it_is_given() -> None:
    assert in_capitals("Der iShop am Markt") == "DER ISHOP AM MARKT"
    assert in_capitals("Der iShop am Markt", [(13, 18), (4, 9), (6, 9), (0, 0)]) == "DER iShop AM Markt"
    assert in_capitals("Straße", [(0, 2)]) == "StRASSE"


def test_terms_and_prefixes_keep_their_case(german: Translator) -> None:
    text = "THE SHOP IS CLOSED TODAY."
    assert german.translate(text, glossary=[("shop", "iShop")]).text == "DER iShop IST HEUTE GESCHLOSSEN."
    assert german.translate(text, prefix="Der Laden").text.startswith("Der Laden IST ")
    assert german.translate(text, prefix="D").text == "DER LADEN IST HEUTE GESCHLOSSEN.", "at the start only"
    first = german.translate("THE BUILDING IS RED.", glossary=[("the building", "das Bauwerk")]).text
    assert first == "Das Bauwerk IST ROT.", "with a capital, at the start of a sentence"


def test_a_banned_word_is_not_written_in_capitals(german: Translator) -> None:
    assert "HAUS" in german.translate("THE HOUSE IS RED.").text
    assert "HAUS" not in german.translate("THE HOUSE IS RED.", banned=["HAUS"]).text


def test_tags_surround_the_same_words_as_in_lower_case(german: Translator) -> None:
    text = "Press the <b>red</b> button today."
    plain, shouted = german.translate([text, text.upper().replace("B>", "b>")])
    assert "<b>roten</b>" in plain.text
    assert "<b>ROTEN</b>" in shouted.text


def test_only_capitals_as_long_are_lowered() -> None:
    assert lower_capitals("THE HOUSE") == "the house"
    assert lower_capitals("The HOUSE") == "The HOUSE"
    assert lower_capitals("İSTANBUL VE") == "İSTANBUL VE", "its lower case has one character more"
