"""Token positions: sinusoids (section 3.5 of the paper), learned vectors, rotations. Knows nothing of attention.

Shapes: T positions, M width of a position, D width of a head, ... any leading dimensions.
"""

import torch
from torch import Tensor, nn

BASE = 10_000.0


def _angles(positions_T: Tensor, width: int) -> Tensor:
    """pos / 10000^(2i / width) for every pair i of a vector of that width: [T, ceil(width / 2)]."""
    # float64: at position 10,000 a float32 angle is off in the third digit; MPS has no float64.
    precision = torch.float32 if positions_T.device.type == "mps" else torch.float64
    pairs = torch.arange(0, width, 2, device=positions_T.device, dtype=precision)
    return positions_T.to(precision)[:, None] * BASE ** (-pairs / width)


def sinusoids(positions_T: Tensor, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same angle: [T, M]."""
    angles = _angles(positions_T, d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :d_model]


class Positions(nn.Module):
    """Adds positions to embeddings. `rotary` and `none` add nothing here: rotations happen inside attention."""

    def __init__(self, kind: str, d_model: int, max_positions: int) -> None:
        super().__init__()
        self.kind = kind
        self.d_model = d_model
        self.learned = nn.Embedding(max_positions, d_model) if kind == "learned" else None

    def forward(self, x_BTM: Tensor, start: int = 0) -> Tensor:
        end = start + x_BTM.size(1)
        if self.learned is not None and end > self.learned.num_embeddings:
            raise ValueError(
                f"length={end} is over max_positions={self.learned.num_embeddings}; "
                "split the text or train with more learned positions"
            )
        vectors_TM = self.vectors(torch.arange(start, end, device=x_BTM.device), x_BTM.dtype)
        return x_BTM if vectors_TM is None else x_BTM + vectors_TM

    def vectors(self, positions_T: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The vectors added at these positions, if any: [T, M]."""
        if self.learned is not None:
            return self.learned(positions_T)
        return sinusoids(positions_T, self.d_model).to(dtype) if self.kind == "sinusoidal" else None


def rotation(start: int, length: int, d_k: int, device: torch.device) -> Tensor:
    """Cosine and sine of every position's angle for each pair of dimensions: [2, T, D/2]."""
    return rotation_at(torch.arange(start, start + length, device=device), d_k)


def rotation_at(positions_T: Tensor, d_k: int) -> Tensor:
    angles = _angles(positions_T, d_k)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x_BHTD: Tensor, rotation_2TD: Tensor) -> Tensor:
    """Rotate each pair of dimensions by its position's angle, so that q . k depends on the distance only."""
    # at least float32: in bfloat16 a cosine is off in its third digit, and so is the difference of two products
    precise = torch.promote_types(x_BHTD.dtype, torch.float32)
    even, odd = x_BHTD[..., 0::2].to(precise), x_BHTD[..., 1::2].to(precise)
    cos, sin = rotation_2TD.to(precise)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x_BHTD.dtype)
