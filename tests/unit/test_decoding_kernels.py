"""The search for CUDA against the plain one: on CUDA, or in Triton's interpreter where only the CPU is there."""

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed: the kernels were not tested")

from dragoman.config import DecodeConfig
from dragoman.decode import batches, continuous
from dragoman.decode.engines.cuda import CudaSearch, Found, Job, Search
from dragoman.decode.engines.plain import Engine
from dragoman.decode.engines.program import Load, Program
from dragoman.decode.search import Hypothesis, search
from dragoman.errors import ConfigError
from dragoman.model.kernels import decoding as kernels
from dragoman.model.transformer import Transformer
from tests.searching import SPECIAL, assert_equal, make_jobs, random_model

# Triton's interpreter turns arrays of one element into numbers, which NumPy will forbid one day, and computes with
# whatever the memory of idle slots holds
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_model(seed: int, **settings: Any) -> Transformer:
    return random_model(seed, **settings).to(DEVICE)


def find(
    engine: CudaSearch, sources: list[list[int]], limits: list[int], options: DecodeConfig
) -> list[list[Hypothesis] | None]:
    """What the engine finds for each sentence, all added together."""
    with torch.inference_mode():
        search = engine.begin(options, len(sources), **SPECIAL)
        search.add(sources, limits)
        return taken(search, options)


def taken(search: Search, options: DecodeConfig) -> list[list[Hypothesis] | None]:
    """What was found for the sentences added first, in their order."""
    found = {number: hypotheses for part in search.take() for number, hypotheses in part.hypotheses(options)}
    return [found[number] for number in range(len(found))]


def plainly(
    model: Transformer, sources: list[list[int]], limits: list[int], options: DecodeConfig
) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        return search(Engine(model, DEVICE).start(sources), limits, options, range(len(sources)), **SPECIAL)


def both(model: Transformer, options: DecodeConfig, count: int = 6, seed: int = 1) -> list[list[list[Hypothesis]]]:
    """The plain search and the one for CUDA."""
    sources, limits = make_jobs(seed, count, model.config.vocab_size)
    found = find(CudaSearch(model, DEVICE, torch.float32), sources, limits, options)
    return [plainly(model, sources, limits, options), [hypotheses or [] for hypotheses in found]]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"beam": 1, "batch_size": 2}, {}),
        ({"beam": 4, "n_best": 4, "batch_size": 2}, {}),
        ({"beam": 3, "n_best": 2, "batch_size": 8, "length_penalty": 1.0, "length_penalty_form": "power"}, {}),
        ({"beam": 2, "n_best": 2, "batch_size": 4}, {"norm": "pre", "positions": "rotary"}),
        ({"beam": 2, "batch_size": 4}, {"positions": "learned", "d_k": 24, "d_v": 8, "activation": "gelu"}),
        ({"beam": 2, "batch_size": 4}, {"embedding_norm": True}),
        ({"beam": 2, "batch_size": 4}, {"embedding_norm": True, "norm": "pre"}),
        ({"beam": 5, "n_best": 5, "batch_size": 4}, {"vocab_size": 8, "attention_bias": False, "positions": "none"}),
    ],
)
def test_cuda_search_finds_what_plain_search_finds(options: dict[str, Any], settings: dict[str, Any]) -> None:
    """More sentences than slots: they are refilled."""
    plain, fast = both(make_model(1, **settings), DecodeConfig(**options))
    assert_equal(plain, fast)
    assert any(hypothesis.finished for hypotheses in plain for hypothesis in hypotheses)


def test_cuda_search_fills_up_with_unfinished_hypotheses() -> None:
    plain, fast = both(make_model(2, end_bias=-50.0), DecodeConfig(beam=3, n_best=3, batch_size=2))
    assert_equal(plain, fast)
    assert not any(hypothesis.finished for hypotheses in plain for hypothesis in hypotheses)


def test_long_translations_are_copied_block_by_block() -> None:
    model, options = make_model(4, end_bias=-50.0, decoder_num_layers=1), DecodeConfig(beam=2, n_best=2, batch_size=1)
    plain = plainly(model, [[5, 6, 3]], [70], options)
    (found,) = find(CudaSearch(model, DEVICE, torch.float32), [[5, 6, 3]], [70], options)
    assert_equal(plain, [found or []])
    assert [len(hypothesis.ids) for hypothesis in plain[0]] == [70, 70]


def test_a_search_leaves_nothing_behind_for_the_next_one() -> None:
    """The same caches, another length penalty, fewer sentences."""
    model = make_model(5)
    engine = CudaSearch(model, DEVICE, torch.float32)
    for count, alpha in ((6, 0.6), (5, 2.0)):
        options = DecodeConfig(beam=3, n_best=3, batch_size=2, length_penalty=alpha)
        sources, limits = make_jobs(count, count)
        found = find(engine, sources, limits, options)
        assert_equal(plainly(model, sources, limits, options), [hypotheses or [] for hypotheses in found])
    assert len(engine._programs) == 1, "the control: one set of caches"


def test_a_search_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was added before is finished first: its caches are in the way."""
    engine = CudaSearch(make_model(6), DEVICE, torch.float32)
    add, sizes = engine.add, []

    def limited(program: Program, jobs: Any) -> Load:
        sizes.append((len(jobs), program.shape.slots))
        if len(jobs) > 2 or any(len(job.source) > 7 for job in jobs):
            raise MemoryError
        return add(program, jobs)

    monkeypatch.setattr(engine, "add", limited)
    options, sources = DecodeConfig(beam=2, batch_size=4), [[5, 3], [6, 7, 3], [8] * 7 + [3], [9, 3]]
    limits = [3, 4, 9, 3]
    with torch.inference_mode():
        search = engine.begin(options, 6, **SPECIAL)
        search.add(sources[:2], limits[:2])
        search.add(sources, limits)
        before, found = taken(search, options), taken(search, options)
    plain = plainly(engine._model, sources, limits, options)
    assert found[2] is None, "it does not fit even alone"
    assert_equal(plain[:2], [hypotheses or [] for hypotheses in before])
    assert_equal([plain[number] for number in (0, 1, 3)], [found[number] or [] for number in (0, 1, 3)])
    assert sizes == [(2, 4), (4, 4), (2, 2), (1, 1), (1, 1), (2, 2)]


def test_hypotheses_that_follow_others_attend_to_their_ancestors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: if every hypothesis attends to the past of its own place, the search goes elsewhere."""
    own = kernels.self_attention
    places = torch.arange(4, dtype=torch.int8, device=DEVICE)[None, :, None]  # outside of the graph

    def without_ancestors(slots: kernels.Slots, *rest: Any) -> Tensor:
        slots.ancestors.copy_(places.expand_as(slots.ancestors))
        return own(slots, *rest)

    model, options = make_model(3, end_bias=0.0), DecodeConfig(beam=4, n_best=4, batch_size=2)
    assert_equal(*both(model, options))
    monkeypatch.setattr(kernels, "self_attention", without_ancestors)
    plain, fast = both(model, options)
    with pytest.raises(AssertionError):
        assert_equal(plain, fast)


@pytest.mark.parametrize("vocabulary", [7, 64, 100, 1000])
def test_best_candidates_are_sorted_with_ties_by_id(vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    logits = (3 * torch.randn(6, vocabulary, device=DEVICE)).round(decimals=1)
    slots: Any = make_slots([0, -1, 2], hypotheses=2)
    count = min(8, vocabulary - 3)
    values, ids = kernels.best_candidates(slots, logits, count, (0, 1, 2))
    expected = logits.log_softmax(dim=1)
    order = logits.masked_fill(torch.arange(vocabulary, device=DEVICE) < 3, -math.inf)
    order = order.sort(dim=1, descending=True, stable=True).indices[:, :count]
    real = [0, 1, 4, 5]  # the slot between them has nothing to do
    assert torch.equal(ids[real].long(), order[real])
    torch.testing.assert_close(values[real], expected.gather(1, order)[real], rtol=0, atol=1e-5)


def test_a_row_with_nan_has_no_candidates() -> None:
    logits = torch.randn(2, 100, device=DEVICE)
    logits[0, 50] = math.nan
    values, _ = kernels.best_candidates(make_slots([0, 1], hypotheses=1), logits, 4, (0,))
    assert values[0].tolist() == [-math.inf] * 4
    assert values[1].isfinite().all()


def make_slots(sentences: list[int], hypotheses: int) -> Any:
    slots = dict.fromkeys(kernels.Slots._fields, torch.zeros(0, device=DEVICE))
    sentence = torch.tensor(sentences, dtype=torch.int32, device=DEVICE)
    return kernels.Slots(**{**slots, "sentence": sentence, "ids": torch.zeros(len(sentences), hypotheses)})


def test_a_queue_has_room_for_every_sentence_however_few_slots_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may allow fewer slots than requested; the control is the number of sentences per slot."""
    monkeypatch.setattr("dragoman.decode.engines.cuda.SENTENCES_PER_SLOT", 2)
    engine = CudaSearch(make_model(1), DEVICE, torch.float32)
    monkeypatch.setattr(engine, "_most_slots", lambda entries: 1)
    sources, limits = make_jobs(1, 8)
    options = DecodeConfig(beam=2, batch_size=4)
    found = find(engine, sources, limits, options)
    (program,) = engine._programs.values()
    assert (program.shape.slots, program.shape.sentences) == (1, 8)
    assert_equal(plainly(engine._model, sources, limits, options), [hypotheses or [] for hypotheses in found])


@pytest.mark.parametrize("loads", [2, 16])
def test_sentences_added_during_a_search_give_the_same(monkeypatch: pytest.MonkeyPatch, loads: int) -> None:
    """Through rings with few places: they are written around their end, and again where sentences are done."""
    monkeypatch.setattr("dragoman.decode.engines.cuda.SENTENCES_PER_SLOT", 4)
    monkeypatch.setattr("dragoman.decode.engines.cuda.SOURCE_TOKENS", 32)
    monkeypatch.setattr("dragoman.decode.engines.program.MAX_LOADS", loads)
    model, options = make_model(7), DecodeConfig(beam=2, n_best=2, batch_size=2)
    engine = CudaSearch(model, DEVICE, torch.float32)
    parts = [make_jobs(seed, count) for seed, count in enumerate((3, 5, 2, 4, 3, 2, 5))]
    with torch.inference_mode():
        search = engine.begin(options, 24, **SPECIAL)
        found = []
        for number, (sources, limits) in enumerate(parts):
            search.add(sources, limits)
            if number >= 3:
                found.append(taken(search, options))
        found += [taken(search, options) for _ in range(3)]
    (program,) = engine._programs.values()
    assert program.shape[4:6] == (8, 32), "the control: fewer places than sentences and tokens"
    assert sum(len(sources) for sources, _ in parts) == 24
    assert sum(len(source) for sources, _ in parts for source in sources) > 2 * 32
    for (sources, limits), hypotheses in zip(parts, found, strict=True):
        assert_equal(plainly(model, sources, limits, options), [each or [] for each in hypotheses])


def test_a_longer_sentence_gets_larger_caches_while_others_are_under_way() -> None:
    model, options = make_model(8), DecodeConfig(beam=2, batch_size=2)
    engine = CudaSearch(model, DEVICE, torch.float32)
    parts = [make_jobs(1, 4), ([[5, 6, 3]], [200]), make_jobs(2, 3)]
    with torch.inference_mode():
        search = engine.begin(options, 8, **SPECIAL)
        for sources, limits in parts:
            search.add(sources, limits)
        found = [taken(search, options) for _ in parts]
    assert [program.shape.positions for program in engine._programs.values()] == [128, 256]
    for (sources, limits), hypotheses in zip(parts, found, strict=True):
        assert_equal(plainly(model, sources, limits, options), [each or [] for each in hypotheses])


def test_loads_may_be_waited_for_in_any_order() -> None:
    """The places of a load that nobody has waited for are not written again."""
    model, options = make_model(9), DecodeConfig(beam=2, batch_size=2)
    engine = CudaSearch(model, DEVICE, torch.float32)
    parts = [make_jobs(seed, 4) for seed in range(4)]
    loads = [[Job(*job) for job in zip(*part, strict=True)] for part in parts]
    with torch.inference_mode():
        special = (SPECIAL["start"], SPECIAL["end"], *SPECIAL["forbidden"])
        shape = engine.shape(loads[0], options, special, 2, 16)._replace(sentences=8)
        program = engine.program(shape)
        program.begin(options)
        first, second = (engine.add(program, load) for load in loads[:2])
        program.wait(second)
        assert not program.has_room(1, 1), "the first load is in the way"
        found = [program.wait(first)]
        assert program.has_room(8, 1)
        third, fourth = (engine.add(program, load) for load in loads[2:])
        later = program.wait(fourth)
        found += [program.wait(third), later]
    for (sources, limits), results in zip([parts[0], *parts[2:]], found, strict=True):
        hypotheses = dict(Found(range(4), *results).hypotheses(options))
        assert_equal(plainly(model, sources, limits, options), [hypotheses[number] or [] for number in range(4)])


def test_loads_are_done_in_any_order() -> None:
    """A short load is found while a long one is under way."""
    model, options = make_model(14), DecodeConfig(beam=2, n_best=2, batch_size=2)
    engine = CudaSearch(model, DEVICE, torch.float32)
    parts = [([[5, 6, 7, 3]], [12]), ([[8, 3]], [4]), ([[5, 6, 7, 3]], [7])]
    found, order = dict[int, list[list[Hypothesis] | None]](), list[int]()
    with torch.inference_mode():
        search = engine.begin(options, 16, **SPECIAL)
        numbers = [search.add(*part) for part in parts]
        while len(found) < len(parts):
            for load, hypotheses in search.advance():
                order.append(load)
                by_number = dict(hypotheses)
                found[load] = [by_number[number] for number in range(len(by_number))]
        assert search.advance() == []
    assert numbers == [0, 1, 2]
    assert order.index(1) < order.index(0) if DEVICE.type == "cpu" else sorted(order) == numbers
    for (sources, limits), number in zip(parts, numbers, strict=True):
        assert_equal(plainly(model, sources, limits, options), [each or [] for each in found[number]])


def test_a_sentence_that_is_given_up_is_done_at_once_and_changes_no_other() -> None:
    model, options = make_model(14), DecodeConfig(beam=2, batch_size=2)
    engine = CudaSearch(model, DEVICE, torch.float32)
    sources, limits = [[5, 6, 7, 3], [8, 3], [9, 5, 3]], [12, 4, 3]
    expected = plainly(model, sources, limits, options)
    assert len(expected[0][0].ids) == 12, "the control: it would take many steps"
    with torch.inference_mode():
        search = engine.begin(options, 16, **SPECIAL)
        load = search.add(sources, limits)
        search.give_up(load, 0)
        found = {number: hypotheses for part in search.take() for number, hypotheses in part.hypotheses(options)}
    assert len((found[0] or [])[0].ids) <= (1 if DEVICE.type == "cpu" else 8), "steps may be under way"
    assert_equal(expected[1:], [found[1] or [], found[2] or []])


def test_requests_are_searched_together_as_alone() -> None:
    model, options = make_model(12), DecodeConfig(beam=2, batch_size=4)
    cuda, special = CudaSearch(model, DEVICE, torch.float32), batches.Special(**SPECIAL)

    @contextmanager
    def context() -> Iterator[None]:
        with torch.inference_mode(), cuda.exclusive():
            yield

    begun = list[Search]()

    def begin() -> Search:
        begun.append(cuda.begin(options, 8, **SPECIAL))
        return begun[-1]

    start = Engine(model, DEVICE).start
    engine = continuous.Engine(start, special, 4, str(DEVICE), False, context, 64, begin)
    together = continuous.ContinuousSearch(lambda kind: engine, 1)
    parts = [make_jobs(seed, 2) for seed in range(4)]

    def ask(part: tuple[list[list[int]], list[int]]) -> list[list[Hypothesis]]:
        jobs = [batches.Job(source, limit, 0) for source, limit in zip(*part, strict=True)]
        with continuous.serving(continuous.Ticket(300)):
            outcomes = dict(together.search(jobs, options))
        return [outcome for _, outcome in sorted(outcomes.items()) if not isinstance(outcome, str)]

    with ThreadPoolExecutor(len(parts)) as pool:
        found = list(pool.map(ask, parts))
    for (sources, limits), hypotheses in zip(parts, found, strict=True):
        assert_equal(plainly(model, sources, limits, options), hypotheses)
    assert len(begun) < len(parts), "the control: they join a search"


def test_a_translation_within_another_is_refused() -> None:
    engine = CudaSearch(make_model(1), DEVICE, torch.float32)
    with engine.exclusive():
        message = "translate: called within another translation of the same model; wait for its end"
        with pytest.raises(ConfigError, match=f"^{message}$"), engine.exclusive():
            pass
    with engine.exclusive():
        pass
