import multiprocessing
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dragoman.config import TextConfig
from dragoman.data import encoding
from dragoman.data import store as store_module
from dragoman.data import workers as workers_module
from dragoman.data.corpus import OnBadLine
from dragoman.data.encoding import WORKER_ENDED
from dragoman.data.store import Store, build_store
from dragoman.data.workers import can_start_processes
from dragoman.errors import DataError, DiskError, DragomanError
from dragoman.text.labels import Labels
from dragoman.text.tokenizer import Tokenizer

SOURCE = ["A man rides a horse.", "Two dogs.", "The snow is white and deep.", "Yes."]
TARGET = ["Ein Mann reitet.", "Zwei Hunde.", "Der Schnee ist weiß und tief.", "Ja."]


@cache
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    config = TextConfig(vocab_size=320)
    return Tokenizer.train(SOURCE, config), Tokenizer.train(TARGET, config)


def build(
    folder: Path,
    source: bytes = "\n".join(SOURCE).encode(),
    target: bytes = "\n".join(TARGET).encode(),
    max_length: int = 256,
    on_bad_line: OnBadLine = "fail",
    pair: tuple[Tokenizer, Tokenizer] | None = None,
    seen: list[int] | None = None,
) -> Store:
    (folder / "train.en").write_bytes(source)
    (folder / "train.de").write_bytes(target)
    return build_store(
        folder / "store",
        [folder / "train.en"],
        [folder / "train.de"],
        *(pair or tokenizers()),
        max_length=max_length,
        on_bad_line=on_bad_line,
        progress=None if seen is None else seen.append,
    )


def rows(store: Store) -> list[tuple[list[int], list[int]]]:
    return [(store.source(index).tolist(), store.target(index).tolist()) for index in range(len(store))]


def expected_rows() -> list[tuple[list[int], list[int]]]:
    source, target = tokenizers()
    return [(source.encode(a), target.encode(b)) for a, b in zip(SOURCE, TARGET, strict=True)]


@pytest.mark.parametrize("chunk", [1, 3, 10_000])
def test_store_holds_the_ids_of_the_tokenizers(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHUNK_ROWS", chunk)
    seen: list[int] = []
    store = build(tmp_path, seen=seen)
    assert rows(store) == expected_rows()
    assert seen == sorted({*range(chunk, 4, chunk), 4})
    assert store.source_lengths.tolist() == [len(source) for source, _ in rows(store)]
    assert store.target_lengths.tolist() == [len(target) for _, target in rows(store)]
    assert store.source_lengths.dtype == np.int64
    assert [store.line(index) for index in range(4)] == [1, 2, 3, 4]
    assert store.place(2) == f"{tmp_path / 'train.en'}:3"
    assert store.report.kept == len(store) == 4
    for index in (-1, 4):
        with pytest.raises(IndexError):
            store.source(index)


def test_the_bytes_do_not_depend_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHUNK_ROWS", 3)
    (tmp_path / "en").write_text("\n".join(SOURCE * 20))
    (tmp_path / "de").write_text("\n".join(TARGET * 20))
    longest = max(len(source) for source, _ in expected_rows())  # one more is </s>: some pairs are dropped
    found = []
    for workers in (0, 1, 3):
        folder = tmp_path / f"{workers}"
        store: Store = build_store(
            folder, [tmp_path / "en"], [tmp_path / "de"], *tokenizers(), max_length=longest, workers=workers
        )
        assert 0 < store.report.too_many_pieces.count < 80
        assert rows(store) == [row for row in expected_rows() * 20 if max(map(len, row)) < longest]
        found.append({path.name: path.read_bytes() for path in folder.glob("*/*")})
    assert len(found[0]) == 6
    assert found[0] == found[1] == found[2]


def test_a_worker_that_dies_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHUNK_ROWS", 1)
    (tmp_path / "en").write_text("\n".join(SOURCE * 200))
    (tmp_path / "de").write_text("\n".join(TARGET * 200))

    def kill(_: int) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    files = [tmp_path / "en"], [tmp_path / "de"]
    with pytest.raises(DragomanError, match=rf"^{WORKER_ENDED}$"):
        build_store(tmp_path / "store", *files, *tokenizers(), max_length=99, workers=2, progress=kill)
    assert not list((tmp_path / "store").iterdir())


def test_processes_encode_much_text_on_many_cores_in_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "can_start_processes", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(encoding, "WORTHWHILE", 1_000)
    (tmp_path / "large").write_bytes(b"a" * 1_000)
    (tmp_path / "small").write_bytes(b"a" * 999)
    (tmp_path / "packed.xz").write_bytes(b"a" * 250)
    one, other = tokenizers()
    assert encoding.workers_for([tmp_path / "large"], [one, other]) == 7
    assert encoding.workers_for([tmp_path / "packed.xz"], [one, other]) == 7
    assert encoding.workers_for([tmp_path / "small"], [one, other]) == 0
    assert encoding.workers_for([tmp_path / "large"], [one, Labels(["a", "b"])]) == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    assert encoding.workers_for([tmp_path / "large"], [one, other]) == 0
    monkeypatch.undo()
    assert not can_start_processes(), "this is no command"


def test_a_command_can_start_processes() -> None:
    """A script cannot: it may do all its work where a spawned process would import it."""
    check = "from dragoman.data.workers import can_start_processes; print(can_start_processes())"
    command = (
        "import sys, types; spec = types.SimpleNamespace(name='dragoman.__main__')\n"
        "sys.modules['__main__'] = types.SimpleNamespace(__spec__=spec)\n"
    )
    for code, expected in ((check, "False\n"), (command + check, "True\n")):
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == expected


def test_carriage_returns_and_a_byte_order_mark_change_no_id(tmp_path: Path) -> None:
    crlf = b"\xef\xbb\xbf" + "\r\n".join(SOURCE).encode() + b"\r\n"
    assert rows(build(tmp_path, source=crlf)) == expected_rows()


def test_dropped_pairs_are_counted_and_the_rest_keep_their_line_numbers(tmp_path: Path) -> None:
    source = b"Yes.\n\nbroken \xff\n" + b"horse " * 300 + b"\nYes.\n" + b"x" * (1 << 21) + b"\nYes.\n"
    store = build(tmp_path, source, b"Ja.\n" * 7, on_bad_line="skip")
    assert [store.line(index) for index in range(len(store))] == [1, 5, 7]
    report = store.report
    assert (report.kept, report.lines) == (3, 7)
    assert report.blank.first == [(0, 2)]
    assert report.bad.first == [(0, 3)]
    assert report.too_many_pieces.first == [(0, 4)]
    assert report.too_long.first == [(0, 6)]
    reopened = build(tmp_path, source, b"Ja.\n" * 7, on_bad_line="skip")
    assert reopened.report == report
    assert reopened.place(1) == f"{tmp_path / 'train.en'}:5"


def test_max_length_counts_the_end_of_sentence_on_either_side(tmp_path: Path) -> None:
    longest = max(max(map(len, row)) for row in expected_rows())
    assert len(build(tmp_path, max_length=longest + 1)) == 4
    assert len(build(tmp_path, max_length=longest)) == 3
    message = f"^{tmp_path / 'train.en'}: every pair has more than text.max_length=4 pieces; raise it$"
    with pytest.raises(DataError, match=message):
        build(tmp_path, source=b"A man rides a horse.\n", target=b"Ja.\n", max_length=4)


def test_existing_store_is_opened_not_rebuilt(tmp_path: Path) -> None:
    first = build(tmp_path)
    seen: list[int] = []
    second = build(tmp_path, seen=seen)
    assert seen == []
    assert second.key == first.key
    assert rows(second) == rows(first)
    assert [path.name for path in (tmp_path / "store").iterdir()] == [first.key[:16]]


def test_everything_that_affects_ids_changes_the_key(tmp_path: Path) -> None:
    source, target = tokenizers()
    wider = Tokenizer.from_bytes(source.to_bytes(), "nfkc")
    keys = {
        build(tmp_path).key,
        build(tmp_path, source="\n".join(SOURCE[::-1]).encode()).key,
        build(tmp_path, target="\n".join(TARGET[::-1]).encode()).key,
        build(tmp_path, max_length=255).key,
        build(tmp_path, on_bad_line="skip").key,
        build(tmp_path, pair=(target, source)).key,
        build(tmp_path, pair=(wider, target)).key,
    }
    assert len(keys) == 7


FILES = ["source.ids", "source.offsets.npy", "target.ids", "target.offsets.npy", "lines.npy", "meta.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damaged_store_is_rebuilt(tmp_path: Path, name: str, damage: str) -> None:
    path = tmp_path / "store" / build(tmp_path).key[:16] / name
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[0] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
    seen: list[int] = []
    assert rows(build(tmp_path, seen=seen)) == expected_rows()
    assert seen == [4]
    assert sorted(found.name for found in path.parent.iterdir()) == sorted(FILES)


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r": 4 lines, .*: 5; "):
        build(tmp_path, source=b"a\n" * 4, target=b"b\n" * 5)
    assert list((tmp_path / "store").iterdir()) == []


def test_unwritable_directory_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"a file in the way")
    with pytest.raises(DiskError, match=f"^{tmp_path / 'store'}: cannot be written "):
        build(tmp_path)


def test_ids_take_two_bytes_while_the_vocabulary_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tokenizers()
    assert build(tmp_path).source(0).dtype == np.dtype("<u2")
    large = Tokenizer.from_bytes(target.to_bytes())
    monkeypatch.setattr(large, "size", (1 << 16) + 1)
    store = build(tmp_path, max_length=255, pair=(source, large))
    assert store.source(0).dtype == np.dtype("<u2")
    assert store.target(0).dtype == np.dtype("<i4")
    assert rows(store) == expected_rows()
