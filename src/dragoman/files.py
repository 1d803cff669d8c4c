"""Crash-safe file writes and locks, and checked reads of untrusted files.

Knows nothing of models or of what the files contain.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dragoman.errors import DiskError, DragomanError, ModelError

# Writing


def after(event: str, path: Path) -> None:
    """Hook after each write and each rename; does nothing. Tests use it to kill the process or simulate a full disk."""


def write_file(path: Path, content: bytes) -> None:
    """Replace `path` with one rename, so that a reader sees the old file or the new one, never part of either."""
    partial = partial_path(path)
    try:
        write_synced(partial, content)
        move_into_place(partial, path)
    except OSError as error:
        with suppress(OSError):  # the first error is the one to report
            partial.unlink(missing_ok=True)
        raise disk_error(path, len(content), error) from None


def require_writable(path: Path) -> None:
    """Raise now, before long work, if `write_file` could not write it."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        partial = partial_path(path)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise DiskError(f"{path}: cannot be written ({error.strerror}); choose another place") from None


def write_output(path: Path, content: bytes) -> None:
    """Write a file that a user has named: a link stays one, and devices and pipes are written to, not replaced."""
    if not is_stream(path):
        write_file(follow_link(path), content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise disk_error(path, len(content), error) from None


def follow_link(path: Path) -> Path:
    """Where a link to a file leads, so that the file and not the link is replaced."""
    try:
        return path.resolve() if path.is_symlink() and not is_stream(path) else path
    except (OSError, RuntimeError):  # a loop of links
        return path


def is_stream(path: Path) -> bool:
    """Whether it is a device, a pipe or a name of an open file, such as /dev/stdout, which must not be replaced."""
    if not path.exists() or path.is_dir():
        return False
    return not path.is_file() or path.absolute().as_posix().startswith(("/proc/", "/dev/fd/", "/dev/std"))


def move_into_place(partial: Path, path: Path) -> None:
    """Rename a written and synced file to its final name, and sync the directory."""
    partial.replace(path)
    after("rename", path)
    sync_directory(path.parent)


def partial_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"{path}: cannot create this directory ({error.strerror}); choose another place") from None


def write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    after("write", path)


def sync_directory(path: Path) -> None:
    if os.name == "posix":  # elsewhere a directory cannot be opened
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def disk_error(path: Path, size: int, error: OSError) -> DiskError:
    return DiskError(f"{path}: cannot write {size:,} bytes ({error.strerror}); free some space or choose another place")


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Allow one run at a time in a directory. The lock ends with the process, however it ends.

    A directory that was created for the lock is removed if nothing was written to it: the run was refused.
    """
    new = not directory.exists()
    make_directory(directory)
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    path = directory / ".lock"
    try:
        lock = path.open("w")
    except OSError as error:
        raise disk_error(path, 0, error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ModelError(f"{directory}: another run is training here; wait for it or give another --out") from None
        try:
            yield
        finally:
            if new:
                _remove_if_empty(directory, path)


def open_locked(path: Path, refusal: DragomanError) -> IO[bytes]:
    """Open a file to append to and read, for one process at a time. The lock ends with the process, however it ends.

    Raises `refusal` if another process has it open.
    """
    file = path.open("a+b")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except ImportError:  # not on Windows
        return file
    except (BlockingIOError, FileNotFoundError):  # not found: the other process has just finished
        pass
    except OSError:  # a file system without locks
        return file
    file.close()
    raise refusal


def _remove_if_empty(directory: Path, lock: Path) -> None:
    with suppress(OSError):  # another process has removed it, or a folder in it is not empty
        for folder in sorted((each for each in directory.rglob("*") if each.is_dir()), reverse=True):
            folder.rmdir()
        if list(directory.iterdir()) == [lock]:
            lock.unlink()
            directory.rmdir()


# Reading


class RefusedFile(Exception):
    """Why a file is not read, and what to do about it."""

    def __init__(self, reason: str, remedy: str = "restore the file or train again") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def _checked(directory: Path, name: str, max_bytes: float, within: Sequence[Path]) -> Path:
    """The path of a regular file inside one of `within`, checked before anything is opened."""
    try:
        path = (directory / name).resolve(strict=True)
        status = path.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise RefusedFile(f"cannot be read ({reason})", "is this a model directory?") from None
    if within and not any(path.is_relative_to(place.resolve()) for place in within):
        raise RefusedFile("links to a file outside of its directory", "copy the file itself into the directory")
    if not stat.S_ISREG(status.st_mode):  # a pipe would block, a device might never end
        raise RefusedFile("is not a regular file")
    if status.st_size > max_bytes:
        raise RefusedFile(f"has {status.st_size:,} bytes, at most {max_bytes:,} are allowed")
    return path


def read_checked(directory: Path, name: str, max_bytes: float, *, within: Sequence[Path]) -> bytes:
    """Return the content of a file in an untrusted directory, or raise RefusedFile.

    Pipes, files over `max_bytes` and links to other places than `within` are refused; if that is empty, links may lead
    anywhere.
    """
    path = _checked(directory, name, max_bytes, within)
    try:
        return path.read_bytes()
    except OSError as error:
        raise RefusedFile(f"cannot be read ({error.strerror})", "check its permissions") from None
    except MemoryError:
        raise RefusedFile(f"does not fit in memory ({path.stat().st_size:,} bytes)", "use a larger machine") from None
