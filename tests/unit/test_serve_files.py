"""Translated documents are kept for a time, and as many as there is room for."""

import asyncio
from pathlib import Path

from dragoman.serve.files import TranslatedFiles


def written(folder: Path, size: int) -> Path:
    path = folder / "output.txt"
    path.write_bytes(b"a" * size)
    return path


def test_the_oldest_make_room(tmp_path: Path) -> None:
    async def run() -> list[bool]:
        files = TranslatedFiles(60, 100)
        names = [files.add(written(tmp_path, 40), ".de.txt") for _ in range(3)]
        found = [files.find(name) is not None for name in names]
        files.close()
        return found

    assert asyncio.run(run()) == [False, True, True]
    assert not (tmp_path / "output.txt").exists(), "it is moved"


def test_documents_are_removed_in_time(tmp_path: Path) -> None:
    async def run(seconds: float) -> bool:
        files = TranslatedFiles(seconds, 100)
        name = files.add(written(tmp_path, 10), ".de.txt")
        path = files.find(name)
        assert path is not None
        assert path.read_bytes() == b"a" * 10
        await asyncio.sleep(0.05)
        assert path.exists() == (files.find(name) is not None)
        is_there = path.exists()
        files.close()
        assert not path.exists()
        return is_there

    assert not asyncio.run(run(0.01))
    assert asyncio.run(run(60)), "the control"


def test_no_other_file_is_found(tmp_path: Path) -> None:
    async def run() -> None:
        files = TranslatedFiles(60, 100)
        names = {files.add(written(tmp_path, 1), ".de.txt") for _ in range(5)}
        assert len(names) == 5
        assert all(len(name) == 22 + len(".de.txt") for name in names)
        for other in ("", ".", "..", "../x", "/etc/passwd", "a" * 10_000, "\0", next(iter(names)).upper()):
            assert files.find(other) is None
        files.close()

    asyncio.run(run())


def test_a_copy_is_kept_no_longer_than_its_original(tmp_path: Path) -> None:
    async def run() -> None:
        first, second = TranslatedFiles(60, 100), TranslatedFiles(3600, 100)
        name = first.add(written(tmp_path, 10), ".de.txt")
        assert second.find(name) is None
        assert 0 < first.seconds_left(name) <= 60
        second.keep(name, written(tmp_path, 10), first.seconds_left(name))
        assert second.seconds_left(name) <= 60 < second.seconds_left(second.add(written(tmp_path, 1), ".de.txt"))
        path = second.find(name)
        assert path is not None
        assert path.read_bytes() == b"a" * 10
        second.keep(name, written(tmp_path, 20), 0.01)  # again, at the same time
        assert path.read_bytes() == b"a" * 20
        await asyncio.sleep(0.05)
        assert second.find(name) is None
        assert not path.exists()
        first.close()
        second.close()

    asyncio.run(run())
