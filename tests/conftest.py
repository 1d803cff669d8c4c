"""A real model for behaviour tests, trained in seconds once per session."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from dragoman.config import Config
from dragoman.data import generated
from dragoman.device import keep_onednn
from dragoman.training.loop import train
from tests.forked import Server, shared_server
from tests.survival import Runs, write_corpus

pytest_plugins = ["tests.skips"]

if not os.environ.get("DRAGOMAN_TEST_GPU"):  # set by make test-gpu
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same results on every machine
torch.set_num_threads(1)  # models this small gain nothing from two, and lose much where the machine is shared
os.environ["OMP_NUM_THREADS"] = "1"  # the same for the commands that tests start
# the same examples in every run, however slow the machine; `pytest --hypothesis-profile search` looks for new ones
settings.register_profile("search", deadline=None)
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
generated.generate = cache(generated.generate)  # a pure function, and dozens of runs train on one corpus


@pytest.fixture(autouse=True)
def _same_arithmetic() -> Iterator[None]:
    """Runs compared to the bit need the same threads and the same library, whatever a test before left."""
    torch.set_num_threads(1)
    with keep_onednn():
        yield


QUICK = [
    "data.generated=reverse",
    "data.generated_size=2000",
    "text.model=word",
    "text.vocab_size=300",
    "model.num_layers=1",
    "model.d_model=32",
    "model.d_ff=64",
    "train.max_steps=60",
    "train.save_every=20",
    "train.batch_tokens=512",
    "train.valid_sentences=20",
    "train.log_every=5",
    "train.warmup_steps=10",
    "decode.max_extra=10",
]


def quick_config(*more: str) -> Config:
    """A run of a few seconds."""
    return Config.build("tiny", None, [*QUICK, *more])


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run. Tests must not change it."""
    run = tmp_path_factory.mktemp("runs") / "reverse"
    train(quick_config(), run)
    return run


@pytest.fixture(scope="session")
def server() -> Server:
    """A server that forks processes to be killed, without waiting for imports."""
    return shared_server()


@pytest.fixture(scope="module")
def runs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """`dragoman train` on a small corpus, in forked processes."""
    directory = tmp_path_factory.mktemp("survival")
    (directory / "errors").mkdir()
    return Runs(server, write_corpus(directory / "corpus"), directory / "errors")
