"""Word alignment: from attention to links, which heads, two directions, error rates; the same in any batch."""

import random
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from benchmarks.alignment import Languages
from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import Config, DecodeConfig, TextConfig
from dragoman.decode import aligner
from dragoman.decode.alignment import (
    Alignment,
    Array,
    Head,
    HeadChoice,
    PairAttention,
    agreeing_layer,
    gain,
    links,
    symmetrize,
    to_pharaoh,
)
from dragoman.decode.scoring import PairError
from dragoman.decode.translator import Translator
from dragoman.errors import ConfigError, DataError
from dragoman.evaluate.alignment import Reference, alignment_score
from dragoman.model.build import build_model
from dragoman.text.offsets import PieceSpans, word_spans
from dragoman.text.tokenizer import Tokenizer

# From weights to links


def test_links_come_from_either_side_if_there_is_enough_attention() -> None:
    weight_JI = np.array(
        [
            [0.9, 0.05, 0.0],  # linked from both sides
            [0.0, 0.30, 0.15],  # by source word 1, which no other attends to more
            [0.5, 0.00, 0.0],  # by this target word, though source word 0 is attended to more by another
            [0.3, 0.00, 0.19],  # by neither: too little for a target word, and for source word 2
        ]
    )
    assert links(weight_JI) == [(0, 0), (0, 2), (1, 1)]
    assert links(weight_JI * 0.1) == [], "the control"
    assert links(np.zeros((0, 3))) == links(np.zeros((3, 0))) == []


def test_word_weights_are_sums_over_source_pieces_and_means_over_target_pieces() -> None:
    source, target = " a b-c", "x y"
    pieces = PieceSpans([5, 6, 7, 8], [(1, 1), (1, 2), (3, 4), (4, 6)])  # the first is only a space
    weights = np.array([[0.5, 0.1, 0.2, 0.2], [0.0, 0.3, 0.3, 0.4], [0.9, 0.1, 0.0, 0.0]])
    own = Alignment(source, target, pieces, PieceSpans([5, 6, 7], [(0, 1), (2, 3), (2, 3)]), weights)
    np.testing.assert_allclose(own.word_weights, [[0.1, 0.4], [0.2, 0.35]])
    assert own.links == [(0, 1), (1, 0)]


def test_a_piece_over_several_words_belongs_to_each() -> None:
    own = Alignment("a b", "c", PieceSpans([5], [(0, 3)]), PieceSpans([5], [(0, 1)]), np.array([[1.0]]))
    assert own.links == [(0, 0), (1, 0)]


def pair_of(weight_LHTS: Array, source: str = "a b", target: str = "c d") -> PairAttention:
    spans = PieceSpans([5, 6], [(0, 1), (2, 3)])
    return PairAttention(source, target, spans, spans, weight_LHTS)


def test_heads_are_averaged_at_their_rows() -> None:
    weight_LHTS = np.arange(12.0).reshape(1, 2, 3, 2)
    pair = pair_of(weight_LHTS)
    np.testing.assert_array_equal(pair.alignment([Head(1, 2, "output")]).weights, weight_LHTS[0, 1, :2])
    np.testing.assert_array_equal(pair.alignment([Head(1, 2, "input")]).weights, weight_LHTS[0, 1, 1:])
    both = pair.alignment([Head(1, 1, "output"), Head(1, 2, "input")]).weights
    np.testing.assert_array_equal(both, (weight_LHTS[0, 0, :2] + weight_LHTS[0, 1, 1:]) / 2)


def test_without_heads_the_layer_is_taken_whose_heads_agree() -> None:
    identity, other = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    weight_LHTS = np.array([[identity, other], [other, other], [identity, other]])
    assert agreeing_layer(weight_LHTS) == 1
    assert pair_of(weight_LHTS).alignment([]).links == [(0, 1), (1, 0)]


# Which heads


def invented_pairs(right: Head, count: int = 40) -> list[PairAttention]:
    """Source word n of a dictionary is target word n; one head knows it, seven look anywhere."""
    chance, pairs = random.Random(1), []
    for _ in range(count):
        words = chance.sample(range(20), 5)
        order = chance.sample(range(5), 5)
        weight_LHTS = np.array(
            [[[[chance.random() for _ in range(5)] for _ in range(6)] for _ in range(2)] for _ in range(2)]
        )
        for number, place in enumerate(order):
            row = number + (right.row == "input")
            weight_LHTS[right.layer - 1, right.head - 1, row] = np.eye(5)[place]
        source = " ".join(f"s{word}" for word in words)
        target = " ".join(f"t{words[place]}" for place in order)
        spans = [PieceSpans([5] * 5, word_spans(text)) for text in (source, target)]
        pairs.append(PairAttention(source, target, spans[0], spans[1], weight_LHTS))
    return pairs


@pytest.mark.parametrize("right", [Head(2, 1, "input"), Head(1, 2, "output")])
def test_the_head_that_aligns_is_chosen_without_known_alignment(right: Head) -> None:
    choice = HeadChoice(2, 2)
    assert choice.best() == []
    for pair in invented_pairs(right):
        choice.add(pair)
    assert choice.num_words == 200
    assert choice.best() == [right], "the others add nothing"
    wrong = HeadChoice(2, 2)
    for pair in invented_pairs(Head(2, 2, "output")):
        wrong.add(pair)
    assert wrong.best() == [Head(2, 2, "output")], "the control"


def test_gain_judges_each_link_by_the_others() -> None:
    source_NK, target_N = np.array([[0, 1], [0, 1], [0, 1], [0, 1]]), np.array([5, 6, 5, 6])
    right, wrong = np.array([[1, 0], [0, 1]] * 2), np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    # of its one other link, each source word predicts the same target word: (1 + 1/2) / (1 + 1) over a share of 1/2
    assert gain(right, source_NK, target_N) == pytest.approx(np.log(1.5))
    assert gain(wrong, source_NK, target_N) == pytest.approx(np.log(0.5))
    unique = np.arange(4)
    assert gain(right, np.arange(8).reshape(4, 2), unique) == pytest.approx(0.0), "what occurs once shows nothing"


def test_settings_accept_only_names_of_heads() -> None:
    assert DecodeConfig(alignment_heads=("1.2.output", "12.16.input")).alignment_heads
    for name in ("0.1.output", "1.1", "1.1.both", "a.1.input", "1.1.output\n"):
        with pytest.raises(ConfigError, match=r"^decode.alignment_heads: .* is not LAYER.HEAD.output or LAYER.HEAD.in"):
            DecodeConfig(alignment_heads=(name,))
    assert str(Head.parse("2.4.input", 2, 4)) == "2.4.input"
    message = "decode.alignment_heads: 3.1.output is not in the decoder, which has 2 layers of 4 heads; use one that is"
    with pytest.raises(ConfigError) as raised:
        Head.parse("3.1.output", 2, 4)
    assert str(raised.value) == message


# Two directions


def test_symmetrization_by_hand() -> None:
    forward, backward = [(0, 0), (1, 1), (1, 2), (4, 4)], [(0, 0), (1, 1), (2, 2), (3, 2), (5, 0)]
    assert symmetrize(forward, backward, "intersection") == [(0, 0), (1, 1)]
    assert symmetrize(forward, backward, "union") == [(0, 0), (1, 1), (1, 2), (2, 2), (3, 2), (4, 4), (5, 0)]
    # (1, 2) touches (1, 1) and links target word 2, (2, 2) then source word 2, (3, 2) source word 3; (4, 4) links two
    # words that have no link; (5, 0) touches nothing and links one only
    assert symmetrize(forward, backward, "grow-diag-final-and") == [(0, 0), (1, 1), (1, 2), (2, 2), (3, 2), (4, 4)]


def test_grow_diag_does_not_add_a_link_between_words_that_have_one() -> None:
    forward, backward = [(0, 0), (1, 1), (0, 1)], [(0, 0), (1, 1)]
    assert symmetrize(forward, backward, "grow-diag-final-and") == [(0, 0), (1, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_symmetrized_links_lie_between_intersection_and_union(seed: int) -> None:
    chance = random.Random(seed)
    forward, backward = ({(chance.randrange(6), chance.randrange(6)) for _ in range(8)} for _ in range(2))
    grown = {*symmetrize(forward, backward, "grow-diag-final-and")}
    assert forward & backward <= grown <= forward | backward
    assert symmetrize(backward, forward, "union") == sorted(forward | backward)


def test_unknown_method_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^symmetrize: 'grow' is not a choice; did you mean grow-diag-final-and\?$"):
        symmetrize([], [], "grow")


# Error rates


def test_error_rate_by_hand() -> None:
    references = [Reference.parse("0-0 1-1 2p2"), Reference.parse("0-1")]
    found = [[(0, 0), (2, 2), (3, 3)], [(0, 0)]]
    score = alignment_score(found, references)
    # of 4 links, (0, 0) is sure and (2, 2) possible; of 3 sure ones, (0, 0) is found
    assert score.aer == pytest.approx(100 * (1 - (1 + 2) / (4 + 3)))
    assert [score.precision, score.recall] == pytest.approx([50.0, 100 / 3])
    assert (score.links, score.pairs) == (4, 2)
    perfect = alignment_score([[(0, 0), (1, 1), (2, 2)], [(0, 1)]], references)
    assert (perfect.aer, perfect.precision, perfect.recall) == (0.0, 100.0, 100.0)
    assert alignment_score([[]], [Reference.parse("")]).aer == 0.0
    assert alignment_score([[]], [Reference.parse("0-0")]).aer == 100.0


def test_a_link_that_is_sure_and_possible_is_sure() -> None:
    assert Reference.parse("0p0 0-0") == Reference(frozenset({(0, 0)}), frozenset({(0, 0)}))


@pytest.mark.parametrize("word", ["0", "0-", "-1", "0+1", "0-1-2", "a-b", "٠-٠"])
def test_a_word_that_is_no_link_is_named(word: str) -> None:
    with pytest.raises(DataError) as raised:
        Reference.parse(f"0-0 {word}")
    assert str(raised.value) == f"{word!r} is not a link; write 1-2, or 1p2 for a possible one"


# A model


@cache
def tokenizer() -> Tokenizer:
    lines = ["abc def ghi jkl mno pqr stu vwx yz ä ö"] * 4
    return Tokenizer.train(lines, TextConfig(model="char", vocab_size=300))


@cache
def translator(*settings: str, engine: str = "auto") -> Translator:
    settings = settings or ("num_layers=2", "num_heads=2", "d_ff=32", "init_gain=4.0")
    given = ["text.model=char", "model.d_model=16", *(f"model.{setting}" for setting in settings)]
    config = Config.build(None, None, given).with_vocabulary(tokenizer().size, tokenizer().size)
    torch.manual_seed(0)
    return Translator(
        Bundle(config, Tokenizers(tokenizer(), tokenizer()), build_model(config.model)), "cpu", engine=engine
    )


def some_pairs(count: int = 30, longest: int = 30) -> tuple[list[str], list[str]]:
    chance = random.Random(1)
    texts = ["".join(chance.choices("abcdefghä  ", k=chance.randint(1, longest))) for _ in range(2 * count)]
    return texts[:count], texts[count:]


HEADS = ["1.2.input", "2.1.output"]


@pytest.mark.parametrize("heads", [[], HEADS])
def test_batching_does_not_change_links(heads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = some_pairs()
    together = translator().align(sources, targets, heads)
    assert sum(map(len, together)) > 40, "the control: there is something to compare"
    alone = [translator().align(*pair, heads) for pair in zip(sources, targets, strict=True)]
    assert alone == together
    assert translator().align(sources[::-1], targets[::-1], heads)[::-1] == together
    monkeypatch.setattr(aligner, "BATCH_TOKENS", 70)
    monkeypatch.setattr(aligner, "PAIRS_AT_ONCE", 7)
    assert translator().align(sources, targets, heads) == together
    assert translator().align(sources, targets[::-1], heads) != together, "the control"


def test_weights_are_those_of_the_model() -> None:
    own, source, target = translator(), "ab c", "fe dä"
    pair = own.align_pieces([source], [target], HEADS)[0]
    source_ids, target_ids = tokenizer().encode(source), tokenizer().encode(target)
    assert (pair.source_spans.ids, pair.target_spans.ids) == (source_ids, target_ids)
    end = tokenizer().vocabulary.eos
    cross = own.attention([*source_ids, end], [*target_ids, end]).cross  # [L, H, T, S], with a row for </s>
    expected = (cross[0, 1, 1:, :-1] + cross[1, 0, :-1, :-1]) / 2
    np.testing.assert_allclose(pair.weights, expected, atol=1e-5)
    layer = int(cross[..., :-1].mean(axis=1).max(axis=2).mean(axis=1).argmax())
    np.testing.assert_allclose(
        own.align_pieces([source], [target])[0].weights, cross[layer].mean(axis=0)[:-1, :-1], atol=1e-5
    )
    assert [source[start:end] for start, end in pair.source_spans.spans] == ["", "a", "b", "", "c"]
    assert all(0 <= i < 2 and 0 <= j < 2 for i, j in pair.links)


def test_a_language_tag_is_read_but_not_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    own, tag, end = translator(), 7, tokenizer().vocabulary.eos
    monkeypatch.setattr(own, "language_tag", lambda options: [tag])
    pair = own.align_pieces(["ab"], ["c"], ["1.1.output"])[0]
    source_ids, target_ids = tokenizer().encode("ab"), tokenizer().encode("c")
    cross = own.attention([tag, *source_ids, end], [*target_ids, end]).cross
    np.testing.assert_allclose(pair.weights, cross[0, 0, :-1, 1:-1], atol=1e-5)
    assert pair.weights.shape == (len(target_ids), len(source_ids))


def test_spans_and_links_refer_to_the_text_as_given() -> None:
    """A byte order mark, white space and marks that are composed do not change the words."""
    plain, odd = ("ab cä", "de f"), ("\ufeffab\t\tca\u0308 ", " de\u00a0f")
    assert translator().align(*plain, HEADS) == translator().align(*odd, HEADS)
    pair = translator().align_pieces([odd[0]], [odd[1]], HEADS)[0]
    assert "".join(odd[0][start:end] for start, end in pair.source_spans.spans) == "abca\u0308", "without the mark"


def test_blank_texts_have_no_links() -> None:
    assert translator().align(["", "ab", " \t", "ab"], ["ab", "  ", "", "ab"])[:3] == [[], [], []]
    assert translator().align([], []) == []
    assert translator().align("ab", "ab", ["1.1.output"]) != []


def test_settings_of_the_model_name_the_heads() -> None:
    own = translator("num_layers=2", "num_heads=2", "d_ff=32", "init_gain=4.0", "dropout=0.1")
    sources, targets = some_pairs()
    before = own.align(sources, targets)
    own.config = Config.build(None, None, [*_settings(own.config), 'decode.alignment_heads=["1.2.input"]'])
    assert own.align(sources, targets) == own.align(sources, targets, ["1.2.input"]) != before
    assert own.align(sources, targets, []) == before


def _settings(config: Config) -> list[str]:
    return [f"model.{name}={getattr(config.model, name)}" for name in ("num_layers", "num_heads", "d_model", "d_ff")]


def test_heads_are_chosen_only_from_enough_words() -> None:
    sources, targets = some_pairs(60)
    chosen = translator().choose_alignment_heads(sources, targets)
    assert chosen
    assert {name.rsplit(".", 1)[1] for name in chosen} <= {"output", "input"}
    assert translator().align(sources, targets, chosen)
    assert translator().choose_alignment_heads(sources[:3], targets[:3]) == ()
    assert translator().choose_alignment_heads([""] * 200, ["a b c"] * 200) == ()


def test_a_recurrent_model_aligns_if_it_looks_back() -> None:
    looking = translator("architecture=rnn", "context=source")
    assert looking.align(["ab cd"], ["de f"], ["1.1.output"])
    with pytest.raises(ConfigError, match=r"which has 1 layers of 1 heads; use one that is$"):
        looking.align(["ab"], ["cd"], ["1.2.output"])
    message = "^align: the model does not look back at the source; use one with attention to it$"
    with pytest.raises(ConfigError, match=message):
        translator("architecture=rnn", "context=self").align(["ab"], ["cd"])


def test_invalid_pairs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = translator()
    monkeypatch.setattr(aligner, "PAIRS_AT_ONCE", 2)
    with pytest.raises(PairError, match=r"^pair 3: source: NUL at character 2; fix the text$"):
        own.align(["a", "b", "a\0"], ["a", "b", "c"])
    with pytest.raises(ConfigError, match=r"^align: 1 sources and 2 targets; give one target per source$"):
        own.align(["ab"], ["c", "d"])
    with pytest.raises(ConfigError, match=r"^sources: is str; give a list of strings$"):
        own.align("ab", ["c"])
    with pytest.raises(ConfigError, match=r"^decode.alignment_heads: '1' is not LAYER.HEAD.output"):
        own.align("ab", "c", ["1"])


def test_a_pair_longer_than_the_positions_is_named(quick_run: Path) -> None:
    loaded = dragoman.load(quick_run, device="cpu")
    loaded.config = Config.build("tiny", None, ["model.positions=learned", "model.max_positions=256"])
    with pytest.raises(PairError, match=r"^pair 2: 301 pieces; this model takes at most 256$"):
        loaded.align(["a", "a"], ["a", "a " * 300])


def test_out_of_memory_halves_the_batch_and_names_a_pair_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = some_pairs()
    plain = translator(engine="plain")
    expected = plain.align(sources, targets, HEADS)
    model = type(plain.engine.model)
    decode_states, live, sizes = model.decode_states, list[weakref.ref[Any]](), list[int]()

    def limited(self: Any, target_ids: Any, cache: Any, weights: Any = None) -> Any:
        assert not any(each() is not None for each in live), "a failed batch is freed first"
        sizes.append(target_ids.numel())
        states = decode_states(self, target_ids, cache, weights)
        if target_ids.numel() > 100:
            live.append(weakref.ref(states))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return states

    monkeypatch.setattr(model, "decode_states", limited)
    assert plain.align(sources, targets, HEADS) == expected
    assert max(sizes) > 100, "it was tried"
    with pytest.raises(PairError, match=r"^pair 2: out of memory at 3 source and 122 target tokens; shorten it$"):
        plain.align(["a", "b"], ["c", "d" * 120])


def test_engines_align_the_same() -> None:
    sources, targets = some_pairs()
    fast, plain = (translator(engine=engine).align_pieces(sources, targets, HEADS) for engine in ("auto", "plain"))
    assert translator().choice.engine == "cpu", "the control"
    for one, other in zip(fast, plain, strict=True):
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-4)


def test_pharaoh_format() -> None:
    assert to_pharaoh([(0, 1), (10, 2)]) == "0-1 10-2"
    assert to_pharaoh([]) == ""


# Generated languages


def test_generated_sentences_have_known_links() -> None:
    languages, again = Languages(3), Languages(3)
    sentences = [languages.sentence() for _ in range(200)]
    assert sentences[:20] == [again.sentence() for _ in range(20)]
    assert sentences[0] != Languages(4).sentence(), "the control"
    translations: dict[str, set[str]] = {}
    for sentence in sentences:
        source, target = sentence.source.split(), sentence.target.split()
        for i, j in sentence.links:
            translations.setdefault(source[i], set()).add(target[j])
            assert (source[i] == target[j]) == (source[i].isdigit() or source[i] == ".")
        assert len({j for _, j in sentence.links}) == len(target) - 2, "the marks of subject and object have no link"
    assert sum(len(words) > 2 for words in translations.values()) <= 3, "only the particles of verbs"
    numbers = [word for word in translations if word.isdigit()]
    assert len(numbers) > 20
