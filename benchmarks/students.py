"""Size, quality and speed of the students that recipes/students.py made, beside CTranslate2 with the same weights.

    python -m benchmarks.students DIR --input FILE [--lines 192] [--threads 2] [--test newstest2014-en-de/test]
        [--out FOLDER] [--json]

DIR is the folder of the recipe: its scores.json has size and BLEU. Speed is measured here as in decode_cpu.py: lines
spread over the input, batches of 64, int8, with beam 4 and greedy. `--out` gets size.svg and speed.svg.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.decode_cpu import PEER, measure_text, processor_times, stolen_share
from benchmarks.decoding import OURS
from dragoman.files import make_directory
from dragoman.pictures import svg_plot

BEAMS = (4, 1)


def measure_student(model: Path, record: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What the recipe recorded of a student, and its speeds in sentences per second."""
    own = argparse.Namespace(
        model=str(model), input=options.input, lines=options.lines, batch=[64], beam=BEAMS, precision=["int8"],
        threads=options.threads, repeats=options.repeats, shortlist=False,
    )  # fmt: skip
    rows = measure_text(own)
    found = {beam: rows[f"int8, beam {beam}, batch 64"] for beam in BEAMS}
    return {
        **record,
        "sentences_per_second": {str(beam): row.speeds[OURS] for beam, row in found.items()},
        "ratio": {str(beam): row.ratio for beam, row in found.items()},
    }


def pictures(students: dict[str, dict[str, Any]], test: str) -> dict[str, str]:
    """BLEU over size, and over speed: a point for each student."""

    def plot(label: str, title: str, across: list[float]) -> str:
        points = zip(students, across, (own["bleu"][test]["4"] for own in students.values()), strict=True)
        series = {name: [(x, y)] for name, x, y in points}
        return svg_plot(series, title=title, x_label=label, y_label=f"BLEU, {test}, beam 4", log_x=True)

    sizes = [own["bytes"] / 1e6 for own in students.values()]
    speeds = [own["sentences_per_second"]["4"] for own in students.values()]
    return {
        "size.svg": plot("MB in int8", "Quality over size", sizes),
        "speed.svg": plot("sentences per second, beam 4", "Quality over speed", speeds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="of the recipe")
    parser.add_argument("--input", type=Path, required=True, help="text to translate")
    parser.add_argument("--lines", type=int, default=192, help="number of lines, spread over the input")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--test", default="newstest2014-en-de/test", help="the test set of the pictures")
    parser.add_argument("--out", type=Path, help="a folder for the pictures")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scores = json.loads((options.folder / "scores.json").read_bytes())
    before = processor_times()
    students = {name: measure_student(options.folder / "models" / name, own, options) for name, own in scores.items()}
    print(f"\n{'':12}{'MB':>8}{'BLEU':>8}{'greedy':>8}{'sent./s':>10}{'greedy':>8}   as fast as {PEER}")
    for name, own in students.items():
        bleu, speed, ratio = own["bleu"][options.test], own["sentences_per_second"], own["ratio"]
        print(
            f"{name:12}{own['bytes'] / 1e6:8.1f}{bleu['4']:8.1f}{bleu['1']:8.1f}{speed['4']:10.1f}{speed['1']:8.1f}"
            f"   {ratio['4']:.2f} times, greedy {ratio['1']:.2f}"
        )
    if options.out is not None:
        make_directory(options.out)
        for name, picture in pictures(students, options.test).items():
            (options.out / name).write_text(picture, encoding="utf-8")
    stolen = stolen_share(before, processor_times())
    print(f"steal time: {stolen:.1%}")
    if options.json:
        ratios = {f"{name}, beam {beam}": own["ratio"][str(beam)] for name, own in students.items() for beam in BEAMS}
        print(json.dumps({"students": students, "ratios": ratios, "stolen": stolen}))


if __name__ == "__main__":
    main()
