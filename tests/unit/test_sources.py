"""docs/sources.md: every test, file, function and setting that it names exists, and every article is covered."""

import ast
import re
import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dragoman import config

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sources.md"
TEXT = PAGE.read_text(encoding="utf-8")
ARTICLES = {
    "A. Transformer : The idea behind AI revolution": "trapoom555, 2024-01-12.",
    "B. 8. Transformer": "Tobias Stenzel, 2023-03-08.",
    "C. Transformer Analysis": "No author in its front matter, 2023-08-03.",
    "D. [NLP] Attention is all you need": 'No author in its front matter ("Part. 2, Transformer"), 2023-06-10.',
    "E. Transformer of AI World": "No author in its front matter, 2023-06-23.",
}
KINDS = {"formula", "figure", "claim", "slip", "code", "outlook"}
MODELS = (config.TransformerConfig, config.RecurrentConfig)
SECTIONS: dict[str, tuple[type, ...]] = {
    "data": (config.DataConfig,),
    "text": (config.TextConfig,),
    "model": MODELS,
    "train": (config.TrainConfig,),
    "decode": (config.DecodeConfig,),
}


# What the page says


def links(text: str) -> list[tuple[str, str]]:
    """Text and target of each link; the label for a link without a definition."""
    definitions = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, flags=re.MULTILINE))
    direct = re.findall(r"\[([^\[\]]+|[^\[\]]*\[[^\[\]]*\][^\[\]]*)\]\(([^)\s]+)\)", text)
    labelled = re.findall(r"\[([^\[\]]+)\]\[([\w-]+)\]", text)
    return direct + [(words, definitions.get(label, label)) for words, label in labelled]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without the head."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# What is there


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def defined(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """The names that a module or class defines: `name`, and `Class.name` for what is inside a class."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(prefix + statement.name)
        if isinstance(statement, ast.ClassDef):
            names |= defined(statement.body, f"{prefix}{statement.name}.")
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found = (node for target in targets for node in ast.walk(target))
            names |= {prefix + node.id for node in found if isinstance(node, ast.Name)}
    return names


@cache
def names_of(path: Path) -> set[str]:
    return defined(ast.parse(path.read_text(encoding="utf-8")).body)


def is_setting(words: str) -> bool:
    """`section.key`, or `section.key = "value"` with a value that may be chosen."""
    match = re.fullmatch(r'(\w+)\.(\w+)(?: = "(\w+)")?', words)
    if match is None or match[1] not in SECTIONS:
        return False
    hints = [typing.get_type_hints(each).get(match[2]) for each in SECTIONS[match[1]]]
    choices = [typing.get_args(hint) for hint in hints if hint is not None]
    return any(match[3] is None or match[3] in each for each in choices)


# What the page says and is not there


def missing_tests(text: str) -> list[str]:
    cited = re.findall(r"(tests/[\w/]+\.py)::(\w+)", text)
    assert len(cited) > 100
    return [
        f"{path}::{name}" for path, name in cited if not (ROOT / path).exists() or name not in names_of(ROOT / path)
    ]


def missing_links(text: str) -> list[str]:
    missing = []
    for _, target in links(text):
        path, _, anchor = target.partition("#")
        page = (PAGE.parent / path).resolve() if path else PAGE
        if target.startswith("http"):
            continue
        if not page.exists() or (anchor and anchor not in anchors(page)):
            missing.append(target)
    return missing


def missing_names(text: str) -> list[str]:
    """Of `module.name` with a link to a file of ours: whether it is that module, and the name is in it."""
    missing, seen = [], 0
    for words, target in links(text):
        match = re.fullmatch(r"`(\w+)\.([A-Za-z_][\w.]*)`", words)
        if match is None or not target.endswith(".py"):
            continue
        seen += 1
        path = PAGE.parent / target
        if path.stem != match[1] or match[2] not in names_of(path):
            missing.append(f"{match[1]}.{match[2]} in {target}")
    assert seen > 100
    return missing


def missing_in_backticks(text: str) -> list[str]:
    """Of what has no link and looks like a file or a dotted name: files are ours, dotted names are settings."""
    missing = []
    for words in re.findall(r"`([^`]+)`", re.sub(r"\[`[^`]+`\](\[[\w-]+\]|\([^)]+\))", "", text)):
        if re.fullmatch(r"[\w./-]+\.(py|md|toml|svg)", words):
            if not any((place / words).exists() for place in (ROOT, ROOT / "src" / "dragoman", PAGE.parent)):
                missing.append(words)
        elif re.fullmatch(r'[a-z]\w*\.\w+( = "\w+")?', words) and not words.startswith("nn.") and not is_setting(words):
            missing.append(words)
    return missing


CHECKS = [missing_tests, missing_links, missing_names, missing_in_backticks]


@pytest.mark.parametrize("missing", CHECKS)
def test_everything_named_on_the_page_exists(missing: Callable[[str], list[str]]) -> None:
    assert missing(TEXT) == []


@pytest.mark.parametrize(
    ("missing", "wrong"),
    [
        (missing_tests, "`tests/unit/test_attention.py::test_that_nobody_wrote`"),
        (missing_tests, "`tests/unit/test_nothing.py::test_attention_matches_the_formula_of_the_paper`"),
        (missing_links, "[a page](nowhere.md)"),
        (missing_links, "[a section](derivation.md#99-nothing)"),
        (missing_links, "[no definition][nowhere]"),
        (missing_names, "[`attention.attends`][attention]"),
        (missing_names, "[`transformer.attend`][attention]"),
        (missing_names, "[`transformer.Encoder.step`][transformer]"),
        (missing_in_backticks, "`model/nothing.py`"),
        (missing_in_backticks, "`model.contexts`"),
        (missing_in_backticks, '`model.context = "sauce"`'),
        (missing_in_backticks, "`attention.attend`"),
    ],
)
def test_missing_name_is_detected(missing: Callable[[str], list[str]], wrong: str) -> None:
    assert len(missing(f"{TEXT}\n{wrong}\n")) == len(missing(TEXT)) + 1


def test_every_link_definition_is_used() -> None:
    for label in re.findall(r"^\[([\w-]+)\]: ", TEXT, flags=re.MULTILINE):
        assert f"][{label}]" in TEXT, label


@pytest.mark.parametrize("heading", ARTICLES)
def test_every_article_has_its_table(heading: str) -> None:
    assert f"\n## {heading}\n\n{ARTICLES[heading]}\n" in TEXT
    table = rows(heading)
    assert len(table) >= 8
    assert [number for number, *_ in table] == [str(number) for number in range(1, len(table) + 1)]
    for number, says, kind, where, shown in table:
        assert kind in KINDS, number
        assert says, number
        assert where, number
        assert shown, number
        if kind == "slip":
            assert "Right" in where, number
            assert "::test_" in shown or "no test" in shown, number


def test_known_slips_are_listed() -> None:
    """In the words of each row: what to look for, by article."""
    known = {
        "A": ["Q from the encoder", "i > j is left out"],
        "B": ["sqrt(n)"],
        "C": ["linear map and a softmax", "sine where s is even", "exponent (2i+1)/D", "divided by the variance"],
        "D": [
            "exponent outside the bracket",
            "2d/d_model",
            "padding mask hides words not present yet",
            "softmax does the scaling",
            "d_ff layers",
            "a comma",
        ],
        "E": ["no decoder mask", "no embeddings", "no positions"],
    }
    for heading in ARTICLES:
        slips = [says for _, says, kind, _, _ in rows(heading) if kind == "slip"]
        for words in known[heading[0]]:
            assert any(words in says for says in slips), words
