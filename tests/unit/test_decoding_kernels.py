"""The search for CUDA against the plain one: on CUDA, or in Triton's interpreter where only the CPU is there."""

import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed: the kernels were not tested")

from dragoman.config import DecodeConfig
from dragoman.decode.engines.cuda import CudaSearch
from dragoman.decode.engines.plain import Engine
from dragoman.decode.search import Hypothesis, search
from dragoman.model.kernels import decoding as kernels
from dragoman.model.transformer import Transformer
from tests.searching import SPECIAL, assert_equal, make_jobs, random_model

# Triton's interpreter turns arrays of one element into numbers, which NumPy will forbid one day
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_model(seed: int, **settings: Any) -> Transformer:
    return random_model(seed, **settings).to(DEVICE)


def both(model: Transformer, options: DecodeConfig, count: int = 6, seed: int = 1) -> list[list[list[Hypothesis]]]:
    """The plain search and the one for CUDA."""
    sources, limits = make_jobs(seed, count, model.config.vocab_size)
    with torch.inference_mode():
        decoding = Engine(model, DEVICE).start(sources)
        plain = search(decoding, limits, options, range(count), **SPECIAL)
        found = CudaSearch(model, DEVICE, torch.float32).begin(sources, limits, options, **SPECIAL).wait()
    fast = {number: hypotheses for part in found for number, hypotheses in part.hypotheses(options)}
    assert sorted(fast) == list(range(count))
    return [plain, [fast[number] or [] for number in range(count)]]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"beam": 1, "batch_size": 2}, {}),
        ({"beam": 4, "n_best": 4, "batch_size": 2}, {}),
        ({"beam": 3, "n_best": 2, "batch_size": 8, "length_penalty": 1.0, "length_penalty_form": "power"}, {}),
        ({"beam": 2, "n_best": 2, "batch_size": 4}, {"norm": "pre", "positions": "rotary"}),
        ({"beam": 2, "batch_size": 4}, {"positions": "learned", "d_k": 24, "d_v": 8, "activation": "gelu"}),
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
    with torch.inference_mode():
        plain = search(Engine(model, DEVICE).start([[5, 6, 3]]), [70], options, [0], **SPECIAL)
        (found,) = CudaSearch(model, DEVICE, torch.float32).begin([[5, 6, 3]], [70], options, **SPECIAL).wait()
    assert_equal(plain, [hypotheses or [] for _, hypotheses in found.hypotheses(options)])
    assert [len(hypothesis.ids) for hypothesis in plain[0]] == [70, 70]


def test_a_search_leaves_nothing_behind_for_the_next_one() -> None:
    """The same caches, another length penalty, fewer sentences."""
    model = make_model(5)
    engine = CudaSearch(model, DEVICE, torch.float32)
    for count, alpha in ((6, 0.6), (5, 2.0)):
        options = DecodeConfig(beam=3, n_best=3, batch_size=2, length_penalty=alpha)
        sources, limits = make_jobs(count, count)
        with torch.inference_mode():
            plain = search(Engine(model, DEVICE).start(sources), limits, options, range(count), **SPECIAL)
            found = engine.begin(sources, limits, options, **SPECIAL).wait()
        fast = {number: hypotheses for part in found for number, hypotheses in part.hypotheses(options)}
        assert_equal(plain, [fast[number] or [] for number in range(count)])
    assert len(engine._programs) == 1, "the control: one set of caches"


def test_a_search_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CudaSearch(make_model(6), DEVICE, torch.float32)
    launch, sizes = engine._launch, []

    def limited(jobs: Any, *rest: Any) -> Any:
        sizes.append((len(jobs), rest[-1]))
        if len(jobs) > 2 or any(len(job.source) > 7 for job in jobs):
            raise MemoryError
        return launch(jobs, *rest)

    monkeypatch.setattr(engine, "_launch", limited)
    options, sources = DecodeConfig(beam=2, batch_size=4), [[5, 3], [6, 7, 3], [8] * 7 + [3], [9, 3]]
    with torch.inference_mode():
        found = engine.begin(sources, [3, 4, 9, 3], options, **SPECIAL).wait()
        plain = search(Engine(engine._model, DEVICE).start(sources), [3, 4, 9, 3], options, range(4), **SPECIAL)
    fast = {number: hypotheses for part in found for number, hypotheses in part.hypotheses(options)}
    assert fast[2] is None, "it does not fit even alone"
    assert_equal([plain[number] for number in (0, 1, 3)], [fast[number] or [] for number in (0, 1, 3)])
    assert sizes == [(4, 4), (2, 2), (1, 1), (1, 1), (2, 2)]


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
    with torch.inference_mode():
        found = engine.begin(sources, limits, options, **SPECIAL).wait()
        (program,) = engine._programs.values()
        assert (program.shape.slots, program.shape.sentences) == (1, 8)
        plain = search(Engine(engine._model, DEVICE).start(sources), limits, options, range(8), **SPECIAL)
    fast = {number: hypotheses for part in found for number, hypotheses in part.hypotheses(options)}
    assert_equal(plain, [fast[number] or [] for number in range(8)])
