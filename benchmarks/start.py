"""From a cold start to the first translation: this program and, with the same weights, CTranslate2 and Hugging Face.

    python -m benchmarks.start [--model en-de] [--repeats 5] [--only NAME ...] [--json]

Every run is a new process that imports what it needs, loads the model and translates one sentence. The systems run in
turns; the best of `--repeats` counts, in seconds that pass and in CPU seconds of the process. Files are in the page
cache and bytecode is cached, as that of installed packages is. A last run of ours is divided into parts.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SENTENCE = "The weather is nice today."
OURS = "dragoman"
PROGRAMS = {
    f"{OURS} translate": "",
    f"{OURS}, Python": """
import dragoman
print(dragoman.load({model!r}, "cpu").translate({sentence!r}).text)
""",
    "CTranslate2": """
import ctranslate2, sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_file={ctranslate2!r} + "/source.spm")
translator = ctranslate2.Translator({ctranslate2!r}, compute_type="int8", intra_threads=2)
tokens = pieces.encode({sentence!r}, out_type=str)
print(pieces.decode(translator.translate_batch([tokens], beam_size=4)[0].hypotheses[0]))
""",
    "Hugging Face": """
from transformers import MarianMTModel, MarianTokenizer
tokenizer, model = MarianTokenizer.from_pretrained({huggingface!r}), MarianMTModel.from_pretrained({huggingface!r})
found = model.generate(**tokenizer([{sentence!r}], return_tensors="pt"), num_beams=4, max_new_tokens=50)
print(tokenizer.decode(found[0], skip_special_tokens=True))
""",
}
PARTS = """
import sys, time
laps = {{}}
def lap(name, start=[time.process_time()]):
    laps[name], start[0] = time.process_time() - start[0], time.process_time()
import numpy; lap("import NumPy")
import dragoman.decode.translator; lap("import dragoman")
import onnx, onnxruntime; lap("import ONNX Runtime")
translator = dragoman.load({model!r}, "cpu"); lap("load the model")
translator.translate("a"); lap("first translation, with graphs")
translator.translate({sentence!r}); lap("second translation")
assert "torch" not in sys.modules
import json; print(json.dumps(laps))
"""


def run(arguments: list[str]) -> tuple[str, float, float]:
    """The output of a process, the seconds it took and its CPU seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout.strip().split("\n")[-1], seconds, spent


def export(model: str, to: str, parent: str) -> str:
    folder = str(Path(parent) / to)
    words = ("export", "--model", model, "--to", to, "--no-check", folder)
    subprocess.run([sys.executable, "-m", "dragoman", *words], check=True, stdout=subprocess.DEVNULL)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, Python would compile this package at every start
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as parent:
        values = {"model": arguments.model, "sentence": SENTENCE}
        values |= {to: export(arguments.model, to, parent) for to in ("ctranslate2", "huggingface")}
        programs = {name: [sys.executable, "-c", PROGRAMS[name].format(**values)] for name in arguments.only}
        if f"{OURS} translate" in programs:
            words = ["-m", "dragoman", "translate", "--device", "cpu", "--model", arguments.model, SENTENCE]
            programs[f"{OURS} translate"] = [sys.executable, *words]
        for _ in range(arguments.repeats):
            for name, program in programs.items():
                output, seconds, spent = run(program)
                row = results.setdefault(name, {"seconds": seconds, "cpu_seconds": spent})
                row |= {"seconds": min(row["seconds"], seconds), "cpu_seconds": min(row["cpu_seconds"], spent)}
                row["output"] = output
        parts = json.loads(run([sys.executable, "-c", PARTS.format(**values)])[0])
    for name, row in results.items():
        print(f"{name:20} {row['seconds']:.2f} s, {row['cpu_seconds']:.2f} CPU seconds: {row['output']}")
    print("CPU seconds of ours: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items()))
    ours = results.get(f"{OURS}, Python", {}).get("seconds", 0.0)
    ratios = {name: row["seconds"] / ours for name, row in results.items() if ours and not name.startswith(OURS)}
    for name, ratio in ratios.items():
        print(f"{name} / {OURS}, seconds to the first translation: {ratio:.2f}")
    if arguments.json:
        from dragoman.training.reports.provenance import source_commit

        print(json.dumps({"results": results, "parts": parts, "ratios": ratios, "git_commit": source_commit()}))


if __name__ == "__main__":
    main()
