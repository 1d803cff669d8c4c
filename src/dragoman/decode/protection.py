"""Finds what must come out of a translation unchanged: placeholders, addresses, tags, marked spans. Knows no models.

The time is proportional to the length of a line, whatever it contains: no pattern scans the same stretch from many
starting points, and unmatched braces and tags are looked up, not searched for.
"""

import re
from collections.abc import Mapping, Sequence

from dragoman.config import PROTECTED
from dragoman.decode.protected import Protected
from dragoman.documents.document import Kept, Mark, Parts
from dragoman.documents.placeholders import PLACEHOLDERS, end_of_placeholder, matching_braces
from dragoman.text.sentences import MENU_SIGNS, menu_items
from dragoman.text.words import WordList

_IN_ADDRESS = r"""[^\s<>"'“”«»()。，、！？；：（）「」『』【】《》]"""
_TOP_LEVEL = "app|biz|ch|co|com|de|dev|edu|es|eu|fr|gov|info|io|jp|net|nl|org|pl|se|uk"
_MAIL = r"(?:(?<!\w)mailto:)?(?<![\w+-])(?<![\w+-]\.)(?:[Oo]')?"
_MAIL += r"[\w+-]{1,64}(?:\.[\w+-]{1,64})*@[\w-]{1,64}(?:\.[\w-]{1,64})+"
_SUFFIXES = (
    "bat|bmp|cfg|conf|csv|css|dll|docx?|epub|exe|gif|gz|html?|ini|jpe?g|js|json|log|md|mp3|mp4|odt|pdf|png|po|pptx?|py|rar|"
    "rtf|sh|sql|srt|svg|tar|tiff?|toml|ts|tsv|txt|wav|webp|xlsx?|xml|ya?ml|zip"
)
# Emoji and what joins or colours them, arrows, signs of mathematics, and those of trademarks.
_SYMBOL = (
    "[\u2122\u00a9\u00ae\u00d7\u00f7\u2190-\u23ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff\ufe0f\U0001f000-\U0001faff"
    "\U000e0020-\U000e007f]"
)
_QUOTED = r"[^\s\"“”„»«.!?;:]{1,40}"  # a word
_CAPITALIZED = r"[^\W\d_a-zäöüß][\w&’'-]{0,30}"
_LABEL = rf"{_CAPITALIZED}(?: (?:&|(?!I\b){_CAPITALIZED})){{0,3}}"  # one to four words with capitals
# Settings > Privacy, Save As > PDF. At the start of a sentence one word: Open Settings > Privacy. None of the sentence:
# Öffnen Sie Einstellungen > Datenschutz
_PATH = (
    rf"(?<![\w.\\/-])(?:(?<=[a-zäöüß] )(?!(?:Sie|Ihren?|Ihrem|Men[uü]) ){_LABEL}|{_CAPITALIZED})(?: [>›→] {_LABEL})+"
)
_SIGN = r"(?<!\S)(?:[<>›=+|~^]|[<>!=]=|[-=]>)(?!\S)"  # between spaces: a > b
_ESCAPE = r"\\[!-/:-@\[-`{-~]"  # of Markdown
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_MINUS = r"(?<![^\s(\[])[-+±](?=\d)"
PATTERNS = {
    "placeholders": PLACEHOLDERS,
    "addresses": r"(?i:(?:https?|ftp|file)://|(?<![\w.-])www\.(?=[\w-]+\.[a-z]))"
    rf"(?:{_IN_ADDRESS}|\([^\s()<>]*\))+(?<=[\w/&=#+~)-])"
    rf"|<{_MAIL}>|{_MAIL}"
    rf"|(?<![\w.@/-])(?!\d+\.)(?:[A-Za-z\d][\w-]{{0,62}}\.){{1,4}}(?:{_TOP_LEVEL})(?![\w-]|\.\w)"  # example.com
    rf"(?::\d{{1,5}})?(?:[/?#]{_IN_ADDRESS}*(?<=[\w/]))?"  # :80/a?b=c
    r"|(?<![\w@.&/])@\w{1,64}(?:[.-][a-z\d]\w{0,63})*|(?<![\w#&/])#(?=\w*[^\W\d]|\d\d)\w+",  # @name, #tag
    "tags": r"""</?[A-Za-z][\w:.-]*(?:\s(?:[^<>"']|"[^"<]*"|'[^'<]*')*|\s[^<>]*)?/?>"""
    r"|<!--(?:[^<-]|-(?!->)|<(?!!--))*-->",
    "quotes": rf"(?<!\w[\"“„»«‚‘])(?<=[\"“„»«‚‘])(?=\w){_QUOTED}(?: {_QUOTED}){{0,4}}(?=[\"“”»«’‘](?!\w))",
    "code": r"(?<![\w.\\/-])(?:"
    rf"(?=\w*_)(?=\w*[^\W_])\w+(?:[.:/\\=-]+\w+)*(?:\(\)|\[\w*\])?"  # my_name.txt, MAX_SIZE=3
    r"|[A-Za-z]\w*=[/~]?\w(?:[\w.:/-]*\w)?"  # DEBUG=1
    rf"|\w+(?:\.\w+)*(?:\(\)|\[\w+\])"  # sort(), row.cells[3]
    rf"|(?:[\w.-]+/)*[\w-]+(?:\.[\w-]+)*\.(?i:{_SUFFIXES})(?![\w-])"  # report.pdf, docs/index.html
    r"|(?=\w{3})(?=\w*[a-zäöüßé][A-ZÄÖÜ])(?!\w*[a-zäöüß]In(?:nen)?(?!\w))[^\W\d_]\w*"  # iPhone, but not BürgerInnen
    r"|[A-Z]{2}\d\d(?: [A-Z\d]{4}){3,7}(?: [A-Z\d]{1,3})?(?!\w)"  # the number of an account
    r"|(?:(?P<stem>[A-Z][A-Za-z]*)-|[A-Z][A-Za-z]*)\d+(?![\w/-]|[.,]\d)"  # Covid-19, A320
    r"|[A-Z]{1,3}(?=[A-Z-]{0,12}-\d)(?:-[A-Z\d]{1,12}){2,6}(?![\w-])"  # A-4711-XZ
    r"|[\dA-Fa-f]{8}(?:-[\dA-Fa-f]{4}){3}-[\dA-Fa-f]{12}"
    r"|(?P<word>[a-z]+)\d+(?![\w/-]|[.,]\d)|\d+[A-Za-z]+\d\w*|[A-Za-z]+\d+[A-Za-z]+\w*"  # mp3, 9f86d, A1B2
    rf"|{_OCTET}(?:\.{_OCTET}){{3}}(?::\d{{1,5}})?(?![.:,]?\w)"  # 192.168.1.1
    r"|\d{7,}(?![\w%]|[.,:/-]\d)"  # a number that nobody counts with
    r"|\d+(?:[x×]\d+)+(?!\w)"  # 1920×1080
    r"|(?:0?[1-9]|[12]\d|3[01])\.(?:0?[1-9]|1[0-2])\.(?:\d{4}|\d\d)(?![\w%]|[.,:/-]\d)"  # 03.10.2023
    r"|C\+\+|[CF]#(?!\w)"
    rf"|v\d+(?:\.\d+)+(?!\w)"  # v2.10
    rf"|[A-Za-z]:\\[\w.\\-]*\w"  # C:\Programs
    r")|(?<!\S)(?:"
    r"--[a-z][\w-]*(?:=[\w.,:/-]*\w)?|-[A-Za-z]{1,2}(?![\w-])"  # --all, -rf
    r"|(?:~|\.{1,2})?/\.?\w[\w.-]*(?:/[\w.-]+)*(?<=[\w/])"  # /etc/hosts
    r"|\.(?:bash|config|docker|editor|env|git|htaccess|npm|profile|ssh|vim|zsh)\w{0,20})"  # .gitignore
    r"|(?<![^\s(\[])-[$£€]\d+(?:[.,]\d+)*"  # -€5
    r"|(?<![\w.,/])[-−+]?\d+(?:[.,]\d+)* ?°F(?!\w)"
    # a telephone number
    r"|(?<![\w+])(?:\+(?=(?:[ ()/-]{0,2}\d){8})\d+(?:[ ()/-]{1,2}\d+){0,8}|(?:\(\d{3}\) ?|\d{3}-)\d{3}-\d{4})(?!\w)"
    r"|(?<!`)`[^`\s][^`]*`(?!`)",
    "symbols": rf"(?:[0-9#*]\ufe0f?\u20e3|{_SYMBOL})(?:\u200d?{_SYMBOL})*|{_SIGN}|{_ESCAPE}|{_MINUS}",
    "numbers": r"(?:(?<![\w.,)\]])[-−+±])?(?<!\w)\d+(?:[.,:/’'-]\d+)*",
}
MARKED = r"<keep>(?P<inner>(?:[^<]|<(?!/?keep>))+)</keep>"
# Every span contains one of these, but for those of numbers and quotes. They are rare.
_HINTS = re.compile(
    rf"[{{<$%@_`\\#=]|://|(?i:www\.)|\w[(\[][\w)]|(?<!\w)-[\w-]|/\.?\w|\.[A-Za-z]\w|[a-zäöüßé][A-ZÄÖÜ]"
    rf"|[A-Za-z]-?\d|\d[A-Za-z]+\d|\d{{7}}|\d\.\d{{1,3}}\.\d|\d{{3}}-\d|°F|[-+±][$£€\d(]|\+\+|\u20e3|{_SYMBOL}|{_SIGN}"
)
# Every span contains one of these too, which are found ten times as fast: most lines have none.
_RARE = re.compile(
    r"[^A-Za-zäöüßÄÖÜéèáà ,'’“”„\"!?;:.()/–-]|[a-zäöüßé][A-ZÄÖÜ]|\.[A-Za-z]|/[\w./]|[(](?<=\w.)|-(?<!\w.)[\w-]"
)
_TAG = re.compile(r"<(?:!--|(?P<closes>/?)(?P<name>[A-Za-z][\w:.-]*))")


class Protector:
    """Finds what to keep.

    If menus are split into their items, the signs between these are text. A number that belongs to one of the `known`
    words makes no name of it: Type-2, note1.
    """

    def __init__(self, kinds: Sequence[str], splits_items: bool = False, known: WordList | None = None) -> None:
        self._splits_items, self._known = splits_items, known
        self._has_hints, self._keeps_symbols = not {"numbers", "quotes"} & {*kinds}, "symbols" in kinds
        own = {kind: PATTERNS[kind] for kind in PROTECTED if kind in kinds}
        self._pattern_in_menus = _compile(own)
        self._pattern = _compile({**own, "code": f"{own['code']}|{_PATH}"} if "code" in own else own)

    def protect(self, line: str, *, is_whole: bool = True) -> Protected | None:
        """The line in parts; None if there is nothing to keep. `is_whole`: nothing stands before or after it."""
        if self._keeps_symbols and is_whole and _is_only_signs(line):
            return Protected((mark := Mark(0, "single"),), {mark: line})  # such as `---`: models make up words for it
        if self._has_hints and (_RARE.search(line) is None or _HINTS.search(line) is None):
            return None
        is_menu = is_whole and bool(menu_items(line))
        if self._splits_items and is_menu and self._parts(line, is_menu=True, skip_signs=True) is None:
            return None
        return self._parts(line, is_menu=is_menu)

    def _is_known(self, stem: str | None) -> bool:
        if stem is None or self._known is None or len(stem) < 3 or stem.isupper():
            return False
        return stem in self._known

    def _parts(self, line: str, *, is_menu: bool, skip_signs: bool = False) -> Protected | None:
        building, braces = _Building(), matching_braces(line)
        done = place = 0  # what is in the parts; what has been searched
        pattern = self._pattern_in_menus if is_menu else self._pattern
        while match := pattern.search(line, place):
            start, place = match.span()
            groups = match.groupdict()
            if groups.get("brace"):
                end = end_of_placeholder(line, place - 1, braces)
                if end is None:
                    continue
                place = end
            if (skip_signs and match.group() in MENU_SIGNS) or self._is_known(groups.get("stem") or groups.get("word")):
                continue
            building.add_text(line[done:start])
            if groups["marked"]:
                building.add_marked(groups["inner"])
            elif groups.get("tags"):
                building.add_tag(match.group())
            elif groups.get("symbols"):
                building.add_symbols(match.group())
            elif groups.get("quotes") and not _has_letters(line[:start] + line[place:]):
                building.add_text(match.group())  # a sentence in quotes
            else:
                building.add_kept(line[start:place])
            done = place
        building.add_text(line[done:])
        return building.result()


def _compile(patterns: Mapping[str, str]) -> re.Pattern[str]:
    """One pattern with a group for each kind."""
    named = [f"(?P<{kind}>{pattern})" for kind, pattern in patterns.items()]
    return re.compile("|".join([f"(?P<marked>{MARKED})", *named]))


def _is_only_signs(line: str) -> bool:
    """Whether there is something to see, and none of it a letter or a digit."""
    return not any(map(str.isalnum, line)) and any(not each.isspace() and each.isprintable() for each in line)


def _has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


class _Building:
    """The parts of a line as they are found, from left to right."""

    def __init__(self) -> None:
        self._parts: list[str | Mark | Kept] = []
        self._originals: dict[Mark | Kept, str] = {}
        self._run: list[str] = []  # kept words, one directly after the other: to a model they are one word
        self._open: list[tuple[str, int]] = []  # names of tags without an end so far, and their places among the parts
        self._open_by_name: dict[str, int] = {}  # how many

    def add_text(self, text: str) -> None:
        if text:
            self._end_run()
            self._parts.append(text)

    def add_kept(self, text: str) -> None:
        self._run.append(text)

    def add_marked(self, text: str) -> None:
        """White space at its ends is not part of it: a model would not copy that."""
        inner = text.strip()
        start = text.find(inner)
        self.add_text(text[:start])
        if inner:
            self.add_kept(inner)
        self.add_text(text[start + len(inner) :])

    def _end_run(self) -> None:
        if self._run:
            text = "".join(self._run)
            self._run = []
            self._add(Kept(len(self._originals), text), text)

    def add_symbols(self, text: str) -> None:
        """No words: a model never sees them."""
        self._end_run()
        self._add(Mark(len(self._originals), "single"), text)

    def add_tag(self, tag: str) -> None:
        """An end tag that belongs to a start tag makes a pair of both. Tags in between have no end: pairs nest."""
        self._end_run()
        match = _TAG.match(tag)
        name = (match["name"] or "").lower() if match else ""
        number = len(self._originals)
        if match is None or not name or tag.endswith("/>"):
            self._add(Mark(number, "single"), tag)
        elif not match["closes"]:
            self._open.append((name, len(self._parts)))
            self._open_by_name[name] = self._open_by_name.get(name, 0) + 1
            self._add(Mark(number, "single"), tag)  # until its end is found
        elif self._open_by_name.get(name):
            self._add(Mark(self._pair(name), "close"), tag)
        else:
            self._add(Mark(number, "single"), tag)

    def _pair(self, name: str) -> int:
        """Make the last start tag of this name the first of a pair, and return its number."""
        while True:
            other, place = self._open.pop()
            self._open_by_name[other] -= 1
            if other == name:
                break
        single = self._parts[place]
        assert isinstance(single, Mark)
        opening = self._parts[place] = Mark(single.number, "open")
        self._originals[opening] = self._originals.pop(single)
        return opening.number

    def _add(self, part: Mark | Kept, original: str) -> None:
        self._originals[part] = original
        self._parts.append(part)

    def result(self) -> Protected | None:
        self._end_run()
        return Protected(tuple(self._parts), self._originals) if self._originals else None


def protect_parts(parts: Parts, protector: Protector | None) -> Protected:
    """The same for a text that has marks and kept words already, with the numbers that a document gave them."""
    first = 1 + max((part.number for part in parts if not isinstance(part, str)), default=-1)
    result: list[str | Mark | Kept] = []
    originals: dict[Mark | Kept, str] = {}
    for part in parts:
        found = None
        if protector is not None and isinstance(part, str):
            found = protector.protect(part, is_whole=len(parts) == 1)
        if found is None:
            result.append(part)
            continue
        renumbered = {own: own._replace(number=own.number + first) for own in found.originals}
        originals |= {renumbered[own]: original for own, original in found.originals.items()}
        result += [own if isinstance(own, str) else renumbered[own] for own in found.parts]
        first += len(found.originals)
    return Protected(tuple(result), originals)


def without_own(parts: Parts, originals: Mapping[Mark | Kept, str]) -> Parts:
    """The parts as the document knows them: what was found in its text is text again."""
    result: list[str | Mark | Kept] = []
    for part in parts:
        own = part if isinstance(part, str) else originals.get(part, part)
        if isinstance(own, str) and result and isinstance(result[-1], str):
            result[-1] += own
        elif own != "":
            result.append(own)
    return tuple(result)
