"""How a run begins, or goes on from its newest checkpoint: from prepared data to a Run. Takes no step."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dragoman import bundle
from dragoman.config import Config
from dragoman.errors import ConfigError
from dragoman.model.build import Model, build_model
from dragoman.model.device import choose_precision, is_out_of_memory, is_slow_in_bfloat16, quick_in_bfloat16
from dragoman.model.footprint import parameter_counts
from dragoman.train import checkpoint, provenance
from dragoman.train.checkpoint import Learner, Origin, Progress
from dragoman.train.distributed import Ranks, shard
from dragoman.train.feed import EpochStores, Feed
from dragoman.train.layout import choose_layout, packing_pays
from dragoman.train.memory import available
from dragoman.train.prepare import Prepared
from dragoman.train.report import NoLog, Reporter, RunLog, has_ended
from dragoman.train.run import Run
from dragoman.train.signals import Signals
from dragoman.train.starting import MovingAverage, freeze, start_from
from dragoman.train.trackers import open_trackers
from dragoman.train.validation import Validation

PLAN_NAMES = {"batch_tokens": "train.batch_tokens"}  # the others follow from it
LARGE_ON_A_CPU = 10_000_000  # parameters from which on products take most of a step


def begin(
    prepared: Prepared, directory: Path, device: torch.device, reporter: Reporter, ranks: Ranks, signals: Signals
) -> Run:
    """The run that `directory` holds, where it stands; else a new one before its first step."""
    config, settings = prepared.config, prepared.config.train
    precision = choose_precision(settings.precision, device)
    torch.manual_seed(settings.seed)
    model = _build(config, device)
    learner = _learner(config, model, directory, device, reporter, ranks)
    longest = int(max(prepared.train.source_lengths.max(), prepared.train.target_lengths.max())) + 1  # </s>
    longest = config.text.max_length if config.text.sampling else longest
    stores = EpochStores(prepared, directory, ranks, reporter)
    validation = Validation(prepared, device, precision)
    with ExitStack() as undo:
        layout = choose_layout(settings, stores, prepared.train, longest, model, device, precision, ranks)
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
            feed=Feed(stores, layout, settings.accumulate, ranks),
            validation=validation,
            identity={
                **lasting_settings(config),
                **prepared.identity,
                "training data": prepared.train.key,
                "train.layout": layout.name,
            },
            made_by=provenance.describe(config, prepared.corpora, device, ranks.world),
            progress=Progress(judge=validation.judge, plan=layout.plan),
        )
        _resume(run)
        run.log = _open_log(run)
        undo.pop_all()  # from now on the run closes it
    run.mark()
    return run


def lasting_settings(config: Config) -> dict[str, Any]:
    """What must stay as it was when the run began."""
    sections = {"text": asdict(config.text), "model": asdict(config.model)}
    lasting = {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
    for name in ("model.vocab_size", "model.target_vocab_size"):
        del lasting[name]  # from the tokenizer
    data = {f"data.{name}": getattr(config.data, name) for name in ("generated", "generated_size", "on_bad_line")}
    return {**lasting, **data, "train.seed": config.train.seed}


def _build(config: Config, device: torch.device) -> Model:
    try:
        return build_model(config.model).to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size = sum(parameter_counts(config.model).values())
        raise ConfigError(f"model: {size:,} parameters do not fit into memory; choose a smaller model") from None


def _learner(
    config: Config, model: Model, directory: Path, device: torch.device, reporter: Reporter, ranks: Ranks
) -> Learner:
    settings = config.train
    if settings.start_from and not bundle.checkpoints(directory):
        start_from(model, Path(settings.start_from))
        reporter.note(f"starting from the weights of {settings.start_from}")
    freeze(model, settings.freeze)
    if settings.parallel == "fsdp" and ranks.world > 1:
        shard(model, ranks)
    optimizer = torch.optim.Adam(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=device.type in ("cpu", "cuda"),
    )
    return Learner(model, optimizer, MovingAverage(list(model.parameters()), settings.ema) if settings.ema else None)


def _resume(run: Run) -> None:
    found = checkpoint.agreed(run.directory, run.ranks, run.reporter.note)
    if found is None:
        _seed_rank(run)
        _announce(run)
        return
    path, files = found
    Origin(run.directory).agree(run.identity, run.prepared.corpora)
    progress, random = checkpoint.unpack(path, files, run.learner)
    own = checkpoint.own_random_state(random, run.ranks)
    if own is None:
        _seed_rank(run)
    else:
        checkpoint.set_random_state(own, run.device)
    run.reporter.note(f"resuming from {path}")
    _announce(run)
    judge = run.validation.judge
    if progress.judge != judge:
        run.reporter.note(f"judged by {judge} from now on, not by {progress.judge}")
        progress.judge, progress.best_metric = judge, None
        progress.best_step, progress.without_better = 0, 0
    before, plan = progress.plan, run.feed.layout.plan
    if progress.change_plan(plan) and progress.step < run.settings.max_steps:
        name = next(name for name in plan if before.get(name) != plan[name])
        run.reporter.note(
            f"{PLAN_NAMES.get(name, name)} was {before.get(name)} and is {plan[name]} now: "
            "the rest of this epoch is batched anew, every pair still once"
        )
    run.progress = progress


def _seed_rank(run: Run) -> None:
    """Other ranks draw other dropout; rank 0 goes on with what a process alone would draw."""
    if not run.ranks.main:
        torch.manual_seed(run.settings.seed + 1_000_003 * run.ranks.rank)


def _announce(run: Run) -> None:
    settings, ranks, note = run.settings, run.ranks, run.reporter.note
    size = sum(parameter_counts(run.config.model).values())
    precision = str(run.precision).removeprefix("torch.")
    together = f", {ranks.world} processes ({settings.parallel})" if ranks.world > 1 else ""
    note(f"{size:,} parameters on {run.device} in {precision}, {run.feed.layout.name} batches{together}")
    quicker = quick_in_bfloat16(run.device) and packing_pays(run.model, run.device, torch.bfloat16)
    if settings.precision == "auto" and size >= LARGE_ON_A_CPU and quicker:
        note("this CPU is quicker in bfloat16: train.precision=bfloat16 may halve the time")
    if run.precision == torch.bfloat16 and is_slow_in_bfloat16(run.device):
        note("train.precision: this CPU has no bfloat16 instructions and is far slower in it; use float32")
    needed, room = run.predicted_peak(), available(run.device)
    each = " for each process" if ranks.world > 1 else ""
    note(f"expected peak memory {needed / 2**30:.1f} GiB{each} of {room / 2**30:.1f} GiB")
    longest = int(max(run.prepared.train.source_lengths.max(), run.prepared.train.target_lengths.max())) + 1  # </s>
    if run.feed.layout.name == "padded" and longest > settings.batch_tokens:
        note(
            f"train.batch_tokens: the longest pair has {longest} pieces, more than {settings.batch_tokens}: "
            "such a pair is a batch of its own"
        )
    if needed > room:
        note(
            f"train.batch_tokens: {settings.batch_tokens} may be too many for this memory; "
            "if it runs out, lower it and raise train.accumulate"
        )


def _open_log(run: Run) -> RunLog | NoLog:
    step = run.progress.step
    (ended,) = run.ranks.from_main([float(run.ranks.main and has_ended(run.directory, step))])
    run.ended = bool(ended)
    if not run.ranks.main:
        return NoLog()
    trackers = open_trackers(run.settings.trackers, run.directory, run.config, step, run.reporter.note)
    provenance.record(run.directory, run.made_by, step)
    return RunLog(run.directory, step, trackers, validated=not run.unmeasured(), ended=run.ended)
