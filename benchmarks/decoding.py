"""What the decoding benchmarks share: timing in turns, equal outputs, and curves. Knows no system but ours."""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.random_models import random_lines
from dragoman.decode.translation import Translation
from dragoman.decode.translator import Translator

OURS = "dragoman"
AXES = ("batch", "beam", "length", "vocabulary")
LEAST_EQUAL = 0.9  # of sentences in float32; two systems sum in different orders, which may decide a tie

Tokens = Sequence[str]


@dataclass(frozen=True)
class Task:
    """What a system is timed with."""

    sentences: int
    work: Callable[[], Any]
    tokens: Callable[[Any], list[Tokens]]  # of each translation, from the result of `work`


@dataclass(frozen=True)
class Row:
    """What was measured in one setting."""

    speeds: dict[str, float]  # sentences per second; ours first
    equal: float | None  # share of sentences for which the first peer gives our tokens; None without a peer
    prefix: float | None  # share of our tokens before the first difference

    @property
    def ratio(self) -> float | None:
        """Our speed divided by that of the fastest peer."""
        ours, *peers = self.speeds.values()
        return ours / max(peers) if peers else None

    def to_dict(self) -> dict[str, float]:
        shares = {"equal lines": self.equal, "common prefix": self.prefix, "ratio": self.ratio}
        return self.speeds | {name: share for name, share in shares.items() if share is not None}

    def describe(self) -> str:
        return ", ".join(f"{name} {value:,.2f}" for name, value in self.to_dict().items())


def no_wait() -> None:
    pass


def measure(tasks: Mapping[str, Task], repeats: int, finish: Callable[[], None] = no_wait) -> Row:
    """The best of `repeats` times of each system, in turns. `finish` waits until a device is idle."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, task in tasks.items():
            started = time.perf_counter()
            results[name] = task.work()
            finish()
            times[name].append(time.perf_counter() - started)
    speeds = {name: task.sentences / min(times[name]) for name, task in tasks.items()}
    ours, *others = [task.tokens(results[name]) for name, task in tasks.items()]
    if not others:
        return Row(speeds, None, None)
    pairs = list(zip(ours, others[0], strict=False))  # a slow system may have fewer sentences
    equal = sum(list(mine) == list(theirs) for mine, theirs in pairs) / len(pairs)
    prefix = sum(common_prefix(*pair) for pair in pairs) / max(1, sum(len(mine) for mine, _ in pairs))
    return Row(speeds, equal, prefix)


def common_prefix(first: Tokens, second: Tokens) -> int:
    places = (place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    return next(places, min(len(first), len(second)))


def translated_tokens(translations: Iterable[Translation]) -> list[Tokens]:
    return [[piece for piece in each.tokens if piece != "</s>"] for each in translations]


def one_by_one(translate: Callable[[Any], list[Any]], items: Sequence[Any]) -> list[Any]:
    return [result for item in items for result in translate([item])]


# Random models


@dataclass(frozen=True)
class Setting:
    """What a random model does: every source and every translation has the same length."""

    batch: int
    beam: int
    source: int  # tokens of a source, with </s>
    target: int  # tokens of a translation
    vocabulary: int

    def at(self, axis: str, value: int) -> "Setting":
        """This setting with another value on one axis of a curve."""
        return replace(self, **({"source": value, "target": value} if axis == "length" else {axis: value}))

    def lines(self, count: int) -> list[str]:
        return random_lines(self.vocabulary, count, self.source - 1)

    def describe(self) -> str:
        return (
            f"batch {self.batch}, beam {self.beam}, {self.source} tokens in, {self.target} out, "
            f"{self.vocabulary:,} pieces"
        )


def our_task(translator: Translator, setting: Setting, sentences: int) -> Task:
    """Our search decodes one token more than it returns: only </s> could follow, which would end the translation."""
    lines, extra = setting.lines(sentences), setting.target - (setting.source - 1)
    return Task(
        sentences,
        lambda: translator.translate(lines, beam=setting.beam, batch_size=setting.batch, max_extra=extra, split="long"),
        lambda found: require_length(translated_tokens(found), setting.target),
    )


def require_length(rows: list[Tokens], length: int) -> list[Tokens]:
    found = {len(row) for row in rows}
    if found != {length}:
        raise SystemExit(f"translations have {sorted(found)} tokens; all should have {length}")
    return rows


def by_vocabulary(settings: Iterable[Setting]) -> dict[int, list[Setting]]:
    """Each setting once, grouped by the model it needs."""
    groups: dict[int, list[Setting]] = {}
    for setting in dict.fromkeys(settings):
        groups.setdefault(setting.vocabulary, []).append(setting)
    return groups


class Curves:
    """Settings that differ from one `start` on a single axis at a time."""

    def __init__(self, start: Setting, values: Mapping[str, Sequence[int]], axes: Sequence[str]) -> None:
        self._points = {axis: {value: start.at(axis, value) for value in values[axis]} for axis in axes}

    def settings(self) -> list[Setting]:
        return [setting for points in self._points.values() for setting in points.values()]

    def results(self, rows: Mapping[Setting, Row]) -> dict[str, dict[int, dict[str, float]]]:
        return {
            axis: {value: rows[setting].to_dict() for value, setting in points.items()}
            for axis, points in self._points.items()
        }

    def ratios(self, rows: Mapping[Setting, Row]) -> dict[str, float]:
        found = {
            f"curve over {axis}, {value}": rows[setting].ratio
            for axis, points in self._points.items()
            for value, setting in points.items()
        }
        return {name: ratio for name, ratio in found.items() if ratio is not None}

    def print(self, rows: Mapping[Setting, Row]) -> None:
        """A table for each axis."""
        for axis, points in self._points.items():
            columns = list(rows[next(iter(points.values()))].to_dict())
            print(f"\n| {axis} | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
            for value, setting in points.items():
                print(f"| {value:,} | {' | '.join(f'{cell:,.2f}' for cell in rows[setting].to_dict().values())} |")


def add_curve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--curve", nargs="*", choices=AXES, default=[], help="speed of a random model over these")
    parser.add_argument("--quick", action="store_true", help="tiny random models and short curves, to try it out")


def require_equal(shares: Mapping[str, float]) -> None:
    """Call it last, when all results are printed."""
    for name, share in shares.items():
        if share < LEAST_EQUAL:
            raise SystemExit(f"float32, {name}: only {share:.0%} of the sentences are equal; the systems differ")
