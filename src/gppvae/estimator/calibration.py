"""Calibration: how large prediction errors are, measured at rows with known samples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

if TYPE_CHECKING:
    from gppvae.estimator.prediction import Prediction

BINS = 16
LEAST_PER_BIN = 100
LEAST_STD = 1e-6
FACTOR_RANGE = (0.01, 100.0)
PRIOR_COUNT = 5  # values with which the factor of a channel is shrunk half-way (in logarithm) to 1
USUAL_POWER, POWER_STD = 0.4, 0.12  # prior mean and standard deviation of f, the power of uncertainty in errors
IMAGE_NDIM = 4
LEVELS = (0.5, 0.8, 0.9)
NORMAL = ndtri(0.5 + np.array(LEVELS) / 2)  # half-widths of normal intervals at LEVELS, in standard deviations, (3,)
WIDTH_RANGE = (0.1, 10.0)  # of measured half-widths relative to normal ones
LEAST_RATIO = 0.8  # of the width at level 50% to that at 80%


def half_width(level: Any, widths: np.ndarray = NORMAL) -> Any:
    """Half-width of the central interval at a level, in standard deviations.

    It is linear in the quantile of the normal distribution between the measured levels, and proportional to it beyond
    them. Without measured widths it is about that quantile: exactly at LEVELS and beyond.

    Args:
        level: in (0, 1), or an array of such.  widths: half-widths at LEVELS, (3,).
    """
    return stretched(ndtri(0.5 + np.asarray(level) / 2), widths)


def stretched(z: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Quantiles z >= 0 of |N(0, 1)| as those of a distribution with these half-widths at LEVELS, (3,)."""
    inside = np.interp(z, [0.0, *NORMAL], [0.0, *widths])
    return np.where(z > NORMAL[-1], z * widths[-1] / NORMAL[-1], inside)


@dataclass(frozen=True)
class Calibration:
    """Size of prediction errors as a function of the spread of draws, measured at rows with known samples.

    Within a sample, errors depend on the spread s of a value relative to that of the whole sample, S. Between samples,
    they grow with the standard deviation u of the latents relative to the prior, but less than in proportion, since a
    decoder also errs where draws hardly spread:

        error = factor * g(s / (S pattern)) * (u / u_0)^f,   0 <= f < 1

    Attributes:
        spread, error: increasing grid of relative spreads, and g there.
        factor: errors of a channel (or value) relative to all, (C,) or (1,).
        error_var: mean squared error over all values.
        typical: u_0, the geometric mean of u over the rows.  follows: f.  typical_spread: the geometric mean of S.
        pattern: typical s / S of each value of vectors, (C,); 1 for images, (1,).
        widths: half-widths of the intervals that contain 50, 80 and 90% of the errors, in standard deviations, (3,).
        rms: root mean square of the errors in standard deviations; 1 for normal errors, more for heavier tails.
        trained_on: whether these are training rows. Their errors are too small, so `total_std` is at least the spread.
    """

    spread: np.ndarray
    error: np.ndarray
    error_var: float
    factor: np.ndarray
    typical: float
    typical_spread: float
    follows: float
    pattern: np.ndarray
    widths: np.ndarray = field(default_factory=NORMAL.copy)
    rms: float = 1.0
    trained_on: bool = False

    def total_std(self, std: np.ndarray, uncertainty: np.ndarray | None = None) -> np.ndarray:
        """Standard deviation of a new sample whose draws have the standard deviation `std`, (N, C, ...).

        For samples with far more spread than the typical one, it is not below the spread.

        Args:
            uncertainty: u of each sample, (N,); its spread S when None, as in `calibrate`.
        """
        parts = _Spread.of(std, self.pattern)
        usual = self.usual(parts, _sample_uncertainty(uncertainty, parts)) * _by_channel(self.factor, std.ndim)
        beyond = np.sqrt(1.0 - np.square(np.minimum(self.typical_spread / parts.whole, 1.0)))
        total = np.maximum(usual, std if self.trained_on else beyond * parts.wide)
        return total.clip(LEAST_STD, np.finfo(np.float32).max).astype(np.float32)

    def size_at(self, uncertainty: np.ndarray) -> np.ndarray:
        """Size of errors of samples with these u, relative to a typical one: (u / u_0)^f."""
        size: np.ndarray = (uncertainty / self.typical) ** self.follows
        return size

    def usual(self, parts: _Spread, uncertainty: np.ndarray) -> np.ndarray:
        """Size of errors by the formula above, without the factors of channels."""
        curve = np.exp(np.interp(np.log(parts.relative), np.log(self.spread), np.log(self.error)))
        return curve * self.size_at(uncertainty)

    def to_json(self) -> dict[str, Any]:
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Calibration:
        names = ("spread", "error", "factor", "pattern", "widths")
        saved = {"widths": NORMAL, "rms": 1.0} | saved  # models of version 0.2 have neither
        spread, error, factor, pattern, widths = (np.array(saved[name], dtype=np.float64) for name in names)
        error_var, follows = float(saved["error_var"]), float(saved["follows"])
        typical, typical_spread = float(saved["typical"]), float(saved["typical_spread"])
        if any(a.ndim != 1 or not len(a) for a in (spread, error, factor, pattern)) or spread.shape != error.shape:
            raise ValueError("a calibration must have as many errors as spreads, and factors of channels")
        rms = float(saved["rms"])
        positive = np.concatenate([spread, error, factor, pattern, [typical, typical_spread, rms]])
        if not np.isfinite(positive).all() or positive.min() <= 0.0 or (np.diff(spread) <= 0).any():
            raise ValueError("a calibration must have rising spreads, and positive errors, factors and patterns")
        if widths.shape != NORMAL.shape or not np.isfinite(widths).all() or (np.diff([0.0, *widths]) <= 0).any():
            raise ValueError(f"a calibration must have {len(LEVELS)} rising widths of intervals")
        if not 0.0 <= error_var < np.inf or not 0.0 <= follows <= 1.0:
            raise ValueError("a calibration must have a finite error, and a power from 0 to 1 of the uncertainty")
        trained_on = bool(saved["trained_on"])
        return cls(spread, error, error_var, factor, typical, typical_spread, follows, pattern, widths, rms, trained_on)


@dataclass(frozen=True)
class _Spread:
    """Spreads s of draws, (N, C, ...), the root mean square S of each sample, (N, 1, ...), and s / (S pattern)."""

    wide: np.ndarray
    whole: np.ndarray
    relative: np.ndarray

    @classmethod
    def of(cls, std: np.ndarray, pattern: np.ndarray | None = None) -> _Spread:
        """
        Args:
            pattern: typical relative spread of each value, (C,) or (1,).
        """
        wide = np.maximum(std.astype(np.float64), LEAST_STD)
        whole = _root_mean_square(wide)
        relative = wide / whole
        return cls(wide, whole, relative if pattern is None else relative / _by_channel(pattern, std.ndim))


def _sample_uncertainty(uncertainty: np.ndarray | None, parts: _Spread) -> np.ndarray:
    """u of each sample, (N, 1, ...); its spread S when None."""
    if uncertainty is None:
        return parts.whole
    return np.maximum(uncertainty.astype(np.float64), LEAST_STD).reshape(parts.whole.shape)


def _by_channel(values: np.ndarray, ndim: int) -> np.ndarray:
    """(C,) -> (C, 1, ...), to broadcast to samples, (N, C, ...)."""
    return values.reshape(-1, *(1 for _ in range(ndim - 2)))


def _root_mean_square(values: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """Root mean square of the values of each sample, (N, 1, ...), or of the observed ones, `seen`."""
    within = tuple(range(1, values.ndim))
    squares = np.square(values)
    if seen is None:
        mean = squares.mean(within, keepdims=True)
    else:
        count = seen.sum(within, keepdims=True)
        mean = np.where(seen, squares, 0.0).sum(within, keepdims=True) / np.maximum(count, 1)
    return np.sqrt(mean).clip(LEAST_STD)


def gaussian_width(distance: np.ndarray) -> np.ndarray:
    """Standard deviation whose normal intervals of 50, 80 and 90% have about that coverage, (C, n) -> (C,).

    For normal errors it is their standard deviation. For heavier tails it is a geometric mean of the values with exact
    coverage at each level; the root mean square would make all intervals too wide. If half of the errors are almost
    zero, as in the background of images, the value at 50% is bounded by LEAST_RATIO times that at 80%.

    Args:
        distance: absolute errors; quantiles are over the last axis.
    """
    at_50, at_80, at_90 = (np.quantile(distance, level, axis=-1) / ndtri(0.5 + level / 2) for level in LEVELS)
    width: np.ndarray = np.maximum(at_50, LEAST_RATIO * at_80) ** 0.3 * at_80**0.4 * at_90**0.3
    return width


def calibrate(
    y: Tensor,
    mask: Tensor | None,
    predicted: Prediction,
    unit: np.ndarray | float = 1.0,
    uncertainty: np.ndarray | None = None,
    trained_on: bool = False,
) -> Calibration:
    """Measure errors in bins of the relative spread with equal counts, then a factor for each channel.

    The curve is made monotone. Factors of channels with few values are shrunk towards 1, as are the widths of intervals
    towards normal ones with few rows.

    Args:
        y: true samples.  mask: of observed values, or None.  predicted: mean and std over draws at their rows.
        unit: of the values, broadcastable to a sample, which makes channels comparable.
        uncertainty: u, the standard deviation of each sample's latents relative to the prior, (N,); S when None.
        trained_on: whether these are training rows, whose errors say nothing of the tails.
    """
    assert predicted.std is not None
    if not torch.isfinite(y).all():
        raise ValueError("expected finite samples to measure errors on, got NaN or infinity; clean them or mask NaN")
    error = np.abs((y.numpy().astype(np.float64) - predicted.mean) / unit)
    seen = np.ones(error.shape, dtype=bool) if mask is None else mask.numpy()
    std = predicted.std / unit
    images = error.ndim == IMAGE_NDIM
    pattern = np.ones(1) if images else np.exp(np.log(_Spread.of(std).relative).mean(0)).ravel()
    parts, one = _Spread.of(std, pattern), np.ones(1)
    size = _sample_uncertainty(uncertainty, parts)
    some = seen.reshape(len(seen), -1).any(axis=1)
    follows = _fit_power(size[some], _root_mean_square(error, seen)[some])
    typical, typical_spread = (float(np.exp(np.log(of).mean())) for of in (size, parts.whole))
    error_var = float(np.square(error[seen]).mean())
    found = Calibration(one, one, error_var, one, typical, typical_spread, follows, pattern)
    distance = error / found.size_at(size)
    if not images:  # one curve for values of any size
        distance = distance / _channel_factors(distance / gaussian_width(distance[seen]).clip(LEAST_STD), seen)
    spread, distance = parts.relative[seen], distance[seen]
    bins = np.array_split(np.argsort(spread, kind="stable"), max(1, min(BINS, spread.size // LEAST_PER_BIN)))
    centres = np.array([np.log(spread[members]).mean() for members in bins])
    # Bins with the same spread are pooled, since values were assigned to them arbitrarily.
    distinct, group = np.unique(centres.round(6), return_inverse=True)
    pooled = [np.concatenate([bins[n] for n in np.flatnonzero(group == g)]) for g in range(len(distinct))]
    widths = np.array([gaussian_width(distance[members]) for members in pooled])
    rising = np.maximum(np.maximum.accumulate(widths), LEAST_STD)
    found = replace(found, spread=np.exp(distinct), error=rising)
    found = replace(found, factor=_channel_factors(error / found.usual(parts, size), seen), trained_on=trained_on)
    if trained_on:
        return found
    distance = error / found.total_std(std, uncertainty)
    rms = float(np.sqrt(np.square(distance[seen]).mean()).clip(1.0))
    return replace(found, widths=_widths(distance, seen), rms=rms)


def _widths(distance: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Half-widths of intervals that contain shares LEVELS of errors, (3,), shrunk towards normal ones with few rows.

    Args:
        distance: absolute errors in standard deviations, (N, C, ...).
    """
    n_rows = int(seen.reshape(len(seen), -1).any(axis=1).sum())
    relative = np.clip(np.quantile(distance[seen], LEVELS) / NORMAL, *WIDTH_RANGE) ** (n_rows / (n_rows + PRIOR_COUNT))
    widths: np.ndarray = np.maximum.accumulate(NORMAL * relative) * (1.0 + 1e-9 * np.arange(len(LEVELS)))  # rising
    return widths


def _fit_power(size: np.ndarray, error: np.ndarray) -> float:
    """The power f in error ~ u^f: slope of the regression of log error on log u, with a normal prior on f.

    Rows held out of a grid have similar u and determine f poorly; the prior then dominates. f is at most the prior
    mean, because held-out rows are farther from the training rows than most rows to predict, and errors of nearer rows
    shrink less than the slope at held-out rows suggests.
    """
    x, y = np.log(size).ravel(), np.log(error).ravel()  # (N,) each
    x, y = x - x.mean(), y - y.mean()
    slope = x @ y / max(x @ x, LEAST_STD)
    var = np.square(y - slope * x).sum() / max(len(x) - 2, 1)  # residual variance
    f = (x @ y + USUAL_POWER * var / POWER_STD**2) / max(x @ x + var / POWER_STD**2, LEAST_STD)  # posterior mean
    return float(np.clip(f, 0.0, USUAL_POWER))


def _channel_factors(distance: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Size of errors of each channel relative to the curve, (C,), shrunk towards 1 if it has few values."""
    n_channels = distance.shape[1]
    by_channel = [np.moveaxis(x, 1, 0).reshape(n_channels, -1) for x in (distance, seen)]  # (C, N ...) each
    counts = by_channel[1].sum(axis=1)
    if seen.all():
        widths = gaussian_width(by_channel[0])
    else:
        parts = zip(*by_channel, strict=True)
        widths = np.array([gaussian_width(own[there]) if there.any() else 1.0 for own, there in parts])
    factors: np.ndarray = np.clip(widths, *FACTOR_RANGE) ** (counts / (counts + PRIOR_COUNT))
    return np.where(widths > 0, factors, 1.0)
