"""Change a layer: a gated feed-forward network in place of the paper's, in the same Transformer.

    python examples/custom_layer.py

The model is plain PyTorch. Here it learns to reverse sequences, with a training loop of ten lines.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman import Transformer, TransformerConfig

BOS, EOS, FIRST, LETTERS, LENGTH = 2, 3, 4, 12, 6


class GatedFeedForward(nn.Module):
    """(silu(x W1) * x V) W2 (Shazeer 2020): one half of the inner layer decides what of the other half passes."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, 2 * d_ff)
        self.outer = nn.Linear(d_ff, d_model)

    def forward(self, x_BTM: Tensor) -> Tensor:
        gate, values = self.inner(x_BTM).chunk(2, dim=-1)
        return self.outer(F.silu(gate) * values)


def main(steps: int = 400) -> float:
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=FIRST + LETTERS, num_layers=2, d_model=64, d_ff=128, num_heads=4, dropout=0.0)
    model = Transformer(config)
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.feed_forward = GatedFeedForward(config.d_model, config.d_ff)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        source, fed, goal = batch(64)
        loss = F.cross_entropy(model(source, fed).flatten(0, 1), goal.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    source, fed, goal = batch(200)
    with torch.no_grad():
        right = (model(source, fed).argmax(dim=-1) == goal).float().mean().item()
    print(f"{right:.1%} of the tokens are right")
    return right


def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Letters, what the decoder is fed, and what it must predict: the letters reversed."""
    letters = torch.randint(FIRST, FIRST + LETTERS, (size, LENGTH))
    edge = torch.ones(size, 1, dtype=torch.long)
    source = torch.cat((letters, EOS * edge), dim=1)
    return source, torch.cat((BOS * edge, letters.flip(1)), dim=1), torch.cat((letters.flip(1), EOS * edge), dim=1)


if __name__ == "__main__":
    main()
