"""Predictions as arrays: their moments over draws, and the noise that their errors reveal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SHRINK_ROWS = 10.0
LEAST_NOISE = 1e-8


@dataclass(frozen=True)
class Prediction:
    """Predicted samples.

    Attributes:
        mean: (N, *shape).  std: per value, or None when no samples were drawn (n_samples=0).
    """

    mean: np.ndarray
    std: np.ndarray | None


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


def noise_variance(y: Tensor, mask: Tensor | None, predicted: Prediction) -> np.ndarray:
    """Per value, the mean over rows of squared error minus predicted variance; (shape,) float64.

    Each is shrunk towards the average over values by the weight of a few rows, and kept positive.
    """
    assert predicted.std is not None
    error = (y.numpy().astype(np.float64) - predicted.mean) ** 2 - predicted.std.astype(np.float64) ** 2
    seen = np.ones_like(error) if mask is None else mask.numpy().astype(np.float64)
    count, total = seen.sum(0), (error * seen).sum(0)
    average = max(float(total.sum() / max(count.sum(), 1.0)), LEAST_NOISE)
    return np.maximum((total + SHRINK_ROWS * average) / (count + SHRINK_ROWS), LEAST_NOISE)
