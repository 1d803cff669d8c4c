"""ZIP archives from strangers: what has not changed keeps its bytes, and every trap is refused with one line."""

import functools
import io
import random
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Mapping

import pytest

from dragoman.documents import archives
from dragoman.documents.archives import Archive
from dragoman.errors import DataError

MEBIBYTE = 1 << 20
EXTRA = b"a field"


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED, comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for number, (name, content) in enumerate(members.items()):
            info = zipfile.ZipInfo(name, (1999, 12, 31, 23, 59, 2 * number))
            info.compress_type = zipfile.ZIP_STORED if name == "mimetype" else method
            info.comment = f"about {name}".encode()
            info.external_attr = 0o640 << 16
            info.extra = struct.pack("<2H", 0x7777, len(EXTRA)) + EXTRA
            archive.writestr(info, content)
        archive.comment = comment
    return file.getvalue()


def text(number: int) -> bytes:
    return "".join(random.Random(number).choices("some text ", k=5_000)).encode()


MEMBERS = {
    "mimetype": b"application/epub+zip",
    "z/first.xml": text(1),
    "a/second.xml": text(2),
    "bild-größe.png": text(3),
}


def described(content: bytes) -> dict[str, tuple[object, ...]]:
    """All that an archive says of its members, and their packed bytes."""
    found: dict[str, tuple[object, ...]] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        for info in archive.infolist():
            lengths = struct.unpack("<2H", content[info.header_offset + 26 : info.header_offset + 30])
            start = info.header_offset + 30 + sum(lengths)
            packed = content[start : start + info.compress_size]
            found[info.filename] = (
                info.date_time, info.compress_type, info.comment, info.external_attr, info.create_system,
                info.extra, packed
            )  # fmt: skip
    return found


def streamed(members: Mapping[str, bytes]) -> bytes:
    """As a program writes that cannot go back: sizes follow the data."""

    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError

        def tell(self) -> int:
            raise OSError

    file = Stream()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def with_long_sizes(members: Mapping[str, bytes]) -> bytes:
    """Each size as 64 bits, as some programs write them whatever it is."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(content)
    return file.getvalue()


@pytest.mark.parametrize("write", [zipped, streamed, with_long_sizes])
def test_rewriting_changes_only_what_changed(write: Callable[[Mapping[str, bytes]], bytes]) -> None:
    content = write(MEMBERS)
    archive = Archive(content, "book.epub")
    assert {name: archive.read(name) for name in archive.names} == MEMBERS
    assert archive.rewrite({}) == content
    assert archive.rewrite({"z/first.xml": MEMBERS["z/first.xml"]}) == content

    changed = archive.rewrite({"z/first.xml": b"other words", "mimetype": b"another"})
    before, after = described(content), described(changed)
    assert list(before) == list(after) == list(MEMBERS)
    for name in MEMBERS:
        is_same = name not in ("z/first.xml", "mimetype")
        assert (after[name] == before[name]) == is_same
        assert after[name][:-1] == before[name][:-1]  # dates, methods, comments
    with zipfile.ZipFile(io.BytesIO(changed)) as reopened:
        assert not any(info.flag_bits & 8 for info in reopened.infolist())  # sizes are in the headers now
    reread = Archive(changed, "book.epub")
    assert {name: reread.read(name) for name in reread.names} == MEMBERS | {
        "z/first.xml": b"other words", "mimetype": b"another"
    }  # fmt: skip


def test_type_of_an_archive_stays_at_its_start() -> None:
    changed = Archive(zipped(MEMBERS, comment=b"a comment"), "book.epub").rewrite({"a/second.xml": b"x"})
    assert changed[30:38] == b"mimetype"
    assert changed[49:69] == b"application/epub+zip"
    assert changed.count(EXTRA) == 2 * len(MEMBERS)  # in the header of each and in the directory
    assert zipfile.ZipFile(io.BytesIO(changed)).comment == b"a comment"


def test_order_of_the_data_and_of_the_directory_may_differ() -> None:
    content = bytearray(zipped({"one": text(1), "two": text(2)}))
    start = content.index(archives._RECORD)
    second, end = content.index(archives._RECORD, start + 1), content.index(b"PK\x05\x06")
    content[start:end] = content[second:end] + content[start:second]
    archive = Archive(bytes(content), "x.odt")
    assert archive.names == ("two", "one")
    changed = archive.rewrite({"one": b"1"})
    assert Archive(changed, "x.odt").names == ("two", "one")
    assert changed.index(b"one") < changed.index(b"two")


# Traps


def read_all(content: bytes) -> dict[str, bytes]:
    archive = Archive(content, "report.docx")
    return {name: archive.read(name) for name in archive.names}


def refusal(content: bytes) -> str:
    with pytest.raises(DataError) as caught:
        read_all(content)
    message = str(caught.value)
    assert re.fullmatch("report.docx: .+; .+", message)
    assert message.isprintable()  # one line
    return message


AGAIN = "save it again with its own program"
NAMES = [
    "/etc/passwd",
    "../outside.xml",
    "word/../../outside.xml",
    "C:/windows.xml",
    "\\\\server\\file",
    "a\\..\\b",
    "..",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_out_are_refused(name: str) -> None:
    assert refusal(zipped({name: b"x"})) == f"report.docx: {name} is a name that leads out of the archive; {AGAIN}"


@pytest.mark.parametrize("name", ["word/document.xml", "a..b/..c.xml", "word/", "größe.xml", "C.xml", "a/b:c"])
def test_other_names_are_read(name: str) -> None:
    assert Archive(zipped({name: b"x"}), "report.docx").names == (name,)


def test_name_with_a_zero_byte_is_refused() -> None:
    content = zipped({"word/a.xml": b"x"}).replace(b"word/a.xml", b"word/a\0xml")
    assert refusal(content) == f"report.docx: 'word/a\\x00xml' is a name that leads out of the archive; {AGAIN}"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for content in ("good", "evil"):
            archive.writestr("word/document.xml", content)
    assert refusal(file.getvalue()) == f"report.docx: has two members called word/document.xml; {AGAIN}"


def patched(content: bytes, local: int, central: int, value: bytes) -> bytes:
    """A field of the only member replaced, in its header and in the directory."""
    record = content.index(archives._RECORD)
    changed = bytearray(content)
    changed[local : local + len(value)] = value
    changed[record + central : record + central + len(value)] = value
    return bytes(changed)


def test_encrypted_member_is_refused() -> None:
    content = patched(zipped({"word/document.xml": b"x"}), 6, 8, b"\x01")
    assert refusal(content) == "report.docx: word/document.xml is encrypted; remove the password"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_rare_compression_is_refused(method: int) -> None:
    assert refusal(zipped({"word/document.xml": text(1)}, method)) == (
        f"report.docx: word/document.xml has compression method {method}, only 0 (stored) and 8 (deflated) are read; "
        f"{AGAIN}"
    )


def test_too_many_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 50)
    content = zipped({f"{number}": b"" for number in range(51)})
    assert refusal(content) == "report.docx: has over 50 members; split the document"
    assert len(Archive(zipped({f"{number}": b"" for number in range(50)}), "report.docx").names) == 50


def test_large_member_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGEST", 3 * MEBIBYTE)
    noise = random.Random(1).randbytes(3 * MEBIBYTE + 1)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        content = zipped({"word/document.xml": noise}, method)
        assert refusal(content) == "report.docx: word/document.xml unpacks to over 3 MiB; split the document"
        archive = Archive(zipped({"word/document.xml": noise[:-1]}, method), "report.docx")
        assert archive.read("word/document.xml") == noise[:-1]


def test_total_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_TOTAL", 3 * MEBIBYTE)
    noise = random.Random(1).randbytes(2 * MEBIBYTE)
    content = zipped({"a.xml": noise, "b.xml": noise})
    assert refusal(content) == "report.docx: has over 3 MiB; split it or remove its pictures"
    content = zipped({"a.xml": bytes(MEBIBYTE), "b.xml": bytes(2 * MEBIBYTE + 1)})
    assert refusal(content) == "report.docx: unpacks to over 3 MiB; split it or remove its pictures"
    assert Archive(zipped({"a.xml": bytes(MEBIBYTE), "b.xml": bytes(2 * MEBIBYTE)}), "report.docx").names


@functools.cache
def bomb(size: int) -> bytes:
    return zipped({"word/document.xml": bytes(size)})


def peak_of_refusal(content: bytes) -> tuple[str, int]:
    tracemalloc.start()
    try:
        return refusal(content), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_bomb_is_refused_early() -> None:
    content = bomb(40 * MEBIBYTE)
    assert len(content) < 50_000
    message, peak = peak_of_refusal(content)
    assert message == f"report.docx: word/document.xml unpacks to over 250 times its size; {AGAIN}"
    assert peak < MEBIBYTE


@pytest.mark.parametrize("said", [0, 10, MEBIBYTE])
def test_no_more_is_unpacked_than_the_directory_says(said: int) -> None:
    content = patched(bomb(40 * MEBIBYTE), 22, 24, struct.pack("<L", said))
    message, peak = peak_of_refusal(content)
    assert message == "report.docx: word/document.xml is damaged; copy or download the file again"
    assert peak < said + MEBIBYTE * 3 / 2


def test_less_than_the_directory_says_is_refused() -> None:
    content = patched(bomb(1_000), 22, 24, struct.pack("<L", 1_001))
    assert refusal(content) == "report.docx: word/document.xml is damaged; copy or download the file again"


def test_small_member_may_have_any_ratio() -> None:
    content = bomb(MEBIBYTE)
    assert len(content) < 2_000
    assert Archive(content, "report.docx").read("word/document.xml") == bytes(MEBIBYTE)


def test_overlapping_members_are_refused() -> None:
    """One stretch of data in the name of many members: each copy would be written out."""
    content = zipped({"word/document.xml": text(1)})
    record, end = content.index(archives._RECORD), content.index(b"PK\x05\x06")
    twin = content[record:end].replace(b"word/document.xml", b"word/documents.xm")
    directory = content[record:end] + twin
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), record, 0)
    assert "described differently" in refusal(content[:record] + directory + tail)

    inner = zipped({"a": b"x" * 100}, zipfile.ZIP_STORED)
    inner = inner[: inner.index(archives._RECORD)]
    outer = zipped({"b": inner}, zipfile.ZIP_STORED)
    record, end = outer.index(archives._RECORD), outer.index(b"PK\x05\x06")
    second = zipped({"a": b"x" * 100}, zipfile.ZIP_STORED)
    entry = bytearray(second[second.index(archives._RECORD) : second.index(b"PK\x05\x06")])
    entry[42:46] = struct.pack("<L", 31 + 4 + len(EXTRA))
    directory = outer[record:end] + bytes(entry)
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), record, 0)
    assert refusal(outer[:record] + directory + tail) == f"report.docx: a overlaps another member; {AGAIN}"


def test_archive_in_an_archive_is_not_opened() -> None:
    inner = zipped({"../evil": b"x"})
    assert Archive(zipped({"inner.zip": inner}), "report.docx").read("inner.zip") == inner


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a ZIP archive, as such a document is; check that it is the file you mean"),
        (b"%PDF-1.7\n", "is not a ZIP archive, as such a document is; check that it is the file you mean"),
        (b"PK", "is a damaged ZIP archive (File is not a zip file); copy or download it again"),
        (
            bytes.fromhex("d0cf11e0a1b11ae1") + bytes(1000),
            "has a password or an old format (.doc, .ppt); save it without a password, as .docx or .pptx",
        ),
    ],
)
def test_other_files_are_refused(content: bytes, message: str) -> None:
    assert refusal(content) == f"report.docx: {message}"


def test_missing_member_is_named() -> None:
    archive = Archive(zipped({"a": b"x"}), "report.docx")
    assert "b" not in archive
    with pytest.raises(DataError, match=re.escape(f"report.docx: b is missing; {AGAIN}")):
        archive.read("b")


def test_every_truncation_is_refused() -> None:
    content = zipped({"a.xml": text(1)[:60], "b.xml": text(2)[:60]})
    for length in range(len(content)):
        refusal(content[:length])


def test_damage_anywhere_is_refused_or_harmless() -> None:
    """Each byte changed in turn: an error of one line, or the same content."""
    members = {"a.xml": text(1)[:40], "b.xml": text(2)[:40]}
    content = zipped(members)
    refused = 0
    for place in range(len(content)):
        for change in (1, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[place] ^= change
            try:
                read = read_all(bytes(damaged))
            except DataError:
                refusal(bytes(damaged))
                refused += 1
            else:  # a date, a comment
                assert set(read.values()) <= set(members.values())
                Archive(Archive(bytes(damaged), "x").rewrite(dict.fromkeys(read, b"x")), "x").read(min(read))
    assert len(content) < refused < 3 * len(content)


def test_checksum_is_verified() -> None:
    content = zipped({"a.xml": b"some words"}, zipfile.ZIP_STORED).replace(b"some words", b"evil words")
    assert refusal(content) == "report.docx: a.xml is damaged; copy or download the file again"
    assert zlib.crc32(b"some words") != zlib.crc32(b"evil words")


BOUNDED = """
import resource, sys
from dragoman.documents import docx
from dragoman.documents.document import Options
from dragoman.errors import DataError
limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (24 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    docx.parse(sys.stdin.buffer.read(), Options(), "report.docx")
except DataError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is read from /proc")
def test_bomb_fits_in_little_memory() -> None:
    """Under a limit of the system's, which counts what libraries take, too."""
    types = b'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/d.xml" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'  # noqa: E501
    content = zipped({"[Content_Types].xml": types, "d.xml": bytes(40 * MEBIBYTE)})
    done = subprocess.run([sys.executable, "-c", BOUNDED], input=content, capture_output=True, timeout=60, check=False)
    assert done.stdout.decode() == f"report.docx: d.xml unpacks to over 250 times its size; {AGAIN}\n", done.stderr
