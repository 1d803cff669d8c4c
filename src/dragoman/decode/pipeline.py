"""From lines to their translations: what is kept is set aside, the rest cut into pieces, searched, and joined again.

Knows nothing of files, and leaves arguments to the translator, engines to the searcher.
"""

import functools
import itertools
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dragoman.data.corpus import Line, text_line
from dragoman.decode.assembly import Combination, details_of, produced, status_of
from dragoman.decode.batches import Job, Outcome, out_of_memory
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
from dragoman.decode.pieces import Piece, Window, join
from dragoman.decode.protected import Protected
from dragoman.decode.protection import Protector, protect_parts, without_own
from dragoman.decode.request import Request
from dragoman.decode.rescoring import rescored
from dragoman.decode.search import Hypothesis
from dragoman.decode.streaming import stream_joined
from dragoman.decode.terms import Glossary, Term, no_terms
from dragoman.decode.translation import Attention, Translation, translated
from dragoman.documents.document import Parts, text_of
from dragoman.progress import Advance, no_progress
from dragoman.text.normalize import is_blank

if TYPE_CHECKING:
    from dragoman.decode.engines.cuda import CudaSearch
    from dragoman.decode.translator import Translator

PART_ON_CUDA = 512  # lines, at least
MAX_PARTS = 8  # on the device


@dataclass(frozen=True)
class Pipeline:
    """Translates lines as a request asks. `numbers` of lines are those in the caller's job: samples depend on them."""

    translator: "Translator"
    request: Request

    # Around what is kept

    def translate(
        self, lines: Sequence[str | Line], numbers: Sequence[int], advance: Advance = no_progress
    ) -> list[Translation]:
        """Translate one window of lines, and keep in each what is to be kept."""
        found = self._find_kept(lines)
        texts = [found[number].text if number in found else line for number, line in enumerate(lines)]
        worded = {number: line for number, line in found.items() if line.has_words}
        for number in found.keys() - worded.keys():
            texts[number] = ""  # nothing to translate
        results = self._translate_window(texts, numbers, advance)
        first = [results[number] for number in worded]
        restored = iter(self._restore(list(worded.values()), first, [numbers[number] for number in worded]))
        for number, line in found.items():
            source = _text_of(lines[number])
            if number in worded:
                results[number] = restored_line(source, line, next(restored))
            else:
                results[number] = unchanged_line(source, line)
        return [with_spaces_around(result) for result in results]

    def translate_with_prefixes(self, texts: Sequence[str]) -> list[Translation]:
        """Translate texts, each to begin with the prefix that the request has for it."""
        lines, prefixes = self._find_kept(texts), self.request.prefixes
        shown = [lines[number].text if number in lines else text for number, text in enumerate(texts)]
        results = self._translate_window(shown, range(len(shown)))
        for number, line in lines.items():  # one by one: each has its own prefix
            own = replace(self.request, prefixes=[line.with_stand_ins(prefixes[number])])
            (restored,) = replace(self, request=own)._restore([line], [results[number]], [number])
            results[number] = restored_line(texts[number], line, restored)
        return [
            with_spaces_around(result, has_prefix=not is_blank(prefix))
            for result, prefix in zip(results, prefixes, strict=True)
        ]

    def translate_parts(
        self, texts: Sequence[Parts], numbers: Sequence[int], advance: Advance
    ) -> list[tuple[Translation, Parts | None]]:
        """Translate texts with marks and kept words; also return each with these, or None if it failed."""
        protector = self._protector if self.request.options.protect else None
        lines = [protect_parts(parts, protector) for parts in texts]
        worded = [number for number, line in enumerate(lines) if line.has_words]
        results: list[tuple[Translation, Parts | None]] = [
            (Translation(text_of(parts), text_of(parts), "translated"), parts) for parts in texts
        ]
        advance(len(lines) - len(worded))
        own, own_numbers = [lines[number] for number in worded], [numbers[number] for number in worded]
        first = self._translate_window([line.text for line in own], own_numbers, advance)
        for number, (translation, own_parts, _) in zip(worded, self._restore(own, first, own_numbers), strict=True):
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

    @functools.cached_property
    def _protector(self) -> Protector:
        options, known = self.request.options, self.translator.cutter.known_words
        return Protector(options.protect, options.split == "sentences", known.source if known else None)

    def _find_kept(self, lines: Sequence[str | Line]) -> dict[int, Protected]:
        """Lines in which there is something to keep, by their numbers; text that is not valid is left alone."""
        if not self.request.options.protect:
            return {}
        protector = self._protector
        found = {number: protector.protect(_text_of(line)) for number, line in enumerate(lines)}
        return {
            number: line
            for number, line in found.items()
            if line is not None and not text_line(_text_of(lines[number])).problem
        }

    def _restore(
        self, lines: list[Protected], translations: list[Translation], numbers: Sequence[int]
    ) -> list[Restored]:
        """Put back what each line keeps; translate again what has lost something, with terms that must appear."""

        def translate(texts: list[str], terms: list[Term], places: list[int]) -> list[Translation]:
            return self._with_terms(terms)._translate_window(texts, [numbers[place] for place in places])

        return restore_kept(lines, translations, translate, self.translator.align_if_possible)

    def _with_terms(self, terms: list[Term]) -> "Pipeline":
        """The same, with more terms."""
        if not terms:
            return self
        own, others = self.request.terms_in, Glossary(terms).terms_in
        return replace(self, request=replace(self.request, terms_in=lambda text: [*own(text), *others(text)]))

    # A window: from lines to pieces, from pieces to hypotheses, and back

    def _translate_window(
        self, lines: Sequence[str | Line], numbers: Sequence[int], advance: Advance = no_progress
    ) -> list[Translation]:
        options, searcher = self.request.options, self.translator.searcher
        without_torch = searcher.choice_for(options).engine == "cpu" and not self.request.attention
        with nullcontext() if without_torch else self.translator.inference(options.threads):
            engine = None if self.request.prefixes else searcher.cuda_for(options)
            if engine is not None:
                with engine.exclusive(), without_garbage_collection(len(lines)):
                    return self._translate_on_cuda(engine, lines, advance)
            window = self._prepare(lines)
            advance(len(window.results))
            jobs = self.translator.steering.jobs(window.pieces, self.request, numbers)
            return self._finish(window, self._search(jobs, window.pieces, advance))

    def _prepare(self, lines: Sequence[str | Line]) -> Window:
        """Set aside blank and invalid lines; split the others into pieces."""
        window = self._into_sentences(lines)
        ids = self.translator.tokenizers.source.encode_batch(window.inputs)
        return self._into_pieces(window, ids)

    def _into_sentences(self, lines: Sequence[str | Line]) -> Window:
        """A word is banned as it is written, so no translation is put in capitals then."""
        options = self.request.options
        return self.translator.cutter.into_sentences(lines, options.split, options.recase and not options.banned)

    def _into_pieces(self, window: Window, ids: list[list[int]]) -> Window:
        options = self.request.options
        tag = self.translator.language_tag(options)
        return self.translator.cutter.into_pieces(window, ids, tag, options.restore_names)

    def _search(self, jobs: list[Job], pieces: list[Piece], advance: Advance = no_progress) -> list[Outcome]:
        """Return the outcomes in the order of the pieces."""
        outcomes: dict[int, Outcome] = {}
        left = Counter(piece.line for piece in pieces)
        for number, outcome in self.translator.searcher.search(jobs, self.request.options):
            outcomes[number] = outcome
            line = pieces[number].line
            left[line] -= 1
            if not left[line]:
                advance(1)
        return [outcomes[number] for number in range(len(pieces))]

    def _finish(self, window: Window, outcomes: list[Outcome]) -> list[Translation]:
        """Search again for what breaks a rule or lacks a term, then make the translations of all lines, in order."""
        self._keep_rules(window, outcomes)
        outcomes = rescored(self.translator, [piece.ids for piece in window.pieces], outcomes, self.request.options)
        if self.request.terms_in is not no_terms:
            self._keep_terms(window, outcomes)
        return self._assemble(window, outcomes)

    def _keep_rules(self, window: Window, outcomes: list[Outcome]) -> None:
        """Search again, with the rules, for pieces whose translations break one. The others stay as they are."""
        steering, searcher, options = self.translator.steering, self.translator.searcher, self.request.options
        broken = steering.find_broken(window.pieces, outcomes, self.request)
        if not broken:
            return
        pieces, numbers = [window.pieces[number] for number in broken], range(len(window.texts))
        jobs = steering.jobs(pieces, self.request, numbers, constrained=True)
        for place, outcome in searcher.search(jobs, options):
            outcomes[broken[place]] = outcome

    def _keep_terms(self, window: Window, outcomes: list[Outcome]) -> None:
        """Search again for pieces in whose translation a term is missing; note those for which nothing is found."""
        steering, request, align = self.translator.steering, self.request, self.translator.align_pieces
        terms_of = {
            number: terms
            for number, (piece, outcome) in enumerate(zip(window.pieces, outcomes, strict=True))
            if not isinstance(outcome, str) and (terms := request.terms_in(piece.text))
        }
        missing = steering.find_missing(terms_of, outcomes)
        pieces = [window.pieces[number] for number in missing]
        constrained = steering.jobs(pieces, request, range(len(window.texts)), constrained=True)
        jobs = [
            steering.add_terms(job, piece, terms, outcomes[number], request, align)
            for job, piece, (number, terms) in zip(constrained, pieces, missing.items(), strict=True)
        ]
        results = self.translator.searcher.search_with_phrases(jobs, request.options)
        for number, found in zip(missing, results, strict=True):
            if found:
                outcomes[number] = found
        for number, terms in steering.find_missing(missing, outcomes).items():
            names = ", ".join(repr(term.targets[0]) for term in terms)
            window.altered.setdefault(window.pieces[number].line, f"{names} could not be placed")

    def _assemble(self, window: Window, outcomes: Sequence[Outcome]) -> list[Translation]:
        tokenizers, calibration, options = self.translator.tokenizers, self.translator.calibration, self.request.options
        results, found = window.results, _choices_of(window, outcomes)
        rows = [hypotheses[0].ids for choices in found.values() for hypotheses in choices]
        texts = iter(tokenizers.target.decode_batch(rows))
        for number, choices in found.items():
            pieces = [self.request.apply_to(piece) for piece in window.pieces_of[number]]
            best = [hypotheses[0] for hypotheses in choices]
            own = [piece.finish(next(texts)) for piece in pieces]
            text = join(pieces, own)
            results[number] = translated(
                window.texts[number],
                text,
                "altered" if number in window.altered else status_of(pieces, best),
                # of the tokenizers alone: a result must not keep a model in memory
                functools.partial(details_of, tokenizers, pieces, choices, own, text, options, calibration),
                self._attention_of(pieces, best) if self.request.attention else None,
                window.altered.get(number, ""),
            )
        return [results[number] for number in range(len(window.texts))]

    def _attention_of(self, pieces: list[Piece], best: Combination) -> Attention | None:
        """Of a line in one piece, if any token was produced."""
        ids = produced(best[0], self.translator.tokenizers.target.vocabulary.eos)
        return self.translator.attention(pieces[0].ids, ids) if len(pieces) == 1 and ids else None

    # A window on a GPU

    def _translate_on_cuda(
        self, engine: "CudaSearch", lines: Sequence[str | Line], advance: Advance
    ) -> list[Translation]:
        """Part by part, the longest lines first: while the device searches, the host prepares what comes next."""
        searcher, steering, options = self.translator.searcher, self.translator.steering, self.request.options
        asked = searcher.search_options(options)
        search = engine.begin(asked, expected=len(lines), **searcher.special._asdict())
        results: dict[int, Translation] = {}
        under_way: deque[tuple[Sequence[int], Window]] = deque()

        def finish() -> None:
            numbers, window = under_way.popleft()
            hypotheses = {number: each for part in search.take() for number, each in part.hypotheses(asked)}
            advance(len(numbers))
            outcomes = [hypotheses[number] or out_of_memory(piece.ids) for number, piece in enumerate(window.pieces)]
            results.update(zip(numbers, self._finish(window, outcomes), strict=True))

        order, size = _longest_first(lines), max(PART_ON_CUDA, options.batch_size)
        parts = [order[first : first + size] for first in range(0, len(order), size)]
        lines_of_parts = [[lines[number] for number in numbers] for numbers in parts]
        with closing(self._prepare_parts(lines_of_parts)) as prepared:  # ends its thread whatever happens
            for numbers, window in zip(parts, prepared, strict=True):
                sources = [piece.ids for piece in window.pieces]
                search.add(sources, [steering.limit(len(source), options) for source in sources])
                under_way.append((numbers, window))
                while under_way and (len(under_way) > MAX_PARTS or search.is_ready()):
                    finish()
        while under_way:
            finish()
        return [results[number] for number in range(len(lines))]

    def _prepare_parts(self, parts: Sequence[Sequence[str | Line]]) -> Generator[Window]:
        """Prepare one part after the other; a thread tokenizes the next one meanwhile."""
        if len(parts) == 1:
            yield self._prepare(parts[0])
            return
        with ThreadPoolExecutor(1) as thread:
            under_way: deque[tuple[Window, Future[list[list[int]]]]] = deque()
            for lines in parts:
                window = self._into_sentences(lines)
                encode = self.translator.tokenizers.source.encode_batch
                under_way.append((window, thread.submit(encode, window.inputs)))
                if len(under_way) > 1:
                    before, ids = under_way.popleft()
                    yield self._into_pieces(before, ids.result())
            for window, ids in under_way:
                yield self._into_pieces(window, ids.result())

    # A line that is shown while it is searched

    def stream(self, line: str | Line) -> Generator[str, None, Translation]:
        """Yield the translation of a line in parts, as they become certain; return it with its status."""
        options, searcher = self.request.options, self.translator.searcher
        keeps = bool(options.protect) and self._protector.protect(_text_of(line)) is not None
        window = self._prepare([line])
        has_terms = any(self.request.terms_in(piece.text) for piece in window.pieces)
        chooses = options.sampling or options.diversity_groups > 1 or searcher.search_options(options) != options
        if keeps or has_terms or chooses or window.results or not self.translator.tokenizers.target.grows:
            (result,) = self.translate([line], [0])
            yield result.text
            return result
        outcomes: list[Outcome] = []
        jobs = zip(window.pieces, self.translator.steering.jobs(window.pieces, self.request, [0]), strict=True)
        before, after = spaces_around(window.texts[0])
        parts = stream_joined((piece.glue, self._stream_piece(piece, job, outcomes)) for piece, job in jobs)
        if first := next(parts, ""):  # a model may have nothing to say
            yield before + first
            yield from parts
            yield from filter(None, [after])
        (result,) = self._finish(window, outcomes)
        return with_spaces_around(result)

    def _stream_piece(self, piece: Piece, job: Job, outcomes: list[Outcome]) -> Iterator[tuple[str, bool]]:
        """The text of a piece so far, after every step of its search, and whether it is complete.

        Its hypothesis is added to `outcomes` in the end.
        """
        decode = self.translator.tokenizers.target.decode
        for ids, best in self.translator.searcher.stream(job, self.request.options):
            if best is not None:
                outcomes.append([best])
            if best is not None or not piece.names:  # names are restored once the whole is known
                yield piece.finish(decode(ids), is_complete=best is not None), best is not None


def _choices_of(window: Window, outcomes: Sequence[Outcome]) -> dict[int, list[list[Hypothesis]]]:
    """The hypotheses for each piece of a line, by its number; a line with a piece that has none is marked as failed."""
    rest, found = iter(outcomes), dict[int, list[list[Hypothesis]]]()
    for number, pieces in window.pieces_of.items():
        choices: list[list[Hypothesis]] = []
        for outcome in itertools.islice(rest, len(pieces)):
            if isinstance(outcome, str):
                window.results.setdefault(number, Translation(window.texts[number], "", "failed", reason=outcome))
            else:
                choices.append(outcome)
        if len(choices) == len(pieces):
            found[number] = choices
    return found


def _longest_first(lines: Sequence[str | Line]) -> list[int]:
    """The numbers of lines: slots are idle only briefly at the end of a search if its last sentences are short."""
    lengths = [len(_text_of(line)) for line in lines]
    return sorted(range(len(lines)), key=lengths.__getitem__, reverse=True)


def _text_of(line: str | Line) -> str:
    return line.text if isinstance(line, Line) else line
