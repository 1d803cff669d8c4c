"""Small files under the names of the corpora that recipes for English and German read."""

from pathlib import Path

from dragoman.data import generated

PARTS = ("europarl-en-de/train.1of4", "europarl-en-de/train.2of4", "europarl-en-de/train.3of4",
         "europarl-en-de/train.4of4", "tatoeba-en-de/train")  # fmt: skip
VALIDATION = "europarl-en-de/valid"
VALIDATION_OF_EVERYDAY = "tatoeba-en-de/valid"
TESTS = ("europarl-en-de/test", "tatoeba-en-de/test", "newstest2014-en-de/test")


def write_corpora(folder: Path, *, lines: int, valid_lines: int) -> Path:
    """`lines` pairs in each part of the training text, and four in each test set."""
    pairs = iter(generated.generate("numbers-de", 1_000).train)
    for name, count in {
        **dict.fromkeys(PARTS, lines),
        VALIDATION: valid_lines,
        **dict.fromkeys((VALIDATION_OF_EVERYDAY, *TESTS), 4),
    }.items():
        own = [next(pairs) for _ in range(count)]
        (folder / name).parent.mkdir(exist_ok=True)
        for language, texts in zip(("en", "de"), zip(*own, strict=True), strict=True):
            (folder / f"{name}.{language}").write_text("".join(f"{text}\n" for text in texts))
    return folder
