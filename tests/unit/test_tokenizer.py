from functools import cache
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.config import TextConfig
from dragoman.errors import ConfigError, DataError, ModelError
from dragoman.text.normalize import normalize
from dragoman.text.tokenizer import LONGEST_STRETCH, TABLE_PAYS_OFF, Tokenizer
from dragoman.text.vocabulary import NUM_SPECIAL, VOCABULARY

PAD, UNK, BOS, EOS = VOCABULARY.pad, VOCABULARY.unk, VOCABULARY.bos, VOCABULARY.eos

Model = Literal["bpe", "unigram", "char", "word"]
MODELS: tuple[Model, ...] = ("bpe", "unigram", "char", "word")
EVERY_MODEL = pytest.mark.parametrize("model", MODELS)

LINES = [
    "A man rides a brown horse through the snow.",
    "Ein Mann reitet auf einem braunen Pferd durch den Schnee.",
    "Two children play with 3 dogs and 42 balls in the garden.",
    "Zwei Kinder spielen mit 3 Hunden und 42 Bällen im Garten.",
    "literal <s> and </s> and <pad> and <unk> and <0x41> here",
    "日本語 の テスト です",
] * 4


@cache
def tokenizer(model: Model, byte_fallback: bool = True) -> Tokenizer:
    return Tokenizer.train(LINES, TextConfig(model=model, vocab_size=400, byte_fallback=byte_fallback))


FRENCH = ["«\u00a0Vraiment\u202f?\u00a0» dit-il\u202f; «\u00a0oui\u202f!\u00a0» et 10\u2007000\u00a0fois"] * 20


@cache
def french(model: Model) -> Tokenizer:
    return Tokenizer.train(FRENCH, TextConfig(model=model, vocab_size=400, normalization="nfc-nbsp"))


@EVERY_MODEL
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@example("<s> a </s> <pad> <unk> <0x41> <0x0A> ▁ ▅ ⁇")
@example("a\n\u2028b \u2581 c\x85 d\r")
@example(LINES[0])
def test_any_text_round_trips_normalised_without_unknown_or_special_ids(model: Model, text: str) -> None:
    ids = tokenizer(model).encode(text)
    assert tokenizer(model).decode(ids) == normalize(text)
    assert all(piece >= NUM_SPECIAL for piece in ids)


@EVERY_MODEL
@given(
    text=st.text(
        st.sampled_from("a?10 \t\u00a0\u2007\u202f\u2060\ufeff\u2581«") | st.characters(exclude_categories=["Cs"])
    )
)
@example("«\u00a0Vraiment\u202f?\u00a0» 10\u2007000")
@example("\u00a0a \u00a0 b\u202f")
def test_no_break_spaces_round_trip_if_the_normalisation_keeps_them(model: Model, text: str) -> None:
    ids = french(model).encode(text)
    assert french(model).decode(ids) == normalize(text, "nfc-nbsp")
    assert all(piece >= NUM_SPECIAL for piece in ids)
    assert tokenizer(model).decode(tokenizer(model).encode(text)) == normalize(text)


@EVERY_MODEL
def test_no_break_spaces_are_learned(model: Model) -> None:
    pieces = french(model).pieces(french(model).encode(FRENCH[0]))
    assert any("\u202f" in piece for piece in pieces), "as a character, not in bytes"
    unlike = Tokenizer.from_bytes(french(model).to_bytes(), "nfc")
    assert unlike.digest != french(model).digest
    assert "\u202f" not in unlike.decode(french(model).encode(FRENCH[0])), (
        "and a model that does not keep them writes none"
    )


@EVERY_MODEL
def test_without_byte_fallback_an_unseen_character_is_lost(model: Model) -> None:
    """The control of the test above: byte fallback makes the difference."""
    ids = tokenizer(model, byte_fallback=False).encode("Ж")
    assert UNK in ids
    assert tokenizer(model, byte_fallback=False).decode(ids) != "Ж"


@EVERY_MODEL
@pytest.mark.parametrize("literal", ["<s>", "</s>", "<pad>", "<unk>", "<0x41>"])
def test_text_never_encodes_to_a_special_id(model: Model, literal: str) -> None:
    special = {"<s>": BOS, "</s>": EOS, "<pad>": PAD, "<unk>": UNK}
    if literal in special:
        assert tokenizer(model).pieces([special[literal]]) == [literal]  # the piece is there, only text cannot reach it
    ids = tokenizer(model).encode(f"{literal} x{literal}")
    assert not set(ids) & set(special.values())
    assert literal not in tokenizer(model).pieces(ids)
    assert tokenizer(model).decode(ids) == f"{literal} x{literal}"


@EVERY_MODEL
def test_encoding_a_batch_equals_encoding_each_text(model: Model) -> None:
    texts = ["", *LINES, " \u2028 "]
    rows = tokenizer(model).encode_batch(texts)
    assert rows == [tokenizer(model).encode(text) for text in texts]
    assert rows[0] == rows[-1] == []
    assert tokenizer(model).encode_batch([]) == []


@pytest.mark.slow
@EVERY_MODEL
@given(rows=st.lists(st.lists(st.integers(0, 320), max_size=6), min_size=TABLE_PAYS_OFF, max_size=TABLE_PAYS_OFF))
@settings(max_examples=20)
def test_many_rows_decode_as_each_one_does(model: Model, rows: list[list[int]]) -> None:
    """Bytes, special ids and unknown pieces among the others."""
    size = tokenizer(model).size
    rows = [[piece % size for piece in row] for row in rows]
    assert tokenizer(model).decode_batch(rows) == [tokenizer(model).decode(row) for row in rows]


def test_many_rows_decode_as_one_does_if_sentencepiece_changes_the_text() -> None:
    """An imported model may replace characters of what its pieces say; no API shows that, nor makes such a model."""
    own = Tokenizer(tokenizer("bpe").to_bytes())
    rows = [own.encode(line) for line in LINES] * TABLE_PAYS_OFF
    expected = own.decode_batch(rows)
    spec = b"\x12\x01x"  # a map of characters
    assert not own._changes_text
    assert Tokenizer(own.to_bytes() + b"\x2a" + bytes([len(spec)]) + spec)._changes_text
    own.__dict__["_changes_text"] = True
    own.__dict__["_spellings"] = None  # not used then
    assert own.decode_batch(rows) == expected


@EVERY_MODEL
def test_padding_and_sentence_marks_decode_to_nothing(model: Model) -> None:
    ids = tokenizer(model).encode("Bälle für 日本")
    middle = len(ids) // 2
    padded = [
        BOS,
        *ids[:middle],
        PAD,
        *ids[middle:],
        EOS,
        PAD,
        PAD,
    ]
    assert tokenizer(model).decode(padded) == "Bälle für 日本"


def test_invalid_bytes_decode_to_one_line() -> None:
    def byte(value: int) -> int:
        return NUM_SPECIAL + value

    assert tokenizer("bpe").pieces([byte(0xE2)]) == ["<0xE2>"]
    assert tokenizer("bpe").decode([byte(0xE2), byte(0x96)]) == "\ufffd\ufffd"
    assert tokenizer("bpe").decode([byte(0x61), byte(0x0A), byte(0x62)]) == "a b"


@EVERY_MODEL
def test_training_is_deterministic_and_bytes_round_trip(model: Model) -> None:
    config = TextConfig(model=model, vocab_size=400)
    again = Tokenizer.train(iter(LINES), config)
    assert again.to_bytes() == tokenizer(model).to_bytes()
    loaded = Tokenizer.from_bytes(again.to_bytes(), config.normalization)
    assert loaded.digest == again.digest == tokenizer(model).digest
    assert loaded.encode(LINES[0]) == again.encode(LINES[0])
    assert Tokenizer.from_bytes(again.to_bytes(), "nfkc").digest != again.digest


@EVERY_MODEL
def test_a_vocabulary_larger_than_the_text_supports_shrinks(model: Model) -> None:
    large = Tokenizer.train(LINES, TextConfig(model=model, vocab_size=30_000))
    assert large.requested_size == 30_000
    assert NUM_SPECIAL + 256 < large.size < 30_000
    again = Tokenizer.train(LINES, TextConfig(model=model), vocab_size=large.size)
    assert again.requested_size == again.size == large.size


@EVERY_MODEL
def test_too_small_vocabulary_is_refused_with_the_smallest_that_works(model: Model) -> None:
    with pytest.raises(ConfigError) as raised:
        Tokenizer.train(LINES, TextConfig(model=model, vocab_size=100))
    start, end = "text.vocab_size: 100 is too small for this text; use at least ", " or set text.byte_fallback = false"
    message = str(raised.value)
    assert message.startswith(start)
    assert message.endswith(end)
    least = int(message.removeprefix(start).removesuffix(end))
    assert Tokenizer.train(LINES, TextConfig(model=model), vocab_size=least).size == least
    if model in ("bpe", "unigram"):
        with pytest.raises(ConfigError, match="too small"):
            Tokenizer.train(LINES, TextConfig(model=model), vocab_size=least - 1)


def test_without_byte_fallback_the_message_does_not_mention_it() -> None:
    with pytest.raises(ConfigError, match=r"^text\.vocab_size: 8 is too small for this text; use at least \d+$"):
        Tokenizer.train(LINES, TextConfig(vocab_size=8, byte_fallback=False))


@pytest.mark.parametrize("lines", [[], ["", " \u2028\t", "\0"]])
def test_blank_training_text_is_refused(lines: list[str]) -> None:
    with pytest.raises(DataError, match=r"^text: nothing to learn a vocabulary from; give lines that are not blank$"):
        Tokenizer.train(lines, TextConfig())


@pytest.mark.parametrize("data", [b"", b"garbage", tokenizer("bpe").to_bytes()[:-50]], ids=["empty", "garbage", "cut"])
def test_damaged_model_error_names_the_remedy(data: bytes) -> None:
    with pytest.raises(ModelError) as raised:
        Tokenizer.from_bytes(data)
    assert str(raised.value) == (
        "tokenizer: not a sentencepiece model, or damaged; copy it again from a model directory that works"
    )


def test_long_lines_are_used_completely_in_training() -> None:
    """The BPE trainer aborts the process on one word of 65,536 characters, and skips lines over a limit."""
    line = "a" * 70_000 + "ж" * LONGEST_STRETCH
    trained = Tokenizer.train([line], TextConfig(vocab_size=300))
    assert "ж" in "".join(trained.pieces(trained.encode("жжж")))


def test_line_with_a_reserved_character_is_still_learned() -> None:
    trained = Tokenizer.train(["▅ horse horse"], TextConfig(model="word", vocab_size=300))
    assert trained.pieces(trained.encode("horse")) == ["▁horse"]
    assert trained.decode(trained.encode("▅ horse")) == "▅ horse"


def test_training_lines_are_sampled_from_the_whole_text_deterministically() -> None:
    lines = ["a"] * 500 + ["b"] * 500
    config = TextConfig(model="char", vocab_size=300, training_lines=100)
    first, second = (Tokenizer.train(lines, config) for _ in range(2))
    assert first.to_bytes() == second.to_bytes()
    assert first.pieces(first.encode("ab")) == ["▁", "a", "b"]
    only_a = Tokenizer.train(lines[:100], config)  # what the first 100 lines alone would give
    assert only_a.pieces(only_a.encode("ab")) == ["▁", "a", "<0x62>"]


@pytest.mark.slow
def test_rare_characters_of_a_large_alphabet_do_not_fill_the_vocabulary() -> None:
    alphabet = "".join(map(chr, range(0x4E00, 0x4E00 + 400)))
    lines = ["horse " * 400] * 2_000 + [alphabet]
    trained = Tokenizer.train(lines, TextConfig(vocab_size=300))
    assert trained.decode(trained.encode(alphabet)) == alphabet
    with pytest.raises(ConfigError, match="use at least"):
        Tokenizer.train(lines, TextConfig(vocab_size=300, byte_fallback=False))


def test_normalization_is_part_of_the_tokenizer() -> None:
    compatible = Tokenizer.train(LINES, TextConfig(vocab_size=400, normalization="nfkc"))
    assert compatible.decode(compatible.encode("ﬁne")) == "fine"
    assert tokenizer("bpe").decode(tokenizer("bpe").encode("ﬁne")) == "ﬁne"
