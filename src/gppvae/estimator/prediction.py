"""Predictions as arrays: moments over draws, and the calibration of their spread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gppvae.estimator.shown import prediction_html, prediction_text

BINS = 16
LEAST_PER_BIN = 100
LEAST_STD = 1e-6


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
    draws: Iterable[tuple[Tensor, Tensor]], include_noise: bool, measured: Calibration | None, unit: np.ndarray
) -> dict[str, np.ndarray]:
    """Moments over draws by name; noise comes from measured errors where there are any, else from the likelihood.

    Args:
        unit: of the values, in which the errors were measured; broadcastable to a sample.
    """
    mean, var = moments(draws, include_noise and measured is None)
    std = var.sqrt().cpu().numpy()
    total = measured.total_std(std / unit) * unit if include_noise and measured is not None else std
    return {"mean": mean.cpu().numpy(), "std": total}


@dataclass(frozen=True)
class Calibration:
    """Size of real errors as a function of the spread of draws, measured on rows with known answers.

    Attributes:
        spread: increasing grid of the draws' standard deviation.  error: root mean squared error there.
        error_var: mean squared error over all values.
    """

    spread: np.ndarray
    error: np.ndarray
    error_var: float

    def total_std(self, std: np.ndarray) -> np.ndarray:
        """Standard deviation of a new sample where the draws spread by `std`; never below it."""
        at = np.log(np.maximum(std, LEAST_STD))
        total = np.exp(np.interp(at, np.log(self.spread), np.log(self.error)))
        return np.maximum(total, std).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        return {"spread": self.spread.tolist(), "error": self.error.tolist(), "error_var": self.error_var}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Calibration:
        spread, error = (np.array(saved[name], dtype=np.float64) for name in ("spread", "error"))
        fits = spread.ndim == 1 and spread.shape == error.shape and len(spread) > 0
        if not fits or not np.isfinite([*spread, *error]).all() or min(spread.min(), error.min()) <= 0:
            raise ValueError("a calibration must have as many positive errors as spreads")
        if (np.diff(spread) <= 0).any() or not 0.0 <= saved["error_var"] < np.inf:
            raise ValueError("a calibration must have rising spreads and a finite error")
        return cls(spread, error, float(saved["error_var"]))


def calibrate(y: Tensor, mask: Tensor | None, predicted: Prediction, unit: np.ndarray | float = 1.0) -> Calibration:
    """Measure errors in bins of equal count of the predicted spread; the curve is made monotone.

    Args:
        y: true samples.  mask: of observed values, or None.  predicted: mean and std over draws at their rows.
        unit: of the values, broadcastable to a sample, so that those of all channels can be compared.
    """
    assert predicted.std is not None
    if not torch.isfinite(y).all():
        raise ValueError("expected finite samples to measure errors on, got NaN or infinity; clean them or mask NaN")
    error = np.square((y.numpy().astype(np.float64) - predicted.mean) / unit)
    seen = np.ones(error.shape, dtype=bool) if mask is None else mask.numpy()
    error, spread = error[seen], np.maximum((predicted.std.astype(np.float64) / unit)[seen], LEAST_STD)
    bins = np.array_split(np.argsort(spread, kind="stable"), max(1, min(BINS, error.size // LEAST_PER_BIN)))
    squares = np.array([error[members].mean() for members in bins])
    counts = np.array([len(members) for members in bins])
    centres = np.array([np.log(spread[members]).mean() for members in bins])
    # Bins with the same spread are pooled: how their values were divided says nothing about errors.
    distinct, group = np.unique(centres.round(6), return_inverse=True)
    pooled = np.bincount(group, squares * counts) / np.bincount(group, counts)
    rising = np.maximum(np.maximum.accumulate(np.sqrt(pooled)), LEAST_STD)
    return Calibration(np.exp(distinct), rising, float(error.mean()))
