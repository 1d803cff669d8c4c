"""Ensembles: the mean of probabilities, in every search; models that fit together, and those that do not."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman import ConfigError, bundle
from dragoman.config import DecodeConfig
from dragoman.decode.constraints import Constrained, NoRepeatedNgram
from dragoman.decode.engines.plain import Engine
from dragoman.decode.ensemble import Ensemble, log_of_mean
from dragoman.decode.search import search
from tests.conftest import quick_config
from tests.forked import shared_server
from tests.searching import SPECIAL, assert_equal, make_jobs, random_model

SEARCHES = [DecodeConfig(beam=1), DecodeConfig(beam=4, n_best=4), DecodeConfig(sampling=True, n_best=3)]


def engines(*seeds: int) -> list[Engine]:
    return [Engine(random_model(seed, end_bias=0.5), "cpu") for seed in seeds]


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("options", SEARCHES, ids=["greedy", "beam", "sampling"])
def test_scores_are_those_of_the_mean_probabilities(options: DecodeConfig) -> None:
    members, (sources, limits) = engines(1, 2, 3), make_jobs(4, 8)
    limits = [6] * 8
    found = search(Ensemble(members).start(sources), limits, options, range(8), **SPECIAL)
    alone = search(members[0].start(sources), limits, options, range(8), **SPECIAL)
    for source, hypotheses in zip(sources, found, strict=True):
        for each in hypotheses:
            ids = [*each.ids, 3] if each.finished else [*each.ids]
            means = torch.stack([engine.log_probs(source, [2, *each.ids]).exp() for engine in members]).mean(dim=0)
            expected = [math.log(means[place, token]) for place, token in enumerate(ids)]
            assert each.token_scores == pytest.approx(expected, abs=1e-4)
    assert [each[0].ids for each in found] != [each[0].ids for each in alone], "the control"


@torch.inference_mode()
@pytest.mark.parametrize("options", SEARCHES, ids=["greedy", "beam", "sampling"])
def test_equal_models_search_like_one(options: DecodeConfig) -> None:
    (one,), (sources, limits) = engines(1), make_jobs(4, 8)
    single = search(one.start(sources), limits, options, range(8), **SPECIAL)
    assert_equal(single, search(Ensemble([one, one]).start(sources), limits, options, range(8), **SPECIAL))


def test_mean_of_probabilities_by_its_definition() -> None:
    given = [torch.tensor([0.1, 0.9]).log(), torch.tensor([0.5, 0.5]).log()]
    assert log_of_mean(given).exp().tolist() == pytest.approx([0.3, 0.7])
    impossible = [torch.tensor([-math.inf, 0.0]), torch.tensor([-math.inf, 0.0])]
    assert log_of_mean(impossible).tolist() == [-math.inf, 0.0]


@torch.inference_mode()
def test_constraints_hold_in_an_ensemble() -> None:
    decoding = Constrained(Ensemble(engines(1, 2)).start([[5, 6, 7, 3]]), [[NoRepeatedNgram(1)]])
    ((found, *_),) = search(decoding, [8], DecodeConfig(beam=3), [0], **SPECIAL)
    assert len(set(found.ids)) == len(found.ids)


# Model directories


@pytest.fixture(scope="module")
def other(quick_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the same vocabulary and other weights."""
    place = tmp_path_factory.mktemp("ensemble") / "other"
    loaded, chance = bundle.load_bundle(quick_run), np.random.default_rng(1)
    weights = {
        name: torch.from_numpy(array + chance.normal(scale=0.05, size=array.shape).astype(np.float32))
        for name, array in loaded.weights.items()
    }
    bundle.save_bundle(place, loaded.config, loaded.tokenizers, weights, "card")
    return place


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4}], ids=str)
def test_scoring_a_translation_gives_the_score_of_the_search(
    quick_run: Path, other: Path, options: dict[str, Any]
) -> None:
    """Score encodes the text again, so only translations that have their tokens' own spelling are compared."""
    translator = dragoman.load(quick_run, "cpu", ensemble=[other])
    texts = ["a b c d", "e f", "h g a"]
    found = translator.translate(texts, token_scores=True, **options)
    scores = translator.score(texts, [each.text for each in found])
    compared = 0
    for each, score in zip(found, scores, strict=True):
        ids = translator.tokenizers.target.encode(each.text)
        if [*translator.tokenizers.target.pieces(ids), "</s>"] == list(each.tokens):
            assert score == pytest.approx(each.score, abs=1e-4)
            assert sum(each.token_scores) == pytest.approx(each.score, abs=1e-6)
            compared += 1
    assert compared
    single = dragoman.load(quick_run, "cpu").translate(texts, **options)
    assert [each.score for each in single] != pytest.approx([each.score for each in found], abs=1e-3), "the control"


def test_an_ensemble_runs_in_the_plain_engine_and_says_so(quick_run: Path, other: Path) -> None:
    translator = dragoman.load(quick_run, "cpu", ensemble=[other])
    assert translator.choice_for(translator.options()).describe() == "plain engine in float32: it is an ensemble"
    for engine in ("cpu", "cuda"):
        with pytest.raises(
            ConfigError, match=f"^engine: '{engine}' runs one model, not an ensemble; use auto or plain$"
        ):
            dragoman.load(quick_run, "cpu", engine=engine, ensemble=[other])
    with pytest.raises(ConfigError, match=r"^attention: every model of an ensemble has its own; load one of them$"):
        translator.translate("a b", attention=True)
    with pytest.raises(ConfigError, match=r"^confidence: is calibrated for one model, not for an ensemble; leave"):
        translator.translate("a b", confidence=True)


def test_models_with_other_vocabularies_are_refused(quick_run: Path, tmp_path: Path) -> None:
    message = r"^ensemble: en-de has another source vocabulary than the first model; give models that were trained"
    with pytest.raises(ConfigError, match=message):
        dragoman.load(quick_run, "cpu", ensemble=["en-de"])
    changed = shutil.copytree(quick_run, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "data"))
    config = changed / bundle.CONFIG
    before = quick_config().text.normalization
    config.write_text(config.read_text().replace(f'normalization = "{before}"', 'normalization = "nfc-lowercase"'))
    with pytest.raises(ConfigError, match=r"/model has another source vocabulary than the first model"):
        dragoman.load(quick_run, "cpu", ensemble=[changed])


@pytest.mark.slow
def test_the_command_translates_with_an_ensemble(quick_run: Path, other: Path) -> None:
    words = ["translate", "--model", str(quick_run), "a b c", "--json", "--beam", "2"]
    done = shared_server().run([*words, "--ensemble", str(other)])
    expected = dragoman.load(quick_run, "cpu", ensemble=[other]).translate("a b c", beam=2)
    record = json.loads(done.stdout)
    assert record["translation"] == expected.text
    assert record["score"] == pytest.approx(expected.score, abs=1e-5)
    assert json.loads(shared_server().run(words).stdout)["score"] != pytest.approx(expected.score, abs=1e-5)
    refused = shared_server().run(["translate", "a", "--ensemble", str(quick_run)])
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"dragoman: ensemble: {quick_run} has another source vocabulary than the first")
