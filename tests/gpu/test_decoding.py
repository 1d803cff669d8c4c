"""Translation on CUDA: the same as on the CPU, in any precision, never through cuDNN's attention, and on a full GPU."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import dragoman
from dragoman import Translator
from dragoman.decode.continuous import GivenUp, Ticket, serving

CUDNN = "aten::_scaled_dot_product_cudnn_attention"
SENTENCES = [
    "Where is the nearest train station?",
    "She has been working here for ten years.",
    "My brother is older than me, but I am taller.",
    "The committee will vote on the report tomorrow.",
    "I would like a cup of coffee, please.",
    "Good morning! How did you sleep?",
    "No.",
    "Tom has been living in Boston since October, and he does not want to move again before the end of next year.",
]


@pytest.fixture(scope="module")
def on_cpu() -> Translator:
    return dragoman.load("en-de", "cpu", "float32", engine="plain")


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def on_cuda(request: pytest.FixtureRequest) -> Translator:
    return dragoman.load("en-de", "cuda", request.param, engine="plain")


def operators(recorded: profile) -> set[str]:
    return {event.key for event in recorded.key_averages()}


def test_cudnn_attention_is_never_used(on_cuda: Translator) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        on_cuda.translate(SENTENCES, beam=4)
        on_cuda.score(SENTENCES, SENTENCES)
    assert any("scaled_dot_product" in name for name in operators(recorded))
    assert CUDNN not in operators(recorded)


def test_control_the_profiler_sees_cudnn_attention() -> None:
    q = torch.randn(2, 4, 7, 64, device="cuda", dtype=torch.bfloat16)
    with profile(activities=[ProfilerActivity.CPU]) as recorded, sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        F.scaled_dot_product_attention(q, q, q)
    assert CUDNN in operators(recorded)


@pytest.mark.parametrize("beam", [1, 4])
def test_float32_translations_match_the_cpu(on_cpu: Translator, beam: int) -> None:
    on_cuda = dragoman.load("en-de", "cuda", "float32")
    here, there = (translator.translate(SENTENCES, beam=beam) for translator in (on_cpu, on_cuda))
    assert [result.text for result in there] == [result.text for result in here]
    for one, other in zip(here, there, strict=True):
        assert other.score == pytest.approx(one.score, abs=1e-2)


def test_search_score_matches_scoring(on_cpu: Translator, on_cuda: Translator) -> None:
    """The float32 model gives every translation about the score that search reported in any precision."""
    results = on_cuda.translate(SENTENCES, beam=4, split="long")
    scores = on_cpu.score(SENTENCES, [result.text for result in results])
    for result, score in zip(results, scores, strict=True):
        assert result.score == pytest.approx(score, abs=0.6)


@contextmanager
def memory_limit(extra_bytes: int) -> Iterator[None]:
    """Allow at most `extra_bytes` more than is reserved now."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + extra_bytes) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_batch_that_does_not_fit_is_halved_until_it_does() -> None:
    translator = dragoman.load("en-de", "cuda", "float32", engine="plain")
    lines = [" ".join(SENTENCES[:5])] * 256
    options: dict[str, Any] = {"batch_size": 256, "beam": 4, "split": "long", "max_extra": 5}
    expected = translator.translate(lines, **options)
    sizes: list[int] = []
    start = translator.engine.start

    def counted(sources, *arguments, **keywords):  # type: ignore[no-untyped-def]
        sizes.append(len(sources))
        return start(sources, *arguments, **keywords)

    translator.engine.start = counted  # type: ignore[method-assign]
    with memory_limit(256 << 20):
        results = translator.translate(lines, **options)
    assert [result.text for result in results] == [result.text for result in expected]
    assert min(sizes) < 256, "the control: the batch did not fit"
    assert min(sizes) >= 16, "a failed batch must free its memory before its halves start"


@pytest.mark.parametrize(("precision", "room"), [("float32", 512 << 20), ("bfloat16", 384 << 20)])
def test_a_queue_that_does_not_fit_is_halved_until_it_does(precision: str, room: int) -> None:
    """In bfloat16 the passes of the encoder, which are graphs, are freed and captured again."""
    translator = dragoman.load("en-de", "cuda", precision)
    lines = [" ".join(SENTENCES[:5])] * 256
    options: dict[str, Any] = {"batch_size": 256, "beam": 4, "split": "long", "max_extra": 5}
    expected = translator.translate(lines, **options)
    assert translator.searcher._cuda is not None
    sizes: list[int] = []
    shape = translator.searcher._cuda.shape

    def counted(jobs, *arguments):  # type: ignore[no-untyped-def]
        sizes.append(len(jobs))
        return shape(jobs, *arguments)

    translator.searcher._cuda.shape = counted  # type: ignore[method-assign]
    translator.searcher._cuda.free_memory()
    with memory_limit(room):
        results = translator.translate(lines, **options)
    assert [result.text for result in results] == [result.text for result in expected]
    assert min(sizes) < 256, "the control: the queue did not fit"
    assert min(sizes) >= 8, "a failed queue must free its memory before its halves start"


LINES = [f"{first} {second}" for first in SENTENCES for second in SENTENCES]


@pytest.mark.parametrize("beam", [1, 4])
def test_cuda_engine_in_float32_gives_the_tokens_of_the_plain_engine(beam: int) -> None:
    cuda, plain = (dragoman.load("en-de", "cuda", "float32", engine=engine) for engine in ("cuda", "plain"))
    expected = plain.translate(LINES, beam=beam, n_best=beam)
    found = cuda.translate(LINES, beam=beam, n_best=beam)
    assert cuda.searcher._cuda is not None
    assert plain.searcher._cuda is None, "the control: two engines"
    for one, other in zip(expected, found, strict=True):
        assert [each.tokens for each in other.alternatives] == [each.tokens for each in one.alternatives]
        assert other.score == pytest.approx(one.score, abs=1e-3)


def test_a_full_batch_of_hypotheses_gives_the_tokens_of_the_plain_engine() -> None:
    """More than 1,024 rows: kernels process several rows at a time."""
    cuda, plain = (dragoman.load("en-de", "cuda", "float32", engine=engine) for engine in ("cuda", "plain"))
    lines = [f"{line} {number}." for number in range(5) for line in LINES]
    one, other = (engine.translate(lines, beam=4, split="long") for engine in (plain, cuda))
    assert [each.tokens for each in other] == [each.tokens for each in one]


def test_cuda_engine_does_not_depend_on_batch_size_and_order() -> None:
    translator = dragoman.load("en-de", "cuda", "float32")
    expected = [result.text for result in translator.translate(LINES)]
    for size in (1, 7, 512):
        assert [result.text for result in translator.translate(LINES, batch_size=size)] == expected
    backwards = translator.translate(LINES[::-1], batch_size=7)
    assert [result.text for result in backwards][::-1] == expected


def test_auto_searches_in_bfloat16_and_differs_in_few_lines() -> None:
    auto, exact = dragoman.load("en-de", "cuda"), dragoman.load("en-de", "cuda", "float32")
    assert (auto.choice.engine, auto.choice.precision) == ("cuda", "bfloat16")
    pairs = zip(auto.translate(LINES), exact.translate(LINES), strict=True)
    assert sum(one.text != other.text for one, other in pairs) <= 0.1 * len(LINES)


def test_sampling_and_wide_beams_run_in_the_plain_engine() -> None:
    translator = dragoman.load("en-de", "cuda")
    translator.translate(SENTENCES, sampling=True)
    translator.translate(SENTENCES[:2], beam=17)
    assert translator.searcher._cuda is None
    translator.translate(SENTENCES, beam=16)
    assert translator.searcher._cuda is not None, "the control"


def test_statuses_and_attention_are_those_of_the_plain_engine() -> None:
    lines = ["", "Good morning!", "\x00", "word " * 300, "Thank you."]
    cuda, plain = (dragoman.load("en-de", "cuda", "float32", engine=engine) for engine in ("cuda", "plain"))
    one, other = (engine.translate(lines, attention=True) for engine in (plain, cuda))
    assert [(each.status, each.text) for each in other] == [(each.status, each.text) for each in one]
    assert other[1].alignment == one[1].alignment is not None
    cut = cuda.translate(LINES[:3], max_extra=1)
    assert [each.status for each in cut] == [each.status for each in plain.translate(LINES[:3], max_extra=1)]


def test_trained_model_translates_the_same_on_cuda(quick_run: Path) -> None:
    here, there = (dragoman.load(str(quick_run), device).translate(["a b c", "d e"]) for device in ("cpu", "cuda"))
    assert [result.text for result in there] == [result.text for result in here]


def test_a_translator_that_is_dropped_frees_its_memory() -> None:
    before = torch.cuda.memory_allocated()
    translator = dragoman.load("en-de", "cuda")
    results = translator.translate(["The house is small."] * 20)
    assert torch.cuda.memory_allocated() > before + 2**27, "the control"
    del translator  # its results are still there
    gc.collect()
    assert torch.cuda.memory_allocated() < before + 2**26, "cuBLAS may keep a workspace of 32 MiB"
    assert results[0].tokens[-1] == "</s>"


def test_a_search_that_is_given_up_leaves_nothing_behind() -> None:
    """Its steps may still run when the next one begins."""
    translator = dragoman.load("en-de", "cuda", "float32")
    expected = [result.text for result in translator.translate(LINES)]
    engine, options = translator.searcher._cuda, translator.options()
    assert engine is not None
    with engine.exclusive(), torch.inference_mode():
        search = engine.begin(options, len(LINES), **translator.searcher.special._asdict())
        sources = [[*translator.tokenizers.source.encode(line), 3] for line in reversed(LINES)]
        search.add(sources, [len(source) + 50 for source in sources])
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        assert [result.text for result in translator.translate(LINES)] == expected


def test_requests_are_searched_together_as_alone() -> None:
    translator = dragoman.load("en-de", "cuda", "float32")
    expected = {line: translator.translate(line).text for line in LINES}
    banned = translator.translate(LINES[0], banned=["Bahnhof"]).text
    assert banned != expected[LINES[0]], "the control"
    search = translator.search_continuously(4)
    with ThreadPoolExecutor(24) as pool:
        others = [pool.submit(lambda: translator.translate(LINES[0], banned=["Bahnhof"]).text) for _ in range(3)]
        found = list(pool.map(lambda line: translator.translate(line).text, LINES))
        assert [each.result() for each in others] == [banned] * 3
    assert dict(zip(LINES, found, strict=True)) == expected
    assert (search.running, search.waiting) == (0, 0)


def test_only_what_breaks_a_rule_runs_in_the_plain_engine() -> None:
    translator = dragoman.load("en-de", "cuda", "float32")
    assert translator.choice_for(translator.options(banned=["Bahnhof"])).engine == "cuda"
    free = [result.text for result in translator.translate(LINES)]
    found = [result.text for result in translator.translate(LINES, banned=["Bahnhof"])]
    plain = dragoman.load("en-de", "cuda", "float32", engine="plain").translate(LINES, banned=["Bahnhof"])
    assert found == [result.text for result in plain]
    changed = [line for line, old, new in zip(LINES, free, found, strict=True) if old != new]
    assert changed == [line for line, old in zip(LINES, free, strict=True) if "Bahnhof" in old]
    assert 0 < len(changed) < len(LINES), "the control"


def test_no_step_is_started_ahead_of_what_others_may_add() -> None:
    translator = dragoman.load("en-de", "cuda", "float32")
    translator.translate(LINES)  # captures the graph
    engine, options = translator.searcher._cuda, translator.options()
    assert engine is not None
    sources = [[*translator.tokenizers.source.encode(max(LINES, key=len)), 3]] * len(LINES)
    started = []
    for runs_ahead in (True, False):
        with engine.exclusive(), torch.inference_mode():
            search = engine.begin(options, len(LINES), **translator.searcher.special._asdict(), runs_ahead=runs_ahead)
            search.add(sources, [len(source) + 50 for source in sources])
            started.append(sum(program._steps for program in search._programs))
            search.take()
    assert started[0] > 0, "the control"
    assert started[1] == 0


def test_a_request_that_is_given_up_frees_its_slot() -> None:
    translator = dragoman.load("en-de", "cuda", "float32")
    search = translator.search_continuously(1)
    long = "no, " * 200
    with serving(Ticket(0.02)), pytest.raises(GivenUp):
        translator.translate(long, split="long")
    assert translator.translate("No.").text == "Nein."
    assert (search.running, search.waiting) == (0, 0)


def test_a_search_of_many_steps_in_one_slot_is_complete() -> None:
    """More polls than there is room for."""
    translator = dragoman.load("en-de", "cuda", "float32")
    assert [result.text for result in translator.translate(LINES, batch_size=1, beam=1)] == [
        result.text for result in translator.translate(LINES, beam=1)
    ]
