"""`dragoman evaluate`: BLEU, chrF and TER with the signatures that make them reproducible, and their breakdown."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import (
    DEFAULT_MODEL,
    Device,
    Engine,
    Json,
    SearchPrecision,
    Shortlist,
    Split,
    TargetLanguage,
    Threads,
)
from dragoman.cli.streams import opened
from dragoman.config import LANGUAGE_MODEL, TRANSCRIPTION, TRANSLATION
from dragoman.errors import ConfigError, DataError, DiskError, ModelError
from dragoman.evaluate.paper import DEFAULT_LANGUAGE, languages

if TYPE_CHECKING:
    from dragoman.evaluate.breakdown import LengthBucket, SentenceScore
    from dragoman.evaluate.metrics import Evaluation, Score
    from dragoman.evaluate.significance import Comparison
    from dragoman.text.normalize import Normalization

JSON_LINES = (".jsonl", ".ndjson")
LABELS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


def command(
    reference: Annotated[
        Path, typer.Option(help="The right translations or labels, one per line; with a forecaster, a series.")
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", metavar="DIR", help=f"Translate --source with this.  \\[default: {DEFAULT_MODEL}]"
        ),
    ] = None,
    source: Annotated[Path | None, typer.Option(help="What to translate, or what --hypotheses translate.")] = None,
    hypotheses: Annotated[Path | None, typer.Option(help="Existing translations, instead of a model.")] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Another system's translations, to compare with; repeatable."),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="1 is greedy; the model's own unless given.")] = None,
    split: Split = None,
    target_language: TargetLanguage = None,
    shortlist: Shortlist = None,
    tokenize: Annotated[
        str, typer.Option(help="BLEU's tokenisation: 13a; char or zh for languages without spaces.")
    ] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case on both sides.")] = False,
    paper: Annotated[bool, typer.Option("--paper", help="Also compute BLEU as papers of 2017 did.")] = False,
    language: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="For --paper: the translations' language.  \\[default: the model's]"),
    ] = None,
    comet: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="Also compute COMET with this checkpoint, if installed."),
    ] = None,
    rouge: Annotated[
        bool, typer.Option("--rouge", help="Also compute ROUGE, for summaries, if rouge-score is installed.")
    ] = False,
    worst: Annotated[int, typer.Option(min=0, help="Show this many sentences, the worst first.")] = 0,
    sentences: Annotated[
        Path | None, typer.Option(help="Write every sentence's scores: tab-separated, or JSON lines (.jsonl).")
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With a classifier: draw its confusion matrix, SVG or PNG.")
    ] = None,
    device: Device = "auto",
    precision: SearchPrecision = "auto",
    engine: Engine = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Score translations against references; with a classifier, labels; with a transcriber, texts of vectors.

    With a forecaster, --reference is a series: every window of it is forecast and compared with what followed.
    """
    given = {"beam": beam, "split": split, "target_language": target_language, "shortlist": shortlist}
    search = {name: value for name, value in given.items() if value is not None}
    if model is None and hypotheses is None:
        model = DEFAULT_MODEL
    if hypotheses is not None:
        _check_hypotheses(model, search)
    if language is not None and not paper:
        raise ConfigError("--language: chooses the tokenisation of --paper; add --paper or leave it out")
    if comet is not None and source is None:
        raise ConfigError("--comet: reads the source too; give --source")
    paths = [path for path in (reference, source, hypotheses, *(against or [])) if path is not None]
    _check_place(sentences, paths)
    paper_language = (language or _language_of(model)) if paper else None
    every_sentence = worst > 0 or sentences is not None
    wanted = _Wanted(
        tokenize, lowercase, paper_language, comet, rouge, worst, every_sentence, device, precision, engine
    )
    wanted.check()
    task = TRANSLATION if model is None else _task_of(model)
    if model is not None and task != TRANSLATION:
        from dragoman.bundle import NAMES
        from dragoman.cli.evaluate_tasks import evaluate_task

        others = {"against": against, "paper": paper, "comet": comet, "rouge": rouge, "worst": worst,
                  "sentences": sentences, "lowercase": lowercase, "hypotheses": hypotheses}  # fmt: skip
        unfit = [*(name for name in search if name != "beam" or task != TRANSCRIPTION),
                 *(name for name, value in others.items() if value)]  # fmt: skip
        if unfit:
            option = unfit[0].replace("_", "-")
            raise ConfigError(f"--{option}: is for translation, and {model} is {NAMES[task]}; leave it out")
        evaluate_task(
            task, model, source, reference, confusion=confusion, beam=beam, device=device,
            precision="float32" if precision == "auto" else precision, threads=threads, as_json=as_json,
        )  # fmt: skip
        return
    if model is not None and source is None:
        raise ConfigError(f"--source: missing; give what {model} is to translate, or translations with --hypotheses")
    if confusion is not None:
        raise ConfigError("--confusion: draws the labels of a classifier; give its --model, or leave it out")

    texts = _read(reference, source, hypotheses, against or [])
    if model is not None:
        texts.translate(model, search, wanted, threads)
    report = _evaluate(texts, wanted)
    with opened(None) as stream:
        stream.write(report.to_json(texts, wanted) if as_json else report.to_text())
    for note in report.notes:
        print(f"evaluate: {note}", file=sys.stderr)
    if sentences is not None:  # last: if it fails, the printed results are not lost
        _write_sentences(report.sentences, sentences)
    if texts.failed:
        print(f"evaluate: {texts.failed} lines failed and count as empty", file=sys.stderr)
        sys.exit(1)


@dataclass(frozen=True)
class _Wanted:
    """What to compute, and how."""

    tokenize: str
    lowercase: bool
    paper_language: str | None
    comet: str | None
    rouge: bool
    worst: int
    sentences: bool  # scores of each sentence
    device: str
    precision: str
    engine: str

    def settings(self) -> dict[str, Any]:
        """The settings that determine the scores of given translations, and where they are computed."""
        names = ("tokenize", "lowercase", "paper_language", "comet", "rouge", "device", "precision", "engine")
        return {name: getattr(self, name) for name in names}

    def check(self) -> None:
        """Detect what is missing before anything is translated, as far as possible."""
        from dragoman.evaluate import comet, paper, rouge
        from dragoman.evaluate.metrics import bleu_metric

        bleu_metric(self.tokenize)
        if self.paper_language is not None:
            paper.check_language(self.paper_language)
        if self.comet is not None:
            comet.check_installed()
        if self.rouge:
            rouge.check_installed()


@dataclass
class _Texts:
    """Lines that belong together, and what is known about the model that translated them."""

    references: list[str]
    sources: list[str] | None
    hypotheses: list[str]
    against: dict[str, list[str]]
    failed: int = 0
    normalization: "Normalization" = "nfc"  # the model's
    made_by: dict[str, Any] = field(default_factory=dict)  # the model that translated, and how
    decode: dict[str, Any] = field(default_factory=dict)  # every setting of its search

    def translate(self, model: Path, search: dict[str, Any], wanted: _Wanted, threads: int | None) -> None:
        import dragoman
        from dragoman.bundle import WEIGHTS, resolve_model
        from dragoman.cli.progress import counting
        from dragoman.data.corpus import file_hash
        from dragoman.decode.translator import windows

        sources = self.sources or []
        translator = dragoman.load(model, wanted.device, wanted.precision, threads, wanted.engine)
        interrupts.check()
        self.normalization = translator.config.text.normalization
        options = translator.options(**search)
        self.decode = asdict(options)
        self.made_by = {
            "model": str(model),
            "sha256": file_hash(resolve_model(model) / WEIGHTS),
            "precision": translator.choice_for(options).precision,
            "engine": translator.choice_for(options).engine,
            "beam": options.beam,
            "length_penalty": options.length_penalty,
            "split": options.split,
        }
        with counting("translating", len(sources), show=True) as advance:
            for result in translator.stream(windows(sources, translator.window_size(options)), options=options):
                self.hypotheses.append(result.text)
                self.failed += result.status == "failed"
                advance(1)

    def cautions(self, lowercase: bool) -> list[str]:
        from dragoman.text.normalize import is_lowercase

        if lowercase or not is_lowercase(self.normalization) or all(line == line.lower() for line in self.references):
            return []
        return ["the model writes lower case only and the references have capitals; --lowercase compares without them"]


@dataclass
class _Report:
    """All results, and how to show them."""

    scores: "Evaluation"
    by_length: "list[LengthBucket]"
    notes: list[str]
    tokenized: "Score | None" = None
    paper: "Score | None" = None
    comet: "Score | None" = None
    rouge: "dict[str, Score]" = field(default_factory=dict)
    against: "dict[str, dict[str, Comparison]]" = field(default_factory=dict)
    sentences: "list[SentenceScore]" = field(default_factory=list)  # all, the worst first
    worst: "list[SentenceScore]" = field(default_factory=list)  # as many as requested, without exact matches

    def to_json(self, texts: _Texts, wanted: _Wanted) -> str:
        record: dict[str, Any] = {**self.scores.to_dict(), "failed": texts.failed}
        more = {"tokenized_bleu": self.tokenized, "paper_bleu": self.paper, "comet": self.comet}
        more |= self.rouge
        record |= {name: score.to_dict() for name, score in more.items() if score is not None}
        if self.against:
            record["against"] = [
                {"file": file, **{name: comparison.to_dict() for name, comparison in compared.items()}}
                for file, compared in self.against.items()
            ]
        record["by_length"] = [bucket.to_dict() for bucket in self.by_length]
        record["worst"] = [sentence.to_dict() for sentence in self.worst]
        record["notes"] = self.notes
        if texts.made_by:
            from dragoman.training.reports.provenance import source_commit

            record["made_by"] = texts.made_by
            record["git_commit"] = source_commit()
            record["configuration"] = {**wanted.settings(), "decode": texts.decode}
        return json.dumps(record, ensure_ascii=False) + "\n"

    def to_text(self) -> str:
        lines = [*self._score_lines(), *self._against_lines(), *self._length_lines(), *self._worst_lines()]
        return "".join(f"{line}\n" for line in lines)

    def _score_lines(self) -> Iterator[str]:
        for name, label in LABELS.items():
            score: Score = getattr(self.scores, name)
            yield f"{label:<5} {score.score:6.2f}  [{score.low:.2f}, {score.high:.2f}]  {score.signature}"
        if self.comet is not None:
            score = self.comet
            yield f"COMET {score.score:6.4f}  [{score.low:.4f}, {score.high:.4f}]  {score.signature}"
        for name, score in self.rouge.items():
            yield f"{ROUGE[name]} {score.score:5.2f}  [{score.low:.2f}, {score.high:.2f}]  {score.signature}"
        count = self.scores.sentences
        yield f"exact {self.scores.exact_match:5.1f}%  of {count:,} sentence{'' if count == 1 else 's'}"
        if self.tokenized is not None and self.paper is not None:
            from dragoman.evaluate.paper import EXPLANATION

            yield ""
            for label, score in (("tokenised BLEU  ", self.tokenized), ("paper-style BLEU", self.paper)):
                yield f"{label} {score.score:.2f}  [{score.low:.2f}, {score.high:.2f}]  {score.signature}"
            yield f"  {self.paper.score - self.scores.bleu.score:+.2f} beside BLEU: {EXPLANATION}"

    def _against_lines(self) -> Iterator[str]:
        for file, compared in self.against.items():
            yield ""
            yield f"against {file}, by paired approximate randomisation"
            for name, one in compared.items():
                yield (
                    f"{LABELS[name]:<5} {one.score:6.2f}  theirs {one.other:6.2f}  difference {one.difference:+6.2f}  "
                    f"p = {one.p_value:.4f}  {one.verdict}"
                )

    def _length_lines(self) -> Iterator[str]:
        if len(self.by_length) < 2:
            return  # a single bucket repeats the scores above
        yield ""
        yield f"{self.by_length[0].side + ' tokens':<16}  sentences    BLEU    chrF  length ratio"
        for bucket in self.by_length:
            span = f"{bucket.shortest}-{bucket.longest}" if bucket.longest is not None else f"{bucket.shortest}-"
            ratio = "" if bucket.length_ratio is None else f"{bucket.length_ratio:.2f}"
            yield f"{span:<16}  {bucket.count:>9,}  {bucket.bleu:6.2f}  {bucket.chrf:6.2f}  {ratio:>12}"

    def _worst_lines(self) -> Iterator[str]:
        for sentence in self.worst:
            yield ""
            yield f"line {sentence.line}: chrF {sentence.chrf:.2f}, BLEU {sentence.bleu:.2f}"
            if sentence.source is not None:
                yield f"  source      {sentence.source}"
            yield f"  hypothesis  {sentence.hypothesis}"
            yield f"  reference   {sentence.reference}"


def _evaluate(texts: _Texts, wanted: _Wanted) -> _Report:
    from dragoman.cli.progress import counting
    from dragoman.evaluate.breakdown import by_length, sentence_scores
    from dragoman.evaluate.metrics import blank_cautions, bleu_cautions, evaluate
    from dragoman.evaluate.paper import paper_bleu, tokenized_bleu
    from dragoman.evaluate.significance import compare

    mine, theirs = texts.hypotheses, texts.references
    tokenize, lowercase, normalization = wanted.tokenize, wanted.lowercase, texts.normalization
    blank = blank_cautions(mine, theirs)
    steps = len(LABELS) * (2 if texts.against else 1) + (wanted.paper_language is not None) + 1
    with counting("scoring", steps, show=True) as advance:
        report = _Report(
            scores=evaluate(
                mine, theirs, tokenize=tokenize, lowercase=lowercase, normalization=normalization, advance=advance
            ),
            by_length=by_length(mine, theirs, texts.sources, tokenize=tokenize, lowercase=lowercase),
            notes=[*blank, *bleu_cautions(theirs, tokenize), *texts.cautions(lowercase)],
        )
        advance(1)
        if wanted.paper_language is not None:
            report.tokenized = tokenized_bleu(mine, theirs, wanted.paper_language, lowercase=lowercase)
            report.paper = paper_bleu(mine, theirs, wanted.paper_language, lowercase=lowercase)
            advance(1)
        if texts.against:
            compared = compare(
                mine, list(texts.against.values()), theirs, tokenize=tokenize, lowercase=lowercase, advance=advance
            )
            report.against = dict(zip(texts.against, compared, strict=True))
    if wanted.sentences:
        report.sentences = sentence_scores(
            mine, theirs, texts.sources, tokenize=tokenize, lowercase=lowercase, normalization=normalization
        )
        report.worst = [one for one in report.sentences if not one.right][: wanted.worst]
    if wanted.rouge:
        from dragoman.evaluate.rouge import rouge

        report.rouge = rouge(mine, theirs)
    if wanted.comet is not None and texts.sources is not None:
        from dragoman.evaluate.comet import comet_score

        report.comet = comet_score(
            wanted.comet, texts.sources, mine, theirs, device=wanted.device, show_progress=sys.stderr.isatty()
        )
    return report


def _write_sentences(scores: "list[SentenceScore]", path: Path) -> None:
    from dragoman.data.corpus import OPENERS
    from dragoman.evaluate.breakdown import COLUMNS

    form = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    with opened(path) as stream:
        if form.suffix.lower() in JSON_LINES:
            stream.writelines(f"{one.to_json()}\n" for one in scores)
        else:
            stream.write("\t".join(COLUMNS) + "\n")
            stream.writelines(f"{one.to_tsv()}\n" for one in scores)


def _check_hypotheses(model: Path | None, search: dict[str, Any]) -> None:
    """Finished translations need neither a model nor a search."""
    if model is not None:
        raise ConfigError("--model: give either --model and --source, or --hypotheses")
    if search:
        raise ConfigError(f"--hypotheses: are already translations; leave out --{next(iter(search))}")


def _language_of(model: Path | None) -> str:
    """The language that a model translates into, if that is known and Moses has rules for it."""
    from dragoman.bundle import languages_of, load_config, resolve_model

    _, target = ("", "") if model is None else languages_of(load_config(resolve_model(model)).data)
    return target if target in languages() else DEFAULT_LANGUAGE


def _task_of(model: Path) -> str:
    """The task of a model, if it can be evaluated here."""
    from dragoman.bundle import load_config, resolve_model

    task = load_config(resolve_model(model)).task
    if task == LANGUAGE_MODEL:
        raise ModelError(f"{model}: is a language model; use `dragoman score --model {model} FILE`")
    return task


def _check_place(sentences: Path | None, inputs: list[Path]) -> None:
    if sentences is None:
        return
    if sentences.is_dir():
        raise DiskError(f"--sentences {sentences}: is a directory; name a file")
    if not sentences.absolute().parent.is_dir():
        raise DiskError(f"--sentences {sentences}: its directory does not exist; make it or choose another place")
    if sentences.exists() and any(path.exists() and path.samefile(sentences) for path in inputs):
        raise ConfigError(f"--sentences {sentences}: is read too; give another file")


def _read(reference: Path, source: Path | None, hypotheses: Path | None, against: list[Path]) -> _Texts:
    references = _lines(reference)
    if not references:
        raise DataError(f"{reference}: empty; it needs one right translation per line")

    def beside(path: Path) -> list[str]:
        lines = _lines(path)
        if len(lines) != len(references):
            raise DataError(
                f"{path}: {len(lines)} lines, {reference}: {len(references)}; each line needs one reference"
            )
        return lines

    return _Texts(
        references,
        None if source is None else beside(source),
        [] if hypotheses is None else beside(hypotheses),
        {str(path): beside(path) for path in against},
    )


def _lines(path: Path) -> list[str]:
    from dragoman.data.corpus import read_lines, valid_line

    return [valid_line(line, path).text for line in read_lines(path)]
