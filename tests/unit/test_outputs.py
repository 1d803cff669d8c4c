"""Files that users name: links stay links, devices and pipes are written to."""

import os
from pathlib import Path

import pytest

from dragoman.errors import DiskError
from dragoman.files import follow_link, is_stream, write_output


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to("target")
    write_output(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    dangling = tmp_path / "dangling"
    dangling.symlink_to("later")
    write_output(dangling, b"here")
    assert (tmp_path / "later").read_bytes() == b"here"


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(pipe, b"page")
        assert os.read(reader, 10) == b"page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_streams_are_not_replaced(tmp_path: Path) -> None:
    """/dev/stdout leads to a pipe without a name, or to a file that is open."""
    for name in ("/dev/null", "/dev/stdout"):
        assert is_stream(Path(name))
        assert follow_link(Path(name)) == Path(name)
    (tmp_path / "file").touch()
    assert not is_stream(tmp_path / "file")
    assert not is_stream(tmp_path)
    assert not is_stream(tmp_path / "nothing")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_device_is_a_disk_error() -> None:
    with pytest.raises(DiskError, match=r"^/dev/full: cannot write 4 bytes \(No space left on device\); free some"):
        write_output(Path("/dev/full"), b"page")
    assert Path("/dev/full").is_char_device(), "it is still there"
