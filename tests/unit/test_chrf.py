"""chrF between many texts: equal to sacrebleu's sentence chrF."""

import itertools
import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import sentence_chrf

from dragoman.decode.chrf import chrf, pairwise_chrf

TEXTS = ["", "a", "aa", "aaaaaaa", "The cat sat on the mat.", "the cat sat  on the mat", "日本語の文", "Ça va ?", " "]


def test_every_pair_has_the_chrf_of_sacrebleu() -> None:
    scores = pairwise_chrf(TEXTS)
    for one, other in itertools.product(range(len(TEXTS)), repeat=2):
        expected = sentence_chrf(TEXTS[one], [TEXTS[other]]).score
        assert scores[one, other] == pytest.approx(expected, abs=1e-9), (TEXTS[one], TEXTS[other])
    assert scores[4, 5] != pytest.approx(scores[5, 4], abs=1e-3), "the control: the reference is the second one"


@settings(max_examples=60)
@given(st.lists(st.text(alphabet="ab c\U0001f600", max_size=12), min_size=1, max_size=6))
def test_any_texts_have_the_chrf_of_sacrebleu(texts: list[str]) -> None:
    scores = pairwise_chrf(texts)
    expected = [[sentence_chrf(one, [other]).score for other in texts] for one in texts]
    assert np.allclose(scores, expected, atol=1e-9)
    assert chrf(texts[0], texts[-1]) == pytest.approx(expected[0][-1], abs=1e-9)


def test_many_texts_take_far_less_time_than_pair_by_pair() -> None:
    chance = random.Random(1)
    texts = ["".join(chance.choices("abcdefgh ", k=120)) for _ in range(32)]
    start = time.process_time()
    pairwise_chrf(texts)
    ours, start = time.process_time() - start, time.process_time()
    for text in texts[:16]:
        for other in texts[:16]:
            sentence_chrf(text, [other])
    assert ours < time.process_time() - start, "all 1,024 pairs take less than 256 of them"
