"""The benchmarks in their quick form: each runs, prints one object of finite numbers, and confirms its claim."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import alignment
from tests.processor import needs_exact_int8

pytestmark = pytest.mark.slow  # programs that run for tens of seconds each

ROOT = Path(__file__).parents[2]


def run(folder: Path, *command: str) -> dict[str, Any]:
    """The object on the last line; every plot is well-formed."""
    full = [sys.executable, *command, "--quick", "--json", "--out", str(folder)]
    done = subprocess.run(full, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert results["ratios"]
    assert all(math.isfinite(number) for number in numbers_in(results))
    plots = list(folder.glob("*.svg"))
    assert plots
    for plot in plots:
        ElementTree.parse(plot)
    return results


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, int | float):
        yield value


@pytest.fixture(scope="module")
def complexity(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("complexity"), "benchmarks/complexity.py")


def test_only_plain_attention_memory_is_quadratic_in_length(complexity: dict[str, Any]) -> None:
    powers = {name: fits["memory"]["length"] for name, fits in complexity["exponents"].items()}
    assert 1.7 < powers.pop("plain attention") < 2.2
    assert all(0.8 < power < 1.2 for power in powers.values()), powers


def test_only_recurrent_layers_need_sequential_steps(complexity: dict[str, Any]) -> None:
    steps = {name: list(by_length.values()) for name, by_length in complexity["sequential_steps"].items()}
    lengths = list(map(int, complexity["sequential_steps"]["RNN"]))
    for name in ("RNN", "LSTM"):
        per_step = (steps[name][1] - steps[name][0]) / (lengths[1] - lengths[0])
        assert per_step >= 1
        assert steps[name] == [steps[name][0] + per_step * (length - lengths[0]) for length in lengths]
    for name in ("plain attention", "fused attention", "multi-head attention", "convolution"):
        assert len(set(steps[name])) == 1


def test_path_lengths_match_the_textbook(complexity: dict[str, Any]) -> None:
    lengths = list(map(int, complexity["path_length"]["attention"]))
    paths = {name: list(by_length.values()) for name, by_length in complexity["path_length"].items()}
    assert paths["attention"] == [1 for _ in lengths]
    assert paths["recurrent"] == lengths
    assert paths["convolution"] == [math.ceil((length - 1) / 2) for length in lengths]
    assert paths["dilated convolution"] == [math.ceil(math.log(length, 3)) for length in lengths]


def test_compared_models_have_similar_size(complexity: dict[str, Any]) -> None:
    sizes = complexity["parameters"].values()
    assert max(sizes) / min(sizes) < 1.25


def test_transformer_recalls_over_distance_and_rnn_does_not(tmp_path: Path) -> None:
    results = run(tmp_path, "benchmarks/long_range.py")
    accuracy = {name: [values[0] for values in by.values()] for name, by in results["accuracy"].items()}
    assert all(near > 0.5 for near, _ in accuracy.values()), accuracy
    assert accuracy["RNN"][-1] < 0.3  # chance is 1 / 16
    assert accuracy["Transformer"][-1] > 0.8
    assert max(results["parameters"].values()) / min(results["parameters"].values()) < 1.3


def test_claims_benchmark_supports_each_claim(tmp_path: Path) -> None:
    results = run(tmp_path, "-m", "benchmarks.claims")
    ratios = results["ratios"]
    assert ratios["neither"] < 1e-3 < 0.05 < ratios["the paper's"] < 20 < 1e6 < ratios["no norm"]
    assert results["norms"]["layer norm"]["seen ahead in training"] == 0.0
    assert results["norms"]["batch norm"]["seen ahead in training"] > 1e-3
    layer_norm = results["norms"]["layer norm"]
    assert layer_norm["statistics of 1 sentence"] == pytest.approx(layer_norm["validation"], abs=1e-4)
    shares = results["parameters"]["base, 37,000 pieces"]
    assert shares["of all"] < 0.5 < shares["of the layers"]
    moved = results["query_key_value"]
    assert moved["values"]["weights moved"] == 0.0 < moved["keys"]["weights moved"]
    assert moved["values"]["word as before"] < 1.0 == moved["keys, values"]["word as before"]


def test_cpu_training_benchmark_compares_with_a_peer() -> None:
    """Our model and a peer that needs no other library."""
    command = [sys.executable, "-m", "benchmarks.train_cpu", "--preset", "tiny", "--tokens", "300", "--steps", "1"]
    systems = ["dragoman, packed, like lengths", "torch.nn.Transformer, eager"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--only", *systems, "--json"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert list(results["results"]) == systems
    assert set(results["ratios"]) == {"torch.nn.Transformer, eager", "best peer"}
    assert all(math.isfinite(number) and number > 0 for number in numbers_in(results))
    assert results["target_tokens_per_step"] == pytest.approx(300, rel=0.2)


CURVES = ["--quick", "--curve", "batch", "beam", "length", "vocabulary", "--json"]


@pytest.mark.parametrize(
    ("peer", "command"),
    [
        ("Hugging Face", ["benchmarks.decode_gpu", "--device", "cpu", "--precision", "float32", "--base", *CURVES]),
        pytest.param("CTranslate2", ["benchmarks.decode_cpu", *CURVES], marks=needs_exact_int8),  # theirs needs it too
    ],
)
def test_decoding_benchmarks_compare_equal_outputs(peer: str, command: list[str]) -> None:
    """All curves with tiny random models; both systems give the same tokens in float32."""
    pytest.importorskip("transformers" if peer == "Hugging Face" else "ctranslate2")
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["equal_in_float32"] == {"beam 4": 1.0, "beam 1": 1.0}
    assert set(results["curves"]) == {"batch", "beam", "length", "vocabulary"}
    for curve in results["curves"].values():
        assert len(curve) == 2
        for row in curve.values():
            assert row["ratio"] == pytest.approx(row["dragoman"] / max(row[name] for name in row if peer in name))
    assert len(results["ratios"]) == 8 + len(results["results"])
    assert all(math.isfinite(number) for number in numbers_in(results))


def test_random_model_has_the_vocabulary_asked_for_and_never_ends(tmp_path: Path) -> None:
    import dragoman
    from benchmarks.random_models import random_lines, random_shape, save_random_model

    save_random_model(tmp_path, random_shape("tiny", 500))
    translator = dragoman.load(tmp_path, "cpu")
    assert translator.tokenizers.source.size == 500
    lines = random_lines(500, 8, words=5)
    assert [len(ids) for ids in translator.tokenizers.source.encode_batch(lines)] == [5] * 8
    for beam in (1, 4):
        found = translator.translate(lines, beam=beam, max_extra=4)
        assert {(each.status, len(each.tokens)) for each in found} == {("truncated", 9)}
        assert len({each.text for each in found}) > 4  # it depends on the source


def test_unequal_outputs_are_reported() -> None:
    from benchmarks.decoding import Task, measure, require_equal

    ours, theirs = [["a", "b"], ["a", "c"]], [["a", "b"], ["a", "d"]]
    row = measure({"dragoman": Task(2, lambda: ours, list), "peer": Task(2, lambda: theirs, list)}, 1)
    assert (row.equal, row.prefix) == (0.5, 0.75)
    require_equal({"beam 4": 1.0})
    with pytest.raises(SystemExit, match="float32, beam 4: only 50% of the sentences are equal"):
        require_equal({"beam 4": 0.5})


def test_flops_are_counted_from_real_tokens() -> None:
    """Against a count by hand for one pair: products with every matrix of a token, and attention's own."""
    from benchmarks.train_cpu import model_flops
    from dragoman.config import TransformerConfig

    config = TransformerConfig.base(vocab_size=37_000)
    source, target, wide, inner = 7, 5, 512, 2048
    encoder = 4 * wide * wide + 2 * wide * inner
    macs = 6 * source * encoder + 6 * target * (encoder + 2 * wide * wide) + 6 * source * 2 * wide * wide
    macs += target * wide * 37_000
    attention = 6 * 2 * wide * (source**2 + target**2 / 2 + source * target)
    assert model_flops(config, [(source, target)]) == pytest.approx(
        6 * (macs + attention), rel=0.01
    )  # biases and norms apart


def test_alignment_benchmark_compares_error_rates_with_peers() -> None:
    command = [sys.executable, "benchmarks/alignment.py", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert "IBM model 1" in results["ratios"], "it needs no compiler"
    assert {*results["ratios"], *results["not installed"]} == {*alignment.PEERS}
    assert results["heads"]
    assert all(0 < score["aer"] < 100 for score in results["scores"].values())
    # after 60 steps the model knows little, the peer a good deal
    assert results["scores"]["IBM model 1"]["aer"] < 40
