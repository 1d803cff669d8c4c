"""`dragoman translate`: N lines in, N lines out, in order, always."""

import itertools
import json
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from dragoman.cli import interrupts
from dragoman.cli.direction import choose_model
from dragoman.cli.options import (
    Device,
    Engine,
    Json,
    ModelByText,
    SearchPrecision,
    Shortlist,
    Split,
    TargetLanguage,
    Threads,
)
from dragoman.cli.streams import opened, stdin_windows
from dragoman.cli.tally import Tally, is_to_review
from dragoman.cli.translate_document import (
    All,
    Columns,
    DocumentJob,
    Format,
    Fuzzy,
    Keys,
    document_format,
    refuse_for_document,
    require_document,
)
from dragoman.cli.translate_folder import Into, RayAddress, Workers, is_folder, translate_folder
from dragoman.errors import ConfigError, DiskError
from dragoman.files import follow_link, is_stream
from dragoman.progress import Advance, no_progress

if TYPE_CHECKING:
    from dragoman.config import DecodeConfig
    from dragoman.data.corpus import Line
    from dragoman.decode.terms import Glossary
    from dragoman.decode.translation import Translation
    from dragoman.decode.translator import Translator


def command(
    model: ModelByText = None,
    to: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Use the bundled model that translates into it, such as de.")
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Another model that translates together with it; repeatable."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="What to translate; else --input or stdin.")
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="A file of lines, .gz .bz2 .xz too; a document; or a folder of shards."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file instead of stdout; .gz .bz2 .xz too; or a folder.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Hypotheses kept at each step; 1 is greedy.  \\[default: the model's]")
    ] = None,
    n_best: Annotated[int | None, typer.Option(help="Translations per line, separated by tabs.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Alpha: the higher, the longer the translations.  \\[default: the model's]")
    ] = None,
    max_extra: Annotated[int | None, typer.Option(help="Most tokens the output may have beyond the input's.")] = None,
    split: Split = None,
    recase: Annotated[
        bool | None,
        typer.Option(
            "--recase/--no-recase", help="Read text in capitals as it is usually written.  \\[default: recase]"
        ),
    ] = None,
    restore_names: Annotated[
        bool | None,
        typer.Option(
            "--restore-names/--no-restore-names",
            help="Copy names that the model misspells.  \\[default: restore, if the model has `dragoman words`]",
        ),
    ] = None,
    target_language: TargetLanguage = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens instead of beam search.")] = False,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Below 1 sharper, above 1 flatter.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling.")] = None,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Begin the translation of one text so; may end within a word."),
    ] = None,
    glossary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Terms and their translations, TAB between them, one per line.")
    ] = None,
    protect: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help="Kept: placeholders,addresses,tags,code,symbols,quotes,numbers; or none.  \\[default: the first five]",
        ),
    ] = None,
    banned: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="A word that does not appear; repeatable.")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(metavar="N", help="No N tokens occur twice in the same order in a sentence.")
    ] = None,
    min_length: Annotated[int | None, typer.Option(help="Least tokens of a sentence's translation.")] = None,
    shortlist: Shortlist = None,
    diversity_groups: Annotated[
        int | None, typer.Option(metavar="G", help="Divide the beam into groups that avoid each other's tokens.")
    ] = None,
    diversity_penalty: Annotated[
        float | None, typer.Option(help="How much the groups avoid each other.  \\[default: 0.5]")
    ] = None,
    coverage_penalty: Annotated[
        float | None, typer.Option(metavar="BETA", help="Prefer hypotheses that attend to all of the source.")
    ] = None,
    rerank_with: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A model of the other direction that helps to choose.")
    ] = None,
    rerank_weight: Annotated[float | None, typer.Option(help="Of that model, from 0 to 1.  \\[default: 0.5]")] = None,
    mbr: Annotated[
        int | None, typer.Option(metavar="N", help="Choose the sample of N that agrees most with the others, by chrF.")
    ] = None,
    token_scores: Annotated[
        bool, typer.Option("--token-scores", help="With --json: the log-probability of every token.")
    ] = False,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="With --json: how likely each line needs no review, from 0 to 1.")
    ] = False,
    min_confidence: Annotated[float | None, typer.Option(metavar="P", help="Mark lines below it for review.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sentences at a time; 0: what suits the engine.")] = None,
    attention: Annotated[bool, typer.Option("--attention", help="Draw the cross-attention of each line.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print words as soon as they are certain.")] = False,
    device: Device = "auto",
    precision: SearchPrecision = "auto",
    engine: Engine = "auto",
    threads: Threads = None,
    as_json: Json = False,
    format: Format = None,
    keys: Keys = None,
    columns: Columns = None,
    all: All = False,
    fuzzy: Fuzzy = False,
    into: Into = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
) -> None:
    """Translate text given as arguments, a file, a folder of shards, or standard input."""
    output = None if output is None else follow_link(output)
    if text and input:
        raise ConfigError("--input: text was given as arguments too; give one or the other")
    if input and output and output.exists() and input.exists() and input.samefile(output):
        raise ConfigError(f"--output {output}: is the input too; give another {'folder' if input.is_dir() else 'file'}")
    if attention and not as_json and (output or not text):
        raise ConfigError("--attention: draws pictures between the lines; give text as arguments, or use --json")
    if stream and (as_json or attention or prefix or output or n_best):
        raise ConfigError("--stream: prints plain text; leave out --json, --attention, --prefix, --n-best and --output")
    if prefix is not None and len(text or ()) != 1:
        raise ConfigError("--prefix: begins the translation of one text; give exactly one as an argument")
    if mbr and beam is not None:
        raise ConfigError("--mbr: chooses among samples, without a beam; leave out --mbr or --beam")
    if rerank_weight is not None and rerank_with is None:
        raise ConfigError("--rerank-weight: there is no reverse model; give one with --rerank-with, or leave it out")
    if token_scores and not as_json:
        raise ConfigError("--token-scores: are part of the JSON output; add --json")
    if confidence and not as_json:
        raise ConfigError("--confidence: is part of the JSON output; add --json, or use --min-confidence")
    if min_confidence is not None and not 0 <= min_confidence <= 1:
        raise ConfigError(f"--min-confidence: {min_confidence:g} is no probability; give a number from 0 to 1")
    if glossary and sample:
        raise ConfigError("--glossary: not with --sample; leave one of them out")
    document = document_format(input, format)
    about = {"keys": tuple(keys or ()), "columns": tuple(columns or ()), "all": all, "fuzzy": fuzzy}
    if input is None or not input.is_dir():
        require_document(document, input, format, about)
    model = choose_model(model, to, text, input, document, about)
    if document is not None:
        refuse_for_document({"--stream": stream, "--attention": attention, "--n-best": n_best not in (None, 1)})
    settings: dict[str, Any] = {
        "beam": beam, "n_best": n_best, "length_penalty": length_penalty, "max_extra": max_extra, "top_k": top_k,
        "top_p": top_p, "temperature": temperature, "seed": seed, "shortlist": shortlist, "batch_size": batch_size,
        "sampling": sample or None, "target_language": target_language, "min_length": min_length,
        "recase": recase, "restore_names": restore_names, "no_repeat_ngram": no_repeat_ngram, "banned": banned or None,
        "token_scores": token_scores or None,
        "confidence": confidence or min_confidence is not None or None, "diversity_groups": diversity_groups,
        "diversity_penalty": diversity_penalty, "coverage_penalty": coverage_penalty, "rerank_weight": rerank_weight,
        "mbr": mbr,
        "protect": None if protect is None else [kind.strip() for kind in protect.split(",") if kind.strip() != "none"],
        "split": "long" if (attention or prefix) and split is None else split,  # both are of one sequence
    }  # fmt: skip
    of_folders = {"--into": into, "--workers": workers, "--ray-address": ray_address}
    if is_folder(input, output, engine, of_folders):
        assert input is not None
        refused = {
            "--json": as_json, "--attention": attention, "--n-best": n_best not in (None, 1), "--stream": stream,
            "--ensemble": bool(ensemble), "--rerank-with": rerank_with is not None, "--token-scores": token_scores,
            "--min-confidence": min_confidence is not None, "--format": format is not None, "--key": bool(keys),
            "--all": all, "--fuzzy": fuzzy,
        }  # fmt: skip
        how = {"device": device, "precision": precision, "engine": engine, "threads": threads, "glossary": glossary}
        translate_folder(input, output, model, settings, how, {"--column": columns, **of_folders}, refused)
    if document is None and output is not None and output.is_dir():
        raise DiskError(f"{output}: cannot be written (Is a directory); choose another place")
    import dragoman

    translator = dragoman.load(
        model, device, precision, threads, engine, ensemble=ensemble or (), rerank_with=rerank_with
    )
    interrupts.check()
    options = translator.options(**{name: value for name, value in settings.items() if value is not None})
    terms = translator.glossary(glossary) if glossary else None
    if document is not None:
        assert input is not None
        segments = DocumentJob(translator, options, terms, as_json, min_confidence)
        sys.exit(segments.write(input, output, document, about).finish(min_confidence))
    job = _LinesJob(translator, options, as_json, attention, prefix, terms, min_confidence)
    if stream:
        tally = job.print_words([text] if text else stdin_windows() if input is None else _single_lines(input))
    elif text:
        tally = job.write([text], output)
    elif input is None:
        tally = job.write(stdin_windows(), output)
    elif output is None or is_stream(output) or not input.is_file():
        tally = job.write_file(input, output)
    else:
        from dragoman.data.corpus import file_hash
        from dragoman.decode.bulk import model_hash

        made_from = {
            "model": model_hash(model),
            "ensemble": [model_hash(other) for other in ensemble or ()],
            "rerank_with": None if rerank_with is None else model_hash(rerank_with),
            "precision": translator.choice_for(options).precision,
            "glossary": file_hash(glossary) if glossary else None,
        }
        tally = job.write_resumably(input, output, made_from)
    sys.exit(tally.finish(min_confidence))


@dataclass(frozen=True)
class _LinesJob:
    """What to do with every line, wherever it comes from and goes to."""

    translator: "Translator"
    options: "DecodeConfig"
    as_json: bool
    attention: bool
    prefix: str | None = None  # of the one text
    glossary: "Glossary | None" = None
    min_confidence: float | None = None  # a line below it is to be reviewed

    def write(
        self, windows: "Iterable[Sequence[str | Line]]", output: Path | None, advance: Advance = no_progress
    ) -> Tally:
        tally = self._tally()
        with opened(output) as stream:
            for translation in self._translations(windows, advance=advance):
                stream.write(self._line(translation))
                if self.attention and not self.as_json:
                    stream.write(picture(translation, stream) + "\n")
                stream.flush()
                tally.add(translation, is_to_review(translation, self.min_confidence))
        return tally

    def print_words(self, windows: "Iterable[Sequence[str | Line]]") -> Tally:
        """Print words as they become certain."""
        tally = self._tally()
        with opened(None) as output:
            for line in itertools.chain.from_iterable(windows):
                parts = self.translator.stream_line(line, self.options, self.glossary)
                translation = _printed(parts, output)
                tally.add(translation, is_to_review(translation, self.min_confidence))
        return tally

    def write_file(self, input: Path, output: Path | None) -> Tally:
        """Translate a file to an output that cannot be taken back, such as standard output."""
        from dragoman.cli.progress import LineProgress
        from dragoman.data.corpus import count_lines, read_lines

        total = count_lines(input) if input.is_file() else None
        windows = _with_first(self._windows(read_lines(input)))
        if output is None and sys.stdout is not None and sys.stdout.isatty():  # a bar would appear between the lines
            return self.write(windows, output)
        with LineProgress("translate", total) as progress:
            return self.write(windows, output, progress.advance)

    def write_resumably(self, input: Path, output: Path, made_from: dict[str, Any]) -> Tally:
        """Translate a file to a file, window by window: finished lines survive an interruption."""
        from dragoman import __version__
        from dragoman.cli.progress import LineProgress
        from dragoman.cli.resumable import resumable
        from dragoman.data.corpus import count_lines, file_hash, read_lines

        total = count_lines(input)
        made_from = {
            **made_from,
            "version": __version__,
            "device": self.translator.device.partition(":")[0],
            "engine": self.translator.choice_for(self.options).engine,
            "input": file_hash(input),
            "--json": self.as_json,
            "--attention": self.attention,
            "--min-confidence": self.min_confidence,
            **{name: value for name, value in asdict(self.options).items() if name != "threads"},
        }
        with resumable(output, made_from, total) as kept:
            tally = self._tally(**kept.tally)
            lines = itertools.islice(read_lines(input), kept.lines, None)
            with LineProgress("translate", total, kept.lines) as progress:
                for window in self._windows(lines):
                    written = []
                    for translation in self._translations([window], start=kept.lines, advance=progress.advance):
                        written.append(self._line(translation))
                        tally.add(translation, is_to_review(translation, self.min_confidence))
                    kept.add("".join(written), len(written), asdict(tally))
        return tally

    def _tally(self, **earlier: Any) -> Tally:
        return Tally(**{"language": self.translator.languages[0], **earlier})

    def _windows(self, lines: "Iterable[Line]") -> "Iterator[list[Line]]":
        from dragoman.decode.translator import windows

        return windows(lines, self.translator.window_size(self.options))

    def _translations(self, windows: "Iterable[Sequence[str | Line]]", **how: Any) -> "Iterator[Translation]":
        if self.prefix is not None:
            ((text,),) = windows
            begun = self.translator.translate_with_prefixes(
                [str(text)], [self.prefix], self.options, self.attention, self.glossary
            )
            return iter(begun)
        return self.translator.stream(
            windows, attention=self.attention, options=self.options, glossary=self.glossary, **how
        )

    def _line(self, translation: "Translation") -> str:
        if self.as_json:
            record = translation.to_dict()
            if self.min_confidence is not None:
                record["review"] = is_to_review(translation, self.min_confidence)
            return json.dumps(record, ensure_ascii=False) + "\n"
        texts = [other.text for other in translation.alternatives]
        columns = texts if self.options.n_best == 1 else [text.strip() for text in texts]  # a tab separates them
        return "\t".join(columns) + "\n"


def _printed(parts: "Generator[str, None, Translation]", output: TextIO) -> "Translation":
    """Print the parts of a line as they come; return its translation."""
    while True:
        try:
            part = next(parts)
        except StopIteration as end:
            output.write("\n")
            translation: Translation = end.value
            return translation
        output.write(part)
        output.flush()


def picture(translation: "Translation", stream: TextIO) -> str:
    """Which source tokens each target token attends to."""
    from dragoman.pictures import NARROWEST, terminal_heatmap

    if translation.attention is None or not len(translation.attention.cross):
        return "(no attention to the source to draw)"
    return terminal_heatmap(
        translation.attention.alignment_weights,
        translation.tokens,
        translation.source_tokens,
        color=stream.isatty(),
        width=max(NARROWEST, shutil.get_terminal_size((100, 24)).columns),
    )


def _single_lines(input: Path) -> "Iterator[list[Line]]":
    from dragoman.data.corpus import read_lines

    return ([line] for line in read_lines(input))


def _with_first(stretches: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """The same, with the first read at once: a missing input is detected before the output is opened."""
    return itertools.chain([next(stretches, [])], stretches)
