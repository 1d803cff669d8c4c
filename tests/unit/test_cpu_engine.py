"""The engine for CPUs against the plain one, and a sentence's answer in any batch."""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman.config import DecodeConfig
from dragoman.decode.batches import Job, Special, search_on_threads
from dragoman.decode.engines import layers, loops
from dragoman.decode.engines.cpu import CpuDecoding, CpuEngine
from dragoman.decode.engines.entries import Entries
from dragoman.decode.engines.plain import Engine
from dragoman.decode.engines.products import Matrix, int8_is_exact
from dragoman.decode.search import in_order, search
from dragoman.decode.steering import Steering
from dragoman.decode.translator import Translator
from dragoman.int8 import compact, expanded
from dragoman.model import positions
from dragoman.model.transformer import Transformer
from dragoman.tensors import named_arrays
from tests.processor import needs_exact_int8
from tests.searching import SPECIAL, assert_equal, make_jobs, random_model

CPU = torch.device("cpu")
BEAM = DecodeConfig(beam=4, n_best=4)


def cpu_engine(model: Transformer, precision: str) -> CpuEngine:
    return CpuEngine(model.config, named_arrays(model), precision)


def plain(model: Transformer, options: DecodeConfig, sources: list[list[int]], limits: list[int]) -> Any:
    with torch.inference_mode():
        return search(Engine(model, CPU).start(sources), limits, options, range(len(sources)), **SPECIAL)


def fast(engine: CpuEngine, options: DecodeConfig, sources: list[list[int]], limits: list[int]) -> Any:
    return search(engine.start(sources), limits, options, range(len(sources)), **SPECIAL)


def joined(engine: CpuEngine, options: DecodeConfig, sources: list[list[int]], limits: list[int]) -> Any:
    """Found by a search of three sentences at a time, which others join."""
    jobs = [Job(source, limit, 0) for source, limit in zip(sources, limits, strict=True)]
    few = replace(options, batch_size=3)
    return in_order(search_on_threads(engine.start, jobs, few, Special(**SPECIAL), 1, joining=True))


VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"beam": 1}, {}),
    ({"beam": 4, "n_best": 4}, {}),
    ({"beam": 3, "n_best": 2, "length_penalty": 1.0, "length_penalty_form": "power"}, {"activation": "swish"}),
    ({"beam": 2, "n_best": 2}, {"norm": "pre"}),
    ({"beam": 2}, {"positions": "learned", "d_k": 24, "d_v": 8, "activation": "gelu"}),
    ({"beam": 2}, {"embedding_norm": True, "positions": "learned"}),
    ({"beam": 2}, {"embedding_norm": True, "norm": "pre", "positions": "none"}),
    ({"beam": 12, "n_best": 12}, {"vocab_size": 8, "attention_bias": False, "positions": "none"}),
    ({"beam": 3, "n_best": 3}, {"decoder_d_model": 48, "decoder_num_heads": 3, "share_source_target": False}),
]


@pytest.mark.parametrize(("options", "settings"), VARIANTS, ids=str)
def test_cpu_search_finds_what_plain_search_finds(options: dict[str, Any], settings: dict[str, Any]) -> None:
    model = random_model(1, **settings)
    sources, limits = make_jobs(1, 12, model.config.vocab_size)
    expected = plain(model, DecodeConfig(**options), sources, limits)
    assert_equal(expected, fast(cpu_engine(model, "float32"), DecodeConfig(**options), sources, limits))
    assert_equal(expected, joined(cpu_engine(model, "float32"), DecodeConfig(**options), sources, limits))
    assert any(hypothesis.finished for hypotheses in expected for hypothesis in hypotheses)


def test_long_translations_outgrow_their_caches() -> None:
    """And their table of positions."""
    model = random_model(4, end_bias=-50.0, decoder_num_layers=1)
    job = ([[5, 6, 3], [7, 3]], [300, 290])
    expected = plain(model, DecodeConfig(beam=2, n_best=2), *job)
    assert_equal(expected, fast(cpu_engine(model, "float32"), DecodeConfig(beam=2, n_best=2), *job))
    assert [len(hypothesis.ids) for hypotheses in expected for hypothesis in hypotheses] == [300, 300, 290, 290]


def test_hypotheses_that_follow_others_attend_to_their_ancestors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: if every hypothesis attends to the past of its own place, the search goes elsewhere."""
    model = random_model(7, end_bias=-1.0)
    sources, limits = make_jobs(1, 12)[0], [20] * 12
    expected = fast(cpu_engine(model, "float32"), BEAM, sources, limits)
    reorder = CpuDecoding.reorder

    def in_place(self: CpuDecoding, parent_BW: Any) -> None:
        own = np.broadcast_to(np.arange(parent_BW.shape[1]), parent_BW.shape)
        reorder(self, parent_BW if self._entry_BWT.shape[1] == 1 else own.copy())

    monkeypatch.setattr(CpuDecoding, "reorder", in_place)
    assert fast(cpu_engine(model, "float32"), BEAM, sources, limits) != expected


@pytest.mark.parametrize(
    ("precision", "beam"),
    [
        ("int8", 5),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("int8", 1), ("float32", 5), ("float32", 1))),
    ],
)
def test_a_sentence_has_the_same_bits_in_any_batch(precision: str, beam: int) -> None:
    """Alone, among 7 or 40, shortest or longest first, or when it joins others."""
    chance = random.Random(3)
    sources = [[chance.randrange(4, 90) for _ in range(chance.randrange(40))] + [3] for _ in range(40)]
    limits = [len(source) + 10 for source in sources]
    engine, options = cpu_engine(random_model(7, end_bias=1.0), precision), DecodeConfig(beam=beam, n_best=beam)
    together = fast(engine, options, sources, limits)
    assert fast(engine, options, sources[::-1], limits[::-1])[::-1] == together
    assert joined(engine, options, sources, limits) == together
    for size in (1, 7):
        parts = [slice(first, first + size) for first in range(0, 40, size)]
        assert [each for part in parts for each in fast(engine, options, sources[part], limits[part])] == together
    assert len({hypotheses[0].ids for hypotheses in together}) > 20, "the control: they differ"


def test_nobody_reads_entries_that_were_reclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    reclaim, needed_at = Entries.reclaim, []

    def poisoned(self: Entries, needed: Any, count: int) -> Any:
        renumbered = reclaim(self, needed, count)
        for cache in self.caches:
            for array in cache:
                array[len(needed) :] = np.nan
        needed_at.append((id(self), len(needed)))
        return renumbered

    lengths: list[int] = []
    select = CpuDecoding.select

    def watched(self: CpuDecoding, sentence_B: Any) -> None:
        select(self, sentence_B)
        lengths.append(self._entry_BWT.shape[2])

    engine, jobs = cpu_engine(random_model(7, end_bias=1.0), "float32"), make_jobs(8, 30)
    expected = fast(engine, BEAM, *jobs)
    monkeypatch.setattr(Entries, "reclaim", poisoned)
    monkeypatch.setattr(CpuDecoding, "select", watched)
    assert joined(engine, BEAM, *jobs) == expected
    assert len({entries for entries, needed in needed_at if needed}) == 2, "those of the past and of the memory"
    assert max(lengths) <= max(jobs[1]) + 1, "nor do the lists of entries grow with every sentence that joins"


@needs_exact_int8
@pytest.mark.parametrize("settings", [{}, {"norm": "pre", "activation": "gelu", "attention_bias": False}], ids=str)
def test_int8_differs_from_float32_by_little(settings: dict[str, Any]) -> None:
    model = random_model(8, **settings)
    sources, limits = make_jobs(8, 30)
    exact, rounded = (
        fast(cpu_engine(model, each), DecodeConfig(beam=1), sources, limits) for each in ("float32", "int8")
    )
    equal = [
        (one[0].score, other[0].score) for one, other in zip(exact, rounded, strict=True) if one[0].ids == other[0].ids
    ]
    assert len(equal) > 20
    assert 0 < max(abs(one - other) for one, other in equal) < 0.2


def test_matrices_stored_in_int8_are_used_as_they_are() -> None:
    """They are those of float32 weights that are rounded here; the control has other scales."""
    model = random_model(8, d_k=24, end_bias=1.0)
    jobs, stored = make_jobs(8, 30), compact(named_arrays(model))
    found = fast(CpuEngine(model.config, stored, "int8"), BEAM, *jobs)
    assert_equal(fast(CpuEngine(model.config, expanded(stored), "int8"), BEAM, *jobs), found)
    name = "decoder.layers.1.feed_forward.outer.weight.scale"
    other = fast(CpuEngine(model.config, {**stored, name: 1.5 * stored[name]}, "int8"), BEAM, *jobs)
    assert [each[0].score for each in other] != pytest.approx([each[0].score for each in found], abs=1e-3)


def test_int8_weights_are_expanded_for_a_search_in_float32() -> None:
    model = random_model(8, end_bias=1.0)
    jobs, stored = make_jobs(8, 30), compact(named_arrays(model))
    expected = fast(CpuEngine(model.config, expanded(stored), "float32"), BEAM, *jobs)
    assert fast(CpuEngine(model.config, stored, "float32"), BEAM, *jobs) == expected


@pytest.mark.parametrize("width", [512, 256, 33])
def test_positions_are_those_of_the_model(width: int) -> None:
    expected = positions.sinusoids(torch.arange(2_000), width).float()
    np.testing.assert_allclose(layers.sinusoids(2_000, width), expected.numpy(), rtol=0, atol=1e-7)


def test_int8_products_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a processor added pairs of products in 16 bits; the control adds all in 32."""

    def product(matrix: Matrix, x_NI: Any) -> Any:
        return (x_NI.astype(np.int32) - int(matrix._zero)) @ matrix._weight_IO.astype(np.int32)

    for run, is_exact in (
        (product, True),
        (lambda *arguments: np.clip(product(*arguments), -(2**15), 2**15 - 1), False),
    ):
        monkeypatch.setattr(Matrix, "_run", run)
        int8_is_exact.cache_clear()
        assert int8_is_exact() == is_exact
    int8_is_exact.cache_clear()


def test_zero_rows_do_not_divide_by_zero() -> None:
    model = random_model(9)
    with torch.no_grad():
        for layer in model.encoder.layers:
            layer.feed_forward.inner.weight.zero_()  # type: ignore[union-attr, operator]
            layer.feed_forward.inner.bias.fill_(-1.0)  # type: ignore[union-attr, operator]
    found = fast(cpu_engine(model, "int8"), BEAM, [[5, 6, 3]], [5])
    assert all(np.isfinite(hypothesis.score) for hypothesis in found[0])


def test_sentences_of_very_different_lengths_share_a_batch() -> None:
    """They are encoded in parts."""
    model = random_model(11, end_bias=0.0)
    sources = [[5, 6, 3], list(range(4, 80)) * 5 + [3], [7, 3], list(range(4, 60)) * 3 + [3]]
    limits = [10, 10, 10, 10]
    assert_equal(plain(model, BEAM, sources, limits), fast(cpu_engine(model, "float32"), BEAM, sources, limits))


def test_positions_do_not_depend_on_a_table_that_other_threads_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another thread put an empty table in its place at every moment."""
    engine = cpu_engine(random_model(12), "float32")
    expected = fast(engine, BEAM, [[5, 3]], [5])
    replaced = property(lambda self: np.zeros((0, 0), dtype=np.float32), lambda self, vectors: None)
    monkeypatch.setattr(layers.Embedding, "_vectors", replaced, raising=False)
    assert fast(engine, BEAM, [[5, 3]], [5]) == expected


# The loops


def test_exponentials_are_exact_to_the_last_places_of_x() -> None:
    x = -np.geomspace(1e-6, 87, 5_000, dtype=np.float32)
    found = np.array([loops._exponential(each) for each in x])
    error = found / np.exp(x.astype(np.float64)) - 1
    assert (abs(error) < 3e-7 * (1 - x)).all()
    assert loops._exponential(np.float32(0.0)) == 1.0
    assert 0.0 <= loops._exponential(np.float32(-np.inf)) < 1e-37


@pytest.mark.parametrize("size", [1, 127, 128, 129, 1000])
def test_candidates_are_the_best_and_ties_go_to_the_lower_id(size: int) -> None:
    chance = np.random.default_rng(size)
    logit_NV = chance.integers(-9, 9, (20, size)).astype(np.float32)
    count = min(6, size)
    value_NC, id_NC = np.empty((20, count), np.float32), np.empty((20, count), np.int64)
    ones, zeros = np.ones(size, np.float32), np.zeros(size, np.float32)
    loops.best(logit_NV, np.ones(20, np.float32), ones, zeros, value_NC, id_NC)
    expected = torch.log_softmax(torch.from_numpy(logit_NV).double(), dim=1).numpy()
    order = np.argsort(-logit_NV, axis=1, kind="stable")[:, :count]
    assert (id_NC == order).all()
    np.testing.assert_allclose(value_NC, np.take_along_axis(expected, order, axis=1), atol=2e-6)


def test_what_is_not_a_number_stays_so() -> None:
    """The search then takes it as impossible."""
    logit_NV = np.array([[1.0, np.nan, 2.0], [1.0, 3.0, 2.0]], dtype=np.float32)
    value_NC, id_NC = np.empty((2, 2), np.float32), np.empty((2, 2), np.int64)
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    loops.best(logit_NV, ones, ones, zeros, value_NC, id_NC)
    assert np.isnan(value_NC[0]).all()
    assert id_NC[1].tolist() == [1, 2]


def test_log_probabilities_do_not_lose_the_digits_of_large_logits() -> None:
    logit_NV = np.array([[1000.0, 999.0, 998.5]], dtype=np.float32)
    value_NC, id_NC = np.empty((1, 3), np.float32), np.empty((1, 3), np.int64)
    loops.best(logit_NV, np.ones(1, np.float32), np.ones(3, np.float32), np.zeros(3, np.float32), value_NC, id_NC)
    expected = torch.log_softmax(torch.from_numpy(logit_NV).double(), dim=1).numpy()
    np.testing.assert_allclose(value_NC, expected, rtol=1e-6)


def loops_with_arguments(width: int = 32) -> dict[str, list[Any]]:
    """Every loop over rows, with arguments of a small model."""
    chance = np.random.default_rng(1)

    def random(*shape: int) -> np.ndarray:
        return chance.standard_normal(shape, dtype=np.float32)

    count, heads, times = 2, 4, 5
    ones = np.ones(count, np.float32)
    rows = [random(count, width), np.float32(127), np.float32(128), np.zeros((count, width), np.uint8), ones]
    norm = [random(width), random(width), np.float32(1e-5)]
    caches = [random(9, heads, width // heads), random(9, heads, width // heads)]
    entries = [np.array([[0, 1, 2, 3, 7], [2, 4, 5, 6, 8]]), np.array([times, times - 1])]
    sentences = [np.array([0, 4]), np.array([3, 5])]

    def product(outputs: int) -> list[Any]:
        return [random(count, outputs), ones, abs(random(outputs)), random(outputs)]

    return {
        "restore": [*product(width), 0, random(count, width)],
        "copy": [random(count, width), *rows],
        "normalize": [random(count, width), *norm, *rows],
        "add_and_normalize": [*product(width), random(count, width), *norm, *rows],
        "relu": [*product(width), *rows],
        "gelu": [*product(width), *rows],
        "swish": [*product(width), *rows],
        "attend_to_past": [*product(3 * width), *caches, *entries, *rows],
        "attend_to_source": [*product(width), *caches, *sentences, *rows],
        "weigh_source": [*product(width), caches[0], *sentences, random(count, heads, times)],
        "attend_to_sentence": [*product(3 * width), np.array([0]), np.array([2]), *caches, *rows],
        "best": [*product(width), random(count, 3), np.zeros((count, 3), np.int64)],
    }


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("name", loops_with_arguments())
def test_a_loop_does_the_same_wherever_its_arrays_are(name: str, width: int) -> None:
    """Where arrays are closer than a few vectors, processors run another form of a loop, one number at a time."""
    arguments, chance = loops_with_arguments(width)[name], np.random.default_rng(2)
    arrays = [place for place, argument in enumerate(arguments) if isinstance(argument, np.ndarray)]

    def run(order: Sequence[int], gap: int) -> list[bytes]:
        """With arrays in this order in memory."""
        memory, first, own = np.zeros(1 << 17, np.uint8), 64, list(arguments)
        for place in order:
            given = arguments[place]
            own[place] = memory[first : first + given.nbytes].view(given.dtype).reshape(given.shape)
            own[place][...] = given
            first += -(-given.nbytes // 16) * 16 + gap
        getattr(loops, name)(*own)
        return [own[place].tobytes() for place in arrays]

    expected = run(arrays, 4096)
    assert expected != [arguments[place].tobytes() for place in arrays], "the control: it writes something"
    for _ in range(100):
        assert run(chance.permutation(arrays).tolist(), 16) == expected


def test_a_full_disk_does_not_keep_loops_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def double(x: float) -> float:
        return 2 * x

    monkeypatch.setattr("numba.core.caching.FunctionCache.save_overload", full)
    assert loops._compiled(double)(3.0) == 6.0


def test_rounded_rows_keep_their_largest_and_rows_of_zeros_are_zeros() -> None:
    x_NI = np.array([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0], [3.0, 1.5, 0.0]], dtype=np.float32)
    out8_NI, scale_N = np.empty(x_NI.shape, np.uint8), np.empty(3, np.float32)
    for out_NI in (np.empty_like(x_NI), np.empty_like(x_NI[:1])):  # space for one row is enough
        loops.copy(x_NI, out_NI, np.float32(127), np.float32(128), out8_NI, scale_N)
        assert (out_NI == x_NI[-len(out_NI) :]).all()
        assert (out8_NI == np.array([[160, 1, 192], [128, 128, 128], [255, 192, 128]])).all()
    np.testing.assert_allclose(scale_N, [2 / 127, 0, 3 / 127], rtol=1e-6)


# In the translator


@pytest.fixture(scope="module")
def translator() -> Translator:
    return dragoman.load("en-de", "cpu")


LINES = [
    "The house is small.",
    "",
    "I have two cats and a dog.",
    "It rains.",
    "Where do you live?",
    "Good morning!",
] * 2


def hypotheses(translator: Translator, **options: Any) -> list[tuple[str, float]]:
    return [(each.text, each.score) for each in translator.translate(LINES, **options)]


def test_the_number_of_threads_changes_nothing(translator: Translator) -> None:
    assert translator.choice.engine == "cpu"
    expected = hypotheses(translator, threads=1)
    for options in ({"threads": 2}, {"threads": 3, "batch_size": 2}, {"threads": 2, "batch_size": 1}):
        assert hypotheses(translator, **options) == expected
    assert [(each.text, each.score) for each in map(translator.translate, LINES)] == expected


def test_a_batch_that_does_not_fit_is_halved(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, encode, sizes = hypotheses(translator), CpuEngine._encode, []

    def limited(self: CpuEngine, sources: Any) -> Any:
        sizes.append(len(sources))
        if sizes[-1] > 2:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 99")
        return encode(self, sources)

    monkeypatch.setattr(CpuEngine, "_encode", limited)
    assert hypotheses(translator, threads=2) == expected
    assert max(sizes) > 2 >= min(sizes)


def test_a_line_that_is_too_big_fails_alone(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, long = CpuEngine._encode, "It rains, and it rains, and it rains again."

    def limited(self: CpuEngine, sources: Any) -> Any:
        if any(len(source) > 10 for source in sources):
            raise MemoryError
        return encode(self, sources)

    expected = hypotheses(translator)
    monkeypatch.setattr(CpuEngine, "_encode", limited)
    found = translator.translate([*LINES, long])
    assert [(each.text, each.score) for each in found[:-1]] == expected
    tokens = len(translator.tokenizers.source.encode(long)) + 1
    assert (found[-1].text, found[-1].status, found[-1].reason) == ("", "failed", f"out of memory at {tokens} tokens")


def test_every_line_has_a_status_in_order(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["It rains.", "", "  ", "The house is small. " * 300, "Good morning!", "Where do you live?"]
    found = translator.translate(lines, split="long")
    assert [each.source for each in found] == lines
    assert [each.status for each in found] == ["translated", "empty", "empty", "split", "translated", "translated"]
    assert [bool(each.text) for each in found] == [True, False, False, True, True, True]
    monkeypatch.setattr(Steering, "limit", lambda *arguments: 2)
    cut = translator.translate(lines[0])
    assert cut.status == "truncated"
    assert len(cut.tokens) < len(found[0].tokens)


def test_an_error_in_a_thread_reaches_the_caller(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(Matrix, "_run", broken)
    with pytest.raises(RuntimeError, match=r"^no such operator$"):
        hypotheses(translator, threads=2)


def test_weights_outlive_the_sessions_that_refer_to_them() -> None:
    """The runtime does not keep them alive, and packs anew only what it multiplies faster then."""
    weight_OI = np.arange(24, dtype=np.float32).reshape(3, 8)
    matrix = Matrix(weight_OI, None, None)
    assert (matrix._weight_IO == weight_OI.T).all()


def test_errors_of_the_runtime_are_runtime_errors() -> None:
    matrix = Matrix(np.ones((3, 8), dtype=np.float32), None, None)
    with pytest.raises(RuntimeError, match="x"):
        matrix(matrix.rows(1)._replace(x_NI=np.ones((1, 7), dtype=np.float32)))


# Compiled loops on disk


def test_what_a_loop_calls_becomes_part_of_it() -> None:
    """A loop that called another as it is would take the copy that the linker saw first."""
    compiled = {name: each for name, each in vars(loops).items() if hasattr(each, "targetoptions")}
    inlined = {name for name, each in compiled.items() if each.targetoptions["forceinline"]}
    called = {name for each in compiled.values() for name in each.py_func.__code__.co_names if name in compiled}
    assert len(called) > 5
    assert called <= inlined


@pytest.mark.slow
def test_scores_do_not_depend_on_which_loops_are_on_disk(tmp_path: Path) -> None:
    """The first process compiles the loops, the second reads them from disk, the third does both."""
    code = (
        "import dragoman; texts = ['They are not even 100 metres apart.', 'A clear answer to this question.'];"
        "print([result.score.hex() for result in dragoman.load('en-de', 'cpu').translate(texts)])"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def scores() -> bytes:
        return subprocess.check_output([sys.executable, "-c", code], env=environment)

    first, second = scores(), scores()
    kept = sorted(tmp_path.rglob("*.nbi"))
    assert len(kept) > 10
    for path in kept[::2]:
        path.unlink()
    assert first == second == scores()
