"""Sentences of many callers in one search: each gets what a search of its own finds, whatever the others do."""

import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

import dragoman
from dragoman.config import DecodeConfig
from dragoman.decode import continuous
from dragoman.decode.batches import Job, Outcome, Special, Start, search_batch
from dragoman.decode.constraints import Choice
from dragoman.decode.continuous import (
    _UNLIMITED,
    ContinuousSearch,
    Engine,
    GivenUp,
    Kind,
    Ticket,
    current_ticket,
    serving,
    unless_over,
)
from dragoman.decode.engines.cpu import CpuEngine
from dragoman.decode.search import search_with_joins
from dragoman.decode.translator import Translator
from dragoman.tensors import named_arrays
from tests.searching import SPECIAL as SMALL
from tests.searching import make_jobs, random_model
from tests.unit.test_searched_batches import JOBS, OUT_OF_MEMORY, SPECIAL, Joinable

OPTIONS = [
    DecodeConfig(beam=1, batch_size=3),
    DecodeConfig(beam=3, n_best=3, batch_size=3),
    DecodeConfig(beam=2, batch_size=4, length_penalty=1.0),
]
GREEDY, BEAM, _ = OPTIONS
SECONDS = 30  # for anything that must happen, however busy the machine


def engine(start: Start, size: int = 3, can_join: bool = True, special: Special = SPECIAL) -> Engine:
    return Engine(start, special, size, "cpu", can_join, nullcontext)


def searching(start: Start, threads: int = 1, **how: Any) -> ContinuousSearch:
    return ContinuousSearch(lambda kind: engine(start, **how), threads)


def alone(jobs: Sequence[Job], options: DecodeConfig, start: Start = Joinable, special: Special = SPECIAL) -> list[Any]:
    return [search_batch(start, [job], options, special, "cpu")[0] for job in jobs]


def found(search: ContinuousSearch, jobs: Sequence[Job], options: DecodeConfig) -> list[Outcome]:
    with serving(Ticket(SECONDS)) if current_ticket() is _UNLIMITED else nullcontext():  # rather than hang
        outcomes = dict(search.search(jobs, options))
    return [outcomes[number] for number in range(len(jobs))]


def as_others_ask(
    search: ContinuousSearch, requests: Sequence[tuple[Sequence[Job], DecodeConfig, Ticket]]
) -> list[list[Outcome] | None]:
    """What each request finds, all of them at once; None if it was given up."""

    def ask(request: tuple[Sequence[Job], DecodeConfig, Ticket]) -> list[Outcome] | None:
        jobs, options, ticket = request
        with serving(ticket):
            try:
                return found(search, jobs, options)
            except GivenUp:
                return None

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(ask, requests))


class Impatient(Ticket):
    """Over as soon as anybody has asked so many times: at another step of the search for each number."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    @property
    def is_over(self) -> bool:
        self._times -= 1
        return self._times < 0


def random_requests(seed: int, jobs: Sequence[Job], count: int = 18) -> list[tuple[list[Job], DecodeConfig, Ticket]]:
    """A third of them are given up."""
    chance = random.Random(seed)
    return [
        (
            chance.sample(jobs, chance.randrange(1, 6)),
            chance.choice(OPTIONS),
            Impatient(chance.randrange(12)) if chance.random() < 1 / 3 else Ticket(),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("can_join", [True, False])
def test_others_change_nothing(threads: int, can_join: bool) -> None:
    requests = random_requests(threads, JOBS)
    search = searching(Joinable, threads, can_join=can_join)
    results = as_others_ask(search, requests)
    for (jobs, options, ticket), result in zip(requests, results, strict=True):
        assert result == alone(jobs, options) or (result is None and isinstance(ticket, Impatient))
    assert None in results
    assert (search.running, search.waiting) == (0, 0)


def test_sentences_that_are_done_are_forgotten_while_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under steady load a search never ends."""
    alive, watched, found, jobs = weakref.WeakSet[Any](), list[int](), list[int](), JOBS * 20

    class Watched(continuous._Sentence):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            alive.add(self)
            watched.append(1)

    monkeypatch.setattr(continuous, "_Sentence", Watched)
    with serving(Ticket(SECONDS)):
        for number, _ in enumerate(searching(Joinable).search(jobs, GREEDY), start=1):
            found.append(len(alive) + number)
    assert len(watched) == len(jobs), "the control"
    assert max(found) <= len(jobs) + 10, "those that are left, and those done but not yet read"


def test_the_control_a_model_that_sees_its_neighbours_answers_differently() -> None:
    class Nosy(Joinable):
        def log_probs_of(self, sentence: int, fed: tuple[int, ...]) -> Any:
            return super().log_probs_of(sentence + len(self.sentences), fed)

    requests = [(JOBS[4:], GREEDY, Ticket()) for _ in range(8)]
    expected = alone(JOBS[4:], GREEDY, Nosy)
    assert any(result != expected for result in as_others_ask(searching(Nosy), requests))


class Device:
    """Searches in loads, as a GPU does: a load is done some rounds after it was added. Sentences of 99 do not fit."""

    def __init__(self, options: DecodeConfig, rounds: int = 3) -> None:
        self.options, self.rounds = options, rounds
        self.loads = dict[int, tuple[int, list[Job]]]()  # rounds that are left, and what was asked for
        self.sizes = list[int]()
        self.given_up = list[tuple[int, int]]()

    def add(self, sources: Sequence[Sequence[int]], limits: Sequence[int]) -> int:
        assert sources
        jobs = [Job([*source], limit, 0) for source, limit in zip(sources, limits, strict=True)]
        load = len(self.sizes)
        self.sizes.append(len(jobs))
        self.loads[load] = (self.rounds + load % 2, jobs)
        return load

    def advance(self) -> list[tuple[int, list[tuple[int, list[Any] | None]]]]:
        assert self.loads
        done = list[tuple[int, list[tuple[int, list[Any] | None]]]]()
        for load, (left, jobs) in list(self.loads.items()):
            self.loads[load] = (left - 1, jobs)
            if left == 1:
                del self.loads[load]
                done.append((load, [(number, self._found(job)) for number, job in reversed([*enumerate(jobs)])]))
        return done

    def _found(self, job: Job) -> list[Any] | None:
        (outcome,) = alone([job], self.options)
        return None if job.source[0] == 99 else outcome

    def give_up(self, load: int, number: int) -> None:
        assert number < len(self.loads[load][1])
        self.given_up.append((load, number))


def searching_on_device(devices: list[Device], kind_of_device: Callable[..., Any] = Device) -> ContinuousSearch:
    def engine_of(kind: Kind) -> Engine:
        def begin() -> Device:
            devices.append(kind_of_device(kind.options))
            return devices[-1]

        return engine(Joinable, size=6)._replace(begin=begin, tokens=40)

    return ContinuousSearch(engine_of, 1)


def test_others_change_nothing_on_a_device() -> None:
    devices = list[Device]()
    requests = random_requests(2, JOBS)
    search = searching_on_device(devices)
    results = as_others_ask(search, requests)
    for (jobs, options, ticket), result in zip(requests, results, strict=True):
        assert result == alone(jobs, options) or (result is None and isinstance(ticket, Impatient))
    assert None in results
    assert max(size for device in devices for size in device.sizes) <= 6
    assert not any(device.loads for device in devices)
    given_up = [each for device in devices for each in device.given_up]
    assert given_up
    assert len({(id(device), *each) for device in devices for each in device.given_up}) == len(given_up), "only once"
    assert (search.running, search.waiting) == (0, 0)


def test_a_sentence_that_does_not_fit_in_the_memory_of_a_device_says_so() -> None:
    jobs = [JOBS[3], Job([99, 99, 99], 5, 0), JOBS[5]]
    first, second, third = found(searching_on_device([]), jobs, GREEDY)
    assert second == "out of memory at 3 tokens"
    assert [first, third] == alone([JOBS[3], JOBS[5]], GREEDY)


def test_what_a_device_fails_to_search_is_searched_one_by_one() -> None:
    class Broken(Device):
        def advance(self) -> Any:
            raise ValueError("an illegal memory access was encountered")

    devices = list[Device]()
    assert found(searching_on_device(devices, Broken), JOBS, BEAM) == alone(JOBS, BEAM)
    assert devices, "the control"


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "int8"])
def test_others_do_not_change_a_bit_in_the_cpu_engine(precision: str) -> None:
    model = random_model(5)
    start, special = CpuEngine(model.config, named_arrays(model), precision).start, Special(**SMALL)
    jobs = [Job(source, limit, 0) for source, limit in zip(*make_jobs(7, 24), strict=True)]
    requests = random_requests(3, jobs)
    results = as_others_ask(searching(start, 2, special=special), requests)
    for (own, options, ticket), result in zip(requests, results, strict=True):
        assert result == alone(own, options, start, special) or (result is None and isinstance(ticket, Impatient))


@pytest.mark.parametrize("options", OPTIONS[:2], ids=["greedy", "beam"])
@pytest.mark.parametrize("step", range(6))
def test_a_sentence_may_join_or_leave_after_any_step(options: DecodeConfig, step: int) -> None:
    first, second = JOBS[6:10], JOBS[10:]
    decoding, steps, waiting = Joinable([job.source for job in first]), iter(range(100)), list(second)

    def join(others: int) -> list[int]:
        new = waiting[:]
        waiting.clear()
        if new:
            decoding.join([job.source for job in new])
        return [job.limit for job in new]

    def traffic(sentence_B: Any) -> Any:
        return sentence_B == 1 if next(steps) == step else None  # the second sentence is given up

    limits = [job.limit for job in first]
    outcomes = dict(search_with_joins(decoding, limits, options, join, traffic, **SPECIAL._asdict()))
    expected = alone([*first, *second], options)
    assert [outcomes[number] for number in (0, 2, 3, 4, 5)] == [expected[number] for number in (0, 2, 3, 4, 5)]
    assert len(outcomes[1][0].ids) <= step + 1 or outcomes[1] == expected[1]


def test_who_is_given_up_before_the_search_is_not_searched() -> None:
    started = list[Any]()

    def start(sources: Any) -> Joinable:
        started.append(sources)
        return Joinable(sources)

    ticket = Ticket()
    ticket.give_up()
    search = searching(start)
    with serving(ticket), pytest.raises(GivenUp):
        found(search, JOBS, GREEDY)
    with serving(Ticket(seconds=-1)), pytest.raises(GivenUp):
        found(search, JOBS, GREEDY)
    assert found(search, JOBS[:1], GREEDY) == alone(JOBS[:1], GREEDY)
    assert started == [[JOBS[0].source]]
    with serving(Ticket(seconds=SECONDS)):
        assert found(search, JOBS, GREEDY) == alone(JOBS, GREEDY), "the control: there is time"


class Gate:
    """Lets the first search go on when it is opened; keeps notes of what the searches do."""

    def __init__(self) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.notes = list[tuple[str, list[int]]]()

    def start(self, sources: Any) -> Joinable:
        gate = self
        gate.notes.append(("start", [source[0] for source in sources]))

        class Gated(Joinable):
            def best(self, id_BW: Any, count: int) -> Any:
                gate.entered.set()
                assert gate.opened.wait(SECONDS)
                return super().best(id_BW, count)

            def join(self, sources: Any) -> None:
                gate.notes.append(("join", [source[0] for source in sources]))
                super().join(sources)

        return Gated(sources)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def wait_for(happens: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if happens():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def test_nobody_waits_for_a_search_that_is_busy_once_given_up(gate: Gate, pool: ThreadPoolExecutor) -> None:
    search = searching(gate.start)
    first = pool.submit(found, search, JOBS[5:6], GREEDY)
    assert gate.entered.wait(SECONDS)
    ticket = Ticket()

    def ask() -> list[Outcome]:
        with serving(ticket):
            return found(search, JOBS[6:8], GREEDY)

    second = pool.submit(ask)
    wait_for(lambda: search.waiting == 2)
    ticket.give_up()
    assert isinstance(second.exception(SECONDS), GivenUp)
    assert search.waiting == 0
    assert not first.done(), "the control: the search is still busy"
    gate.opened.set()
    assert first.result(SECONDS) == alone(JOBS[5:6], GREEDY)


def test_who_has_waited_longest_comes_first_among_kinds(gate: Gate, pool: ThreadPoolExecutor) -> None:
    """While one of another kind waits, nobody joins, although there is room; afterwards they do."""
    search = searching(gate.start, size=8)
    asked = [pool.submit(found, search, JOBS[11:], GREEDY)]
    assert gate.entered.wait(SECONDS)
    for number, (jobs, options) in enumerate([(JOBS[10:11], BEAM), (JOBS[8:10], GREEDY), (JOBS[7:8], BEAM)]):
        before = search.waiting
        asked.append(pool.submit(found, search, jobs, options))
        wait_for(lambda before=before, jobs=jobs: search.waiting == before + len(jobs))  # type: ignore[misc]
        assert len(asked) == number + 2
    gate.opened.set()
    expected = [alone(JOBS[11:], GREEDY), alone(JOBS[10:11], BEAM), alone(JOBS[8:10], GREEDY), alone(JOBS[7:8], BEAM)]
    assert [each.result(SECONDS) for each in asked] == expected
    keys = [job.source[0] for job in JOBS]
    assert gate.notes[0] == ("start", [keys[11]])
    assert gate.notes[1][0] == "start"
    assert keys[10] in gate.notes[1][1], "the first who waited, and whoever of its kind waits too"
    later = next(place for place, note in enumerate(gate.notes) if keys[8] in note[1])
    assert later >= 2, gate.notes


def test_loads_are_added_while_a_device_is_busy(gate: Gate, pool: ThreadPoolExecutor) -> None:
    class Busy(Device):
        def advance(self) -> Any:
            if gate.opened.is_set():
                return super().advance()
            gate.entered.set()
            return []

    devices = list[Device]()
    search = searching_on_device(devices, Busy)
    ticket = Ticket()

    def give_up_later() -> list[Outcome]:
        with serving(ticket):
            return found(search, JOBS[9:10], GREEDY)

    first = pool.submit(found, search, JOBS[11:], GREEDY)
    assert gate.entered.wait(SECONDS)
    second = pool.submit(found, search, JOBS[6:8], GREEDY)
    wait_for(lambda: devices[0].sizes == [1, 2])
    third = pool.submit(give_up_later)
    wait_for(lambda: devices[0].sizes == [1, 2, 1])
    assert not devices[0].given_up
    ticket.give_up()
    wait_for(lambda: devices[0].given_up == [(2, 0)])
    assert isinstance(third.exception(SECONDS), GivenUp)
    assert not first.done()
    gate.opened.set()
    assert (first.result(SECONDS), second.result(SECONDS)) == (alone(JOBS[11:], GREEDY), alone(JOBS[6:8], GREEDY))
    assert len(devices) == 1


def test_a_device_has_a_few_loads_at_a_time(
    gate: Gate, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = itertools.count()

    class Busy(Device):
        def advance(self) -> Any:
            next(rounds)
            return super().advance() if gate.opened.is_set() else []

    monkeypatch.setattr(continuous, "LOADS", 2)
    devices = list[Device]()
    search = searching_on_device(devices, Busy)
    asked = []
    for number in range(4):
        asked.append(pool.submit(found, search, JOBS[number : number + 1], GREEDY))
        wait_for(lambda number=number: search.running + search.waiting == number + 1)  # type: ignore[misc]
        before = next(rounds)
        wait_for(lambda before=before: next(rounds) > before + 20)  # type: ignore[misc]
    assert devices[0].sizes == [1, 1]
    assert search.waiting == 2
    gate.opened.set()
    assert [each.result(SECONDS) for each in asked] == [alone(JOBS[number : number + 1], GREEDY) for number in range(4)]


def test_the_control_one_of_the_same_kind_joins_at_once(gate: Gate, pool: ThreadPoolExecutor) -> None:
    search = searching(gate.start, size=8)
    first = pool.submit(found, search, JOBS[11:], GREEDY)
    assert gate.entered.wait(SECONDS)
    second = pool.submit(found, search, JOBS[8:10], GREEDY)
    wait_for(lambda: search.waiting == 2)
    gate.opened.set()
    assert (first.result(SECONDS), second.result(SECONDS)) == (alone(JOBS[11:], GREEDY), alone(JOBS[8:10], GREEDY))
    assert gate.notes == [("start", [JOBS[11].source[0]]), ("join", [job.source[0] for job in JOBS[8:10]])]


POISON = Job([99, 99], 5, 0)


def poisoned(sources: Any) -> Joinable:
    """A model that fails for one source, at the start and when it joins."""

    class Poisoned(Joinable):
        def join(self, sources: Any) -> None:
            if POISON.source in sources:
                raise ValueError("poison")
            super().join(sources)

    if POISON.source in sources:
        raise ValueError("poison")
    return Poisoned(sources)


@pytest.mark.parametrize("can_join", [True, False])
def test_a_poisoned_sentence_fails_alone(can_join: bool) -> None:
    search = searching(poisoned, 2, can_join=can_join)

    def ask(number: int) -> list[Outcome] | str:
        try:
            return found(search, [POISON] if number % 4 == 0 else JOBS[number:], OPTIONS[number % 3])
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(ask, range(12)))
    for number, result in enumerate(results):
        assert result == ("poison" if number % 4 == 0 else alone(JOBS[number:], OPTIONS[number % 3]))
    assert (search.running, search.waiting) == (0, 0)


def test_what_does_not_fit_together_is_searched_alone_and_what_never_fits_is_named() -> None:
    def small(sources: Any) -> Joinable:
        if len(sources) > 1 or len(sources[0]) > 4:
            raise RuntimeError(OUT_OF_MEMORY)
        return Joinable(sources)

    expected = [
        "out of memory at 5 tokens" if len(job.source) > 4 else outcome
        for job, outcome in zip(JOBS, alone(JOBS, BEAM), strict=True)
    ]
    assert "out of memory at 5 tokens" in expected
    for can_join in (True, False):
        assert found(searching(small, size=6, can_join=can_join), JOBS, BEAM) == expected


def test_options_that_no_engine_has_fail_alone() -> None:
    def engine_of(kind: Kind) -> Engine:
        if kind.options == BEAM:
            raise ValueError("not possible")
        return engine(Joinable)

    search = ContinuousSearch(engine_of, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="not possible"):
            found(search, JOBS, BEAM)
        assert found(search, JOBS, GREEDY) == alone(JOBS, GREEDY)
    assert (search.running, search.waiting) == (0, 0)


def test_sentences_with_rules_of_their_own_keep_them_among_others() -> None:
    ruled = [job._replace(rules=[lambda ids: Choice(never=(2,))]) for job in JOBS]
    mixed = [job for pair in zip(JOBS, ruled, strict=True) for job in pair]
    search, expected = searching(Joinable, 2), alone(mixed, BEAM)
    assert expected[::2] != expected[1::2], "the control: the rule matters"
    requests = [(mixed[number:], BEAM, Ticket()) for number in range(6)]
    assert as_others_ask(search, requests) == [expected[number:] for number in range(6)]


def test_a_very_long_sentence_is_searched_although_it_is_more_than_fits() -> None:
    long = Job([21] * 10_000, 5, 0)
    assert found(searching(Joinable, size=8), [long, *JOBS, long], GREEDY) == alone([long, *JOBS, long], GREEDY)


def test_a_search_on_other_threads_ends_with_the_ticket_of_its_caller() -> None:
    ticket = Ticket()
    with serving(ticket):
        start = unless_over(Joinable)
    assert isinstance(start([[20]]), Joinable)
    ticket.give_up()
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(start, [[20]]).exception(), GivenUp)
    assert isinstance(unless_over(Joinable)([[20]]), Joinable), "the control: another ticket"


TEXTS = [
    "The house is old.",
    "",
    "I have two cats and a dog. They sleep all day, {name}!",
    "Where do you live? " * 2,
    "Good morning!",
    "A\u0000B",
]
WAYS: list[dict[str, Any]] = [
    {},
    {"beam": 4, "n_best": 3},
    {"no_repeat_ngram": 2},
    {"glossary": [("house", "Gebäude"), ("dog", "Köter")]},
    {"beam": 1},
    {"sampling": True, "seed": 5},
    {"beam": 4, "diversity_groups": 2, "n_best": 2},
    {"token_scores": True, "confidence": True},
    {"attention": True},
    {"split": "long", "banned": ["alt"]},
]


@pytest.fixture(scope="module")
def translators() -> tuple[Translator, Translator]:
    plain, continuous = dragoman.load("en-de", "cpu"), dragoman.load("en-de", "cpu")
    continuous.search_continuously(2)
    return plain, continuous


def assert_same_as_before(translators: tuple[Translator, Translator], ways: list[dict[str, Any]]) -> None:
    plain, continuous = translators

    def records(translator: Translator, options: dict[str, Any]) -> list[dict[str, Any]]:
        return [each.to_dict() for each in translator.translate(TEXTS, **options)]

    expected = [records(plain, options) for options in ways]
    with ThreadPoolExecutor(len(ways)) as pool:
        results = list(pool.map(lambda options: records(continuous, options), ways))
    for options, own, result in zip(ways, expected, results, strict=True):
        if "sampling" in options:  # by PyTorch, whose last digits depend on the shape of a batch
            assert [each["translation"] for each in result] == [each["translation"] for each in own]
        else:
            assert result == own, options


def test_a_translator_that_searches_continuously_translates_as_before(
    translators: tuple[Translator, Translator],
) -> None:
    assert_same_as_before(translators, WAYS[:4])


@pytest.mark.slow
def test_a_translator_that_searches_continuously_has_every_option(translators: tuple[Translator, Translator]) -> None:
    assert_same_as_before(translators, WAYS * 3)


def test_the_search_for_terms_ends_with_the_ticket(
    translators: tuple[Translator, Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, continuous = translators
    ticket, missing = Ticket(), continuous.steering.find_missing

    def give_up(*arguments: Any) -> Any:
        """After the search without terms."""
        ticket.give_up()
        return missing(*arguments)

    monkeypatch.setattr(continuous.steering, "find_missing", give_up)
    with serving(ticket), pytest.raises(GivenUp):
        continuous.translate(TEXTS[0], glossary=[("house", "Gebäude")])
    monkeypatch.undo()
    with serving(Ticket()):
        assert "Gebäude" in continuous.translate(TEXTS[0], glossary=[("house", "Gebäude")]).text, "the control"
