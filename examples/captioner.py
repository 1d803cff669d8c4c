"""A captioner: the patches of a picture in place of source words. It learns to say where a bright square is.

python examples/captioner.py
"""

from pathlib import Path

import numpy as np

import dragoman
from dragoman.data.features import as_patches, write_features

SIDE, PATCH = 16, 4  # pixels: 16 patches of 16 numbers
VERTICAL, HORIZONTAL = ("top", "bottom"), ("left", "right")


def main(directory: Path = Path("runs/example-captioner"), steps: int = 200) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    for name, count in (("train", 2_000), ("valid", 100)):
        drawn = [draw(random) for _ in range(count)]
        patches = [as_patches(pixels, PATCH) for pixels, _ in drawn]
        write_features(directory / f"{name}.npz", patches, picture=(SIDE, SIDE))
        (directory / f"{name}.txt").write_text("".join(f"{caption}\n" for _, caption in drawn), encoding="utf-8")
    config = dragoman.Config.build(
        "tiny",
        settings=[
            "model.source_features=16",  # a linear layer in place of the embedding of source words
            "text.model=word",
            "text.byte_fallback=false",
            "text.vocab_size=20",
            "train.learning_rate=2e-3",
            "train.batch_tokens=1024",
            f"train.max_steps={steps}",
            f"train.save_every={max(1, steps // 2)}",
        ],
        data={
            "source": str(directory / "train.npz"),
            "target": str(directory / "train.txt"),
            "valid_source": str(directory / "valid.npz"),
            "valid_target": str(directory / "valid.txt"),
        },
    )
    print(dragoman.train(config, directory / "run").describe())

    transcriber = dragoman.Transcriber.load(directory / "run")
    pictures = [draw(random) for _ in range(3)]
    said = transcriber.transcribe([as_patches(pixels, PATCH) for pixels, _ in pictures])
    for (_, caption), one in zip(pictures, said, strict=True):
        print(f"right: {caption}; said: {one.text}")


def draw(random: np.random.Generator) -> tuple[np.ndarray, str]:
    """A square of five pixels in one quarter of the picture, with noise, and its caption."""
    pixels = 0.2 * random.random((SIDE, SIDE))
    down, across = random.integers(2, size=2)
    y, x = (8 * quarter + random.integers(0, 4) for quarter in (down, across))
    pixels[y : y + 5, x : x + 5] += 0.8
    return pixels, f"a square at the {VERTICAL[down]} {HORIZONTAL[across]}"


if __name__ == "__main__":
    main()
