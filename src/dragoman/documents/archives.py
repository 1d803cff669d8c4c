"""ZIP archives from strangers: bounded reading, and rewriting that copies what has not changed.

Knows nothing of the documents in them. An archive within an archive is a member like any other and is never opened.
"""

import io
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from dragoman.documents.document import LARGEST
from dragoman.errors import DataError

MAX_MEMBERS = 10_000
MAX_TOTAL = 512 << 20  # bytes, unpacked
MAX_RATIO = 250  # unpacked to packed bytes of one member; text reaches 100, a bomb 1,000
RATIO_FROM = 1 << 20  # bytes, unpacked; a small member may have any ratio

_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_ENCRYPTED, _SIZES_FOLLOW, _UTF_8 = 1, 8, 0x800  # flags of a member
_ZIP64 = 1  # number of the extra field with long sizes
_RECORD = b"PK\x01\x02"  # starts each member's record in the directory
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_LEADS_OUT = re.compile(r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)|\0")
_BROKEN = (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError, OverflowError, struct.error)


class _Member(NamedTuple):
    info: zipfile.ZipInfo
    extra: bytes  # of the member's own header; the directory has another
    start: int  # of the packed bytes

    @property
    def end(self) -> int:
        return self.start + self.info.compress_size


class Archive:
    """The members of a ZIP archive. Refuses what could be a trap, each with one line."""

    def __init__(self, content: bytes, name: str) -> None:
        self._content, self._name = content, name
        self._comment, infos = _read_directory(content, name)
        self._members = {info.filename: _locate(content, info, name) for info in infos}
        if len(self._members) < len(infos):
            twice = Counter(info.filename for info in infos).most_common(1)[0][0]
            raise DataError(f"{name}: has two members called {_shown(twice)}; save it again with its own program")
        _check_overlaps(self._members, name)
        declared = sum(info.file_size for info in infos)
        if declared > MAX_TOTAL:
            raise DataError(f"{name}: unpacks to over {_mebibytes(MAX_TOTAL)}; split it or remove its pictures")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._members)

    def __contains__(self, member: str) -> bool:
        return member in self._members

    def read(self, member: str) -> bytes:
        """Unpack a member."""
        where = f"{self._name}: {_shown(member)}"
        if member not in self._members:
            raise DataError(f"{where} is missing; save it again with its own program")
        found = self._members[member]
        return _unpack(memoryview(self._content)[found.start : found.end], found.info, where)

    def rewrite(self, changes: Mapping[str, bytes]) -> bytes:
        """The archive with other contents for some members.

        All else is copied: packed bytes, order, dates, comments. With no change it is the same file.
        """
        if all(self.read(member) == content for member, content in changes.items()):
            return self._content
        file = io.BytesIO()
        directory = dict.fromkeys(self._members, b"")  # in the directory's order, which may be another
        for name, member in sorted(self._members.items(), key=lambda item: item[1].start):
            changed = changes.get(name)
            directory[name] = _write_member(file, member, self._content, changed)
        start = file.tell()
        file.write(b"".join(directory.values()))
        count, size = len(directory), file.tell() - start
        file.write(_END.pack(b"PK\x05\x06", 0, 0, count, count, size, start, len(self._comment)) + self._comment)
        return file.getvalue()


def _read_directory(content: bytes, name: str) -> tuple[bytes, list[zipfile.ZipInfo]]:
    """The archive's comment and what its directory says of each member."""
    if content.startswith(_OLE):
        raise DataError(
            f"{name}: has a password or an old format (.doc, .ppt); save it without a password, as .docx or .pptx"
        )
    if not content.startswith(b"PK"):
        raise DataError(f"{name}: is not a ZIP archive, as such a document is; check that it is the file you mean")
    if len(content) > MAX_TOTAL:
        raise DataError(f"{name}: has over {_mebibytes(MAX_TOTAL)}; split it or remove its pictures")
    # counted before the directory is parsed: its entries take far more memory than its bytes
    if content.count(_RECORD) > MAX_MEMBERS:
        raise DataError(f"{name}: has over {MAX_MEMBERS:,} members; split the document")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.comment, archive.infolist()
    except _BROKEN as error:
        raise DataError(f"{name}: is a damaged ZIP archive ({_one_line(error)}); copy or download it again") from None


def _locate(content: bytes, info: zipfile.ZipInfo, name: str) -> _Member:
    """Check a member's name and header, without unpacking it."""
    where = f"{name}: {_shown(info.orig_filename)}"
    if _LEADS_OUT.search(info.orig_filename):
        raise DataError(f"{where} is a name that leads out of the archive; save it again with its own program")
    if info.flag_bits & _ENCRYPTED:
        raise DataError(f"{where} is encrypted; remove the password")
    if info.compress_type not in (_STORED, _DEFLATED):
        raise DataError(
            f"{where} has compression method {info.compress_type}, only 0 (stored) and 8 (deflated) are read; "
            "save it again with its own program"
        )
    header = content[info.header_offset : info.header_offset + _LOCAL.size]
    if info.header_offset < 0 or len(header) < _LOCAL.size or not header.startswith(b"PK\x03\x04"):
        raise DataError(f"{where} is not where the directory says; copy or download the file again")
    fields = _LOCAL.unpack(header)
    name_length, extra_length = fields[-2:]
    end_of_name = info.header_offset + _LOCAL.size + name_length
    if content[end_of_name - name_length : end_of_name] != _name_bytes(info) or fields[2] & _ENCRYPTED:
        raise DataError(f"{where} is described differently in its header; save it again with its own program")
    start = end_of_name + extra_length
    if start + info.compress_size > len(content):
        raise DataError(f"{where} is cut off; copy or download the file again")
    return _Member(info, content[end_of_name:start], start)


def _check_overlaps(members: Mapping[str, _Member], name: str) -> None:
    """Members that share their bytes unpack, and are copied, to far more than the archive holds."""
    end = 0
    for member in sorted(members.values(), key=lambda each: each.start):
        if member.info.header_offset < end:
            raise DataError(
                f"{name}: {_shown(member.info.filename)} overlaps another member; save it again with its own program"
            )
        end = member.end


def _unpack(packed: memoryview, info: zipfile.ZipInfo, where: str) -> bytes:
    """The content of a member, in memory of about the size that the directory says: more is not unpacked."""
    if info.file_size > LARGEST:
        raise DataError(f"{where} unpacks to over {_mebibytes(LARGEST)}; split the document")
    if info.file_size > max(RATIO_FROM, MAX_RATIO * len(packed)):
        raise DataError(f"{where} unpacks to over {MAX_RATIO} times its size; save it again with its own program")
    try:
        if info.compress_type == _DEFLATED:
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, info.file_size + 1)
        else:
            content = bytes(packed[: info.file_size + 1])
    except zlib.error:
        content = b""
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise DataError(f"{where} is damaged; copy or download the file again")
    return content


def _write_member(file: io.BytesIO, member: _Member, source: bytes, changed: bytes | None) -> bytes:
    """Append a member; return its record for the directory."""
    info = member.info
    packed: bytes | memoryview = memoryview(source)[member.start : member.end]
    checksum, size = info.CRC, info.file_size
    if changed is not None:
        checksum, size, packed = zlib.crc32(changed), len(changed), changed
        if info.compress_type == _DEFLATED:
            deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            packed = deflate.compress(changed) + deflate.flush()
    year, month, day, hour, minute, second = info.date_time
    name = _name_bytes(info)
    common = (
        info.flag_bits & ~_SIZES_FOLLOW, info.compress_type,
        hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day,
        checksum, len(packed), size, len(name),
    )  # fmt: skip
    offset = file.tell()
    extra = _without_long_sizes(member.extra)
    file.write(_LOCAL.pack(b"PK\x03\x04", info.extract_version, *common, len(extra)) + name + extra)
    file.write(packed)
    extra = _without_long_sizes(info.extra)
    versions = info.create_version, info.create_system, info.extract_version, info.reserved
    rest = len(extra), len(info.comment), 0, info.internal_attr, info.external_attr, offset
    return _CENTRAL.pack(_RECORD, *versions, *common, *rest) + name + extra + info.comment


def _without_long_sizes(extra: bytes) -> bytes:
    """Extra fields without the 64-bit sizes, which are written in the usual place: archives are small here."""
    kept, rest = b"", extra
    while len(rest) >= 4:
        number, length = struct.unpack("<2H", rest[:4])
        if number != _ZIP64:
            kept += rest[: 4 + length]
        rest = rest[4 + length :]
    return kept + rest


def _name_bytes(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF_8 else "cp437")


def _shown(member: str) -> str:
    """A member's name for a message of one line."""
    return member if member.isprintable() and len(member) <= 100 else ascii(member[:100])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _mebibytes(size: int) -> str:
    return f"{size >> 20} MiB"
