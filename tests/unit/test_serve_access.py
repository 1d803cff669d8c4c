"""Keys and limits, with a clock that the test sets."""

import hmac
from typing import Any

import pytest

from dragoman.serve import access
from dragoman.serve.access import Access, Refused, TooMuch
from dragoman.serve.settings import KeySettings, ServeSettings

ANN = KeySettings("a" * 16, "ann")
BOB = KeySettings("b" * 16, "bob", requests_per_minute=2, characters_per_minute=100)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def spend(own: Access, caller: KeySettings, characters: int = 1) -> int | None:
    """The seconds to wait; None if it was allowed."""
    try:
        own.spend(caller, characters)
    except TooMuch as refused:
        return refused.seconds
    return None


def test_a_minutes_requests_may_come_at_once_and_then_one_by_one(clock: Clock) -> None:
    own = Access(ServeSettings(requests_per_minute=6), [ANN], clock)
    assert [spend(own, ANN) for _ in range(8)] == [None] * 6 + [10, 10]
    clock.now += 9
    assert spend(own, ANN) == 1
    clock.now += 1
    assert [spend(own, ANN), spend(own, ANN)] == [None, 10]
    clock.now += 1e6
    assert [spend(own, ANN) for _ in range(7)] == [None] * 6 + [10], "no more than a minute's is saved up"


def test_characters_are_counted_and_more_than_a_minutes_need_a_full_bucket(clock: Clock) -> None:
    own = Access(ServeSettings(characters_per_minute=60), [ANN], clock)
    assert spend(own, ANN, 1_000) is None
    assert spend(own, ANN, 1) == 941, "its debt is paid off first"
    clock.now += 941
    assert spend(own, ANN, 1) is None
    assert spend(own, ANN, 30) == 30


def test_what_is_refused_costs_nothing(clock: Clock) -> None:
    own = Access(ServeSettings(), [BOB], clock)
    assert spend(own, BOB, 100) is None
    assert [spend(own, BOB, 50) for _ in range(5)] == [30] * 5
    assert spend(own, BOB, 0) is None, "the second of its two requests"
    clock.now += 30
    assert spend(own, BOB, 50) is None


def test_a_key_has_limits_of_its_own_and_no_limit_is_none(clock: Clock) -> None:
    own = Access(ServeSettings(), [ANN, BOB], clock)
    assert [spend(own, BOB) for _ in range(3)] == [None, None, 30]
    assert [spend(own, ANN, 10**9) for _ in range(100)] == [None] * 100


def test_without_keys_addresses_have_the_limits(clock: Clock) -> None:
    own = Access(ServeSettings(requests_per_minute=1), [], clock)
    assert not own.needs_key
    one, other = own.caller(None, "192.0.2.1"), own.caller("anything", "192.0.2.2")
    assert (one.name, other.name) == ("192.0.2.1", "192.0.2.2")
    assert [spend(own, one), spend(own, one), spend(own, other)] == [None, 60, None]


def test_callers_are_forgotten_when_there_are_too_many(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_CALLERS", 10)
    own = Access(ServeSettings(requests_per_minute=1), [], clock)
    callers = [own.caller(None, f"192.0.2.{number}") for number in range(20)]
    assert [spend(own, caller) for caller in callers] == [None] * 20
    assert len(own._buckets) == 10
    assert spend(own, callers[-1]) == 60, "the latest is remembered"
    assert spend(own, callers[0]) is None, "the control: the first is not"


@pytest.mark.parametrize(
    "key", [None, "", "a" * 15, "a" * 17, "A" * 16, "a" * 15 + "ä", "\ud800" * 16, " " + "a" * 15, "a\0" * 8]
)
def test_other_keys_are_refused(key: str | None) -> None:
    own = Access(ServeSettings(), [ANN, BOB])
    assert own.needs_key
    with pytest.raises(Refused, match=r"^api_key: missing or wrong; give a valid key$"):
        own.caller(key, "192.0.2.1")
    assert own.caller("a" * 16, "192.0.2.1") is ANN, "the control"


def test_keys_are_compared_in_constant_time_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, compare = list[Any](), hmac.compare_digest

    def watched(*pair: Any) -> bool:
        compared.append(pair)
        return compare(*pair)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    own = Access(ServeSettings(), [ANN, BOB])
    assert own.caller("a" * 16, "") is ANN
    assert compared == [(b"a" * 16, b"a" * 16), (b"b" * 16, b"a" * 16)]
