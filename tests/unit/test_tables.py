"""The tables of the documentation match results/."""

import copy
import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.bundle import bundled_models

ROOT = Path(__file__).parents[2]
SCORE = {"score": 41.234, "low": 40.0, "high": 42.5, "signature": "nrefs:1|tok:13a"}
RESULT: dict[str, Any] = {
    "tests": {"multi30k-test": {"bleu": SCORE, "chrf": {**SCORE, "score": 60.0}, "ter": SCORE, "exact_match": 12.5,
                                "sentences": 1_000, "tokenized_bleu": {**SCORE, "score": 42.0}}},
    "parameters": 2_600_000, "steps": 12_000, "target_tokens": 49_000_000, "minutes": 3.21, "pairs": 29_000,
    "data_key": "0123456789abcdef0123", "seed": 1, "git_commit": "f" * 40,
    "machine": {"device": "NVIDIA H200", "threads": 16},
    "command": ["/bin/dragoman", "train", "recipes/some.toml", "--data", "far/away", "--set", "model.norm=pre",
                "--out", "runs/x"],
}  # fmt: skip


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with results of one recipe and of two rows."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "ablations").mkdir()
    for name in ("some", "ablations/pre-norm", "ablations/A-heads-16", "ablations/A-heads-2", "ablations/base",
                 "ablations/base.seed-2"):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(RESULT))
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_table_matches_the_results(tables: Any) -> None:
    page = "before\n\n<!-- table scores some -->\nold\n<!-- end -->\n\n<!-- table origins -->\n<!-- end -->\nafter\n"
    new = tables.filled(page)
    row = "| `some` | multi30k-test | 1,000 | 41.23 [40.00, 42.50] | 42.00 | 60.00 [40.00, 42.50] | 12.5% |\n"
    assert f"{row}\n<!-- end -->" in new
    command, data = "dragoman train recipes/some.toml --set model.norm=pre", "29,000 | `0123456789abcdef`"
    assert (
        f"| `some` | `{command}` | 2.6M | {data} | 1 | 12,000 | 49.0M | 3.2 | NVIDIA H200 | `ffffffffffff` |\n" in new
    )
    assert new.startswith("before\n")
    assert new.endswith("after\n")
    assert "old" not in new
    assert tables.filled(new) == new


def test_ablation_rows_have_their_commands_and_start_with_the_base(tables: Any) -> None:
    lines = tables.filled("<!-- table ablations -->\n<!-- end -->").splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| `")] == [
        "`base`", "`base`", "`A-heads-2`", "`A-heads-16`", "`pre-norm`",
    ]  # fmt: skip
    assert "| `dragoman train recipes/some.toml --set model.norm=pre` |" in lines[4]


def test_tried_variants_are_listed_with_their_recipe(tables: Any) -> None:
    (tables.RESULTS / "tried").mkdir()
    tried = {**RESULT, "weights": {"judge": "bleu on 1000 of 0123", "metric": 40.126}}
    for name in ("some", "tried/some.other", "tried/some.third", "tried/else.other"):
        (tables.RESULTS / f"{name}.json").write_text(json.dumps(tried))
    new = tables.filled("<!-- table tried some -->\n<!-- end -->")
    row = (
        "| 12,000 | 49.0M | 3.2 | bleu 40.13 | multi30k-test | 41.23 [40.00, 42.50] | 42.00 | `0123456789abcdef` | 1 "
        "| `ffffffffffff` |\n"
    )
    assert new.count(row) == 3
    assert tables.judged({"judge": "exact_match in per cent on 1000 of 0123", "metric": 55.6}) == "exact_match 55.6%"
    assert tables.filled("<!-- table scores -->\n<!-- end -->").count("| `some` |") == 1


def test_each_bundled_model_has_its_own_table(tables: Any) -> None:
    (tables.RESULTS / "bundled").mkdir()
    found = {**RESULT["tests"]["multi30k-test"], "paper_bleu": {**SCORE, "signature": "compounds:split"}}
    for name, sentences in (("one.news", 1_000), ("other.news", 2)):
        (tables.RESULTS / "bundled" / f"{name}.json").write_text(json.dumps({**found, "sentences": sentences}))
    new = tables.filled("<!-- table bundled one -->\n<!-- end -->")
    score = "41.23 [40.00, 42.50]"
    assert f"| news | 1,000 | {score} | 60.00 [40.00, 42.50] | {score} | 42.00 [40.00, 42.50] | {score} |\n" in new
    assert "\n- paper-style BLEU: `compounds:split`\n" in new
    assert "| 2 |" not in new
    assert "news" not in tables.filled("<!-- table scores -->\n<!-- end -->")


def test_race_table_has_a_row_per_validation(tables: Any) -> None:
    (tables.RESULTS / "races").mkdir()
    curves = {name: [{"minutes": 0.357, "steps": 1_630, "bleu": 40.126}] for name in ("peer", "ours")}
    race = {"curves": curves, "ratios": {"time to BLEU 40.1": 1.749}}
    (tables.RESULTS / "races" / "some.json").write_text(json.dumps(race))
    new = tables.filled("<!-- table races some -->\n<!-- end -->")
    assert "| peer: minutes | peer: steps | peer: BLEU | ours: minutes | ours: steps | ours: BLEU |\n" in new
    points = "| 0.36 | 1,630 | 40.13 | 0.36 | 1,630 | 40.13 |\n"
    assert f"{points}\n- time to BLEU 40.1: 1.75 times as fast, measured at validations\n" in new


def test_missing_results_are_shown_as_not_measured(tables: Any) -> None:
    page = "<!-- table scores en-th -->\n<!-- end -->"
    assert tables.filled(page) == "<!-- table scores en-th -->\n\nNot measured yet.\n\n<!-- end -->"
    assert "\n\nNot measured yet: en-th.\n" in tables.filled("<!-- table scores some en-th -->\n<!-- end -->")


def test_table_of_an_unknown_recipe_or_without_an_end_is_refused(tables: Any) -> None:
    with pytest.raises(SystemExit, match=r"^<!-- table scores en-tt -->: there is no recipe en-tt$"):
        tables.filled("<!-- table scores en-tt -->\n<!-- end -->")
    for page in ("<!-- table scores -->\nprose\n<!-- table origins -->\n<!-- end -->", "<!-- table scores! -->\n"):
        with pytest.raises(SystemExit, match=r"a table has no <!-- end -->"):
            tables.filled(page)


def test_each_signature_is_listed_once(tables: Any) -> None:
    (tables.RESULTS / "more.json").write_text(json.dumps(copy.deepcopy(RESULT)))
    assert tables.filled("<!-- table signatures -->\n<!-- end -->").count("nrefs:1|tok:13a") == 3


def test_unknown_table_is_named(tables: Any) -> None:
    with pytest.raises(SystemExit, match=r"<!-- table scorse some -->: there is no such table; known: scores, "):
        tables.filled("<!-- table scorse some -->\n<!-- end -->")


def test_outdated_page_is_detected(tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table scores some -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "PAGES", tmp_path)
    monkeypatch.setattr(tables, "CARDS", tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    with pytest.raises(SystemExit, match=rf"^not what results/ says: {page}; run python docs/tables.py$"):
        tables.main()
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    tables.main()
    assert "41.23 [40.00, 42.50]" in page.read_text()
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        tables.main()
    assert ended.value.code == 0


def test_the_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "tables.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_model_scores_are_of_the_bundled_weights(name: str) -> None:
    weights = ROOT / "src" / "dragoman" / "models" / name / "weights.safetensors"
    measured = list((ROOT / "results" / "bundled").glob(f"{name}.*.json"))
    assert len(measured) == 3
    for path in measured:
        assert f"moses:{name.partition('-')[2]}|" in json.loads(path.read_text())["tokenized_bleu"]["signature"]
        assert json.loads(path.read_text())["made_by"]["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_readme_has_the_scores_of_the_bundled_models() -> None:
    rows = (
        f"| `{model}` | " + " | ".join(f"{_bleu(model, test):.1f}" for test in ("europarl", "tatoeba", "newstest2014"))
        for model in bundled_models()
    )
    assert all(row in _readme() for row in rows)


def _bleu(model: str, test: str) -> float:
    path = ROOT / "results" / "bundled" / f"{model}.{test}-en-de-test.json"
    return float(json.loads(path.read_text())["bleu"]["score"])


def test_readme_has_the_scores_of_the_recipes() -> None:
    captions, sounds = (
        next(iter(json.loads((ROOT / "results" / f"{name}.json").read_text())["tests"].values()))
        for name in ("multi30k-en-de", "g2p-en")
    )
    assert f"lower-cased BLEU {captions['tokenized_bleu']['score']:.1f} on test2016" in _readme()
    assert f"spelling to sounds: {100 - sounds['exact_match']:.1f} % of words wrong" in _readme()


def _readme() -> str:
    return " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
