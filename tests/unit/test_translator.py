"""Text to text with a real, barely trained model: order, status, scores, attention."""

import copy
import functools
import gc
import json
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman.config import DecodeConfig
from dragoman.data.corpus import Line, read_lines
from dragoman.decode import pieces as pieces_module
from dragoman.decode import pipeline as pipeline_module
from dragoman.decode.assembly import details_of
from dragoman.decode.engines import plain as engine
from dragoman.decode.garbage import MANY_LINES, WINDOWS_BEFORE_COLLECTION, without_garbage_collection
from dragoman.decode.halving import in_halves
from dragoman.decode.pipeline import Pipeline
from dragoman.decode.request import Request
from dragoman.decode.search import Hypothesis, search
from dragoman.decode.translation import Translation, translated
from dragoman.decode.translator import Translator
from dragoman.errors import ConfigError
from dragoman.inspect.capture import inspect_sentence
from dragoman.progress import no_progress
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.vocabulary import VOCABULARY, Vocabulary

PAD, UNK, BOS, EOS = VOCABULARY.pad, VOCABULARY.unk, VOCABULARY.bos, VOCABULARY.eos

LINES = ["a b c", "", "d e f g h i j", "   ", "k", "b a", "t s r q p o"]


@pytest.fixture(scope="module")
def translator(quick_run: Path) -> Translator:
    """In the plain engine, in which tests plant faults."""
    return dragoman.load(str(quick_run), device="cpu", engine="plain")


def test_string_gives_one_translation_and_list_gives_a_list(translator: Translator) -> None:
    one = translator.translate("a b c")
    assert one.text == translator.translate(["a b c"])[0].text
    assert one.source == "a b c"
    assert one.status == "translated"
    assert translator.translate([]) == []
    assert [result.text for result in translator.translate(line for line in ["a b c"])] == [one.text]


def test_every_input_has_one_result_with_a_status_in_order(translator: Translator) -> None:
    results = translator.translate(LINES)
    assert [result.source for result in results] == LINES
    assert [result.status for result in results] == [
        "translated", "empty", "translated", "empty", "translated", "translated", "translated",
    ]  # fmt: skip
    assert [result.text for result in results if result.status == "empty"] == ["", ""]


@pytest.mark.parametrize("beam", [1, 4])
def test_batch_size_and_order_change_nothing(translator: Translator, beam: int) -> None:
    together = translator.translate(LINES, beam=beam)
    alone = [translator.translate(line, beam=beam) for line in LINES]
    backwards = translator.translate(LINES[::-1], beam=beam, batch_size=2)[::-1]
    for first, second, third in zip(together, alone, backwards, strict=True):
        assert first.text == second.text == third.text
        assert first.score == pytest.approx(second.score, abs=1e-4)
        assert first.score == pytest.approx(third.score, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_scoring_a_translation_gives_the_score_of_the_search(translator: Translator, beam: int) -> None:
    results = [result for result in translator.translate(LINES, beam=beam) if result.status == "translated"]
    scores = translator.score([result.source for result in results], [result.text for result in results])
    for result, score in zip(results, scores, strict=True):
        assert result.score == pytest.approx(score, abs=1e-4)
    others = translator.score([result.source for result in results], [result.text + " a" for result in results])
    assert all(abs(score - other) > 1e-2 for score, other in zip(scores, others, strict=True)), "the control"


def test_scores_are_log_probabilities_normalised_by_length(translator: Translator) -> None:
    result = translator.translate("a b c d", beam=4)
    assert result.score < 0
    length = len(result.tokens)
    assert result.tokens[-1] == "</s>"
    assert result.normalized_score == pytest.approx(result.score / ((5 + length) / 6) ** 0.6, rel=1e-6)


def test_n_best_is_sorted_and_distinct(translator: Translator) -> None:
    result = translator.translate("a b c d", beam=5, n_best=5)
    assert len(result.alternatives) == 5
    assert result.alternatives[0].text == result.text
    ranks = [other.normalized_score for other in result.alternatives]
    assert ranks == sorted(ranks, reverse=True)
    assert len({other.tokens for other in result.alternatives}) == 5
    with pytest.raises(ConfigError, match=r"decode\.n_best: 6 is more than beam=5; widen the beam or ask for fewer"):
        translator.translate("a", beam=5, n_best=6)


def test_details_are_computed_once_when_one_is_read(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    text: dict[str, Any] = {"text": "a b! C d", "beam": 2, "n_best": 2, "split": "sentences"}
    expected = translator.translate(**text)
    assert expected.source_tokens.count("</s>") == 2
    computed: list[int] = []

    def noted(*arguments: Any) -> Any:
        computed.append(1)
        return details_of(*arguments)

    monkeypatch.setattr(pipeline_module, "details_of", noted)
    result = translator.translate(**text)
    assert (result.source, result.text, result.status, result.attention, result.reason) == (
        expected.source, expected.text, expected.status, None, "",
    )  # fmt: skip
    assert not computed
    assert result.to_dict() == expected.to_dict()
    assert result == expected
    assert hash(result) == hash(expected)
    assert result.alternatives is result.alternatives
    assert computed == [1]
    assert "_details" not in vars(result), "what computed them is forgotten"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_hold_the_details_and_no_model(translator: Translator, copied: Callable[[Any], Any]) -> None:
    result = translator.translate("a b c", beam=2)
    other = copied(result)
    assert all(type(value) is not functools.partial for value in vars(other).values())
    assert vars(other)["tokens"][-1] == "</s>"
    assert other == result


def test_details_may_be_read_by_several_threads() -> None:
    both = threading.Barrier(2)

    def details() -> Any:
        both.wait()  # until the other thread computes them too
        return {"score": 1.5}

    result = translated("a", "b", "translated", details)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: result.score, range(2))) == [1.5, 1.5]
    assert result.score == 1.5


def test_an_incomplete_character_alters_a_translation() -> None:
    def details() -> Any:
        return {}

    reason = "the model wrote only some of the bytes of a character"
    assert translated("a", "b\ufffd", "translated", details).status == "altered"
    assert translated("a", "b\ufffd", "split", details).reason == reason
    assert translated("a", "b\ufffd", "truncated", details).status == "truncated"
    assert translated("a\ufffd", "b\ufffd", "translated", details).status == "translated", "as in the source"
    assert translated("a", "b", "translated", details).reason == ""


def test_a_result_does_not_keep_the_model_in_memory(quick_run: Path) -> None:
    own = dragoman.load(str(quick_run), device="cpu", engine="plain")
    result, alive = own.translate("a b c", beam=2), weakref.ref(own)
    del own
    gc.collect()
    assert alive() is None
    assert result.tokens[-1] == "</s>"


def test_the_text_of_the_best_alternative_is_not_decoded_again(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [translator.translate("a b c d", beam=3, n_best=count) for count in (1, 3)]
    decoded: list[int] = []
    decode = Tokenizer.decode_batch

    def noted(self: Tokenizer, rows: Any) -> Any:
        decoded.append(len(rows))
        return decode(self, rows)

    monkeypatch.setattr(Tokenizer, "decode_batch", noted)
    assert [len(result.alternatives) for result in results] == [1, 3]
    assert decoded == [0, 2]
    assert all(result.alternatives[0].text == result.text for result in results)


def test_a_translation_is_frozen_and_differs_by_its_tokens(translator: Translator) -> None:
    result = translator.translate("a b c", beam=2)
    assert replace(result) == result
    assert replace(result, tokens=(*result.tokens, "a")) != result
    assert replace(result, source_tokens=()) != result
    assert replace(result.alternatives[0], tokens=("a",)) != result.alternatives[0]
    for name in ("tokens", "text"):
        with pytest.raises(FrozenInstanceError):
            setattr(result, name, ())
    assert Translation("a", "b", "translated").tokens == ()


def test_options_that_change_nothing_are_checked_too(translator: Translator) -> None:
    own = translator.options()
    assert translator.options(n_best=own.n_best, beam=own.beam) == own
    assert translator.options(n_best=own.n_best, beam=own.beam + 1) != own, "the control"
    assert own.n_best == 1
    with pytest.raises(ConfigError, match=r"^decode\.n_best: True is not a whole number"):
        translator.options(n_best=True)


def test_unknown_option_is_refused_with_a_suggestion(translator: Translator) -> None:
    with pytest.raises(ConfigError, match=r"^precision: unknown option; give it to dragoman\.load$"):
        translator.translate("a", precision="int8")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"beem: unknown option; did you mean beam\?"):
        translator.translate("a", beem=5)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, ": is NoneType"),
        (b"a b", ": is bytes"),
        (["a b", 3], " 2: is int"),
    ],
)
def test_non_text_input_is_refused(translator: Translator, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^text{message}; give a list of strings$"):
        translator.translate(given)
    with pytest.raises(ConfigError, match=f"^targets{message}; give a list of strings$"):
        translator.score(["a b"], given)


def test_sampling_is_reproducible_and_depends_on_its_seed(translator: Translator) -> None:
    def draw(lines: list[str], **options: Any) -> list[str]:
        return [result.text for result in translator.translate(lines, sampling=True, **options)]

    assert draw(LINES) == draw(LINES, batch_size=2)
    assert draw(LINES) != draw(LINES, seed=2)
    assert draw(LINES, top_k=1) == [result.text for result in translator.translate(LINES, beam=1)]


def test_samples_depend_on_line_numbers_not_on_windows(translator: Translator) -> None:
    options = translator.options(sampling=True, seed=5)
    lines = ["a b c d"] * 12

    def draw(*windows: list[str]) -> list[str]:
        return [result.text for result in translator.stream(windows, options=options)]

    together = draw(lines)
    assert len(set(together)) > 3, "lines are sampled separately"
    assert draw(*([line] for line in lines)) == together
    assert draw(lines[:5], lines[5:6], lines[6:]) == together


def test_equal_sentences_of_a_line_are_sampled_separately(translator: Translator) -> None:
    found = translator.translate("A b c d! " * 12, split="sentences", sampling=True, seed=5)
    drawn = " ".join(found.tokens).split("</s>")[:-1]
    assert len(drawn) == 12
    assert len(set(drawn)) > 3


@pytest.mark.parametrize("special", [PAD, UNK, BOS], ids=["pad", "unk", "bos"])
@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4}, {"sampling": True}], ids=str)
def test_special_ids_are_never_produced_however_likely(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, special: int, options: dict[str, Any]
) -> None:
    fed: set[int] = set()
    step = engine.EngineDecoding.step

    def favouring(self: engine.EngineDecoding, ids_N: torch.Tensor) -> torch.Tensor:
        fed.update(ids_N.tolist())
        log_probs = step(self, ids_N).log_softmax(dim=-1)
        log_probs[:, special] = 5.0  # above the log of 1
        if len(fed) > 1:
            log_probs[:, EOS] = -1.0  # so that it ends
        return log_probs

    monkeypatch.setattr(engine.EngineDecoding, "step", favouring)
    inspected = inspect_sentence(translator, "a b c").target_ids
    assert special not in inspected
    fed.clear()
    found = translator.translate("a b c", **options)
    assert translator.tokenizers.target.pieces([special])[0] not in found.tokens
    assert fed - {BOS}, "something was produced"
    assert special == BOS or special not in fed, "nor considered: it would take a place in the beam"


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4}, {"sampling": True, "seed": 3}], ids=str)
def test_a_model_with_other_special_ids_translates_the_same(quick_run: Path, options: dict[str, Any]) -> None:
    """Its first four rows in reverse order, and a vocabulary that says so."""
    lines = ["a b c", "d e f g h", "k"]
    translator, other = (dragoman.load(str(quick_run), device="cpu") for _ in range(2))
    own = dict(other.engine.model.named_parameters())
    with torch.no_grad():
        for name in ("source_embedding.weight", "target_embedding.weight", "output.weight", "output.bias"):
            if name in own:
                own[name][:4] = own[name][:4].flip(0)
    results = [each.tokens for each in other.translate(lines, **options)]
    expected = translator.translate(lines, **options)
    assert results != [each.tokens for each in expected], "the control: the ids as they were"
    for tokenizer in (other.tokenizers.source, other.tokenizers.target):
        tokenizer.vocabulary = Vocabulary(pad=3, unk=2, bos=1, eos=0)
    found = other.translate(lines, **options)
    assert [each.text for each in found] == [each.text for each in expected]
    if not options.get("sampling"):
        assert [each.score for each in found] == pytest.approx([each.score for each in expected])
    assert other.score(lines, lines) == pytest.approx(translator.score(lines, lines))
    assert inspect_sentence(other, "a b c").score == pytest.approx(inspect_sentence(translator, "a b c").score)


def test_a_model_that_never_ends_is_truncated(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    step = engine.EngineDecoding.step

    def endless(self: engine.EngineDecoding, ids: torch.Tensor) -> torch.Tensor:
        log_probs = step(self, ids)
        log_probs[:, 3] = -math.inf
        return log_probs

    monkeypatch.setattr(engine.EngineDecoding, "step", endless)
    result = translator.translate("a b c", beam=2, max_extra=7, attention=True)
    assert result.status == "truncated"
    assert len(result.tokens) == 3 + 7
    assert result.attention is not None
    assert result.attention.cross.shape[2:] == (10, 4)


def test_over_long_input_is_split_never_cut(translator: Translator) -> None:
    longest = translator.config.text.max_length
    words = " ".join("abcdefghij"[place % 10] for place in range(2 * longest))
    result, neighbour = translator.translate([words, "a b"], beam=1)
    assert result.status == "split"
    assert neighbour.status == "translated"
    assert result.source_tokens.count("</s>") > 1
    assert [token for token in result.source_tokens if token != "</s>"] == [f"▁{word}" for word in words.split()]


def test_sentences_are_translated_one_by_one_on_request(translator: Translator) -> None:
    line, parts = "a b c! D e? F g", ["a b c! ", "D e? ", "F g"]
    whole, apart = (translator.translate(line, split=split) for split in ("long", "sentences"))
    assert whole.source_tokens.count("</s>") == 1
    assert apart.source_tokens.count("</s>") == 3
    alone = [translator.translate(part) for part in parts]
    assert apart.text == " ".join(each.text for each in alone).strip()
    assert apart.score == pytest.approx(sum(each.score for each in alone), abs=1e-4)
    assert (apart.source, apart.status, apart.attention) == (line, "translated", None)
    long = " ".join("abcdefghij"[place % 10] for place in range(2 * translator.config.text.max_length))
    assert translator.translate(f"a b. {long.capitalize()}", split="sentences", beam=1).status == "split"
    with pytest.raises(ConfigError, match=r"^decode.split: 'words' is not a choice; known: long, sentences$"):
        translator.translate(line, split="words")  # type: ignore[call-overload]


def test_invalid_line_fails_alone(translator: Translator) -> None:
    bad = Line(2, "", "invalid UTF-8 at byte 31")
    results = list(translator.stream([["a b", bad, "broken \ud800", "c d"]]))
    assert [result.status for result in results] == ["translated", "failed", "failed", "translated"]
    assert [result.text for result in results[1:3]] == ["", ""]
    assert results[1].reason == "invalid UTF-8 at byte 31"
    assert results[2].reason == "invalid UTF-8 at character 8"
    assert results[0].text == translator.translate("a b").text


def test_byte_order_mark_at_the_start_of_a_text_is_dropped(translator: Translator) -> None:
    assert translator.translate("\ufeffa b c") == translator.translate("a b c")
    assert translator.translate(["d", "\ufeffa b c"]) == translator.translate(["d", "a b c"])
    assert translator.translate("\ufeff") == translator.translate("")
    inside = translator.translate("a b\ufeff c")
    assert inside.source == "a b\ufeff c"
    assert inside.source_tokens != translator.translate("a b c").source_tokens, "elsewhere it is text"
    (later,) = translator.stream([[Line(2, "\ufeffa b c")]])
    assert later.source == "\ufeffa b c", "as in a line that is not the first of its file"


def test_nul_is_refused_in_files_and_strings(translator: Translator, tmp_path: Path) -> None:
    text = "a b\0 c"
    (tmp_path / "file").write_bytes(text.encode() + b"\n")
    (read,) = translator.stream([list(read_lines(tmp_path / "file"))])
    given, neighbour = translator.translate([text, "a b"])
    assert neighbour.status == "translated"
    assert (given.source, given.text, given.status) == (text, "", "failed")
    assert (read.status, read.reason) == ("failed", "NUL at byte 4")
    assert given.reason == "NUL at character 4"
    assert translator.translate("ก\0\ud800").reason == "NUL at character 2"


def test_out_of_memory_halves_the_batch_and_keeps_the_output(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = translator.translate(LINES)
    start = engine.Engine.start
    sizes: list[int] = []

    def limited(self: engine.Engine, sources: Any) -> Any:
        sizes.append(len(sources))
        if len(sources) > 2 or any(len(ids) > 7 for ids in sources):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return start(self, sources)

    monkeypatch.setattr(engine.Engine, "start", limited)
    results = translator.translate(LINES)
    assert [result.text for result in results if result.status != "failed"] == [
        result.text for result in expected if len(result.source.split()) < 7
    ]
    failed = [result for result in results if result.status == "failed"]
    assert [(result.source, result.reason) for result in failed] == [("d e f g h i j", "out of memory at 8 tokens")]
    assert max(sizes) > 2, "it was tried"


@pytest.fixture
def live_decodings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Two rows fit into memory. At the start of each decoding, how many decodings and caches there are already.

    Without the garbage collector: what only it would free still holds its memory when the halves start.
    """
    start, step = engine.Engine.start, engine.EngineDecoding.step
    made: list[weakref.ref[Any]] = []
    live: list[int] = []

    def counted_start(self: engine.Engine, sources: Any) -> engine.EngineDecoding:
        live.append(sum(each() is not None for each in made))
        decoding = start(self, sources)
        made.extend([weakref.ref(decoding), weakref.ref(decoding._cache)])
        return decoding

    def limited_step(self: engine.EngineDecoding, ids_N: torch.Tensor) -> torch.Tensor:
        log_probs = step(self, ids_N)
        if len(ids_N) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return log_probs

    monkeypatch.setattr(engine.Engine, "start", counted_start)
    monkeypatch.setattr(engine.EngineDecoding, "step", limited_step)
    gc.disable()
    yield live
    gc.enable()


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 2}, {"sampling": True}], ids=str)
def test_a_failed_decoding_is_freed_before_its_halves_start(
    translator: Translator, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    lines = [line for line in LINES if line.strip()]
    expected = translator.translate(lines, **options)
    live = request.getfixturevalue("live_decodings")
    results = translator.translate(lines, **options)
    if options.get("beam") == 2:  # two rows per sentence: one at a time
        assert len(live) == 2 * len(lines) - 1
    assert len(live) > 3, "it was halved, more than once"
    assert live == [0] * len(live)
    assert [result.text for result in results] == [result.text for result in expected]


def test_leaked_decoding_is_detected(
    translator: Translator, live_decodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a stored exception holds its traceback, and with it the decoding."""
    step = engine.EngineDecoding.step
    kept: list[Exception] = []

    def keeping(self: engine.EngineDecoding, ids_N: torch.Tensor) -> torch.Tensor:
        try:
            return step(self, ids_N)
        except torch.OutOfMemoryError as error:
            kept.append(error)
            raise

    monkeypatch.setattr(engine.EngineDecoding, "step", keeping)
    translator.translate([line for line in LINES if line.strip()], beam=1)
    assert max(live_decodings) >= 2
    kept.clear()


def test_cached_memory_is_released_before_halves_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("release"))

    def work(items: Sequence[int]) -> list[int]:
        events.append(list(items))
        if 3 in items:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [10 * item for item in items]

    assert in_halves(work, [1, 2, 3], lambda item: -item, "cuda") == [10, 20, -3]
    assert events == [[1, 2, 3], "release", [1], [2, 3], "release", [2], [3], "release"]
    events.clear()
    assert in_halves(work, [1, 2, 3], lambda item: -item, "cpu") == [10, 20, -3]
    assert "release" not in events


def test_other_errors_are_not_taken_for_out_of_memory() -> None:
    def work(items: Sequence[int]) -> list[int]:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match=r"^shapes cannot be multiplied$"):
        in_halves(work, [1, 2], lambda item: -item, "cpu")


def test_line_of_several_sentences_is_not_split_with_attention(translator: Translator) -> None:
    line = "one two. Three four."
    found = translator.translate(line, attention=True)
    assert found.attention is not None
    assert found.text == translator.translate(line, split="long").text
    assert translator.translate(line, attention=True, split="sentences").attention is None, "as requested"


def test_attention_covers_every_layer_and_head(translator: Translator) -> None:
    result = translator.translate("a b c", beam=3, attention=True)
    attention = result.attention
    assert attention is not None
    sources, targets = len(result.source_tokens), len(result.tokens)
    assert attention.encoder.shape == (1, 4, sources, sources)
    assert attention.decoder.shape == (1, 4, targets, targets)
    assert attention.cross.shape == (1, 4, targets, sources)
    for weights in (attention.encoder, attention.decoder, attention.cross):
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    assert attention.input_tokens == ("<s>", *result.tokens[:-1])
    assert attention.source_tokens == result.source_tokens == ("▁a", "▁b", "▁c", "</s>")
    assert result.alignment is not None
    assert [target for _, target in result.alignment] == list(range(targets - 1))
    plain = translator.translate("a b c", beam=3)
    assert plain.attention is None
    assert plain.alignment is None
    assert plain.text == result.text


def test_json_has_the_documented_fields(translator: Translator) -> None:
    record = json.loads(json.dumps(translator.translate("a b").to_dict()))
    assert {"source", "translation", "score", "normalized_score", "status"} <= record.keys()
    many = translator.translate("a b", n_best=2, attention=True).to_dict()
    assert len(many["alternatives"]) == 2
    assert {"tokens", "source_tokens", "alignment"} <= many.keys()


def skewed(size: int) -> str:
    """Split repeatedly after an eighth of the rest."""
    line = ""
    while (left := size - len(line)) > 16:
        line += "a" * (left // 8 - 1) + ". "
    return line


@pytest.mark.parametrize(
    "make",
    [
        *(
            (lambda size, part=part: part * (size // len(part)))
            for part in ("a", "a ", ", ", "a,", ". ", "。", "\0 ก ")
        ),
        skewed,
    ],
)
def test_cutting_a_long_line_takes_little_more_than_linear_work(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """Counted in characters encoded and characters searched for a place to cut, at most two a level."""
    cutter, encode, middle = translator.cutter, translator.tokenizers.source.encode, pieces_module.middle
    split = cutter.split
    work, depths = [0], [0]

    def counted(function: Any) -> Any:
        def call(line: str) -> Any:
            work[-1] += len(line)
            return function(line)

        return call

    def nested(line: str, tag: list[int]) -> Any:
        depths.append(depths[-1] + 1)
        found = split(line, tag)
        depths.append(depths[-1] - 1)
        return found

    monkeypatch.setattr(translator.tokenizers.source, "encode", counted(encode))
    monkeypatch.setattr(pieces_module, "middle", counted(middle))
    monkeypatch.setattr(cutter, "split", nested)
    sizes = 6_000, 12_000
    for size in sizes:
        work.append(0)
        pieces = cutter.split(make(size), [])
        assert max(len(ids) for _, ids, _ in pieces) <= cutter.longest
        assert len(pieces) > 1
    levels = math.log2(sizes[-1])
    assert work[2] <= 2.5 * work[1]
    assert work[2] <= 2 * sizes[-1] * levels
    assert max(depths) <= (3 if make is skewed else 1) * levels


def test_pieces_are_joined_by_their_original_separators(translator: Translator) -> None:
    longest = translator.config.text.max_length
    spaced = translator.cutter.split(" ".join(["a"] * 2 * longest), [])
    assert [glue for _, _, glue in spaced] == ["", *[" "] * (len(spaced) - 1)]
    unspaced = translator.cutter.split("ก" * 2 * longest, [])
    assert len(unspaced) > 1
    assert {glue for _, _, glue in unspaced} == {""}


def test_a_line_fails_for_the_reason_of_its_first_piece(translator: Translator) -> None:
    options = translator.options(split="sentences")
    pipeline = Pipeline(translator, Request(options))
    window = pipeline._prepare(["a b! C d! E f!", "a"])
    found = [Hypothesis((270,), -1.0, -1.0, True)]
    results = pipeline._finish(window, [found, "first", "second", found])
    assert [(result.status, result.reason) for result in results] == [("failed", "first"), ("translated", "")]


def test_a_search_that_fails_leaves_no_thread_behind(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "PART_ON_CUDA", 2)
    queued, before = QueuedSearch(translator, 1), set(threading.enumerate())

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(queued, "add", broken)
    options = translator.options(batch_size=1)
    with pytest.raises(RuntimeError, match="broken") as error:
        Pipeline(translator, Request(options))._translate_on_cuda(queued, LINES, no_progress)  # type: ignore[arg-type]
    assert not set(threading.enumerate()) - before, error


class QueuedSearch:
    """In place of the search on a GPU: the plain engine, once results are taken."""

    def __init__(self, translator: Translator, ready_after: int) -> None:
        self.ready_after = ready_after  # so many parts were added after one
        self.translator, self.log, self.waiting = translator, list[str](), deque[tuple[Any, Any]]()

    def begin(self, options: DecodeConfig, expected: int, **special: Any) -> "QueuedSearch":
        self.options, self.special = options, special
        self.log.append(f"expect {expected}")
        return self

    def add(self, sources: list[list[int]], limits: list[int]) -> None:
        self.log.append(f"add {len(sources)}")
        self.waiting.append((sources, limits))

    def is_ready(self) -> bool:
        return len(self.waiting) > self.ready_after

    def take(self) -> list["QueuedSearch"]:
        self.log.append("take")
        return [self] if self.waiting[0][0] else []

    def hypotheses(self, options: DecodeConfig) -> Iterator[tuple[int, list[Hypothesis]]]:
        sources, limits = self.waiting.popleft()
        with self.translator.inference():
            decoding = self.translator.engine.start(sources)
            found = search(decoding, limits, options, range(len(sources)), **self.special)
        return reversed([*enumerate(found)])  # they may come in any order


@pytest.mark.parametrize(("most", "ready_after"), [(2, 99), (99, 2)])
def test_lines_reach_a_gpu_in_parts_the_longest_first(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, most: int, ready_after: int
) -> None:
    """The results of a part are taken when they are ready or too many others were added; every line gets its own."""
    monkeypatch.setattr(pipeline_module, "PART_ON_CUDA", 2)
    monkeypatch.setattr(pipeline_module, "MAX_PARTS", most)
    options, queued = translator.options(batch_size=1, split="long"), QueuedSearch(translator, ready_after)
    into_sentences, parts, steps = translator.cutter.into_sentences, list[Sequence[str | Line]](), list[int]()

    def noted(lines: Sequence[str | Line], *how: Any) -> Any:
        parts.append(lines)
        queued.log.append("prepare")
        return into_sentences(lines, *how)

    monkeypatch.setattr(translator.cutter, "into_sentences", noted)
    lines = [*LINES, Line(8, "a b c d"), "\ud800"]
    pipeline = Pipeline(translator, Request(options))
    results = pipeline._translate_on_cuda(queued, lines, steps.append)  # type: ignore[arg-type]
    assert parts == [
        ["d e f g h i j", "t s r q p o"], [Line(8, "a b c d"), "a b c"], ["   ", "b a"], ["k", "\ud800"], [""],
    ]  # fmt: skip
    prepared = [event for event in queued.log if event != "prepare"]
    assert prepared == ["expect 9", "add 2", "add 2", "add 1", "take", "add 1", "take", "add 0", *["take"] * 3]
    added = [event for event in queued.log if event.startswith(("prepare", "add"))]
    order = ["prepare", "prepare", "add 2", "prepare", "add 2", "prepare", "add 1", "prepare", "add 1", "add 0"]
    assert added == order, "one part ahead, and no more"
    assert steps == [2, 2, 2, 2, 1]
    expected = translator.translate([*LINES, "a b c d", "\ud800"], split="long")
    for own, other in zip(results, expected, strict=True):
        assert (own.source, own.text, own.status, own.tokens) == (other.source, other.text, other.status, other.tokens)


def test_collection_pauses_and_what_is_young_becomes_old() -> None:
    """The results of a window are not searched for garbage the moment it ends, and garbage is still found later."""
    gc.collect()
    with without_garbage_collection(MANY_LINES):
        assert not gc.isenabled()
        cycle: list[Any] = [Translation("a", "b", "translated")]
        cycle.append(cycle)
        found = weakref.ref(cycle[0])
    assert gc.isenabled()
    assert not any(each is cycle for each in gc.get_objects(generation=0))
    del cycle
    gc.collect(1)
    assert found() is not None
    gc.collect()
    assert found() is None


@pytest.mark.parametrize("lines", [1, MANY_LINES])
def test_garbage_does_not_pile_up_over_many_windows(lines: int) -> None:
    class Garbage:
        alive = 0

        def __init__(self) -> None:
            self.own, Garbage.alive = self, Garbage.alive + 1

        def __del__(self) -> None:
            Garbage.alive -= 1

    for _ in range(3 * WINDOWS_BEFORE_COLLECTION):
        for _ in range(50):
            Garbage()
        with without_garbage_collection(lines):
            pass
    assert Garbage.alive <= 50 * (WINDOWS_BEFORE_COLLECTION + 1)


def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with without_garbage_collection(MANY_LINES):
            pass
        assert gc.get_freeze_count() > count // 2 > 0, "threads of other tests may free a few"
    finally:
        gc.unfreeze()


def test_items_are_translated_alone_and_keep_what_separates_them() -> None:
    german = dragoman.load("en-de", "cpu")
    line = "The house | The red car >\tThe dog"
    result = german.translate(line, split="sentences", n_best=2)
    assert [source for source, _ in result.pieces] == ["The house", "The red car", "The dog"]
    alone = [german.translate(source).text.removesuffix(".") for source, _ in result.pieces]
    assert result.text == "{} | {} > {}".format(*alone)
    assert all(each.text.count(" | ") == each.text.count(" > ") == 1 for each in result.alternatives)
    assert "".join(german.stream_text(line, split="sentences")) == result.text
    assert len(german.translate(line, split="long").pieces) == 1, "the control"


def test_items_lose_only_a_full_stop_that_was_added() -> None:
    german = dragoman.load("en-de", "cpu")
    assert german.translate("The dog", split="long").text.endswith("."), "otherwise this tests nothing"
    assert not german.translate("The house | The dog").text.endswith(".")
    assert german.translate("Monday, 3rd | Tuesday, 4th").text == "Montag, 3. | Dienstag, 4."
    named = german.translate("The house | The company", glossary=[("the company", "die Ges.")])
    assert named.text.endswith(" | Die Ges.")


def test_only_sentences_end_like_one() -> None:
    german = dragoman.load("en-de", "cpu")
    for line in ("The dog", "The red house of my father", "THE DOG", "The dog is here. The house"):
        assert german.translate(line, split="long").text.endswith((".", "!")), "otherwise this tests nothing"
        assert german.translate(line).text[-1].isalpha(), line
    for line in ("The dog is here.", "The dog is here!", "The dog sleeps (in the house)."):
        assert german.translate(line).text == german.translate(line, split="long").text
    assert german.translate("Monday, 3rd").text == "Montag, 3."
    assert german.translate("Dogs, cats and so on").text.endswith(" usw.")
    assert german.translate("The company", glossary=[("the company", "die Ges.")]).text == "Die Ges."


def test_brackets_around_several_sentences_stay() -> None:
    german = dragoman.load("en-de", "cpu")
    line = "(The dog is here. The house is red.) The dog sleeps."
    result = german.translate(line)
    first, second, third = (
        german.translate(each).text for each in ("The dog is here.", "The house is red.", "The dog sleeps.")
    )
    assert result.text == f"({first} {second}) {third}"
    assert "".join(german.stream_text(line)) == result.text
    assert [source for source, _ in result.pieces] == ["The dog is here.", "The house is red.", "The dog sleeps."]
    assert german.translate(line, prefix="(Das", split="sentences").text.startswith("(Das")
    piece = pieces_module.Piece(0, 0, "house", [], "", cut=False, after=")")
    assert (piece.finish("Haus", is_complete=False), piece.finish("Haus")) == ("Haus", "Haus)"), "it may still grow"


def test_menus_in_capitals_are_read_as_they_are_usually_written() -> None:
    german = dragoman.load("en-de", "cpu")
    line = "Search | The dog"
    assert german.translate(line.upper()).text == german.translate(line).text.upper()


def test_lines_with_more_to_keep_than_signs_are_no_menus() -> None:
    german = dragoman.load("en-de", "cpu")
    for line in ("The house 😀 | The dog", "The house | {dog}", "<b>The house</b> | The dog"):
        result = german.translate(line)
        assert len(result.pieces) == 1, line
        assert " | " in result.text
