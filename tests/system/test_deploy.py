"""What deploy/ promises: an installation that serves, and files that agree with each other."""

import os
import re
import signal
import site
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from dragoman.serve.settings import ServeSettings, read_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_files_agree_with_each_other() -> None:
    extras = re.findall(
        r"\[(serve,[a-z,]+)\]", (DEPLOY / "Dockerfile").read_text() + (DEPLOY / "install.sh").read_text()
    )
    assert len(extras) == 2
    assert len(set(extras)) == 1
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[0].split(",")) <= known.keys()
    settings = read_settings(DEPLOY / "serve.toml")
    drain = ServeSettings(**settings.serve).drain_seconds
    for name, pattern in (
        ("compose.yaml", r"stop_grace_period: (\d+)s"),
        ("dragoman.service", r"TimeoutStopSec=(\d+)"),
    ):
        (seconds,) = re.findall(pattern, (DEPLOY / name).read_text())
        assert int(seconds) > drain, f"{name} kills the service before it has drained"


@pytest.mark.slow
def test_installation_serves_and_stops(tmp_path: Path) -> None:
    """With the packages that are here, so that nothing is downloaded."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": site.getsitepackages()[0]}
    install: list[str | Path] = [DEPLOY / "install.sh", tmp_path / "dragoman", "--no-deps"]
    subprocess.run(install, env=environment, check=True, cwd=tmp_path)
    (package,) = (tmp_path / "dragoman").glob("lib/python*/site-packages/dragoman")
    command: list[str | Path] = [
        tmp_path / "dragoman/bin/dragoman",
        "serve",
        "--port",
        "0",
        "--settings",
        DEPLOY / "serve.toml",
    ]
    own = {**environment, "PYTHONPATH": f"{package.parent}:{site.getsitepackages()[0]}"}
    with subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as served:
        try:
            assert served.stderr is not None
            address = served.stderr.readline().split()[-1]
            with urllib.request.urlopen(f"{address}/ready", timeout=30) as answer:
                assert answer.status == 200
            with urllib.request.urlopen(address, timeout=30) as answer:
                assert b"dragoman" in answer.read()
        finally:
            served.send_signal(signal.SIGTERM)
        assert served.wait(60) == 0
