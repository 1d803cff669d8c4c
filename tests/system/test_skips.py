"""An unexpected skip fails CI."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.skips import unexpected_skips

ROOT = Path(__file__).parent.parent.parent
SKIPPED = """
import pytest

def test_fine() -> None: ...

@pytest.mark.skip(reason={reason!r})
def test_left_out() -> None: ...
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "ci", "workers", "code"),
    [
        ("no such device", "true", (), 1),
        pytest.param("no such device", "true", ("-n", "1"), 1, marks=pytest.mark.slow),
        pytest.param("no such device", "", (), 0, marks=pytest.mark.slow),
        pytest.param("root may write anywhere", "true", (), 0, marks=pytest.mark.slow),
    ],
)
def test_an_unexpected_skip_fails_in_ci(
    tmp_path: Path, reason: str, ci: str, workers: tuple[str, ...], code: int
) -> None:
    (tmp_path / "test_it.py").write_text(SKIPPED.format(reason=reason), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.skips", *workers, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert ("unexpected skips in CI: Skipped: no such device" in done.stdout) == bool(code)


def test_expected_skips_are_known_by_their_reason() -> None:
    assert unexpected_skips(["Skipped: root may write anywhere", "Skipped: no chromium"]) == ["Skipped: no chromium"]


def test_a_warning_is_an_error() -> None:
    with pytest.raises(UserWarning, match="unexpected"):
        warnings.warn("unexpected", stacklevel=1)
