"""Tests that need a CUDA device. `make test-gpu` runs them; everywhere else they are not collected."""

import gc

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With CUDA no warning is an error, in all tests: PyTorch's compiler and profiler warn of their own inner parts."""
    for item in items if torch.cuda.is_available() else []:
        item.add_marker(
            pytest.mark.filterwarnings("default::DeprecationWarning", "default::UserWarning", "default::FutureWarning")
        )


@pytest.fixture(autouse=True)
def free_memory() -> None:
    gc.collect()  # what earlier tests left in cycles
    torch.cuda.empty_cache()
