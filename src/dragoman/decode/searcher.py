"""Runs searches of one model: picks the engine for each, and creates engines when they are first used.

Jobs in, hypotheses out. Knows nothing of text, or of why a search is made.
"""

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from dragoman.bundle import Bundle
from dragoman.config import DecodeConfig, TransformerConfig
from dragoman.data.batching import Batch
from dragoman.decode.batches import (
    Job,
    Outcomes,
    Special,
    StartJoinable,
    map_in_threads,
    search_in_batches,
    search_on_threads,
    search_phrases,
)
from dragoman.decode.engines.choice import EngineChoice
from dragoman.decode.rescoring import search_options
from dragoman.decode.search import Hypothesis, stream_prefixes
from dragoman.decode.translation import Array
from dragoman.machine import choose_threads

if TYPE_CHECKING:
    from dragoman.decode.continuous import ContinuousSearch, Kind
    from dragoman.decode.continuous import Engine as ContinuousEngine
    from dragoman.decode.engines.cpu import CpuEngine
    from dragoman.decode.engines.cuda import CudaSearch
    from dragoman.decode.engines.plain import Engine
    from dragoman.decode.engines.predictions import Predictions

WINDOW_ON_CUDA = 16_384  # lines
WIDEST_BEAM_ON_CPU = 100  # it sorts candidates by insertion
BATCH_SIZES = {"plain": 64, "cuda": 512, "cpu": 32}  # sentences, unless given
_CREATION = threading.Lock()  # held while an engine is created


class Searcher:
    """The engines of a model, or of several that search together."""

    def __init__(
        self,
        bundle: Bundle,
        device: str,
        choice: EngineChoice,
        precision: str,
        *,
        ensemble: Sequence[Bundle] = (),
        reranks: bool = False,
    ) -> None:
        self.device, self.choice = device, choice
        self._bundle, self._ensemble, self._reranks = bundle, ensemble, reranks
        # what is not a search runs in float32 unless requested otherwise
        self._plain_precision = "float32" if precision == "auto" else precision
        self._plain: Engine | None = None
        self._cuda: CudaSearch | None = None
        self._cpu: CpuEngine | None = None
        self._continuous: ContinuousSearch | None = None

    # Engines

    @property
    def plain_engine(self) -> "Engine":
        """Created when first used: beside the CPU engine, few uses need it, or PyTorch at all."""
        with _CREATION:
            if self._plain is None:
                from dragoman.decode.engines.plain import Engine

                engines = [
                    Engine(bundle.model.eval(), self.device, self._plain_precision)
                    for bundle in (self._bundle, *self._ensemble)
                ]
                if len(engines) > 1:
                    from dragoman.decode.ensemble import Ensemble

                    self._plain = Ensemble(engines)
                else:
                    self._plain = engines[0]
            return self._plain

    def with_plain_engine(self, engine: "Engine") -> "Searcher":
        """A copy with another plain engine, such as one with masked heads; what else it has so far is shared."""
        other = copy(self)
        other._plain = engine
        return other

    @property
    def cpu_engine(self) -> "CpuEngine":
        from dragoman.decode.engines.cpu import CpuEngine

        with _CREATION:
            if self._cpu is None:
                config = self._bundle.config.model
                assert isinstance(config, TransformerConfig)
                self._cpu = CpuEngine(config, self._bundle.weights, self.choice.precision)
            return self._cpu

    @property
    def cuda_engine(self) -> "CudaSearch":
        import torch

        from dragoman.decode.engines.cuda import CudaSearch
        from dragoman.model.transformer import Transformer

        with _CREATION:
            if self._cuda is None:
                model = self._bundle.model
                assert isinstance(model, Transformer)
                self._cuda = CudaSearch(model, torch.device(self.device), getattr(torch, self.choice.precision))
            return self._cuda

    @contextmanager
    def inference(self, threads: int) -> Iterator[None]:
        """Context for running the plain engine: no gradients, so many CPU threads; 0 is what suits the model."""
        import torch

        from dragoman.device import cpu_threads, keep_onednn

        count = choose_threads(threads, self._bundle.config.model.d_model)
        with torch.inference_mode(), cpu_threads(count), keep_onednn():
            yield

    # Which engine, and how much at a time

    def choice_for(self, options: DecodeConfig) -> EngineChoice:
        """The engine that searches with these options: what a fast engine cannot do runs in the plain one."""
        options = self.search_options(options)
        if self.choice.engine == "plain":
            return self.choice
        if self.choice.engine == "cuda":
            from dragoman.decode.engines.cuda import supports

            unable = not supports(options)
            reason = "the CUDA engine has no sampling, wide or diverse beams or head masks"
        else:
            unable = options.sampling or options.beam > WIDEST_BEAM_ON_CPU
            reason = f"the CPU engine has no sampling, head masks or beams wider than {WIDEST_BEAM_ON_CPU}"
        if unable or (self._plain is not None and self._plain.is_masked):
            return EngineChoice("plain", self._plain_precision, reason)
        return self.choice

    def cuda_for(self, options: DecodeConfig) -> "CudaSearch | None":
        """The CUDA engine, if it searches with these options, for one caller at a time."""
        return self.cuda_engine if self._uses_cuda(options) and self._continuous is None else None

    def _uses_cuda(self, options: DecodeConfig) -> bool:
        return self.choice_for(options).engine == "cuda"

    def search_options(self, options: DecodeConfig) -> DecodeConfig:
        return search_options(options, reranks=self._reranks)

    def sized(self, options: DecodeConfig) -> DecodeConfig:
        """Fill in the engine's own batch size."""
        if options.batch_size:
            return options
        return _with_batch_size(options, BATCH_SIZES[self.choice_for(options).engine])

    def window_size(self, options: DecodeConfig) -> int:
        """How many lines to translate together: enough to bucket well by length, few enough to show results early."""
        if self._uses_cuda(options):
            return WINDOW_ON_CUDA
        on_cpu_engine = self.choice_for(options).engine == "cpu"
        batches = max(32, 4 * self._threads(options)) if on_cpu_engine else 16
        return batches * self.sized(options).batch_size

    def batches_at_once(self, options: DecodeConfig) -> int:
        """How many batches of pairs to run at the same time: the CPU engine has one thread for each."""
        return self._threads(options) if self.choice_for(options).engine == "cpu" else 1

    def _threads(self, options: DecodeConfig) -> int:
        return choose_threads(options.threads, self._bundle.config.model.d_model)

    # Searches

    @property
    def special(self) -> Special:
        ids = self._bundle.tokenizers.target.vocabulary
        return Special(ids.bos, ids.eos, ids.never_predicted)

    def search(self, jobs: list[Job], options: DecodeConfig) -> Outcomes:
        """Yield the outcome of each job when it is done."""
        special, options = self.special, self.search_options(options)
        if self._continuous is not None:
            return self._continuous.search(jobs, options)
        if self.choice_for(options).engine != "cpu":
            return search_in_batches(self.plain_engine.start, jobs, options, special, self.device)
        threads = max(1, min(self._threads(options), len(jobs)))
        start, joining = self._start_on_cpu(options)
        return search_on_threads(start, jobs, options, special, threads, joining=joining)

    def search_with_phrases(self, jobs: list[Job], options: DecodeConfig) -> list[list[Hypothesis]]:
        """Hypotheses with the phrases of each job; none if there are none."""
        if not jobs:
            return []
        from dragoman.decode.continuous import unless_over

        if self.choice_for(options).engine != "cpu":
            start = unless_over(self.plain_engine.start)
            return search_phrases(start, jobs, options, self.special, self.device, threads=1)
        start = unless_over(self.cpu_engine.start)
        return search_phrases(start, jobs, options, self.special, "cpu", self._threads(options))

    def stream(self, job: Job, options: DecodeConfig) -> Iterator[tuple[tuple[int, ...], Hypothesis | None]]:
        """After every step of a search, yield the ids that are certain so far; in the end, the best hypothesis too."""
        on_cpu_engine = self.choice_for(options).engine == "cpu"
        start = self.cpu_engine.start if on_cpu_engine else self.plain_engine.start
        steps, best = None, None
        while best is None:
            with nullcontext() if on_cpu_engine else self.inference(options.threads):
                # each step within it, not the generator: what the caller does meanwhile is no concern of ours
                if steps is None:
                    steps = stream_prefixes(start([job.source]), job.limit, options, **self.special._asdict())
                ids, best = next(steps)
            yield ids, best

    def _start_on_cpu(self, options: DecodeConfig) -> tuple[StartJoinable, bool]:
        """How a batch starts in the CPU engine, and whether others may join it."""
        shortlist = self._bundle.shortlist if options.shortlist else None
        joining = shortlist is None and options.diversity_groups == 1  # else sentences start together
        return functools.partial(self.cpu_engine.start, shortlist=shortlist), joining

    # Searches of several callers

    def search_continuously(self, threads: int) -> "ContinuousSearch":
        """From now on, search sentences of all callers together, on so many threads; on a GPU, one.

        The results are the same; on a GPU, but for the last digits.
        """
        from dragoman.decode.continuous import ContinuousSearch

        self._continuous = ContinuousSearch(self._engine_of, threads if self.device == "cpu" else 1)
        return self._continuous

    def _engine_of(self, kind: "Kind") -> "ContinuousEngine":
        from dragoman.decode.continuous import Engine

        options, special = kind.options, self.special
        engine = self.choice_for(options).engine
        if engine == "cuda" and not kind.is_constrained:
            return self._continuous_on_cuda(options)
        if engine != "cpu":
            context = functools.partial(self.inference, options.threads)
            return Engine(self.plain_engine.start, special, options.batch_size, self.device, False, context)
        start, can_join = self._start_on_cpu(options)
        return Engine(start, special, options.batch_size, "cpu", can_join, nullcontext)

    def _continuous_on_cuda(self, options: DecodeConfig) -> "ContinuousEngine":
        from dragoman.decode.continuous import Engine
        from dragoman.decode.engines.cuda import SOURCE_TOKENS

        special, cuda = self.special, self.cuda_engine

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
        return Engine(self.plain_engine.start, special, size, self.device, False, context, tokens, begin)

    # Given pairs

    def cross_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], options: DecodeConfig
    ) -> list[Array]:
        """What every head attends to in the source, [L, H, T, S] of each pair.

        Sources are ids that end in </s>; targets are what is fed to the decoder.
        """
        if self.choice_for(options).engine == "cpu":
            return self.cpu_engine.cross_attention(sources, targets)
        with self.inference(options.threads):
            return self.plain_engine.cross_attention(sources, targets)

    def predict(self, batches: Sequence[Batch], count: int, options: DecodeConfig) -> "Iterator[Predictions]":
        """What the model predicts at every position of each batch, by teacher forcing: the best `count` ids."""
        if self.choice.engine == "cpu":
            engine = self.cpu_engine
            yield from map_in_threads(
                lambda batch: engine.predict(batch, count), batches, self.batches_at_once(options)
            )
            return
        for batch in batches:
            with self.inference(options.threads):
                predictions = self.plain_engine.predict(batch, count)
            yield predictions


@functools.lru_cache(256)
def _with_batch_size(options: DecodeConfig, size: int) -> DecodeConfig:
    return replace(options, batch_size=size)
