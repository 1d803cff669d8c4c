"""Translator.stream: lines of one job, resumable at any line, with progress."""

from pathlib import Path

import pytest

import dragoman
from dragoman.decode.translator import Translator

LINES = ["a b c", "", "d e f. G h i. J k", "k", "b a", "t s r q p o"]


@pytest.fixture(scope="module")
def translator(quick_run: Path) -> Translator:
    return dragoman.load(quick_run, device="cpu")


def test_resumed_job_draws_the_same_samples(translator: Translator) -> None:
    options = translator.options(sampling=True)
    whole = list(translator.stream([LINES], options=options))
    rest = list(translator.stream([LINES[2:4], LINES[4:]], options=options, start=2))
    assert [result.text for result in rest] == [result.text for result in whole[2:]]
    anew = list(translator.stream([LINES[2:]], options=options))
    assert [result.text for result in anew] != [result.text for result in whole[2:]], "the control"


def test_progress_counts_every_line_once(translator: Translator) -> None:
    counts: list[int] = []
    options = translator.options(split="sentences", batch_size=2)
    assert len(list(translator.stream([LINES], options=options, advance=counts.append))) == len(LINES)
    assert sum(counts) == len(LINES)
    assert counts[0] == 1, "the blank line is counted at once"
    assert max(counts) <= 2, "the others batch by batch"
