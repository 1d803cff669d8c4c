"""Text in, text out, and a status for every line: the interface of a model, its arguments and its options.

How lines are translated is in `pipeline.py`, searches are in `searcher.py`. Knows nothing of training.
"""

import itertools
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack, overload

import numpy as np

from dragoman.bundle import Bundle, Tokenizers, languages_of, load_bundle, require_task, resolve_model
from dragoman.confidence import Calibration
from dragoman.config import TRANSLATION, Config, DecodeConfig
from dragoman.data.batching import Batch
from dragoman.data.corpus import Line
from dragoman.decode import paragraphs
from dragoman.decode.engines.choice import EngineChoice, choose_engine, choose_for_ensemble
from dragoman.decode.options import DecodeOptions
from dragoman.decode.pieces import Cutter
from dragoman.decode.pipeline import Pipeline
from dragoman.decode.request import Request
from dragoman.decode.scoring import PairError, encoded_pairs, score_pairs
from dragoman.decode.searcher import BATCH_SIZES, Searcher
from dragoman.decode.steering import Steering
from dragoman.decode.terms import Glossary, GlossaryLike, glossary_of, no_terms, read_glossary
from dragoman.decode.translation import Array, Attention, Translation
from dragoman.documents.document import Parts
from dragoman.errors import ConfigError, suggestion
from dragoman.machine import find_device
from dragoman.model.footprint import parameter_counts
from dragoman.progress import Advance, no_progress

if TYPE_CHECKING:
    import torch

    from dragoman.decode.alignment import Alignment, Link
    from dragoman.decode.continuous import ContinuousSearch
    from dragoman.decode.engines.plain import Engine
    from dragoman.decode.engines.predictions import Predictions

T = TypeVar("T")


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
        choice = (
            choose_for_ensemble(engine, precision)
            if ensemble
            else choose_engine(engine, precision, bundle.config.model, self.device, int8_weights=bundle.int8)
        )
        self.searcher = Searcher(bundle, self.device, choice, precision, ensemble=ensemble, reranks=reverse is not None)
        self._bundle, self._is_ensemble = bundle, bool(ensemble)
        decode = bundle.config.decode
        decode = decode if threads is None else replace(decode, threads=threads)
        self.config: Config = replace(bundle.config, decode=decode)
        longest = min(self.config.text.max_length, self.config.model.longest or sys.maxsize)
        self.cutter = Cutter(self.tokenizers.source, longest, bundle.known_words)
        self.steering = Steering(self.tokenizers.target, self.config.model.longest)
        self._name = ""
        if choice.engine != "cpu":
            _ = self.engine  # at once, so that it is here that what it cannot run is refused

    def __repr__(self) -> str:
        parts = [
            *([repr(self._name)] if self._name else []),
            *([" to ".join(self.languages)] if all(self.languages) else []),
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
            source, target = languages_of(bundle.config.data)
            if source and reverse.languages == (source, target):
                place = os.fspath(rerank_with)
                raise ConfigError(
                    f"rerank_with: {place} translates {source} to {target} too; give a model of the other direction"
                )
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
    def choice(self) -> EngineChoice:
        """The engine and precision of searches, and why."""
        return self.searcher.choice

    @property
    def engine(self) -> "Engine":
        """The plain engine, created when first used: beside the CPU engine, few uses need it, or PyTorch at all."""
        return self.searcher.plain_engine

    @engine.setter
    def engine(self, engine: "Engine") -> None:
        self.searcher = self.searcher.with_plain_engine(engine)  # a copy of the translator may share the old one

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
        return languages_of(self.config.data)

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
        if len(texts) != len(prefixes):
            raise ConfigError(f"prefix: {len(prefixes)} for {len(texts)} texts; give one for each")
        if any(prefixes):
            self._require_spelling("prefix")
        return self._pipeline(options, attention, glossary, prefixes).translate_with_prefixes(texts)

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
        chosen = self.searcher.sized(own if is_same else replace(own, **options))  # type: ignore[arg-type]
        if chosen.banned:
            self._require_spelling("banned")
        if options.get("shortlist"):  # a model's own setting applies where it can
            self._require_shortlist(chosen)
        self._check_ranking(options, chosen)
        if options.get("confidence") and self._is_ensemble:
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

    def _require_shortlist(self, options: DecodeConfig) -> None:
        choice = self.choice_for(options)
        if choice.engine != "cpu":
            raise ConfigError(f"shortlist: runs in the CPU engine only, this is the {choice.describe()}; leave it out")
        if self._bundle.shortlist is None:
            raise ConfigError("shortlist: the model has none; make one with `dragoman shortlist`, or leave it out")

    def choice_for(self, options: DecodeConfig) -> EngineChoice:
        """The engine that searches with these options: what a fast engine cannot do runs in the plain one."""
        return self.searcher.choice_for(options)

    def window_size(self, options: DecodeConfig) -> int:
        """How many lines to translate together: enough to bucket well by length, few enough to show results early."""
        return self.searcher.window_size(options)

    @property
    def batches_at_once(self) -> int:
        """How many batches of pairs to run at the same time: the CPU engine has one thread for each."""
        return self.searcher.batches_at_once(self.config.decode)

    def limit(self, source_length: int, options: DecodeConfig) -> int:
        """Maximum number of tokens in a translation; </s> is counted in the source only."""
        return self.steering.limit(source_length, options)

    def search_continuously(self, threads: int) -> "ContinuousSearch":
        """From now on, search sentences of all callers together, on so many threads; on a GPU, one.

        The results are the same; on a GPU, but for the last digits.
        """
        return self.searcher.search_continuously(threads)

    def inference(self, threads: int | None = None) -> AbstractContextManager[None]:
        """Context for running the plain engine: no gradients, `threads` CPU threads (None: decode.threads)."""
        asked = self.config.decode.threads if threads is None else threads
        return self.searcher.inference(asked)

    def _pipeline(
        self,
        options: DecodeConfig | None,
        attention: bool = False,
        glossary: Glossary | None = None,
        prefixes: Sequence[str] = (),
    ) -> Pipeline:
        options = self.searcher.sized(options or self.config.decode)
        terms_in = no_terms if glossary is None else glossary.terms_in
        return Pipeline(self, Request(options, attention, terms_in, prefixes))

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
        pipeline = self._pipeline(options, attention, glossary)
        _refuse_sampling(glossary, pipeline.request.options)
        for window in windows:
            yield from pipeline.translate(window, range(start, start + len(window)), advance)
            start += len(window)

    def stream_text(
        self, text: str, *, glossary: GlossaryLike | None = None, **options: Unpack[DecodeOptions]
    ) -> Iterator[str]:
        """Yield the translation of a text in parts, as they become certain. Nothing is withdrawn.

        Lines are translated one after the other. Together, the parts of a line are what `translate` returns. A sentence
        with names that the model has never read comes as a whole. A line with terms of the glossary or with something
        to keep comes as a whole, and so does one that is sampled or chosen among several. With banned words, n-grams or
        a least length every line does: it may have to be searched again.
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
        _refuse_sampling(glossary, options)
        return (yield from self._pipeline(options, glossary=glossary).stream(line))

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
        pipeline, start = self._pipeline(options, glossary=glossary), 0
        for texts in windows:
            divided = [paragraphs.divide(parts) for parts in texts]
            lines = [line for own in divided for _, line in own]
            progress = paragraphs.Proportional(advance, len(lines), len(texts))
            numbers = range(start, start + len(lines))
            results = iter(pipeline.translate_parts(lines, numbers, progress.advance))
            start += len(lines)
            for parts, own in zip(texts, divided, strict=True):
                yield paragraphs.join(parts, own, results)
            progress.finish()

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

    def _pairs_of(
        self, caller: str, sources: str | Iterable[str], targets: str | Iterable[str]
    ) -> tuple[list[str], list[str]]:
        """The arguments as lists of equal length, or raise."""
        lists = _texts("sources", sources), _texts("targets", targets)
        count, others = map(len, lists)
        if count != others:
            raise ConfigError(f"{caller}: {count} sources and {others} targets; give one target per source")
        return lists

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
        return self.searcher.cross_attention(sources, targets, self.config.decode)

    def predict(self, batches: Sequence[Batch], count: int) -> "Iterator[Predictions]":
        """What the model predicts at every position of each batch, by teacher forcing: the best `count` ids."""
        return self.searcher.predict(batches, count, self.config.decode)


def _load_translation_model(model: str | os.PathLike[str]) -> Bundle:
    directory = resolve_model(Path(model))
    bundle = load_bundle(directory)
    require_task(bundle.config, TRANSLATION, directory)
    return bundle


def _stacked(layers: "Sequence[torch.Tensor]") -> Array:
    """[layer, head, query, key] of the single sentence; zero layers if the model has no such attention."""
    if not layers:
        return np.zeros((0, 0, 0, 0), dtype=np.float32)
    return np.stack([layer_BHQK[0].float().cpu().numpy() for layer_BHQK in layers])


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


def windows(lines: Iterable[T], size: int) -> Iterator[list[T]]:
    """Group lines into windows."""
    rest = iter(lines)
    while window := list(itertools.islice(rest, size)):
        yield window
