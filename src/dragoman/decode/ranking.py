"""The largest numbers of every row of a matrix, on its device, and their way to the host. Knows nothing of search.

Shapes: N rows, V columns, C columns chosen.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def largest(value_NV: Tensor, count: int, width: int = 64) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row and their columns, best first, ties by the lower column.

    torch.topk leaves the order of ties undefined and is slower on a CPU. Here a row is cut into chunks of `width`: the
    `count` best values can only be in the `count` chunks with the largest maxima, or in the incomplete last chunk.
    """
    rows, columns = value_NV.shape
    if columns <= 2 * count * width:
        value_NC, column_NC = value_NV.sort(dim=1, descending=True, stable=True)
        return value_NC[:, :count], column_NC[:, :count]
    whole = columns - columns % width
    maximum_NV = value_NV[:, :whole].reshape(rows, -1, width).amax(dim=2)
    chunk_NC = largest(maximum_NV, count, width=8)[1].sort(dim=1).values
    place = torch.arange(columns, device=value_NV.device)
    column_NC = (chunk_NC[:, :, None] * width + place[:width]).flatten(1)
    column_NC = torch.cat([column_NC, place[whole:].expand(rows, -1)], dim=1)
    value_NC, order_NC = largest(value_NV.gather(1, column_NC), count, width=8)
    return value_NC, column_NC.gather(1, order_NC)


def to_host(value_NC: Tensor, id_NC: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both as NumPy arrays (float32, int64) in one transfer: the values are sent as integers with the same bits."""
    packed = torch.stack([value_NC.float().view(torch.int32), id_NC.to(torch.int32)]).cpu().numpy()
    return packed[0].view(np.float32), packed[1].astype(np.int64)
