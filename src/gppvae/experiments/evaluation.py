"""What experiments say about predictions: errors per sample, coverage of intervals, likelihood, sharpness."""

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


def gradient_energy(images: np.ndarray) -> float:
    """Mean squared difference of neighbouring pixels, down plus across, of images (N, height, width)."""
    pixels = images.astype(np.float64)
    return float(np.square(np.diff(pixels, axis=1)).mean() + np.square(np.diff(pixels, axis=2)).mean())


def laplacian_variance(images: np.ndarray) -> float:
    """Variance over an image of its discrete Laplacian of four neighbours, averaged over (N, height, width)."""
    pixels = images.astype(np.float64)
    inside = pixels[:, 1:-1, 1:-1]
    around = pixels[:, 2:, 1:-1] + pixels[:, :-2, 1:-1] + pixels[:, 1:-1, 2:] + pixels[:, 1:-1, :-2]
    return float((around - 4.0 * inside).var(axis=(1, 2)).mean())


def over_seeds(values: list[float]) -> dict[str, float]:
    """Mean, standard deviation and range of one number over seeds."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": spread, "least": float(min(values)), "most": float(max(values))}
