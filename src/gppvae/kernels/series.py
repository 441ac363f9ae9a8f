"""Features of one-dimensional stationary kernels from their spectrum: fewer than inducing points for smooth kernels.

    k(x - y) = v(x)'v(y) + residual,   residual -> 0 with the number n of functions

The variance that a truncated series lacks, near the ends of its interval or above its last frequency, is residual
variance, as with inducing points (docs/math.md, "Series").
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import ClassVar

import scipy.special
import scipy.stats
import torch
from torch import Tensor

LOST = 0.01  # share of the variance that a series may lack, at the ends and above the last frequency
SHORTER, LONGER = 3.0, 2.0  # factors by which training may change the length scale before the series lacks more
MARGIN = 1.5  # the same factor for a fixed length scale, where the series then lacks far less than LOST
BEYOND = 16  # orders above the highest one needed, at which the recurrence of Bessel functions starts


@dataclass(frozen=True)
class Series(ABC):
    """A truncated series of n functions.

    Attributes:
        name: as in `basis=`.
        n: number of functions.
    """

    name: ClassVar[str]
    n: int

    @abstractmethod
    def features(self, x: Tensor, lengthscale: Tensor) -> Tensor:
        """v at values (D, 1), (D, n)."""

    @abstractmethod
    def describe(self) -> str:
        """A description of the functions, in a few words."""

    def check(self, most: int) -> None:
        """Raise ValueError unless this is a valid series of at most `most` functions."""
        for name, value in asdict(self).items():
            if value is None and name == "nu":
                continue
            real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not real or (name != "centre" and value <= 0):
                raise ValueError(f"{name} of a {self.name} series must be a positive number, got {value!r}")
        if not isinstance(self.n, int) or self.n > most:
            raise ValueError(f"a {self.name} series must have at most {most} functions, got {self.n!r}")

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True)
class Sines(Series):
    """Hilbert-space basis of a kernel with spectral density S on [centre - B, centre + B], w_j = pi j / 2B.

        v_j(x) = sqrt(S(w_j) / B) sin(w_j (x - centre + B)),   j = 1 ... n

    Source: Solin and Sarkka 2020, "Hilbert space methods for reduced-rank Gaussian process regression".

    Attributes:
        centre, half_width: the interval, half_width is B.
        nu: smoothness of a Matern kernel; None for the squared exponential.
    """

    name: ClassVar[str] = "hilbert"
    centre: float
    half_width: float
    nu: float | None

    def features(self, x: Tensor, lengthscale: Tensor) -> Tensor:
        B = self.half_width
        w = torch.arange(1, self.n + 1, dtype=torch.float64, device=x.device) * (math.pi / (2.0 * B))  # (n,)
        # All sines are zero at the ends; clamping keeps them zero outside, where all variance is residual.
        shifted = (x - self.centre).clamp(-B, B) + B  # (D, 1)
        return (w * shifted).sin() * (spectral_density(w, lengthscale, self.nu) / B).sqrt()  # (D, n)

    def describe(self) -> str:
        low, high = self.centre - self.half_width, self.centre + self.half_width
        return f"{self.n} functions of a hilbert series on {low:.4g} to {high:.4g}"


@dataclass(frozen=True)
class Fourier(Series):
    """Fourier series of the periodic kernel exp((cos(2 pi d / p) - 1) / l), which is exp(-2 sin^2(pi d / p) / l).

        v(x) = (c_0, ..., c_j cos(2 pi j x / p), c_j sin(2 pi j x / p), ...),   j = 1, 2, ...
        c_0^2 = e^-a I_0(a),   c_j^2 = 2 e^-a I_j(a),   a = 1 / l

    Attributes:
        period: p.
    """

    name: ClassVar[str] = "fourier"
    period: float

    def features(self, x: Tensor, lengthscale: Tensor) -> Tensor:
        n_orders = self.n // 2
        c = order_variances(1.0 / lengthscale.reshape(()), n_orders).sqrt()  # (n_orders + 1,)
        orders = torch.arange(1, n_orders + 1, dtype=torch.float64, device=x.device)
        angle = x * (2.0 * math.pi / self.period) * orders  # (D, n_orders)
        waves = torch.stack([c[1:] * angle.cos(), c[1:] * angle.sin()], dim=2).flatten(1)  # cosine, sine, cosine, ...
        return torch.cat([c[:1].expand(len(x), 1), waves], dim=1)[:, : self.n]  # (D, n)

    def describe(self) -> str:
        return f"{self.n} functions of a fourier series with period {self.period:.4g}"


def plan_sines(low: float, high: float, shortest: float, longest: float, nu: float | None, reach: float) -> Sines:
    """The interval and the number of sines for data in [low, high] and a range of length scales.

    Two errors are kept below LOST. The zero at each end acts as a negative mirror image of the data, which must be out
    of reach at the longest length scale. The frequencies above the last one must hold little of the spectrum at the
    shortest.

    Args:
        nu: as in `Sines`.  reach: distance at which k falls to LOST, in length scales.
    """
    half_width = 0.5 * (high - low) + 0.5 * reach * longest
    degrees = math.inf if nu is None else 2.0 * nu  # Student's t, or normal for the squared exponential
    highest = scipy.stats.t(degrees).isf(0.5 * LOST) / shortest  # frequency
    return Sines(math.ceil(highest * 2.0 * half_width / math.pi), 0.5 * (low + high), half_width, nu)


def plan_fourier(period: float, shortest: float, most: int) -> Fourier:
    """A Fourier series that suits all l of at least `shortest`; the search stops one order above `most` functions."""
    order, left = 0, 1.0 - float(scipy.special.ive(0, 1.0 / shortest))
    # A tiny l needs very many orders, and below about 1e-9 SciPy's Bessel functions are NaN: stop at the limit.
    while not left <= LOST and 2 * order + 1 <= most:
        order += 1
        left -= 2.0 * float(scipy.special.ive(order, 1.0 / shortest))
    return Fourier(2 * order + 1, period)


def spectral_density(w: Tensor, lengthscale: Tensor, nu: float | None) -> Tensor:
    """S(w) of a kernel with k(0) = 1: 2 pi times a probability density of w, (n,).

    Under it, w l is normal for the squared exponential, and Student's t with 2 nu degrees of freedom for Matern.
    """
    scaled: torch.distributions.Distribution
    scaled = torch.distributions.Normal(0.0, 1.0) if nu is None else torch.distributions.StudentT(2.0 * nu)
    lengthscale = lengthscale.reshape(())
    return 2.0 * math.pi * lengthscale * scaled.log_prob(w * lengthscale).exp()


def order_variances(a: Tensor, n_orders: int) -> Tensor:
    """c_j^2 of `Fourier`: e^-a I_0(a), and 2 e^-a I_j(a) for j = 1 ... n_orders, (n_orders + 1,).

    From the ratios I_j / I_j-1 = 1 / (2j/a + I_j+1 / I_j), from high to low orders, since the recurrence is unstable in
    the other direction. The first ratio is the bound of Amos (1974).
    """
    last = n_orders + BEYOND
    ratio = a / (last + 0.5 + ((last + 1.5) ** 2 + a.square()).sqrt())
    ratios = []
    for j in range(last, 0, -1):
        ratio = 1.0 / (2.0 * j / a + ratio)
        ratios.append(ratio)
    zeroth = torch.special.i0e(a).reshape(1)  # e^-a I_0(a)
    higher = torch.stack(ratios[::-1]).cumprod(0)[:n_orders]  # I_j / I_0
    return torch.cat([zeroth, 2.0 * zeroth * higher])
