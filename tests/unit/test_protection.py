"""What is found in a line to be kept, what is not, and what a model sees of it."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import PROTECTED
from dragoman.decode.protected import THREE_DIGITS, Protected, stand_in_terms
from dragoman.decode.protection import Protector, protect_parts, without_own
from dragoman.documents.document import Kept, Mark, Parts, text_of
from dragoman.text.words import WordList

DEFAULT = ("placeholders", "addresses", "tags")


def protected(line: str, *kinds: str) -> Protected:
    found = Protector(kinds or DEFAULT).protect(line)
    assert found is not None, line
    return found


def kept_in(line: str, *kinds: str) -> list[str]:
    found = Protector(kinds or DEFAULT).protect(line)
    return [] if found is None else [kept.text for kept in found.kept]


def marks_in(line: str) -> str:
    """Words and marks: 'see 1[ this 1] 2.'"""
    signs = {"open": "[", "close": "]", "single": "."}
    return "".join(
        part if isinstance(part, str) else f"{part.number}{signs[part.kind]}" if isinstance(part, Mark) else part.text
        for part in protected(line).parts
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Hello {name}, you have {count} new messages.", ["{name}", "{count}"]),
        ("{} and {0:>8.2f}, {user.name!r} and {items[0]}", ["{}", "{0:>8.2f}", "{user.name!r}", "{items[0]}"]),
        ("Dear {{ user.name }}, {{#if x}}hi{{/if}}", ["{{ user.name }}", "{{#if x}}hi{{/if}}"]),
        ("{{{raw}}} {%- if x -%}", ["{{{raw}}}", "{%- if x -%}"]),
        ("in ${HOME} on ${{ matrix.os }}", ["${HOME}", "${{ matrix.os }}"]),
        ("%{count} files by #{author} and @{mention}", ["%{count}", "#{author}", "@{mention}"]),
        ("$USER logged in to $_host2, sent by $NAME$.", ["$USER", "$_host2", "$NAME$"]),
        ("%d files were copied to %s.", ["%d", "%s"]),
        ("%-10s|%+.2f|%05d|%#x|%.*f|%*d|%'d", ["%-10s", "%+.2f", "%05d", "%#x", "%.*f", "%*d", "%'d"]),
        ("%ld %lld %zu %hhd %1$s %2$@ %@ %r %i%%", ["%ld", "%lld", "%zu", "%hhd", "%1$s", "%2$@", "%@", "%r", "%i%%"]),
        ("Cannot open: %m.", ["%m"]),
        ("%(count)d of %(total)05.1f: %<name>s", ["%(count)d", "%(total)05.1f", "%<name>s"]),
        ("%PATH% and %count% and %1 of %L2 and %3%", ["%PATH%", "%count%", "%1", "%L2", "%3%"]),
        ("100%% sure", ["%%"]),
        ("%dx%d pixels, %dMB, %ds", ["%dx%d", "%dMB", "%ds"]),
        ("v{version}, {n}th, backup_$DATE, {date}_old", ["v{version}", "{n}th", "backup_$DATE", "{date}_old"]),
        ("file{s} and {n}files", ["{s}", "{n}"]),
        ("{a}{b} %s%s {a}-{b}", ["{a}{b}", "%s%s", "{a}", "{b}"]),
        ("C:\\Users\\%USERNAME%\\Documents", ["%USERNAME%"]),
        ("}{x}{", ["{x}"]),
    ],
)
def test_placeholders_are_found(line: str, expected: list[str]) -> None:
    assert kept_in(line) == expected
    assert not {*kept_in(line, "addresses")} & {*expected}, "the control: not asked for"


CASES = "{count, plural, =0 {no files} one {# file} other {# files in {folder}}}"


def test_an_icu_message_with_cases_stays_in_one_piece() -> None:
    assert kept_in(f"Deleted {CASES} today.") == [CASES]
    long = CASES.replace("no files", "nothing at all, " * 30)
    assert len(long) > 400
    assert kept_in(f"Deleted {long} today.") == [long]
    select = "{who, select, female {She {n}} other {They}}"
    assert kept_in(f"{select} left {{place}}.") == [select, "{place}"]
    assert kept_in("{count, plural, one {# file} other {# files}") == ["{# file}", "{# files}"], "it never ends"


def test_a_long_text_in_braces_is_prose() -> None:
    assert kept_in("Use {" + "x" * 98 + "}.") == ["{" + "x" * 98 + "}"]
    assert kept_in("Use {" + "x" * 99 + "}.") == []
    assert kept_in("Use {" + "a word " * 20 + "{x}}.") == ["{x}"]


@pytest.mark.parametrize(
    "line",
    [
        "50% of the users", "50 % of them are 100 % sure", "100% sure", "a 10 %discount", "5%(p.a.)a", "a %age",
        "$100 or 5$", "US$ 5", "{", "}", "} {", "a { b", "%", "100%", "% d", "me@", "@ home", "me@host", "a @ b.c",
        "a < b", "5 < 6 > 3", "x <3 y> z", "R&D", "AT&T", "<", "<>", "< b>", "</ b>", "<-- x -->", "C:\\Users\\me",
        "http:// x", "www. x", "www.x", "://", "x://y", "awww.nice.day", "#1", "~/.bashrc", "1 % 2",
    ],
)  # fmt: skip
def test_prose_is_not_kept(line: str) -> None:
    assert Protector(DEFAULT).protect(line) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("See https://example.com.", ["https://example.com"]),
        ("See https://example.com/a/?b=c&d=%20#e, please", ["https://example.com/a/?b=c&d=%20#e"]),
        ("(see http://example.com/a)", ["http://example.com/a"]),
        ("https://en.wikipedia.org/wiki/Mercury_(planet), too", ["https://en.wikipedia.org/wiki/Mercury_(planet)"]),
        ("[docs](https://example.com/x_(y)).", ["https://example.com/x_(y)"]),
        ("'https://example.com' \"ftp://a.b/c\" <file:///tmp/x>", ["https://example.com", "ftp://a.b/c", "file:///tmp/x"]),
        ("HTTPS://EXAMPLE.COM! WWW.EXAMPLE.COM?", ["HTTPS://EXAMPLE.COM", "WWW.EXAMPLE.COM"]),
        ("www.example.co.uk/path?q=1; www.x.de:80", ["www.example.co.uk/path?q=1", "www.x.de:80"]),
        ("http://localhost:8000/{id}/edit", ["http://localhost:8000/{id}/edit"]),
        ("见http://example.com/a。然后", ["http://example.com/a"]),
        ("Mail first.last+tag@mail.example.org.", ["first.last+tag@mail.example.org"]),
        ("<me@example.com>, mailto:you@example.com", ["<me@example.com>", "mailto:you@example.com"]),
        ("Visit example.com, Sub.Example.co.uk/a/b_c. Or d.de.", ["example.com", "Sub.Example.co.uk/a/b_c", "d.de"]),
        ("At a.com:80/b?c=d, a.com?x=1, a.com#e.", ["a.com:80/b?c=d", "a.com?x=1", "a.com#e"]),
        ("On a.com: yes, a.com?", ["a.com", "a.com"]),
        ("He said.It was e.g. so.me. Is it 3.de?", []),
        ("Thanks @john_doe, @a.b! Am #MeToo-Tag, @Tom-Fans.", ["@john_doe", "@a.b", "#MeToo", "@Tom"]),
        ("a@@b, x #1, # 2, it's &#39; 5#a @", []),
        ("write to...me@example.com", ["me@example.com"]),
        ("'me@example.com' or o'neil+tag@mail.example.org", ["me@example.com", "o'neil+tag@mail.example.org"]),
        ("Scrivete all'info@ditta.example oggi", ["info@ditta.example"]),
        ("up to $https://example.com/a, $https only", ["https://example.com/a", "$https"]),
    ],
)  # fmt: skip
def test_addresses_are_found_without_the_punctuation_after_them(line: str, expected: list[str]) -> None:
    assert kept_in(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Click <b>here</b> now", "Click 0[here0] now"),
        ('<a href="x?a=1" title="a > b">x</a>', "0[x0]"),
        ("<a title='a > b'>x</a>", "0[x0]"),
        ("<b don't>x</b>", "0[x0]"),
        ("<B>x</b> <Br> <BR/>", "0[x0] 2. 3."),
        ("one<br>two<br/>three<img src=x>", "one0.two1.three2."),
        ("<b>never closed <i>x</i>", "0.never closed 1[x1]"),
        ("never opened</b> x", "never opened0. x"),
        ("<b>x<i>y</b>z</i>", "0[x1.y0]z3."),
        ("<b><i>x</i></b><b>y</b>", "0[1[x1]0]4[y4]"),
        ("<b>x<b>y</b>z</b>", "0[x1[y1]z0]"),
        ("a <!-- <b> > c --> d<!---->", "a 0. d1."),
        ("<x:y-z.1 a='1'\nb>n</x:y-z.1>", "0[n0]"),
        ("List<String>", "List0."),
        ("if a <b and c> d", "if a 0. d"),
        ("<b>{x}</b>", "0[{x}0]"),
    ],
)
def test_tags_become_marks(line: str, expected: str) -> None:
    assert marks_in(line) == expected


def test_numbers_are_kept_on_request() -> None:
    line = "On 2024-05-06 at 10:30, 1,234.5 kg (10mg) of B2B mp3 COVID-19 for $100, 3.5.1 and 5."
    expected = ["2024-05-06", "10:30", "1,234.5", "10", "19", "100", "3.5.1", "5"]
    assert kept_in(line, "numbers") == expected
    assert kept_in(line) == []
    assert kept_in("It is -5 or −3.5, (+7) 10-20, x-4 and 8 - 9.", "numbers") == [
        "-5", "−3.5", "+7", "10-20", "4", "8", "9",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Set max_size and MAX_SIZE, then _x.", ["max_size", "MAX_SIZE", "_x"]),
        ("Open my_file_v2.docx, report.pdf or data.tar.gz.", ["my_file_v2.docx", "report.pdf", "data.tar.gz"]),
        ("PLEASE READ README.TXT.", ["README.TXT"]),
        ("Call sort() or list.sort(), see row.cells[3].", ["sort()", "list.sort()", "row.cells[3]"]),
        ("Run it with --all --max-size=3.", ["--all", "--max-size=3"]),
        ("See /etc/hosts, ~/notes or ./a/b.", ["/etc/hosts", "~/notes", "./a/b"]),
        ("In C:\\Users\\Tom, v2.33.4 is new.", ["C:\\Users\\Tom", "v2.33.4"]),
        ("An iPhone, YouTube and McDonald's.", ["iPhone", "YouTube", "McDonald"]),
        ("A320, Covid-19, MP3 and a U-21.", ["A320", "Covid-19", "MP3", "U-21"]),
        ("Type `git push` here.", ["`git push`"]),
        ("Copy docs/a/install.md to ../b/c.txt, not ~/.bashrc.", ["docs/a/install.md", "../b/c.txt", "~/.bashrc"]),
        ("Edit .gitattributes and .env.local", [".gitattributes", ".env"]),
        ("Bake at 350°F or -9.5 °F (9 °C).", ["350°F", "-9.5 °F"]),
        ("Set DEBUG=1, MAX_SIZE=5 and path=/usr/bin.", ["DEBUG=1", "MAX_SIZE=5", "path=/usr/bin"]),
        ("Use -f, -rf or --force.", ["-f", "-rf", "--force"]),
        ("C++, C# and F# differ.", ["C++", "C#", "F#"]),
        ("1Z999AA10123456784, 9f86d081, hunter2, H1N1.", ["1Z999AA10123456784", "9f86d081", "hunter2", "H1N1"]),
        ("It is 550e8400-e29b-41d4-a716-446655440000.", ["550e8400-e29b-41d4-a716-446655440000"]),
        ("DE89 3704 0044 0532 0130 00 is mine.", ["DE89 3704 0044 0532 0130 00"]),
        ("At 192.168.1.1:8080 or 10.0.0.1.", ["192.168.1.1:8080", "10.0.0.1"]),
        ("Order A-4711-XZ or 20241234567, in 1920x1080.", ["A-4711-XZ", "20241234567", "1920x1080"]),
        ("Call +49 30 1234567, (555) 123-4567 or 555-123-4567.", ["+49 30 1234567", "(555) 123-4567", "555-123-4567"]),
        ("A loss of -€5.50 (-$3).", ["-€5.50", "-$3"]),
    ],
)  # fmt: skip
def test_code_and_names_of_products_are_found(line: str, expected: list[str]) -> None:
    assert kept_in(line, "code") == expected
    assert kept_in(line) == [], "the control"


@pytest.mark.parametrize(
    "line",
    [
        "The bill (draft) of 3.5 is and/or e.g. there. He said.Then", "Dr. Smith (U.S.A.) at 5 p.m.",
        "He [the man] said so.", "a pH value",
        "mid-1990s, the 20th, 5kg, 3/4", "Die G20-Gipfel und COVID-19-Pandemie", "H-0839/00", "BürgerInnen, LehrerIn",
        "I / you", "___",
        "word--word, -- and", "NATO, EU", "Size B.5 and T-Shirt", "it`s",
        "Ein- und Ausgang, -los, -fach", "A 24-HOUR, 15-YEAR-OLD",
        "1.272.000.000, 1.234.567.890 and 256.1.1.1 in 1,234,567.89", "+3 or -5, 12.05.",
        "3rd, 2nd, 80er, 10am, 5x", "a = b, x=", "2004/0146, 0076/2004", "See no. 5 .Then", "B# and X+",
    ],
)  # fmt: skip
def test_ordinary_words_are_no_code(line: str) -> None:
    assert kept_in(line, "code") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('Press "Save as" or "New Tab" now.', ["Save as", "New Tab"]),
        ("Klicken Sie auf „Alle Fenster schließen“, dann »Ja« oder «Non».", ["Alle Fenster schließen", "Ja", "Non"]),
        ("Click ‘Don’t save’.", ["Don’t save"]),
        ('A board of 5"x6" of wood', []),
        ("“She will become a doctor”", []),
        ('He said: "Go home. Now."', []),
        ('He read "a very long title of some book" twice.', []),
        ("5\" and 6\" pipes, it's the dogs' house", []),
    ],
)
def test_short_quotes_are_kept_on_request(line: str, expected: list[str]) -> None:
    assert kept_in(line, "quotes") == expected
    assert kept_in(line) == [], "the control"


SYMBOLS = ["😀", "🎉🎉", "👍🏽", "❤️", "👨‍👩‍👧", "🇩🇪", "1️⃣"]
SYMBOLS += ["™", "→", "≤", "×", "☕", ">", "›", "<=", "->", "+"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("It is -5 to +7.5 (-3), ±2", "It is 5 to 7.5 (3), 2"),
        ("Use \\*stars\\* for \\$5", "Use stars for 5"),
        ("10-20, x-4, 8 - 9, a\\b, 9 °C, 9 °F", None),
    ],
)
def test_a_model_never_sees_minus_signs_and_escapes(line: str, expected: str | None) -> None:
    found = Protector(["symbols"]).protect(line)
    assert (found.text if found else None) == expected
    assert not found or found.line(found.parts) == line


@pytest.mark.parametrize("line", ["...", "-", "???", ":-)", "=====", "$", " … ", "😀 !"])
def test_lines_of_signs_alone_stay_as_they_are(line: str) -> None:
    assert Protector(["code"]).protect(line) is None, "the control"
    found = Protector(["symbols"]).protect(line)
    assert found is not None
    assert not found.has_words
    assert found.line(found.parts) == line


@pytest.mark.parametrize("line", ["", " ", "\ufeff", "\u200b", "1.", "a", "?!1"])
def test_other_lines_are_not_only_signs(line: str) -> None:
    assert Protector(["symbols"]).protect(line) is None


@pytest.mark.parametrize("sign", SYMBOLS)
def test_a_model_never_sees_symbols(sign: str) -> None:
    found = Protector(["symbols"]).protect(f"Good {sign} morning")
    assert found is not None
    assert found.parts == ("Good ", Mark(0, "single"), " morning")
    assert sign not in found.text
    assert found.line(found.parts) == f"Good {sign} morning"
    assert Protector(["symbols"]).protect("Ünï–“cödé” § 3 € ½ 中文 • a_b – and - not a+b=c, x>y") is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Open Settings > Privacy and click OK.", ["Settings > Privacy"]),
        ("Go to Tools > Privacy & Security > Cookies, then quit.", ["Tools > Privacy & Security > Cookies"]),
        ("Settings > Privacy shows all cookies.", ["Settings > Privacy"]),
        ("Über Datei › Öffnen geht es schneller.", ["Datei › Öffnen"]),
        ("Menu: File > Save As…", ["File > Save As"]),
        ("If you open settings > privacy, or a > b.", []),
        ("We saw 3 > 2 and Settings >Privacy > then.", []),
        ("> Hello World, she wrote > He did not.", []),
        (
            "It is easy. Open Settings > Privacy, or: Open Tools > Save As > PDF.",
            ["Settings > Privacy", "Tools > Save As > PDF"],
        ),
        ("Öffnen Sie Meine Daten > Verlauf im Menü Extras > Suche.", ["Meine Daten > Verlauf", "Extras > Suche"]),
        ("In Settings > Privacy I found it.", ["Settings > Privacy"]),
    ],
)
def test_paths_within_a_sentence_stay_as_they_are(line: str, expected: list[str]) -> None:
    assert kept_in(line, "code") == expected
    assert kept_in(line, "symbols") == [], "the control"


@pytest.mark.parametrize("line", ["Home > All Products > Shoes", "Account Settings > Privacy", "Datei › Öffnen"])
@pytest.mark.parametrize("splits_items", [False, True])
def test_a_line_that_is_a_path_is_text(line: str, splits_items: bool) -> None:
    protector = Protector(["code"], splits_items)
    assert protector.protect(line) is None
    assert protector.protect(line, is_whole=False) is not None, "the control"


def test_signs_of_menus_are_text_where_these_are_divided() -> None:
    whole, divides = (Protector(["symbols"], splits_items=splits) for splits in (False, True))
    menu, other = "Home | About > Us", "Home | About > Us →"
    found = whole.protect(menu)
    assert found is not None
    assert found.text == "Home  About  Us"
    assert divides.protect(menu) is None
    found = divides.protect(other)
    assert found is not None
    assert found.text == "Home  About  Us ", "there is more to keep, so it is not divided"
    assert divides.protect(menu, is_whole=False) == whole.protect(menu)
    parts = protect_parts(("Home | About", Mark(0, "single")), divides).parts
    assert parts == ("Home ", Mark(1, "single"), " About", Mark(0, "single"))


def test_words_with_a_number_are_kept_if_they_are_names() -> None:
    line = "an A320, Mp3, the U-21, Covid-19, Type-2 text1"
    assert kept_in(line, "code") == ["A320", "Mp3", "U-21", "Covid-19", "Type-2", "text1"]
    found = Protector(["code"], known=WordList.of(["type", "covids", "u", "mp", "text"])).protect(line)
    assert found is not None
    assert [kept.text for kept in found.kept] == ["A320", "Mp3", "U-21", "Covid-19"]
    assert kept_in("1920×1080 or 3×4×5, a 2×", "code") == ["1920×1080", "3×4×5"]
    dates = "Am 03.10.2023, 1.5.24 und 31.12.1999. Nicht 1.5. um 19.30 Uhr, 32.1.2024, 1.13.2024 oder 1.2.345"
    assert kept_in(dates, "code") == ["03.10.2023", "1.5.24", "31.12.1999"]


def test_a_longer_number_with_a_stand_in_is_the_stand_in() -> None:
    line = Protector(["numbers"]).protect("It is 6:00 or 7:30 on day 11.")
    assert line is not None
    assert line.stand_ins == ["417", "518", "11"]

    def found_in(translation: str) -> list[tuple[str, str]]:
        places = line.locate(translation, line.stand_ins).found
        return [(translation[start:end], kept.text) for start, end, kept in places]

    assert found_in("um 417.00 Uhr, 518") == [("417.00", "6:00"), ("518", "7:30")]
    assert found_in("417/518, am 11.") == [("417", "6:00"), ("518", "7:30"), ("11", "11")]
    assert found_in("am 11.417") == [("11", "11"), ("417", "6:00")]
    assert found_in("am 11.30 um 4170") == [], "the control: it may be any number"
    assert line.locate("6:00.00", line.spellings).found == [], "only stand-ins have no other origin"


def test_marked_spans_are_kept_without_their_marks() -> None:
    found = protected("Visit <keep>Big Apple</keep> and<keep> a<b> {x} </keep>now")
    assert found.parts == ("Visit ", Kept(0, "Big Apple"), " and", " ", Kept(1, "a<b> {x}"), " ", "now")
    assert found.line(found.parts) == "Visit Big Apple and a<b> {x} now"
    assert protected("<keep>a</keep>{b}<keep>c</keep>").parts == (Kept(0, "a{b}c"),)
    assert kept_in("<keep>a</keep>", "numbers") == ["a"]
    assert kept_in("<keep>a") == kept_in("a</keep>") == []


@given(st.text(alphabet='ab1 .{}<>/%$sd@:"-!_()keep', max_size=60), st.sets(st.sampled_from(PROTECTED), min_size=1))
def test_a_line_can_be_put_together_again(line: str, kinds: set[str]) -> None:
    found = Protector(sorted(kinds)).protect(line)
    if found is not None:
        without_marks = re.sub(r"<keep>((?:(?!</?keep>).)+)</keep>", r"\1", line, flags=re.DOTALL)
        assert found.line(found.parts) == without_marks
        assert_nested(found.parts)
        assert "" not in found.parts
        numbers = [part.number for part in found.originals if not (isinstance(part, Mark) and part.kind == "close")]
        assert len(set(numbers)) == len(numbers), "one number, one element"
        assert max(numbers) < len(found.originals)


def assert_nested(parts: Parts) -> None:
    stack = []
    for part in parts:
        if isinstance(part, Mark) and part.kind == "open":
            stack.append(part.number)
        elif isinstance(part, Mark) and part.kind == "close":
            assert stack.pop() == part.number
    assert stack == []


PIECES = st.sampled_from(
    ["{", "}", "<", ">", "<b>", "</b>", "<i>", "</i>", "<br/>", "%s", "<keep>", "</keep>", "a", " "]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_pairs_of_tags_are_nested(line: str) -> None:
    found = Protector(DEFAULT).protect(line)
    if found is not None:
        assert_nested(found.parts)


HOSTILE = ["{", "{}", "<", "<!--", "<keep>", "%", "a@", "www.-"]
MORE_HOSTILE = [
    "}", "{a", "a{", "${", "{{a}}", "{a,plural,", "<a ", '<a "', "<a '\"", "<!-- -", "<keep>a", "<a>", "</a>",
    "<a></b>", "<b><i></b>", "%a", "%%", "%(a", "%<a", "%1", "@", "a@b", "a@b.", "a.", "a_", "ab_{", "$", "$A", "www.",
    "www.a", "http://", "http://(", "mailto:", "1", "1.", "-", "_", "a_.", "a.a", "a(", "a[", "a.pdf", "--a", " --a=",
    "/a", " /a/", "`a", "`", "aB", "A1-", "v1.", "A:\\a", "\U0001f600", "\u200d\U0001f600", "1\ufe0f",
    '"', '"a', '"a" ', '"a ', ",‘a", " | A", " > ", " > A", "A ", "A’", "A B > ",
    "a/", "a.b/", "@a", "#a", "A-1-", "AA11 1111", "1.1", "+1 ", "a=", "555-", "(555) ",
    "\\*", " -", " -a", "a.com/", "a.com?", "a.com:1", "<a@b.", "9 °F",
]  # fmt: skip


def seconds(unit: str, length: int) -> float:
    start = time.process_time()
    found = Protector(PROTECTED).protect((unit * length)[:length])
    if found is not None:
        assert len(found.text) <= 2 * length
    return time.process_time() - start


@pytest.mark.parametrize("unit", [*HOSTILE, *(pytest.param(unit, marks=pytest.mark.slow) for unit in MORE_HOSTILE)])
def test_hostile_lines_take_linear_time(unit: str) -> None:
    """A quadratic scan takes minutes for most of these, a linear one well below a second."""
    assert seconds(unit, 200_000) < 20


@pytest.mark.parametrize("unit", ["Home > ", "All Shoes → "])
def test_menus_take_linear_time(unit: str) -> None:
    start = time.process_time()
    for splits_items in (False, True):
        Protector(PROTECTED, splits_items).protect(unit * 20_000 + "Home")
    assert time.process_time() - start < 20


# What a model sees


def test_a_space_separates_words_that_only_a_mark_separates() -> None:
    assert protected("one<br/>two").text == "one two"
    assert protected("one<br/><br/>two").text == "one two"
    assert protected("one <br/>two<br/> three<br/>.").text == "one two three."
    assert protected("one<b>two</b>").text == "onetwo", "a part of a word in bold"
    assert protected("one<br/>{x}<br/>two").text == "one {x} two"
    assert protected("<br/>one").text == "one"


def test_kept_words_are_separate_for_a_model() -> None:
    found = protected("{a}<b>{b}</b>{c}")
    assert found.text == "{a} {b} {c}"
    first, second, third = found.stand_ins
    assert found.text_with_stand_ins == f"{first} {second} {third}"
    glued = protected("file{s} or {n}files.")
    assert glued.text == "file{s} or {n}files."
    assert glued.text_with_stand_ins == "file {} or {} files.".format(*glued.stand_ins)
    assert protected("pre-{x}'s").text_with_stand_ins == f"pre-{protected('{x}').stand_ins[0]}'s"


def test_places_are_those_of_the_text_that_a_model_sees() -> None:
    found = protected("one<br/>two <b>{x}</b>.")
    assert found.text == "one two {x}."
    assert found.places(found.spellings) == [
        (3, Mark(0, "single")), (8, Mark(1, "open")), (11, Kept(2, "{x}")), (11, Mark(1, "close")),
    ]  # fmt: skip
    assert found.places(["417"])[2:] == [(11, Kept(2, "{x}")), (11, Mark(1, "close"))]


def test_stand_ins_are_numbers_that_the_text_does_not_have() -> None:
    found = protected("417 and 518 of {a} and {b}, {a}.")
    assert found.stand_ins == ["619", "720", "821"]
    numbers = protected("In 2024, 5 of 5, 3 of 3.5, 10mg, 12345 and 7.", "numbers")
    stand_ins = dict(zip(numbers.kept, numbers.stand_ins, strict=True))
    own = {kept.text for kept, stand_in in stand_ins.items() if kept.text == stand_in}
    assert own == {"2024", "7"}, "short, and nowhere else"
    assert len({*stand_ins.values()}) == 8


@pytest.mark.parametrize("taken", [0, 500])
def test_there_are_stand_ins_for_a_thousand_words(taken: int) -> None:
    numbers = [str(number) for number in THREE_DIGITS[:taken]]
    found = protected(" ".join([*numbers, *["{x} and"] * 1000]))
    stand_ins = found.stand_ins
    assert len({*stand_ins}) == 1000
    assert not {*stand_ins} & {*numbers}
    assert sum(len(stand_in) == 3 for stand_in in stand_ins) == len(THREE_DIGITS) - taken
    assert found.locate(found.text_with_stand_ins, stand_ins).is_complete


def test_every_stand_in_must_appear_once() -> None:
    (term,) = stand_in_terms(["417", "417"])
    assert [term.is_kept(text) for text in ("417 x", "417 417", "4170", "")] == [True, False, False, False]


# What a translation has


def located(line: str, translation: str, *kinds: str) -> tuple[list[str], list[str], list[str]]:
    """Of the kept words of a line: those found, those lost, and what is there once too often."""
    found = protected(line, *kinds)
    result = found.locate(translation, found.spellings)
    assert [translation[start:end] for start, end, _ in result.found] == [place.kept.text for place in result.found]
    surplus = [translation[start:end] for start, end in result.surplus]
    return [place.kept.text for place in result.found], [kept.text for kept in result.lost], surplus


def test_words_are_found_in_a_translation() -> None:
    assert located("{a} and {b}", "{b} und {a}") == (["{b}", "{a}"], [], [])
    assert located("{a} and {b}", "und {a}") == (["{a}"], ["{b}"], [])
    assert located("{a} and {b}", "{a} und {a}") == (["{a}"], ["{b}"], [" {a}"])
    assert located("{n} and {n}", "{n} und {n}") == (["{n}", "{n}"], [], [])
    assert located("{n} and {n}", "{n} und") == (["{n}"], ["{n}"], [])


def test_a_word_within_a_longer_one_is_not_that_word() -> None:
    assert located("{n} of <keep>x{n}y</keep>", "x{n}y") == (["x{n}y"], ["{n}"], [])
    assert located("www.a.de or www.a.de/b", "www.a.de/b") == (["www.a.de/b"], ["www.a.de"], [])
    assert located("$A is", "$AB") == ([], ["$A"], [])
    assert located("<keep>art</keep>", "Smart artig") == ([], ["art"], [])
    assert located("5 of 7", "5,7 1:5 75 v5", "numbers") == ([], ["5", "7"], [])
    assert located("5 of 7", "5. von 7mg", "numbers") == (["5", "7"], [], [])


# Texts of documents


def test_parts_of_a_document_keep_their_numbers() -> None:
    parts: Parts = ("{a}{b} %s <i>", Mark(3, "open"), "x</i>{c}", Kept(5, "code"), Mark(3, "close"), " <br> %d")
    found = protect_parts(parts, Protector(DEFAULT))
    assert [part for part in found.parts if part in parts] == [*parts[1:2], *parts[3:5]]
    numbers = [part.number for part in found.originals]
    assert len({*numbers}) == len(numbers)
    assert not {*numbers} & {3, 5}
    assert without_own(found.parts, found.originals) == parts
    assert protect_parts(parts, None).parts == parts


@given(st.lists(st.one_of(PIECES, st.just("%s%s{x}")), max_size=6))
def test_what_was_found_in_a_document_is_text_again(texts: list[str]) -> None:
    parts: list[str | Mark | Kept] = []
    for number, text in enumerate(texts):
        parts += [text, Mark(number, "single")]
    found = protect_parts(tuple(parts), Protector(PROTECTED))
    assert without_own(found.parts, found.originals) == tuple(parts)
    assert len({*found.originals}) == len([part for part in found.parts if not isinstance(part, str)]) - len(texts)
    assert text_of(without_own(found.parts, found.originals)) == "".join(texts)


def test_kept_words_are_no_words_to_translate() -> None:
    assert not protected("{name}: https://example.com <b>5 %</b>").has_words
    assert protected("{name} a").has_words
