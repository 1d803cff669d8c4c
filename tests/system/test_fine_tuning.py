"""Starting from another model, freezing, moving averages, R-Drop, and predicted memory."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dragoman
from dragoman import bundle, tensors
from dragoman.cli.train import build_config
from dragoman.config import Config, TrainConfig, TransformerConfig
from dragoman.data.corpus import file_hash
from dragoman.errors import ConfigError, ModelError
from dragoman.model.loss import divergence
from dragoman.model.transformer import Transformer
from dragoman.tasks.translation import TranslationTask
from dragoman.training.checkpoint_files import checkpoint_path, read_checkpoint
from dragoman.training.data import prepare_data
from dragoman.training.distributed import Ranks
from dragoman.training.gradients import Packed
from dragoman.training.loop import train
from dragoman.training.memory import available_memory, measured_peak, predicted_peak
from dragoman.training.optimizer import MovingAverage
from dragoman.training.reports.log import SilentReporter, read_log
from dragoman.training.setup import freeze
from tests.conftest import quick_config


def weights_at(run: Path, step: int, name: str = bundle.WEIGHTS) -> dict[str, Tensor]:
    path = checkpoint_path(run, step)
    return tensors.weights_from_bytes(read_checkpoint(path)[name], path)


# Beginning with another model


def from_run(quick_run: Path, out: Path, *settings: str) -> dragoman.Config:
    data = {"generated": "copy", "generated_size": 500}
    quick = ["train.max_steps=2", "train.save_every=1", "train.valid_sentences=5", *settings]
    return build_config(None, out, "tiny", data, quick, str(quick_run))


@pytest.mark.slow
def test_run_starts_from_another_models_weights_vocabulary_and_sizes(quick_run: Path, tmp_path: Path) -> None:
    config = from_run(quick_run, tmp_path, "train.learning_rate=0.0")
    train(config, tmp_path)
    before, after = (bundle.load_bundle(directory) for directory in (quick_run, tmp_path))
    assert after.config.model == before.config.model
    assert after.tokenizers.source.digest == before.tokenizers.source.digest
    for name, weight in tensors.named_weights(before.model).items():
        assert torch.equal(weight, tensors.named_weights(after.model)[name]), name
    assert after.config.train.start_from == str(quick_run)


@pytest.mark.slow
def test_fine_tuning_resumes_from_its_own_checkpoint(quick_run: Path, tmp_path: Path) -> None:
    train(from_run(quick_run, tmp_path), tmp_path)
    middle = weights_at(tmp_path, 2)
    train(from_run(quick_run, tmp_path, "train.max_steps=3", "train.learning_rate=0.0"), tmp_path)
    assert all(torch.equal(middle[name], weight) for name, weight in weights_at(tmp_path, 3).items())
    first = tensors.named_weights(bundle.load_bundle(quick_run).model)
    assert not all(torch.equal(middle[name], weight) for name, weight in first.items()), (
        "the control: the weights had changed"
    )


def test_model_size_is_fixed_by_the_start_model_but_dropout_is_not(quick_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"--set model.d_ff: a run that starts from {quick_run} keeps its model"):
        from_run(quick_run, tmp_path, "model.d_ff=128")
    assert from_run(quick_run, tmp_path, "model.dropout=0.5").model.dropout == 0.5
    with pytest.raises(ModelError, match="no such model directory"):
        from_run(tmp_path / "nowhere", tmp_path)


def test_batch_and_schedule_defaults_follow_the_start_model(quick_run: Path, tmp_path: Path) -> None:
    def built(start: str, preset: str | None = None, *settings: str) -> TrainConfig:
        config = build_config(None, tmp_path, preset, {}, list(settings), start)
        assert config.train.start_from == start
        return replace(config.train, start_from="")

    tiny, small = (Config.build(preset).train for preset in ("tiny", "small"))
    assert built(str(quick_run)) == tiny
    assert built("en-de") == small, "not the 51,200 tokens per batch it was trained with"
    assert built(str(quick_run), "small") == small, "an explicit preset wins"
    assert built(str(quick_run), None, "train.batch_tokens=600") == replace(tiny, batch_tokens=600)
    by_setting = build_config(None, tmp_path, None, {}, [f"train.start_from={quick_run}"])
    assert by_setting.train.batch_tokens == tiny.batch_tokens


def test_saved_config_resumes_its_run_but_starts_no_other(quick_run: Path, tmp_path: Path) -> None:
    saved = quick_run / "config.toml"
    assert build_config(saved, quick_run, None, {}, []) == bundle.load_config(quick_run)
    assert build_config(saved, quick_run, None, {}, ["train.max_steps=99"]).train.max_steps == 99
    with pytest.raises(ConfigError) as caught:
        build_config(saved, tmp_path / "other", None, {}, [])
    assert str(caught.value) == (
        f"{saved}: model.vocab_size: follows from the tokenizer; leave it out and set text.vocab_size"
    )
    copied = tmp_path / "again.toml"
    lines = saved.read_text().splitlines(keepends=True)
    copied.write_text("".join(lines[: lines.index("[model]\n")]) + "[model]\nd_ff = 64\n")
    assert build_config(copied, tmp_path / "other", None, {}, []).text == bundle.load_config(quick_run).text


# Freezing


@pytest.mark.slow
def test_frozen_weights_do_not_change_and_the_rest_learns(tmp_path: Path) -> None:
    settings = ("train.max_steps=2", "train.save_every=1")
    train(quick_config(*settings, 'train.freeze=["encoder", "source_embedding"]'), tmp_path)
    before, after = weights_at(tmp_path, 1), weights_at(tmp_path, 2)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert not any(name.startswith(("encoder.", "source_embedding")) for name in moved)
    assert all(name.startswith("decoder.") for name in moved), "the tied embedding is the source's"


def test_freeze_matches_whole_module_names_not_prefixes() -> None:
    model = Transformer(dragoman.TransformerConfig.tiny(vocab_size=50, num_layers=11, d_model=8, d_ff=8, num_heads=1))
    freeze(model, ["encoder.layers.1", "decoder.layers.0.self_attention"])
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    parts = ("encoder.layers.1.", "decoder.layers.0.self_attention.")
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith(parts)}
    assert frozen


def test_freezing_an_unknown_module_is_refused() -> None:
    model = Transformer(dragoman.TransformerConfig.tiny(vocab_size=50, num_layers=1))
    with pytest.raises(ConfigError, match=r"train.freeze: the model has no part 'encodr'; did you mean encoder\?"):
        freeze(model, ["encodr"])
    with pytest.raises(ConfigError, match=r"train.freeze: nothing is left to train; freeze fewer parts"):
        freeze(model, ["encoder", "decoder", "source_embedding", "target_embedding", "output"])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('train.freeze=["encodr"]', r"train.freeze: the model has no part 'encodr'; did you mean encoder\?"),
        ('train.trackers=["wandb"]', r"train.trackers: wandb is not installed; run pip install 'dragoman\[wandb\]'"),
    ],
)
def test_unavailable_settings_are_refused_before_any_text_is_read(
    tmp_path: Path, setting: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.training.reports.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=told):
        train(quick_config(setting), tmp_path)
    assert not (tmp_path / "data").exists()


# The moving average


def test_moving_average_follows_its_formula() -> None:
    weight = torch.zeros(3)
    average = MovingAverage([weight], 0.9)
    expected = 0.0
    for step in range(1, 200):
        weight += 1.0
        average.update(step, torch.tensor(True))
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    torch.testing.assert_close(average.weights[0], torch.full((3,), expected))
    average.update(200, torch.tensor(False))
    torch.testing.assert_close(average.weights[0], torch.full((3,), expected), msg="a step left out moves nothing")


@pytest.mark.slow
def test_moving_average_is_validated_published_and_resumed(tmp_path: Path) -> None:
    settings = ("train.ema=0.9", "train.average=1", "train.save_every=6")
    for run, stops in (("whole", (12,)), ("parts", (6, 12))):
        for stop in stops:
            train(quick_config(*settings, f"train.max_steps={stop}"), tmp_path / run)
    averages = [weights_at(tmp_path / run, 12, "average.safetensors") for run in ("whole", "parts")]
    assert all(torch.equal(averages[0][name], averages[1][name]) for name in averages[0])
    published = json.loads((tmp_path / "whole" / "published.json").read_bytes())["step"]
    kept = tensors.named_weights(bundle.load_bundle(tmp_path / "whole").model)
    average = weights_at(tmp_path / "whole", published, "average.safetensors")
    plain = weights_at(tmp_path / "whole", published)
    assert all(torch.equal(kept[name], average[name]) for name in kept)
    assert not all(torch.equal(kept[name], plain[name]) for name in kept), (
        "the control: the average differs from the weights"
    )


# R-Drop


def test_divergence_matches_its_formula_and_is_zero_for_equal_passes() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3, 7, dtype=torch.float64)
    real = torch.tensor([[True, True, False], [True, False, False]])
    p, q = logits.softmax(dim=-1).chunk(2)
    both_ways = (p * (p / q).log() + q * (q / p).log()).sum(dim=-1)
    torch.testing.assert_close(divergence(logits, real).double(), both_ways[real].sum() / 4, atol=1e-5, rtol=0)
    assert divergence(torch.cat((logits[:2], logits[:2])), real) == 0


@pytest.mark.parametrize("layout", ["padded", pytest.param("packed", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_r_drop_without_dropout_changes_nothing(tmp_path: Path, layout: str) -> None:
    curves = {}
    for name, settings in {
        "plain": ("model.dropout=0.0",),
        "without dropout": ("model.dropout=0.0", "train.r_drop=5.0"),
        "with": ("model.dropout=0.3", "train.r_drop=5.0"),
        "control": ("model.dropout=0.3",),
    }.items():
        common = ("train.max_steps=6", "train.save_every=6", "train.log_every=1", f"train.layout={layout}")
        train(quick_config(*common, *settings), tmp_path / name)
        curves[name] = [record["loss"] for record in read_log(tmp_path / name) if record["kind"] == "step"]
    assert curves["without dropout"] == pytest.approx(curves["plain"], rel=1e-4)
    assert curves["with"][0] > curves["control"][0] + 0.01, "the divergence is part of the loss"


# Memory


def test_memory_is_predicted_before_the_first_step_and_measured_at_the_end(tmp_path: Path) -> None:
    notes: list[str] = []

    class Listener(SilentReporter):
        def note(self, text: str) -> None:
            notes.append(text)

    train(quick_config("train.max_steps=2", "train.save_every=2"), tmp_path, Listener())
    told = next(note for note in notes if note.startswith("expected peak memory "))
    assert told.endswith(" GiB")
    record = next(record for record in read_log(tmp_path) if record["kind"] == "memory")
    assert record["peak_bytes"] > 100 << 20
    assert f"{record['predicted_bytes'] / 2**30:.1f} GiB of " in told


def test_predicted_memory_grows_with_batch_layers_ema_and_r_drop(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    prepared = prepare_data(quick_config(), tmp_path, SilentReporter())

    def predicted(*settings: str, layout: str = "padded", precision: torch.dtype = torch.float32) -> int:
        config = quick_config(*settings).with_vocabulary(300, 300)
        return predicted_peak(config, prepared.train, layout, cpu, precision)

    plain = predicted()
    assert predicted("train.batch_tokens=5120") > plain
    assert predicted("model.num_layers=4") > plain
    assert predicted("train.ema=0.9") > plain
    for layout in ("padded", "packed"):
        assert predicted("train.r_drop=1.0", layout=layout) > predicted(layout=layout)
    assert predicted("train.batch_tokens=51200", layout="packed") < predicted("train.batch_tokens=51200")
    assert available_memory(cpu) > measured_peak(cpu) > 0


@pytest.mark.slow
def test_saved_activations_stay_within_the_cuda_prediction(tmp_path: Path) -> None:
    """Counted here tensor by tensor; on CUDA it is more, since layer norms save float32 there."""
    settings = "data.generated=numbers-de", "model.d_model=64", "model.attention_dropout=0.1", "train.batch_tokens=4096"
    config = quick_config(*settings).with_vocabulary(300, 300)
    store = prepare_data(config, tmp_path, SilentReporter()).train
    assert isinstance(config.model, TransformerConfig)
    model = Transformer(config.model)
    layout = Packed(
        TranslationTask(),
        config.train,
        lambda _: store,
        store,
        100,
        model,
        torch.device("cpu"),
        torch.bfloat16,
        Ranks(),
    )
    kept: dict[int, torch.UntypedStorage] = {}

    def count(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    batch = layout.make(0, layout.epoch(0)[0])
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        layout._loss(batch)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    counted = sum(storage.nbytes() for place, storage in kept.items() if place not in weights)

    def predicted(*more: str) -> int:
        larger = quick_config(*settings, *more).with_vocabulary(300, 300)
        return predicted_peak(larger, store, "packed", torch.device("cuda"), torch.bfloat16)

    grown = predicted("train.batch_tokens=8192") - predicted()
    assert counted < grown < 1.5 * counted


def test_oversized_batch_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    class Listener(SilentReporter):
        def note(self, text: str) -> None:
            notes.append(text)

    monkeypatch.setattr("dragoman.training.setup.available_memory", lambda device: 1 << 20)
    train(quick_config("train.max_steps=1", "train.save_every=1"), tmp_path, Listener())
    assert any(note.startswith("train.batch_tokens: 512 may be too many for this memory; if it runs") for note in notes)


def test_config_file_applies_to_fine_tuning_like_options(quick_run: Path, tmp_path: Path) -> None:
    config = bundle.load_config(quick_run)
    file = tmp_path / "more.toml"
    assert isinstance(config.model, TransformerConfig)
    file.write_text(f'[model]\ndropout = 0.25\nd_ff = {config.model.d_ff}\n[train]\nstart_from = "{quick_run}"\n')
    built = build_config(file, tmp_path / "out", None, {}, [])
    assert built.model == replace(config.model, dropout=0.25)
    assert built.text == config.text
    file.write_text("[model]\nd_ff = 99\n")
    with pytest.raises(ConfigError) as caught:
        build_config(file, tmp_path / "out", None, {}, [], str(quick_run))
    assert str(caught.value) == (
        f"{file}: model.d_ff: a run that starts from {quick_run} keeps its model.d_ff; leave it out"
    )


@pytest.mark.slow
def test_resuming_does_not_need_the_start_model(quick_run: Path, tmp_path: Path) -> None:
    start = Path(shutil.copytree(quick_run, tmp_path / "start", ignore=shutil.ignore_patterns("checkpoints", "data")))
    train(from_run(start, tmp_path / "run"), tmp_path / "run")
    origin = json.loads((tmp_path / "run" / "provenance.json").read_text())["starts"][0]["start_from"]
    assert origin == {"model": str(start), "sha256": file_hash(start / "weights.safetensors")}
    assert (
        f"- fine-tuned: began with the weights and the vocabulary of {start}"
        in (tmp_path / "run" / "card.md").read_text()
    )
    shutil.rmtree(start)
    result = train(from_run(start, tmp_path / "run", "train.max_steps=3"), tmp_path / "run")
    assert result.steps == 3
