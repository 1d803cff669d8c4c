"""The same sentence gives the same tokens at any batch size, in any order, with any neighbours; beam 1 and 5.

The same holds without the cache and in int8. Scores are compared with a margin: float32 rows differ by about 1e-6 with
the shape of the batch, and a tie may then go either way. In int8 the linear layers are exact, but attention stays
float32: if its last bit changes a rounding, an int8 number moves by one. With noise of 1e-6 on attention a score moved
by 0.022 at most on the model here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dragoman
from dragoman.data.batching import pad_rows
from dragoman.data.generated import generate
from dragoman.decode import quantized
from dragoman.decode.engines import plain as engine
from dragoman.decode.engines.products import int8_is_exact
from dragoman.decode.translation import Translation
from dragoman.decode.translator import Translator
from dragoman.int8 import LEVELS
from dragoman.model.cache import rows_of_hypotheses, rows_of_sentences
from tests.processor import NO_EXACT_INT8

MARGINS = {"float32": 1e-4, "int8": 0.05}
LINES = 80


@pytest.fixture(scope="module", params=MARGINS)
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def translator(quick_run: Path, precision: str) -> Translator:
    return dragoman.load(str(quick_run), device="cpu", precision=precision, engine="plain")


@pytest.fixture(scope="module")
def on_cpu_engine(quick_run: Path, precision: str) -> Translator:
    if precision == "int8" and not int8_is_exact():
        pytest.skip(NO_EXACT_INT8)
    return dragoman.load(str(quick_run), device="cpu", precision=precision, engine="cpu")


@pytest.fixture(scope="module")
def margin(precision: str) -> float:
    return MARGINS[precision]


def lines() -> list[str]:
    return [source for source, _ in generate("reverse", 200, seed=3).test[:LINES]]


def differing(some: list[Translation], others: list[Translation], margin: float) -> int:
    """How many translations differ by more than a tie: in their score, whether or not in their tokens."""
    return sum(abs(one.score - two.score) > margin for one, two in zip(some, others, strict=True))


def changed(some: list[Translation], others: list[Translation]) -> int:
    """How many have other tokens, for whatever reason."""
    return sum(one.tokens != two.tokens for one, two in zip(some, others, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("batch_size", [7, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64))])
def test_batch_size_and_order_do_not_change_tokens(
    translator: Translator, margin: float, beam: int, batch_size: int
) -> None:
    texts = lines()
    expected = translator.translate(texts, beam=beam, batch_size=LINES)
    order = np.random.default_rng(batch_size).permutation(len(texts))
    found = translator.translate(texts, beam=beam, batch_size=batch_size)
    shuffled = translator.translate([texts[place] for place in order], beam=beam, batch_size=batch_size)
    for some, others in ((found, expected), (shuffled, [expected[place] for place in order])):
        assert differing(some, others, margin) == 0
        assert changed(some, others) <= LINES // 40, "and few ties"
    assert len({result.tokens for result in expected}) > 5, "the model gives different translations"


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("batch_size", [7, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64))])
def test_batch_size_and_order_do_not_change_a_bit_in_the_cpu_engine(
    on_cpu_engine: Translator, translator: Translator, margin: float, beam: int, batch_size: int
) -> None:
    texts = lines()
    expected = on_cpu_engine.translate(texts, beam=beam, batch_size=LINES)
    order = np.random.default_rng(batch_size).permutation(len(texts))
    assert on_cpu_engine.translate(texts, beam=beam, batch_size=batch_size, threads=2) == expected
    shuffled = on_cpu_engine.translate([texts[place] for place in order], beam=beam, batch_size=batch_size)
    assert shuffled == [expected[place] for place in order]
    assert differing(translator.translate(texts, beam=beam), expected, 2 * margin) <= LINES // 8, "the engines agree"


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.slow
def test_without_padding_mask_batch_size_changes_tokens(
    translator: Translator, margin: float, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = lines()
    alone = translator.translate(texts, beam=beam, batch_size=1)

    def unmasked(rows: list[list[int]]) -> tuple[object, object]:
        ids, allowed = pad_rows(rows)
        return ids, allowed.fill_(True)

    monkeypatch.setattr(engine, "pad_rows", unmasked)
    # neighbours of other lengths, so that there is padding to see
    together = list(translator.stream([texts], options=translator.options(beam=beam, batch_size=LINES)))
    assert differing(together, alone, margin) > 0
    assert changed(together, alone) > 0


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 5])
def test_one_int8_scale_per_batch_makes_tokens_depend_on_the_batch(
    quick_run: Path, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, texts = dragoman.load(str(quick_run), device="cpu", precision="int8", engine="plain"), lines()

    def whole_batch(x_NI: Tensor) -> tuple[Tensor, Tensor]:
        scale_N1 = (x_NI.abs().amax() / LEVELS).expand(x_NI.size(0), 1)
        return (x_NI / scale_N1).round().to(torch.int8), scale_N1

    monkeypatch.setattr(quantized, "quantize_rows", whole_batch)
    alone, together = (translator.translate(texts, beam=beam, batch_size=size) for size in (1, LINES))
    assert differing(together, alone, MARGINS["int8"]) > 0
    assert changed(together, alone) > 0


class Recomputed(engine.EngineDecoding):
    """A decoding without a cache: every step runs over the source and all tokens so far. `skipped` ones are not fed."""

    def __init__(self, model: Any, sources: Sequence[Sequence[int]], skipped: int = 0) -> None:
        super().__init__(model, None, torch.device("cpu"))
        self.skipped, self.width = skipped, 1
        self.source_ids, self.allowed = pad_rows(sources)
        self.ids_NT = torch.zeros(len(sources), 0, dtype=torch.int64)

    def step(self, id_N: Tensor) -> Tensor:
        self.ids_NT = torch.cat((self.ids_NT, id_N[:, None]), dim=1)
        fed = self.skipped if self.ids_NT.size(1) > self.skipped else 0
        source_ids, allowed = (part.repeat_interleave(self.width, dim=0) for part in (self.source_ids, self.allowed))
        logits_NTV: Tensor = self._model(source_ids, self.ids_NT[:, fed:], allowed)
        return logits_NTV[:, -1]

    def reorder(self, parent_BW: engine.Array) -> None:
        self.ids_NT = self.ids_NT[rows_of_hypotheses(torch.from_numpy(parent_BW), self.width)]
        self.width = parent_BW.shape[1]

    def select(self, sentence_B: engine.Array) -> None:
        sentences = torch.from_numpy(sentence_B)
        self.ids_NT = self.ids_NT[rows_of_sentences(sentences, self.width)]
        self.source_ids, self.allowed = self.source_ids[sentences], self.allowed[sentences]


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("skipped", [0, 1])
def test_cache_does_not_change_tokens(
    translator: Translator, margin: float, beam: int, skipped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `skipped`, the control: the first token forgotten."""
    texts = lines()
    cached = translator.translate(texts, beam=beam, batch_size=LINES)
    monkeypatch.setattr(engine.Engine, "start", lambda self, sources: Recomputed(self._model, sources, skipped))
    recomputed = translator.translate(texts, beam=beam, batch_size=LINES)
    if skipped:
        assert differing(recomputed, cached, margin) > 0
        assert changed(recomputed, cached) > 0
    else:
        assert differing(recomputed, cached, margin) == 0
        assert changed(recomputed, cached) <= LINES // 40


@pytest.mark.parametrize("beam", [1, 5])
def test_scoring_a_translation_matches_its_search_score(translator: Translator, margin: float, beam: int) -> None:
    results = [result for result in translator.translate(lines(), beam=beam) if result.status == "translated"]
    assert len(results) > LINES // 2
    sources, texts = [result.source for result in results], [result.text for result in results]
    found = np.array([result.score for result in results])
    assert np.abs(translator.score(sources, texts) - found).max() < margin
    others = translator.score(sources, [f"{text} a" for text in texts])
    assert (np.abs(others - found) > margin).all(), "the control"
