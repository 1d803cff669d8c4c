"""JSON and tables: which values and cells are segments, what keeps its bytes, and errors that name the place."""

import csv
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.decode.protection import Protector
from dragoman.documents import json_values, tables
from dragoman.documents.document import Document, Kept, Options
from dragoman.documents.values import is_text
from dragoman.errors import DataError
from tests.translated import OPTIONS, check_round_trip, parts_of, texts, translate, translated

# What is text


@pytest.mark.parametrize(
    "value", ["Hello", "two words", "Grüße", "第3章", "See https://a.b", "1 apple", "It's", "UPPER", "e.g. this"]
)
def test_text_is_told_from_data(value: str) -> None:
    assert is_text(value)


@pytest.mark.parametrize(
    "value",
    [
        "", "12.50", "-", "https://a.b/c", "www.a.b", "a@b.cd", "2024-01-31T10:00Z", "SKU-123", "snake_case",
        "camelCase", "true", "N/A", "a.b.c", "img/a.png", "C:\\dir", "#ff00aa", "{name}", "en-US", "3kg", "mailto:x",
    ],
)  # fmt: skip
def test_data_is_told_from_text(value: str) -> None:
    assert not is_text(value)


# JSON


VALUES = r"""{
  "title": "Tea \"for\" two\u00e4 \/ \\n",
  "count" : 1.50e+3 , "url": "https://example.org",
  "items": [ {"title": "First one", "tags": ["red tea", "id_7"]}, {"title": "", "id": 0} ],
  "home.title": "Welcome, {name}! You have {{count}} new and %s old.\n\n  Second line\t\r\nthird",
  "title": "duplicate key",	"nothing": null
}
"""


def parse_json(source: str, *keys: str) -> Document:
    return json_values.parse(source.encode(), Options(keys=keys), "a.json")


def test_all_values_with_text_are_segments() -> None:
    document = parse_json(VALUES)
    check_round_trip(document, VALUES.encode())
    assert parts_of(document) == [
        ('Tea "for" twoä / \\n',),
        ("First one",),
        ("red tea",),
        ("Welcome, ", Kept(1, "{name}"), "! You have ", Kept(2, "{{count}}"), " new and ", Kept(3, "%s"), " old."),
        ("Second line",),
        ("third",),
        ("duplicate key",),
    ]
    assert [segment.place for segment in document.segments][:3] == [
        "line 2, title", "line 4, items.0.title", "line 4, items.0.tags.0",
    ]  # fmt: skip


def test_placeholders_are_those_of_text() -> None:
    """As in decode/protection.py, so that a placeholder is one whatever it is found in."""
    texts = [
        "See %s",
        "Costs %.2f euros",
        "At v{version} and %(name)s",
        "Hi {{ you }}",
        "Use $NAME",
        "Off by 50% of it",
    ]
    kept = [["%s"], ["%.2f"], ["v{version}", "%(name)s"], ["{{ you }}"], ["$NAME"], []]
    found = parts_of(parse_json(json.dumps(texts)))
    assert [[part.text for part in parts if isinstance(part, Kept)] for parts in found] == kept
    for text, own in zip(texts, kept, strict=True):
        line = Protector(("placeholders",)).protect(text)
        assert (line.spellings if line else []) == own


def test_only_values_change() -> None:
    changed = translated(parse_json(VALUES), lambda text: text.replace("t", "\t"))
    expected = VALUES
    for old, new in [
        (r"Tea \"for\" two\u00e4 \/ \\n", r"Tea \"for\" \two\u00e4 / \\n"),
        ('"First one"', r'"Firs\t one"'),
        ('"red tea"', r'"red \tea"'),
        (r"\n\n  Second line\t\r\nthird", r"\n\n  Second line\t\r\n\third"),
        ('"duplicate key"', r'"duplica\te key"'),
    ]:
        assert expected.count(old) == 1, old
        expected = expected.replace(old, new)
    assert changed == expected


def test_other_alphabets_are_escaped_where_the_file_does_it() -> None:
    assert translated(parse_json(r'["\u00e4 x"]'), lambda _: "ö😀") == r'["\u00f6\ud83d\ude00"]'
    assert translated(parse_json('["ä x"]'), lambda _: "ö😀") == '["ö😀"]'
    assert translated(parse_json('["a x"]'), lambda _: "ö😀") == '["ö😀"]'


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["title"], ['Tea "for" twoä / \\n', "First one", "duplicate key"]),
        (["items.*.title"], ["First one"]),
        (["items.0.title"], ["First one"]),
        (["items.*.tags"], ["red tea", "id_7"]),
        (["items.*.tags.1"], ["id_7"]),
        (["*.*.title"], ["First one"]),
        (["url", "tags"], ["https://example.org", "red tea", "id_7"]),
        (["home.title"], ["Welcome, {name}! You have {{count}} new and %s old.", "Second line", "third"]),
    ],
)
def test_keys_choose_values(keys: list[str], expected: list[str]) -> None:
    document = parse_json(VALUES, *keys)
    check_round_trip(document, VALUES.encode())
    assert texts(document) == expected


@pytest.mark.parametrize("key", ["titel", "items.*.titel", "items.title", "count", "items.*.title.x"])
def test_a_key_that_matches_nothing_is_an_error(key: str) -> None:
    with pytest.raises(DataError) as error:
        parse_json(VALUES, "title", key)
    assert str(error.value) == (
        f"a.json: no text at key {key}; keys with text: title, url, items.*.title, items.*.tags.*, home.title"
    )


def test_json_lines_are_values_on_lines() -> None:
    source = '\ufeff{"text": "One here"}\r\n\r\n{"text": "Two here", "n": [1, {}]}\n"Three here"\n'
    document = parse_json(source)
    check_round_trip(document, source.encode())
    assert [(segment.text, segment.place) for segment in document.segments] == [
        ("One here", "line 1, text"), ("Two here", "line 3, text"), ("Three here", "line 4"),
    ]  # fmt: skip
    assert texts(parse_json(source.rpartition('"Three')[0], "text")) == ["One here", "Two here"]


@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ('{"a":1,}', 1, 8), ("[1", 1, 3), ('{"a" 1}', 1, 6), ("1 2", 1, 3), ("}", 1, 1), ('["a\n"]', 1, 2),
        ('{"a":"b"}]', 1, 10), ("[1}", 1, 3), ("{1:2}", 1, 2), ("[,]", 1, 2), (":", 1, 1), ("[\n\n  nul]", 3, 3),
        ('["\\x"]', 1, 2), ("[01]", 1, 3), ("// comment", 1, 1), ("{,}", 1, 2), ('{"a":}', 1, 6), ('["a" "b"]', 1, 6),
    ],
)  # fmt: skip
def test_invalid_json_is_an_error_with_its_place(source: str, line: int, column: int) -> None:
    with pytest.raises(DataError) as error:
        parse_json(source)
    assert str(error.value) == f"a.json:{line}: invalid JSON at column {column}; fix the file"


@pytest.mark.parametrize("source", ["", " \n", "\ufeff\t\r\n"])
def test_a_json_file_without_a_value_is_an_error(source: str) -> None:
    with pytest.raises(DataError, match=r"^a\.json:1: has no value, so it is not JSON; write \{\} or \[\]"):
        parse_json(source)
    assert parse_json("{}").segments == []
    assert json_values.parse(source.encode(), OPTIONS, "a.jsonl").segments == []  # a file of no lines


def test_depth_is_no_limit() -> None:
    depth = 20_000  # twenty times what Python allows a recursive function
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        source = opening * depth + '"deep text"' + closing * depth
        document = parse_json(source)
        assert texts(document) == ["deep text"]
        check_round_trip(document, source.encode())
    assert texts(parse_json(source, "a")) == ["deep text"]


def test_half_a_surrogate_pair_in_a_value_is_no_text() -> None:
    source = r'["a b \ud800"]'
    document = parse_json(source)
    check_round_trip(document, source.encode())
    assert texts(document) == ["a b �"]


json_tree = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def map_strings(value: object, change: dict[str, str]) -> object:
    if isinstance(value, list):
        return [map_strings(each, change) for each in value]
    if isinstance(value, dict):
        return {key: map_strings(each, change) for key, each in value.items()}
    return change.get(value, value) if isinstance(value, str) else value


@settings(max_examples=40)
@given(json_tree, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_any_json_survives_and_takes_translations(tree: object, ascii: bool, indent: int | str | None) -> None:
    content = json.dumps(tree, ensure_ascii=ascii, indent=indent).encode()
    document = json_values.parse(content, OPTIONS, "a.json")
    check_round_trip(document, content)
    translations = [translate(segment.parts, lambda _: 'q"\\\n\0é/') for segment in document.segments]
    rendered = json.loads(document.render(translations))
    same = json.loads(content)
    whole = {segment.text: 'q"\\\n\0é/' for segment in document.segments}
    if not any(Kept in map(type, segment.parts) for segment in document.segments):
        strings = [text for text in flatten(same) if text.strip() in whole]
        if len(strings) == len(document.segments):  # no value of several lines
            change = {text: text.replace(text.strip(), whole[text.strip()]) for text in strings}
            assert rendered == map_strings(same, change)


def flatten(value: object) -> list[str]:
    if isinstance(value, list):
        return [text for each in value for text in flatten(each)]
    if isinstance(value, dict):
        return [text for each in value.values() for text in flatten(each)]
    return [value] if isinstance(value, str) else []


# Tables


TABLE = (
    "\ufeffid,title,Body text,price\r\n"
    '1,"Tea, ""green""",plain cell,"1,50"\r\n'
    "\r\n"
    '2,,"two\r\nlines ""x""\r\n\r\n",\r\n'
    '3, padded ,"",9\r\n'
    "4,short row\r\n"
)


def parse_table(source: str, *columns: str, name: str = "a.csv") -> Document:
    return tables.parse(source.encode(), Options(columns=columns), name)


def test_columns_with_text_are_segments() -> None:
    document = parse_table(TABLE)
    check_round_trip(document, TABLE.encode())
    assert [(segment.text, segment.place) for segment in document.segments] == [
        ('Tea, "green"', "row 2, column title"),
        ("plain cell", "row 2, column Body text"),
        ("two", "row 4, column Body text"),
        ('lines "x"', "row 4, column Body text"),
        ("padded", "row 5, column title"),
        ("short row", "row 6, column title"),
    ]


def test_only_chosen_cells_change() -> None:
    changed = translated(parse_table(TABLE, "title"), lambda text: text.upper() + '; "x"')
    assert changed == (
        TABLE.replace('"Tea, ""green"""', '"TEA, ""GREEN""; ""x"""')
        .replace(",short row\r", ',"SHORT ROW; ""x"""\r')
        .replace(", padded ,", '," PADDED; ""x"" ",')
    )


def test_a_cell_is_quoted_when_it_must_be_or_was() -> None:
    document = parse_table('a,b\nOne here,"Two here"\n', "1", "2")
    assert document.render([("Eins",), ("Zwei",)]) == b'a,b\nEins,"Zwei"\n'
    assert document.render([("Eins, ja",), ("Zwei\nneu",)]) == b'a,b\n"Eins, ja","Zwei neu"\n'
    assert document.render([("",), None]) == b'a,b\n"","Two here"\n'
    tabbed = parse_table("a\tb\nOne here\tTwo\n", "1", name="a.tsv")
    assert tabbed.render([('6", a\tb',)]) == b'a\tb\n6", a b\tTwo\n'
    assert tabbed.render([('"so"',)]) == b'a\tb\n"""so"""\tTwo\n'


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["title"], ['Tea, "green"', "padded", "short row"]),
        (["2"], ['Tea, "green"', "padded", "short row"]),
        (["Body text"], ["plain cell", "two", 'lines "x"']),
        (["1", "4"], []),
    ],
)
def test_columns_are_chosen_by_name_or_number(columns: list[str], expected: list[str]) -> None:
    assert texts(parse_table(TABLE, *columns)) == expected


@pytest.mark.parametrize("column", ["titel", "0", "5", "-1", "²", "1" * 5_000])
def test_an_unknown_column_is_an_error(column: str) -> None:
    with pytest.raises(DataError) as error:
        parse_table(TABLE, "title", column)
    assert str(error.value) == f"a.csv: no column {column}; columns: id, title, Body text, price"


def test_a_table_without_a_header_has_numbers() -> None:
    source = "Hello there.\tHallo.\nIs it you?\tBist du es?\n"
    document = parse_table(source, name="a.tsv")
    assert texts(document) == ["Hello there.", "Hallo.", "Is it you?", "Bist du es?"]
    assert document.segments[1].place == "row 1, column 2"
    assert texts(parse_table(source, "1", name="a.tsv")) == ["Hello there.", "Is it you?"]
    with pytest.raises(DataError, match=r"a\.tsv: no column text; columns: no names, numbers 1 to 2"):
        parse_table(source, "text", name="a.tsv")


def test_a_header_that_was_asked_for_is_one() -> None:
    assert texts(parse_table("What is this column about?,b\nOne,Two\n", "What is this column about?")) == ["One"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("name;price\nGreen tea;1,50\nBlack tea;2,00\n", ["Green tea", "Black tea"]),
        ("name\tnote\nGreen, hot\tGood; very\n", ["Green, hot", "Good; very"]),
        ("name,note\nGreen; hot,Good\n", ["Green; hot", "Good"]),
        ('name;"a, b, c"\n"x; y";z\n', ["x; y", "z"]),
        ("name\nOne\nTwo\n", ["One", "Two"]),
    ],
)
def test_the_delimiter_is_found(source: str, expected: list[str]) -> None:
    assert texts(parse_table(source)) == expected


def test_columns_of_numbers_and_names_are_left_alone() -> None:
    source = "id,url,lang,text\na_1,https://a.b,en-US,Tea\nb_2,www.a.b,de-DE,https://a.b\n"
    assert texts(parse_table(source)) == ["Tea"]
    assert texts(parse_table(source, "url")) == ["https://a.b", "www.a.b"]


@pytest.mark.parametrize(
    ("source", "line"),
    [('id,text\n1,"a house\n2,a tree\n', 2), ('id,text\r\n1,"a ""red"" house', 2), ('"', 1), ('a\rb\r"c""\r', 3)],
)
def test_a_quote_that_nothing_closes_is_an_error_with_its_line(source: str, line: int) -> None:
    with pytest.raises(DataError, match=rf"^a\.csv:{line}: a cell begins with a quote that nothing closes"):
        parse_table(source)
    parse_table(source + '"')
    parse_table(source, name="a.tsv")


@pytest.mark.parametrize("source", ['id,text\n1,"a" house\n2,5" or 6"\n', 'id,text\n1,a "house\n'])
def test_a_quote_elsewhere_is_a_character(source: str) -> None:
    check_round_trip(parse_table(source), source.encode())


def test_cells_beyond_the_header_are_left_alone() -> None:
    source = "id,text\n1,a house,not named\n2,a tree\n"
    assert texts(parse_table(source)) == ["a house", "a tree"]
    assert texts(parse_table(source, "3")) == ["not named"]
    assert texts(parse_table(source.replace("id,text", "1,a garden."))) == [
        "a garden.",
        "a house",
        "not named",
        "a tree",
    ]


def test_a_huge_cell_is_refused_by_name() -> None:
    cell = "ä" * (tables.LARGEST_CELL // 2)
    assert len(parse_table(f'a,b\nx y,"{cell}"\n').segments) == 2
    with pytest.raises(DataError) as error:
        parse_table(f'a,b\nx,y\nx,"{cell}\n"\n')
    assert str(error.value) == "a.csv: row 3, column 2 has over 1 MiB; close its quotes or remove it"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@given(text=st.text(alphabet='ab ,;\t"\r\n\ufeffé', max_size=24))
def test_any_table_survives_and_takes_translations(name: str, text: str) -> None:
    content = text.encode()
    if (document := parse_or_refuse(content, name)) is not None:
        check_round_trip(document, content)
        document.render([("x, \"y\"; 'z'\t\n",)] * len(document.segments))


def parse_or_refuse(content: bytes, name: str) -> Document | None:
    """A table, or None if a quote in it is not closed."""
    try:
        return tables.parse(content, OPTIONS, name)
    except DataError as error:
        if "a cell begins with a quote that nothing closes" not in str(error):
            raise
        return None


cells = st.lists(st.text(alphabet='ab ,;"\r\né', max_size=8), min_size=2, max_size=2)


@given(
    st.lists(cells, max_size=5), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.text('q"\n,; é', max_size=6)
)
def test_rows_are_what_the_csv_module_reads(rows: list[list[str]], quoting: int, text: str) -> None:
    file = io.StringIO()
    csv.writer(file, quoting=quoting).writerows([["id", "text"], *rows])  # type: ignore[arg-type]
    source = file.getvalue()
    document = parse_table(source, "text")
    check_round_trip(document, source.encode())
    translations = [(f"Z{text}Z",)] * len(document.segments)
    rendered = list(csv.reader(io.StringIO(document.render(translations).decode(), newline="")))
    assert len(rendered) == len(rows) + 1
    assert rendered[0] == ["id", "text"]
    for old, new in zip(rows, rendered[1:], strict=True):
        assert new[0] == old[0]
        lines = [line if not any(c.isalpha() for c in line) else None for line in io.StringIO(old[1], newline=None)]
        changed = re.sub(r"\n+", " ", f"Z{text}Z")
        assert new[1].count(changed) >= lines.count(None)


@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", ['"a,', '"a\n', 'a,""b,', '"', '"",', 'a"', '""""a,', "a\r"])
def test_hostile_tables_take_linear_time(unit: str, count: int) -> None:
    content = (unit * count).encode()
    for name in ("a.csv", "a.tsv"):
        if (document := parse_or_refuse(content, name)) is not None:
            check_round_trip(document, content)
