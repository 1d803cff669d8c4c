"""A translation on a CPU starts without torch; what needs torch still works after such a start."""

import subprocess
import sys

import pytest

SENTENCE = "The weather is nice today."

COMMAND = """
import sys
from dragoman.cli.main import main
sys.argv[0] = "dragoman"
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(*sorted({"torch", "onnxruntime"} & sys.modules.keys()))
"""


def run(program: str, *arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_translate_on_a_cpu_does_not_import_torch() -> None:
    """Nor do placeholders, which are found again by alignment."""
    given = f"{SENTENCE} {{name}}"
    expected = ["Das Wetter ist heute schön. {name}", "onnxruntime"]
    assert run(COMMAND, "translate", "--device", "cpu", given) == expected


@pytest.mark.slow
@pytest.mark.parametrize("option", [("--engine", "plain"), ("--sample", "--seed", "1"), ("--attention",)])
def test_the_plain_engine_imports_torch(option: tuple[str, ...]) -> None:
    """The control."""
    assert "torch" in run(COMMAND, "translate", "--device", "cpu", *option, SENTENCE)[-1].split()


USES = f"""
import sys
import dragoman
translator = dragoman.load("en-de", "cpu")
translated = translator.translate({SENTENCE!r})
assert "torch" not in sys.modules, "at the start"
repr(translator)
assert "torch" not in sys.modules, "by repr"
assert (0, 0) in translator.align({SENTENCE!r}, translated.text)
assert "torch" not in sys.modules, "by an alignment"
plain = dragoman.load("en-de", "cpu", engine="plain")
assert "torch" in sys.modules, "the control"

assert translator.score({SENTENCE!r}, translated.text) == plain.score({SENTENCE!r}, translated.text)
ours, theirs = (each.translate({SENTENCE!r}, attention=True) for each in (translator, plain))
assert ours.text == theirs.text == translated.text
assert (ours.attention.cross == theirs.attention.cross).all()
samples = [each.translate({SENTENCE!r}, sampling=True, n_best=3, seed=2) for each in (translator, plain)]
assert samples[0] == samples[1]
assert len({{each.text for each in samples[0].alternatives}}) > 1
assert translator.translate({SENTENCE!r}, beam=17).text == translated.text, "a beam for the plain engine"
assert translator.translate({SENTENCE!r}) == translated, "and in the CPU engine again"
"""


@pytest.mark.slow
def test_what_needs_torch_works_after_a_start_without_it() -> None:
    run(USES)
