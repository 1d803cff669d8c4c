"""How good the model is right now: the loss on held-out pairs, BLEU and chrF of a real decode. Knows no optimiser."""

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
from dragoman.train.looks import take_look
from dragoman.train.loss import smoothed_cross_entropy
from dragoman.train.prepare import Prepared

MOST_TOKENS = 4_096  # of a batch: all its logits are held at once here, which packed training never does


class Validation:
    """Looks at a model in training, always at the same sentences."""

    def __init__(self, prepared: Prepared, device: torch.device, precision: torch.dtype) -> None:
        self.prepared, self.device, self.precision = prepared, device, precision
        self.settings = prepared.config.train

    @property
    def judge(self) -> str:
        """What a metric was measured with: numbers of different judges are not compared."""
        metric, references = self.settings.valid_metric, self.prepared.valid_references
        letters = metric == "bleu" and suitable_tokenization(references) == "char"
        unit = " in per cent" if metric == "exact_match" else ""  # runs of earlier versions have shares of 1
        return f"{metric}{'-char' if letters else ''}{unit} on {len(references)} of {self.prepared.valid.key[:16]}"

    def look(self, model: Model) -> dict[str, Any]:
        model.eval()
        translator = Translator(Bundle(self.prepared.config, self.prepared.tokenizers, model), self.device)
        greedy = DecodeConfig(beam=1, max_extra=self.prepared.config.decode.max_extra)
        translations = list(translator.stream([self.prepared.valid_sources], options=greedy))
        texts, normalization = [result.text for result in translations], self.prepared.config.text.normalization
        scores = quick_scores(texts, self.prepared.valid_references, normalization)
        sample = {"source": translations[0].source, "translation": translations[0].text}
        look = take_look(self.prepared, translator)
        return {"loss": self._loss(model), **scores, "sample": sample, "look": look}

    def metric(self, record: Mapping[str, Any]) -> float:
        """The number to maximise."""
        value = float(record[self.settings.valid_metric])
        if not math.isfinite(value):
            return -math.inf
        return -value if self.settings.valid_metric == "loss" else value

    def _loss(self, model: Model) -> float:
        """Per token, without smoothing, over all validation pairs."""
        store = self.prepared.valid
        budget = min(self.settings.batch_tokens, MOST_TOKENS)
        plan = BatchPlan(store.source_lengths, store.target_lengths, batch_tokens=budget, seed=0)
        total, tokens = 0.0, 0
        with torch.inference_mode():
            for rows in plan.epoch(0):
                batch = collate(store, rows).to(self.device)
                with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
                    logits_BTV = model(batch.source_ids, batch.target_input, batch.source_allowed)
                total += float(smoothed_cross_entropy(logits_BTV, batch.target_output, 0.0))
                tokens += batch.num_tokens
        return total / tokens
