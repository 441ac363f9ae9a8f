"""Kernels over numeric columns: Linear, Constant, and two base classes for kernels of your own.

A NumericLeaf is defined by its features, an InducingLeaf by its covariance function. The stationary kernels
(stationary.py) are InducingLeaf classes.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from gppvae.data.table import Column, Table, distinct_rows
from gppvae.kernels.arguments import check_range
from gppvae.kernels.base import AUTO_FEATURES, FEW_FEATURES, Leaf

MAX_INDUCING = 4096
MAX_CLUSTERED = 20_000  # values given to k-means
CAREFUL = 256  # centres up to which k-means starts from k-means++
TESTED = 1000  # values at which the variance carried by features is measured
MISSING = 1e-3  # share of the variance that features may lack; it is added to the noise and should be small beside it
ROUGH, GAIN = 0.1, 2.5  # or this share, if doubling the points reduced it by a factor of less than GAIN
N_SHOWN = 64  # training values kept for reports
DIAGONAL_CHUNK = 256  # values per block of the covariance where only its diagonal is needed
SCALES = (1e-30, 1e30)  # length scales, periods and spreads whose squares float64 holds
JITTERS = (1e-12, 1.0)


class NumericLeaf(Leaf):
    """Base of kernels given by their features: implement `rank` and `factor(values)`.

        k(a, b) = v(a)' v(b),   v(a) in R^R

    `rank` is R, a class attribute or a property. `factor` gets (D, d) float64, one row per distinct value and one
    column per name in `columns`, and gives v, (D, R).

    Args:
        columns: numeric columns; together they are one vector a per row.

    Example:
        >>> import torch
        >>> from gppvae import NumericLeaf
        >>> from gppvae.data.table import Table
        >>> class Quadratic(NumericLeaf):
        ...     rank = 2
        ...     def factor(self, values):
        ...         return torch.cat([values, values**2], dim=1)
        >>> kernel, table = Quadratic("x"), Table({"x": [1.0, 2.0]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).tolist()
        [[2.0, 6.0], [6.0, 20.0]]
    """

    reads_numbers = True

    def __init__(self, *columns: str) -> None:
        super().__init__()
        name = type(self).__name__
        if not columns:
            raise ValueError(f"{name} needs at least one column, got none; write for example {name}('time')")
        self.columns_read = columns

    @property
    def key(self) -> str:
        return " x ".join(self.columns_read)

    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        return None

    def code_leaf(self, table: Table) -> Column:
        distinct, index = distinct_rows(table.numeric(self.columns_read))  # (D, d), (N,)
        return Column(torch.from_numpy(index), torch.from_numpy(distinct))

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Standard deviation of each column, (d,), 1 where a column is constant."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.check_scale("spread", values.std(axis=0))

    def check_scale(self, what: str, scale: np.ndarray) -> np.ndarray:
        """`scale` of each column in the training table, (d,), with 1 in place of 0; extreme values raise ValueError."""
        low, high = SCALES
        for column, value in zip(self.columns_read, scale, strict=True):
            if value != 0 and not low <= value <= high:
                raise ValueError(
                    f"{type(self).__name__} needs columns whose {what} is between {low:g} and {high:g}, "
                    f"got {value:g} in column {column!r}; use another unit for it"
                )
        return np.where(scale == 0, 1.0, scale)


class Constant(Leaf):
    """A constant function: an offset shared by all rows.

        k(a, b) = 1

    `0.5 * Constant()` has another initial variance.

    Example:
        >>> from gppvae import Constant
        >>> from gppvae.data.table import Table
        >>> kernel, table = Constant(), Table({"x": [0.0, 1.0]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).detach().numpy().round(2).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(self) -> None:
        super().__init__()

    @property
    def key(self) -> str:
        return "(constant)"

    @property
    def rank(self) -> int:
        return 1

    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        return None

    def code_leaf(self, table: Table) -> Column:
        return Column(torch.zeros(len(table), dtype=torch.int64), torch.zeros(1, dtype=torch.int64))

    def factor(self, values: Tensor) -> Tensor:
        return torch.ones(values.shape[0], 1, dtype=torch.float64, device=values.device)


class Linear(NumericLeaf):
    """Linear functions through the origin.

        k(a, b) = a'b / s^2,   s the root mean square of the columns in the training table

    Args:
        columns: a, one or more numeric columns.

    Example:
        >>> from gppvae import Linear
        >>> from gppvae.data.table import Table
        >>> kernel, table = Linear("x"), Table({"x": [0.0, 1.0, 2.0]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).detach().numpy().round(2).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.6, 1.2], [0.0, 1.2, 2.4]]
    """

    def __init__(self, *columns: str) -> None:
        super().__init__(*columns)
        self.scale: Tensor
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    @property
    def rank(self) -> int:
        return len(self.columns_read)

    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        values = table.numeric(self.columns_read)
        if not len(values):
            return
        with np.errstate(over="ignore"):
            by_column = np.sqrt(np.square(values).mean(axis=0))  # (d,)
        self.check_scale("root mean square", by_column)
        rms = float(np.sqrt(np.square(by_column).mean()))
        self.scale = torch.tensor(rms if rms > 0 else 1.0, dtype=torch.float64)

    def factor(self, values: Tensor) -> Tensor:
        return values / self.scale


class InducingLeaf(NumericLeaf):
    """Base of kernels given by their covariance function: implement `covariance(a, b)`.

    Features come from inducing points u, with K_uu + jitter I = L_u L_u':

        v(w) = L_u^-1 k(u, w)

    v'v equals k at the inducing points. Elsewhere v carries less than k(w, w), and the difference is the residual
    (FITC). The inducing points are the distinct training values while these are few, else 64 k-means centres, doubled
    while they carry too little of the variance and the cost allows it.
    Source: Snelson and Ghahramani 2006; docs/math.md. Cost O(R^3 + D R^2).

    `covariance` gets (A, d) and (B, d) float64 and gives k, (A, B). Implement `variance(values)`, k(w, w), as well if
    it has a closed form.

    Args:
        columns: w, numeric columns; together they are one vector per row.
        max_inducing: R, the largest number of inducing points; chosen from the training table when None.
        jitter: added to the diagonal of K_uu; the variance it takes from the features is in the residual.

    Attributes:
        inducing: u, (R, d).
        shown_values: some of the training values, in ascending order, for reports, (S, d).

    Example:
        >>> import torch
        >>> from gppvae import InducingLeaf
        >>> from gppvae.data.table import Table
        >>> class Brownian(InducingLeaf):
        ...     def covariance(self, a, b):
        ...         return torch.minimum(a, b.T)
        >>> kernel, table = Brownian("t"), Table({"t": [1.0, 3.0]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).tolist()
        [[1.0, 1.0], [1.0, 3.0]]
    """

    def __init__(self, *columns: str, max_inducing: int | None = None, jitter: float = 1e-8) -> None:
        super().__init__(*columns)
        name = type(self).__name__
        if max_inducing is not None:
            check_range(name, "max_inducing", max_inducing, 1, MAX_INDUCING, 64)
        check_range(name, "jitter", jitter, *JITTERS, 1e-8)
        self.max_inducing = None if max_inducing is None else int(max_inducing)
        self.chooses_rank, self.jitter = max_inducing is None, float(jitter)
        self.inducing: Tensor
        self.shown_values: Tensor
        self.register_buffer("inducing", torch.zeros(0, len(columns), dtype=torch.float64))
        self.register_buffer("shown_values", torch.zeros(0, len(columns), dtype=torch.float64))

    @abstractmethod
    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        """k(a, b) at values, (A, d), (B, d) -> (A, B)."""

    @property
    def rank(self) -> int:
        return self.inducing.shape[0]

    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        values = table.numeric(self.columns_read)
        distinct, _ = distinct_rows(values)
        self.choose_inducing(values, distinct)
        picked = np.linspace(0, len(distinct) - 1, min(len(distinct), N_SHOWN)).astype(int)
        self.shown_values = torch.from_numpy(distinct[picked])
        self._check_covariance()

    def choose_inducing(self, values: np.ndarray, distinct: np.ndarray) -> None:
        """Set `inducing` and `complete` from the training values (N, d) and the distinct ones (D, d)."""
        n = FEW_FEATURES if self.max_inducing is None else self.max_inducing
        self._place(n, values, distinct)
        before = math.inf
        while self.max_inducing is None and not self.complete and 2 * n <= self.most_features:
            missing = 1.0 - self.share_carried(torch.from_numpy(distinct))  # residual over prior variance
            if missing <= MISSING or (missing <= ROUGH and before < GAIN * missing):
                break
            n, before = 2 * n, missing
            self._place(n, values, distinct)

    def _place(self, n: int, values: np.ndarray, distinct: np.ndarray) -> None:
        """Set n inducing points, or all distinct values if there are at most n."""
        self.complete = len(distinct) <= n
        self.inducing = torch.from_numpy(distinct if self.complete else self._centres(n, values, distinct))

    @torch.no_grad()
    def share_carried(self, values: Tensor) -> float:
        """sum |v|^2 / sum k(w, w): share of the prior variance that the features carry, over some of these values."""
        step = max(1, len(values) // TESTED)
        some = values[::step].to(self.inducing.device)
        return float(self.factor(some).square().sum() / self.variance(some).sum())

    def choose_inducing_again(self, table: Table) -> None:
        """Set `inducing` and `complete` again, for hyper-parameters that have changed since the kernel was bound."""
        values = table.numeric(self.columns_read)
        self.choose_inducing(values, distinct_rows(values)[0])

    def factor(self, values: Tensor) -> Tensor:
        k_uu = self.covariance(self.inducing, self.inducing)  # (R, R)
        # Distinct training values usually are the inducing points: then K_uu is also k(u, w).
        k_uw = k_uu if torch.equal(values, self.inducing) else self.covariance(self.inducing, values)  # (R, D)
        eye = torch.eye(self.rank, dtype=k_uu.dtype, device=k_uu.device)
        try:
            L_u = torch.linalg.cholesky(k_uu + self.jitter * eye)
        except torch.linalg.LinAlgError:
            raise torch.linalg.LinAlgError(
                f"the covariance of {self.text()} at its {self.rank} inducing points must be positive definite, "
                f"got one that is not with jitter={self.jitter:g}; use a larger jitter or fewer inducing points"
            ) from None
        return torch.linalg.solve_triangular(L_u, k_uw, upper=False).T  # (D, R)

    def variance(self, values: Tensor) -> Tensor:
        # Diagonals of small blocks, since the whole D x D covariance may not fit into memory.
        blocks = [self.covariance(part, part).diagonal() for part in values.split(DIAGONAL_CHUNK)]
        return torch.cat(blocks)

    def in_words(self, learned: dict[str, str]) -> list[str]:
        return [*super().in_words(learned), f"{self.rank} {self.features_come_from}"]

    @property
    def features_come_from(self) -> str:
        """The name of what gives one feature each."""
        return "inducing points"

    def describe_features(self) -> str:
        """How the features are made, in a few words."""
        where = "its distinct values" if self.complete else "k-means centres"
        return f"{self.rank} inducing points at {where}, jitter {self.jitter:g}{self.describe_carried()}"

    def describe_carried(self) -> str:
        """Share of the variance that the features carry at the training values; nothing if that is all of it."""
        if self.complete or not len(self.shown_values):
            return ""
        return f", carrying {self.share_carried(self.shown_values):.1%} of the variance where it starts"

    def extra_state(self) -> dict[str, object]:
        return {"complete": self.complete}

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        super().restore(extra, tensors)
        complete, size, most = extra["complete"], len(self.inducing), self.max_inducing or AUTO_FEATURES
        if not isinstance(complete, bool) or size > most:
            raise ValueError(f"{self.text()} must have at most {most} inducing points, got {size}")
        self.complete = complete

    def _centres(self, n: int, values: np.ndarray, distinct: np.ndarray) -> np.ndarray:
        spread = self.spread(values)  # distances in standard deviations, whatever the units of the columns, (d,)
        step = max(1, len(distinct) // MAX_CLUSTERED)
        start = "++" if n <= CAREFUL else "points"  # the cost of k-means++ is quadratic in n
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty cluster only means one point fewer
            centres, _ = kmeans2(distinct[::step] / spread, n, minit=start, seed=0)  # (n, d)
        return np.unique(centres * spread, axis=0)

    def _check_covariance(self) -> None:
        """Raise ValueError unless `covariance` gives a float64 matrix of shape (A, B); for users' classes."""
        a, b = self.shown_values[:3], self.shown_values[:2]
        with torch.no_grad():
            k = self.covariance(a, b)
        if tuple(k.shape) != (len(a), len(b)) or k.dtype != torch.float64:
            raise ValueError(
                f"{type(self).__name__}.covariance must give a float64 matrix of shape {(len(a), len(b))} for values "
                f"of shapes {tuple(a.shape)} and {tuple(b.shape)}, got {str(k.dtype).removeprefix('torch.')} of "
                f"{tuple(k.shape)}; see docs/extending/kernel.md"
            )
