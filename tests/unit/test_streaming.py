"""A translation as it becomes certain: never withdrawn, and in the end the same."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman import Translator
from dragoman.config import DecodeConfig
from dragoman.data.corpus import Line
from dragoman.decode.engines.plain import Engine
from dragoman.decode.search import search, stream_prefixes
from dragoman.decode.streaming import stream_joined
from tests.searching import SPECIAL, make_jobs, random_model


@torch.inference_mode()
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_ids_that_are_certain_stay_and_end_as_the_best_hypothesis(beam: int) -> None:
    engine, options = Engine(random_model(7, end_bias=1.0), "cpu"), DecodeConfig(beam=beam)
    sources, limits = make_jobs(3, 12)
    early = 0
    for source, limit in zip(sources, limits, strict=True):
        steps = list(stream_prefixes(engine.start([source]), limit, options, **SPECIAL))
        for (before, _), (after, _) in itertools.pairwise(steps):
            assert after[: len(before)] == before
        ((expected,),) = search(engine.start([source]), [limit], options, [0], **SPECIAL)
        assert steps[-1] == (expected.ids, expected)
        assert all(best is None for _, best in steps[:-1])
        early += any(0 < len(ids) < len(expected.ids) for ids, _ in steps[:-1])
    assert early >= (3 if beam < 3 else 0), "the control: some ids are certain before the end"


@given(
    st.lists(st.tuples(st.sampled_from(["", " "]), st.text("aé\u0301 .ก\ufffd'", max_size=12)), max_size=4),
    st.integers(1, 4),
)
def test_text_grows_to_what_was_joined(pieces: list[tuple[str, str]], size: int) -> None:
    def growing(text: str) -> list[tuple[str, bool]]:
        return [*((text[:end], False) for end in range(0, len(text), size)), (text, True)]

    parts = list(stream_joined((glue, growing(text)) for glue, text in pieces))
    assert "".join(parts) == "".join(glue + text for glue, text in pieces).strip()
    assert all(parts)


def test_words_come_whole_and_letters_with_their_accents() -> None:
    whole = "ein großes Haus"
    texts = [(whole[:end], end == len(whole)) for end in range(len(whole) + 1)]
    assert list(stream_joined([("", texts)])) == ["ein", " großes", " Haus"]
    # the accent joins the letter only when it arrives, and a character its last byte
    assert list(stream_joined([("", [("cafe", False), ("café", False), ("café x", True)])])) == ["café x"]
    assert list(stream_joined([("", [("東", False), ("東\ufffd", False), ("東京", False), ("東京。", True)])])) == [
        "東",
        "京。",
    ]


@pytest.fixture(scope="module")
def german() -> Translator:
    return dragoman.load("en-de", "cpu")


TEXT = "The house is old. It is very big, and nobody lives there any more, because it is far away from the city."


@pytest.mark.slow
def test_parts_are_together_what_translate_returns(german: Translator) -> None:
    plain = dragoman.load("en-de", "cpu", "float32", engine="plain")
    for translator, options in itertools.product([german, plain], [{}, {"beam": 1}, {"no_repeat_ngram": 2}]):
        parts = list(translator.stream_text(TEXT, **options))  # type: ignore[arg-type]
        assert "".join(parts) == translator.translate(TEXT, **options).text  # type: ignore[call-overload]
        assert len(parts) == 1 if "no_repeat_ngram" in options else len(parts) > 2
    assert len(list(german.stream_text(TEXT, beam=1))) > len(list(german.stream_text(TEXT, beam=4)))


@pytest.mark.slow
def test_lines_follow_each_other_and_what_is_kept_comes_whole(german: Translator) -> None:
    lines = ["Hello {name}.", "", "I bought a car.", "I love dogs."]
    terms = [("car", "Kraftfahrzeug")]
    parts = list(german.stream_text("\n".join(lines), glossary=terms))
    expected = [german.translate(line, glossary=terms).text for line in lines]
    assert "".join(parts) == "\n".join(expected)
    assert expected[0] in parts
    assert expected[2] in parts
    assert "Kraftfahrzeug" in expected[2]


def test_a_line_ends_with_its_status(german: Translator) -> None:
    options = german.options(beam=1)

    def status_of(line: str | Line, **changed: Any) -> tuple[str, str]:
        parts = german.stream_line(line, replace(options, **changed))
        while True:
            try:
                next(parts)
            except StopIteration as end:
                return end.value.status, end.value.reason

    assert status_of("I love dogs.") == ("translated", "")
    assert status_of("") == ("empty", "")
    assert status_of("I love dogs.", max_extra=1, min_length=40) == ("truncated", "")
    assert status_of("\ud800") == ("failed", "invalid UTF-8 at character 1")


def test_nothing_is_left_switched_on_between_parts(german: Translator) -> None:
    plain = dragoman.load("en-de", "cpu", "float32", engine="plain")
    stream = plain.stream_text(TEXT)
    next(stream)
    assert not torch.is_inference_mode_enabled()
    del stream
    assert plain.translate("I love dogs.").text == german.translate("I love dogs.").text
