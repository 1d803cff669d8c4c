"""A language model: the decoder alone. It learns how English numbers and dates are written, letter by letter.

python examples/language_model.py
"""

from pathlib import Path

import dragoman
from dragoman.data import generated


def main(directory: Path = Path("runs/example-language-model"), steps: int = 600) -> None:
    files = generated.write("numbers-de", 5_000, directory / "corpus", seed=1)
    config = dragoman.Config.build(
        "tiny",
        settings=[
            "model.architecture=decoder",  # no encoder, no cross-attention
            "text.model=char",
            "text.max_length=64",  # how far it looks back
            f"train.max_steps={steps}",
            f"train.save_every={max(1, steps // 3)}",
        ],
        data={"text": str(files.train_source), "valid_text": str(files.valid_source)},  # lines of English
    )
    print(dragoman.train(config, directory / "run").describe())

    model = dragoman.LanguageModel.load(directory / "run")
    print(model.generate("twenty-", max_tokens=80, temperature=0.7, seed=1))
    for text in ("three thousand and twelve\n", "thousand three twelve and\n"):
        print(f"{model.score(text).bits_per_byte:.2f} bits per byte: {text}", end="")


if __name__ == "__main__":
    main()
