"""How long clients without room are asked to wait, under loads that are simulated second by second."""

import pytest

from dragoman.serve import backoff
from dragoman.serve.backoff import LONGEST_SECONDS, Backoff


class Simulated:
    """Clients that obey, and a service that does `rate` requests a second."""

    def __init__(self, rate: int) -> None:
        self.now, self.rate = 0.0, rate
        self.backoff = Backoff(lambda: self.now)

    def refused_per_second(self, clients: int, seconds: int) -> list[int]:
        """All ask at once; those that are refused ask again when they were told to."""
        due: dict[int, int] = {int(self.now): clients}
        counts = list[int]()
        for second in range(int(self.now), int(self.now) + seconds):
            self.now = float(second)
            asking, counts = due.pop(second, 0), [*counts, 0]
            done = min(asking, self.rate)
            for _ in range(done):
                self.backoff.note_done()
            due[second + 1] = due.get(second + 1, 0) + done  # they come again at once
            for _ in range(asking - done):
                after = second + self.backoff.refuse()
                due[after] = due.get(after, 0) + 1
                counts[-1] += 1
        return counts


def test_refusals_become_as_rare_as_answers() -> None:
    refused = Simulated(rate=100).refused_per_second(clients=1_000, seconds=120)
    assert refused[0] == 900
    assert sum(refused[-60:]) / 60 < 1.5 * 100
    alone = Simulated(rate=100)
    alone.backoff._next = lambda: 1  # type: ignore[method-assign]
    assert sum(alone.refused_per_second(clients=1_000, seconds=120)[-60:]) / 60 > 8 * 100, "the control"


def test_a_short_wait_is_enough_for_a_few_too_many() -> None:
    service = Simulated(rate=100)
    assert sum(service.refused_per_second(clients=110, seconds=60)[-30:]) > 0
    assert service.backoff.refuse() == 1


def test_the_wait_becomes_shorter_when_few_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "QUIET_PERIODS", 10**9)
    service = Simulated(rate=100)
    service.refused_per_second(clients=1_000, seconds=60)
    assert service.backoff.refuse() >= 4
    service.refused_per_second(clients=104, seconds=200)
    assert service.backoff.refuse() <= 2


def test_the_wait_has_a_limit_and_ends_with_the_overload() -> None:
    service = Simulated(rate=1)
    service.refused_per_second(clients=1_000, seconds=600)
    waits = {service.backoff.refuse() for _ in range(1_000)}
    assert max(waits) == 2 * LONGEST_SECONDS - 1
    assert min(waits) == LONGEST_SECONDS
    service.now += 1_000
    assert service.backoff.refuse() == 1
