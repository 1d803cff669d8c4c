"""Hypotheses of a beam, moved as a search moves them, compared with each of them decoded alone."""

from typing import Any

import torch
from torch import Tensor

PARENTS = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 0]])  # two hypotheses of each of three sentences become three


def check_hypotheses_follow_their_parents(model: Any, source_ids: Tensor, target_ids: Tensor, allowed: Tensor) -> None:
    """For three sentences. The control: with other parents the logits differ."""
    paths = {2: [(10, 11), (10, 12), (9, 13)], 0: [(6, 14), (5, 15), (6, 16)]}
    alone = [
        _last_logits(model, source_ids[sentence], [int(target_ids[sentence, 0]), *path], allowed[sentence])
        for sentence, own in paths.items()
        for path in own
    ]
    followed, confused = (
        _after_moving(model, source_ids, target_ids, allowed, each) for each in (PARENTS, 1 - PARENTS)
    )
    torch.testing.assert_close(followed, torch.stack(alone), atol=1e-12, rtol=0)
    assert all((followed - confused).abs().amax(dim=1) > 1e-6)


def _after_moving(model: Any, source_ids: Tensor, target_ids: Tensor, allowed: Tensor, parents: Tensor) -> Tensor:
    cache = model.start(model.encode(source_ids, allowed), allowed)
    model.step(target_ids[:, 0], cache)
    cache.reorder(torch.zeros(3, 2, dtype=torch.long))
    model.step(torch.tensor([5, 6, 7, 8, 9, 10]), cache)
    cache.reorder(parents)
    cache.select(torch.tensor([2, 0]))
    logits: Tensor = model.step(torch.tensor([11, 12, 13, 14, 15, 16]), cache)
    return logits


def _last_logits(model: Any, source_S: Tensor, fed: list[int], allowed_S: Tensor) -> Tensor:
    logits: Tensor = model(source_S[None], torch.tensor([fed]), allowed_S[None])[0, -1]
    return logits
