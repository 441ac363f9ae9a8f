"""Stationary kernels over numeric columns: GPyTorch's covariance functions, through inducing points or a series.

Features come from inducing points (InducingLeaf), or from a series (series.py) for a kernel of one column with a known
spectrum: where there are many distinct values, and the series needs fewer functions than there would be points.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gpytorch
import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from gppvae.data.table import Table
from gppvae.kernels.arguments import check_range
from gppvae.kernels.base import AUTO_FEATURES, FEW_FEATURES
from gppvae.kernels.numeric import SCALES, InducingLeaf
from gppvae.kernels.series import LONGER, LOST, MARGIN, SHORTER, Fourier, Series, Sines, plan_fourier, plan_sines


class PositiveInUnits(gpytorch.constraints.Positive):
    """Positive numbers unit * softplus(raw), so that a step in raw is relative to the unit.

    GPyTorch's softplus is linear above 1: an optimiser whose steps are 0.01 would never move a length scale of 1,000.

    Args:
        unit: of each number, in the shape of the parameter.
    """

    unit: Tensor

    def __init__(self, unit: Tensor) -> None:
        super().__init__()
        self.register_buffer("unit", unit)

    def transform(self, tensor: Tensor) -> Tensor:
        return super().transform(tensor) * self.unit

    def inverse_transform(self, transformed_tensor: Tensor) -> Tensor:
        return super().inverse_transform(transformed_tensor / self.unit)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}unit" not in state_dict:  # a checkpoint from before there were units; GPyTorch lets keys miss
            self.unit.fill_(1.0)
        super()._load_from_state_dict(state_dict, prefix, *args)


class StationaryLeaf(InducingLeaf):
    """Base of stationary kernels of unit variance, k(a, b) = f(a - b) with f(0) = 1.

    Args:
        columns: a, numeric columns; together they are one vector per row.
        base: GPyTorch's covariance function.
        lengthscale: initial length scales; None for the standard deviations of the columns.
        fixed: do not learn the hyper-parameters.
        max_inducing: R, the largest number of inducing points or functions; chosen when None.
        jitter: added to the diagonal of K_uu.
        basis: "inducing", the name of the kernel's series, or "auto" for the one that needs fewer features.

    Attributes:
        series_type: the kind of series this kernel has over one column, if any.
        series: the series in use; None with inducing points.
    """

    series_type: type[Series] | None = None

    def __init__(
        self,
        columns: tuple[str, ...],
        base: gpytorch.kernels.Kernel,
        lengthscale: float | None,
        fixed: bool,
        max_inducing: int | None,
        jitter: float,
        basis: str,
    ) -> None:
        super().__init__(*columns, max_inducing=max_inducing, jitter=jitter)
        name = type(self).__name__
        bases = ["auto", "inducing"]
        if self.series_type is not None and len(columns) == 1:
            bases.append(self.series_type.name)
        if basis not in bases:
            over = "one column" if len(columns) == 1 else f"{len(columns)} columns"
            raise ValueError(f"{name} of {over} needs a basis of {', '.join(bases)}, got {basis!r}; leave it at auto")
        self.base = base.double()
        self.starts_at_spread = lengthscale is None
        if lengthscale is None:
            self._start_lengthscale(self.base.lengthscale.detach())
        else:
            self.set_hyperparameter("lengthscale", lengthscale)
            self._start_lengthscale(torch.full_like(self.base.raw_lengthscale.detach(), float(lengthscale)))
        self.fixed, self.basis = bool(fixed), basis
        if self.fixed:
            self.base.requires_grad_(False)
        self.series: Series | None = None

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Start a positive hyper-parameter of the covariance function at `value`."""
        check_range(type(self).__name__, name.removesuffix("_length"), value, *SCALES, 1.0)
        setattr(self.base, name, torch.tensor(float(value), dtype=torch.float64))

    def _start_lengthscale(self, value: Tensor) -> None:
        """Start at these length scales, (1, d); those above 1 are the units of optimiser steps."""
        self.base.register_constraint("raw_lengthscale", PositiveInUnits(value.clamp_min(1.0)).double())
        self.base.lengthscale = value

    @property
    def rank(self) -> int:
        return self.inducing.shape[0] if self.series is None else self.series.n

    def choose_inducing(self, values: np.ndarray, distinct: np.ndarray) -> None:
        if self.starts_at_spread:
            spread = torch.from_numpy(self.spread(values))  # one per column, (d,)
            self._start_lengthscale(spread.view_as(self.base.raw_lengthscale).to(self.device))
        self.series = self._choose_series(distinct)
        if self.series is not None:
            self.complete, self.inducing = False, self.inducing[:0]
            return
        with self._shorter():
            super().choose_inducing(values, distinct)
        fewer = self._choose_series(distinct, self.rank) if self.max_inducing is None and not self.complete else None
        if fewer is not None:
            self.series, self.inducing = fewer, self.inducing[:0]

    @contextlib.contextmanager
    def _shorter(self) -> Iterator[None]:
        """Inside the context, the length scale is the shortest that the features must represent after training."""
        raw = self.base.raw_lengthscale.detach().clone()
        if not self.fixed:
            self.base.lengthscale = self.base.lengthscale.detach() / SHORTER
        try:
            yield
        finally:
            self.base.raw_lengthscale.data.copy_(raw)  # bit-identical, unlike multiplying by SHORTER

    def choose_inducing_again(self, table: Table) -> None:
        self.starts_at_spread = False
        super().choose_inducing_again(table)

    def _choose_series(self, distinct: np.ndarray, most: int | None = None) -> Series | None:
        """The series of `basis`, or with "auto" one that needs fewer features than inducing points would.

        Args:
            most: largest number of functions; by default `max_inducing`, or FEW_FEATURES where that is None.
        """
        if self.basis == "inducing" or len(self.columns_read) > 1:
            return None
        asked = self.basis != "auto"
        most = most or self.max_inducing or (self.most_features if asked else FEW_FEATURES)
        if not asked and len(distinct) <= (self.max_inducing or FEW_FEATURES):
            return None
        lengthscale = float(self.base.lengthscale.detach())
        # Truncation is a bias that more data do not remove, so a fixed length scale has a margin too.
        shorter, longer = (MARGIN, MARGIN) if self.fixed else (SHORTER, LONGER)
        series = self.plan_series(distinct, lengthscale / shorter, lengthscale * longer, most)
        if series is None or series.n <= most:
            return series
        return replace(series, n=most) if asked else None

    @abstractmethod
    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float, most: int) -> Series | None:
        """The series for these values (D, 1) and length scales; None for a kernel that has none.

        Args:
            most: number of functions above which the series is not used, so the search may stop there.
        """

    def reach(self) -> float:
        """The distance r with k(r) = LOST, in length scales; for one column."""
        lengthscale = float(self.base.lengthscale.detach())
        zero = torch.zeros(1, 1, dtype=torch.float64)
        return brentq(lambda r: float(self.covariance(zero, zero + r * lengthscale).detach()) - LOST, 0.0, 20.0)

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        return self.base.forward(a, b)  # (A, B); calling the module would return a lazy tensor of it

    def variance(self, values: Tensor) -> Tensor:
        return torch.ones(values.shape[0], dtype=torch.float64, device=values.device)

    def factor(self, values: Tensor) -> Tensor:
        return super().factor(values) if self.series is None else self.series.features(values, self.base.lengthscale)

    def learned_numbers(self) -> dict[str, Tensor]:
        found = {"length scale": self.base.lengthscale}
        return found | ({"alpha": self.base.alpha} if hasattr(self.base, "alpha") else {})

    @property
    def features_come_from(self) -> str:
        return "inducing points" if self.series is None else "basis functions"

    def describe_features(self) -> str:
        return super().describe_features() if self.series is None else self.series.describe() + self.describe_carried()

    def extra_state(self) -> dict[str, object]:
        return super().extra_state() | {"series": None if self.series is None else self.series.to_json()}

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        if "base.raw_lengthscale_constraint.unit" not in tensors:  # of version 0.2, whose length scales had no unit
            self.base.register_constraint("raw_lengthscale", gpytorch.constraints.Positive().double())
        super().restore(extra, tensors)
        saved = extra["series"]
        if saved is None:
            self.series = None
        elif self.series_type is None or not isinstance(saved, dict) or len(self.columns_read) > 1:
            raise ValueError(f"{self.text()} has no series, got one")
        else:
            self.series = self.series_type(**saved)
            self.series.check(self.max_inducing or AUTO_FEATURES)
        if (self.series is None) != (len(self.inducing) > 0):
            raise ValueError(f"{self.text()} must have inducing points or a series, got {len(self.inducing)} points")


class RBF(StationaryLeaf):
    """Squared exponential: very smooth functions.

        k(a, b) = exp(-r^2 / 2),   r^2 = sum_c (a_c - b_c)^2 / l_c^2

    Args:
        columns: a, one or more numeric columns c.
        lengthscale: initial l_c of all columns; without it, the standard deviation of each.
        fixed: do not learn l.
        max_inducing: R, the largest number of inducing points or functions; chosen when None.
        jitter: added to the diagonal of K_uu.
        basis: "auto", "inducing" or, for one column, "hilbert".

    Example:
        >>> from gppvae import RBF
        >>> from gppvae.data.table import Table
        >>> kernel, table = RBF("x", lengthscale=1.0), Table({"x": [0.0, 1.0, 2.0]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).detach().numpy().round(2).tolist()
        [[1.0, 0.61, 0.14], [0.61, 1.0, 0.61], [0.14, 0.61, 1.0]]
    """

    series_type = Sines

    def __init__(
        self,
        *columns: str,
        lengthscale: float | None = None,
        fixed: bool = False,
        max_inducing: int | None = None,
        jitter: float = 1e-8,
        basis: str = "auto",
    ) -> None:
        base = gpytorch.kernels.RBFKernel(ard_num_dims=len(columns) or None)
        super().__init__(columns, base, lengthscale, fixed, max_inducing, jitter, basis)

    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float, most: int) -> Sines:
        return plan_sines(distinct.min(), distinct.max(), shortest, longest, None, self.reach())


class Matern(StationaryLeaf):
    """Matern: rougher functions than RBF, differentiable once for nu = 1.5 and twice for nu = 2.5.

        k(a, b) = exp(-s)                    nu = 0.5
                  (1 + s) exp(-s)            nu = 1.5
                  (1 + s + s^2/3) exp(-s)    nu = 2.5,   s = sqrt(2 nu) r,   r^2 = sum_c (a_c - b_c)^2 / l_c^2

    Args:
        columns: a, one or more numeric columns c.
        nu: 0.5, 1.5 or 2.5.
        lengthscale: initial l_c of all columns; without it, the standard deviation of each.
        fixed: do not learn l.
        max_inducing: R, the largest number of inducing points or functions; chosen when None.
        jitter: added to the diagonal of K_uu.
        basis: "auto", "inducing" or, for one column, "hilbert".

    Example:
        >>> from gppvae import Matern
        >>> from gppvae.data.table import Table
        >>> kernel, table = Matern("x", nu=0.5, lengthscale=1.0), Table({"x": [0.0, 1.0, 2.0]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).detach().numpy().round(2).tolist()
        [[1.0, 0.37, 0.14], [0.37, 1.0, 0.37], [0.14, 0.37, 1.0]]
    """

    series_type = Sines

    def __init__(
        self,
        *columns: str,
        nu: float = 2.5,
        lengthscale: float | None = None,
        fixed: bool = False,
        max_inducing: int | None = None,
        jitter: float = 1e-8,
        basis: str = "auto",
    ) -> None:
        if nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern needs nu of 0.5, 1.5 or 2.5, got {nu}; 2.5 is the smoothest")
        base = gpytorch.kernels.MaternKernel(nu=nu, ard_num_dims=len(columns) or None)
        super().__init__(columns, base, lengthscale, fixed, max_inducing, jitter, basis)
        self.nu = float(nu)

    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float, most: int) -> Sines:
        return plan_sines(distinct.min(), distinct.max(), shortest, longest, self.nu, self.reach())


class RationalQuadratic(StationaryLeaf):
    """A mixture of squared exponentials of many length scales.

        k(a, b) = (1 + r^2 / (2 alpha))^-alpha,   r^2 = sum_c (a_c - b_c)^2 / l_c^2

    Args:
        columns: a, one or more numeric columns c.
        alpha: initial alpha; the larger, the closer to RBF.
        lengthscale: initial l_c of all columns; without it, the standard deviation of each.
        fixed: do not learn l and alpha.
        max_inducing: R, the largest number of inducing points; chosen when None.
        jitter: added to the diagonal of K_uu.
        basis: "auto" or "inducing", the same here: there is no series.

    Example:
        >>> from gppvae import RationalQuadratic
        >>> from gppvae.data.table import Table
        >>> kernel, table = RationalQuadratic("x", alpha=1.0, lengthscale=1.0), Table({"x": [0.0, 1.0, 2.0]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).detach().numpy().round(2).tolist()
        [[1.0, 0.67, 0.33], [0.67, 1.0, 0.67], [0.33, 0.67, 1.0]]
    """

    def __init__(
        self,
        *columns: str,
        alpha: float = 1.0,
        lengthscale: float | None = None,
        fixed: bool = False,
        max_inducing: int | None = None,
        jitter: float = 1e-8,
        basis: str = "auto",
    ) -> None:
        base = gpytorch.kernels.RQKernel(ard_num_dims=len(columns) or None)
        super().__init__(columns, base, lengthscale, fixed, max_inducing, jitter, basis)
        self.set_hyperparameter("alpha", alpha)

    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float, most: int) -> None:
        return None


class Periodic(StationaryLeaf):
    """Functions with a known period.

        k(a, b) = exp(-2 sin^2(pi (a - b) / p) / l)

    The paper prints sin^2(a - b) with angles in radians, which has period pi; the angle must be halved (docs/math.md,
    errata). l is GPyTorch's, the square of the paper's nu.

    Args:
        column: a, one numeric column.
        period: p, in the unit of the column, for example 360 for degrees. It is not learned.
        lengthscale: initial l; by default 1, since it has no unit.
        fixed: do not learn l.
        max_inducing: R, the largest number of inducing points or functions; chosen when None.
        jitter: added to the diagonal of K_uu.
        basis: "auto", "inducing" or "fourier".

    Example:
        >>> from gppvae import Periodic
        >>> from gppvae.data.table import Table
        >>> kernel, table = Periodic("x", period=2.0), Table({"x": [0.0, 1.0, 2.0]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).detach().numpy().round(2).tolist()
        [[1.0, 0.14, 1.0], [0.14, 1.0, 0.14], [1.0, 0.14, 1.0]]
    """

    series_type = Fourier

    def __init__(
        self,
        column: str,
        period: float,
        *,
        lengthscale: float | None = None,
        fixed: bool = False,
        max_inducing: int | None = None,
        jitter: float = 1e-8,
        basis: str = "auto",
    ) -> None:
        base = gpytorch.kernels.PeriodicKernel()
        start = 1.0 if lengthscale is None else lengthscale
        super().__init__((column,), base, start, fixed, max_inducing, jitter, basis)
        self.set_hyperparameter("period_length", period)
        base.raw_period_length.requires_grad_(False)
        self.period = float(period)

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        # GPyTorch takes the square root of squared distances first: slower, and less accurate near 0.
        chord = ((a - b.T) * (math.pi / self.period)).sin().square()  # (A, B)
        return (chord * (-2.0 / self.base.lengthscale)).exp()

    def plan_series(self, distinct: np.ndarray, shortest: float, longest: float, most: int) -> Fourier:
        # This l is a squared length, so its range is the square of the factor: l / (l / shortest)^2.
        start = float(self.base.lengthscale.detach())
        return plan_fourier(self.period, shortest**2 / start, most)
