"""An output file that survives an interruption: finished lines are kept, and the same command resumes there.

    .NAME.partial        the finished lines, plain text even if NAME is compressed
    .NAME.partial.json   what they were made from, their number, their SHA-256, and the tally so far

The second is replaced, by one rename, after each addition to the first has reached the disk. Whatever the first holds
beyond it is dropped on resume. Both are removed once NAME is complete.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dragoman import files
from dragoman.cli import interrupts
from dragoman.data.shards import COMPRESSORS, compressing
from dragoman.errors import ConfigError, DiskError, Stopped


@contextmanager
def resumable(output: Path, made_from: Mapping[str, Any], total: int) -> Iterator["Resumable"]:
    """Yield the output to append to. It gets its name when the block ends; however it ends, what was added is kept.

    `made_from` is everything that determines the lines; work made from anything else is not resumed.
    """
    kept = Resumable(output, made_from, total)
    try:
        kept.start()
        yield kept
        kept.publish()
    except KeyboardInterrupt:
        number = interrupts.received or signal.SIGINT
        raise Stopped(f"{output}: {interrupts.describe(number)}; {kept.describe()}", number) from None
    except (OSError, DiskError) as error:
        cause = error if isinstance(error, OSError) else error.__context__
        reason = getattr(cause, "strerror", None) or error
        remedy = kept.describe() if kept.lines else "choose another place"
        raise DiskError(f"{output}: cannot be written ({reason}); {remedy}") from None
    except Exception:
        if kept.lines:
            print(f"translate: {kept.describe()}", file=sys.stderr)
        raise
    finally:
        kept.close()


class Resumable:
    """Created by `resumable`."""

    def __init__(self, output: Path, made_from: Mapping[str, Any], total: int) -> None:
        self.lines = 0  # finished
        self.tally: dict[str, Any] = {}  # of the finished lines, as given to `add`
        self._output, self._total = output, total
        self._made_from: dict[str, Any] = json.loads(json.dumps(made_from))  # as it is read again: tuples are lists
        self._partial = output.with_name(f".{output.name}.partial")
        self._state = output.with_name(f".{output.name}.partial.json")
        self._packed = output.with_name(f".{output.name}.packed")
        self._file: IO[bytes] | None = None  # while open and locked
        self._is_published = False
        self._size, self._digest = 0, hashlib.sha256()  # of the finished lines

    def start(self) -> None:
        """Resume what an earlier run of the same command left, else start over."""
        is_new = not self._partial.exists()
        message = f"--output {self._output}: another command is writing it; wait for it or give another file"
        self._file = files.open_locked(self._partial, ConfigError(message))
        try:
            if not is_new:
                self._continue_from(self._file, json.loads(self._state.read_bytes()))
        except FileNotFoundError:
            pass  # nothing was finished
        except (ValueError, TypeError, KeyError):
            self._note("is damaged")
        if not self.lines:
            self._state.unlink(missing_ok=True)
        self._file.truncate(self._size)
        if 0 < self.lines < self._total:
            place = f"line {self.lines + 1:,} of {self._total:,}"
            print(f"translate: resuming {self._output} at {place}", file=sys.stderr)

    def add(self, text: str, lines: int, tally: dict[str, Any]) -> None:
        """Append finished lines, and record the tally with them."""
        assert self._file is not None
        content = text.encode()
        self._file.write(content)
        self._file.flush()
        os.fsync(self._file.fileno())
        files.after("write", self._partial)
        self._digest.update(content)
        self._size += len(content)
        state = {
            "made_from": self._made_from,
            "lines": self.lines + lines,
            "bytes": self._size,
            "sha256": self._digest.hexdigest(),
            "tally": tally,
        }
        files.write_file(self._state, json.dumps(state, ensure_ascii=False, indent=1).encode())
        self.lines, self.tally = self.lines + lines, tally

    def publish(self) -> None:
        """Give the complete output its name, compressed if the name asks for it."""
        whole = self._partial
        if self._output.suffix.lower() in COMPRESSORS:
            whole = self._packed
            with self._partial.open("rb") as plain, whole.open("wb") as file:
                with compressing(file, self._output.name) as packed:
                    shutil.copyfileobj(plain, packed)
                file.flush()
                os.fsync(file.fileno())
        files.after("write", whole)
        if os.name == "nt" and self._file is not None:
            self._file.close()  # Windows cannot rename an open file
        files.move_into_place(whole, self._output)
        self._state.unlink(missing_ok=True)
        if whole is not self._partial:
            self._partial.unlink(missing_ok=True)
        self._is_published = True

    def describe(self) -> str:
        """Say what is kept, and how to resume."""
        if not self.lines:
            return "no lines were finished"
        return f"{self.lines:,} of {self._total:,} lines kept in {self._partial}; run the same command to continue"

    def close(self) -> None:
        if self._file is None:
            return
        with suppress(OSError):  # a full disk, already reported
            self._file.close()
            self._packed.unlink(missing_ok=True)
            # once published, the name may belong to the next command
            if not self._is_published and not self._state.exists():
                self._partial.unlink(missing_ok=True)

    def _continue_from(self, file: IO[bytes], state: dict[str, Any]) -> None:
        """Count what an earlier run recorded as finished, if this command would write the same."""
        made_from, lines, size = dict(state["made_from"]), int(state["lines"]), int(state["bytes"])
        differing = [name for name in self._made_from if made_from.get(name) != self._made_from[name]]
        if differing:
            self._note(f"was made with another {differing[0]}")
            return
        digest = _digest_of(file, size)
        if digest.hexdigest() != state["sha256"]:
            self._note("is damaged")
            return
        self.lines, self.tally, self._size, self._digest = lines, dict(state["tally"]), size, digest

    def _note(self, what: str) -> None:
        print(f"translate: {self._partial} {what}; starting over", file=sys.stderr)


def _digest_of(file: IO[bytes], size: int) -> "hashlib._Hash":
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        digest.update(chunk)
        size -= len(chunk)
    return digest
