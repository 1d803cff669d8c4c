"""Every recorded result has its commit and configuration, and the programs that write results record them."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks import time_to_quality
from dragoman.training.reports.provenance import source_commit

RESULTS = Path(__file__).parents[2] / "results"
FILES = sorted(RESULTS.rglob("*.json"))
COMMIT = re.compile("[0-9a-f]{40}( with changes)?")


def problems(result: dict[str, Any]) -> list[str]:
    """What is missing or wrong in its provenance; a `note` may give the reason."""
    note = result.get("note", "")
    found = []
    for name in ("git_commit", "configuration"):
        if name not in result:
            found.append(f"{name} is missing")
        elif result[name] is None and f"{name}: not recorded" not in note:
            found.append(f"{name} is null, and no note says why")
    commit, configuration = result.get("git_commit"), result.get("configuration")
    if commit is not None and not COMMIT.fullmatch(commit):
        found.append(f"git_commit is {commit}")
    if not isinstance(configuration, str):  # of a search alone
        return found
    settings = tomllib.loads(configuration)
    if "steps" in result and settings["train"]["max_steps"] < result["steps"]:
        found.append("the configuration has fewer steps")
    if "seed" in result and settings["train"]["seed"] != result["seed"]:
        found.append("the configuration has another seed")
    if "search" in result and any(settings["decode"][name] != value for name, value in result["search"].items()):
        found.append("the configuration has another search")
    return found


def test_results_of_every_kind_exist() -> None:
    kinds = {path.parent.name for path in FILES}
    assert kinds == {"results", "ablations", "bundled", "races", "tasks", "trained", "tried"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_result_records_its_commit_and_configuration(path: Path) -> None:
    assert problems(json.loads(path.read_bytes())) == []


@pytest.mark.parametrize("path", sorted((RESULTS / "bundled").glob("*.json")), ids=lambda path: path.stem)
def test_scores_of_the_bundled_model_name_one_commit(path: Path) -> None:
    """A note is no excuse here: these scores are quoted in README and can be measured again in minutes."""
    assert re.fullmatch("[0-9a-f]{40}", json.loads(path.read_bytes())["git_commit"])


def test_missing_commit_or_configuration_is_reported() -> None:
    whole = json.loads((RESULTS / "copy.json").read_bytes())
    for missing in ("git_commit", "configuration"):
        rest = {name: value for name, value in whole.items() if name != missing}
        assert problems(rest) == [f"{missing} is missing"]
    assert problems({**whole, "git_commit": None}) == ["git_commit is null, and no note says why"]
    assert problems({**whole, "git_commit": "HEAD"}) == ["git_commit is HEAD"]
    assert problems({**whole, "seed": 2}) == ["the configuration has another seed"]


def test_time_to_quality_records_its_commit_and_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = {"minutes": 0.1, "bleu": 1.0, "steps": 1, "target_tokens": 10}
    monkeypatch.setattr(time_to_quality, "race", lambda *_: [point])
    for racer in ("Ours", "Peer"):
        monkeypatch.setattr(time_to_quality, racer, lambda *_: None)
    settings = ("data.generated=copy", "data.generated_size=200", "text.model=word", "train.device=cpu")
    words = ["--recipe", "recipes/copy.toml", *(word for setting in settings for word in ("--set", setting))]
    monkeypatch.setattr(sys, "argv", ["time_to_quality", *words, "--minutes", "0.5", "--validations", "2", "--json"])
    monkeypatch.chdir(RESULTS.parent)
    time_to_quality.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert problems({**result, "git_commit": result["git_commit"] or "0" * 40}) == []
    assert (result["git_commit"], result["minutes"], result["validations"]) == (source_commit(), 0.5, 2)
    configuration = tomllib.loads(result["configuration"])
    assert configuration["train"]["schedule"] == "inverse-sqrt"
    assert configuration["data"]["generated_size"] == 200
