"""The commands as a person runs them: real processes, real files, exit codes, one-line errors.

Most of them are forked from a process that has imported everything (tests/forked.py), which saves seconds each; one of
every command is started as a new process.
"""

import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli.streams import opened
from tests.forked import default_interrupts, shared_server

DRAGOMAN = [sys.executable, "-m", "dragoman"]


def run(*arguments: str | Path, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[str]:
    done = shared_server().run([*map(str, arguments)], input=stdin)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def error_of(*arguments: str | Path, code: int) -> str:
    """The one line that a failing command prints."""
    lines = run(*arguments, code=code).stderr.rstrip("\n").split("\n")
    return lines[-1]


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    run("corpus", "copy", "--out", tmp_path / "corpus", "--size", "200")
    return tmp_path / "corpus"


def test_help_lists_the_commands() -> None:
    text = subprocess.run([*DRAGOMAN, "--help"], capture_output=True, text=True, check=True).stdout
    for name in ("train", "translate", "score", "evaluate", "generate", "corpus", "classify", "info", "demo"):
        assert name in text
    assert run("--version").stdout.startswith("dragoman 0.")


def test_a_warning_is_one_line() -> None:
    command = (
        "import warnings; from dragoman.cli import main; main._run = lambda: warnings.warn('a: b; c'); main.main()"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"dragoman: a: b; c\n")


@pytest.mark.slow
def test_every_command_runs_in_a_fresh_process(generated: Path, quick_run: Path, tmp_path: Path) -> None:
    """Whatever it imports: in a forked process everything is imported already."""
    source, target, fresh = generated / "valid.source", generated / "valid.target", tmp_path / "fresh"
    commands: list[list[str | Path]] = [
        ["corpus", "copy", "--out", tmp_path / "new", "--size", "50"],
        ["info", "--model", quick_run],
        ["score", "--model", quick_run, source, target],
        ["evaluate", "--model", quick_run, "--source", source, "--reference", target, "--paper"],
        ["inspect", "a b", "--model", quick_run, "--out", tmp_path / "page.html"],
        ["train", "--preset", "tiny", "--set", "data.generated=copy", "--set", "train.max_steps=1", "--out", fresh],
        ["report", fresh, "--out", tmp_path / "report.html"],
        ["compress", "--model", quick_run, "--out", tmp_path / "small"],
    ]
    for command in commands:
        done = subprocess.run([*DRAGOMAN, *map(str, command)], capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{command[0]}: {done.stderr}"


def test_mistyped_command_or_option_is_a_usage_error() -> None:
    run("trian", code=2)
    run("translate", "--modle", "x", code=2)


# translate


def test_translate_writes_one_line_per_input_line(quick_run: Path, tmp_path: Path) -> None:
    source = b"a b c\n\nd e\n   \nf"
    command = [*DRAGOMAN, "translate", "--model", str(quick_run)]
    from_stdin = subprocess.run(command, input=source, capture_output=True, check=True).stdout
    assert run("translate", "--model", quick_run, stdin=source).stdout.encode() == from_stdin, "forked or not"
    (tmp_path / "in.txt").write_bytes(source)
    run("translate", "--model", quick_run, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    assert from_stdin == (tmp_path / "out.txt").read_bytes()
    run("translate", "--model", quick_run, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.GZ")
    assert from_stdin == gzip.decompress((tmp_path / "out.GZ").read_bytes())
    lines = from_stdin.decode().split("\n")
    assert len(lines) == 6
    assert lines[5] == "", "one newline per line"
    assert lines[1] == lines[3] == ""
    as_arguments = run("translate", "--model", quick_run, "a b c", "d e").stdout.split("\n")
    assert as_arguments == [lines[0], lines[2], ""]


def test_only_newlines_separate_lines(quick_run: Path) -> None:
    source = "a\u2028b\nc\u0085d\re\vf\fg\x1ch\ni\r\n".encode()
    assert run("translate", "--model", quick_run, stdin=source).stdout.count("\n") == 3
    assert len(source.decode().splitlines()) > 3, "the control: splitlines would count more"


def test_a_bad_line_fails_alone_and_is_reported(quick_run: Path) -> None:
    done = run("translate", "--model", quick_run, stdin=b"a b\nbad \xff\nc d\n", code=1)
    assert done.stdout.split("\n")[1] == ""
    assert done.stdout.count("\n") == 3
    *nothing, failed = done.stderr.splitlines()
    assert failed == "translate: 1 of 3 lines failed (first: line 2: invalid UTF-8 at byte 5)"
    silent = [number for number, line in enumerate(done.stdout.split("\n")[:3], start=1) if not line and number != 2]
    assert silent, "the control: this model has nothing to say about one of them"
    assert nothing == [f"translate: {len(silent)} of 3 lines translated to nothing (first: line {silent[0]})"]


def test_over_long_line_is_reported_by_number(quick_run: Path) -> None:
    long = b" ".join([b"a b c d e f g h."] * 60)
    done = run("translate", "--model", quick_run, "--beam", "1", stdin=b"a b\n" + long + b"\n")
    assert "translate: 1 of 2 lines too long, translated in pieces (first: line 2)\n" in done.stderr


def test_json_is_one_object_per_line(quick_run: Path) -> None:
    done = run("translate", "--model", quick_run, "--json", "--n-best", "2", stdin=b"a b\n\n")
    first, second = (json.loads(line) for line in done.stdout.rstrip("\n").split("\n"))
    assert {"source", "translation", "score", "normalized_score", "status"} <= first.keys()
    assert len(first["alternatives"]) == 2
    assert (second["status"], second["translation"]) == ("empty", "")
    assert second["score"] is second["normalized_score"] is None, "0 would be the best of all scores"
    assert first["score"] < 0


def test_white_space_around_a_line_stays_but_separates_no_columns(quick_run: Path) -> None:
    alone, spaced = (run("translate", "--model", quick_run, stdin=text).stdout for text in (b"a b\n", b"\ta b  \n"))
    assert spaced == "\t" + alone.removesuffix("\n") + "  \n"
    best = run("translate", "--model", quick_run, "--n-best", "3", stdin=b"\ta b  \n").stdout
    assert best == run("translate", "--model", quick_run, "--n-best", "3", stdin=b"a b\n").stdout


def test_n_best_is_tab_separated_and_attention_is_drawn(quick_run: Path) -> None:
    done = run("translate", "--model", quick_run, "--n-best", "3", "--beam", "3", "a b", "c")
    assert [line.count("\t") for line in done.stdout.rstrip("\n").split("\n")] == [2, 2]
    picture = run("translate", "--model", quick_run, "--attention", "a b c").stdout
    assert "▁a" in picture
    assert "│" in picture


def test_sigpipe_handler_is_restored_for_the_calling_program() -> None:
    before = signal.getsignal(signal.SIGPIPE)
    with opened(None):
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGPIPE) is before


def test_reader_closing_early_is_not_an_error(quick_run: Path) -> None:
    process = subprocess.Popen(
        [*DRAGOMAN, "translate", "--model", str(quick_run), "--beam", "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(b"a b\n")
    process.stdin.flush()
    assert process.stdout.readline().endswith(b"\n"), "a slow pipe gets its answer before the input ends"
    process.stdout.close()
    try:
        process.stdin.write(b"a b\n" * 2000)
        process.stdin.close()
    except BrokenPipeError:
        pass
    code = process.wait(timeout=600)
    errors = process.stderr.read()
    process.stderr.close()
    assert errors == b""
    assert code in (-signal.SIGPIPE, 0)


def test_translate_errors_name_cause_and_remedy(quick_run: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "no"
    assert error_of("translate", "--model", nowhere, "x", code=4) == (
        f"dragoman: {nowhere}: no such model directory; train one with `dragoman train ... --out {nowhere}`, "
        "or use a bundled one: de-en, en-de"
    )
    assert error_of("translate", "--model", quick_run, "--n-best", "9", "x", code=2) == (
        "dragoman: decode.n_best: 9 is more than beam=4; widen the beam or ask for fewer"
    )
    assert error_of("translate", "--model", quick_run, "--input", tmp_path / "no.txt", code=3) == (
        f"dragoman: {tmp_path / 'no.txt'}: no such file; check its name"
    )
    assert error_of("translate", "--model", quick_run, "--device", "cuda", "x", code=2) == (
        "dragoman: device: 'cuda' is not available, this machine has no CUDA; use auto or cpu"
    )
    debugged = subprocess.run([*DRAGOMAN, "--debug", "translate", "--model", "no", "x"], capture_output=True)
    assert b"Traceback" in debugged.stderr


# score and evaluate


def test_score_prints_one_number_per_line(quick_run: Path, tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"a b\nc d e\n")
    (tmp_path / "t").write_bytes(b"b a\ne d c")
    values = [float(line) for line in run("score", "--model", quick_run, tmp_path / "s", tmp_path / "t").stdout.split()]
    assert len(values) == 2
    assert all(value < 0 for value in values)
    (tmp_path / "t").write_bytes(b"b a\n")
    assert error_of("score", "--model", quick_run, tmp_path / "s", tmp_path / "t", code=3).startswith(
        f"dragoman: {tmp_path / 't'}: 1 lines, {tmp_path / 's'}: 2; "
    )


@pytest.mark.slow
def test_evaluate_scores_a_model_or_a_file(quick_run: Path, generated: Path) -> None:
    source, reference = generated / "test.source", generated / "test.target"
    same = json.loads(run("evaluate", "--hypotheses", reference, "--reference", reference, "--json").stdout)
    assert same["bleu"]["score"] == pytest.approx(100)
    assert same["exact_match"] == 100
    text = run("evaluate", "--model", quick_run, "--source", source, "--reference", reference, "--beam", "1").stdout
    assert text.startswith("BLEU ")
    assert "nrefs:1|" in text
    assert "of 1,000 sentences" in text
    assert error_of("evaluate", "--reference", reference, code=2) == (
        "dragoman: --source: missing; give what en-de is to translate, or translations with --hypotheses"
    )
    assert (
        error_of("evaluate", "--reference", reference, "--hypotheses", reference, "--model", quick_run, code=2)
        == "dragoman: --model: give either --model and --source, or --hypotheses"
    )


# train, generate, info


@pytest.mark.slow
def test_train_runs_without_a_configuration_file(generated: Path, tmp_path: Path) -> None:
    arguments: list[str | Path] = [
        "train", "--source", generated / "train.source", "--target", generated / "train.target",
        "--valid-source", generated / "valid.source", "--valid-target", generated / "valid.target",
        "--out", tmp_path / "run", "--preset", "tiny", "--set", "train.max_steps=3", "--set", "text.vocab_size=290",
        "--set", "train.valid_sentences=5",
    ]  # fmt: skip
    done = run(*arguments)
    assert f"{tmp_path / 'run'}: reached train.max_steps=3; kept the weights of step 3, chrf " in done.stdout
    assert "valid  step 3: loss " in done.stderr
    again = run("train", "--out", tmp_path / "run", "--set", "train.max_steps=5")
    assert "resuming from" in again.stderr
    assert "reached train.max_steps=5; kept " in again.stdout


def test_train_refuses_typos_with_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\nmax_step = 5\n")
    assert error_of("train", file, code=2) == f"dragoman: {file}: train.max_step: unknown key; did you mean max_steps?"
    assert error_of("train", "--set", "model.vocab_size=5", "--out", tmp_path / "x", code=2) == (
        "dragoman: model.vocab_size: follows from the tokenizer; leave it out and set text.vocab_size"
    )
    assert error_of("train", "--preset", "tiny", code=2) == ("dragoman: --out: missing; give the model directory")
    assert error_of("train", "--out", tmp_path / "x", "--set", "data.generated=nubmers-th", code=2) == (
        "dragoman: data.generated: no corpus 'nubmers-th'; did you mean numbers-th?"
    )


@pytest.mark.slow
def test_invalid_options_are_refused_like_settings(quick_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    for arguments, message in (
        (["train", "--out", out, "--on-bad-line", "skp"],
         "data.on_bad_line: 'skp' is not a choice; did you mean skip?"),
        (["train", "--out", out, "--on-bad-line", ""], "data.on_bad_line: '' is not a choice; known: fail, skip"),
        (["train", "--out", out, "--set", "train.device=gpu"],
         "train.device: 'gpu' is not a device; did you mean cuda?"),
        (["train", "--out", out, "--preset", ""], "preset: '' is not a choice; known: base, big, small, tiny"),
        (["translate", "--model", quick_run, "--split", "sentance", "a"],
         "decode.split: 'sentance' is not a choice; did you mean sentences?"),
        (["translate", "--model", quick_run, "--top-p", "nan", "a"],
         "decode.top_p: nan is out of range; use 0.001 to 1.0"),
        (["translate", "--model", quick_run, "--device", "gpu", "a"],
         "device: 'gpu' is not a device; did you mean cuda?"),
        (["info", "--set", "model.vocab_size=5"],
         "model.vocab_size: follows from the tokenizer; leave it out and set text.vocab_size"),
    ):  # fmt: skip
        assert error_of(*arguments, code=2) == f"dragoman: {message}"
    assert not out.exists()


@pytest.mark.slow
def test_invalid_utf8_in_corpus_is_refused_or_skipped(generated: Path, tmp_path: Path) -> None:
    broken = tmp_path / "train.source"
    lines = (generated / "train.source").read_bytes().split(b"\n")
    lines[6] = b"x" * 30 + b"\xff"
    broken.write_bytes(b"\n".join(lines))
    arguments: list[str | Path] = [
        "train", "--source", broken, "--target", generated / "train.target", "--valid-source",
        generated / "valid.source", "--valid-target", generated / "valid.target", "--out", tmp_path / "run",
        "--preset", "tiny", "--set", "train.max_steps=1", "--set", "text.vocab_size=290",
        "--set", "train.valid_sentences=2",
    ]  # fmt: skip
    assert error_of(*arguments, code=3) == (
        f"dragoman: {broken}:7: invalid UTF-8 at byte 31; fix the line or use --on-bad-line skip"
    )
    assert "1 pair left out, not valid text on a side" in run(*arguments, "--on-bad-line", "skip").stderr


@pytest.mark.slow
def test_generate_lists_and_writes_corpora(tmp_path: Path) -> None:
    assert "numbers-th" in run("corpus").stdout
    run("corpus", "numbers-th", "--out", tmp_path, "--size", "100")
    expected = {f"{part}.{side}" for part in ("train", "valid", "test") for side in ("en", "th")}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert error_of("corpus", "copy", "--out", tmp_path, code=2).endswith("choose another place or pass --force")


def test_info_prints_the_parameters(quick_run: Path) -> None:
    text = run("info", "--preset", "base").stdout
    assert "63,082,496  63.1M" in text
    assert json.loads(run("info", "--preset", "big", "--json").stdout)["total"] == 214_245_376
    assert "[train]" in run("info", "--model", quick_run).stdout


@pytest.mark.slow
def test_translate_works_without_a_compiler(quick_run: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}  # nothing on it
    command = [*DRAGOMAN, "translate", "--model", str(quick_run), "a b"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert done.stdout.count(b"\n") == 1


# Faults around the commands


def test_failure_leaves_existing_files_unchanged(quick_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"a b\nc d\n")
    assert error_of("translate", "--model", quick_run, "--input", file, "--output", file, code=2) == (
        f"dragoman: --output {file}: is the input too; give another file"
    )
    run("translate", "--model", quick_run, "--input", tmp_path / "none", "--output", file, code=3)
    assert file.read_bytes() == b"a b\nc d\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"], "nothing partial is left"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_exits_with_6(quick_run: Path) -> None:
    message = error_of("translate", "--model", quick_run, "--output", "/dev/full", "a b", code=6)
    assert message == "dragoman: /dev/full: cannot be written (No space left on device); choose another place"
    for command in (["translate", "--model", str(quick_run), "a b"], ["--version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([*DRAGOMAN, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 6
        assert done.stderr == (
            "dragoman: standard output: cannot be written (No space left on device); choose another place\n"
        )


def test_version_with_closed_stdout_shows_no_traceback() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    left = subprocess.run([*DRAGOMAN, "--version"], stdout=writing, stderr=subprocess.PIPE, env=environment)
    os.close(writing)
    assert (left.returncode, left.stderr) == (1, b"")
    closed = subprocess.run(f"{shlex.join(DRAGOMAN)} --version >&-", shell=True, stderr=subprocess.PIPE)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_interrupt_while_reading_stdin_exits_with_130(quick_run: Path) -> None:
    with default_interrupts():
        process = subprocess.Popen(
            [*DRAGOMAN, "translate", "--model", str(quick_run), "--beam", "1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"a b\n")
    process.stdin.flush()
    process.stdout.readline()  # it is at work
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors == b"dragoman: interrupted\n"


@pytest.mark.slow
def test_closed_stdout_is_reported(quick_run: Path) -> None:
    command = shlex.join([*DRAGOMAN, "translate", "--model", str(quick_run), "a"])
    done = subprocess.run(f"{command} >&-", shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "dragoman: standard output: closed; give --output\n")


def test_incompatible_options_are_refused(quick_run: Path, tmp_path: Path) -> None:
    reference = tmp_path / "r"
    reference.write_bytes(b"a\n")
    mistakes: list[tuple[list[str | Path], str]] = [
        (
            ["translate", "--model", quick_run, "--attention"],
            "--attention: draws pictures between the lines; give text as arguments, or use --json",
        ),
        (
            ["info", "--model", quick_run, "--set", "train.seed=2"],
            "--set: a model has the settings it has; leave out --set and --vocab-size",
        ),
        (
            ["evaluate", "--hypotheses", reference, "--reference", reference, "--beam", "2"],
            "--hypotheses: are already translations; leave out --beam",
        ),
        (
            ["evaluate", "--hypotheses", reference, "--reference", reference, "--split", "long"],
            "--hypotheses: are already translations; leave out --split",
        ),
        (["demo", "--train", "--language", "fr"], "--language fr: the demo speaks Thai and German; known: de, th"),
        (["demo", "--language", "de"], "--language: belongs to the training demo; add --train"),
    ]
    for arguments, message in mistakes:
        assert error_of(*arguments, code=2) == f"dragoman: {message}"
