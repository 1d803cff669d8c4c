"""BLEU against training time: dragoman and Hugging Face Marian on the same batches, one after the other, one device.

    python -m benchmarks.time_to_quality --data FOLDER [--minutes 4] [--validations 12]
        [--recipe recipes/tatoeba-en-de.toml] [--set SECTION.KEY=VALUE ...] [--svg FILE] [--json]

Both have the recipe's sizes, vocabulary, loss and Adam. The schedule is the paper's, because one that decays towards a
last step would favour the system that gets closer to it. Both take the same pairs in the same order, in batches
bucketed by length, so a padded model has hardly any padding. dragoman packs them if its kernels are available; the peer
runs eagerly, as its library does, in the same precision. The clock stops while BLEU is measured (greedy search, on the
first validation sentences), and runs while dragoman compiles.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import sacrebleu
import torch
from torch import nn

from benchmarks.training_peers import Marian, drop_as_the_paper
from dragoman.bundle import Bundle
from dragoman.config import Config, TransformerConfig
from dragoman.data.batching import BatchPlan, Ids, collate, pad_rows
from dragoman.data.packing import Shape, pack
from dragoman.decode.translator import Translator
from dragoman.device import choose_device, choose_precision, kernels_run
from dragoman.errors import DragomanError
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.model.packed import PackedTransformer
from dragoman.model.transformer import Transformer
from dragoman.pictures import svg_plot
from dragoman.tasks.task import PreparedData
from dragoman.tasks.translation import TranslationTask
from dragoman.text.vocabulary import VOCABULARY
from dragoman.training.cuda_graph import GradientGraph
from dragoman.training.data import prepare_data
from dragoman.training.gradients import PackedLoss, PaddedLoss
from dragoman.training.optimizer import learning_rate
from dragoman.training.reports.log import SilentReporter
from dragoman.training.reports.provenance import describe

EOS = VOCABULARY.eos

SENTENCES = 500  # translated at each validation
OURS, PEER = "dragoman", "Hugging Face Marian"


class Racer(Protocol):
    @property
    def model(self) -> nn.Module: ...

    def backward(self, rows: Ids) -> None:
        """Compute the gradients of the mean loss of these pairs."""

    def translate(self, sources: list[str]) -> list[str]:
        """Translate by greedy search."""


class Ours:
    def __init__(
        self, prepared: PreparedData, device: torch.device, precision: torch.dtype, batches: list[Ids]
    ) -> None:
        self._prepared, self._device = prepared, device
        config, settings = prepared.config, prepared.config.train
        assert isinstance(config.model, TransformerConfig)
        self.model = Transformer(config.model).to(device)
        self._padded = PaddedLoss(TranslationTask(), self.model, precision, settings.label_smoothing)
        self._graph: GradientGraph | None = None
        self._shape: Shape | None = None
        if device.type == "cuda" and kernels_run():
            from dragoman.model.kernels import BLOCK, LONGEST_WHOLE

            tokens, most = settings.batch_tokens, max(map(len, batches)) + settings.batch_tokens // LONGEST_WHOLE
            self._shape = Shape(tokens + 128, tokens + 128, most + 8, LONGEST_WHOLE, BLOCK)
            packed = torch.compile(PackedTransformer(self.model, config.text.max_length), dynamic=False)
            self._packed = PackedLoss(self.model, packed, precision, settings.label_smoothing)  # type: ignore[arg-type]

    def backward(self, rows: Ids) -> None:
        if self._shape is None:
            batch = collate(self._prepared.train, rows).to(self._device)
            (self._padded(batch) / batch.num_tokens).backward()
            return
        packed = pack(self._prepared.train, rows, self._shape).pinned()
        if self._graph is None:
            trained = list(self.model.parameters())
            self._graph = GradientGraph(self._packed, packed.to(self._device), trained, accumulates=False)
        self._graph(packed, packed.num_tokens, first=True)

    def translate(self, sources: list[str]) -> list[str]:
        bundle = Bundle(self._prepared.config, self._prepared.tokenizers, self.model)
        return [found.text for found in Translator(bundle, self._device).translate(sources, beam=1)]


class Peer:
    def __init__(self, prepared: PreparedData, device: torch.device, precision: torch.dtype) -> None:
        self._prepared, self._device, self._precision = prepared, device, precision
        assert isinstance(prepared.config.model, TransformerConfig)
        self.model: Any = drop_as_the_paper(Marian(prepared.config.model)).to(device)

    def backward(self, rows: Ids) -> None:
        batch = collate(self._prepared.train, rows).to(self._device)
        with torch.autocast(self._device.type, self._precision, enabled=self._precision != torch.float32):
            logits = self.model(batch.source_ids, batch.target_input, batch.source_allowed)
        loss = smoothed_cross_entropy(logits, batch.target_output, self._prepared.config.train.label_smoothing)
        (loss / batch.num_tokens).backward()  # type: ignore[no-untyped-call]

    def translate(self, sources: list[str]) -> list[str]:
        tokenizers, found = self._prepared.tokenizers, {}
        encoded = [[*ids, EOS] for ids in tokenizers.source.encode_batch(sources)]
        order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
        for first in range(0, len(order), 64):
            rows = order[first : first + 64]
            ids, allowed = (part.to(self._device) for part in pad_rows([encoded[row] for row in rows]))
            with torch.inference_mode():
                out = self.model.body.generate(
                    input_ids=ids, attention_mask=allowed.long(), num_beams=1, do_sample=False,
                    max_new_tokens=ids.size(1) + 50,
                )  # fmt: skip
            for row, line in zip(rows, out.tolist(), strict=True):
                found[row] = tokenizers.target.decode(line[: line.index(EOS)] if EOS in line else line)
        return [found[row] for row in range(len(sources))]


def race(
    name: str, racer: Racer, prepared: PreparedData, device: torch.device, minutes: float, validations: int
) -> list[Any]:
    """Train, and return minutes of training, BLEU, steps and target tokens at each validation."""
    settings, store = prepared.config.train, prepared.train
    optimizer = torch.optim.Adam(
        racer.model.parameters(), lr=0.0, betas=(settings.adam_beta1, settings.adam_beta2), eps=settings.adam_epsilon,
        fused=True,
    )  # fmt: skip
    sources, references = prepared.valid_sources[:SENTENCES], prepared.valid_references[:SENTENCES]
    curve: list[Any] = []
    clock, step, tokens = 0.0, 0, 0
    batches = _batches(prepared)
    while clock < 60 * minutes:
        racer.model.train()
        started, until = time.perf_counter(), 60 * minutes * (len(curve) + 1) / validations
        while clock + time.perf_counter() - started < until:
            rows = next(batches)
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, settings, prepared.config.model.d_model)
            if not (isinstance(racer, Ours) and device.type == "cuda"):  # a CUDA graph overwrites gradients
                optimizer.zero_grad(set_to_none=True)
            racer.backward(rows)
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(racer.model.parameters(), settings.clip_norm)
            optimizer.step()
            tokens += int(store.target_lengths[rows].sum()) + len(rows)
            if device.type == "cuda" and step % 20 == 0:
                torch.cuda.synchronize()  # the clock must not run ahead of the GPU
        if device.type == "cuda":
            torch.cuda.synchronize()
        clock += time.perf_counter() - started
        racer.model.eval()
        bleu = sacrebleu.corpus_bleu(racer.translate(sources), [references], force=True).score
        curve.append({"minutes": clock / 60, "bleu": bleu, "steps": step, "target_tokens": tokens})
        print(f"{name}: {clock / 60:.2f} minutes, step {step}, {tokens:,} tokens, BLEU {bleu:.2f}", flush=True)
    return curve


def _plan(prepared: PreparedData) -> BatchPlan:
    store, settings = prepared.train, prepared.config.train
    budget, seed = settings.batch_tokens, settings.seed
    return BatchPlan(store.sizes, batch_tokens=budget, seed=seed)


def _batches(prepared: PreparedData) -> Iterator[Ids]:
    plan, epoch = _plan(prepared), 0
    while True:
        yield from plan.epoch(epoch)
        epoch += 1


def reached(curve: list[Any], bleu: float) -> float | None:
    """Return the time in minutes at which a curve first reached this BLEU."""
    return next((point["minutes"] for point in curve if point["bleu"] >= bleu), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--data", type=Path, help="the folder of the corpora; default: the environment variable DRAGOMAN_DATA"
    )
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--validations", type=int, default=12, help="how often BLEU is measured, evenly spaced")
    parser.add_argument("--recipe", type=Path, default=Path("recipes/tatoeba-en-de.toml"))
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = Config.build(file=options.recipe, settings=["train.schedule=inverse-sqrt", *options.settings])
    device = choose_device(config.train.device)
    precision = choose_precision(config.train.precision, device)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            prepared = prepare_data(config, Path(scratch), SilentReporter(), data_folder=options.data)
        except DragomanError as error:
            parser.error(str(error))
        made_by = describe(prepared.config, prepared.corpora, device, 1)
        curves = {}
        for name in (PEER, OURS):
            torch.manual_seed(config.train.seed)
            racer: Racer
            if name == OURS:
                racer = Ours(prepared, device, precision, _plan(prepared).epoch(0))
            else:
                racer = Peer(prepared, device, precision)
            curves[name] = race(name, racer, prepared, device, options.minutes, options.validations)
    goal = max(point["bleu"] for point in curves[PEER])
    ours, theirs = reached(curves[OURS], goal), reached(curves[PEER], goal)
    ratios = {f"time to the peer's best, BLEU {goal:.1f}": theirs / ours} if ours and theirs else {}
    if options.svg:
        lines = {name: [(point["minutes"], point["bleu"]) for point in curve] for name, curve in curves.items()}
        title = f"BLEU against minutes of training, {torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}"
        picture = svg_plot(lines, title=title, x_label="minutes", y_label="BLEU, validation, greedy")
        options.svg.write_text(picture, encoding="utf-8")
    if options.json:
        origin = {
            "recipe": str(options.recipe),
            "data_key": prepared.train.key,
            "minutes": options.minutes,
            "validations": options.validations,
            **{name: made_by[name] for name in ("seed", "git_commit", "versions", "machine", "configuration")},
        }
        print(json.dumps({"curves": curves, "ratios": ratios, **origin}))
    else:
        for name, ratio in ratios.items():
            print(f"{name}: {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
