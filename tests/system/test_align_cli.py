"""`dragoman align` as a person runs it: one line for each pair, in any order of pairs, and one-line errors."""

import json
from pathlib import Path

import pytest

import dragoman
from dragoman.decode.alignment import symmetrize
from tests.system.test_cli import error_of, run

SOURCES = ["a b c", "", "d e", "f g", "  "]
TARGETS = ["c b a", "x", "e d", "", ""]
FEW = "took the layer where they agree"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("".join(f"{line}\n" for line in SOURCES))
    target.write_text("".join(f"{line}\n" for line in TARGETS))
    return source, target


def test_align_prints_one_line_per_pair(quick_run: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    done = run("align", "--model", quick_run, *files)
    assert done.stderr == f"align: --model: too few words to choose heads; {FEW}\n"
    lines = done.stdout.split("\n")
    translator = dragoman.load(quick_run, device="cpu", engine="plain")
    expected = translator.align(SOURCES, TARGETS)
    assert expected[0], "the control: there are links"
    assert lines == [*(" ".join(f"{i}-{j}" for i, j in links) for links in expected), ""]
    assert lines[1] == lines[3] == lines[4] == ""
    run("align", "--model", quick_run, *files, "--output", tmp_path / "out")
    assert (tmp_path / "out").read_text() == done.stdout
    records = [json.loads(line) for line in run("align", "--model", quick_run, *files, "--json").stdout.splitlines()]
    assert [record["source"] for record in records] == SOURCES
    assert [record["target"] for record in records] == TARGETS
    assert [[tuple(link) for link in record["alignment"]] for record in records] == expected


def test_heads_are_chosen_from_the_pairs_and_reported(quick_run: Path, tmp_path: Path) -> None:
    lines = [" ".join("abcdefghij"[place] for place in (n % 10, n % 7, n % 3)) for n in range(60)]
    (tmp_path / "s").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "t").write_text("".join(f"{line[::-1]}\n" for line in lines))
    done = run("align", "--model", quick_run, tmp_path / "s", tmp_path / "t")
    heads = dragoman.load(quick_run, device="cpu").choose_alignment_heads(lines, [line[::-1] for line in lines])
    assert heads
    assert done.stderr == f"align: --model: took the heads {', '.join(heads)}, which align these pairs best\n"
    assert done.stdout.count("\n") == 60


@pytest.mark.slow
def test_two_models_are_combined(quick_run: Path, files: tuple[Path, Path]) -> None:
    translator = dragoman.load(quick_run, device="cpu", engine="plain")
    forward = translator.align(SOURCES, TARGETS)
    backward = [[(i, j) for j, i in links] for links in translator.align(TARGETS, SOURCES)]
    for method in ("grow-diag-final-and", "intersection", "union"):
        shown = run(
            "align", "--model", quick_run, "--reverse-model", quick_run, "--symmetrize", method, *files
        ).stdout.splitlines()
        both = [symmetrize(*links, method) for links in zip(forward, backward, strict=True)]
        assert shown == [" ".join(f"{i}-{j}" for i, j in links) for links in both]
    default = run("align", "--model", quick_run, "--reverse-model", quick_run, *files).stdout.splitlines()
    assert default[0] == " ".join(f"{i}-{j}" for i, j in symmetrize(forward[0], backward[0], "grow-diag-final-and"))


def test_a_reference_gives_the_error_rate(quick_run: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    own, gold = tmp_path / "own", tmp_path / "gold"
    run("align", "--model", quick_run, *files, "--output", own)
    links = len(own.read_text().split())
    perfect = run("align", "--model", quick_run, *files, "--reference", own).stdout
    assert perfect == f"AER 0.00  precision 100.00  recall 100.00  {links} links in 5 pairs\n"
    gold.write_text("0-2 1p1 2-0\n\n0-1 1-0\n\n\n")
    shown = json.loads(
        run("align", "--model", quick_run, *files, "--reference", gold, "--json", "--output", own).stdout
    )
    assert shown.keys() == {"aer", "precision", "recall", "links", "pairs"}
    assert shown["pairs"] == 5
    assert json.loads(own.read_text().splitlines()[0])["source"] == "a b c"


@pytest.mark.slow
def test_errors_are_one_line(quick_run: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    source, target = files
    command: list[str | Path] = ["align", "--model", quick_run, source, target]
    assert error_of(*command, "--symmetrize", "union", code=2) == (
        "dragoman: --symmetrize: combines two models; give --reverse-model, or leave it out"
    )
    assert error_of(*command, "--reverse-model", quick_run, "--symmetrize", "both", code=2) == (
        "dragoman: symmetrize: 'both' is not a choice; known: grow-diag-final-and, intersection, union"
    )
    assert error_of(*command, "--output", target, code=2) == (
        f"dragoman: --output {target}: is read too; give another file"
    )
    gold = tmp_path / "gold"
    for text, problem in (
        ("0-0\n1=1\n", ":2: '1=1' is not a link; write 1-2, or 1p2 for a possible one"),
        ("0-0\n", ": 1 lines for 5 pairs; give one line of links for each"),
        ("\n\n2-0\n\n\n", ":3: link 2-0 with 2 source and 2 target words; words are counted from 0"),
    ):
        gold.write_text(text)
        assert error_of(*command, "--reference", gold, code=3) == f"dragoman: {gold}{problem}"
    target.write_text("c b a\n")
    assert error_of(*command, code=3).startswith(f"dragoman: {target}: 1 lines, {source}: 5; ")
    target.write_bytes(b"c\n\n\xff\n\n\n")
    assert error_of(*command, code=3) == f"dragoman: {target}:3: invalid UTF-8 at byte 1; fix the line"
    target.write_text("".join(f"{line}\n" for line in TARGETS))
    assert error_of("align", "--model", tmp_path / "none", source, target, code=4).startswith("dragoman: ")
