"""Language models: text as one stream of ids, blocks of it, the decoder alone, sampling, scoring."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import Config, DecodeConfig, DecoderConfig
from dragoman.data.packing import PackingPlan, Shape, pack_text
from dragoman.data.text_store import TextStore, build_text_store
from dragoman.decode.language_model import LanguageModel
from dragoman.errors import DataError
from dragoman.model.loss import projected_cross_entropy, smoothed_cross_entropy
from dragoman.model.packed import PackedDecoder, packed_model
from dragoman.model.variants import DecoderOnly
from dragoman.tasks.language_model import LanguageModelTask
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.vocabulary import VOCABULARY

EOS = VOCABULARY.eos
LINES = ["The cat  sat.", "", " On the\tmat", "naïve café 😀", "the end"] * 12
CONFIG = Config.build("tiny", None, ["model.architecture=decoder", "text.model=char", "text.max_length=16"])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, CONFIG.text, vocab_size=300)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def store(text_file: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TextStore:
    return build_text_store(tmp_path_factory.mktemp("store"), [text_file], tokenizer, length=16)


def make_model(tokenizer: Tokenizer, **overrides: Any) -> DecoderOnly:
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0, **overrides}
    return DecoderOnly(DecoderConfig(vocab_size=tokenizer.size, **sizes)).eval()


def language_model(tokenizer: Tokenizer, **overrides: Any) -> LanguageModel:
    config = CONFIG.with_vocabulary(tokenizer.size, tokenizer.size)
    return LanguageModel(Bundle(config, Tokenizers(tokenizer, tokenizer), make_model(tokenizer, **overrides)), "cpu")


# Text and ids


def test_every_character_of_a_line_survives(tokenizer: Tokenizer) -> None:
    for line in (*LINES, "  two  spaces  ", "unseen: \u4e2d\U0001d54f"):
        assert tokenizer.decode(tokenizer.encode(line)) == line
    assert len(tokenizer.encode("The cat")) == 7, "one piece per character, none put in front"


def test_the_store_is_the_lines_end_to_end(store: TextStore, tokenizer: Tokenizer) -> None:
    expected = [piece for line in LINES for piece in (*tokenizer.encode(line), EOS)]
    before, ids, sizes = store.gather(np.arange(len(store)))
    assert ids.tolist() == expected
    assert before.tolist() == [EOS, *expected[:-1]], "every id is predicted from the one before it, the first from </s>"
    assert sizes.tolist() == store.target_sizes.tolist()
    assert set(sizes[:-1].tolist()) == {16}


@pytest.mark.parametrize("epoch", range(4))
def test_every_id_is_in_one_block_of_each_epoch(store: TextStore, epoch: int) -> None:
    shifted = store.for_epoch(1, epoch)
    _, ids, sizes = shifted.gather(np.arange(len(shifted)))
    assert ids.tolist() == store.gather(np.arange(len(store)))[1].tolist()
    assert max(sizes) == 16
    again = store.for_epoch(1, epoch)
    assert again.target_sizes.tolist() == sizes.tolist(), "a pure function of seed and epoch"


def test_blocks_begin_elsewhere_in_another_epoch(store: TextStore) -> None:
    first = {int(store.for_epoch(seed, epoch).target_sizes[0]) for seed in (1, 2) for epoch in range(8)}
    assert len(first) > 4


def test_a_block_knows_its_line(store: TextStore, text_file: Path) -> None:
    assert store.place(0) == f"{text_file}:1"
    assert store.place(1) == f"{text_file}:3", "13 characters, </s>, </s>, and the next line"


def test_bad_lines_are_reported_or_skipped(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"good\n\xff bad\n\nend\n")
    with pytest.raises(DataError, match=r"text.txt:2: invalid UTF-8 at byte 1; fix the line or use --on-bad-line skip"):
        build_text_store(tmp_path / "a", [path], tokenizer, length=16)
    store = build_text_store(tmp_path / "a", [path], tokenizer, length=16, on_bad_line="skip")
    assert store.target_sizes.sum() == len("good") + 1 + 1 + len("end") + 1, (
        "a blank line is text, a bad one is left out"
    )
    assert store.report.notes() == [f"1 line left out, not valid text: {path}:2"]


# The model


@pytest.mark.parametrize("variant", [{}, {"norm": "pre", "positions": "rotary"}, {"share_target_output": False}])
def test_steps_with_a_cache_give_the_logits_of_one_pass(tokenizer: Tokenizer, variant: dict[str, Any]) -> None:
    model = make_model(tokenizer, **variant)
    ids_BT = torch.randint(4, tokenizer.size, (3, 9), generator=torch.Generator().manual_seed(0))
    whole_BTV = model(ids_BT)
    cache = model.start()
    for place in range(9):
        torch.testing.assert_close(model.step(ids_BT[:, place], cache), whole_BTV[:, place], atol=1e-5, rtol=1e-5)
    changed = ids_BT.clone()
    changed[:, 5] = 4
    assert torch.equal(model(changed)[:, :5], whole_BTV[:, :5]), "no position sees what follows it"
    assert not torch.allclose(model(changed)[:, 5:], whole_BTV[:, 5:]), "the control"


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("variant", [{}, {"norm": "pre", "positions": "rotary"}, {"positions": "learned"}])
def test_packed_blocks_have_the_loss_and_gradients_of_padded_ones(
    store: TextStore, tokenizer: Tokenizer, filled: bool, variant: dict[str, Any]
) -> None:
    model = make_model(tokenizer, **variant).double().train()
    rows = PackingPlan(store, source_tokens=0, target_tokens=100, sentences=20, seed=1).epoch(0)[0]
    assert len(rows) >= 5, "as many blocks as fit"
    task = LanguageModelTask()
    padded, packed = task.collate(store, rows), task.pack(store, rows, None)
    if filled:
        shape = Shape(0, 128, 20, whole=64, block=64)
        packed = pack_text(store, rows, shape)
        assert len(packed.target_output_N) == 128
        assert int((packed.target_output_N != packed.pad).sum()) == packed.num_tokens == padded.num_tokens
        return
    expected = smoothed_cross_entropy(model(*padded.inputs), padded.target_output, 0.1)
    expected_gradients = torch.autograd.grad(expected, list(model.parameters()))
    run = packed_model(model, 16)
    assert isinstance(run, PackedDecoder)
    found = projected_cross_entropy(
        run(*packed.inputs), model.output.weight, model.output.bias, packed.target_output_N, 0.1
    )
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    for ours, theirs in zip(torch.autograd.grad(found, list(model.parameters())), expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


# Scoring


def test_score_is_the_sum_over_all_tokens(tokenizer: Tokenizer) -> None:
    model = language_model(tokenizer)
    text = "the cat"
    ids = [*tokenizer.encode(text), EOS]
    with torch.no_grad():
        log_p_TV = model.model(torch.tensor([[EOS, *ids[:-1]]]))[0].log_softmax(dim=-1)
    expected = -sum(float(log_p_TV[place, piece]) for place, piece in enumerate(ids))
    score = model.score(text)
    assert score.nats == pytest.approx(expected, rel=1e-5)
    assert (score.tokens, score.bytes) == (8, 8), "with the end of the line"
    assert score.perplexity == pytest.approx(math.exp(expected / 8), rel=1e-5)
    assert score.bits_per_byte == pytest.approx(expected / 8 / math.log(2), rel=1e-5)
    assert model.score(f"{text}\n") == score, "the last line end is there anyway"
    assert model.score("é").bytes == 3


def test_long_text_is_scored_in_overlapping_windows(tokenizer: Tokenizer) -> None:
    model = language_model(tokenizer)
    text = "\n".join(LINES[:9])
    ids = [EOS, *(piece for line in LINES[:9] for piece in (*tokenizer.encode(line), EOS))]
    assert len(ids) > 4 * model.context
    total, scored = 0.0, 1
    while scored < len(ids):  # by hand: the first window whole, then 8 new ids of each, the last window full
        end = min(len(ids), scored + (16 if scored == 1 else 8))
        window = ids[end - 17 : end]
        log_p_TV = model.model(torch.tensor([window[:-1]]))[0].log_softmax(dim=-1).detach()
        for place in range(scored, end):
            at = place - (end - 17) - 1
            total -= float(log_p_TV[at, ids[place]])
        scored = end
    counted: list[int] = []
    assert model.score(text, counted.append).nats == pytest.approx(total, rel=1e-5)
    assert sum(counted) == len(ids) - 1, "every token once"


# Generation


def test_generation_depends_on_the_seed_only(tokenizer: Tokenizer) -> None:
    model = language_model(tokenizer)
    text = model.generate("The", max_tokens=40, seed=5)
    assert text == model.generate("The", max_tokens=40, seed=5)
    assert text != model.generate("The", max_tokens=40, seed=6)
    assert "".join(model.stream("The", max_tokens=40, seed=5)) == text
    assert model.generate("The", max_tokens=20, seed=5) == text[: len(model.generate("The", max_tokens=20, seed=5))]


def test_temperature_0_and_top_1_take_the_likeliest_token(tokenizer: Tokenizer) -> None:
    model = language_model(tokenizer)
    greedy = model.generate("a", max_tokens=12, temperature=0.0, seed=1)
    assert greedy == model.generate("a", max_tokens=12, top_k=1, seed=2)
    past, expected = [EOS, *tokenizer.encode("a")], []
    for _ in range(12):
        logits = model.model(torch.tensor([past]))[0, -1]
        logits[list(VOCABULARY.never_predicted)] = -math.inf
        expected.append(int(logits.argmax()))
        past.append(expected[-1])
    lines = "".join("\n" if piece == EOS else tokenizer.decode([piece]) for piece in expected)
    assert greedy.replace("\ufffd", "") == lines.replace("\ufffd", "")


def test_text_longer_than_the_context_goes_on(tokenizer: Tokenizer) -> None:
    """Beyond its context the model begins again with the newest half."""
    model = language_model(tokenizer, positions="learned", max_positions=16)
    fed: list[int] = []
    decode = model.model.decode

    def watched(ids: torch.Tensor, cache: Any) -> torch.Tensor:
        fed.append(ids.shape[1])
        return decode(ids, cache)

    model.model.decode = watched
    list(model._sample([EOS] * 40, 50, DecodeConfig(sampling=True)))
    assert fed[0] == 16, "a longer prompt is cut"
    assert fed[1] == 8
    assert fed.count(8) == 6
    assert set(fed) == {16, 8, 1}


def test_characters_of_several_bytes_arrive_whole(tokenizer: Tokenizer) -> None:
    model = language_model(tokenizer)
    pieces = [*tokenizer.encode("x\u4e2dy"), EOS, *tokenizer.encode("z")]
    assert len(pieces) > 6, "the character is not in the vocabulary"
    model._sample = lambda *_: iter(pieces)  # type: ignore[method-assign]
    assert list(model.stream("A")) == ["x", "\u4e2d", "y", "\n", "z"]
