"""Text in, text out: splitting, batching, and a status for every line. Knows nothing of files or training."""

import functools
import itertools
import os
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack, overload

import numpy as np

from dragoman.bundle import Bundle, Tokenizers, load_bundle, require_task, resolve_model
from dragoman.confidence import Calibration
from dragoman.config import TRANSLATION, Config, DataConfig, DecodeConfig, TransformerConfig
from dragoman.data.batching import Batch
from dragoman.data.corpus import Line, text_line
from dragoman.decode import paragraphs
from dragoman.decode.assembly import Combination, details_of, produced, status_of
from dragoman.decode.batches import (
    Job,
    Outcome,
    Outcomes,
    Special,
    map_in_threads,
    out_of_memory,
    search_in_batches,
    search_on_threads,
    search_phrases,
)
from dragoman.decode.constraints import Banned, CheckableRule, Prefix, Spelling, rules_of
from dragoman.decode.engines.choice import EngineChoice, choose_engine, choose_for_ensemble
from dragoman.decode.garbage import without_garbage_collection
from dragoman.decode.keeping import (
    Restored,
    replace_text,
    restore_kept,
    restored_line,
    spaces_around,
    unchanged_line,
    with_spaces_around,
)
from dragoman.decode.options import DecodeOptions
from dragoman.decode.phrases import Phrases
from dragoman.decode.pieces import Cutter, Piece, Window, join
from dragoman.decode.protected import Protected
from dragoman.decode.protection import Protector, protect_parts, without_own
from dragoman.decode.replacing import rules_for_terms
from dragoman.decode.rescoring import rescored, search_options
from dragoman.decode.scoring import PairError, encoded_pairs, score_pairs
from dragoman.decode.search import Hypothesis, stream_prefixes
from dragoman.decode.streaming import stream_joined
from dragoman.decode.terms import Glossary, GlossaryLike, Speller, Term, TermsIn, glossary_of, no_terms, read_glossary
from dragoman.decode.translation import Array, Attention, Translation, translated
from dragoman.documents.document import Parts, text_of
from dragoman.errors import ConfigError, suggestion
from dragoman.machine import choose_threads, find_device
from dragoman.model.footprint import parameter_counts
from dragoman.progress import Advance, no_progress
from dragoman.text.normalize import is_blank

if TYPE_CHECKING:
    import torch

    from dragoman.decode.alignment import Alignment, Link
    from dragoman.decode.continuous import ContinuousSearch, Kind
    from dragoman.decode.continuous import Engine as ContinuousEngine
    from dragoman.decode.engines.cpu import CpuEngine
    from dragoman.decode.engines.cuda import CudaSearch
    from dragoman.decode.engines.plain import Engine
    from dragoman.decode.engines.predictions import Predictions

T = TypeVar("T")
WINDOW_ON_CUDA = 16_384  # lines
PART_ON_CUDA = 512  # lines, at least
MAX_PARTS = 8  # on the device
WIDEST_BEAM_ON_CPU = 100  # it sorts candidates by insertion
BATCH_SIZES = {"plain": 64, "cuda": 512, "cpu": 32}  # sentences, unless given
_ENGINES = threading.Lock()  # held while an engine is created


TranslateAgain = Callable[[list[str], TermsIn, list[int]], list[Translation]]  # of some lines, by their places


class Translator:
    """A model ready to translate. Create one with `dragoman.load`."""

    def __init__(
        self,
        bundle: Bundle,
        device: "str | torch.device" = "auto",
        precision: str = "auto",
        threads: int | None = None,
        engine: str = "auto",
        *,
        ensemble: Sequence[Bundle] = (),
        reverse: "Translator | None" = None,
    ) -> None:
        self.reverse = reverse  # translates back, to rank what this one finds
        self.tokenizers: Tokenizers = bundle.tokenizers
        self.device = find_device(device) if isinstance(device, str) else str(device)
        self.choice = (
            choose_for_ensemble(engine, precision)
            if ensemble
            else choose_engine(engine, precision, bundle.config.model, self.device, int8_weights=bundle.int8)
        )
        self._ensemble = ensemble  # the other models
        # what is not a search runs in float32 unless requested otherwise
        self._plain_precision = "float32" if precision == "auto" else precision
        self._bundle = bundle
        self._engine: Engine | None = None
        decode = bundle.config.decode
        decode = decode if threads is None else replace(decode, threads=threads)
        self.config: Config = replace(bundle.config, decode=decode)
        longest = min(self.config.text.max_length, self.config.model.longest or sys.maxsize)
        self._cutter = Cutter(self.tokenizers.source, longest, bundle.known_words)
        self._name = ""
        self._cuda: CudaSearch | None = None
        self._cpu: CpuEngine | None = None
        self._continuous: ContinuousSearch | None = None
        if self.choice.engine != "cpu":
            _ = self.engine  # at once, so that it is here that what it cannot run is refused

    def __repr__(self) -> str:
        parts = [
            *([repr(self._name)] if self._name else []),
            *([languages] if (languages := _languages(self.config.data)) else []),
            self.device,
            self.choice.precision,
            f"{self.parameters:,} parameters",
        ]
        return f"Translator({', '.join(parts)})"

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        device: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        engine: str = "auto",
        *,
        ensemble: "Sequence[str | os.PathLike[str]]" = (),
        rerank_with: str | os.PathLike[str] | None = None,
    ) -> "Translator":
        bundle = _load_translation_model(model)
        others = [_load_translation_model(other) for other in ensemble]
        if others:
            from dragoman.decode.ensemble import require_same_vocabulary

            for name, other in zip(ensemble, others, strict=True):
                require_same_vocabulary(bundle, other, os.fspath(name))
        reverse = None
        if rerank_with is not None:
            reverse = cls(_load_translation_model(rerank_with), device, precision, threads, engine)
        translator = cls(bundle, device, precision, threads, engine, ensemble=others, reverse=reverse)
        translator._name = os.fspath(model)
        return translator

    @property
    def parameters(self) -> int:
        return sum(parameter_counts(self.config.model).values())

    @property
    def calibration(self) -> Calibration | None:
        """Of the confidence of translations; None if the model has none."""
        return self._bundle.calibration

    @property
    def engine(self) -> "Engine":
        """The plain engine, created when first used: beside the CPU engine, few uses need it, or PyTorch at all."""
        with _ENGINES:
            if self._engine is None:
                from dragoman.decode.engines.plain import Engine

                engines = [
                    Engine(bundle.model.eval(), self.device, self._plain_precision)
                    for bundle in (self._bundle, *self._ensemble)
                ]
                if len(engines) > 1:
                    from dragoman.decode.ensemble import Ensemble

                    self._engine = Ensemble(engines)
                else:
                    self._engine = engines[0]
            return self._engine

    @engine.setter
    def engine(self, engine: "Engine") -> None:
        self._engine = engine

    @overload  # a string is an Iterable[str] too; the first matching overload wins
    def translate(  # type: ignore[overload-overlap]
        self,
        text: str,
        *,
        prefix: str | None = None,
        glossary: GlossaryLike | None = None,
        attention: bool = False,
        **options: Unpack[DecodeOptions],
    ) -> Translation: ...
    @overload
    def translate(
        self,
        text: Iterable[str],
        *,
        prefix: Iterable[str] | None = None,
        glossary: GlossaryLike | None = None,
        attention: bool = False,
        **options: Unpack[DecodeOptions],
    ) -> list[Translation]: ...
    def translate(
        self,
        text: str | Iterable[str],
        *,
        prefix: str | Iterable[str] | None = None,
        glossary: GlossaryLike | None = None,
        attention: bool = False,
        **options: Unpack[DecodeOptions],
    ) -> Translation | list[Translation]:
        """Translate one string, or several: a list in, a list out.

        prefix: a text to begin the translation with, which may end within a word; of several strings, one for each.
        glossary: terms and their translations: a file of lines `source TAB target`, or pairs. Where a source term
        occurs, its target appears; otherwise `status` is "altered".
        attention: keep what every head looked at, in `Translation.attention`. A line is then left whole unless it is
        too long or `split` is given, because a line in pieces has none.

        The other options are the model's own (`translator.config.decode`) unless given.

        beam: hypotheses kept at each step; 1 is greedy search.
        n_best: translations of each text, in `Translation.alternatives`; at most `beam`.
        length_penalty: alpha of the length penalty; 0 ranks by the total log-probability.
        length_penalty_form: "gnmt", ((5 + length) / 6) ** alpha, or "power", length ** alpha.
        max_extra: how many tokens the output may have more than the input.
        split: "sentences" translates each sentence alone, "long" divides only what is too long for the model.
        recase: translate sentences in capitals as they are usually written, and put the translation in capitals.
        restore_names: copy names from the source that the model misspells, if `dragoman words` listed what it has read.
        target_language: which one, of an imported model that translates into several; its tag, such as "deu".
        sampling: draw tokens at random in place of beam search.
        temperature: of the sampling; below 1 sharper, above 1 flatter.
        top_k: sample among the k likeliest tokens; 0 is all.
        top_p: sample among the likeliest tokens that make up this probability.
        seed: of the sampling.
        min_length: least number of tokens of a sentence's translation.
        no_repeat_ngram: no sequence of this many tokens occurs twice in a sentence; 0 allows any.
        banned: words that do not appear, as they are written.
        protect: what comes out as it is: any of "placeholders", "addresses", "tags", "code", "symbols", "quotes",
            "numbers".
        shortlist: search only among the target pieces that the model's shortlist allows; in the CPU engine.
        alignment_heads: what `align` takes alignments from; a search does not depend on it.
        diversity_groups: divide the beam into groups that avoid each other's tokens, for n_best that differ more.
        diversity_penalty: how much a token counts less for each hypothesis of an earlier group that has it there.
        coverage_penalty: beta; how much it counts against a hypothesis that source tokens were not attended to.
        rerank_weight: of the reverse model given to `dragoman.load`, from 0 to 1.
        mbr: draw so many samples and choose the one that agrees most with the others, by chrF, in place of a beam.
        token_scores: keep the log-probability of each token, in `Translation.token_scores`.
        confidence: the probability that a translation needs no review, in `Translation.confidence`.
        batch_size: sentences translated at a time; 0 is what suits the engine.
        threads: CPU threads; 0 takes one per core, and one for a small model.
        """
        if attention or prefix is not None:
            options.setdefault("split", "long")  # attention covers one sequence, and so does a prefix
        chosen, terms = self.options(**options), None if glossary is None else self.glossary(glossary)
        _refuse_sampling(terms, chosen)
        if prefix is not None:
            texts, prefixes = ([each] if isinstance(each, str) else each for each in (text, prefix))
            given = _texts("text", texts), _texts("prefix", prefixes)
            found = self.translate_with_prefixes(*given, chosen, attention, terms)
            return found[0] if isinstance(text, str) else found
        lines = [[text]] if isinstance(text, str) else windows(_texts("text", text), self.window_size(chosen))
        found = list(self.stream(lines, attention=attention, options=chosen, glossary=terms))
        return found[0] if isinstance(text, str) else found

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of source and target, as far as the names of the training files give them, else empty."""
        source, _, target = _languages(self.config.data).partition(" to ")
        return source, target

    def glossary(self, given: "GlossaryLike") -> Glossary:
        """A glossary from a file or from pairs of terms, for the language of this model's source."""
        self._require_spelling("glossary")
        if isinstance(given, Glossary):
            return given
        language, _ = self.languages
        if isinstance(given, (str, os.PathLike)):
            return read_glossary(given, language)
        return glossary_of(given, language)

    def translate_with_prefixes(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str],
        options: DecodeConfig,
        attention: bool,
        glossary: Glossary | None,
    ) -> list[Translation]:
        """Translate texts, each to begin with its prefix."""
        terms_in = no_terms if glossary is None else glossary.terms_in
        if len(texts) != len(prefixes):
            raise ConfigError(f"prefix: {len(prefixes)} for {len(texts)} texts; give one for each")
        if any(prefixes):
            self._require_spelling("prefix")

        def translate(
            texts: Sequence[str], terms_in: TermsIn, places: Sequence[int], prefixes: Sequence[str], start: int = 0
        ) -> list[Translation]:
            with self.inference(options.threads):
                window = self._prepare(texts, options)
                jobs = self._jobs(window.pieces, options, [start + place for place in places], prefixes)
                outcomes = self._search(jobs, window.pieces, options)
                return self._assemble_all(window, outcomes, attention, options, terms_in, prefixes)

        lines = _protected(texts, self._protector(options)) if options.protect else {}
        shown = [lines[number].text if number in lines else text for number, text in enumerate(texts)]
        results = translate(shown, terms_in, range(len(shown)), prefixes)
        for number, line in lines.items():  # one by one: each has its own prefix
            own = [line.with_stand_ins(prefixes[number])]
            again = functools.partial(translate, prefixes=own, start=number)
            (restored,) = self._restore([line], [results[number]], again, terms_in)
            results[number] = restored_line(texts[number], line, restored)
        return [
            with_spaces_around(result, has_prefix=not is_blank(prefix))
            for result, prefix in zip(results, prefixes, strict=True)
        ]

    def options(self, **options: Unpack[DecodeOptions]) -> DecodeConfig:
        """The model's own decoding settings with some replaced."""
        unknown = options.keys() - DecodeConfig.__dataclass_fields__.keys()
        for name in unknown:
            hint = suggestion(name, DecodeConfig.__dataclass_fields__)
            if name in ("device", "precision", "engine"):
                hint = "give it to dragoman.load"
            raise ConfigError(f"{name}: unknown option; {hint}")
        if "banned" in options:
            options["banned"] = tuple(_texts("banned", options["banned"]))
        if "protect" in options:
            options["protect"] = tuple(_texts("protect", options["protect"]))
        if "alignment_heads" in options:
            options["alignment_heads"] = tuple(_texts("alignment_heads", options["alignment_heads"]))
        own = self.config.decode
        is_same = all((type(value), value) == (type(was := getattr(own, name)), was) for name, value in options.items())
        chosen = self._sized(own if is_same else replace(own, **options))  # type: ignore[arg-type]
        if chosen.banned:
            self._require_spelling("banned")
        if options.get("shortlist"):  # a model's own setting applies where it can
            self._require_shortlist(chosen)
        self._check_ranking(options, chosen)
        if options.get("confidence") and self._ensemble:
            raise ConfigError("confidence: is calibrated for one model, not for an ensemble; leave one of them out")
        if options.get("confidence") and self.calibration is None:
            raise ConfigError("confidence: the model is not calibrated; use `dragoman calibrate`, or leave it out")
        return chosen

    def _check_ranking(self, options: DecodeOptions, chosen: DecodeConfig) -> None:
        """Refuse ways to choose among hypotheses that contradict each other."""
        if chosen.mbr and options.get("beam", self.config.decode.beam) != self.config.decode.beam:
            raise ConfigError("mbr: chooses among samples, without a beam; leave out mbr or beam")
        if chosen.mbr and self.reverse is not None:
            raise ConfigError("mbr: chooses by agreement, not with a reverse model; leave out one of them")
        if options.get("rerank_weight", DecodeConfig.rerank_weight) != DecodeConfig.rerank_weight and not self.reverse:
            raise ConfigError("rerank_weight: there is no reverse model; give one with rerank_with, or leave it out")

    def _require_spelling(self, option: str) -> None:
        from dragoman.text.byte_level import ByteLevelTokenizer

        if isinstance(self.tokenizers.target, ByteLevelTokenizer):
            raise ConfigError(f"{option}: not possible with the byte-level BPE of this model; leave it out")

    @functools.cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.tokenizers.target)

    def _require_shortlist(self, options: DecodeConfig) -> None:
        choice = self.choice_for(options)
        if choice.engine != "cpu":
            raise ConfigError(f"shortlist: runs in the CPU engine only, this is the {choice.describe()}; leave it out")
        if self._bundle.shortlist is None:
            raise ConfigError("shortlist: the model has none; make one with `dragoman shortlist`, or leave it out")

    def _sized(self, options: DecodeConfig) -> DecodeConfig:
        """Fill in the engine's own batch size."""
        return (
            options if options.batch_size else _with_batch_size(options, BATCH_SIZES[self.choice_for(options).engine])
        )

    def window_size(self, options: DecodeConfig) -> int:
        """How many lines to translate together: enough to bucket well by length, few enough to show results early."""
        if self._uses_cuda(options):
            return WINDOW_ON_CUDA
        on_cpu_engine = self.choice_for(options).engine == "cpu"
        batches = max(32, 4 * self._threads(options)) if on_cpu_engine else 16
        return batches * self._sized(options).batch_size

    def _threads(self, options: DecodeConfig) -> int:
        return choose_threads(options.threads, self.config.model.d_model)

    @property
    def batches_at_once(self) -> int:
        """How many batches of pairs to run at the same time: the CPU engine has one thread for each."""
        options = self.config.decode
        return self._threads(options) if self.choice_for(options).engine == "cpu" else 1

    def choice_for(self, options: DecodeConfig) -> EngineChoice:
        """The engine that searches with these options: what a fast engine cannot do runs in the plain one."""
        options = self._search_options(options)
        if self.choice.engine == "plain":
            return self.choice
        if self.choice.engine == "cuda":
            from dragoman.decode.engines.cuda import supports

            unable = not supports(options)
            reason = "the CUDA engine has no sampling, wide or diverse beams or head masks"
        else:
            unable = options.sampling or options.beam > WIDEST_BEAM_ON_CPU
            reason = f"the CPU engine has no sampling, head masks or beams wider than {WIDEST_BEAM_ON_CPU}"
        if unable or (self._engine is not None and self._engine.is_masked):
            return EngineChoice("plain", self._plain_precision, reason)
        return self.choice

    def _search_options(self, options: DecodeConfig) -> DecodeConfig:
        return search_options(options, reranks=self.reverse is not None)

    def _uses_cuda(self, options: DecodeConfig) -> bool:
        return self.choice_for(options).engine == "cuda"

    def stream(
        self,
        windows: Iterable[Sequence[str | Line]],
        *,
        attention: bool = False,
        options: DecodeConfig | None = None,
        glossary: Glossary | None = None,
        start: int = 0,
        advance: Advance = no_progress,
    ) -> Iterator[Translation]:
        """Yield one translation per line, in order. Lines of one window are bucketed by length into batches.

        `start` is the number of earlier lines in the same job: samples depend on a line's number.
        """
        options = self._sized(options or self.config.decode)
        _refuse_sampling(glossary, options)
        terms_in = no_terms if glossary is None else glossary.terms_in
        for window in windows:
            yield from self._translate(window, options, attention, start, advance, terms_in)
            start += len(window)

    def stream_text(
        self, text: str, *, glossary: GlossaryLike | None = None, **options: Unpack[DecodeOptions]
    ) -> Iterator[str]:
        """Yield the translation of a text in parts, as they become certain. Nothing is withdrawn.

        Lines are translated one after the other. Together, the parts of a line are what `translate` returns. A sentence
        with names that the model has never read comes as a whole. A line
        with terms of the glossary or with something to keep comes as a whole, and so does one that is sampled or chosen
        among several. With banned words, n-grams or a least length every line does: it may have to be searched again.
        """
        if not isinstance(text, str):
            raise ConfigError(f"text: is {type(text).__name__}; give a string")
        chosen, terms = self.options(**options), None if glossary is None else self.glossary(glossary)
        for number, line in enumerate(text.split("\n")):
            if number:
                yield "\n"
            yield from self.stream_line(line, chosen, terms)

    def stream_line(
        self, line: str | Line, options: DecodeConfig, glossary: Glossary | None = None
    ) -> Generator[str, None, Translation]:
        """The same for a line. It returns the translation, with its status."""
        keeps = bool(options.protect) and self._protector(options).protect(_text_of(line)) is not None
        window = self._prepare([line], options)
        has_terms = glossary is not None and any(glossary.terms_in(piece.text) for piece in window.pieces)
        chooses = options.sampling or options.diversity_groups > 1 or self._search_options(options) != options
        if keeps or has_terms or chooses or window.results or not self.tokenizers.target.grows:
            (result,) = self.stream([[line]], options=options, glossary=glossary)
            yield result.text
            return result
        outcomes: list[Outcome] = []
        jobs = zip(window.pieces, self._jobs(window.pieces, options, [0]), strict=True)
        before, after = spaces_around(window.texts[0])
        parts = stream_joined((piece.glue, self._stream_job(piece, job, options, outcomes)) for piece, job in jobs)
        if first := next(parts, ""):  # a model may have nothing to say
            yield before + first
            yield from parts
            yield from filter(None, [after])
        (result,) = self._assemble_all(window, outcomes, False, options)
        return with_spaces_around(result)

    def _stream_job(
        self, piece: Piece, job: Job, options: DecodeConfig, outcomes: list[Outcome]
    ) -> Iterator[tuple[str, bool]]:
        """The text of a piece so far, after every step of its search, and whether it is complete.

        Its hypothesis is added to `outcomes` in the end.
        """
        on_cpu_engine = self.choice_for(options).engine == "cpu"
        start = self._cpu_engine().start if on_cpu_engine else self.engine.start
        steps = None
        while True:
            with nullcontext() if on_cpu_engine else self.inference(options.threads):
                # each step within it, not the generator: what the caller does meanwhile is no concern of ours
                if steps is None:
                    steps = stream_prefixes(start([job.source]), job.limit, options, **self._special()._asdict())
                ids, best = next(steps)
            if best is not None:
                outcomes.append([best])
            if best is not None or not piece.names:  # names are restored once the whole is known
                yield piece.finish(self.tokenizers.target.decode(ids)), best is not None
            if best is not None:
                return

    def stream_parts(
        self,
        windows: Iterable[Sequence[Parts]],
        *,
        options: DecodeConfig | None = None,
        glossary: Glossary | None = None,
        advance: Advance = no_progress,
    ) -> Iterator[tuple[Translation, Parts | None]]:
        """Yield a translation for each text with marks and kept words, and the same with these; None if it failed.

        The lines of a text are translated one by one.
        """
        options, start = self._sized(options or self.config.decode), 0
        for texts in windows:
            divided = [paragraphs.divide(parts) for parts in texts]
            lines = [line for own in divided for _, line in own]
            progress = paragraphs.Proportional(advance, len(lines), len(texts))
            results = iter(self._translate_parts(lines, options, glossary, progress.advance, start))
            start += len(lines)
            for parts, own in zip(texts, divided, strict=True):
                yield paragraphs.join(parts, own, results)
            progress.finish()

    def _translate_parts(
        self, texts: Sequence[Parts], options: DecodeConfig, glossary: Glossary | None, advance: Advance, start: int
    ) -> list[tuple[Translation, Parts | None]]:
        terms_in = no_terms if glossary is None else glossary.terms_in
        protector = self._protector(options) if options.protect else None
        lines = [protect_parts(parts, protector) for parts in texts]
        worded = [number for number, line in enumerate(lines) if line.has_words]
        results: list[tuple[Translation, Parts | None]] = [
            (Translation(text_of(parts), text_of(parts), "translated"), parts) for parts in texts
        ]
        advance(len(lines) - len(worded))
        own = [lines[number] for number in worded]
        numbers = [start + number for number in worded]
        first = self._translate_window([line.text for line in own], options, False, numbers, advance, terms_in)
        found = self._restore(own, first, self._again(options, False, numbers), terms_in)
        for number, (translation, own_parts, _) in zip(worded, found, strict=True):
            is_failed = translation.status == "failed"
            parts = None if is_failed else without_own(own_parts, lines[number].originals)
            if parts is not None and not text_of(parts).strip():  # a value or a cell must not become empty
                parts = texts[number]
                translation = replace(
                    translation, status="altered", reason="the model wrote nothing; it stays as it was"
                )
            text = "" if parts is None else text_of(parts)
            results[number] = (replace_text(translation, text_of(texts[number]), text), parts)
        return results

    @overload
    def score(  # type: ignore[overload-overlap]
        self, sources: str, targets: str, batch_size: int | None = None
    ) -> float: ...
    @overload
    def score(self, sources: Iterable[str], targets: Iterable[str], batch_size: int | None = None) -> list[float]: ...
    def score(
        self, sources: str | Iterable[str], targets: str | Iterable[str], batch_size: int | None = None
    ) -> float | list[float]:
        """Return log P(target, </s> | source) of each pair; raise PairError for one that is not valid text or too long.

        Two strings give one number, two lists give a list.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], batch_size)[0]
        sources, targets = self._pairs_of("score", sources, targets)
        options = self.config.decode if batch_size is None else self.options(batch_size=batch_size)
        return score_pairs(self, encoded_pairs(self, sources, targets), options.batch_size or BATCH_SIZES["plain"])

    @overload
    def align(  # type: ignore[overload-overlap]
        self, sources: str, targets: str, heads: Sequence[str] | None = None
    ) -> "list[Link]": ...
    @overload
    def align(
        self, sources: Iterable[str], targets: Iterable[str], heads: Sequence[str] | None = None
    ) -> "list[list[Link]]": ...
    def align(
        self, sources: str | Iterable[str], targets: str | Iterable[str], heads: Sequence[str] | None = None
    ) -> "list[Link] | list[list[Link]]":
        """Return which words of each source and target belong together, as (source word, target word) from 0.

        Words are those of `text.split()`. Two strings give one list of links, two lists give one for each pair. `heads`
        are the model's `decode.alignment_heads` unless given, such as those of `choose_alignment_heads`. PairError is
        raised as by `score`.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.align([sources], [targets], heads)[0]
        return [alignment.links for alignment in self.align_pieces(sources, targets, heads)]

    def align_pieces(
        self, sources: Iterable[str], targets: Iterable[str], heads: Sequence[str] | None = None
    ) -> "list[Alignment]":
        """The same for pieces: how much each attends to each, and where in the texts as written they stand."""
        from dragoman.decode.aligner import cross_attention, heads_of

        chosen = heads_of(self, heads)
        lines = self._pairs_of("align", sources, targets)
        return [pair.alignment(chosen) for pair in cross_attention(self, *lines)]

    def choose_alignment_heads(self, sources: Iterable[str], targets: Iterable[str]) -> tuple[str, ...]:
        """The heads that align these pairs best, found without known alignments: a value of `decode.alignment_heads`.

        A few hundred pairs are enough. None from too few: then the layer is taken whose heads agree most.
        """
        from dragoman.decode.aligner import choose_heads

        return tuple(map(str, choose_heads(self, *self._pairs_of("choose_alignment_heads", sources, targets))))

    @contextmanager
    def inference(self, threads: int | None = None) -> Iterator[None]:
        """Context for running the plain engine: no gradients, `threads` CPU threads (None: decode.threads)."""
        import torch

        from dragoman.device import cpu_threads, keep_onednn

        asked = self.config.decode.threads if threads is None else threads
        count = choose_threads(asked, self.config.model.d_model)
        with torch.inference_mode(), cpu_threads(count), keep_onednn():
            yield

    # From pairs to scores

    def _pairs_of(
        self, caller: str, sources: str | Iterable[str], targets: str | Iterable[str]
    ) -> tuple[list[str], list[str]]:
        """The arguments as lists of equal length, or raise."""
        lists = _texts("sources", sources), _texts("targets", targets)
        count, others = map(len, lists)
        if count != others:
            raise ConfigError(f"{caller}: {count} sources and {others} targets; give one target per source")
        return lists

    # From lines to pieces, from pieces to hypotheses, and back

    def _translate(
        self,
        lines: Sequence[str | Line],
        options: DecodeConfig,
        attention: bool,
        start: int = 0,
        advance: Advance = no_progress,
        terms_in: TermsIn = no_terms,
    ) -> list[Translation]:
        """Translate one window of lines, and keep in each what is to be kept; `start`: how many lines came before."""
        numbers = range(start, start + len(lines))
        if not options.protect:
            results = self._translate_window(lines, options, attention, numbers, advance, terms_in)
            return [with_spaces_around(result) for result in results]
        found = _protected(lines, self._protector(options))
        texts = [found[number].text if number in found else line for number, line in enumerate(lines)]
        worded = {number: line for number, line in found.items() if line.has_words}
        for number in found.keys() - worded.keys():
            texts[number] = ""  # nothing to translate
        results = self._translate_window(texts, options, attention, numbers, advance, terms_in)
        first = [results[number] for number in worded]
        again = self._again(options, attention, [numbers[number] for number in worded])
        restored = iter(self._restore(list(worded.values()), first, again, terms_in))
        for number, line in found.items():
            source = _text_of(lines[number])
            if number in worded:
                results[number] = restored_line(source, line, next(restored))
            else:
                results[number] = unchanged_line(source, line)
        return [with_spaces_around(result) for result in results]

    def _protector(self, options: DecodeConfig) -> Protector:
        known = self._bundle.known_words
        return Protector(options.protect, options.split == "sentences", known.source if known else None)

    def _restore(
        self, lines: list[Protected], translations: list[Translation], again: TranslateAgain, terms_in: TermsIn
    ) -> list[Restored]:
        """Put back what each line keeps. `again` translates texts in which the terms they ask for must appear."""

        def translate(texts: list[str], terms: list[Term], places: list[int]) -> list[Translation]:
            stand_ins = Glossary(terms)
            asked = (lambda text: [*terms_in(text), *stand_ins.terms_in(text)]) if terms else terms_in
            return again(texts, asked, places)

        return restore_kept(lines, translations, translate, self.align_if_possible)

    def _again(self, options: DecodeConfig, attention: bool, numbers: Sequence[int]) -> TranslateAgain:
        """Translates some lines once more. `numbers` of all lines within the job: samples depend on them."""
        return lambda texts, terms_in, places: self._translate_window(
            texts, options, attention, [numbers[place] for place in places], terms_in=terms_in
        )

    def align_if_possible(self, sources: list[str], targets: list[str]) -> "list[Alignment]":
        """In order, where a model does not look back at the source or cannot take a pair."""
        from dragoman.decode.alignment import diagonal

        try:
            return self.align_pieces(sources, targets)
        except (ConfigError, PairError):
            if len(sources) == 1:
                return [diagonal(sources[0], targets[0])]
            pairs = zip(sources, targets, strict=True)
            return [self.align_if_possible([source], [target])[0] for source, target in pairs]

    def _translate_window(
        self,
        lines: Sequence[str | Line],
        options: DecodeConfig,
        attention: bool,
        numbers: Sequence[int],
        advance: Advance = no_progress,
        terms_in: TermsIn = no_terms,
    ) -> list[Translation]:
        """Translate one window of lines; `numbers`: of the lines within the job."""
        without_torch = self.choice_for(options).engine == "cpu" and not attention
        with nullcontext() if without_torch else self.inference(options.threads):
            if self._uses_cuda(options) and self._continuous is None:
                engine = self._cuda_search()
                with engine.exclusive(), without_garbage_collection(len(lines)):
                    return self._translate_on_cuda(engine, lines, options, attention, advance, terms_in)
            window = self._prepare(lines, options)
            advance(len(window.results))
            outcomes = self._search(self._jobs(window.pieces, options, numbers), window.pieces, options, advance)
            return self._assemble_all(window, outcomes, attention, options, terms_in)

    def _prepare(self, lines: Sequence[str | Line], options: DecodeConfig) -> Window:
        """Set aside blank and invalid lines; split the others into pieces."""
        window = self._into_sentences(lines, options)
        ids = self.tokenizers.source.encode_batch(window.inputs)
        return self._into_pieces(window, ids, options)

    def _prepare_parts(self, parts: Sequence[Sequence[str | Line]], options: DecodeConfig) -> Generator[Window]:
        """Prepare one part after the other; a thread tokenizes the next one meanwhile."""
        if len(parts) == 1:
            yield self._prepare(parts[0], options)
            return
        with ThreadPoolExecutor(1) as thread:
            under_way: deque[tuple[Window, Future[list[list[int]]]]] = deque()
            for lines in parts:
                window = self._into_sentences(lines, options)
                under_way.append((window, thread.submit(self.tokenizers.source.encode_batch, window.inputs)))
                if len(under_way) > 1:
                    before, ids = under_way.popleft()
                    yield self._into_pieces(before, ids.result(), options)
            for window, ids in under_way:
                yield self._into_pieces(window, ids.result(), options)

    def _into_sentences(self, lines: Sequence[str | Line], options: DecodeConfig) -> Window:
        """A word is banned as it is written, so no translation is put in capitals then."""
        return self._cutter.into_sentences(lines, options.split, options.recase and not options.banned)

    def _into_pieces(self, window: Window, ids: list[list[int]], options: DecodeConfig) -> Window:
        return self._cutter.into_pieces(window, ids, self.language_tag(options), options.restore_names)

    def _assemble_all(
        self,
        window: Window,
        outcomes: list[Outcome],
        attention: bool,
        options: DecodeConfig,
        terms_in: TermsIn = no_terms,
        prefixes: Sequence[str] = (),
    ) -> list[Translation]:
        """Put the lines together again, in order; first search again for what breaks a rule or lacks a term."""
        self._keep_rules(window, outcomes, options, prefixes)
        outcomes = rescored(self, [piece.ids for piece in window.pieces], outcomes, options)
        if terms_in is not no_terms:
            self._keep_terms(window, outcomes, options, terms_in, prefixes)
        rest = iter(outcomes)
        results, found = window.results, dict[int, list[list[Hypothesis]]]()
        for number, pieces in window.pieces_of.items():
            choices: list[list[Hypothesis]] = []
            for outcome in itertools.islice(rest, len(pieces)):
                if isinstance(outcome, str):
                    results.setdefault(number, Translation(window.texts[number], "", "failed", reason=outcome))
                else:
                    choices.append(outcome)
            if len(choices) == len(pieces):
                found[number] = choices
        rows = [hypotheses[0].ids for choices in found.values() for hypotheses in choices]
        texts = iter(self.tokenizers.target.decode_batch(rows))
        for number, choices in found.items():
            pieces = [_apply_requests(piece, options, terms_in, prefixes) for piece in window.pieces_of[number]]
            best = [hypotheses[0] for hypotheses in choices]
            own = [piece.finish(next(texts)) for piece in pieces]
            text = join(pieces, own)
            results[number] = translated(
                window.texts[number],
                text,
                "altered" if number in window.altered else status_of(pieces, best),
                # of the tokenizers alone: a result must not keep a model in memory
                functools.partial(details_of, self.tokenizers, pieces, choices, own, text, options, self.calibration),
                self._attention_of(pieces, best) if attention else None,
                window.altered.get(number, ""),
            )
        return [results[number] for number in range(len(window.texts))]

    def _jobs(
        self,
        pieces: Sequence[Piece],
        options: DecodeConfig,
        numbers: Sequence[int],
        prefixes: Sequence[str] = (),
        *,
        constrained: bool = False,
    ) -> list[Job]:
        """What to search for each piece. `numbers` of the lines within the job; `prefixes`: none, or one for each.

        Unless `constrained`, only samples and what has a prefix must keep the rules from the first id.
        """
        rules = self._rules(options)
        kept = rules if constrained or self._search_options(options).sampling else ()
        jobs = [
            Job(piece.ids, self.limit(len(piece.ids), options), numbers[piece.line] + (piece.number << 40), kept)
            for piece in pieces
        ]
        for number, piece in enumerate(pieces) if prefixes else ():
            if begins := _prefix_of(piece, prefixes):
                jobs[number] = self._begin_with(jobs[number]._replace(rules=rules), begins)
        return jobs

    def _rules(self, options: DecodeConfig) -> list[CheckableRule]:
        return rules_of(options, self.tokenizers.target.vocabulary.eos, lambda: self._spelling)

    def _keep_rules(
        self, window: Window, outcomes: list[Outcome], options: DecodeConfig, prefixes: Sequence[str]
    ) -> None:
        """Search again, with the rules, for pieces whose translations break one. The others stay as they are."""
        rules, end = self._rules(options), self.tokenizers.target.vocabulary.eos
        if not rules or self._search_options(options).sampling:
            return
        broken = [
            number
            for number, (piece, outcome) in enumerate(zip(window.pieces, outcomes, strict=True))
            if not isinstance(outcome, str)
            and not _prefix_of(piece, prefixes)
            and not all(rule.is_kept((*produced(each, end),)) for each in outcome for rule in rules)
        ]
        jobs = self._jobs(
            [window.pieces[number] for number in broken], options, range(len(window.texts)), constrained=True
        )
        for place, outcome in self._run(jobs, options):
            outcomes[broken[place]] = outcome

    def _search(
        self, jobs: list[Job], pieces: list[Piece], options: DecodeConfig, advance: Advance = no_progress
    ) -> list[Outcome]:
        """Return the outcomes in the order of the pieces."""
        outcomes: dict[int, Outcome] = {}
        left = Counter(piece.line for piece in pieces)
        for number, outcome in self._run(jobs, options):
            outcomes[number] = outcome
            line = pieces[number].line
            left[line] -= 1
            if not left[line]:
                advance(1)
        return [outcomes[number] for number in range(len(pieces))]

    def _keep_terms(
        self,
        window: Window,
        outcomes: list[Outcome],
        options: DecodeConfig,
        terms_in: TermsIn,
        prefixes: Sequence[str] = (),
    ) -> None:
        """Search again for pieces in whose translation a term is missing; note those for which nothing is found."""
        terms_of = {
            number: terms
            for number, (piece, outcome) in enumerate(zip(window.pieces, outcomes, strict=True))
            if not isinstance(outcome, str) and (terms := terms_in(piece.text))
        }
        missing = {number: terms_of[number] for number in self._missing(terms_of, outcomes)}
        numbers = list(missing)
        pieces = [window.pieces[number] for number in numbers]
        jobs = []
        constrained = self._jobs(pieces, options, range(len(window.texts)), prefixes, constrained=True)
        for number, job in zip(numbers, constrained, strict=True):
            phrases = {term: self._speller.phrase(term) for term in missing[number]}
            possible = {term: phrase for term, phrase in phrases.items() if phrase is not None}
            room = sum(len(phrase.forms[0].ids) for phrase in possible.values())
            limit = min(job.limit + room, (self.config.model.longest or sys.maxsize) - 1)
            piece, begins = window.pieces[number], prefixes[window.pieces[number].line] if prefixes else ""
            wishes = rules_for_terms(self, self._spelling, piece.text, outcomes[number], [*possible], begins)
            jobs.append(job._replace(limit=limit, phrases=Phrases([*possible.values()]), wishes=wishes))
        for number, found in zip(numbers, self._run_with_phrases(jobs, options), strict=True):
            if found:
                outcomes[number] = found
        for number, terms in self._missing(missing, outcomes).items():
            names = ", ".join(repr(term.targets[0]) for term in terms)
            window.altered.setdefault(window.pieces[number].line, f"{names} could not be placed")

    def _missing(self, terms_of: Mapping[int, list[Term]], outcomes: list[Outcome]) -> dict[int, list[Term]]:
        """By the number of a piece: the terms that are not in its best translation."""
        best = [outcome[0].ids for number in terms_of if not isinstance(outcome := outcomes[number], str)]
        texts = self.tokenizers.target.decode_batch(best)
        found = {
            number: [term for term in terms if not term.is_kept(text)]
            for (number, terms), text in zip(terms_of.items(), texts, strict=True)
        }
        return {number: terms for number, terms in found.items() if terms}

    @functools.cached_property
    def _speller(self) -> Speller:
        return Speller(self.tokenizers.target, self._spelling)

    def _run_with_phrases(self, jobs: list[Job], options: DecodeConfig) -> list[list[Hypothesis]]:
        if not jobs:
            return []
        from dragoman.decode.continuous import unless_over

        special = self._special()
        if self.choice_for(options).engine != "cpu":
            return search_phrases(unless_over(self.engine.start), jobs, options, special, self.device, threads=1)
        start = unless_over(self._cpu_engine().start)
        return search_phrases(start, jobs, options, special, "cpu", self._threads(options))

    def _begin_with(self, job: Job, prefix: str) -> Job:
        """With room for the prefix in any case."""
        if problem := text_line(prefix).problem:
            raise ConfigError(f"prefix: {problem}; fix the text")
        rule = Prefix(self._spelling, prefix)
        if not rule.is_possible:
            raise ConfigError(f"prefix: the vocabulary cannot spell {prefix!r}; use other characters")
        for banned in job.rules:
            if isinstance(banned, Banned) and not rule.is_possible_with(banned):
                raise ConfigError(f"prefix: {prefix!r} has a word that is banned; leave out one of them")
        room = (self.config.model.longest or sys.maxsize) - 1
        limit = min(job.limit + rule.most_ids, room)
        return job._replace(limit=limit, rules=[*job.rules, rule])

    def search_continuously(self, threads: int) -> "ContinuousSearch":
        """From now on, search sentences of all callers together, on so many threads; on a GPU, one.

        The results are the same; on a GPU, but for the last digits.
        """
        from dragoman.decode.continuous import ContinuousSearch

        self._continuous = ContinuousSearch(self._engine_of, threads if self.device == "cpu" else 1)
        return self._continuous

    def _engine_of(self, kind: "Kind") -> "ContinuousEngine":
        from dragoman.decode.continuous import Engine

        options, special = kind.options, self._special()
        engine = self.choice_for(options).engine
        if engine == "cuda" and not kind.is_constrained:
            return self._cuda_engine(options)
        if engine != "cpu":
            context = functools.partial(self.inference, options.threads)
            return Engine(self.engine.start, special, options.batch_size, self.device, False, context)
        shortlist = self._bundle.shortlist if options.shortlist else None
        start = functools.partial(self._cpu_engine().start, shortlist=shortlist)
        can_join = shortlist is None and options.diversity_groups == 1
        return Engine(start, special, options.batch_size, "cpu", can_join, nullcontext)

    def _cuda_engine(self, options: DecodeConfig) -> "ContinuousEngine":
        from dragoman.decode.continuous import Engine
        from dragoman.decode.engines.cuda import SOURCE_TOKENS

        special, cuda = self._special(), self._cuda_search()

        @contextmanager
        def context() -> Iterator[None]:
            with self.inference(options.threads), cuda.exclusive():
                yield

        # one shape of caches, however many wait: capturing its graph takes longer than most searches
        # and no steps ahead, for which others would wait
        begin = functools.partial(
            cuda.begin, options, expected=2 * options.batch_size, **special._asdict(), runs_ahead=False
        )
        size, tokens = options.batch_size, SOURCE_TOKENS // 2
        return Engine(self.engine.start, special, size, self.device, False, context, tokens, begin)

    def _run(self, jobs: list[Job], options: DecodeConfig) -> Outcomes:
        special, options = self._special(), self._search_options(options)
        if self._continuous is not None:
            return self._continuous.search(jobs, options)
        if self.choice_for(options).engine != "cpu":
            return search_in_batches(self.engine.start, jobs, options, special, self.device)
        threads = max(1, min(self._threads(options), len(jobs)))
        shortlist = self._bundle.shortlist if options.shortlist else None
        start = functools.partial(self._cpu_engine().start, shortlist=shortlist)
        joining = shortlist is None and options.diversity_groups == 1  # else sentences start together
        return search_on_threads(start, jobs, options, special, threads, joining=joining)

    def _special(self) -> Special:
        ids = self.tokenizers.target.vocabulary
        return Special(ids.bos, ids.eos, ids.never_predicted)

    def _cpu_engine(self) -> "CpuEngine":
        """The CPU engine, created when first used."""
        from dragoman.decode.engines.cpu import CpuEngine

        with _ENGINES:
            if self._cpu is None:
                config = self.config.model
                assert isinstance(config, TransformerConfig)
                self._cpu = CpuEngine(config, self._bundle.weights, self.choice.precision)
            return self._cpu

    def _cuda_search(self) -> "CudaSearch":
        """The CUDA engine, created when first used."""
        import torch

        from dragoman.decode.engines.cuda import CudaSearch
        from dragoman.model.transformer import Transformer

        with _ENGINES:
            if self._cuda is None:
                model = self._bundle.model
                assert isinstance(model, Transformer)
                self._cuda = CudaSearch(model, torch.device(self.device), getattr(torch, self.choice.precision))
            return self._cuda

    def _translate_on_cuda(
        self,
        engine: "CudaSearch",
        lines: Sequence[str | Line],
        options: DecodeConfig,
        attention: bool,
        advance: Advance,
        terms_in: TermsIn = no_terms,
    ) -> list[Translation]:
        """Part by part, the longest lines first: while the device searches, the host prepares what comes next."""
        asked = self._search_options(options)
        search = engine.begin(asked, expected=len(lines), **self._special()._asdict())
        results: dict[int, Translation] = {}
        under_way: deque[tuple[Sequence[int], Window]] = deque()

        def finish() -> None:
            numbers, window = under_way.popleft()
            hypotheses = {number: each for part in search.take() for number, each in part.hypotheses(asked)}
            advance(len(numbers))
            outcomes = [hypotheses[number] or out_of_memory(piece.ids) for number, piece in enumerate(window.pieces)]
            found = self._assemble_all(window, outcomes, attention, options, terms_in)
            results.update(zip(numbers, found, strict=True))

        parts = list(windows(_longest_first(lines), max(PART_ON_CUDA, options.batch_size)))
        lines_of_parts = [[lines[number] for number in numbers] for numbers in parts]
        with closing(self._prepare_parts(lines_of_parts, options)) as prepared:  # ends its thread whatever happens
            for numbers, window in zip(parts, prepared, strict=True):
                sources = [piece.ids for piece in window.pieces]
                search.add(sources, [self.limit(len(source), options) for source in sources])
                under_way.append((numbers, window))
                while under_way and (len(under_way) > MAX_PARTS or search.is_ready()):
                    finish()
        while under_way:
            finish()
        return [results[number] for number in range(len(lines))]

    def language_tag(self, options: DecodeConfig) -> list[int]:
        """The id that selects a target language, before every source; none if the model has only one."""
        languages, wanted = self.tokenizers.source.languages, options.target_language
        if wanted in languages:
            return [self.tokenizers.source.tag(wanted)]
        if wanted and not languages:
            raise ConfigError(f"target_language: {wanted!r} was given, but the model has only one; leave it out")
        if languages:
            problem = f"{wanted!r} is not among them" if wanted else "none was given"
            known = ", ".join(languages)
            raise ConfigError(f"target_language: {problem}; give one of {known}, or set it in the model's config.toml")
        return []

    def limit(self, source_length: int, options: DecodeConfig) -> int:
        """Maximum number of tokens in a translation; </s> is counted in the source only."""
        return min(source_length - 1 + options.max_extra, (self.config.model.longest or sys.maxsize) - 1)

    def _attention_of(self, pieces: list[Piece], best: Combination) -> Attention | None:
        """Of a line in one piece, if any token was produced."""
        ids = produced(best[0], self.tokenizers.target.vocabulary.eos)
        return self.attention(pieces[0].ids, ids) if len(pieces) == 1 and ids else None

    def attention(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> Attention:
        """The attention weights of every head, for source ids that end in </s> and the ids produced from them."""
        target_input = [self.tokenizers.target.vocabulary.bos, *target_ids[:-1]]
        with self.inference():
            weights = self.engine.attention(source_ids, target_input)
        return Attention(
            _stacked(weights.encoder),
            _stacked(weights.decoder),
            _stacked(weights.cross),
            tuple(self.tokenizers.source.pieces(source_ids)),
            tuple(self.tokenizers.target.pieces(target_input)),
            tuple(self.tokenizers.target.pieces(target_ids)),
        )

    def cross_attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Array]:
        """What every head attends to in the source, [L, H, T, S] of each pair.

        Sources are ids that end in </s>; targets are what is fed to the decoder.
        """
        if self.choice_for(self.config.decode).engine == "cpu":
            return self._cpu_engine().cross_attention(sources, targets)
        with self.inference():
            return self.engine.cross_attention(sources, targets)

    def predict(self, batches: Sequence[Batch], count: int) -> "Iterator[Predictions]":
        """What the model predicts at every position of each batch, by teacher forcing: the best `count` ids."""
        if self.choice.engine == "cpu":
            engine = self._cpu_engine()
            yield from map_in_threads(lambda batch: engine.predict(batch, count), batches, self.batches_at_once)
            return
        for batch in batches:
            with self.inference():
                predictions = self.engine.predict(batch, count)
            yield predictions


def _load_translation_model(model: str | os.PathLike[str]) -> Bundle:
    directory = resolve_model(Path(model))
    bundle = load_bundle(directory)
    require_task(bundle.config, TRANSLATION, directory)
    return bundle


def _longest_first(lines: Sequence[str | Line]) -> list[int]:
    """The numbers of lines: slots are idle only briefly at the end of a search if its last sentences are short."""
    lengths = [len(line.text if isinstance(line, Line) else line) for line in lines]
    return sorted(range(len(lines)), key=lengths.__getitem__, reverse=True)


def _stacked(layers: "Sequence[torch.Tensor]") -> Array:
    """[layer, head, query, key] of the single sentence; zero layers if the model has no such attention."""
    if not layers:
        return np.zeros((0, 0, 0, 0), dtype=np.float32)
    return np.stack([layer_BHQK[0].float().cpu().numpy() for layer_BHQK in layers])


def _languages(data: DataConfig) -> str:
    """Return `en to de` if the training files' names give the languages, as train.en.gz does; otherwise nothing."""
    sides = []
    for paths in (data.source, data.target):
        parts = {part for path in paths for part in Path(path).name.split(".")[1:]}
        codes = [part for part in parts - {"gz", "xz"} if re.fullmatch("[a-z]{2}", part)]
        sides += codes if len(codes) == 1 else []
    return " to ".join(sides) if len(sides) == 2 else ""


def _texts(name: str, given: Iterable[str]) -> list[str]:
    """Return the argument `name` as a list of strings, or raise if it is not one."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ConfigError(f"{name}: is {type(given).__name__}; give a list of strings")
    texts = list(given)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise ConfigError(f"{name} {number}: is {type(text).__name__}; give a list of strings")
    return texts


def _refuse_sampling(glossary: Glossary | None, options: DecodeConfig) -> None:
    if glossary is not None and options.sampling:
        raise ConfigError("glossary: not with sampling; leave one of them out")


@functools.lru_cache(256)
def _with_batch_size(options: DecodeConfig, size: int) -> DecodeConfig:
    return replace(options, batch_size=size)


def _apply_requests(piece: Piece, options: DecodeConfig, terms_in: TermsIn, prefixes: Sequence[str]) -> Piece:
    """Words that were asked for stay as they are; so does one that is there because another is banned."""
    if not piece.may_change:
        return piece
    terms, prefix = tuple(terms_in(piece.text)), _prefix_of(piece, prefixes)
    asked = [*(target for term in terms for target in term.targets), prefix]
    names = piece.names.excluding(asked) if piece.names and not options.banned else None
    return piece._replace(names=names, terms=terms, prefix=prefix)


def _prefix_of(piece: Piece, prefixes: Sequence[str]) -> str:
    """What a piece must begin with: the first one of a line, if that has a prefix."""
    return "" if piece.number or not prefixes or is_blank(prefixes[piece.line]) else prefixes[piece.line]


def _text_of(line: str | Line) -> str:
    return line.text if isinstance(line, Line) else line


def _protected(lines: Sequence[str | Line], protector: Protector) -> dict[int, Protected]:
    """Of the lines in which there is something to keep, by their numbers; text that is not valid is left alone."""
    found = {number: protector.protect(_text_of(line)) for number, line in enumerate(lines)}
    return {
        number: line
        for number, line in found.items()
        if line is not None and not text_line(_text_of(lines[number])).problem
    }


def windows(lines: Iterable[T], size: int) -> Iterator[list[T]]:
    """Group lines into windows."""
    rest = iter(lines)
    while window := list(itertools.islice(rest, size)):
        yield window
