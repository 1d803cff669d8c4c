"""Progress of jobs over lines: lines are counted in advance and shown on a terminal or in a log."""

import functools
import gzip
import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dragoman.cli import progress
from dragoman.cli.progress import LineProgress
from dragoman.data.corpus import count_lines, split_lines


class Clock:
    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_log_shows_progress_at_intervals_and_at_the_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with LineProgress("translate", total=5_000, done=1_000) as lines:
        for clock.now in range(1, 101):
            lines.advance(40)
    assert capsys.readouterr().err.splitlines() == [
        "translate: 2,200 of 5,000 lines, 0:01:10 left",
        "translate: 3,400 of 5,000 lines, 0:00:40 left",
        "translate: 4,600 of 5,000 lines, 0:00:10 left",
        "translate: 4,000 lines in 100.0 s, 40.0 lines/s",
    ]


def test_without_a_total_no_remaining_time_is_shown(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with LineProgress("translate", total=None) as lines:
        clock.now = 30
        lines.advance(7)
    assert capsys.readouterr().err.splitlines()[0] == "translate: 7 lines"


def test_failed_job_logs_no_final_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), LineProgress("translate", total=5):
        raise ZeroDivisionError
    assert capsys.readouterr().err == ""


def test_terminal_shows_a_bar_with_total_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", functools.partial(Console, file=screen, force_terminal=True, width=100))
    with LineProgress("translate", total=5_000, done=1_000) as lines:
        lines.advance(500)
        lines.advance(500)
        lines._bar.refresh()
    assert "1000/5000" in screen.getvalue()
    assert "2000/5000" in screen.getvalue()
    assert "0:00:" in screen.getvalue(), "the time left"


@given(st.binary(max_size=200) | st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b""])).map(b"".join))
def test_line_count_matches_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    content = content.replace(b"\x1f\x8b", b"").replace(b"\xff\xfe", b"").replace(b"\xfe\xff", b"")  # not text at all
    path = tmp_path_factory.getbasetemp() / "counted"
    path.write_bytes(content)
    assert count_lines(path) == len(list(split_lines(io.BytesIO(content), "counted")))


def test_compressed_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a\nb\nc"))
    assert count_lines(path) == 3
