"""Translates a folder of shards: each record once, whatever is interrupted. Knows nothing of terminals or of Ray.

    OUTPUT/NAME             the translated shard NAME, complete or absent
    OUTPUT/manifest.json    what the shards were made from, and the counts and SHA-256 of each
    OUTPUT/.manifest.jsonl  entries of shards that were finished since; locked while a command runs
    OUTPUT/.writing-*       a shard in progress

A shard is written aside, read back and renamed; then its entry is appended to the second file, which is merged into the
first when a command ends, or when the next one starts. A shard without an entry is translated again, to the same bytes.
"""

import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol

from dragoman import files
from dragoman.bundle import CONFIG, LEARNED, WEIGHTS, load_config, resolve_model, tokenizer_names
from dragoman.data.corpus import content_hash, file_hash
from dragoman.data.shards import Fields, Values, find_shards, shard_format
from dragoman.errors import ConfigError, DataError, DiskError
from dragoman.progress import Advance, no_progress

if TYPE_CHECKING:
    from dragoman.config import DecodeConfig
    from dragoman.decode.translation import Translation
    from dragoman.decode.translator import Translator

MANIFEST, JOURNAL, TEMPORARY = "manifest.json", ".manifest.jsonl", ".writing-"
FORMAT = 1  # of the manifest
MOST_LOST = 5  # workers that one shard may cost
READERS = 8  # threads that count and hash files

DETAILS: dict[str, tuple[type, Callable[["Translation"], int | float]]] = {  # more fields of a record, on request
    "score": (float, lambda result: float(result.score)),
    "normalized_score": (float, lambda result: float(result.normalized_score)),
    "source_pieces": (int, lambda result: len(result.source_tokens)),  # including </s>, here and below
    "pieces": (int, lambda result: len(result.tokens)),
}


@dataclass(frozen=True)
class Job:
    """What to do with each shard: plain values, which can be sent to other processes."""

    input: Path
    output: Path
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # DecodeOptions; the model's own where not given
    column: str = "text"  # the field of a record that is translated
    into: str = "translation"  # the field of its translation
    details: tuple[str, ...] = ()  # more fields, of DETAILS
    device: str = "auto"
    precision: str = "auto"
    engine: str = "auto"
    threads: int | None = None
    glossary: Path | None = None

    def fields(self) -> Fields:
        """The new fields of a record. Fields of a second translation do not get the names of the first one's."""
        prefix = "" if self.into == "translation" else f"{self.into}_"
        details = {prefix + name: DETAILS[name][0] for name in self.details}
        return {self.into: str, f"{prefix}status": str, f"{prefix}reason": str, **details}


@dataclass(frozen=True)
class Entry:
    """What the manifest says about one shard."""

    name: str
    input_sha256: str
    output_sha256: str
    records: int
    source_characters: int
    translation_characters: int
    statuses: dict[str, int]
    first_failed: dict[str, Any] | None = None  # number, from 1, and reason


class Workers(Protocol):
    """Something that translates shards: this process, others, or a cluster."""

    made_from: Mapping[str, Any]  # everything that determines the output, beside the input

    def translate(self, names: Sequence[str], advance: Advance) -> Iterator[Entry]:
        """Yield the entry of each shard when it is finished, in any order."""
        ...


def model_hash(model: str | Path) -> str:
    """SHA-256 over every file of a model that affects its translations."""
    directory = resolve_model(model)
    names = [WEIGHTS, CONFIG, *tokenizer_names(load_config(directory).text.joint)]
    names += [name for name in LEARNED if (directory / name).exists()]
    return content_hash([directory / name for name in names])


# One shard


class ShardTranslator:
    """A loaded model that translates shards, one after the other."""

    def __init__(self, job: Job, translator: "Translator | None" = None) -> None:
        from dragoman.decode.translator import Translator

        self.job = job
        self._translator = translator or Translator.load(job.model, job.device, job.precision, job.threads, job.engine)
        self._options = self._translator.options(**{**job.settings, "n_best": 1})
        self._glossary = None if job.glossary is None else self._translator.glossary(job.glossary)
        choice = self._translator.choice_for(self._options)
        # batch mates change nothing in the CPU engine, the number of threads nowhere
        unimportant = {"threads", "batch_size"} if choice.engine == "cpu" else {"threads"}
        made_from = {
            "model": model_hash(job.model),
            "version": import_module("dragoman").__version__,  # the package itself imports every layer
            "device": self._translator.device.partition(":")[0],
            "engine": choice.engine,
            "precision": choice.precision,
            "column": job.column,
            "into": job.into,
            "glossary": None if job.glossary is None else file_hash(job.glossary),
            "details": job.details,
            **{name: value for name, value in asdict(self._options).items() if name not in unimportant},
        }
        self.made_from: dict[str, Any] = json.loads(json.dumps(made_from))  # as it is read again: tuples are lists

    def translate(self, name: str, advance: Advance = no_progress) -> Entry:
        """Translate one shard to a file aside, read it back, and give it its name."""
        source, target = self.job.input / name, self.job.output / name
        # a worker that is taken to be lost may still be writing
        aside = target.with_name(f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}-{target.name}")
        before = file_hash(source)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._require_survivors(source, target)
            tally = self._write(name, aside, advance)
            _verify(name, aside, target, tally.records)
            if file_hash(source) != before:
                raise DataError(f"{source}: changed while it was translated; run the command again")
            output = file_hash(aside)
            files.move_into_place(aside, target)
        except OSError as error:
            raise DiskError(f"{target}: cannot be written ({error.strerror}); free some space") from None
        finally:
            with suppress(OSError):  # the first error is the one to report
                aside.unlink(missing_ok=True)
        return Entry(name, before, output, **tally.counts())

    def _require_survivors(self, source: Path, target: Path) -> None:
        """A shard that always kills its worker must not do so for ever: each has left its file aside."""
        names = (path.name for path in target.parent.iterdir())
        lost = sum(name.startswith(TEMPORARY) and name.split("-", 3)[-1] == target.name for name in names)
        if lost >= MOST_LOST:
            raise DataError(f"{source}: {lost} workers were killed while they translated it; does it need more memory?")

    def _write(self, name: str, aside: Path, advance: Advance) -> "_Tally":
        source, shard, tally, options = self.job.input / name, shard_format(name), _Tally(), self._options_of(name)
        size = self._translator.window_size(options)
        with aside.open("xb") as stream:
            with shard.writing(stream, source, self.job.fields()) as writer:
                for window in shard.windows(source, self.job.column, size):
                    results = list(
                        self._translator.stream(
                            [window.lines],
                            options=options,
                            glossary=self._glossary,
                            start=tally.records,
                            advance=advance,
                        )
                    )
                    writer.add(window, self._values(results))
                    tally.add(results)
            stream.flush()
            os.fsync(stream.fileno())
        files.after("write", aside)
        return tally

    def _options_of(self, name: str) -> "DecodeConfig":
        """Each shard samples with its own seed, because its records are counted from 0."""
        if not self._options.sampling and not self._options.mbr:
            return self._options
        digest = hashlib.sha256(f"{self._options.seed}:{name}".encode()).digest()
        return replace(self._options, seed=int.from_bytes(digest[:7]))

    def _values(self, results: Sequence["Translation"]) -> Values:
        """One list for each field of the job, in their order."""
        details = [[DETAILS[name][1](result) for result in results] for name in self.job.details]
        return [
            [result.text for result in results],
            [result.status for result in results],
            [result.reason or None for result in results],
            *details,
        ]


def _verify(name: str, aside: Path, target: Path, records: int) -> None:
    """Read a written shard back."""
    try:
        found = shard_format(name).read_back(aside)
    except DataError as error:
        raise DiskError(f"{target}: cannot be read back ({error}); check the disk") from None
    if found != records:
        raise DiskError(f"{target}: {found:,} of {records:,} records were read back; check the disk")


class _Tally:
    """Counts of a shard."""

    def __init__(self) -> None:
        self.records = self._source = self._translation = 0
        self._statuses: Counter[str] = Counter()
        self._first_failed: dict[str, Any] | None = None

    def add(self, results: Iterable["Translation"]) -> None:
        for result in results:
            self.records += 1
            self._source += len(result.source)
            self._translation += len(result.text)
            self._statuses[result.status] += 1
            if result.status == "failed" and self._first_failed is None:
                self._first_failed = {"record": self.records, "reason": result.reason}

    def counts(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "source_characters": self._source,
            "translation_characters": self._translation,
            "statuses": dict(sorted(self._statuses.items())),
            "first_failed": self._first_failed,
        }


# The manifest


class Manifest:
    """The entries of finished shards, in a folder that no other command may write to meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.entries: dict[str, Entry] = {}
        self.made_from: dict[str, Any] = {}
        self._folder = folder
        self._is_changing = False  # whether there are entries that the manifest may lack
        self._new = [path for path in (folder, *folder.parents) if not path.exists()]
        self._journal: IO[bytes] | None = None
        files.make_directory(folder)
        message = f"--output {folder}: another command is writing there; wait for it or give another folder"
        try:
            self._journal = files.open_locked(folder / JOURNAL, ConfigError(message))
        except OSError as error:
            raise DiskError(f"{folder}: cannot be written ({error.strerror}); choose another place") from None

    @property
    def path(self) -> Path:
        return self._folder / MANIFEST

    def read(self) -> bool:
        """Read what earlier commands finished; whether there was one."""
        if not self.path.exists():
            if any(
                not path.name.startswith(".") for path in self._folder.iterdir()
            ):  # others may be of a killed command
                raise ConfigError(f"--output {self._folder}: has files, but no {MANIFEST}; give a new or empty folder")
            return False
        try:
            content = json.loads(self.path.read_bytes())
            self.made_from = dict(content["made_from"])
            self._add_entries({"name": name, **entry} for name, entry in content["shards"].items())
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(f"{self.path}: not a manifest; restore it or give another --output") from None
        assert self._journal is not None
        self._journal.seek(0)
        for line in self._journal:
            with suppress(ValueError, TypeError):  # cut short when it was written
                self._add_entries([json.loads(line)])
        return True

    def _add_entries(self, entries: Iterable[Mapping[str, Any]]) -> None:
        for entry in entries:
            self.entries[entry["name"]] = Entry(**entry)

    def forget(self, names: Iterable[str]) -> None:
        """Remove entries and their files."""
        for name in names:
            self.entries.pop(name, None)
            (self._folder / name).unlink(missing_ok=True)

    def add(self, entry: Entry) -> None:
        """Record a finished shard."""
        assert self._journal is not None
        self.entries[entry.name] = entry
        try:
            self._journal.write(json.dumps(asdict(entry), ensure_ascii=False).encode() + b"\n")
            self._journal.flush()
            os.fsync(self._journal.fileno())
            files.after("write", self._folder / JOURNAL)
        except OSError as error:
            raise files.disk_error(self.path, 0, error) from None

    def write(self, *, complete: bool) -> None:
        """Write all entries. Equal work gives equal bytes: there are no times, and shards are sorted by name."""
        entries = [self.entries[name] for name in sorted(self.entries)]
        statuses: Counter[str] = Counter()
        for entry in entries:
            statuses.update(entry.statuses)
        counts = ("records", "source_characters", "translation_characters")
        content = {
            "format": FORMAT,
            "complete": complete,
            "made_from": self.made_from,
            "totals": {
                "shards": len(entries),
                **{name: sum(getattr(entry, name) for entry in entries) for name in counts},
                "statuses": dict(sorted(statuses.items())),
            },
            "shards": {entry.name: {k: v for k, v in asdict(entry).items() if k != "name"} for entry in entries},
        }
        files.write_file(self.path, json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n")
        assert self._journal is not None
        self._journal.truncate(0)
        self._is_changing = not complete

    def close(self) -> None:
        """Merge the two files. A folder that was refused is left as it was."""
        assert self._journal is not None
        with suppress(OSError, DiskError):  # a full disk, already reported
            if self._is_changing:
                self.remove_asides()
                self.write(complete=False)
        with suppress(OSError):
            is_empty = not self._journal.seek(0, os.SEEK_END)
            self._journal.close()
            if is_empty:
                (self._folder / JOURNAL).unlink()
            for path in self._new:  # unless there is something in it
                path.rmdir()

    def remove_asides(self) -> None:
        """Remove what killed workers left."""
        for path in self._folder.rglob(f"{TEMPORARY}*"):
            path.unlink(missing_ok=True)


# A folder


@dataclass
class Run:
    """Created by `running`."""

    job: Job
    names: list[str]  # of all shards, in order
    workers: Workers
    manifest: Manifest
    pending: list[str] = field(default_factory=list)  # names
    changed: list[str] = field(default_factory=list)  # those of them that have been finished before
    total: int = 0  # records
    done: int = 0  # records of finished shards

    def translate(self, advance: Advance = no_progress) -> None:
        """Translate all pending shards."""
        for entry in self.workers.translate(self.pending, advance):
            self.manifest.add(entry)
        assert self.manifest.entries.keys() == set(self.names)
        self.manifest.remove_asides()
        self.manifest.write(complete=True)

    def describe(self) -> str:
        """Say what is kept, and how to resume."""
        if not self.manifest.entries:
            return "no shards were finished"
        done = f"{len(self.manifest.entries):,} of {len(self.names):,} shards"
        return f"{done} are finished; run the same command to continue"


@contextmanager
def running(job: Job, start: Callable[[Job], AbstractContextManager[Workers]], *, redo: bool = False) -> Iterator[Run]:
    """Find out what is left to do. `redo`: if earlier work was made in another way, do it again; else refuse.

    What is wrong with the input is reported before `start` loads a model.
    """
    names = find_shards(job.input)
    if job.output.resolve().is_relative_to(job.input.resolve()):
        raise ConfigError(f"--output {job.output}: is inside the input; give another folder")
    _in_threads(lambda name: shard_format(name).check(job.input / name, job.column, job.fields()), names)
    manifest = Manifest(job.output)
    try:
        is_old = manifest.read()
        with start(job) as workers:
            made_from = dict(workers.made_from)
            if is_old:
                _compare(manifest, made_from, names, job, redo=redo)
            manifest.made_from = made_from
            manifest.write(complete=False)
            manifest.remove_asides()
            run = Run(job, names, workers, manifest)
            _find_pending(run)
            yield run
    finally:
        manifest.close()


def _compare(manifest: Manifest, made_from: Mapping[str, Any], names: Sequence[str], job: Job, *, redo: bool) -> None:
    """Never mix shards that were made in different ways."""
    before = manifest.made_from
    differing = [name for name in {**before, **made_from} if before.get(name) != made_from.get(name)]
    gone = sorted(manifest.entries.keys() - set(names))
    if redo:
        manifest.forget([*manifest.entries] if differing else gone)
    elif differing:
        _refuse(job.output, differing, before, made_from)
    elif gone:
        raise ConfigError(
            f"--output {job.output}: has {gone[0]}, which is not in {job.input} any more; "
            "restore it or give another folder"
        )


def _refuse(output: Path, differing: Sequence[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> NoReturn:
    parts = [
        "another model" if name == "model" else f"{name} {_shown(before.get(name))}, not {_shown(now.get(name))}"
        for name in differing
    ]
    raise ConfigError(f"--output {output}: was made with {', '.join(parts)}; give another folder or the same options")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _find_pending(run: Run) -> None:
    """Compare the files with their entries, and count the records of the others."""
    entries = run.manifest.entries

    def is_done(name: str) -> bool:
        entry, output = entries.get(name), run.job.output / name
        if entry is None or not output.is_file():
            return False
        return file_hash(run.job.input / name) == entry.input_sha256 and file_hash(output) == entry.output_sha256

    done = dict(zip(run.names, _in_threads(is_done, run.names), strict=True))
    run.pending = [name for name in run.names if not done[name]]
    run.changed = [name for name in run.pending if entries.pop(name, None)]
    counts = _in_threads(lambda name: shard_format(name).count(run.job.input / name), run.pending)
    run.done = sum(entry.records for entry in entries.values())
    run.total = run.done + sum(counts)


def _in_threads(function: Callable[[str], Any], names: Sequence[str]) -> list[Any]:
    with ThreadPoolExecutor(READERS) as threads:
        return list(threads.map(function, names))


def largest_first(names: Iterable[str], folder: Path) -> list[str]:
    """For several workers: none is left with a large shard when the others are done."""
    return sorted(names, key=lambda name: -(folder / name).stat().st_size)


@contextmanager
def in_this_process(job: Job) -> Iterator["OneProcess"]:
    yield OneProcess(ShardTranslator(job))


class OneProcess:
    def __init__(self, translator: ShardTranslator) -> None:
        self.made_from: Mapping[str, Any] = translator.made_from
        self._translator = translator

    def translate(self, names: Sequence[str], advance: Advance) -> Iterator[Entry]:
        for name in names:
            yield self._translator.translate(name, advance)
