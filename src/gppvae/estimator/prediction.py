"""Predictions as arrays: moments over draws, and intervals of new samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gppvae.estimator.calibration import LEAST_STD, NORMAL, Calibration, half_width, stretched
from gppvae.estimator.checks import share
from gppvae.estimator.display import prediction_html, prediction_text


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predicted samples, in the shape and order of axes of the training samples.

    Attributes:
        mean: (N, ...).  std: per value, or None without draws (n_samples=0).
            Both are DataFrames if the samples and the rows were DataFrames.
        widths: half-widths of the central intervals of 50, 80 and 90%, in std, (3,): those of the normal distribution,
            or, with noise that was measured, those of the errors, whose tails are often heavier.
        least_value, most_value: smallest and largest possible value of a sample, where intervals end: 0 and inf for
            counts, 0 and 1 for the Bernoulli likelihood.

    Example:
        >>> import numpy as np
        >>> from gppvae import Prediction
        >>> found = Prediction(mean=np.zeros((2, 28, 28)), std=None)
        >>> found.mean.shape
        (2, 28, 28)
        >>> low, high = Prediction(mean=np.zeros((2, 3)), std=np.ones((2, 3))).interval(0.8)
        >>> high[0].round(2).tolist()
        [1.28, 1.28, 1.28]
    """

    mean: np.ndarray
    std: np.ndarray | None
    widths: np.ndarray = field(default_factory=NORMAL.copy)
    least_value: float = -math.inf
    most_value: float = math.inf

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval at a level, for every value.

        After `predict(..., include_noise=True)` it contains about that share of the values of new samples; without
        noise it is an interval of the mean sample.
        """
        if self.std is None:
            raise ValueError("an interval needs a std, got none; predict with draws, for example n_samples=64")
        return central_interval(self.mean, self.std, level, (self.least_value, self.most_value), self.widths)

    def __repr__(self) -> str:
        return prediction_text(self)

    def _repr_html_(self) -> str:
        return prediction_html(self)


def central_interval(
    mean: np.ndarray, std: np.ndarray, level: float, ends: tuple[float, float], widths: np.ndarray = NORMAL
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end of the central interval at a level, for every value; arrays or DataFrames.

    Args:
        ends: smallest and largest possible value.  widths: half-widths at `LEVELS`, in std, (3,).
    """
    share("level", level, "0.9")
    half = std * float(half_width(level, widths))
    return (mean - half).clip(ends[0]), (mean + half).clip(None, ends[1])


def moments(draws: Iterable[tuple[Tensor, Tensor]], include_noise: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance over draws of (mean, noise variance), by Welford's update: memory of one draw."""
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
    uncertainty: np.ndarray | None = None,
    kriged: tuple[Tensor, Tensor] | None = None,
) -> dict[str, np.ndarray]:
    """Moments over draws by name; noise comes from measured errors if there are any, else from the likelihood.

    Args:
        unit: of the values, in which the errors were measured; broadcastable to a sample.
        uncertainty: u of each sample, (N,), as in `calibrate`.
        kriged: errors to add to the mean, (N, *shape), and their variance in units, (N,), which is distributed over
            the values of a sample in proportion to their variances.
    """
    mean, var = moments(draws, include_noise and measured is None)
    if kriged is not None:
        mean, var = mean + kriged[0].to(mean), _with_kriged(var, kriged[1], unit, measured if include_noise else None)
    std: np.ndarray = var.sqrt().cpu().numpy()
    if include_noise and measured is not None:
        std = measured.total_std(std / unit, uncertainty) * unit
    return {"mean": mean.cpu().numpy(), "std": std}


def noise_std(
    draws: Iterable[tuple[Tensor, Tensor]],
    measured: Calibration,
    unit: np.ndarray,
    uncertainty: np.ndarray,
    kriged: tuple[Tensor, Tensor] | None = None,
) -> np.ndarray:
    """Standard deviation of what to add to single draws for samples that scatter as `mean_and_std` says; arguments as
    there."""
    _, var = moments(draws, include_noise=False)
    spread = (var if kriged is None else _with_kriged(var, kriged[1], unit, measured)).sqrt().cpu().numpy()
    total = measured.total_std(spread / unit, uncertainty) * unit
    added: np.ndarray = np.sqrt(np.maximum(np.square(total) - var.cpu().numpy(), 0.0))
    return added


def with_noise(mean: Tensor, std: np.ndarray, widths: np.ndarray, generator: torch.Generator) -> Tensor:
    """One draw of samples around their mean, with errors of this standard deviation and these `widths`."""
    eps = torch.randn(mean.shape, generator=generator).numpy()
    return mean + torch.from_numpy(np.sign(eps) * stretched(np.abs(eps), widths) * std).to(mean)


def _with_kriged(var: Tensor, kriged: Tensor, unit: np.ndarray, measured: Calibration | None) -> Tensor:
    """The variance of draws and that of kriged errors, (N,) in units.

    Kriging knows the mean square of errors. Where noise was measured, standard deviations are those whose intervals
    cover as they say, and a mean square is larger if errors have heavy tails.
    """
    kriged = kriged if measured is None else kriged / measured.rms**2
    return var + kriged.reshape(-1, *(1 for _ in var.shape[1:])).to(var) * _shares(var, unit)


def _shares(var: Tensor, unit: np.ndarray) -> Tensor:
    """Variance of each value, (N, *shape), of errors of variance one in units, over a sample: where draws spread."""
    scale = torch.from_numpy(unit).to(var) ** 2
    own = (var / scale).clamp_min(LEAST_STD**2)
    return own / own.flatten(1).mean(1).reshape(-1, *(1 for _ in var.shape[1:])) * scale  # shares have mean 1


def kriged_scale(draws: Iterable[tuple[Tensor, Tensor]], unit: np.ndarray) -> Tensor:
    """Factor of each value, (N, *shape), for draws of kriged errors in units to scatter as `mean_and_std` says."""
    return _shares(moments(draws, include_noise=False)[1], unit).sqrt()
