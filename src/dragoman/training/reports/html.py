"""The report of a run as one self-contained HTML file without scripts: curves, samples, attention over time.

Reads the files of the run; knows nothing of the loop.
"""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import bundle, files, pictures
from dragoman.errors import ModelError
from dragoman.static_page import document, section, table
from dragoman.tasks.choice import task_of
from dragoman.tasks.task import Task
from dragoman.training.checkpoint import PROVENANCE
from dragoman.training.reports.attention import AttentionSnapshot, read_snapshots
from dragoman.training.reports.curves import METRICS, best_of, curves
from dragoman.training.reports.log import read_log
from dragoman.training.reports.results import PICTURE, SUMMARY, read_result

PAGE = "report.html"
MAX_SAMPLES = 12  # translations of one sentence over time
MAX_SNAPSHOTS = 12
GRID_COLUMNS = 4

Record = Mapping[str, Any]


def write_html_report(run: Path, out: Path | None = None) -> Path:
    """Write DIR/report.html, or `out`."""
    records = read_log(run)
    if not records:
        if (run / PROVENANCE).exists():
            raise ModelError(f"{run}: no step of this run is logged yet; try again later")
        raise ModelError(f"{run}: no log of a run here; give the --out of a training run")
    config = bundle.load_config(run)
    parts = [
        *_facts(run, records),
        *_tests(run, task_of(config)),
        *section("Curves", curves(records, config.train.label_smoothing, task_of(config).predicted, speed=True)),
        *_samples([record for record in records if record["kind"] == "valid"]),
        *_attention(run, read_snapshots(run, max(record["step"] for record in records))),
        *section("Data", _data(run)),
        *section("Every setting", f"<pre>{html.escape((run / bundle.CONFIG).read_text(encoding='utf-8'))}</pre>"),
    ]
    out = out or run / PAGE
    files.write_file(out, document(f"How the run {run.resolve().name} went", parts).encode())
    return out


def _facts(run: Path, records: Sequence[Record]) -> Iterator[str]:
    """The best and the last validation by every metric, and the average of checkpoints if there is one."""
    valid = [record for record in records if record["kind"] == "valid"]
    average = [record for record in records if record["kind"] == "average"][-1:]
    rows = []
    for name, label in METRICS.items():
        best = best_of(valid, name)
        if best is not None:
            others = [f"{float(one[name]):.4g}" for one in (valid[-1], *average)]
            rows.append((label, f"{best[name]:.4g}", f"{best['step']:,}", *others))
    headings = ("measure", "best", "at step", "last", *["average of checkpoints"][: len(average)])
    if rows:
        yield from section("Validation", table(headings, rows))
    if (run / SUMMARY).exists():
        yield f"<p>In words, with more samples: {html.escape(str(run / SUMMARY))}.</p>"


def _tests(run: Path, task: Task) -> Iterator[str]:
    result = read_result(run)
    if result is None:
        return
    headings, rows = task.test_table(result["tests"])
    search = f"Beam {result['search']['beam']}, after" if "search" in result else "After"
    yield from section("Test sets", table(headings, rows) + f"<p>{search} {result['steps']:,} steps.</p>")


def _samples(valid: Sequence[Record]) -> Iterator[str]:
    if not valid:
        return
    samples = [(record["step"], *list(record["sample"].values())[:2]) for record in valid]
    (_, given, _), output = samples[-1], list(valid[-1]["sample"])[1]
    rows = [(f"{step:,}", said) for step, source, said in _spread([s for s in samples if s[1] == given], MAX_SAMPLES)]
    told = f"<p>The first of the validation set: <q>{html.escape(given)}</q></p>" if given else ""
    yield from section(f"One {output} over time", told + table(("step", output), rows))


def _attention(run: Path, snapshots: Sequence[AttentionSnapshot]) -> Iterator[str]:
    """As it formed, or what the summary shows of it."""
    snapshots = [snapshot for snapshot in snapshots if snapshot.weights.shape == snapshots[-1].weights.shape]
    if not snapshots:
        if (run / PICTURE).exists():
            yield from section("An example of the validation set", (run / PICTURE).read_text(encoding="utf-8"))
        return
    # the layer with the sharpest attention at the end
    layer = int(snapshots[-1].weights[:, :, :-1].max(axis=2, initial=0.0).mean(axis=1).argmax())
    chosen = _spread(snapshots, MAX_SNAPSHOTS)
    rows = -(-len(chosen) // GRID_COLUMNS)
    columns = min(GRID_COLUMNS, len(chosen))
    blank = np.full_like(chosen[0].weights[layer], np.nan)
    tiles = [snapshot.weights[layer] for snapshot in chosen] + [blank] * (rows * columns - len(chosen))
    names = [f"step {snapshot.step:,}" for snapshot in chosen] + [""] * (rows * columns - len(chosen))
    grid = pictures.svg_grid(
        np.stack(tiles).reshape(rows, columns, *blank.shape),
        [names[row * columns : (row + 1) * columns] for row in range(rows)],
        title="Cross-attention as it formed",
        caption=f"one validation pair, its translation forced; layer {layer + 1}, mean over heads",
    )
    last = pictures.svg_heatmap(
        snapshots[-1].weights[layer],
        snapshots[-1].tokens,
        snapshots[-1].source_tokens,
        title=f"The same at step {snapshots[-1].step:,}",
        caption="rows: target; columns: source",
    )
    yield from section("Attention over time", grid + last)


def _data(run: Path) -> str:
    if not (run / PROVENANCE).exists():
        return ""
    start = json.loads((run / PROVENANCE).read_bytes())["starts"][-1]
    rows = [
        (side.replace("_", " "), name, digest)
        for side, found in start["data"].items()
        for name, digest in found.items()
    ]
    machine = start["machine"]
    made = (
        f"<p>dragoman {html.escape(start['dragoman'])}, commit {html.escape(str(start['git_commit']))}, "
        f"seed {start['seed']}, on {html.escape(machine['device'])}.</p>"
    )
    return table(("side", "file", "SHA-256"), rows) + made


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]
