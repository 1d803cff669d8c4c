"""Spoken digits to text: numbers of two to six digits, spoken by espeak-ng, as log-mel frames, to words.

    apt-get install espeak-ng
    python recipes/digits.py [--out runs/digits] [--seeds 3] [--jobs N] [--train 4000]

Every number is spoken by one of several English voices at its own pitch and speed, with noise. Two voices are heard in
the test set only. Trains `recipes/digits.toml` with each seed and prints the word error rate. Run the same command
again to resume. The results are in docs/recipes/digits.md.
"""

import io
import shutil
import subprocess
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from steps import Settings, run_command, say, train_rows

from dragoman import ConfigError
from dragoman.data.features import write_features
from dragoman.files import make_directory, write_file

RECIPE = Path(__file__).with_suffix(".toml")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = (2, 6)  # at least and at most
VOICES = ("en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb+f1", "en-us+f2", "en-gb+m3", "en-us+m5")
UNHEARD = ("en-gb-x-gbclan+f4", "en-us+m7")  # in the test set only
NOISE = (0.0, 0.02)  # of the loudest sample, at least and at most
FRAME, STEP, BANDS = 0.025, 0.02, 40  # seconds, seconds, mel bands
SIZES = {"valid": 300, "test": 500, "unheard": 500}
SEED = 20_17


class Spoken(NamedTuple):
    words: str
    voice: str
    pitch: int
    speed: int  # words a minute
    noise: float
    seed: int


def digits(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for data and runs.")] = Path("runs/digits"),
    train: Annotated[int, typer.Option(min=100, help="Training numbers.")] = 4_000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs in parallel.")] = 1,
    settings: Settings = None,
) -> None:
    """Speak the numbers, train with every seed, and print the word error rates."""
    if shutil.which("espeak-ng") is None:
        raise ConfigError("espeak-ng: not found; install it with apt-get install espeak-ng")
    make_directory(out)
    for number, (name, size) in enumerate({"train": train, **SIZES}.items()):
        if not (out / f"{name}.words").exists():
            _speak_all(list(_draw(size, number, UNHEARD if name == "unheard" else VOICES)), out / name)
        say(f"{name}: {size:,} numbers")
    files = [
        f"data.{prefix}{side}={[str(out / name) + suffix for name in names]}"
        for names, prefix in ((["train"], ""), (["valid"], "valid_"), (["test", "unheard"], "test_"))
        for side, suffix in (("source", ".npz"), ("target", ".words"))
    ]
    runs = {f"seed-{seed}": [*files, f"train.seed={seed}"] for seed in range(1, seeds + 1)}
    found = train_rows(runs, RECIPE, out, out, jobs, settings or [], _describe)
    for test in next(iter(found.values())):
        rates = [tests[test]["word_error_rate"]["score"] for tests in found.values()]
        say(f"{test}: word error rate {mean(rates):.2f} ({min(rates):.2f} to {max(rates):.2f}), {len(rates)} seeds")


def _draw(size: int, part: int, voices: tuple[str, ...]) -> Iterator[Spoken]:
    random = np.random.default_rng([SEED, part])
    for _ in range(size):
        words = " ".join(WORDS[digit] for digit in random.integers(10, size=random.integers(DIGITS[0], DIGITS[1] + 1)))
        yield Spoken(
            words,
            str(random.choice(voices)),
            int(random.integers(30, 71)),
            int(random.integers(140, 221)),
            float(random.uniform(*NOISE)),
            int(random.integers(2**32)),
        )


def _speak_all(numbers: list[Spoken], place: Path) -> None:
    with ThreadPoolExecutor() as pool:
        frames = list(pool.map(lambda one: log_mel(*speak(one)), numbers))
    write_features(place.with_suffix(".npz"), frames)
    write_file(place.with_suffix(".words"), "".join(f"{one.words}\n" for one in numbers).encode())


def speak(one: Spoken) -> tuple[Any, int]:
    """The sound of a number with its noise, from -1 to 1, and how many samples a second has."""
    command = ["espeak-ng", "-v", one.voice, "-p", str(one.pitch), "-s", str(one.speed), "--stdout", one.words]
    content = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(content)) as stream:
        rate = stream.getframerate()
        # a sound written to a pipe does not know its length
        samples = np.frombuffer(content[content.index(b"data") + 8 :][: len(content) // 2 * 2], "<i2") / 32_768
    noise = np.random.default_rng(one.seed).normal(size=len(samples))
    return samples + one.noise * np.abs(samples).max() * noise, rate


def log_mel(samples: Any, rate: int) -> Any:
    """The logarithm of the energy in mel bands, a row for every 20 ms, in 16 bits each: [frames, 40]."""
    length, step = round(FRAME * rate), round(STEP * rate)
    samples = np.pad(samples, (0, max(0, length - len(samples))))
    starts = range(0, len(samples) - length + 1, step)
    windows = np.stack([samples[start : start + length] for start in starts])
    power = np.abs(np.fft.rfft(windows * np.hanning(length), axis=1)) ** 2
    return np.log(power @ _bands(length, rate).T + 1e-6).astype(np.float16)


def _bands(length: int, rate: int) -> Any:
    """Triangles of equal width on the mel scale: [40, frequencies]."""
    top = 2_595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2_595) - 1)
    frequencies = np.arange(length // 2 + 1) * rate / length
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0.0, np.minimum(rising, falling))


def _describe(scores: dict[str, Any]) -> str:
    rate = scores["word_error_rate"]
    return f"word error rate {rate['score']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]"


if __name__ == "__main__":
    run_command(digits)
