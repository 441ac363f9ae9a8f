"""Features of one-dimensional stationary kernels from their spectrum: fewer than anchors where the kernel is smooth.

On [-B, B] around the data, with w_j = pi j / 2B and S the spectral density of k,
    v_j(x) = sqrt(S(w_j) / B) sin(w_j (x + B)),   v(x)'v(y) -> k(x - y) away from the ends.
Source: Solin and Sarkka 2020, "Hilbert space methods for reduced-rank Gaussian process regression". A periodic kernel
is its Fourier series. What features miss, near the ends or above the last frequency, is residual variance like that
of anchors (docs/math.md).
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import scipy.special
import scipy.stats
import torch
from torch import Tensor

LOST = 0.01  # share of the variance that may be missing, at the ends and at the last frequency
SHORTER, LONGER = 3.0, 2.0  # factors by which training may change the length scale before more than that is missing
BEYOND = 16  # orders past the last one wanted, where the recurrence of Bessel functions starts


@dataclass(frozen=True)
class Series:
    """How many functions, and the interval centre - half_width ... centre + half_width on which they live."""

    n: int
    centre: float
    half_width: float

    def to_json(self) -> list[float]:
        return list(astuple(self))

    @classmethod
    def from_json(cls, values: list[float]) -> Series:
        n, centre, half_width = values
        return cls(int(n), centre, half_width)


def plan_sines(low: float, high: float, shortest: float, longest: float, dof: float, reach: float) -> Series:
    """The interval and the number of sines for data in [low, high] and a range of length scales.

    The zero at each end acts as a negative mirror image of the data, which must be out of reach for the longest length
    scale; the frequencies above the last one must hold little of the spectrum of the shortest.

    Args:
        dof: of the spectrum, see `spectral_density`.  reach: where k falls to LOST, in length scales.
    """
    half_width = 0.5 * (high - low) + 0.5 * reach * longest
    highest = scipy.stats.t(dof).isf(0.5 * LOST) / shortest
    return Series(math.ceil(highest * 2.0 * half_width / math.pi), 0.5 * (low + high), half_width)


def sines(x: Tensor, series: Series, lengthscale: Tensor, dof: float) -> Tensor:
    """Features of x (D, 1), (D, n); zero outside the interval, where residual variance takes their place."""
    B = series.half_width
    w = torch.arange(1, series.n + 1, dtype=torch.float64, device=x.device) * (math.pi / (2.0 * B))
    shifted = (x - series.centre).clamp(-B, B) + B
    return (w * shifted).sin() * (spectral_density(w, lengthscale, dof) / B).sqrt()


def spectral_density(w: Tensor, lengthscale: Tensor, dof: float) -> Tensor:
    """S(w) of a kernel with k(0) = 1: 2 pi times a probability density, by which w l is normal for the squared
    exponential (dof = inf) and Student's t with 2 nu degrees of freedom for Matern nu."""
    of_scaled = torch.distributions.Normal(0.0, 1.0) if math.isinf(dof) else torch.distributions.StudentT(dof)
    lengthscale = lengthscale.reshape(())
    return 2.0 * math.pi * lengthscale * of_scaled.log_prob(w * lengthscale).exp()


def plan_fourier(period: float, shortest: float) -> Series:
    """Orders of the Fourier series of exp((cos(2 pi d / period) - 1) / l) for the shortest l.

    Variance of order j: 2 e^-a I_j(a), a = 1/l (half of it for j = 0).
    """
    order, left = 0, 1.0 - float(scipy.special.ive(0, 1.0 / shortest))
    while left > LOST:
        order += 1
        left -= 2.0 * float(scipy.special.ive(order, 1.0 / shortest))
    return Series(2 * order + 1, 0.0, 0.5 * period)


def fourier(x: Tensor, series: Series, lengthscale: Tensor) -> Tensor:
    """Features of x (D, 1), (D, n): 1, then cosine and sine of each order, times the root of the order's variance."""
    n_orders = series.n // 2
    root = _variances(1.0 / lengthscale.reshape(()), n_orders).sqrt()
    angle = x * (math.pi / series.half_width) * torch.arange(1, n_orders + 1, dtype=torch.float64, device=x.device)
    waves = torch.stack([root[1:] * angle.cos(), root[1:] * angle.sin()], dim=2).flatten(1)
    return torch.cat([root[:1].expand(len(x), 1), waves], dim=1)[:, : series.n]


def _variances(a: Tensor, n_orders: int) -> Tensor:
    """e^-a I_0(a), and 2 e^-a I_j(a) for j = 1 ... n_orders.

    From ratios I_j / I_j-1 = 1 / (2j/a + I_j+1 / I_j), downwards, since upwards they lose all digits; they start from
    the bound of Amos (1974), which is close.
    """
    last = n_orders + BEYOND
    ratio = a / (last + 0.5 + ((last + 1.5) ** 2 + a.square()).sqrt())
    ratios = []
    for j in range(last, 0, -1):
        ratio = 1.0 / (2.0 * j / a + ratio)
        ratios.append(ratio)
    zeroth = torch.special.i0e(a).reshape(1)
    higher = torch.stack(ratios[::-1]).cumprod(0)[:n_orders]
    return torch.cat([zeroth, 2.0 * zeroth * higher])
