"""Set up a run, or resume it from its newest checkpoint: from prepared data to a Run. Takes no step."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman import bundle, tensors
from dragoman.config import Config, TransformerConfig
from dragoman.data.store import SIDES
from dragoman.data.word_vectors import piece_vectors, read_header
from dragoman.device import choose_precision, is_fast_in_bfloat16, is_slow_in_bfloat16
from dragoman.errors import ConfigError, DataError, ModelError, suggestion
from dragoman.machine import is_out_of_memory
from dragoman.model.build import Model, build_model
from dragoman.model.footprint import parameter_counts
from dragoman.tasks.choice import task_of
from dragoman.tasks.task import PreparedData
from dragoman.text.tokenizer import Tokenizer
from dragoman.training import checkpoint
from dragoman.training.batches import BatchLoader, EpochStores
from dragoman.training.checkpoint import Learner, Progress, RunIdentity
from dragoman.training.checkpoint_files import checkpoints
from dragoman.training.distributed import Ranks, shard
from dragoman.training.duration import predict_duration
from dragoman.training.gradients import choose_layout, packing_pays
from dragoman.training.memory import available_memory
from dragoman.training.optimizer import MovingAverage, build_optimizer
from dragoman.training.reports import provenance
from dragoman.training.reports.log import NoLog, Reporter, RunLog, is_finished
from dragoman.training.reports.trackers import open_trackers
from dragoman.training.run import Run
from dragoman.training.signals import Signals
from dragoman.training.validation import Validation

PLAN_NAMES = {"batch_tokens": "train.batch_tokens"}  # the other parameters follow from it
LARGE_ON_A_CPU = 10_000_000  # parameters; from here on matrix products dominate a step


def set_up_run(
    prepared: PreparedData, directory: Path, device: torch.device, reporter: Reporter, ranks: Ranks, signals: Signals
) -> Run:
    """The run in `directory`, at its newest checkpoint; otherwise a new run before its first step."""
    config, settings = prepared.config, prepared.config.train
    precision = choose_precision(settings.precision, device)
    torch.manual_seed(settings.seed)
    model = _build(config, device)
    learner = _learner(prepared, model, directory, device, reporter, ranks)
    longest = config.text.max_length if config.text.sampling else int(prepared.train.sizes.max())
    stores = EpochStores(prepared, directory, ranks, reporter)
    validation = Validation(prepared, device, precision)
    with ExitStack() as undo:
        undo.callback(stores.close)
        layout = choose_layout(
            task_of(config), settings, stores, prepared.train, longest, model, device, precision, ranks
        )
        undo.callback(layout.close)
        run = Run(
            prepared=prepared,
            directory=directory,
            device=device,
            precision=precision,
            reporter=reporter,
            ranks=ranks,
            signals=signals,
            model=model,
            learner=learner,
            layout=layout,
            batches=BatchLoader(stores, layout, settings.accumulate, ranks),
            validation=validation,
            identity={
                **fixed_settings(config),
                **prepared.identity,
                "training data": prepared.train.key,
                "train.layout": layout.name,
            },
            made_by=provenance.describe(config, prepared.corpora, device, ranks.world),
            progress=Progress(judge=validation.judge, plan=layout.plan),
        )
        _resume(run)
        run.log = _open_log(run)
        undo.pop_all()  # the run closes it from now on
    run.remember_rng_state()
    return run


def fixed_settings(config: Config) -> dict[str, Any]:
    """The settings that must not change on resume."""
    sections = {"text": asdict(config.text), "model": asdict(config.model)}
    fixed = {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
    for name in ("model.vocab_size", "model.target_vocab_size", "model.num_labels"):
        fixed.pop(name, None)  # from the tokenizer
    settings = ("generated", "generated_size", "on_bad_line", "lookback", "horizon", "relative_to")
    data = {f"data.{name}": getattr(config.data, name) for name in settings}
    names = ("seed", "optimizer", "source_vectors", "target_vectors")
    begun = {f"train.{name}": getattr(config.train, name) for name in names}
    return {**fixed, **data, **begun}


def _build(config: Config, device: torch.device) -> Model:
    try:
        return build_model(config.model).to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size = sum(parameter_counts(config.model).values())
        raise ConfigError(f"model: {size:,} parameters do not fit in memory; choose a smaller model") from None


def _learner(
    prepared: PreparedData, model: Model, directory: Path, device: torch.device, reporter: Reporter, ranks: Ranks
) -> Learner:
    settings = prepared.config.train
    if settings.start_from and not checkpoints(directory):
        taken = load_initial_weights(model, Path(settings.start_from), prepared.config.model.architecture)
        reporter.note(f"starting from {taken} weights of {settings.start_from}")
    if not checkpoints(directory):
        set_word_vectors(model, prepared, reporter)
    freeze(model, settings.freeze)
    if settings.parallel == "fsdp" and ranks.world > 1:
        shard(model, ranks)
    average = MovingAverage(list(model.parameters()), settings.ema) if settings.ema else None
    return Learner(model, build_optimizer(model, settings, device), average)


def load_initial_weights(model: nn.Module, directory: Path, architecture: str) -> str:
    """Copy the weights of another model directory: all of them, or the parts that another architecture shares.

    Returns how many were copied, in words.
    """
    directory = bundle.resolve_model(directory)
    given = bundle.load_bundle(directory)
    if given.config.model.architecture == architecture:
        tensors.set_weights(model, tensors.named_weights(given.model), directory)
        return "the"
    theirs = dict(given.model.named_parameters(remove_duplicate=False))
    own = dict(model.named_parameters())
    shared = [name for name in own if name in theirs and own[name].shape == theirs[name].shape]
    if not shared:
        raise ModelError(f"{directory}: has no part in common with model.architecture={architecture}")
    with torch.no_grad():
        for name in shared:
            own[name].copy_(theirs[name])
    numbers = [sum(own[name].numel() for name in names) for names in (shared, own)]
    return f"{numbers[0]:,} of {numbers[1]:,}"


def set_word_vectors(model: Model, prepared: PreparedData, reporter: Reporter) -> None:
    """Start embeddings from word vectors; pieces without one stay random. Sides that share a matrix share vectors."""
    settings, tokenizers = prepared.config.train, prepared.tokenizers
    source, target = ([Path(each)] if each else [] for each in (settings.source_vectors, settings.target_vectors))
    embeddings = [getattr(model, f"{side}_embedding", None) for side in SIDES]
    sides = [(embeddings[0], tokenizers.input, source), (embeddings[1], tokenizers.output, target)]
    if embeddings[0] is embeddings[1]:
        sides = [(embeddings[0], tokenizers.input, source + target)]
    for embedding, tokenizer, paths in sides:
        if not paths:
            continue
        assert embedding is not None  # checked by `check_word_vectors`
        assert isinstance(tokenizer, Tokenizer)
        found = piece_vectors(paths, tokenizer, embedding.embedding_dim)
        if not found.rows.any():
            raise DataError(
                f"{paths[0]}: no piece of the vocabulary has a vector from it; give vectors of the language"
            )
        with torch.no_grad():
            covered = torch.from_numpy(found.covered).to(embedding.weight.device)
            embedding.weight[covered] = torch.from_numpy(found.scaled()[found.covered]).to(embedding.weight)
        reporter.note(f"{', '.join(map(str, paths))}: {found.describe()}")


def check_word_vectors(config: Config) -> None:
    """Check the width of word vectors before the text is encoded."""
    model = config.model
    sides = {"source": ("d_model", model.d_model), "target": ("d_model", model.d_model)}
    if isinstance(model, TransformerConfig) and model.decoder_d_model is not None:
        sides["target"] = "decoder_d_model", model.decoder.d_model
    missing = {"decoder": "source", "encoder": "target"}.get(model.architecture)
    for side, (setting, width) in sides.items():
        path = getattr(config.train, f"{side}_vectors")
        if path and side == missing:
            raise ConfigError(f"train.{side}_vectors: this model has no {side}; leave it out")
        if path and getattr(model, f"{side}_features", None) is not None:
            raise ConfigError(f"train.{side}_vectors: the {side} of this model is no text; leave it out")
        found = read_header(Path(path)).width if path else width
        if found != width:
            raise ConfigError(
                f"train.{side}_vectors: {path} has vectors of {found:,} numbers, the model is {width:,} wide; "
                f"give others, or set model.{setting}={found} and a model.num_heads that divides it"
            )


def check_parts(config: Config) -> None:
    """Check train.freeze: the names of the parts do not depend on the text."""
    if config.train.freeze:
        with torch.device("meta"):
            freeze(build_model(config.model), config.train.freeze)


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Do not train these parts: `encoder`, `decoder.layers.0`, or the full name of a weight."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    known = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
    for part in parts:
        if part not in known:
            shown = [name for name in known if name.count(".") <= max(1, part.count("."))]
            raise ConfigError(f"train.freeze: the model has no part {part!r}; {suggestion(part, shown)}")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(name == part or name.startswith(f"{part}.") for part in parts):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("train.freeze: nothing is left to train; freeze fewer parts")


def _resume(run: Run) -> None:
    found = checkpoint.newest_on_rank_0(run.directory, run.ranks, run.reporter.note)
    if found is None:
        _seed_rank(run)
        _announce(run, run.progress)
        return
    path, files = found
    RunIdentity(run.directory).verify(run.identity, run.prepared.corpora)
    progress, random = checkpoint.unpack(path, files, run.learner)
    own = checkpoint.own_rng_state(random, run.ranks)
    if own is None:
        _seed_rank(run)
    else:
        checkpoint.set_rng_state(own, run.device)
    run.reporter.note(f"resuming from {path}")
    _announce(run, progress)
    judge = run.validation.judge
    if progress.judge != judge:
        run.reporter.note(f"the validation metric is {judge} now and was {progress.judge}; the best score starts over")
        progress.judge, progress.best_metric = judge, None
        progress.best_step, progress.without_better = 0, 0
    before, plan = progress.plan, run.layout.plan
    if progress.change_plan(plan) and progress.step < run.settings.max_steps:
        name = next(name for name in plan if before.get(name) != plan[name])
        run.reporter.note(
            f"{PLAN_NAMES.get(name, name)} was {before.get(name)} and is {plan[name]} now: "
            "the rest of this epoch is batched again, and every pair is still seen once"
        )
    run.progress = progress


def _seed_rank(run: Run) -> None:
    """Give every rank its own dropout; rank 0 draws what a single process would."""
    if not run.ranks.is_main:
        torch.manual_seed(run.settings.seed + 1_000_003 * run.ranks.rank)


def _announce(run: Run, progress: Progress) -> None:
    settings, ranks, note = run.settings, run.ranks, run.reporter.note
    size = sum(parameter_counts(run.config.model).values())
    precision = str(run.precision).removeprefix("torch.")
    together = f", {ranks.world} processes ({settings.parallel})" if ranks.world > 1 else ""
    note(f"{size:,} parameters on {run.device} in {precision}, {run.layout.name} batches{together}")
    quicker = is_fast_in_bfloat16(run.device) and packing_pays(run.model, run.device, torch.bfloat16)
    if settings.precision == "auto" and size >= LARGE_ON_A_CPU and quicker:
        note("this CPU is faster in bfloat16: train.precision=bfloat16 may halve the time")
    if run.precision == torch.bfloat16 and is_slow_in_bfloat16(run.device):
        note("train.precision: this CPU has no bfloat16 instructions and is far slower in it; use float32")
    needed, room = run.predicted_peak(), available_memory(run.device)
    each = " for each process" if ranks.world > 1 else ""
    note(f"expected peak memory {needed / 2**30:.1f} GiB{each} of {room / 2**30:.1f} GiB")
    steps = settings.max_steps - progress.step
    if steps > 0:
        note(predict_duration(run.config, run.prepared.train, run.device, run.precision, steps, ranks.world).describe())
    longest = int(run.prepared.train.sizes.max())
    if run.layout.name == "padded" and longest > settings.batch_tokens:
        note(
            f"train.batch_tokens: the longest pair has {longest} pieces, more than {settings.batch_tokens}: "
            "such a pair becomes a batch of its own"
        )
    if needed > room:
        note(
            f"train.batch_tokens: {settings.batch_tokens} may be too many for this memory; "
            "if it runs out, lower it and raise train.accumulate"
        )


def _open_log(run: Run) -> RunLog | NoLog:
    step = run.progress.step
    (finished,) = run.ranks.broadcast([float(run.ranks.is_main and is_finished(run.directory, step))])
    run.finished = bool(finished)
    if not run.ranks.is_main:
        return NoLog()
    trackers = open_trackers(run.settings.trackers, run.directory, run.config, step, run.reporter.note)
    provenance.record(run.directory, run.made_by, step)
    return RunLog(run.directory, step, trackers, validated=not run.needs_validation(), finished=run.finished)
