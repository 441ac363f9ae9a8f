"""Kernels over numeric columns on GPyTorch's covariance functions, through anchors or a series of functions.

With anchors u and K_uu = L_u L_u', features are v(w) = L_u^-1 k(u, w), so v v' equals k on the anchors; what
they miss elsewhere is the residual (FITC). Anchors are the distinct training values while these are few; beyond
that a series (series.py) where it needs fewer functions than `max_anchors`, k-means centres otherwise.
Source: Snelson and Ghahramani 2006; docs/math.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

import gpytorch
import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from scipy.optimize import brentq
from torch import Tensor, nn

from gppvae.data.table import Column, Table, distinct_rows
from gppvae.kernels.base import Leaf
from gppvae.kernels.columns import code_numeric
from gppvae.kernels.root import root_at_anchors
from gppvae.kernels.series import LONGER, LOST, SHORTER, Series, fourier, plan_fourier, plan_sines, sines

SHOWN = 64  # values of a column with a series that reports look at


class StationaryLeaf(Leaf):
    """A stationary covariance of unit variance.

    Args:
        columns: numeric columns, together one vector per row.
        base: GPyTorch covariance function.
        options: the arguments as the user wrote them, for `text`.
        fixed: keep the hyper-parameters where they start.
        max_anchors: most anchors (or functions of a series) to use, R.
        jitter: nugget on K_uu; the variance it takes from the features comes back as residual.
        basis: "auto", "anchors", or the name of the kernel's series.

    Attributes:
        series_name: of the series this kernel has over one column, if any.
        series: the one in use; None with anchors.
    """

    series_name: str | None = None
    slow = True

    def __init__(
        self,
        columns: tuple[str, ...],
        base: gpytorch.kernels.Kernel,
        options: dict[str, float],
        fixed: bool,
        max_anchors: int,
        jitter: float,
        basis: str = "auto",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if not columns or not all(isinstance(column, str) for column in columns):
            raise ValueError(f"{name} needs column names, got {columns}; write for example {name}('time')")
        if not isinstance(max_anchors, int) or max_anchors < 1:
            raise ValueError(f"{name} needs whole max_anchors of at least 1, got {max_anchors!r}; use for example 64")
        bases = ("auto", "anchors", *([self.series_name] if self.series_name and len(columns) == 1 else []))
        if basis not in bases:
            over = "one column" if len(columns) == 1 else f"{len(columns)} columns"
            raise ValueError(f"{name} of {over} needs a basis of {', '.join(bases)}, got {basis!r}; leave it at auto")
        self.columns_read = columns
        self.base = base.double()
        self.options, self.fixed = options, bool(fixed)
        if self.fixed:
            self.base.requires_grad_(False)
        self.max_anchors, self.jitter, self.basis = max_anchors, jitter, basis
        self.series: Series | None = None
        self.anchors: Tensor
        self.register_buffer("anchors", torch.zeros(0, len(columns), dtype=torch.float64))

    @property
    def key(self) -> str:
        return " x ".join(self.columns_read)

    @property
    def rank(self) -> int:
        return self.anchors.shape[0] if self.series is None else self.series.n

    def text(self) -> str:
        words = [repr(column) for column in self.columns_read]
        words += [f"{name}={value!r}" for name, value in self.options.items()]
        words += ["fixed=True"] if self.fixed else []
        if self.max_anchors != 64:
            words.append(f"max_anchors={self.max_anchors}")
        if self.jitter != 1e-8:
            words.append(f"jitter={self.jitter!r}")
        if self.basis != "auto":
            words.append(f"basis={self.basis!r}")
        return f"{type(self).__name__}({', '.join(words)})"

    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        values = table.numeric(self.columns_read)
        distinct, _ = distinct_rows(values)
        if "lengthscale" not in self.options:
            self._start_lengthscale(values)
        self.series = self._choose_series(distinct)
        few = len(distinct) <= self.max_anchors
        self.complete = few and self.series is None
        if self.series is not None:  # values that reports show
            distinct = distinct[np.linspace(0, len(distinct) - 1, min(len(distinct), SHOWN)).astype(int)]
        anchors = distinct if few or self.series is not None else self._centres(values, distinct)
        self.anchors = torch.from_numpy(anchors)

    def _choose_series(self, distinct: np.ndarray) -> Series | None:
        """The series that was asked for, or that needs fewer features than anchors would."""
        if self.basis == "anchors" or self.series_name is None or len(self.columns_read) > 1:
            return None
        if self.basis == "auto" and len(distinct) <= self.max_anchors:
            return None
        lengthscale = float(self.base.lengthscale.detach())
        shorter, longer = (1.0, 1.0) if self.fixed else (SHORTER, LONGER)
        series = self.plan_series(distinct, lengthscale / shorter, lengthscale * longer)
        if series.n <= self.max_anchors:
            return series
        return None if self.basis == "auto" else replace(series, n=self.max_anchors)

    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float) -> Series:
        """The series that serves these values (D, 1) and length scales."""
        raise NotImplementedError

    def series_features(self, values: Tensor, series: Series) -> Tensor:
        raise NotImplementedError

    def describe_features(self) -> str:
        """How features are made, in a few words."""
        if self.series is not None:
            low, high = (self.series.centre + side * self.series.half_width for side in (-1, 1))
            return f"{self.rank} functions of a {self.series_name} series on {low:.4g} to {high:.4g}"
        how = "its distinct values" if self.complete else "k-means centres"
        return f"{self.rank} anchors at {how}, nugget {self.jitter:g} on their covariance"

    def _centres(self, values: np.ndarray, distinct: np.ndarray) -> np.ndarray:
        spread = values.std(axis=0) + 1e-12
        step = max(1, len(distinct) // 20_000)
        centres, _ = kmeans2(distinct[::step] / spread, self.max_anchors, minit="++", seed=0)
        return np.unique(centres * spread, axis=0)

    def _start_lengthscale(self, values: np.ndarray) -> None:
        spread = values.std(axis=0)
        self.base.lengthscale = torch.from_numpy(np.where(spread > 0, spread, 1.0))

    def code_leaf(self, table: Table) -> Column:
        return code_numeric(table, self.columns_read)

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        return self.base.forward(a, b)  # a call would wrap the same matrix in a lazy one, at twice the time

    def anchor_covariance(self) -> Tensor:
        """K_uu, (R, R): asked for in every step of training."""
        return self.covariance(self.anchors, self.anchors)

    def factor(self, values: Tensor) -> Tensor:
        if self.series is not None:
            return self.series_features(values.to(self.anchors.dtype), self.series)
        k_uu = self.anchor_covariance()
        if torch.equal(values, self.anchors):
            return root_at_anchors(k_uu, self.jitter)
        eye = torch.eye(self.rank, dtype=torch.float64, device=self.anchors.device)
        L_u = torch.linalg.cholesky(k_uu + self.jitter * eye)
        k_uw = self.covariance(self.anchors, values.to(self.anchors.dtype))
        return torch.linalg.solve_triangular(L_u, k_uw, upper=False).T

    def variance(self, values: Tensor) -> Tensor:
        return torch.ones(values.shape[0], dtype=torch.float64, device=values.device)

    def extra_state(self) -> dict[str, object]:
        return {"complete": self.complete, "series": None if self.series is None else self.series.to_json()}

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        self.complete = bool(extra["complete"])
        saved = extra.get("series")
        self.series = Series.from_json(saved) if isinstance(saved, list) else None
        self.anchors = torch.zeros_like(tensors["anchors"])


class RBF(StationaryLeaf):
    """Squared exponential, exp(-d^2 / (2 l^2)), each column with a length scale l of its own.

    Without `lengthscale` they start at the columns' spreads.
    """

    series_name = "hilbert"

    def __init__(
        self,
        *columns: str,
        lengthscale: float | None = None,
        fixed: bool = False,
        max_anchors: int = 64,
        jitter: float = 1e-8,
        basis: str = "auto",
    ) -> None:
        base = gpytorch.kernels.RBFKernel(ard_num_dims=len(columns) or None)
        super().__init__(columns, base, _given(lengthscale=lengthscale), fixed, max_anchors, jitter, basis)
        _set_positive(self, base, lengthscale=lengthscale)

    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float) -> Series:
        reach = math.sqrt(-2.0 * math.log(LOST))
        return plan_sines(distinct.min(), distinct.max(), shortest, longest, math.inf, reach)

    def series_features(self, values: Tensor, series: Series) -> Tensor:
        return sines(values, series, self.base.lengthscale, math.inf)


class Matern(StationaryLeaf):
    """Matern covariance with smoothness nu of 0.5, 1.5 or 2.5, each column with a length scale of its own."""

    series_name = "hilbert"

    def __init__(
        self,
        *columns: str,
        nu: float = 2.5,
        lengthscale: float | None = None,
        fixed: bool = False,
        max_anchors: int = 64,
        jitter: float = 1e-8,
        basis: str = "auto",
    ) -> None:
        if nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern needs nu of 0.5, 1.5 or 2.5, got {nu}; 2.5 is the smoothest")
        base = gpytorch.kernels.MaternKernel(nu=nu, ard_num_dims=len(columns) or None)
        super().__init__(columns, base, {"nu": nu} | _given(lengthscale=lengthscale), fixed, max_anchors, jitter, basis)
        self.nu = nu
        _set_positive(self, base, lengthscale=lengthscale)

    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float) -> Series:
        unit = gpytorch.kernels.MaternKernel(nu=self.nu).double()
        unit.lengthscale = 1.0
        zero = torch.zeros(1, 1, dtype=torch.float64)
        reach = brentq(lambda r: float(unit.forward(zero, zero + r).detach()) - LOST, 0.0, 20.0)
        return plan_sines(distinct.min(), distinct.max(), shortest, longest, 2.0 * self.nu, reach)

    def series_features(self, values: Tensor, series: Series) -> Tensor:
        return sines(values, series, self.base.lengthscale, 2.0 * self.nu)


class RationalQuadratic(StationaryLeaf):
    """A mixture of squared exponentials, (1 + d^2 / (2 a l^2))^-a."""

    def __init__(
        self,
        *columns: str,
        alpha: float = 1.0,
        lengthscale: float | None = None,
        fixed: bool = False,
        max_anchors: int = 64,
        jitter: float = 1e-8,
        basis: str = "auto",
    ) -> None:
        base = gpytorch.kernels.RQKernel(ard_num_dims=len(columns) or None)
        super().__init__(columns, base, _given(alpha=alpha, lengthscale=lengthscale), fixed, max_anchors, jitter, basis)
        _set_positive(self, base, lengthscale=lengthscale, alpha=alpha)


class Periodic(StationaryLeaf):
    """exp(-2 sin^2(pi d / period) / l): equal again after one period, which stays as given.

    The paper prints sin^2(d) with d in radians, of period pi; the angle must be halved (docs/math.md,
    errata). GPyTorch's l is the paper's nu^2.

    Args:
        column: one numeric column.
        period: in the column's own unit, for example 360 for degrees.
    """

    series_name = "fourier"

    def __init__(
        self,
        column: str,
        period: float,
        *,
        lengthscale: float | None = None,
        fixed: bool = False,
        max_anchors: int = 64,
        jitter: float = 1e-8,
        basis: str = "auto",
    ) -> None:
        base = gpytorch.kernels.PeriodicKernel()
        options = _given(period=period, lengthscale=lengthscale)
        super().__init__((column,), base, options, fixed, max_anchors, jitter, basis)
        _set_positive(self, base, period_length=period, lengthscale=1.0 if lengthscale is None else lengthscale)
        base.raw_period_length.requires_grad_(False)
        self.period = float(period)
        self._between_anchors: tuple[Tensor | None, int, Tensor] = None, 0, self.anchors

    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float) -> Series:
        # This l is a squared length, so it may change by the square of the factor.
        start = float(self.base.lengthscale.detach())
        return plan_fourier(self.period, shortest**2 / start)

    def series_features(self, values: Tensor, series: Series) -> Tensor:
        return fourier(values, series, self.base.lengthscale)

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        # GPyTorch goes through the square root of squared distances: three times as long, less exact near 0.
        return self._decay(self._chords(a, b))

    def anchor_covariance(self) -> Tensor:
        known, version, chords = self._between_anchors
        if known is not self.anchors or version != self.anchors._version:
            chords = self._chords(self.anchors, self.anchors)
            self._between_anchors = self.anchors, self.anchors._version, chords
        return self._decay(chords)

    def _chords(self, a: Tensor, b: Tensor) -> Tensor:
        """sin^2(pi d / period), (A, B)."""
        return ((a - b.T) * (math.pi / self.period)).sin().square()

    def _decay(self, chords: Tensor) -> Tensor:
        lengthscale = nn.functional.softplus(self.base.raw_lengthscale)  # what the property says, four times sooner
        return (chords * (-2.0 / lengthscale)).exp()

    def _start_lengthscale(self, values: np.ndarray) -> None:
        return None  # the starting value 1.0 is in units of the period already


def _given(**options: float | None) -> dict[str, float]:
    for name, value in options.items():
        if value is not None and not isinstance(value, (int, float)):
            raise ValueError(f"{name} must be a number, got {value!r}; write for example {name}=1.0")
    return {name: float(value) for name, value in options.items() if value is not None}


def _set_positive(leaf: StationaryLeaf, base: gpytorch.kernels.Kernel, **options: float | None) -> None:
    for name, value in options.items():
        if value is None:
            continue
        if not (value > 0 and np.isfinite(value)):
            raise ValueError(f"{type(leaf).__name__} needs a positive {name}, got {value}; use for example 1.0")
        setattr(base, name, torch.tensor(value, dtype=torch.float64))
