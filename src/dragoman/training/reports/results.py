"""What the files of a run say of its result: published.json, result.json, summary.md. Knows nothing of the loop."""

import json
import math
from pathlib import Path
from typing import Any

PUBLISHED = "published.json"  # the score of the directory's weights
RESULT = "result.json"  # scores on the test sets
SUMMARY = "summary.md"
PICTURE = "sample.svg"  # of the summary
NOT_FINITE = -1e300  # how earlier versions wrote a metric that is not finite


def read_published(run: Path) -> dict[str, Any] | None:
    """The content of DIR/published.json, with -inf for a metric that is not finite."""
    path = run / PUBLISHED
    if not path.exists():
        return None
    score = json.loads(path.read_bytes())
    metric = float(score["metric"])
    return {**score, "metric": metric if metric > NOT_FINITE else -math.inf}


def published_score(run: Path) -> tuple[str, float | None]:
    """The kind of the published weights, "valid" for one step or "average", and their score."""
    score = read_published(run)
    # a loss is stored as its negative, to be maximised
    return ("", None) if score is None else (score["kind"], abs(score["metric"]))


def read_result(run: Path) -> dict[str, Any] | None:
    """The content of DIR/result.json, or None."""
    path = run / RESULT
    return json.loads(path.read_bytes()) if path.exists() else None
