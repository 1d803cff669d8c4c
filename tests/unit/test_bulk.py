"""Bulk translation with a translator that echoes: shards in and out, the manifest, restarts, and what is refused."""

import bz2
import gzip
import hashlib
import json
import lzma
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dragoman.config import DecodeConfig
from dragoman.data import shards
from dragoman.data.corpus import Line
from dragoman.data.shards import find_shards
from dragoman.decode import bulk
from dragoman.decode.bulk import JOURNAL, MANIFEST, Job, OneProcess, Run, ShardTranslator, running
from dragoman.decode.bulk_ray import _Cluster
from dragoman.decode.translation import Translation
from dragoman.errors import ConfigError, DataError, DiskError, DragomanError

WINDOW = 3  # records


class Echo:
    """Translates to capitals. Counts the records, and stops before the number-th."""

    device = "cpu"

    def __init__(self, stop_at: int | None = None, engine: str = "plain") -> None:
        self.records, self.starts, self.seeds, self._stop_at = 0, list[int](), set[int](), stop_at
        self._choice = SimpleNamespace(engine=engine, precision="float32")

    def options(self, **options: Any) -> DecodeConfig:
        return replace(DecodeConfig(batch_size=4), **options)

    def choice_for(self, options: DecodeConfig) -> Any:
        return self._choice

    def window_size(self, options: DecodeConfig) -> int:
        return WINDOW

    def stream(
        self,
        windows: Sequence[Sequence[Line]],
        *,
        options: DecodeConfig,
        glossary: object,
        start: int,
        advance: Callable[[int], None],
    ) -> Iterator[Translation]:
        self.seeds.add(options.seed)
        self.starts.append(start)
        for window in windows:
            assert len(window) <= WINDOW
            for line in window:
                self.records += 1
                if self.records == self._stop_at:
                    raise KeyboardInterrupt
                advance(1)
                if line.problem:
                    yield Translation(line.text, "", "failed", reason=line.problem)
                else:
                    yield Translation(line.text, line.text.upper(), "translated" if line.text else "empty")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "in").mkdir()
    return Job(tmp_path / "in", tmp_path / "out", "en-de")


@pytest.fixture(autouse=True)
def _any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "model_hash", lambda model: f"hash of {model}")


@contextmanager
def run_of(job: Job, echo: Echo | None = None, **how: Any) -> Iterator[Run]:
    @contextmanager
    def start(job: Job) -> Iterator[OneProcess]:
        yield OneProcess(ShardTranslator(job, echo or Echo()))  # type: ignore[arg-type]

    with running(job, start, **how) as run:
        yield run


def translate(job: Job, echo: Echo | None = None, **how: Any) -> Run:
    with run_of(job, echo, **how) as run:
        run.translate()
    return run


def manifest_of(job: Job) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((job.output / MANIFEST).read_bytes())
    return content


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_lines(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def write_three(job: Job) -> None:
    """Three shards of 4, 5 and 6 records."""
    for number, name in enumerate(("a.txt", "b/c.txt", "d.txt")):
        write_lines(job.input / name, *(f"{name} {row}" for row in range(4 + number)))


def kill_at_third_shard(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the files that a killed command leaves."""
    with monkeypatch.context() as killed:
        killed.setattr(bulk.Manifest, "close", lambda self: self._journal.close())
        with pytest.raises(KeyboardInterrupt):
            translate(job, Echo(stop_at=10))


# Which files are shards


def test_shards_are_found_in_order_with_folders(job: Job) -> None:
    names = ["b.jsonl", "a.txt", "z/y/x.parquet", "c.en", "d.pt-BR.gz", "e", "f.jsonl.xz", "G.TXT"]
    for name in [*names, ".hidden", "_SUCCESS", "_temporary/part.txt", ".git/config"]:
        write_lines(job.input / name)
    assert find_shards(job.input) == sorted(names)


@pytest.mark.parametrize("name", ["notes.md", "table.csv", "a.txt.zip", "sub/archive.tar.gz", "data.json"])
def test_other_file_is_refused_by_name(name: str, job: Job) -> None:
    write_lines(job.input / "a.txt", "one")
    write_lines(job.input / name, "one")
    with pytest.raises(DataError) as refused:
        translate(job)
    assert str(refused.value) == f"{job.input / name}: not a shard; move it away or rename it: {shards.KINDS}"
    assert not job.output.exists()


def test_empty_folder_and_linked_folder_are_refused(job: Job, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"in: no shards; shards end in \.txt"):
        find_shards(job.input)
    (tmp_path / "elsewhere").mkdir()
    (job.input / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="link: is a link to a folder; copy it"):
        find_shards(job.input)


# Text


@pytest.mark.parametrize(
    ("suffix", "pack", "unpack"),
    [
        ("", bytes, bytes),
        (".gz", gzip.compress, gzip.decompress),
        (".bz2", bz2.compress, bz2.decompress),
        (".xz", lzma.compress, lzma.decompress),
    ],
    ids=["plain", "gz", "bz2", "xz"],
)
def test_text_has_a_line_for_every_line(suffix: str, pack: Any, unpack: Any, job: Job) -> None:
    name = f"a.txt{suffix}"
    (job.input / name).write_bytes(pack(b"one\n\nbad \xff\nfour\r\nlast"))
    run = translate(job)
    assert unpack((job.output / name).read_bytes()) == b"ONE\n\n\nFOUR\nLAST\n"
    entry = run.manifest.entries[name]
    assert entry.statuses == {"empty": 1, "failed": 1, "translated": 3}
    assert entry.first_failed == {"record": 3, "reason": "invalid UTF-8 at byte 5"}
    assert (entry.records, entry.source_characters, entry.translation_characters) == (5, 11, 11)


def test_compressed_output_does_not_depend_on_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    (job.input / "a.txt.gz").write_bytes(gzip.compress(b"one\n"))
    translate(job)
    monkeypatch.setattr("time.time", lambda: 1.0)
    other = replace(job, output=job.output.with_name("other"))
    translate(other)
    assert files_of(job.output) == files_of(other.output)
    assert gzip.compress(b"one\n") != gzip.compress(b"one\n", mtime=2), "the control: a header has the time"


# JSONL


def test_jsonl_records_keep_their_fields_to_the_letter(job: Job) -> None:
    records = ['{"b": 1.10, "text":"one", "a": "\\u00e9\\ud800"}', '  {"text" : "zwei" , "n":[1e400,{}] }', ""]
    write_lines(job.input / "a.jsonl", *records)
    translate(job)
    assert (job.output / "a.jsonl").read_text().splitlines() == [
        '{"b": 1.10, "text":"one", "a": "\\u00e9\\ud800", "translation": "ONE", "status": "translated"}',
        '{"text" : "zwei" , "n":[1e400,{}], "translation": "ZWEI", "status": "translated"}',
    ]


def test_records_without_text_fail_alone(job: Job) -> None:
    reasons = {
        '{"text": "fine"}': None,
        '{"text": null}': "text is null",
        '{"text": 3}': "text is a number, not a string",
        '{"text": ["a"]}': "text is an array, not a string",
        '{"text": "a\\u0000b"}': "NUL at character 2",
        '{"text": "\\ud800"}': "invalid UTF-8 at character 1",
        '{"other": "a"}': "no field 'text'",
        "{}": "no field 'text'",
        '["text"]': "record 9 is not a JSON object",
        '{"text": "cut': "record 10 is not a JSON object",
        "[" * 200_000: "record 11 is not a JSON object",
    }
    write_lines(job.input / "a.jsonl", *reasons)
    with (job.input / "a.jsonl").open("ab") as file:
        file.write(b'{"text": "\xff"}\n')
    run = translate(job)
    found = [json.loads(line) for line in (job.output / "a.jsonl").read_text().splitlines()]
    assert [record.get("reason") for record in found] == [*reasons.values(), "record 12 is not a JSON object"]
    assert [(record["translation"], record["status"]) for record in found[1:]] == [("", "failed")] * 11
    assert run.manifest.entries["a.jsonl"].statuses == {"failed": 11, "translated": 1}
    assert [record["record"] for record in found[8:]] == [*list(reasons)[8:], '{"text": "\udcff"}'], "nothing is lost"
    assert "record" not in found[7]


def test_record_that_is_too_long_fails(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LONGEST_RECORD", 40)
    write_lines(job.input / "a.jsonl", '{"text": "one"}', json.dumps({"text": "x" * 100}), '{"text": "two"}')
    translate(job)
    found = [json.loads(line) for line in (job.output / "a.jsonl").read_text().splitlines()]
    assert [record["translation"] for record in found] == ["ONE", "", "TWO"]
    assert found[1]["reason"] == "record 2 is longer than 40 bytes"


# Parquet


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_parquet_keeps_columns_and_adds_new_ones(kind: Any, job: Job) -> None:
    text = pa.array(["one", None, "", "vier"] * 3, pa.string()).cast(kind)
    table = pa.table({"id": range(12), "text": text, "nested": [{"a": [number]} for number in range(12)]})
    table = table.replace_schema_metadata({"huggingface": "columns", "kept": "yes"})
    pq.write_table(table, job.input / "a.parquet", row_group_size=5)
    run = translate(job)
    written = pq.read_table(job.output / "a.parquet")
    assert written.select(table.column_names).equals(table)
    assert written.schema.field("text").type == kind
    assert written.column("translation").to_pylist() == ["ONE", "", "", "VIER"] * 3
    assert written.column("status").to_pylist() == ["translated", "failed", "empty", "translated"] * 3
    assert written.column("reason").to_pylist() == [None, "text is null", None, None] * 3
    assert b"huggingface" not in written.schema.metadata, "it lists columns"
    assert written.schema.metadata[b"kept"] == b"yes"
    assert run.manifest.entries["a.parquet"].records == 12


def test_parquet_string_that_is_not_utf8_fails(job: Job) -> None:
    text = pa.array([b"one", b"bad \xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": text}), job.input / "a.parquet")
    translate(job)
    new = pq.read_table(job.output / "a.parquet", columns=["translation", "reason"])
    assert new.to_pylist() == [
        {"translation": "ONE", "reason": None},
        {"translation": "", "reason": "invalid UTF-8 at byte 5"},
    ]


def test_shard_without_records_gives_one_without_records(job: Job) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), job.input / "a.parquet")
    for name in ("b.jsonl", "c.txt"):
        write_lines(job.input / name)
    run = translate(job)
    assert pq.read_table(job.output / "a.parquet").column_names == ["text", "translation", "status", "reason"]
    assert ((job.output / "b.jsonl").read_bytes(), (job.output / "c.txt").read_bytes()) == (b"", b"")
    assert (run.total, manifest_of(job)["totals"]["records"]) == (0, 0)


def test_windows_become_row_groups_of_a_useful_size(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "ROW_GROUP", 7)
    pq.write_table(pa.table({"text": [str(number) for number in range(20)]}), job.input / "a.parquet")
    translate(job)
    metadata = pq.ParquetFile(job.output / "a.parquet").metadata
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert sum(groups) == 20
    assert max(groups) <= 7
    assert len(groups) < 20 / WINDOW, "the control: not one for each window"
    assert [row["translation"] for row in rows_of(job.output / "a.parquet")] == [str(row) for row in range(20)]


# Memory


def wide_rows(count: int) -> Iterator[dict[str, Any]]:
    return ({"text": f"line {number}", "other": f"{number:0>1000}"} for number in range(count))


def write_wide(path: Path, count: int) -> None:
    if path.suffix == ".parquet":
        table = pa.Table.from_pylist(list(wide_rows(count)))
        pages = {"data_page_size": 1 << 14, "write_batch_size": 16}  # small ones
        pq.write_table(table, path, count, compression="none", use_dictionary=False, **pages)
    else:
        write_lines(path, *map(json.dumps, wide_rows(count)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_memory_does_not_grow_with_the_shard(name: str, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in (("WINDOW_BYTES", 1 << 15), ("READ_BYTES", 1 << 15), ("ROW_GROUP", 256)):
        monkeypatch.setattr(shards, constant, value)
    pool, stream = pa.default_memory_pool(), Echo.stream
    held = [0]  # most bytes of Arrow

    def watched(*arguments: Any, **options: Any) -> Any:
        held[0] = max(held[0], pool.bytes_allocated())
        return stream(*arguments, **options)

    monkeypatch.setattr(Echo, "stream", watched)
    peaks = []
    for count in (20, 500, 2_000):  # the first imports what is needed
        write_wide(job.input / name, count)
        before, held[0] = pool.bytes_allocated(), 0
        tracemalloc.start()
        translate(replace(job, output=job.output.with_name(str(count))))
        peaks.append(tracemalloc.get_traced_memory()[1] + held[0] - before)
        tracemalloc.stop()
    assert (job.input / name).stat().st_size > 2_000_000
    assert peaks[2] < 1.6 * peaks[1]  # of four times as many records
    assert peaks[2] < 1_000_000


# Fields


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_column_and_names_of_the_new_fields_can_be_chosen(kind: str, job: Job) -> None:
    path = job.input / f"a.{kind}"
    row = {"body": "one", "status": "draft", "translation": "un"}
    if kind == "jsonl":
        write_lines(path, json.dumps(row))
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(DataError) as missing:
        translate(job)
    what = "field" if kind == "jsonl" else "column"
    assert str(missing.value) == f"{path}: no {what} 'text'; give --column, one of: body, status, translation"
    with pytest.raises(DataError) as double:
        translate(replace(job, column="body"))
    assert str(double.value) == f"{path}: has 'status' and 'translation' already; give another name with --into"
    assert not job.output.exists()
    translate(replace(job, column="body", into="german"))
    written = job.output / f"a.{kind}"
    (found,) = rows_of(written) if kind == "parquet" else map(json.loads, written.read_text().splitlines())
    new = {"german": "ONE", "german_status": "translated"}
    assert found == {**row, **new, **({"german_reason": None} if kind == "parquet" else {})}


def test_later_record_with_a_new_fields_name_is_reported(job: Job) -> None:
    lines = ['{"text": "a"}'] * shards.FIRST_RECORDS + ['{"text": "a", "status": 1}']
    write_lines(job.input / "a.jsonl", *lines)
    place = f"{job.input / 'a.jsonl'}:{shards.FIRST_RECORDS + 1}"
    with pytest.raises(DataError, match=f"{place}: has 'status' already; give another name with --into"):
        translate(job)
    assert list(files_of(job.output)) == [MANIFEST]


def test_column_that_is_not_text_is_refused(job: Job) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), job.input / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: column 'text' is int64, not text; give --column"):
        translate(job)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"plain text\n", "no JSON objects, one per line; rename it to end in .txt if it is text"),
        ("a.txt.gz", gzip.compress(b"one\n" * 9)[:-9], "ends in the middle of its compressed data; copy it again"),
        ("a.parquet", b"PAR1 no", "not valid Parquet data"),
        ("a.txt", gzip.compress(b"one"), "gzip data, not text"),
    ],
    ids=["not JSON", "cut gzip", "not Parquet", "gzip named txt"],  # gzip bytes hold the time, so they are no names
)
def test_unreadable_shard_is_reported_before_any_is_translated(
    name: str, content: bytes, message: str, job: Job
) -> None:
    write_lines(job.input / "0.txt", "one")
    (job.input / name).write_bytes(content)
    echo = Echo()
    with pytest.raises(DataError) as error:
        translate(job, echo)
    assert message in str(error.value)
    assert str(job.input / name) in str(error.value)
    assert echo.records == 0


def test_worker_needs_a_machine_with_its_cores(job: Job) -> None:
    """Ray would wait for one for ever."""
    cores = [{"Alive": True, "Resources": {"CPU": 2.0}}] * 2 + [{"Alive": False, "Resources": {"CPU": 64.0}}]
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0}, nodes=lambda: cores)
    with pytest.raises(ConfigError, match=r"^--threads 3: no machine of the cluster has so many cores; give fewer$"):
        _Cluster(ray, replace(job, threads=3), None)
    with pytest.raises(AttributeError, match="remote"):  # the control: goes on to the cluster
        _Cluster(ray, replace(job, threads=2), None)


def test_details_are_more_fields(job: Job) -> None:
    write_lines(job.input / "a.jsonl", '{"text": "one"}')
    translate(replace(job, details=("score", "pieces")))
    record = json.loads((job.output / "a.jsonl").read_text())
    assert (record["score"], record["pieces"]) == (0.0, 0)


# The manifest


def test_manifest_has_counts_and_hashes_of_every_shard(job: Job) -> None:
    write_three(job)
    (job.input / "e.txt").write_bytes(b"\xff\n")
    translate(replace(job, settings={"beam": 2}))
    manifest = manifest_of(job)
    assert (manifest["format"], manifest["complete"]) == (1, True)
    assert manifest["made_from"].items() >= {"model": "hash of en-de", "beam": 2, "engine": "plain"}.items()
    assert list(manifest["shards"]) == ["a.txt", "b/c.txt", "d.txt", "e.txt"]
    for name, entry in manifest["shards"].items():
        for side, folder in (("input", job.input), ("output", job.output)):
            assert entry[f"{side}_sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert entry["records"] == (job.output / name).read_bytes().count(b"\n") == sum(entry["statuses"].values())
    characters = sum(len((job.input / name).read_text().replace("\n", "")) for name in ("a.txt", "b/c.txt", "d.txt"))
    assert manifest["totals"] == {
        "shards": 4,
        "records": 16,
        "source_characters": characters,
        "translation_characters": characters,
        "statuses": {"failed": 1, "translated": 15},
    }
    assert set(files_of(job.output)) == {*manifest["shards"], MANIFEST}


def test_finished_work_is_not_done_again(job: Job) -> None:
    write_three(job)
    translate(job)
    before = files_of(job.output)
    echo = Echo()
    run = translate(job, echo)
    assert (echo.records, run.pending, run.done, run.total) == (0, [], 15, 15)
    assert files_of(job.output) == before


@pytest.mark.parametrize("record", [1, 4, 5, 9, 10, 15])
def test_stopped_run_continues_to_the_same_bytes(record: int, job: Job) -> None:
    write_three(job)
    undisturbed = replace(job, output=job.output.with_name("undisturbed"))
    translate(undisturbed)
    with pytest.raises(KeyboardInterrupt), run_of(job, Echo(stop_at=record)) as run:
        run.translate()
    finished = [name for name, last in (("a.txt", 4), ("b/c.txt", 9)) if last < record]
    assert set(files_of(job.output)) == {*finished, MANIFEST}, "a shard is complete or absent"
    assert (manifest_of(job)["complete"], list(manifest_of(job)["shards"])) == (False, finished)
    count = f"{len(finished)} of 3 shards are finished; run the same command to continue"
    assert run.describe() == (count if finished else "no shards were finished")
    echo = Echo()
    translate(job, echo)
    assert echo.records == 15 - sum(4 + number for number in range(len(finished)))
    assert files_of(job.output) == files_of(undisturbed.output)


def test_entries_of_a_killed_run_count_even_if_the_last_is_cut(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    write_three(job)
    translate(replace(job, output=job.output.with_name("undisturbed")))
    kill_at_third_shard(job, monkeypatch)
    journal = job.output / JOURNAL
    content = journal.read_bytes()
    assert (manifest_of(job)["shards"], content.count(b"\n")) == ({}, 2)
    journal.write_bytes(content[:-20])
    echo = Echo()
    translate(job, echo)
    assert echo.records == 11, "the first shard is known, the entry of the second is cut"
    assert files_of(job.output) == files_of(job.output.with_name("undisturbed"))


@pytest.mark.parametrize("change", ["damaged", "missing", "input"])
def test_changed_shard_is_translated_again_and_others_are_not(change: str, job: Job) -> None:
    write_three(job)
    translate(job)
    before = files_of(job.output)
    output = job.output / "b/c.txt"
    if change == "damaged":
        output.write_bytes(output.read_bytes().replace(b"1", b"2", 1))
    elif change == "missing":
        output.unlink()
    else:
        write_lines(job.input / "b/c.txt", *"vwxyz")
    echo = Echo()
    run = translate(job, echo)
    assert (echo.records, run.changed, run.done) == (5, ["b/c.txt"], 10)
    after = files_of(job.output)
    if change == "input":
        assert after.pop("b/c.txt") == b"V\nW\nX\nY\nZ\n"
        assert after["a.txt"] == before["a.txt"]
    else:
        assert after == before


def test_new_shard_is_added_to_finished_work(job: Job) -> None:
    write_three(job)
    translate(job)
    write_lines(job.input / "b/b.txt", "new")
    echo = Echo()
    translate(job, echo)
    assert echo.records == 1
    assert list(manifest_of(job)["shards"]) == ["a.txt", "b/b.txt", "b/c.txt", "d.txt"]


# What is refused


def other_ways(job: Job) -> dict[str, tuple[Job, str]]:
    return {
        "model": (replace(job, model="other"), "another model"),
        "beam": (replace(job, settings={"beam": 2}), "beam 4, not 2"),
        "field": (replace(job, into="german"), "into translation, not german"),
        "several": (
            replace(job, model="other", settings={"beam": 2, "target_language": "deu"}),
            'another model, beam 4, not 2, target_language "", not deu',
        ),
    }


@pytest.mark.parametrize("way", ["model", "beam", "field", "several"])
def test_work_made_in_another_way_is_refused_and_left_alone(way: str, job: Job) -> None:
    write_three(job)
    translate(job)
    before = files_of(job.output)
    other, what = other_ways(job)[way]
    with pytest.raises(ConfigError) as refused:
        translate(other)
    message = f"--output {job.output}: was made with {what}; give another folder or the same options"
    assert str(refused.value) == message
    assert files_of(job.output) == before
    echo = Echo()
    translate(other, echo, redo=True)
    assert echo.records == 15
    assert way == "model" or manifest_of(job)["made_from"] != json.loads(before[MANIFEST])["made_from"]


def test_refused_command_keeps_the_entries_of_a_killed_run(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    write_three(job)
    kill_at_third_shard(job, monkeypatch)
    before = files_of(job.output)
    with pytest.raises(ConfigError, match="beam 4, not 2"):
        translate(replace(job, settings={"beam": 2}))
    assert files_of(job.output) == before


def test_threads_and_with_the_cpu_engine_batches_may_change(job: Job) -> None:
    write_three(job)
    for engine in ("cpu", "plain"):
        mine = replace(job, output=job.output / engine)
        translate(mine, Echo(engine=engine))
        translate(replace(mine, settings={"threads": 2}), Echo(engine=engine))
        other = replace(mine, settings={"batch_size": 2})
        if engine == "cpu":
            translate(other, Echo(engine=engine))
        else:
            with pytest.raises(ConfigError, match="batch_size 4, not 2"):
                translate(other, Echo(engine=engine))


def test_shard_whose_input_is_gone_is_refused(job: Job) -> None:
    write_three(job)
    translate(job)
    (job.input / "d.txt").unlink()
    with pytest.raises(ConfigError) as refused:
        translate(job)
    assert str(refused.value) == (
        f"--output {job.output}: has d.txt, which is not in {job.input} any more; restore it or give another folder"
    )
    assert (job.output / "d.txt").exists()
    translate(job, redo=True)
    assert not (job.output / "d.txt").exists()


def test_folder_of_other_files_is_refused(job: Job) -> None:
    write_three(job)
    write_lines(job.output / "a.txt", "precious")
    with pytest.raises(ConfigError, match=r"out: has files, but no manifest\.json; give a new or empty folder"):
        translate(job)
    assert files_of(job.output) == {"a.txt": b"precious\n"}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"made_from": {}}', b'{"made_from": {}, "shards": {"a": {"b": 1}}}'])
def test_damaged_manifest_is_reported(content: bytes, job: Job) -> None:
    write_three(job)
    translate(job)
    (job.output / MANIFEST).write_bytes(content)
    with pytest.raises(DataError, match=r"manifest.json: not a manifest; restore it or give another --output"):
        translate(job)
    assert (job.output / MANIFEST).read_bytes() == content


@pytest.mark.parametrize("where", ["in", "in/out"])
def test_output_inside_the_input_is_refused(where: str, job: Job, tmp_path: Path) -> None:
    write_three(job)
    with pytest.raises(ConfigError, match="is inside the input; give another folder"):
        translate(replace(job, output=tmp_path / where))


def test_second_command_in_the_same_folder_is_refused(job: Job) -> None:
    write_three(job)
    with run_of(job) as run:
        with pytest.raises(ConfigError, match="another command is writing there; wait for it or give another folder"):
            translate(job)
        run.translate()
    assert manifest_of(job)["complete"]


# Disks and lost workers


def test_shard_that_is_not_read_back_completely_gets_no_name(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    write_three(job)
    add = shards._TextWriter.add
    with monkeypatch.context() as lossy:
        lossy.setattr(shards._TextWriter, "add", lambda self, window, values: add(self, window, [values[0][1:]]))
        with pytest.raises(DiskError) as error:
            translate(job)
    assert str(error.value) == f"{job.output / 'a.txt'}: 2 of 4 records were read back; check the disk"
    assert set(files_of(job.output)) == {MANIFEST}
    translate(job)
    assert manifest_of(job)["totals"]["records"] == 15


def test_full_disk_is_one_error_and_leaves_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    write_three(job)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(shards._TextWriter, "add", full)
        with pytest.raises(DiskError, match=r"a.txt: cannot be written \(No space left on device\); free some space"):
            translate(job)
    assert set(files_of(job.output)) == {MANIFEST}


def test_input_that_changes_meanwhile_is_reported(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(job.input / "a.txt", "one", "two")
    stream = Echo.stream

    def changing(*arguments: Any, **options: Any) -> Any:
        write_lines(job.input / "a.txt", "one", "two", "three")
        return stream(*arguments, **options)

    monkeypatch.setattr(Echo, "stream", changing)
    with pytest.raises(DataError, match=r"a\.txt: changed while it was translated; run the command again"):
        translate(job)
    assert set(files_of(job.output)) == {MANIFEST}


def test_shard_that_kills_its_workers_is_given_up(job: Job) -> None:
    write_lines(job.input / "a-b.txt", "one")
    with run_of(job) as run:
        for number in range(bulk.MOST_LOST):
            write_lines(job.output / f"{bulk.TEMPORARY}{number}-abc-b.txt")  # of another shard
            translator = ShardTranslator(job, Echo())  # type: ignore[arg-type]
            assert translator.translate("a-b.txt").records == 1
        for number in range(bulk.MOST_LOST):
            write_lines(job.output / f"{bulk.TEMPORARY}{number}-abc-a-b.txt")
        with pytest.raises(DragomanError, match="5 workers were killed while they translated it"):
            run.translate()
    assert manifest_of(job)["shards"] == {}
    assert translate(job).done == 0, "what lost workers left is removed"


def test_several_workers_start_with_the_largest_shards(job: Job) -> None:
    write_three(job)
    assert bulk.largest_first(["a.txt", "b/c.txt", "d.txt"], job.input) == ["b/c.txt", "d.txt", "a.txt"]


# Sampling


def test_every_shard_samples_with_its_own_seed(job: Job) -> None:
    write_three(job)
    seeds: list[set[int]] = []
    for settings in ({"sampling": True}, {"sampling": True, "seed": 2}, {"mbr": 4, "seed": 3}, {}):
        echo = Echo()
        translate(replace(job, output=job.output / str(len(seeds)), settings=settings), echo)
        seeds.append(echo.seeds)
    assert [len(each) for each in seeds] == [3, 3, 3, 1]
    assert echo.starts == [0, 3, 0, 3, 0, 3], "records are counted within their shard"
    assert not seeds[0] & seeds[1]
    (job.input / "0.txt").write_text("first\n")
    echo = Echo()
    translate(replace(job, output=job.output / "more", settings={"sampling": True}), echo)
    assert echo.seeds > seeds[0], "other shards change nothing"
