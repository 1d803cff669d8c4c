"""What word vectors give where there is little parallel text: random, tuned and frozen embeddings, three seeds each.

    python recipes/word_vectors.py --data FOLDER [--out runs/word-vectors] [--pairs 5000] [--seeds 3] [--jobs N]

Vectors for both languages are learned here from monolingual text, all lines of Tatoeba's training set, by gensim's
word2vec (pip install gensim). Then every model is a separate `dragoman train recipes/word_vectors.toml` on the first
pairs of the same set. Run the same command again to resume. The results are in docs/training.md.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer
from steps import Settings, run_command, say, train_rows

from dragoman import ConfigError
from dragoman.config import Config
from dragoman.data.corpus import read_lines
from dragoman.files import make_directory, move_into_place, partial_path, write_file

RECIPE = Path(__file__).with_suffix(".toml")
LANGUAGES = {"source": "en", "target": "de"}
WORD = re.compile(r"\w+|[^\w\s]")
EPOCHS, WINDOW, MIN_COUNT = 10, 5, 2  # of word2vec: passes, words to either side, occurrences of a word


def word_vectors(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for vectors and runs.")] = Path(
        "runs/word-vectors"
    ),
    pairs: Annotated[int, typer.Option(min=100, help="Parallel sentences to train with.")] = 5_000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs in parallel.")] = 1,
    settings: Settings = None,
) -> None:
    """Learn vectors, train models that start from them or not, and print the scores."""
    corpus = {side: data / "tatoeba-en-de" / f"train.{language}.bz2" for side, language in LANGUAGES.items()}
    for path in corpus.values():
        if not path.is_file():
            raise ConfigError(f"--data {data}: does not hold {path.relative_to(data)}; it is where the corpora are")
    make_directory(out)
    width = Config.build(None, RECIPE, settings or []).model.d_model
    vectors = {side: out / f"{LANGUAGES[side]}.vec" for side in corpus}
    for side, path in corpus.items():
        lines = "".join(f"{line.text}\n" for line in islice(read_lines(path), pairs))
        write_file(out / f"train.{LANGUAGES[side]}", lines.encode())
        if not vectors[side].exists():
            _learn(path, vectors[side], width)
    files = [f'data.{side}=["{out / f"train.{language}"}"]' for side, language in LANGUAGES.items()]
    given = [f"train.{side}_vectors={path}" for side, path in vectors.items()]
    kinds = {
        "random": [],
        "tuned": given,
        "frozen": [*given, 'train.freeze=["source_embedding", "target_embedding"]'],
    }
    rows = {
        f"{kind}-{seed}": [*files, *own, f"train.seed={seed}"]
        for seed in range(1, seeds + 1)
        for kind, own in kinds.items()
    }
    found = train_rows(rows, RECIPE, data, out, jobs, settings or [])
    for test in next(iter(found.values())):
        for kind in kinds:
            scores = [found[f"{kind}-{seed}"][test] for seed in range(1, seeds + 1)]
            shown = []
            for metric in ("bleu", "chrf"):
                values = [score[metric]["score"] for score in scores]
                shown.append(f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})")
            say(f"{kind:<8} {test}: BLEU {shown[0]}, chrF {shown[1]}, {seeds} seeds")


def _learn(text: Path, out: Path, width: int) -> None:
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise ConfigError("gensim, which learns the vectors, is not installed; pip install gensim") from None

    say(f"{out}: learning vectors from {text}")
    sentences = list(_words(text))
    # one thread: with more, the vectors would differ from run to run
    model = Word2Vec(
        sentences,
        vector_size=width,
        sg=1,
        negative=10,
        window=WINDOW,
        min_count=MIN_COUNT,
        epochs=EPOCHS,
        seed=1,
        workers=1,
    )
    partial = partial_path(out)
    model.wv.save_word2vec_format(str(partial))
    move_into_place(partial, out)


def _words(text: Path) -> Iterator[list[str]]:
    for line in read_lines(text):
        yield WORD.findall(line.text)


if __name__ == "__main__":
    run_command(word_vectors)
