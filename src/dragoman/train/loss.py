"""The training loss (sections 5.3 and 5.4 of the paper): cross-entropy with label smoothing. Knows nothing of models.

Shapes: B sentences, T target positions, V vocabulary.
"""

import torch.nn.functional as F
from torch import Tensor

from dragoman.text.tokenizer import PAD


def smoothed_cross_entropy(logits_BTV: Tensor, target_BT: Tensor, label_smoothing: float) -> Tensor:
    """Summed over the real target tokens. The goal is 1 - e on the right token plus e spread evenly over all."""
    # fp32: a bf16 log-softmax loses the tail; the caller divides by the tokens of all batches in a step
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).float() if logits_BTV.element_size() < 4 else logits_BTV.flatten(0, 1),
        target_BT.flatten(),
        ignore_index=PAD,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
