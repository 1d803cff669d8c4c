"""Validate a model: the loss on held-out pairs, BLEU and chrF of real translations. Knows nothing of optimizers."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from dragoman.bundle import Bundle
from dragoman.config import DecodeConfig
from dragoman.data.batching import BatchPlan, collate
from dragoman.decode.translator import Translator
from dragoman.evaluate.metrics import quick_scores, suitable_tokenization
from dragoman.model.build import Model
from dragoman.training.data import PreparedData
from dragoman.training.loss import smoothed_cross_entropy
from dragoman.training.reports.attention import take_snapshot

MAX_TOKENS = 4_096  # per batch: unlike packed training, this holds all logits at once


class Validation:
    """Measures a model in training, always on the same sentences."""

    def __init__(self, prepared: PreparedData, device: torch.device, precision: torch.dtype) -> None:
        self.prepared, self.device, self.precision = prepared, device, precision
        self.settings = prepared.config.train

    @property
    def judge(self) -> str:
        """Identifies the metric and its data: scores of different judges are not comparable."""
        metric, references = self.settings.valid_metric, self.prepared.valid_references
        letters = metric == "bleu" and suitable_tokenization(references) == "char"
        unit = " in per cent" if metric == "exact_match" else ""  # earlier versions used fractions
        return f"{metric}{'-char' if letters else ''}{unit} on {len(references)} of {self.prepared.valid.key[:16]}"

    def measure(self, model: Model) -> dict[str, Any]:
        model.eval()
        # plain: it takes the weights as they are; packing them anew at every validation takes longer than it saves
        bundle = Bundle(self.prepared.config, self.prepared.tokenizers, model)
        translator = Translator(bundle, self.device, "float32", engine="plain")
        greedy = DecodeConfig(beam=1, max_extra=self.prepared.config.decode.max_extra)
        translations = list(translator.stream([self.prepared.valid_sources], options=greedy))
        texts, normalization = [result.text for result in translations], self.prepared.config.text.normalization
        scores = quick_scores(texts, self.prepared.valid_references, normalization)
        sample = {"source": translations[0].source, "translation": translations[0].text}
        snapshot = take_snapshot(self.prepared.valid, translator)
        return {"loss": self._loss(model), **scores, "sample": sample, "snapshot": snapshot}

    def metric(self, record: Mapping[str, Any]) -> float:
        """The score to maximise."""
        value = float(record[self.settings.valid_metric])
        if not math.isfinite(value):
            return -math.inf
        return -value if self.settings.valid_metric == "loss" else value

    def _loss(self, model: Model) -> float:
        """Per token, without smoothing, over all validation pairs."""
        store = self.prepared.valid
        budget = min(self.settings.batch_tokens, MAX_TOKENS)
        plan = BatchPlan(store.source_lengths, store.target_lengths, batch_tokens=budget, seed=0)
        total, tokens = 0.0, 0
        with torch.inference_mode():
            for rows in plan.epoch(0):
                batch = collate(store, rows).to(self.device)
                with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
                    logits_BTV = model(batch.source_ids, batch.target_input, batch.source_allowed)
                total += float(smoothed_cross_entropy(logits_BTV, batch.target_output, 0.0, batch.pad))
                tokens += batch.num_tokens
        return total / tokens
