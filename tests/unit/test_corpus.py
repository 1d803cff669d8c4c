import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.data.corpus import (
    LONGEST_LINE,
    TOO_LONG,
    CorpusReport,
    Line,
    OnBadLine,
    Pair,
    content_hash,
    read_lines,
    read_pairs,
    text_line,
)
from dragoman.errors import DataError

SEPARATORS_OF_OTHERS = "\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e \r x"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def pairs_of(
    folder: Path, source: bytes, target: bytes, on_bad_line: OnBadLine = "fail"
) -> tuple[list[Pair], CorpusReport]:
    report = CorpusReport()
    paths = [write(folder / "train.en", source)], [write(folder / "train.de", target)]
    return list(read_pairs(*paths, on_bad_line=on_bad_line, report=report)), report


def message_of(action: Callable[[], object]) -> str:
    with pytest.raises(DataError) as raised:
        action()
    message = str(raised.value)
    assert "\n" not in message
    assert raised.value.exit_code == 3
    return message


def numbered(count: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(count))


@pytest.mark.parametrize("missing", [1, 2, 999])
def test_unequal_line_counts_name_both_files(tmp_path: Path, missing: int) -> None:
    whole, cut = numbered(1000), numbered(1000 - missing)
    source, target = tmp_path / "train.en", tmp_path / "train.de"
    remedy = "line N of one belongs to line N of the other"
    assert message_of(lambda: pairs_of(tmp_path, whole, cut)) == (
        f"{target}: {1000 - missing} lines, {source}: 1000; {remedy}"
    )
    assert message_of(lambda: pairs_of(tmp_path, cut, whole)) == (
        f"{source}: {1000 - missing} lines, {target}: 1000; {remedy}"
    )


def test_tsv_file_holds_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "words.tsv.bz2"
    path.write_bytes(bz2.compress("hello\th ə l oʊ\n\nworld\tw ɝ l d\tnoun\n".encode()))
    report = CorpusReport()
    found = [(pair.source, pair.target, pair.line) for pair in read_pairs([path], [path], report=report)]
    assert found == [("hello", "h ə l oʊ", 1), ("world", "w ɝ l d", 3)]
    assert report.blank.count == 1
    path.write_bytes(bz2.compress(b"one\tuno\ntwo dos\n"))
    with pytest.raises(DataError, match=r"words.tsv.bz2:2: no tab between source and target; fix the line or"):
        list(read_pairs([path], [path], report=CorpusReport()))


def test_missing_final_newline_is_accepted(tmp_path: Path) -> None:
    whole, _ = pairs_of(tmp_path, numbered(9), numbered(9))
    assert pairs_of(tmp_path, numbered(9), numbered(9)[:-1])[0] == whole
    assert pairs_of(tmp_path, numbered(9)[:-1], numbered(9))[0] == whole
    message_of(lambda: pairs_of(tmp_path, numbered(9), numbered(9) + b"\n"))  # one newline more is a line more


def test_invalid_utf8_is_named_by_line_and_byte_or_skipped_and_counted(tmp_path: Path) -> None:
    lines = numbered(10).splitlines(keepends=True)
    lines[6] = b"x" * 30 + b"\xff and more\n"
    bad = b"".join(lines)
    assert message_of(lambda: pairs_of(tmp_path, bad, numbered(10))) == (
        f"{tmp_path / 'train.en'}:7: invalid UTF-8 at byte 31; fix the line or use --on-bad-line skip"
    )
    assert message_of(lambda: pairs_of(tmp_path, numbered(10), bad)).startswith(f"{tmp_path / 'train.de'}:7: ")

    pairs, report = pairs_of(tmp_path, bad, numbered(10), "skip")
    assert [pair.line for pair in pairs] == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert all(pair.source == pair.target for pair in pairs)
    assert (report.kept, report.bad.count, report.lines) == (9, 1, 10)
    assert report.notes() == [f"1 pair left out, not valid text on a side: {tmp_path / 'train.en'}:7"]


@pytest.mark.parametrize("data", [b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80"])
def test_every_kind_of_invalid_utf8_is_found(tmp_path: Path, data: bytes) -> None:
    [line] = read_lines(write(tmp_path / "file", b"ab" + data + b"\n"))
    assert line == Line(1, "", "invalid UTF-8 at byte 3")


@given(st.binary(max_size=60))
def test_line_count_is_newlines_plus_an_unterminated_last_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    data = b"a" + data
    expected = data.count(b"\n") + (not data.endswith(b"\n"))
    lines = list(read_lines(write(tmp_path_factory.getbasetemp() / "any", data)))
    assert [line.number for line in lines] == list(range(1, expected + 1))


def test_nothing_but_a_newline_separates_lines(tmp_path: Path) -> None:
    data = f"{SEPARATORS_OF_OTHERS}\nsecond\n".encode()
    lines = list(read_lines(write(tmp_path / "file", data)))
    assert [line.text for line in lines] == [SEPARATORS_OF_OTHERS, "second"]
    assert len(data.decode().splitlines()) > 2  # the control: what Python calls lines
    with (tmp_path / "file").open(encoding="utf-8") as universal:
        assert len(universal.readlines()) > 2  # and what its text files do


def test_carriage_returns_and_a_byte_order_mark_change_no_text(tmp_path: Path) -> None:
    clean, _ = pairs_of(tmp_path, b"one\ntwo\n", b"eins\nzwei\n")
    assert pairs_of(tmp_path, b"\xef\xbb\xbfone\r\ntwo\r\n", b"eins\nzwei\n")[0] == clean
    assert pairs_of(tmp_path, b"one\ntwo\n", b"\xef\xbb\xbfeins\r\nzwei\r")[0] == clean
    lines = read_lines(write(tmp_path / "file", b"a\r\r\n\xef\xbb\xbfb\n"))
    assert [line.text for line in lines] == ["a\r", "\ufeffb"]  # one return only; a mark later on is text


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")))
@example("\ufeffa\0b")
@example("\ufeff\ufeffa")
def test_string_is_checked_like_the_first_line_of_a_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    (read,) = read_lines(write(tmp_path_factory.getbasetemp() / "one", text.encode() + b"\n"))
    found = text_line(text)
    assert found.text == read.text
    assert found.problem.split()[:2] == read.problem.split()[:2], "counted in bytes in files, in characters in strings"


def test_blank_lines_are_dropped_as_pairs_and_counted(tmp_path: Path) -> None:
    pairs, report = pairs_of(tmp_path, b"a\n\nc\n \t\ne\n", b"A\nB\n\xe2\x80\xa8\n\nE\n")
    assert pairs == [Pair("a", "A", 0, 1), Pair("e", "E", 0, 5)]
    assert (report.kept, report.blank.count, report.blank.first) == (2, 3, [(0, 2), (0, 3), (0, 4)])
    message = message_of(lambda: pairs_of(tmp_path, b"\n \na\n", b"\nb\n\n"))
    assert message == (
        f"{tmp_path / 'train.en'}: no usable pair: 3 lines, 3 blank, 0 bad, 0 too long; check that both sides hold text"
    )
    assert "0 lines" in message_of(lambda: pairs_of(tmp_path, b"", b""))


def test_binary_data_is_reported_with_file_and_line(tmp_path: Path) -> None:
    text = numbered(3)
    source = tmp_path / "train.en"

    def message(data: bytes) -> str:
        return message_of(lambda: pairs_of(tmp_path, data, text))

    assert message(b"fine\nbro\0ken\nfine\n") == f"{source}:2: NUL at byte 4; fix the line or use --on-bad-line skip"
    assert message(gzip.compress(text)) == f"{source}:1: gzip data, not text; rename it to end in .gz or unpack it"
    assert message(bz2.compress(text)) == f"{source}:1: bzip2 data, not text; rename it to end in .bz2 or unpack it"
    assert message(lzma.compress(text)) == f"{source}:1: xz data, not text; rename it to end in .xz or unpack it"
    utf16 = f"{source}:1: UTF-16, not UTF-8; convert it with iconv -f UTF-16 -t UTF-8"
    assert message(text.decode().encode("utf-16")) == utf16
    assert message(b"\xfe\xff" + text.decode().encode("utf-16-be")) == utf16
    assert message(text.decode().encode("utf-16-le")).startswith(f"{source}:1: NUL at byte 2")
    assert pairs_of(tmp_path, b"BZh is a word\n", b"x\n")[0][0].source == "BZh is a word"


COMPRESSORS: list[tuple[str, Callable[[bytes], bytes]]] = [
    (".gz", gzip.compress),
    (".bz2", bz2.compress),
    (".xz", lzma.compress),
]


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSORS)
def test_compressed_files_are_recognised_by_name(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    data = b"\xef\xbb\xbf" + numbered(500)
    plain = list(read_lines(write(tmp_path / "plain", data)))
    packed = write(tmp_path / f"packed{suffix}", compress(data))
    assert list(read_lines(packed)) == plain

    write(packed, compress(data)[:-20])
    assert message_of(lambda: list(read_lines(packed))) == (
        f"{packed}: ends in the middle of its compressed data; copy it again"
    )
    write(packed, data)
    assert message_of(lambda: list(read_lines(packed))).startswith(f"{packed}: not valid {suffix} data (")
    damaged = bytearray(compress(data))
    damaged[len(damaged) // 2] ^= 0xFF
    write(packed, bytes(damaged))
    assert message_of(lambda: list(read_lines(packed))).startswith(f"{packed}: ")


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert message_of(lambda: list(read_lines(absent))) == f"{absent}: no such file; check its name"
    assert message_of(lambda: list(read_lines(tmp_path))) == f"{tmp_path}: is a directory; give a file"
    assert message_of(lambda: content_hash([absent])) == f"{absent}: no such file; check its name"
    under = write(tmp_path / "file", b"x") / "below"
    assert message_of(lambda: list(read_lines(under))).startswith(f"{under}: cannot be read (")


def test_one_enormous_line_is_dropped_by_number_in_bounded_memory(tmp_path: Path) -> None:
    source = tmp_path / "train.en"
    with source.open("wb") as file:
        file.write(b"one\n")
        for _ in range(50):
            file.write(b"x" * (1 << 20))
        file.write(b"\nthree\n")
    target = write(tmp_path / "train.de", b"eins\nzwei\ndrei\n")
    report = CorpusReport()
    tracemalloc.start()
    pairs = list(read_pairs([source], [target], report=report))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert pairs == [Pair("one", "eins", 0, 1), Pair("three", "drei", 0, 3)]
    assert report.notes() == [f"1 pair left out, longer than 1,048,576 bytes on a side: {source}:2"]


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_longest_allowed_line_is_kept_and_one_byte_more_is_refused(tmp_path: Path, start: bytes, end: bytes) -> None:
    for extra in range(8):
        data = start + b"x" * (LONGEST_LINE + extra) + end
        [line] = read_lines(write(tmp_path / "file", data))
        assert line == (Line(1, "", TOO_LONG) if extra else Line(1, "x" * LONGEST_LINE))


def test_several_files_are_paired_file_by_file(tmp_path: Path) -> None:
    sources = [write(tmp_path / "a.en", b"one\n\nthree"), write(tmp_path / "b.en", b"four\n")]
    targets = [write(tmp_path / "a.de", b"eins\nzwei\ndrei\n"), write(tmp_path / "b.de", b"vier")]
    report = CorpusReport()
    pairs = list(read_pairs(sources, targets, report=report))
    assert pairs == [Pair("one", "eins", 0, 1), Pair("three", "drei", 0, 3), Pair("four", "vier", 1, 1)]
    # Counts that only agree in total are still wrong.
    swapped = message_of(lambda: list(read_pairs(sources, targets[::-1], report=CorpusReport())))
    assert swapped.startswith(f"{targets[1]}: 1 lines, {sources[0]}: 3; ")
    uneven = message_of(lambda: list(read_pairs(sources, targets[:1], report=CorpusReport())))
    assert uneven.startswith("2 source files, 1 target files; ")
    message_of(lambda: list(read_pairs([], [], report=CorpusReport())))


def test_notes_name_the_first_few_places_only(tmp_path: Path) -> None:
    _, report = pairs_of(tmp_path, b"\n" * 1200 + b"a\n", b"x\n" * 1201)
    name = tmp_path / "train.en"
    places = ", ".join(f"{name}:{line}" for line in range(1, 6))
    assert report.notes() == [f"1,200 pairs left out, blank on a side: {places}, ..."]
    assert pairs_of(tmp_path, b"a\n", b"x\n")[1].notes() == []


def test_content_hash_covers_bytes_and_file_boundaries_not_names(tmp_path: Path) -> None:
    one, same, other = (write(tmp_path / name, data) for name, data in (("1", b"ab"), ("2", b"ab"), ("3", b"ab\n")))
    assert content_hash([one]) == content_hash([same]) != content_hash([other])
    first, second = write(tmp_path / "4", b"a"), write(tmp_path / "5", b"b")
    assert content_hash([first, second]) not in (content_hash([one]), content_hash([second, first]))
