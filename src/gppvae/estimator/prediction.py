"""Predictions as arrays: moments over draws, and the calibration of their spread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from gppvae.estimator.display import prediction_html, prediction_text

BINS = 16
LEAST_PER_BIN = 100
LEAST_STD = 1e-6
FACTORS = (0.1, 10.0)
FEW_VALUES = 5  # a channel with so many counts half


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predicted samples, in the shape and order of axes in which the training samples came.

    Attributes:
        mean: (N, ...).  std: per value, or None when no samples were drawn (n_samples=0).
            Both are DataFrames where samples and rows came as DataFrames.

    Example:
        >>> import numpy as np
        >>> from gppvae import Prediction
        >>> found = Prediction(mean=np.zeros((2, 28, 28)), std=None)
        >>> found.mean.shape
        (2, 28, 28)
    """

    mean: np.ndarray
    std: np.ndarray | None

    def __repr__(self) -> str:
        return prediction_text(self)

    def _repr_html_(self) -> str:
        return prediction_html(self)


def moments(draws: Iterable[tuple[Tensor, Tensor]], include_noise: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance over draws of (mean, noise variance), by running sums: memory of one draw."""
    count, mean, squares, noise = 0, torch.zeros(()), torch.zeros(()), torch.zeros(())
    for out_mean, out_var in draws:
        count += 1
        delta = out_mean - mean
        mean = mean + delta / count
        squares = squares + delta * (out_mean - mean)
        noise = noise + out_var
    var = squares / max(count - 1, 1)
    return mean, var + noise / count if include_noise else var


def mean_and_std(
    draws: Iterable[tuple[Tensor, Tensor]],
    include_noise: bool,
    measured: Calibration | None,
    unit: np.ndarray,
    carried: tuple[Tensor, Tensor] | None = None,
) -> dict[str, np.ndarray]:
    """Moments over draws by name; noise comes from measured errors where there are any, else from the likelihood.

    Args:
        unit: of the values, in which the errors were measured; broadcastable to a sample.
        carried: what is added to the mean, and the variance of that in units, (N,).
    """
    mean, var = moments(draws, include_noise and measured is None)
    if carried is not None:
        more = carried[1].reshape(-1, *(1 for _ in var.shape[1:])).to(var) * torch.from_numpy(unit).to(var) ** 2
        mean, var = mean + carried[0].to(mean), var + more
    std = var.sqrt().cpu().numpy()
    total = measured.total_std(std / unit) * unit if include_noise and measured is not None else std
    return {"mean": mean.cpu().numpy(), "std": total}


@dataclass(frozen=True)
class Calibration:
    """Size of real errors as a function of the spread of draws, measured on rows with known answers.

    Attributes:
        spread: increasing grid of the draws' standard deviation.  error: standard deviation of the errors there.
        factor: of the errors of a channel (or value) relative to all, (C,) or (1,).
        error_var: mean squared error over all values.
        trained_on: whether the rows were trained on. Their errors are too small, so no total is below the spread.
    """

    spread: np.ndarray
    error: np.ndarray
    error_var: float
    factor: np.ndarray = field(default_factory=lambda: np.ones(1))
    trained_on: bool = False

    def total_std(self, std: np.ndarray) -> np.ndarray:
        """Standard deviation of a new sample where the draws spread by `std`, (N, C, ...).

        Beyond the measured spreads it grows with the spread of the draws.
        """
        total = self._curve(std)
        total = np.sqrt(total**2 + np.maximum(std.astype(np.float64) ** 2 - self.spread[-1] ** 2, 0.0))
        if len(self.factor) > 1:
            total = total * self.factor.reshape(-1, *(1 for _ in std.shape[2:]))
        else:
            total = total * self.factor
        return np.maximum(total, std if self.trained_on else LEAST_STD).astype(np.float32).clip(LEAST_STD)

    def _curve(self, std: np.ndarray) -> np.ndarray:
        at = np.log(np.maximum(std, LEAST_STD))
        return np.exp(np.interp(at, np.log(self.spread), np.log(self.error)))

    def to_json(self) -> dict[str, Any]:
        curve = {"spread": self.spread.tolist(), "error": self.error.tolist(), "error_var": self.error_var}
        return curve | {"factor": self.factor.tolist(), "trained_on": self.trained_on}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Calibration:
        spread, error, factor = (np.array(saved[name], dtype=np.float64) for name in ("spread", "error", "factor"))
        fits = spread.ndim == 1 and spread.shape == error.shape and len(spread) > 0 and factor.ndim == 1 and len(factor)
        numbers = [*spread, *error, *factor]
        if not fits or not np.isfinite(numbers).all() or min(numbers) <= 0:
            raise ValueError("a calibration must have as many positive errors as spreads")
        if (np.diff(spread) <= 0).any() or not 0.0 <= saved["error_var"] < np.inf:
            raise ValueError("a calibration must have rising spreads and a finite error")
        return cls(spread, error, float(saved["error_var"]), factor, bool(saved["trained_on"]))


def gaussian_width(distance: np.ndarray) -> np.ndarray:
    """The standard deviation whose intervals of 50, 80 and 90% cover about what they say, (C,) for (C, n).

    Of normal errors it is their standard deviation. Of errors with heavier tails it lies between the values that get
    80% and 90% right, where the root of the mean square would make every interval too wide.

    Args:
        distance: absolute errors, those that belong together last.
    """
    at_80, at_90 = np.quantile(distance, (0.8, 0.9), axis=-1)
    width: np.ndarray = (at_80 / ndtri(0.9)) ** 0.7 * (at_90 / ndtri(0.95)) ** 0.3
    return width


def calibrate(y: Tensor, mask: Tensor | None, predicted: Prediction, unit: np.ndarray | float = 1.0) -> Calibration:
    """Measure errors in bins of the predicted spread, of equal count, then a factor for each channel.

    The curve is made monotone. Factors of channels with few values are drawn towards 1.

    Args:
        y: true samples.  mask: of observed values, or None.  predicted: mean and std over draws at their rows.
        unit: of the values, broadcastable to a sample, so that those of all channels can be compared.
    """
    assert predicted.std is not None
    if not torch.isfinite(y).all():
        raise ValueError("expected finite samples to measure errors on, got NaN or infinity; clean them or mask NaN")
    whole = np.abs((y.numpy().astype(np.float64) - predicted.mean) / unit)
    seen = np.ones(whole.shape, dtype=bool) if mask is None else mask.numpy()
    wide = np.maximum(predicted.std.astype(np.float64) / unit, LEAST_STD)
    error, spread = whole[seen], wide[seen]
    bins = np.array_split(np.argsort(spread, kind="stable"), max(1, min(BINS, error.size // LEAST_PER_BIN)))
    centres = np.array([np.log(spread[members]).mean() for members in bins])
    # Bins with the same spread are pooled: the division of their values was arbitrary.
    distinct, group = np.unique(centres.round(6), return_inverse=True)
    pooled = [np.concatenate([bins[n] for n in np.flatnonzero(group == g)]) for g in range(len(distinct))]
    widths = np.array([gaussian_width(error[members]) for members in pooled])
    rising = np.maximum(np.maximum.accumulate(widths), LEAST_STD)
    found = Calibration(np.exp(distinct), rising, float(np.square(error).mean()))
    return replace(found, factor=_channel_factors(whole / found.total_std(wide), seen))


def _channel_factors(distance: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Size of the errors of each channel relative to the curve, (C,)."""
    n_channels = distance.shape[1]
    by_channel = [np.moveaxis(x, 1, 0).reshape(n_channels, -1) for x in (distance, seen)]
    counts = by_channel[1].sum(axis=1)
    if seen.all():
        widths = gaussian_width(by_channel[0])
    else:
        parts = zip(*by_channel, strict=True)
        widths = np.array([gaussian_width(own[there]) if there.any() else 1.0 for own, there in parts])
    factors: np.ndarray = np.clip(widths, *FACTORS) ** (counts / (counts + FEW_VALUES))
    return np.where(widths > 0, factors, 1.0)
