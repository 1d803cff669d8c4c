"""A pytest plugin: in CI an unexpected skip is a failure."""

import os
from collections.abc import Iterable

import pytest

from tests.processor import NO_EXACT_INT8

# The skips that CI may have. Any other fails it there: a test that goes missing must be noticed.
EXPECTED_SKIPS = (
    "PyTorch keeps freed memory by itself here",
    "root may write anywhere",
    NO_EXACT_INT8,
    "could not import 'mlflow'",
    "could not import 'wandb'",
    "transformers.js is not here",  # .ci/run installs it where there is npm
    "axe-core is not here",  # the same
    "npm's translate is not here",  # the same
    "ONNX Runtime Web is not here",  # no npm registry: the page's parts are still tested
    "Triton is not installed: the kernels were not tested",  # make test-kernels installs it
)


def unexpected_skips(reasons: Iterable[str]) -> list[str]:
    return [reason for reason in reasons if not any(expected in reason for expected in EXPECTED_SKIPS)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("CI"):  # None: one of xdist's workers
        return
    skipped = [report.longrepr for report in reporter.stats.get("skipped", ())]
    unexpected = unexpected_skips(str(place[2]) if isinstance(place, tuple) else str(place) for place in skipped)
    if unexpected:
        reporter.write_line(f"unexpected skips in CI: {'; '.join(sorted(set(unexpected)))}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
