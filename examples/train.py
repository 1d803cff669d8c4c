"""Train a Transformer from Python: here it learns to spell numbers in German, in about a minute.

    python examples/train.py

`dragoman train` does the same from the command line. Kill it and run it again: it resumes.
"""

from pathlib import Path

import dragoman


def main(directory: Path = Path("runs/example-train"), steps: int = 1_000) -> None:
    config = dragoman.Config.build(
        "tiny",  # sizes, warm-up and learning rate that belong together
        settings=[
            "data.generated=numbers-de",  # with files of your own: data={"source": "train.en", ...}
            f"train.max_steps={steps}",
            f"train.save_every={max(1, steps // 4)}",
            "train.valid_sentences=200",
        ],
    )
    result = dragoman.train(config, directory)
    print(result.describe())

    translator = dragoman.load(directory)
    for text in ("forty-two", "May 3, 2025"):
        print(f"{text} -> {translator.translate(text).text}")


if __name__ == "__main__":
    main()
