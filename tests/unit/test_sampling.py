"""Sampled segmentations: the text is preserved, without randomness equal to `encode`, frequencies match the papers."""

import io
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import exp, sqrt
from random import Random
from typing import Literal

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.config import TextConfig
from dragoman.errors import ConfigError
from dragoman.text.normalize import normalize
from dragoman.text.sampling import BpeDropout, Sampler, UnigramSampler, make_sampler
from dragoman.text.tokenizer import PieceTable, Tokenizer
from dragoman.text.vocabulary import NUM_SPECIAL, VOCABULARY

Model = Literal["bpe", "unigram"]
BOTH = pytest.mark.parametrize("model", ["bpe", "unigram"])
NEARLY_DETERMINISTIC = 1e7  # a power that leaves unigram only its most probable segmentation

LINES = [
    "A man rides a brown horse through the snow, and another man waits.",
    "Ein Mann reitet auf einem braunen Pferd durch den Schnee, und ein anderer wartet.",
    "Two children play with 3 dogs and 42 balls in the garden; the dogs are playing too.",
    "Zwei Kinder spielen mit 3 Hunden und 42 Bällen im Garten; die Hunde spielen auch.",
    "literal <s> and </s> and <pad> and <unk> and <0x41> here",
    "日本語のテストです。日本のテストは日本語です。",
    "นี่คือการทดสอบภาษาไทยและภาษาอื่น",
] * 4
ODD = [
    "",
    " \u2028 ",
    "<s> a </s> <pad> <unk> <0x41> <0x0A> ▁ ▅ ⁇",
    "a\n\u2028b \u2581 c\x85 d\r",
    "Ж horseЖhorse ЖЖЖ 👩‍👩‍👧 e\u0301 \ufb01ne",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the" * 500,
    "日本語のテスト" * 40,
    "3.141,592-65%",
]


@cache
def tokenizer(model: Literal["bpe", "unigram", "char", "word"], byte_fallback: bool = True) -> Tokenizer:
    return Tokenizer.train(LINES, TextConfig(model=model, vocab_size=480, byte_fallback=byte_fallback))


@cache
def sampler(model: Model, byte_fallback: bool = True) -> BpeDropout | UnigramSampler:
    made = make_sampler(tokenizer(model, byte_fallback))
    assert isinstance(made, BpeDropout | UnigramSampler)
    return made


@cache
def across_spaces() -> Tokenizer:
    """A vocabulary with pieces of several words, which ours never has."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type="bpe", vocab_size=480, byte_fallback=True,
        hard_vocab_limit=False, normalization_rule_name="identity", remove_extra_whitespaces=False, pad_id=0, unk_id=1,
        bos_id=2, eos_id=3, minloglevel=5, split_by_whitespace=False,
    )  # fmt: skip
    return Tokenizer.from_bytes(model.getvalue())


@cache
def sampler_across_spaces() -> Sampler:
    return make_sampler(across_spaces())


# Nothing random


def check_equals_encode(text: str) -> None:
    assert sampler("bpe").sample(text, 0.0, Random(1)) == tokenizer("bpe").encode(text)
    assert sampler_across_spaces().sample(text, 0.0, Random(1)) == across_spaces().encode(text)
    likeliest = sampler("unigram").sample(text, NEARLY_DETERMINISTIC, Random(1))
    assert likeliest == tokenizer("unigram").encode(text) or score(likeliest) == pytest.approx(
        score(tokenizer("unigram").encode(text)), abs=1e-4  # sentencepiece adds in 32 bits: as good as equal
    )  # fmt: skip


def score(ids: Sequence[int]) -> float:
    scores = tokenizer("unigram").piece_table().scores
    return sum(scores.get(piece, 0.0) for piece in tokenizer("unigram").pieces(ids))


@pytest.mark.parametrize("text", LINES[:7] + ODD)
def test_without_randomness_sampling_equals_encode(text: str) -> None:
    check_equals_encode(text)


@settings(max_examples=300)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_without_randomness_sampling_equals_encode_on_any_text(text: str) -> None:
    check_equals_encode(text)


@settings(max_examples=300)
@given(text=st.text("aehnorst dieKind. 日本語テ42<s>/Ж"))
def test_without_randomness_sampling_equals_encode_on_text_like_the_vocabulary(text: str) -> None:
    check_equals_encode(text)


def test_encoding_by_word_is_wrong_if_pieces_cross_spaces() -> None:
    """The control of the tests above: such a vocabulary needs its own treatment."""
    text = LINES[0]
    assert any("▁" in piece[1:] for piece in across_spaces().piece_table().ids)
    by_word = [index for word in text.split() for index in across_spaces().encode(word)]
    assert by_word != across_spaces().encode(text)


@BOTH
def test_unknown_character_without_byte_fallback_matches_encode(model: Model) -> None:
    for text in ["ЖЖ horse Ж", "Ж", "aЖЖb Ж Ж"]:
        strength = 0.0 if model == "bpe" else NEARLY_DETERMINISTIC
        ids = sampler(model, byte_fallback=False).sample(text, strength, Random(1))
        assert ids == tokenizer(model, byte_fallback=False).encode(text)
        assert VOCABULARY.unk in ids


@BOTH
@pytest.mark.parametrize("text", ["«\u00a0Vraiment\u202f?\u00a0»  10\u2007000 ", "\u00a0horse\u00a0 \u202fhorse\u202f"])
def test_no_break_spaces_are_kept_where_encode_keeps_them(model: Model, text: str) -> None:
    keeping = Tokenizer.train(
        [text.strip()] * 9 + LINES, TextConfig(model=model, vocab_size=480, normalization="nfc-nbsp")
    )
    strength = 0.0 if model == "bpe" else NEARLY_DETERMINISTIC
    assert make_sampler(keeping).sample(text, strength, Random(1)) == keeping.encode(text)
    for seed in range(5):
        drawn = make_sampler(keeping).sample(text, 0.5, Random(seed))
        assert keeping.decode(drawn) == normalize(text, "nfc-nbsp")
    assert normalize(text, "nfc-nbsp") != normalize(text), "the control"


# Whatever is drawn


@BOTH
@given(text=st.text(st.characters(exclude_categories=["Cs"])), strength=st.floats(0, 1), seed=st.integers(0, 99))
@example(text="<s> a </s> <pad> <unk> <0x41> <0x0A> ▁ ▅ ⁇", strength=0.5, seed=1)
@example(text="日本語のテスト" * 40, strength=0.5, seed=1)
@example(text=LINES[0], strength=1e-300, seed=1)
@example(text=LINES[0], strength=1.0, seed=1)
def test_sampled_ids_decode_to_the_text_without_special_ids(
    model: Model, text: str, strength: float, seed: int
) -> None:
    ids = sampler(model).sample(text, strength, Random(seed))
    assert tokenizer(model).decode(ids) == normalize(text)
    assert all(index >= NUM_SPECIAL for index in ids)


@BOTH
def test_same_seed_gives_the_same_ids_and_another_seed_gives_others(model: Model) -> None:
    fresh = make_sampler(tokenizer(model))
    first, second = ([sampler(model).sample(line, 0.3, Random(seed)) for line in LINES] for seed in (1, 2))
    # in another order, and with nothing kept from before
    assert [fresh.sample(line, 0.3, Random(1)) for line in reversed(LINES)] == first[::-1]
    assert sum(a != b for a, b in zip(first, second, strict=True)) > len(LINES) / 2


def test_dropping_every_merge_leaves_characters() -> None:
    ids = sampler("bpe").sample("man horse", 1.0, Random(1))
    assert tokenizer("bpe").pieces(ids) == list("▁man▁horse")


def test_unigram_at_strength_zero_reaches_every_segmentation() -> None:
    drawn = {tuple(sampler("unigram").sample("the", 0.0, Random(seed))) for seed in range(300)}
    assert drawn == {tuple(ids) for ids in segmentations("▁the", tokenizer("unigram").piece_table())}


@pytest.mark.parametrize("model", ["char", "word"])
def test_char_and_word_models_cannot_be_sampled(model: Literal["char", "word"]) -> None:
    message = f"^text.model: {model} has only one segmentation of a text, nothing to sample; use bpe or unigram$"
    with pytest.raises(ConfigError, match=message):
        make_sampler(tokenizer(model))


# Frequencies


DRAWS = 20_000


def check_frequencies(draw: Callable[[Random], list[int]], probabilities: dict[tuple[int, ...], float]) -> None:
    assert sum(probabilities.values()) == pytest.approx(1)
    random = Random(7)
    counts = Counter(tuple(draw(random)) for _ in range(DRAWS))
    assert set(counts) <= set(probabilities)
    for ids, probability in probabilities.items():
        deviation = sqrt(DRAWS * probability * (1 - probability))
        assert abs(counts[ids] - DRAWS * probability) < 5 * deviation + 1, ids


def segmentations(text: str, vocabulary: PieceTable) -> list[list[int]]:
    if not text:
        return [[]]
    heads = [text[:end] for end in range(1, len(text) + 1) if text[:end] in vocabulary.ids]
    return [[vocabulary.ids[head], *rest] for head in heads for rest in segmentations(text[len(head) :], vocabulary)]


def unigram_probabilities(text: str, power: float) -> dict[tuple[int, ...], float]:
    vocabulary = tokenizer("unigram").piece_table()
    scores = {vocabulary.ids[piece]: score for piece, score in vocabulary.scores.items()}
    weights = {tuple(ids): exp(power * sum(scores[index] for index in ids)) for ids in segmentations(text, vocabulary)}
    total = sum(weights.values())
    return {ids: weight / total for ids, weight in weights.items()}


@pytest.mark.parametrize("power", [0.0, 0.2, 0.5])
def test_unigram_samples_in_proportion_to_the_power_of_the_probability(power: float) -> None:
    probabilities = unigram_probabilities("▁spielen", power)
    assert len(probabilities) > 5

    def draw(random: Random) -> list[int]:
        return sampler("unigram").sample("spielen", power, random)

    check_frequencies(draw, probabilities)
    with pytest.raises(AssertionError):  # the control: another power is told apart
        check_frequencies(draw, unigram_probabilities("▁spielen", power + 0.2))
    if power:
        likeliest = max(probabilities, key=lambda ids: probabilities[ids])
        assert list(likeliest) == tokenizer("unigram").encode("spielen")


def dropout_probabilities(pieces: tuple[str, ...], p: float) -> dict[tuple[int, ...], float]:
    """The paper's algorithm over all its outcomes: each step applies the best merge that is not dropped."""
    vocabulary = tokenizer("bpe").piece_table()
    places = [at for at in range(len(pieces) - 1) if pieces[at] + pieces[at + 1] in vocabulary.ids]
    places.sort(key=lambda at: -vocabulary.scores[pieces[at] + pieces[at + 1]])
    outcomes: Counter[tuple[int, ...]] = Counter()
    for better, at in enumerate(places):
        merged = (*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :])
        for ids, probability in dropout_probabilities(merged, p).items():
            outcomes[ids] += p**better * (1 - p) * probability  # type: ignore[assignment]
    outcomes[tuple(vocabulary.ids[piece] for piece in pieces)] += p ** len(places)  # type: ignore[assignment]
    return dict(outcomes)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_bpe_dropout_frequencies_match_the_paper(p: float) -> None:
    probabilities = dropout_probabilities(tuple("▁spielen"), p)
    assert len(probabilities) > 5

    def draw(random: Random) -> list[int]:
        return sampler("bpe").sample("spielen", p, random)

    check_frequencies(draw, probabilities)
    with pytest.raises(AssertionError):
        check_frequencies(draw, dropout_probabilities(tuple("▁spielen"), p + 0.1))


def test_words_of_a_text_are_sampled_independently() -> None:
    """Random bits left over from one word are used for the next: the second must not depend on the first."""
    once = dropout_probabilities(tuple("▁Kinder"), 0.3)
    both = {(*a, *b): x * y for a, x in once.items() for b, y in once.items()}
    check_frequencies(lambda random: sampler("bpe").sample("Kinder Kinder", 0.3, random), both)


# What the tokenizer tells


@pytest.mark.parametrize("model", ["bpe", "unigram", "char", "word"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_tokenizer_has_its_kind_and_piece_table(
    model: Literal["bpe", "unigram", "char", "word"], byte_fallback: bool
) -> None:
    trained = tokenizer(model, byte_fallback)
    assert Tokenizer.from_bytes(trained.to_bytes()).kind == model
    vocabulary = trained.piece_table()
    assert len(vocabulary.byte_ids) == 256 * byte_fallback
    assert sorted([*vocabulary.ids.values(), *vocabulary.byte_ids]) == list(range(NUM_SPECIAL, trained.size))
    assert trained.pieces(vocabulary.ids.values()) == list(vocabulary.ids)
    assert trained.pieces(vocabulary.byte_ids[65:66]) == ["<0x41>"] * byte_fallback
