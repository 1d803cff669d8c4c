"""PO and POT files of gettext: a translation for each entry that has none, or a fuzzy one. Knows nothing of models.

The file is read as lines, and only those of a changed entry, and of the header where it lacks something, are written
anew. So comments, order, wrapping and obsolete entries stay byte for byte. The previous message of a changed entry
(`#| msgid`) is removed: what is written is a translation of the current one, whether or not it is marked as fuzzy.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from dragoman.documents.document import Options, Parts, Segment, text_of
from dragoman.documents.languages import check_agreement, check_tag
from dragoman.documents.plural_forms import PluralForms, is_rule, read_rule, rule_of
from dragoman.errors import DataError

WIDTH = 77  # characters between the quotes of a wrapped line, as gettext writes them
SPACE = " \t\r\n\f\v"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CHARSET = re.compile(rb"Content-Type:[^\r\n\"]*charset=([^\s\"\\;]+)", re.IGNORECASE)
_PROBE = rb'msgid "\n\u0041+AEE-.xn--bcher-kva.-"'  # reads differently in an encoding that does not extend ASCII
_LINE = re.compile(
    r"(?P<keyword>(?:msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,3}\])?|domain)(?=[\s\"]|\Z))?"
    r'\s*(?P<strings>(?:"(?:[^"\\]|\\.)*+"\s*)*+)'
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"((?:\\[0-7]{1,3}|\\x[0-9a-fA-F]{1,2})+)|\\(.)")
_BYTE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3}))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPED |= {each: each for each in "\\\"'?"}
LONGEST_LABEL = 6  # words of a text that may have an access key
_ACCELERATOR = re.compile(r"(?<!\S)([A-Z][a-z]*)?([&_])(?!\w+;)(?(1)[a-z]|[^\W\d_])")
_FIRST_LETTER = re.compile(r"(?<![\w%$#@(){<.*+-])[^\W\d_]")
_TO_ESCAPE = {ord(text): f"\\{letter}" for letter, text in _ESCAPED.items() if text not in "'?"}
_TO_ESCAPE |= {code: f"\\{code:03o}" for code in (*range(32), 127) if code not in _TO_ESCAPE}


@dataclass
class _Field:
    keyword: str  # msgid, msgstr[0]
    start: int  # lines, from 0
    end: int
    strings: list[str]

    @property
    def value(self) -> str:
        return "".join(self.strings)


@dataclass
class _Entry:
    comments: list[int] = field(default_factory=list)  # their lines
    fields: dict[str, _Field] = field(default_factory=dict)

    def value(self, keyword: str) -> str:
        found = self.fields.get(keyword)
        return "" if found is None else found.value

    def ends_before(self, keyword: str) -> bool:
        if not self.fields or keyword == "domain" or "domain" in self.fields:
            return bool(self.fields)
        return keyword == "msgctxt" or (keyword == "msgid" and self.fields.keys() != {"msgctxt"})

    @property
    def is_plural(self) -> bool:
        return "msgid_plural" in self.fields

    @property
    def is_header(self) -> bool:
        return self.fields.keys() == {"msgid", "msgstr"} and not self.value("msgid")

    @property
    def translations(self) -> list[_Field]:
        return [each for keyword, each in self.fields.items() if keyword.startswith("msgstr")]


class _Edit(NamedTuple):
    """Lines from `start` to `end` become others."""

    start: int
    end: int
    lines: list[str]  # without newlines


@dataclass(frozen=True)
class _Work:
    """An entry to translate."""

    entry: _Entry
    forms: Mapping[str, str | int]  # by keyword: a text that stays, or the number of a segment


class PoDocument:
    def __init__(self, file: "_File", options: Options) -> None:
        self._file, self._options = file, options
        self._work: list[_Work] = []
        self._sources: list[_Field] = []  # of the segments
        for entry in file.entries:
            if entry.value("msgid").strip():  # that of the header is empty
                self._add(entry)
        self.segments: Sequence[Segment] = tuple(
            Segment((_without_accelerator(source.value.strip())[0],), f"line {source.start + 1}")
            for source in self._sources
        )

    def _add(self, entry: _Entry) -> None:
        """Note what an entry lacks, if it lacks anything."""
        is_open = self._options.all or "fuzzy" in self._file.flags(entry)
        sources = self._file.sources(entry, self._options.target_language)
        lacking = {key: source for key, source in sources.items() if is_open or not entry.value(key)}
        numbers: dict[str, int] = {}
        for source in sorted(lacking.values(), key=lambda source: source.start):
            if source.keyword not in numbers and source.value.strip():
                numbers[source.keyword] = len(self._sources)
                self._sources.append(source)
        if numbers:
            stay = {key: entry.value(key) for key in sources}
            found = {key: numbers.get(source.keyword, "") for key, source in lacking.items()}
            self._work.append(_Work(entry, {**stay, **found}))

    def render(self, translations: Sequence[Parts | None]) -> bytes:
        texts = [
            _with_space_of(source.value, _with_accelerator_of(source.value, text_of(parts or ())))
            for source, parts in zip(self._sources, translations, strict=True)
        ]
        edits: list[_Edit] = []
        for work in self._work:
            forms = {keyword: form if isinstance(form, str) else texts[form] for keyword, form in work.forms.items()}
            if all(forms.values()):
                edits += self._file.entry_edits(work.entry, forms, self._options.fuzzy)
        if edits:
            edits = [*self._file.header_edits(self._options.target_language), *edits]
        return self._file.render(edits)


def parse(content: bytes, options: Options, name: str = "the PO file") -> PoDocument:
    check_tag(options.target_language, "target language")
    file = _File(content, name)
    if file.header is not None:
        place = f"{name}:{file.header.fields['msgstr'].start + 1}"
        check_agreement(place, "Language", file.header_fields().get("Language", ""), options.target_language)
    return PoDocument(file, options)


class _File:
    """A file as lines, and its entries."""

    def __init__(self, content: bytes, name: str) -> None:
        self.content, self.name = content, name
        self._mark = _BYTE_ORDER_MARK if content.startswith(_BYTE_ORDER_MARK) else b""
        self._charset = self._find_charset()
        self._raw = re.findall(rb"[^\n]*\n|[^\n]+", content[len(self._mark) :])
        self._lines = [self._decode(number, line) for number, line in enumerate(self._raw)]
        self._newline = "\r\n" if self._raw and self._raw[0].endswith(b"\r\n") else "\n"
        self.entries = list(self._read())
        self.header = next((entry for entry in self.entries if entry.is_header), None)
        self._plural_forms: PluralForms | None = None
        fields = (each for entry in self.entries for each in entry.fields.values())
        self._wraps = any(string and not string.endswith("\n") for each in fields for string in each.strings[:-1])

    # Reading

    def _error(self, line: int, problem: str) -> DataError:
        return DataError(f"{self.name}:{line + 1}: {problem}")

    def _find_charset(self) -> str:
        found = _CHARSET.search(self.content)
        charset = "utf-8" if found is None or found[1] == b"CHARSET" else found[1].decode("ascii", "replace")
        try:
            if _PROBE.decode(charset) == _PROBE.decode("ascii"):
                return charset
        except (LookupError, ValueError):  # ValueError: a null character in the name
            pass
        raise DataError(f"{self.name}: its charset {charset!r} is not supported; convert the file to UTF-8")

    def _decode(self, number: int, line: bytes) -> str:
        try:
            return line.decode(self._charset)
        except UnicodeDecodeError as error:
            problem = f"invalid {self._charset} at byte {error.start + 1}; fix the line or the charset of the header"
            raise self._error(number, problem) from None

    def _read(self) -> Iterator[_Entry]:
        """The entries that are not obsolete. What gettext refuses is refused."""
        seen: dict[tuple[str, str | None, str], int] = {}
        domain = ""
        for entry in self._split():
            if "domain" in entry.fields:
                domain = entry.value("domain")
                continue
            self._check(entry)
            context = entry.value("msgctxt") if "msgctxt" in entry.fields else None
            line = entry.fields["msgid"].start
            first = seen.setdefault((domain, context, entry.value("msgid")), line)
            if first != line:
                raise self._error(line, f"the message of line {first + 1} again; remove one, or use msguniq")
            yield entry

    def _split(self) -> Iterator[_Entry]:
        entry = _Entry()
        comments: list[int] = []
        current: _Field | None = None
        for number, text in enumerate(self._lines):
            line = text.strip(SPACE)
            if line.startswith("#"):
                if line.startswith("#~"):  # obsolete: the comments before it are, too
                    comments = []
                else:
                    comments.append(number)
            elif line:
                keyword, strings = self._read_line(number, line)
                if keyword:
                    if entry.ends_before(keyword):
                        yield entry
                        entry = _Entry()
                    if keyword in entry.fields:
                        raise self._error(number, f"a second {keyword} in one entry; remove it")
                    if not entry.fields:
                        entry.comments = comments
                    comments = []
                    current = entry.fields[keyword] = _Field(keyword, number, number, [])
                if current is None:
                    raise self._error(number, "a text before the first msgid; remove it")
                current.strings += strings
                current.end = number + 1
        if entry.fields:
            yield entry

    def _read_line(self, number: int, line: str) -> tuple[str, list[str]]:
        """The keyword, if there is one, and the strings after it."""
        found = _LINE.fullmatch(line)
        if found is None:
            raise self._error(number, "neither a comment, a keyword nor a quoted text; fix the line")
        return found["keyword"] or "", [self._unescape(number, text) for text in _STRING.findall(found["strings"])]

    def _unescape(self, number: int, text: str) -> str:
        def character(found: re.Match[str]) -> str:
            if found[1]:
                codes = [int(code, 16) if code else int(octal, 8) for code, octal in _BYTE.findall(found[1])]
                return self._decode(number, bytes(code & 0xFF for code in codes))
            if found[2] not in _ESCAPED:
                raise self._error(number, f"unknown escape {found[0]}; write a backslash as two")
            return _ESCAPED[found[2]]

        return _ESCAPE.sub(character, text) if "\\" in text else text

    def _check(self, entry: _Entry) -> None:
        """Refuse an entry that is not complete, or in another order."""
        found = list(entry.fields.values())
        before = [each for each in ("msgctxt", "msgid", "msgid_plural") if each in entry.fields or each == "msgid"]
        number = max(1, len(entry.translations))
        forms = [f"msgstr[{form}]" for form in range(number)] if entry.is_plural else ["msgstr"]
        for each, expected in zip_longest(found, before + forms):
            if each is None:
                raise self._error(found[-1].start, f"{found[-1].keyword} is not followed by {expected}; add it")
            if each.keyword != expected:
                wanted = f"expected {expected}" if expected else "its entry has no msgid_plural"
                raise self._error(each.start, f"{each.keyword} is out of place; {wanted}")
            if not each.strings:
                raise self._error(each.start, f'{each.keyword} has no text; write "" for an empty one')

    # Meaning

    def flags(self, entry: _Entry) -> set[str]:
        return {flag for line in entry.comments for flag in _flags(self._lines[line]) or ()}

    def header_fields(self) -> dict[str, str]:
        lines = "" if self.header is None else self.header.value("msgstr")
        pairs = (line.partition(":") for line in lines.split("\n"))
        return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}

    def sources(self, entry: _Entry, language: str) -> dict[str, _Field]:
        """For each translation of an entry, by keyword, what it translates."""
        singular = entry.fields["msgid"]
        if not entry.is_plural:
            return {"msgstr": singular}
        plural = entry.fields["msgid_plural"]
        if self._plural_forms is None:
            self._plural_forms = self._find_plural_forms(language, singular.start)
        forms = self._plural_forms
        return {
            f"msgstr[{form}]": singular if forms.is_singular(form, singular.value, plural.value) else plural
            for form in range(len(forms.numbers))
        }

    def _find_plural_forms(self, language: str, line: int) -> PluralForms:
        rule = self.header_fields().get("Plural-Forms", "")
        try:
            if is_rule(rule):
                return read_rule(rule)
        except ValueError as error:
            raise self._error(0 if self.header is None else self.header.fields["msgstr"].start, str(error)) from None
        rule = rule_of(language) or ""
        if not rule:
            problem = f"the plural rule of {language!r} is not known" if language else "the target language is missing"
            raise self._error(line, f"a message with a plural, but {problem}; add Plural-Forms to the header")
        return read_rule(rule)

    # Writing

    def entry_edits(self, entry: _Entry, forms: Mapping[str, str], is_fuzzy: bool) -> Iterator[_Edit]:
        fuzzy = is_fuzzy
        for line in entry.comments:
            text = self._lines[line].strip(SPACE)
            flags = _flags(text)
            if text.startswith("#|"):  # what the message was when the old translation was made
                yield _Edit(line, line + 1, [])
            elif flags is not None:
                kept = [flag for flag in flags if flag != "fuzzy"]
                wanted = ["fuzzy", *kept] if fuzzy else kept
                fuzzy = False
                if wanted != flags:
                    yield _Edit(line, line + 1, [f"#, {', '.join(wanted)}"] if wanted else [])
        first = next(iter(entry.fields.values())).start
        if fuzzy:
            yield _Edit(first, first, ["#, fuzzy"])
        lines = [line for keyword, text in forms.items() for line in _written(keyword, text, self._wraps)]
        yield _Edit(entry.translations[0].start, entry.translations[-1].end, lines)

    def header_edits(self, language: str) -> Iterator[_Edit]:
        """Fill in what the header lacks."""
        fields = self.header_fields()
        wanted = {}
        if language and not fields.get("Language"):
            wanted["Language"] = language.replace("-", "_")
        if language and not is_rule(fields.get("Plural-Forms", "")) and rule_of(language):
            wanted["Plural-Forms"] = rule_of(language)
        kind = fields.get("Content-Type", "")
        if not kind or "charset=CHARSET" in kind:  # CHARSET: of a template
            wanted["Content-Type"] = f"text/plain; charset={self._charset.upper()}"
        if self.header is None:
            whole = {"MIME-Version": "1.0", "Content-Transfer-Encoding": "8bit", **wanted}
            yield _Edit(0, 0, ['msgid ""', *_written("msgstr", _with_fields("", whole), wraps=False), ""])
        elif wanted:
            old = self.header.fields["msgstr"]
            yield _Edit(old.start, old.end, _written("msgstr", _with_fields(old.value, wanted), wraps=False))

    def render(self, edits: Sequence[_Edit]) -> bytes:
        if not edits:
            return self.content
        pieces, place = [self._mark], 0
        for start, end, lines in sorted(edits, key=lambda edit: edit[:2]):
            pieces += self._raw[place:start]
            place = end
            pieces += [self._encode(start, line + self._newline) for line in lines]
            if lines and end == len(self._raw) > start and not self._raw[-1].endswith(b"\n"):
                pieces[-1] = pieces[-1].removesuffix(self._newline.encode())
        return b"".join(pieces + self._raw[place:])

    def _encode(self, number: int, line: str) -> bytes:
        try:
            return line.encode(self._charset)
        except UnicodeEncodeError as error:
            character = ascii(error.object[error.start])
            problem = f"{self._charset} has no character {character} of the translation; convert the file to UTF-8"
            raise self._error(number, problem) from None


def _flags(line: str) -> list[str] | None:
    """The flags of a line of flags; None of another."""
    line = line.strip(SPACE)
    return re.split(r"[\s,]+", line[2:].strip(", \t")) if line.startswith("#,") else None


def _with_fields(header: str, wanted: Mapping[str, str]) -> str:
    lines = header.removesuffix("\n").split("\n") if header else []
    for key, value in wanted.items():
        place = next((place for place, line in enumerate(lines) if line.partition(":")[0].strip() == key), len(lines))
        lines[place : place + 1] = [f"{key}: {value}"]
    return "\n".join(lines) + "\n"


def _without_accelerator(text: str) -> tuple[str, str]:
    """A label without the mark before its access key, `&File`, `Save _As`, `E&xit`; and the mark, if there is one.

    It has one such character, and is short: in `R&D`, `file_name` and `&amp;` they mean something else.
    """
    found = _ACCELERATOR.search(text)
    if found is None or len(text.split()) > LONGEST_LABEL or text.count("&") + text.count("_") > 1:
        return text, ""
    return text.replace(found[2], ""), found[2]


def _with_accelerator_of(source: str, text: str) -> str:
    """A translation with the mark of its source before its first letter, but not within a placeholder."""
    mark = _without_accelerator(source.strip())[1]
    return _FIRST_LETTER.sub(lambda match: mark + match[0], text, count=1) if mark else text


def _with_space_of(source: str, text: str) -> str:
    """A translation with the white space around its source: msgfmt wants the same newlines. Empty stays empty."""
    text = text.strip()
    if not text:
        return ""
    before = source[: len(source) - len(source.lstrip())]
    return before + text + source[len(source.rstrip()) :]


def _written(keyword: str, text: str, wraps: bool) -> list[str]:
    """The lines of a field, as gettext lays them out."""
    lines = [line.translate(_TO_ESCAPE) for line in re.findall(r"[^\n]*\n|[^\n]+", text)]
    if len(lines) <= 1 and not (wraps and len(keyword) + len("".join(lines)) >= WIDTH):
        return [f'{keyword} "{"".join(lines)}"']
    return [f'{keyword} ""', *(f'"{piece}"' for line in lines for piece in (_wrapped(line) if wraps else [line]))]


def _wrapped(line: str) -> list[str]:
    pieces = [""]
    for word in re.findall(r"[^ ]* *", line):
        if pieces[-1] and len(pieces[-1]) + len(word.rstrip()) > WIDTH:
            pieces.append("")
        pieces[-1] += word
    return pieces
