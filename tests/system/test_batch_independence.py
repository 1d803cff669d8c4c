"""The same sentence gives the same tokens at any batch size, in any order, with any neighbours; beam 1 and 5."""

from pathlib import Path

import numpy as np
import pytest

import dragoman
from dragoman.data.batching import pad_rows
from dragoman.data.generated import generate
from dragoman.decode import engine
from dragoman.decode.translator import Translation, Translator

MARGIN = 1e-4  # float32 rows differ by about 1e-6 with the shape of the batch; a tie may then go either way


@pytest.fixture(scope="module")
def translator(quick_run: Path) -> Translator:
    return dragoman.load(str(quick_run), device="cpu")


def lines() -> list[str]:
    return [source for source, _ in generate("reverse", 200, seed=3).test[:80]]


def differing(some: list[Translation], others: list[Translation]) -> int:
    """How many translations differ by more than a tie."""
    pairs = zip(some, others, strict=True)
    return sum(one.tokens != two.tokens and abs(one.score - two.score) > MARGIN for one, two in pairs)


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batch_size_and_order_change_no_token(translator: Translator, beam: int, batch_size: int) -> None:
    texts = lines()
    expected = translator.translate(texts, beam=beam, batch_size=80)
    assert differing(translator.translate(texts, beam=beam, batch_size=batch_size), expected) == 0
    order = np.random.default_rng(batch_size).permutation(len(texts))
    shuffled = translator.translate([texts[place] for place in order], beam=beam, batch_size=batch_size)
    assert differing(shuffled, [expected[place] for place in order]) == 0


@pytest.mark.parametrize("beam", [1, 5])
def test_without_the_padding_mask_they_would(
    translator: Translator, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = lines()
    alone = translator.translate(texts, beam=beam, batch_size=1)

    def unmasked(rows: list[list[int]]) -> tuple[object, object]:
        ids, allowed = pad_rows(rows)
        return ids, allowed.fill_(True)

    monkeypatch.setattr(engine, "pad_rows", unmasked)
    # neighbours of other lengths, so that there is padding to see
    together = list(translator.stream([texts], options=translator.options(beam=beam, batch_size=80)))
    assert differing(together, alone) > 0
