"""Where pieces stand in the text as written: every character in its place, whatever the normalisation changes."""

import itertools
import sys
import unicodedata
from functools import cache
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.config import TextConfig
from dragoman.text import offsets
from dragoman.text.byte_level import TEXT_START, ByteLevelTokenizer, byte_characters, to_bytes
from dragoman.text.normalize import Normalization, normalize
from dragoman.text.offsets import piece_spans, word_spans
from dragoman.text.tokenizer import Kind, Span, Tokenizer

LINES = ["A man rides a brown horse.", "Ein Mann reitet auf Pferden.", "finale 42 été", "日本語 の テスト"] * 8
FORMS: tuple[Normalization, ...] = get_args(Normalization)
# what normalisation moves: spaces, marks, ligatures, Hangul syllables in parts, letters with a longer lower case
ODD = "a e\t\n\u00a0\u202f\u3000\x01\u0301\u0323\u0345ﬁ½\u2581İẞ한\u1112\u1161\u11ab\uff76\uff9e\U0001d56c🜁乗"
TEXTS = st.text(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"], exclude_characters="\0Σ"), max_size=20)


@cache
def tokenizer(form: Normalization, model: Kind = "bpe", byte_fallback: bool = True) -> Tokenizer:
    config = TextConfig(model=model, vocab_size=400, normalization=form, byte_fallback=byte_fallback)
    return Tokenizer.train(LINES, config)


@cache
def byte_level(form: Normalization) -> ByteLevelTokenizer:
    names = ["<pad>", "<unk>", "<s>", "</s>", "<start>", *byte_characters().values(), "an", "Ġm", "Ġman"]
    return ByteLevelTokenizer(to_bytes(names, range(5), [("a", "n"), ("Ġ", "m"), ("Ġm", "an")]), form)


def groups(spans: list[Span]) -> list[list[int]]:
    """The numbers of pieces, those that share characters together, and so the bytes of a no-break space."""
    found: list[list[int]] = []
    end = -1
    for number, (start, stop) in enumerate(spans):
        if found and (start < end or start == stop == end == spans[number - 1][0]):
            found[-1].append(number)
        else:
            found.append([number])
        end = max(end, stop)
    return found


def check(own: Tokenizer, text: str) -> None:
    ids, spans = piece_spans(own, [text])[0]
    assert ids == own.encode(text)
    assert len(spans) == len(ids)
    for (start, end), (later, stop) in itertools.pairwise(spans):
        assert start <= later
        assert end <= stop
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    covered = {place for start, end in spans for place in range(start, end)}
    written = {place for place, each in enumerate(text) if not each.isspace() and unicodedata.category(each) != "Cc"}
    assert written <= covered
    for numbers in groups(spans):
        start, end = spans[numbers[0]][0], max(spans[number][1] for number in numbers)
        spelled = own.decode([ids[number] for number in numbers])
        assert spelled.split() == normalize(text[start:end], own.normalization).split()


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60)
@given(text=TEXTS)
@example("  A \t man\u3000e\u0301\u0323t  été ")
@example("한\u1112\u1161\u11ab ﬁnale")
@example("")
@example(" \x01 ")
def test_spans_ascend_cover_the_text_and_hold_what_pieces_spell(form: Normalization, text: str) -> None:
    check(tokenizer(form), text)


@pytest.mark.parametrize("model", ["unigram", "char", "word"])
@settings(max_examples=40)
@given(text=TEXTS)
@example("A man reitet ﬁne 乗")
def test_spans_are_exact_for_every_kind_of_vocabulary(model: Kind, text: str) -> None:
    check(tokenizer("nfc", model), text)


@settings(max_examples=40)
@given(text=TEXTS)
@example("a man é乗")
def test_spans_are_exact_for_bytes(text: str) -> None:
    ids, spans = piece_spans(byte_level("nfkc"), [text])[0]
    assert (ids[0], spans[0][1] - spans[0][0]) == (TEXT_START, 0)
    check(byte_level("nfkc"), text)


def test_a_span_leaves_out_the_space_before_a_word() -> None:
    own, text = tokenizer("nfc"), "A   man\u00a0 rides"
    ids, spans = piece_spans(own, [text])[0]
    assert "".join(text[start:end] for start, end in spans) == "Amanrides"
    assert " man" in own.decode(ids)


def test_characters_that_normalisation_changes_map_back() -> None:
    text = "e\u0301te\u0301 ﬁn"  # two letters for é, one for fi
    _, spans = piece_spans(tokenizer("nfkc", "char"), [text])[0]
    assert [text[start:end] for start, end in spans if end > start] == ["e\u0301", "t", "e\u0301", "ﬁ", "ﬁ", "n"]
    _, spans = piece_spans(tokenizer("nfc-lowercase", "char"), ["AİB"])[0]
    # the lower case of İ is two characters, the second of which takes two bytes
    assert [span for span in spans if span[1] > span[0]] == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]


def test_the_last_sigma_of_a_word_does_not_move_anything() -> None:
    text = "ΟΔΟΣ  ΟΔΟΣ"
    _, spans = piece_spans(tokenizer("nfc-lowercase", "char"), [text])[0]
    assert sorted({span for span in spans if span[1] > span[0]}) == [(n, n + 1) for n in (0, 1, 2, 3, 6, 7, 8, 9)]


def test_bytes_of_a_character_share_its_span_and_unknown_ones_have_one() -> None:
    for byte_fallback in (True, False):
        ids, spans = piece_spans(tokenizer("nfc", "bpe", byte_fallback), ["A 🜁乗."])[0]
        assert len(ids) == len(spans)
        assert {(2, 3), (3, 4)} <= {*spans} or (2, 4) in spans, "unknown characters in a row are one piece"
    assert spans[-1] == (4, 5)


def test_no_character_joins_those_before_it_unnoticed() -> None:
    """Everything that composes with, or is ordered among, what stands before it: all of Unicode."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            assert offsets._joins(chr(int(parts[1], 16)), "NFD"), hex(code)
        if unicodedata.combining(character):
            assert offsets._joins(character, "NFD"), hex(code)
    assert not offsets._joins("a", "NFD"), "the control"


@given(text=TEXTS)
def test_words_are_those_of_split(text: str) -> None:
    assert [text[start:end] for start, end in word_spans(text)] == text.split()
