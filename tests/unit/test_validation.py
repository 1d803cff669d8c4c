"""Validation: the loss by its definition, and the chosen metric."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dragoman.config import Config
from dragoman.model.build import build_model
from dragoman.tasks.task import PreparedData
from dragoman.text.vocabulary import VOCABULARY
from dragoman.training.data import prepare_data
from dragoman.training.reports.log import SilentReporter
from dragoman.training.validation import Validation
from tests.survival import SETTINGS, write_corpus

BOS, EOS = VOCABULARY.bos, VOCABULARY.eos

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    directory = tmp_path_factory.mktemp("run")
    settings = (*SETTINGS, "model.dropout=0.5", "train.label_smoothing=0.3", "train.batch_tokens=24")
    config = Config.build("tiny", None, settings, data=write_corpus(directory / "corpus").data)
    return prepare_data(config, directory, SilentReporter())


def test_the_loss_is_the_mean_over_all_tokens_without_smoothing_or_dropout(prepared: PreparedData) -> None:
    torch.manual_seed(0)
    model = build_model(prepared.config.model).train()
    found = Validation(prepared, CPU, torch.float32).measure(model)["loss"]

    model.eval()
    losses = []
    for row in range(len(prepared.valid)):
        source, target = prepared.valid.source(row).tolist(), prepared.valid.target(row).tolist()
        logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]]))
        log_p = logits[0].log_softmax(dim=-1).tolist()
        losses += [-log_p[place][token] for place, token in enumerate([*target, EOS])]
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    lengths = prepared.valid.target_lengths
    assert len(set(lengths)) > 1, "of several lengths, otherwise a mean of means would pass"


def test_equal_accuracy_is_decided_by_the_loss(prepared: PreparedData) -> None:
    train = replace(prepared.config.train, valid_metric="loss")
    validation = Validation(replace(prepared, config=replace(prepared.config, train=train)), CPU, torch.float32)
    validation.settings = replace(train, valid_metric="accuracy")
    scores = [validation.metric({"accuracy": 90.0, "loss": loss}) for loss in (0.5, 0.4)]
    assert scores[0] < scores[1]
    assert validation.metric({"accuracy": 90.1, "loss": 9.0}) > scores[1], "the loss decides nothing else"


RECORD = {"loss": 2.5, "chrf": 40.0, "bleu": 20.0, "exact_match": 10.0}


@pytest.mark.parametrize(("name", "value"), [("chrf", 40.0), ("bleu", 20.0), ("exact_match", 10.0), ("loss", -2.5)])
def test_chosen_metric_is_used_and_higher_is_better(prepared: PreparedData, name: str, value: float) -> None:
    train = replace(prepared.config.train, valid_metric=name)  # type: ignore[arg-type]
    validation = Validation(replace(prepared, config=replace(prepared.config, train=train)), CPU, torch.float32)
    assert validation.metric(RECORD) == value
    assert validation.judge.startswith(name)
    for broken in (math.nan, math.inf, -math.inf):
        assert validation.metric({**RECORD, name: broken}) == -math.inf


def test_at_most_valid_sentences_are_decoded(prepared: PreparedData, tmp_path: Path) -> None:
    train = replace(prepared.config.train, valid_sentences=3)
    assert len(prepared.valid) > 3
    again = prepare_data(replace(prepared.config, train=train), tmp_path, SilentReporter())
    assert (len(again.valid_sources), len(again.valid_references)) == (3, 3)
