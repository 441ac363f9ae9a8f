"""How good predictions are: errors per sample, coverage of intervals, likelihood."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

LEVELS = (0.5, 0.8, 0.9)


def mse_per_sample(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Mean squared error of each sample over its values, (N,)."""
    return np.square(truth.reshape(len(truth), -1) - predicted.reshape(len(predicted), -1)).mean(axis=1)


def varying(samples: np.ndarray, least_std: float = 0.01) -> np.ndarray:
    """Which values differ between samples at all, (shape): intervals at constant ones mean nothing."""
    return samples.std(axis=0) > least_std


def coverage(truth: np.ndarray, mean: np.ndarray, std: np.ndarray, where: np.ndarray) -> dict[str, float]:
    """Share of values inside their central Gaussian intervals, per level, over the values `where` is True."""
    distance = np.abs((truth - mean) / std)[:, where]
    return {f"{level:.0%}": float((distance <= ndtri(0.5 + level / 2.0)).mean()) for level in LEVELS}


def gaussian_nll(truth: np.ndarray, mean: np.ndarray, std: np.ndarray, where: np.ndarray) -> float:
    """Mean negative log density per value in nats, over the values `where` is True."""
    terms = 0.5 * np.square((truth - mean) / std) + np.log(std) + 0.5 * np.log(2.0 * np.pi)
    return float(terms[:, where].mean())
