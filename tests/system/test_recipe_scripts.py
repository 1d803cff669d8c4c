"""Back-translation and distillation from end to end: their outputs, how they resume, what they refuse."""

import bz2
import importlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dragoman
from dragoman.bundle import WEIGHTS, load_config
from dragoman.cli.progress import TrainingReporter
from dragoman.data import generated
from dragoman.data.corpus import file_hash
from dragoman.decode.bulk import ShardTranslator
from dragoman.decode.translator import Translator
from dragoman.files import lock_directory
from dragoman.training.checkpoint_files import checkpoints

RECIPES = Path(__file__).parents[2] / "recipes"
LINES = 80  # monolingual ones
STEPS = 40
SETTINGS = (
    "text.model=word", "text.vocab_size=300", "text.byte_fallback=false", "model.num_layers=1", "model.d_model=32",
    "model.d_ff=64", "model.dropout=0.0", f"train.max_steps={STEPS}", "train.save_every=20", "train.batch_tokens=512",
    "train.learning_rate=1e-2", "train.warmup_steps=10", "train.label_smoothing=0.0", "train.valid_sentences=10",
    "train.log_every=5", "decode.beam=2", "train.threads=1", "decode.threads=1",  # runs are compared to the bit
)  # fmt: skip


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """The modules of recipes/, as `python recipes/NAME.py` finds them."""
    sys.path.insert(0, str(RECIPES))
    yield {name: importlib.import_module(name) for name in ("steps", "back_translation", "distillation", "ablations")}
    sys.path.remove(str(RECIPES))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 real pairs of letters and the same reversed, 50 to validate, and targets alone."""
    folder = tmp_path_factory.mktemp("corpus")
    splits = generated.generate("reverse", 300 + LINES)
    files = {
        "train.source": [source for source, _ in splits.train[:300]],
        "train.target": [target for _, target in splits.train[:300]],
        "valid.source": [source for source, _ in splits.valid[:50]],
        "valid.target": [target for _, target in splits.valid[:50]],
        "alone.target": [target for _, target in splits.train[300:]],
    }
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "bad").write_bytes(b"a b\nc \xff d\n")
    (folder / "blank").write_text("\n \n")
    return folder


def real_files(corpus: Path) -> list[str]:
    names = {"source": "train.source", "target": "train.target", "valid-source": "valid.source"}
    names["valid-target"] = "valid.target"
    return [item for option, name in names.items() for item in (f"--{option}", str(corpus / name))]


def settings(*more: str) -> list[str]:
    return [item for setting in (*SETTINGS, *more) for item in ("--set", setting)]


def back_translation(corpus: Path, out: Path, *more: str) -> list[str]:
    alone = ["--monolingual", str(corpus / "alone.target"), "--out", str(out), "--preset", "tiny"]
    return ["back_translation", *real_files(corpus), *alone, *settings(), *more]


def distillation(corpus: Path, out: Path, *more: str) -> list[str]:
    presets = ["--out", str(out), "--student-preset", "tiny", *settings()]
    return ["distillation", *real_files(corpus), *presets, *more]


Run = Callable[[Sequence[str]], int]


@pytest.fixture
def run(scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a script in this process; the exit code."""

    def run(command: Sequence[str]) -> int:
        monkeypatch.setattr(sys, "argv", [f"recipes/{command[0]}.py", *command[1:]])
        with pytest.raises(SystemExit) as ended:
            scripts["steps"].run_command(scripts[command[0]].command)
        return int(ended.value.code or 0)

    return run


def start(command: Sequence[str]) -> list[str]:
    return [sys.executable, str(RECIPES / f"{command[0]}.py"), *command[1:]]


@pytest.fixture(scope="module")
def back_translated(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the command. Tests must not change it."""
    out = tmp_path_factory.mktemp("back") / "run"
    command = start(back_translation(corpus, out, "--repeat", "2", "--max-ratio", "20"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:3] for line in lines if re.match(r"\d/3", line)] == ["1/3", "2/3", "3/3"]
    assert f"    {LINES} lines translated" in lines
    assert f"step {STEPS}: loss" in done.stderr  # progress, on stderr
    return out


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


# Back-translation


@pytest.mark.slow
def test_the_synthetic_source_is_the_reverse_models_output(back_translated: Path, corpus: Path) -> None:
    alone = lines_of(corpus / "alone.target")
    reverse = dragoman.load(str(back_translated / "reverse"), "cpu").translate(alone)
    expected = [(each.text, each.source) for each in reverse if each.text and each.status == "translated"]
    synthetic = back_translated / "synthetic"
    assert list(zip(lines_of(synthetic / "source"), lines_of(synthetic / "target"), strict=True)) == expected
    assert len(expected) > LINES / 2

    # the control: no other model said it
    forward = dragoman.load(str(back_translated / "model"), "cpu").translate([each for _, each in expected])
    assert [each.text for each in forward] != [text for text, _ in expected]


@pytest.mark.slow
def test_models_are_trained_on_the_intended_pairs(back_translated: Path, corpus: Path) -> None:
    reverse, forward = load_config(back_translated / "reverse").data, load_config(back_translated / "model").data
    assert (reverse.source, reverse.target) == ((str(corpus / "train.target"),), (str(corpus / "train.source"),))
    assert (reverse.valid_source, reverse.valid_target) == (forward.valid_target, forward.valid_source)
    synthetic = back_translated / "synthetic"
    assert forward.source == (*[str(corpus / "train.source")] * 2, str(synthetic / "source"))
    assert forward.target == (*[str(corpus / "train.target")] * 2, str(synthetic / "target"))
    pairs = 2 * 300 + len(lines_of(synthetic / "source"))
    assert f"{pairs:,} pairs" in (back_translated / "model" / "card.md").read_text()


@pytest.mark.slow
def test_repeating_a_finished_command_redoes_no_step(
    back_translated: Path,
    corpus: Path,
    run: Run,
    scripts: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a finished step was done again")

    before = {
        path: path.read_bytes() for path in back_translated.rglob("*") if path.suffix in (".safetensors", ".jsonl")
    }
    monkeypatch.setattr(ShardTranslator, "translate", forbidden)
    monkeypatch.setattr(TrainingReporter, "step", forbidden)
    assert run(back_translation(corpus, back_translated, "--repeat", "2", "--max-ratio", "20")) == 0
    told = capsys.readouterr().out
    assert f"{LINES} lines translated, {LINES} of them found in place" in told
    assert told.count(f"already finished at step {STEPS}") == 2
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.slow
def test_interrupted_run_resumes_with_the_same_result(
    back_translated: Path,
    corpus: Path,
    run: Run,
    scripts: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Interrupted in each of the three steps."""
    steps = scripts["steps"]
    monkeypatch.setattr(steps, "PART_LINES", LINES // 4)
    command = back_translation(corpus, tmp_path / "run", "--repeat", "2", "--max-ratio", "20")
    with monkeypatch.context() as patch:
        patch.setattr(TrainingReporter, "step", interrupting(TrainingReporter.step, after=24))
        assert run(command) == 130
    assert "back_translation: interrupted; run the same command to resume where it stopped" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(ShardTranslator, "translate", interrupting(ShardTranslator.translate, after=2))
        assert run(command) == 130
    assert len(list((tmp_path / "run" / "synthetic" / "parts" / "translated").glob("part-*.jsonl"))) == 2
    assert not (tmp_path / "run" / "synthetic" / "source").exists()
    with monkeypatch.context() as patch:
        patch.setattr(TrainingReporter, "step", interrupting(TrainingReporter.step, after=24))
        assert run(command) == 130
    assert f"{LINES} lines translated, {LINES // 2} of them found in place" in capsys.readouterr().out
    assert run(command) == 0
    assert_same_models(tmp_path / "run", back_translated)


def assert_same_models(run: Path, other: Path) -> None:
    for name in ("reverse/weights.safetensors", "synthetic/source", "synthetic/target", "model/weights.safetensors"):
        assert file_hash(run / name) == file_hash(other / name), name  # pytest takes minutes to compare bytes


def interrupting(call: Callable[..., Any], after: int) -> Callable[..., Any]:
    """The same, but the call after so many is as if somebody pressed Ctrl-C."""
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise KeyboardInterrupt
        return call(*arguments, **options)

    return counted


# Distillation


@pytest.mark.slow
def test_student_is_trained_on_teacher_translations(quick_run: Path, corpus: Path, run: Run, tmp_path: Path) -> None:
    command = distillation(corpus, tmp_path / "run", "--teacher", str(quick_run), "--max-ratio", "20", "--beam", "3")
    place = command.index("--target")
    del command[place : place + 2]  # a teacher that is there needs no translations
    assert run(command) == 0
    taught = dragoman.load(str(quick_run), "cpu").translate(lines_of(corpus / "train.source"), beam=3)
    expected = [(each.source, each.text) for each in taught if each.text and each.status == "translated"]
    distilled = tmp_path / "run" / "distilled"
    assert list(zip(lines_of(distilled / "source"), lines_of(distilled / "target"), strict=True)) == expected
    assert lines_of(distilled / "target") != lines_of(corpus / "train.target")[: len(expected)]  # the control
    data = load_config(tmp_path / "run" / "student").data
    assert (data.source, data.target) == ((str(distilled / "source"),), (str(distilled / "target"),))
    assert not (tmp_path / "run" / "teacher").exists()


@pytest.mark.slow
def test_teacher_can_be_trained_and_real_pairs_kept(corpus: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sizes = ["--teacher-preset", "tiny", "--teacher-set", "model.d_model=48", "--student-set", "model.d_ff=32"]
    assert run(distillation(corpus, out, *sizes, "--keep-real", "--max-ratio", "20")) == 0
    teacher, student = load_config(out / "teacher").model, load_config(out / "student").model
    assert isinstance(teacher, dragoman.TransformerConfig)
    assert isinstance(student, dragoman.TransformerConfig)
    assert ((teacher.d_model, teacher.d_ff), (student.d_model, student.d_ff)) == ((48, 64), (32, 32))
    data = load_config(out / "student").data
    assert data.source == (str(corpus / "train.source"), str(out / "distilled" / "source"))
    assert data.target == (str(corpus / "train.target"), str(out / "distilled" / "target"))


# A text in parts


@pytest.fixture
def in_parts(
    scripts: dict[str, ModuleType], corpus: Path, quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[Any], int]]:
    """Translate the monolingual text in four parts; returns the translations and how many parts were made."""
    steps = scripts["steps"]
    monkeypatch.setattr(steps, "PART_LINES", LINES // 4)
    made: list[int] = []
    stream = Translator.stream

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(1)
        return stream(*arguments, **options)

    monkeypatch.setattr(Translator, "stream", counted)

    def translate(text: Path = corpus / "alone.target", **options: Any) -> tuple[list[Any], int]:
        made.clear()
        lines = steps.translate_text(quick_run, [str(text)], tmp_path / "parts", device="cpu", **options)
        return list(lines), len(made)

    return translate


InParts = Callable[..., tuple[list[Any], int]]


def test_only_missing_or_damaged_parts_are_translated_again(in_parts: InParts, tmp_path: Path) -> None:
    whole, made = in_parts()
    assert (len(whole), made) == (LINES, 4)
    assert in_parts() == (whole, 0)
    parts = sorted((tmp_path / "parts" / "translated").glob("part-*"))
    parts[0].unlink()
    changed = bytearray(parts[1].read_bytes())
    changed[-10] ^= 1
    parts[1].write_bytes(changed)
    parts[2].write_bytes(parts[3].read_bytes())  # whole, but of other lines
    assert in_parts() == (whole, 3)


def test_changed_settings_or_lines_are_translated_again(in_parts: InParts, corpus: Path, tmp_path: Path) -> None:
    whole, _ = in_parts(beam=2)
    assert in_parts(beam=2, batch_size=7) == (whole, 0)  # the size of a batch changes nothing
    assert in_parts(beam=1)[1] == 4
    longer = tmp_path / "longer"
    lines = lines_of(corpus / "alone.target")
    longer.write_text("".join(f"{line}\n" for line in [*lines, "a b c"]))
    more, made = in_parts(longer, beam=1)
    assert (len(more), made) == (LINES + 1, 1)


def test_every_part_samples_with_its_own_seed(in_parts: InParts, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("a b c d e f\n" * LINES)
    drawn, _ = in_parts(text, sampling=True)
    quarter = LINES // 4
    assert drawn[:quarter] != drawn[quarter : 2 * quarter]
    again, made = in_parts(text, sampling=True, seed=2)
    assert made == 4
    assert again != drawn
    assert in_parts(text, sampling=True)[0] == drawn
    searched, _ = in_parts(text)  # the control: a search says one thing
    assert len({line.text for line in searched}) == 1


# Pairs


def test_unusable_pairs_are_dropped_and_counted(
    scripts: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = scripts["steps"]
    good = steps.Translated("eins zwei", "one two", "translated", 3, 3)
    lines = [
        good,
        steps.Translated("", "", "empty", 0, 0),
        steps.Translated("kaputt", "", "failed", 0, 0),
        steps.Translated("drei", "", "translated", 2, 1),
        steps.Translated("vier", "four four four four", "truncated", 2, 5),
        steps.Translated("fünf", "five, five, five", "translated", 2, 9),
        steps.Translated("sechs und sieben und acht", "six", "translated", 9, 2),
        steps.Translated("neun", "nine nine", "translated", 2, 8),
    ]
    source, target = tmp_path / "source", tmp_path / "target"
    steps.write_pairs(lines, source, target, 4.0)
    assert (lines_of(source), lines_of(target)) == (["eins zwei", "neun"], ["one two", "nine nine"])
    assert capsys.readouterr().out == (
        f"    2 pairs in {source} and {target}; left out: 2 more than 4 times as long on one side, 1 blank, 1 failed, "
        "1 came out empty, 1 did not end\n"
    )
    steps.write_pairs(lines, source, target, 5.0)  # the control
    assert len(lines_of(source)) == 4
    with pytest.raises(dragoman.DataError, match=r"no pair is left: 1 blank; train the model that translates"):
        steps.write_pairs(lines[1:2], source, target, 4.0)
    assert len(lines_of(source)) == 4  # as it was
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


# What is refused, before anything is trained


def refusals(corpus: Path) -> dict[str, tuple[list[str], int, str]]:
    bad, blank, out = corpus / "bad", corpus / "blank", corpus / "refused"
    back = back_translation(corpus, out)
    missing = corpus / "nowhere"
    return {
        "bad line": (
            [*back, "--monolingual", str(bad)],
            3,
            f"{bad}:2: invalid UTF-8 at byte 3; fix the line or use --set data.on_bad_line=skip",
        ),
        "no text": (
            [*back[: back.index("--monolingual") + 1], str(blank), *back[back.index("--monolingual") + 2 :]],
            3,
            f"{blank}: nothing to translate: 2 lines, all of them blank or unusable",
        ),
        "no file": ([*back, "--valid-source", str(missing)], 3, f"{missing}: no such file; check its name"),
        "setting": ([*back, "--set", "train.max_step=5"], 2, "train.max_step: unknown key; did you mean max_steps?"),
        "reverse setting": (
            [*back, "--reverse-set", "train.seed=-1"],
            2,
            "train.seed: -1 is out of range; use 0 to 4611686018427387904",
        ),
        "corpus as setting": (
            [*back, "--set", "data.source=x"],
            2,
            "--set data.source: the corpora of a recipe are given by its options; leave it out",
        ),
        "preset": ([*back, "--preset", "tinny"], 2, "preset: 'tinny' is not a choice; did you mean tiny?"),
        "top-k": ([*back, "--top-k", "5"], 2, "--top-k: has no part in beam search; give --sample too"),
        "reverse model": (
            [*back, "--reverse", str(missing)],
            4,
            f"{missing}: no such model directory; train one with `dragoman train ... --out {missing}`, "
            "or use a bundled one: de-en, en-de",
        ),
        "teacher": (
            distillation(corpus, out, "--teacher", str(corpus)),
            4,
            f"{corpus}: not a model directory (no config.toml); give the --out of a training run",
        ),
        "two teachers": (
            distillation(corpus, out, "--teacher", str(corpus), "--teacher-preset", "tiny"),
            2,
            "--teacher: a trained model has the settings it has; leave out --teacher-preset and --teacher-set",
        ),
    }


@pytest.mark.parametrize("name", refusals(Path("corpus")))
def test_bad_input_is_refused_in_one_line(
    name: str, corpus: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    command, code, message = refusals(corpus)[name]
    assert run(command) == code
    assert capsys.readouterr().err == f"{command[0]}: {message}\n"
    assert not (corpus / "refused" / "reverse").exists()
    assert not (corpus / "refused" / "teacher").exists()


@pytest.mark.slow
def test_changed_corpus_for_a_finished_run_is_refused(
    back_translated: Path, corpus: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = (back_translated / "model" / WEIGHTS).read_bytes()
    assert run(back_translation(corpus, back_translated, "--repeat", "3", "--max-ratio", "20")) == 4
    assert "restore it, or give another --out for a new run" in capsys.readouterr().err
    assert (back_translated / "model" / WEIGHTS).read_bytes() == weights


def test_second_run_in_a_locked_directory_is_refused(
    corpus: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_directory(tmp_path):
        assert run(back_translation(corpus, tmp_path)) == 4
    assert "another run is training here" in capsys.readouterr().err


# Stopped and killed


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_says_how_to_resume(corpus: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = start(back_translation(corpus, tmp_path / "run", "--set", "train.max_steps=100000"))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not checkpoints(tmp_path / "run" / "reverse") and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 128 + number
    assert told.splitlines()[-1].startswith(
        f"back_translation: {tmp_path / 'run' / 'reverse'}: stopped by {number.name}"
    )
    assert "run the same command to resume" in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_run_killed_at_any_moment_ends_with_the_same_result(
    back_translated: Path, corpus: Path, tmp_path: Path
) -> None:
    command = start(back_translation(corpus, tmp_path / "run", "--repeat", "2", "--max-ratio", "20"))
    moments: tuple[Callable[[], bool], ...] = (
        lambda: bool(checkpoints(tmp_path / "run" / "reverse")),
        lambda: (tmp_path / "run" / "synthetic").exists(),
        lambda: bool(checkpoints(tmp_path / "run" / "model")),
    )
    for moment in moments:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not moment() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert moment()
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    assert_same_models(tmp_path / "run", back_translated)


# Ablations


def test_every_row_of_the_ablations_is_a_valid_configuration(scripts: dict[str, ModuleType]) -> None:
    ablations = scripts["ablations"]
    for name, chosen in ablations.VARIANTS.items():
        config = dragoman.Config.build(None, ablations.RECIPE, chosen)
        assert (config.model.architecture == "rnn") == name.startswith(("rnn", "lstm"))


@pytest.fixture
def folder(corpus: Path, tmp_path: Path) -> Path:
    """A data folder with the corpus of the ablations."""
    place = tmp_path / "data" / "tatoeba-en-de"
    place.mkdir(parents=True)
    for split, found in (("train", "train"), ("valid", "valid"), ("test", "valid")):
        for language, side in (("en", "source"), ("de", "target")):
            packed = bz2.compress((corpus / f"{found}.{side}").read_bytes())
            (place / f"{split}.{language}.bz2").write_bytes(packed)
    return place.parent


@pytest.mark.slow
def test_ablations_train_each_row_and_print_scores(folder: Path, tmp_path: Path) -> None:
    quick = ["text.model=word", "text.vocab_size=300", "train.max_steps=2", "train.save_every=2", "model.d_model=16"]
    command = [sys.executable, str(RECIPES / "ablations.py"), "--data", str(folder), "--out", str(tmp_path / "out")]
    command += ["--only", "base", "--only", "lstm", "--jobs", "2", *(word for one in quick for word in ("--set", one))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, base, lstm = done.stdout.splitlines()
    assert re.match(r"base +tatoeba-en-de-test: BLEU \d", base)
    assert re.match(r"lstm +tatoeba-en-de-test: BLEU [\d.]+ \[[\d.]+, [\d.]+\], chrF \d", lstm)
    broken = subprocess.run([*command, "--set", "model.dropout=2"], capture_output=True, text=True)
    assert broken.returncode == 2
    logs = f"{tmp_path}/out/base.log, {tmp_path}/out/lstm.log"
    assert broken.stderr == f"ablations: not trained: base, lstm; more in {logs}\n"
    assert "lstm: ended with exit code 2: dragoman: model.dropout: " in broken.stdout
    unknown = subprocess.run([*command, "--only", "bas"], capture_output=True, text=True)
    assert unknown.stderr == "ablations: --only bas: no such row; did you mean base?\n"
    nowhere = subprocess.run([*command, "--data", "/no/where"], capture_output=True, text=True)
    assert nowhere.stderr == "ablations: --data /no/where: no such folder; it is where the corpora are\n"
    assert nowhere.stdout == ""


@pytest.mark.slow
def test_word_vectors_train_each_kind_and_print_means(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for language in ("en", "de"):  # in place of those that gensim learns
        rows = [f"{letter} {' '.join([str(place)] * 16)}\n" for place, letter in enumerate("abcdefgh", start=1)]
        (out / f"{language}.vec").write_text(f"8 16\n{''.join(rows)}")
    quick = ["text.model=word", "text.vocab_size=300", "train.max_steps=2", "train.save_every=2", "model.d_model=16"]
    command = [sys.executable, str(RECIPES / "word_vectors.py"), "--data", str(folder), "--out", str(out)]
    command += ["--pairs", "200", "--seeds", "2", "--jobs", "2", *(word for one in quick for word in ("--set", one))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    random, tuned, frozen = done.stdout.splitlines()[-3:]
    score = r"[\d.]+ \([\d.]+ to [\d.]+\)"
    assert re.fullmatch(rf"tuned +tatoeba-en-de-test: BLEU {score}, chrF {score}, 2 seeds", tuned)
    assert (random.split()[0], frozen.split()[0]) == ("random", "frozen")
    assert len(lines_of(out / "train.en")) == len(lines_of(out / "train.de")) == 200
    assert "have vectors" in (out / "frozen-2.log").read_text()
    assert "have vectors" not in (out / "random-2.log").read_text()
    assert load_config(out / "frozen-1").train.freeze == ("source_embedding", "target_embedding")
    nowhere = subprocess.run([*command, "--data", str(tmp_path)], capture_output=True, text=True)
    assert nowhere.stderr == (
        f"word_vectors: --data {tmp_path}: does not hold tatoeba-en-de/train.en.bz2; it is where the corpora are\n"
    )
