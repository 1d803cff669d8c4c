"""Scores of given pairs: equal to those from all logits, in bounded memory, independent of the batch."""

import gc
import random
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dragoman
from dragoman.bundle import Bundle, Tokenizers
from dragoman.cli import score as score_command
from dragoman.config import Config, TextConfig
from dragoman.data.batching import Batch, teacher_forcing
from dragoman.decode import scoring
from dragoman.decode.engines import plain as engine
from dragoman.decode.scoring import PairError
from dragoman.decode.translator import Translator
from dragoman.errors import ConfigError, DataError
from dragoman.model.build import build_model
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.vocabulary import VOCABULARY

PAD = VOCABULARY.pad

MODELS: dict[str, tuple[str, ...]] = {
    "transformer": ("num_layers=2", "num_heads=2", "d_ff=32"),
    "transformer with a bias": ("num_layers=1", "num_heads=2", "d_ff=32", "output_bias=true", "norm=pre"),
    "recurrent": ("architecture=rnn", "context=source"),
    "recurrent, looking at itself": ("architecture=rnn", "context=self", "cell=rnn"),
    "recurrent, looking at nothing": ("architecture=rnn", "context=none"),
}
PRECISIONS = {"float32": 1e-5, "int8": 1e-5, "bfloat16": 0.2}  # the last: an ulp of a logit of 8 is 0.06


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["abc def ghi jkl mno pqr stu vwx yz"] * 4, TextConfig(model="char", vocab_size=300))


@cache
def translator(model: str = "transformer", precision: str = "float32") -> Translator:
    settings = ["text.model=char", "model.d_model=16", *(f"model.{setting}" for setting in MODELS[model])]
    config = Config.build(None, None, settings).with_vocabulary(tokenizer().size, tokenizer().size)
    torch.manual_seed(0)
    bundle = Bundle(config, Tokenizers(tokenizer(), tokenizer()), build_model(config.model))
    return Translator(bundle, "cpu", precision)


def some_pairs(count: int = 30, longest: int = 40) -> tuple[list[str], list[str]]:
    generator = random.Random(1)
    texts = ["".join(generator.choices("abcdefgh ", k=generator.randint(1, longest))) for _ in range(2 * count)]
    return texts[:count], texts[count:]


def batch_of(sources: Sequence[str], targets: Sequence[str]) -> Batch:
    ids = tokenizer().encode_batch(sources), tokenizer().encode_batch(targets)
    return teacher_forcing(*ids)


def from_all_logits(model: Any, batch: Batch) -> Tensor:
    """The definition: [B, T], 0 in padding."""
    logits_BTV = model(batch.source_ids, batch.target_input, batch.source_allowed)
    chosen_BT = logits_BTV.float().log_softmax(dim=-1).gather(-1, batch.target_output[..., None])[..., 0]
    return chosen_BT.masked_fill(batch.target_output == PAD, 0.0)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", MODELS)
def test_token_log_probabilities_match_those_from_all_logits(
    model: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LOGITS_AT_ONCE", 7 * tokenizer().size)
    own, batch = translator(model, precision).engine, batch_of(*some_pairs(9))
    with torch.inference_mode():
        found, expected = own.token_log_probs(batch), from_all_logits(own.model, batch)
    torch.testing.assert_close(found, expected, atol=PRECISIONS[precision], rtol=0.0)
    assert found.dtype == torch.float32
    assert not torch.allclose(found.roll(1, dims=0), expected, atol=PRECISIONS[precision]), "the control"


@pytest.mark.parametrize("model", ["transformer", "recurrent"])
def test_score_is_the_sum_over_target_tokens_in_any_batch(model: str) -> None:
    sources, targets = some_pairs()
    scorer = translator(model)
    scores = scorer.score(sources, targets)
    with torch.inference_mode():
        alone = [
            float(from_all_logits(scorer.engine.model, batch_of([source], [target])).sum())
            for source, target in zip(sources, targets, strict=True)
        ]
    assert scores == pytest.approx(alone, abs=1e-4)
    assert scorer.score(sources[::-1], targets[::-1])[::-1] == pytest.approx(scores, abs=1e-4)
    for batch_size in (1, 4):
        assert scorer.score(sources, targets, batch_size) == pytest.approx(scores, abs=1e-4)
    assert scorer.score(sources, targets[::-1]) != pytest.approx(scores, abs=1.0), "the control"
    assert scorer.score([], []) == []


class Watched:
    """Records the inputs of a module and how many of its results are alive, without the garbage collector."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.rows: list[int] = []
        self.most_elements_alive = 0
        self._results: list[weakref.ref[Tensor]] = []
        self._hook = module.register_forward_hook(self._record)

    def _record(self, module: torch.nn.Module, given: tuple[Tensor], result: Tensor) -> None:
        self.rows.append(result[..., 0].numel())
        self._results.append(weakref.ref(result))
        alive = sum(each.numel() for reference in self._results if (each := reference()) is not None)
        self.most_elements_alive = max(self.most_elements_alive, alive)

    def remove(self) -> None:
        self._hook.remove()


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", ["transformer", "recurrent"])
def test_only_a_bounded_number_of_logits_is_ever_alive(
    model: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, targets = some_pairs()
    scorer, limit = translator(model, precision), 10 * tokenizer().size + 5
    monkeypatch.setattr(engine, "LOGITS_AT_ONCE", limit)
    output: Any = scorer.engine.model.output
    watched = Watched(output)
    scorer.score(sources, targets)
    watched.remove()
    assert 0 < watched.most_elements_alive <= limit
    assert sum(watched.rows) == sum(len(ids) + 1 for ids in tokenizer().encode_batch(targets)), (
        "no padding is projected"
    )

    full = Watched(output)  # the control
    with torch.inference_mode():
        from_all_logits(scorer.engine.model, batch_of(sources, targets))
    full.remove()
    assert full.most_elements_alive > limit


def test_batch_respects_token_and_pair_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, sizes = translator(), []
    run = engine.Engine.token_log_probs

    def watched(self: engine.Engine, batch: Batch) -> Tensor:
        sizes.append((len(batch.source_ids), max(batch.source_ids.shape[1], batch.target_input.shape[1])))
        return run(self, batch)

    monkeypatch.setattr(engine.Engine, "token_log_probs", watched)
    monkeypatch.setattr(scoring, "SCORED_TOKENS", 100)
    sources, targets = some_pairs(40)
    sources, targets = ["a" * 200, *sources, "b"], ["a", *targets, "b" * 150]
    scorer.score(sources, targets)
    assert sum(pairs for pairs, _ in sizes) == len(sources)
    assert all(pairs * length <= 100 or pairs == 1 for pairs, length in sizes)
    assert max(pairs for pairs, _ in sizes) > 4
    sizes.clear()
    scorer.score(sources, targets, 3)
    assert max(pairs for pairs, _ in sizes) == 3


def out_of_memory_at(monkeypatch: pytest.MonkeyPatch, most_tokens: int) -> list[int]:
    """Batches of more padded target tokens fail midway, with tensors allocated. Returns the sizes tried."""
    model = type(translator().engine.model)
    decode_states, sizes = model.decode_states, []
    live: list[weakref.ref[Tensor]] = []

    def limited(self: Any, target_ids: Tensor, cache: Any, weights: Any = None) -> Tensor:
        assert not any(each() is not None for each in live), "a failed batch is freed first"
        sizes.append(target_ids.numel())
        states = decode_states(self, target_ids, cache, weights)
        if target_ids.numel() > most_tokens:
            live.append(weakref.ref(states))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return states

    monkeypatch.setattr(model, "decode_states", limited)
    return sizes


@pytest.mark.usefixtures("without_collector")
def test_out_of_memory_halves_the_batch_and_keeps_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = some_pairs()
    expected = translator().score(sources, targets)
    sizes = out_of_memory_at(monkeypatch, 100)
    assert translator().score(sources, targets) == pytest.approx(expected, abs=1e-4)
    assert max(sizes) > 400, "it was tried"


def test_single_pair_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_memory_at(monkeypatch, 100)
    with pytest.raises(PairError) as raised:
        translator().score(["a", "bc", "d"], ["e", "f" * 120, "g"])
    message = "pair 2: out of memory at 4 source and 122 target tokens; shorten it"  # with the mark for a space, </s>
    assert str(raised.value) == message
    assert isinstance(raised.value, DataError)
    assert raised.value.__context__ is None, "no exception holds allocated tensors"


def test_the_command_names_the_line_of_a_pair_that_is_too_big(
    quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("a b\n" * 40)
    target.write_text("b a\n" * 19 + "a " * 120 + "\n" + "b a\n" * 20)
    out_of_memory_at(monkeypatch, 100)
    with pytest.raises(DataError) as raised:
        score_command.command(source, target, quick_run, batch_size=1, device="cpu")
    assert str(raised.value) == f"{source}:20: out of memory at 3 source and 121 target tokens; shorten it"
    assert len(capsys.readouterr().out.splitlines()) == 16, "the window before"


def test_invalid_text_is_a_pair_error_and_a_byte_order_mark_is_dropped() -> None:
    scorer = translator()
    assert scorer.score(["\ufeffab"], ["\ufeffcd"]) == scorer.score(["ab"], ["cd"])
    assert scorer.score(["a\ufeffb"], ["cd"]) != scorer.score(["ab"], ["cd"]), "inside it is text"
    with pytest.raises(PairError, match=r"^pair 2: source: NUL at character 3; fix the text$"):
        scorer.score(["ab", "ab\0"], ["ab", "cd"])
    with pytest.raises(PairError, match=r"^pair 1: target: invalid UTF-8 at character 2; fix the text$"):
        scorer.score(["ab"], ["c\ud800"])
    with pytest.raises(ConfigError, match=r"^score: 1 sources and 2 targets; give one target per source$"):
        scorer.score(["ab"], ["c", "d"])


def test_a_pair_longer_than_the_positions_is_named(quick_run: Path) -> None:
    loaded = dragoman.load(str(quick_run), device="cpu")
    assert loaded.config.model.longest is None
    loaded.config = Config.build("tiny", None, ["model.positions=learned", "model.max_positions=256"])
    with pytest.raises(PairError, match=r"^pair 2: 301 pieces; this model takes at most 256$"):
        loaded.score(["a", "a"], ["a", "a " * 300])


@pytest.mark.parametrize("batch_size", [-1, -3])
def test_a_batch_size_out_of_range_is_refused(quick_run: Path, batch_size: int) -> None:
    with pytest.raises(ConfigError, match=rf"^decode.batch_size: {batch_size} is out of range; use 0 to 1000000$"):
        dragoman.load(quick_run).score(["a"], ["b"], batch_size=batch_size)
