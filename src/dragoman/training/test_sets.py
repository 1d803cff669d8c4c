"""Evaluate a finished model on its test sets: DIR/result.json and DIR/tests. Knows nothing of steps."""

import json
from itertools import chain, count
from pathlib import Path
from typing import Any

from dragoman import bundle, files
from dragoman.data.corpus import CorpusReport, read_pairs
from dragoman.decode.translator import Translator, windows
from dragoman.evaluate.metrics import evaluate, suitable_tokenization
from dragoman.evaluate.paper import languages, tokenized_bleu
from dragoman.model.footprint import parameter_counts
from dragoman.text.normalize import is_lowercase, normalize
from dragoman.training.reports.log import json_values
from dragoman.training.reports.results import RESULT, read_published, read_result
from dragoman.training.run import Run

MADE_BY = ("dragoman", "git_commit", "versions", "seed", "start_from", "machine", "command", "configuration")
TRANSLATIONS = "tests"


def last_tested_step(directory: Path) -> int | None:
    """The step of the last evaluation, or None."""
    result = read_result(directory)
    return None if result is None else result["steps"]


def evaluate_test_sets(run: Run) -> None:
    """Translate every test set with the published model; record the scores and their provenance."""
    translator = Translator(bundle.load_bundle(run.directory), run.device, "float32", engine="plain")
    corpora = run.prepared.corpora
    files.make_directory(run.directory / TRANSLATIONS)
    tests: dict[str, Any] = {}
    for source, target in zip(corpora.test_source, corpora.test_target, strict=True):
        name = _name(source, taken=tests)
        tests[name] = _test(run, translator, name, Path(source), Path(target))
        bleu = tests[name]["bleu"]
        others = f"chrF {tests[name]['chrf']['score']:.1f}, exact {tests[name]['exact_match']:.1f}%"
        run.reporter.note(f"test {name}: BLEU {bleu['score']:.1f} ({bleu['low']:.1f} to {bleu['high']:.1f}), {others}")
    progress, made_by = run.progress, run.made_by
    result = {
        "tests": tests,
        "search": {"beam": run.config.decode.beam, "length_penalty": run.config.decode.length_penalty},
        "weights": json_values(read_published(run.directory) or {}),
        "parameters": sum(parameter_counts(run.config.model).values()),
        "steps": progress.step,
        "target_tokens": progress.tokens,
        "minutes": progress.seconds / 60,
        "pairs": len(run.prepared.train),
        "data_key": run.prepared.train.key,
        **{name: made_by[name] for name in MADE_BY},
    }
    files.write_file(run.directory / RESULT, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def _name(source: str, taken: dict[str, Any]) -> str:
    """`europarl-en-de-test` of data/europarl-en-de/test.en.bz2; numbered where two would be the same."""
    path = Path(source)
    name = "-".join(part for part in (path.absolute().parent.name, path.name.split(".")[0]) if part)
    numbered = (f"{name}-{number}" for number in count(2))
    return next(each for each in chain([name], numbered) if each not in taken)


def _test(run: Run, translator: Translator, name: str, source: Path, target: Path) -> dict[str, Any]:
    text = run.config.text
    report = CorpusReport()
    pairs = list(read_pairs([source], [target], on_bad_line=run.config.data.on_bad_line, report=report))
    for note in report.notes():
        run.reporter.note(f"test {name}: {note}")
    references = [normalize(pair.target, text.normalization) for pair in pairs]  # as translations are
    translations, failed = [], 0
    for translation in translator.stream(
        windows([pair.source for pair in pairs], translator.window_size(run.config.decode))
    ):
        translations.append(translation.text)
        failed += translation.status == "failed"
        run.reporter.working(f"translating {name}, {len(pairs):,} lines", len(translations))
    content = "".join(f"{line}\n" for line in translations)
    files.write_file(run.directory / TRANSLATIONS / f"{name}.txt", content.encode())
    tokenization = suitable_tokenization(references)
    lowercase = is_lowercase(text.normalization)
    scores = evaluate(
        translations, references, tokenize=tokenization, lowercase=lowercase, normalization=text.normalization
    ).to_dict()
    scores["failed"] = failed
    known = languages()
    language = next((part for part in reversed(target.name.split(".")[1:]) if part in known), None)  # de of test.de.bz2
    if tokenization == "13a" and language is not None:
        scores["tokenized_bleu"] = tokenized_bleu(translations, references, language, lowercase=lowercase).to_dict()
    return scores
