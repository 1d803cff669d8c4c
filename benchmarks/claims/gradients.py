"""Residual connections, norms and the scaling of scores: gradients through depth, and training, without them.

Shapes: B sentences, T positions, M width.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.claims.positions import letters
from benchmarks.claims.training import SMALL, mean_loss, train
from dragoman.config import TransformerConfig
from dragoman.data.generated import SYMBOLS
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.transformer import EncoderLayer, Residual, Transformer, initialise
from dragoman.text.vocabulary import NUM_SPECIAL

DEPTH = 24
LEFT_OUT = {
    "the paper's": (),
    "no residual": ("residual",),
    "no norm": ("norm",),
    "neither": ("residual", "norm"),
    "no 1/√d_k": ("scale",),
}


class Bare(nn.Module):
    """A replacement for a residual connection: only the output of the sub-layer."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def enter(self, x_BTM: Tensor) -> Tensor:
        return x_BTM

    def leave(self, x_BTM: Tensor, out_BTM: Tensor) -> Tensor:
        return self.norm(out_BTM)


def without(module: nn.Module, left_out: tuple[str, ...]) -> nn.Module:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Residual):
                if "norm" in left_out:
                    child.layer_norm = nn.Identity()  # type: ignore[assignment]
                if "residual" in left_out:
                    setattr(parent, name, Bare(child.layer_norm))
            if isinstance(child, MultiHeadAttention) and "scale" in left_out:
                root = (child.query.out_features / child.num_heads) ** 0.5
                # undoes the scaling of the scores
                child.query.register_forward_hook(lambda _, __, q_BTM, root=root: q_BTM * root)
    return module


def gradients(quick: bool) -> dict[str, Any]:
    """At initialisation: the gradient norm below each layer, relative to that above the last; and the similarity of the
    tokens of a sentence after six layers (mean cosine of two of them, drawn independently).
    """
    width = 64 if quick else 256
    config = TransformerConfig(num_layers=DEPTH, d_model=width, d_ff=4 * width, num_heads=4, dropout=0.0)
    variants = {name: (config, left_out) for name, left_out in LEFT_OUT.items()}
    variants["pre-norm"] = (replace(config, norm="pre"), ())
    relative: dict[str, list[float]] = {}
    alike: dict[str, float] = {}
    for name, (variant, left_out) in variants.items():
        torch.manual_seed(0)
        layers = nn.ModuleList(EncoderLayer(variant.encoder, variant) for _ in range(DEPTH)).apply(initialise)
        without(layers, left_out).double()  # float32 does not have enough range here
        x_BTM = torch.randn(8, 16, width, dtype=torch.float64, requires_grad=True)
        states = [x_BTM]
        for layer in layers:
            states.append(layer(states[-1], None, None, False)[0])
            states[-1].retain_grad()
        (states[-1] * torch.randn_like(states[-1])).sum().backward()  # type: ignore[no-untyped-call]
        sizes = [float(state.grad.norm()) for state in states if state.grad is not None]
        relative[name] = [size / sizes[-1] for size in sizes]
        tokens_BTM = F.normalize(states[6].detach(), dim=-1)
        others = ~torch.eye(16, dtype=torch.bool)
        alike[name] = float((tokens_BTM @ tokens_BTM.mT)[:, others].mean())
    return {"relative norm": relative, "alike after six layers": alike}


def training_without(quick: bool) -> dict[str, Any]:
    """Validation loss on `reverse` with four layers per side, for each variant."""
    pairs, valid = letters(2_000 if quick else 20_000)
    layers, steps = (1, 5) if quick else (4, 400)
    config = replace(SMALL, vocab_size=NUM_SPECIAL + len(SYMBOLS), num_layers=layers, num_heads=1)
    losses = {}
    for name, left_out in LEFT_OUT.items():
        torch.manual_seed(0)
        model = without(Transformer(config), left_out)
        train(model, pairs, steps)
        losses[name] = mean_loss(model, valid)
    return losses
