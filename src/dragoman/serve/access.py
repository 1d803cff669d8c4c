"""Who may use the service, and how much: keys and limits. Knows nothing of HTTP."""

import functools
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from dragoman.serve.settings import KeySettings, ServeSettings

MOST_CALLERS = 100_000  # that are remembered


class Refused(Exception):
    """A caller without a valid key."""


class TooMuch(Exception):
    """A caller over its limit; `seconds` until it may try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many requests; try again in {math.ceil(seconds)} s")
        self.seconds = math.ceil(seconds)


class _Bucket:
    """An allowance for a minute, which refills all the time."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute, self._left, self._at = per_minute, float(per_minute), now

    def wait_for(self, amount: int, now: float) -> float:
        """Seconds until there is so much; more than a minute's allowance needs a full bucket."""
        self._left = min(self._per_minute, self._left + (now - self._at) * self._per_minute / 60)
        self._at = now
        return max(0.0, min(amount, self._per_minute) - self._left) * 60 / self._per_minute

    def take(self, amount: int) -> None:
        self._left -= amount


@functools.lru_cache(maxsize=4_096)
def _stranger(address: str) -> KeySettings:
    return KeySettings("-" * 16, address)


class Access:
    def __init__(
        self, settings: ServeSettings, keys: Sequence[KeySettings], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._keys, self._clock = settings, keys, clock
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    @property
    def needs_key(self) -> bool:
        return bool(self._keys)

    def caller(self, key: str | None, address: str) -> KeySettings:
        """Who is calling; without keys, an address. Raise Refused if the key is not one of ours."""
        if not self._keys:
            return _stranger(address)
        given, found = (key or "").encode("utf-8", "surrogatepass"), None
        for known in self._keys:  # all of them, so that the time does not tell which one it is like
            if hmac.compare_digest(known.key.encode(), given):
                found = known
        if found is None:
            raise Refused("api_key: missing or wrong; give a valid key")
        return found

    def spend(self, caller: KeySettings, characters: int) -> None:
        """Count a request, or raise TooMuch."""
        limits = {
            "requests": (caller.requests_per_minute or self._settings.requests_per_minute, 1),
            "characters": (caller.characters_per_minute or self._settings.characters_per_minute, characters),
        }
        now = self._clock()
        spent = []
        for what, (per_minute, amount) in limits.items():
            if per_minute:
                bucket = self._bucket((caller.name, what), per_minute, now)
                if wait := bucket.wait_for(amount, now):
                    raise TooMuch(wait)
                spent.append((bucket, amount))
        for bucket, amount in spent:
            bucket.take(amount)

    def _bucket(self, name: tuple[str, str], per_minute: int, now: float) -> _Bucket:
        if name not in self._buckets:
            self._buckets[name] = _Bucket(per_minute, now)
            if len(self._buckets) > MOST_CALLERS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        return self._buckets[name]
