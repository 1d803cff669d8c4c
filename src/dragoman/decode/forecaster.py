"""A forecaster ready to use: the last rows of a time series in, the next ones out. Knows nothing of files or training.

Shapes: B windows, S rows given, T rows to forecast, F columns.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dragoman.config import FORECASTING
from dragoman.decode.runner import Runner
from dragoman.errors import DataError
from dragoman.scale import rows_before, window_scale

if TYPE_CHECKING:
    from dragoman.model.attention import AttentionWeights

BATCH_SIZE = 256  # windows at once

Rows = npt.NDArray[Any]


class Forecaster(Runner):
    """Continues a time series by `horizon` rows, from its last `lookback` ones. Create one with `Forecaster.load`."""

    task = FORECASTING

    @property
    def lookback(self) -> int:
        return self.config.data.lookback

    @property
    def horizon(self) -> int:
        return self.config.data.horizon

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return self.tokenizers.scale.names

    def forecast(self, rows_SF: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The next rows of a series, in its own unit: [T, F]."""
        return self.tokenizers.scale.decode(self.scaled_forecasts(self._given(rows_SF))[0])

    def _given(self, rows_SF: npt.ArrayLike) -> Rows:
        """The last rows of a series, as one window on the model's scale: [1, S, F]."""
        values_SF, scale = np.asarray(rows_SF, np.float64), self.tokenizers.scale
        if values_SF.ndim != 2 or values_SF.shape[1] != scale.size or len(values_SF) < self.lookback:
            raise DataError(
                f"series: {list(values_SF.shape)} rows and columns; this model needs at least {self.lookback} rows of "
                f"{scale.size} columns"
            )
        source_1SF = scale.encode(values_SF[-self.lookback :])[None]
        if not np.isfinite(source_1SF).all():
            raise DataError("series: has numbers that are not finite; fix or remove their rows")
        return source_1SF

    def scaled_forecasts(self, source_BSF: Rows) -> npt.NDArray[np.float64]:
        """Of windows on the model's scale: [B, T, F]."""
        parts = [self._batch(source_BSF[first : first + BATCH_SIZE]) for first in range(0, len(source_BSF), BATCH_SIZE)]
        return np.concatenate(parts)

    def _batch(self, source_BSF: Rows) -> npt.NDArray[np.float64]:
        shift_B1F, unit_B1F = window_scale(source_BSF, self.config.data.relative_to)
        with self.inference():
            output_BTF = self.model(*self._inputs((source_BSF - shift_B1F) / unit_B1F))
        found: npt.NDArray[np.float64] = output_BTF.double().cpu().numpy() * unit_B1F + shift_B1F
        return found

    def _inputs(self, source_BSF: Rows) -> Sequence[Any]:
        """What the model is fed: the rows given, and the last of them, as many as it is to forecast."""
        import torch

        parts = (source_BSF, rows_before(source_BSF, self.horizon))
        return self.on_device(*(torch.from_numpy(np.asarray(part, np.float32)) for part in parts))

    def attention(self, rows_SF: npt.ArrayLike) -> "AttentionWeights":
        """The attention weights of every head while it forecasts."""
        source_1SF = self._given(rows_SF)
        shift_11F, unit_11F = window_scale(source_1SF, self.config.data.relative_to)
        weights: AttentionWeights
        with self.inference():
            _, weights = self.model(*self._inputs((source_1SF - shift_11F) / unit_11F), need_weights=True)
        return weights
