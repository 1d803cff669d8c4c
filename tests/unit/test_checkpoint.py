"""The state of a run in its checkpoint: anything invalid is refused by name."""

import json
from pathlib import Path

import pytest

from dragoman.errors import ModelError
from dragoman.training.checkpoint import read_state

STATE = {"progress": {"step": 3}, "identity": {"train.seed": 1}}


def test_state_round_trip() -> None:
    assert read_state(json.dumps(STATE).encode(), Path("run")) == STATE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"\x80\x04K\x01.",
        b"[" * 100_000,
        b"{}",
        b'{"progress": {}}',
        b'{"progress": {}, "identity": 5}',
    ],
)
def test_invalid_state_is_refused(content: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        read_state(content, Path("run"))
    assert str(caught.value) == "run/state.json: not the state of a run; restore it or give another --out"
