"""A classifier: the encoder alone. It learns to tell English from German.

python examples/classifier.py
"""

from pathlib import Path

import dragoman
from dragoman.data import generated


def main(directory: Path = Path("runs/example-classifier"), steps: int = 200) -> None:
    files = generated.write("numbers-de", 2_000, directory / "corpus", seed=1)
    train = write_labelled(directory / "train.tsv", files.train_source, files.train_target)
    valid = write_labelled(directory / "valid.tsv", files.valid_source, files.valid_target)
    config = dragoman.Config.build(
        "tiny",
        settings=[
            "model.architecture=encoder",  # no decoder: one linear layer chooses the label
            "text.vocab_size=500",
            f"train.max_steps={steps}",
            f"train.save_every={max(1, steps // 2)}",
        ],
        # one .tsv file for both sides: the text, a tab, the label
        data={"source": train, "target": train, "valid_source": valid, "valid_target": valid},
    )
    print(dragoman.train(config, directory / "run").describe())

    classifier = dragoman.Classifier.load(directory / "run")
    for said in classifier.classify(["seventy-one", "einundsiebzig", "the first of May"]):
        print(f"{said.text}: {said.label} ({said.probability:.1%})")


def write_labelled(path: Path, english: Path, german: Path) -> str:
    lines = []
    for label, file in (("en", english), ("de", german)):
        lines += [f"{line}\t{label}\n" for line in file.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    main()
