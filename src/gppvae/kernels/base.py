"""Kernels as feature maps: the interface, and what +, * and a number in front do to it.

Every kernel here is k(a, b) = v(a)'v(b) + residual, with v of finite rank. A sum joins the columns of v, a
product is the row-wise outer product, so any expression of leaves is a sum of terms, each a product of
leaves times positive scales. All algebra is written once, over those terms.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gppvae.data.table import Column, Rows, Table
from gppvae.kernels.features import SMALL_PRODUCT, Features, rowwise_outer

MAX_DENSE_ROWS = 4096
PULLED_TABLES = 8  # small products that gradients of tables take as long as


@dataclass(frozen=True)
class Term:
    """One product of leaves, with the scales in front of it."""

    scales: tuple[Scale, ...]
    leaves: tuple[Leaf, ...]

    def amplitude(self) -> Tensor | float:
        """Product of the scales, the factor in front of the product of the leaves' covariances."""
        return math.prod((scale.value for scale in self.scales), start=1.0)

    @property
    def rank(self) -> int:
        return math.prod(leaf.rank for leaf in self.leaves)


class Kernel(nn.Module):
    """A covariance function over named columns of a table.

    Life of a kernel: write it, `bind` it to the training table (levels and anchors are fixed there), turn
    tables into `Rows` with `code`, then ask for features, gram or residual as often as you like.
    """

    def terms(self) -> list[Term]:
        """The kernel multiplied out into a sum of products of leaves."""
        return self._terms

    @functools.cached_property
    def _terms(self) -> list[Term]:
        return self._expand()

    def _expand(self) -> list[Term]:
        raise NotImplementedError

    def text(self) -> str:
        """The expression that `parse_kernel` reads back."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.text()

    def leaves(self) -> list[Leaf]:
        """All leaves, each once."""
        return self._leaves

    @functools.cached_property
    def _leaves(self) -> list[Leaf]:
        return list(dict.fromkeys(leaf for term in self.terms() for leaf in term.leaves))

    def columns(self) -> list[str]:
        """Names of the columns the kernel reads, in order of appearance."""
        return list(dict.fromkeys(name for leaf in self.leaves() for name in leaf.columns_read))

    def bind(self, table: Table, generator: torch.Generator | None = None) -> None:
        """Fix levels and anchors from the training table and create the parameters that depend on them."""
        readers: dict[str, Leaf] = {}
        for leaf in self.leaves():
            other = readers.setdefault(leaf.key, leaf)
            if other.columns_read != leaf.columns_read:
                raise ValueError(
                    f"the columns {other.columns_read} and {leaf.columns_read} cannot be told apart as {leaf.key!r}; "
                    "rename one of them"
                )
            leaf.bind_leaf(table, generator)

    def code(self, table: Table) -> Rows:
        """Turn a table into coded rows; unknown ids and non-numeric values are errors that name them."""
        columns: dict[str, Column] = {}
        for leaf in self.leaves():
            if leaf.key not in columns:
                columns[leaf.key] = leaf.code_leaf(table)
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        return Rows(columns, len(table)).to(device)

    @property
    def rank(self) -> int:
        """H, the number of features."""
        return sum(term.rank for term in self.terms())

    @property
    def carries_training_variance(self) -> bool:
        """Whether features of training rows carry the whole prior variance, so that no residual is left."""
        return all(leaf.complete for leaf in self.leaves())

    def features(self, rows: Rows, split: str | None = None) -> Features:
        """Features of rows; `split` names the coded column whose factors are kept apart as tables.

        Cost O(N H) when densified, O(N M) as returned.
        """
        xs = []
        for term in self.terms():
            parts = [leaf.row_factor(rows) for leaf in term.leaves if leaf.key != split]
            if split is None and term.scales:
                parts[0] = parts[0] * term.amplitude() ** 0.5
            xs.append(functools.reduce(rowwise_outer, parts or [_ones(len(rows), rows)]))
        if split is None:
            group, tables = torch.zeros(len(rows), dtype=torch.int64, device=rows.device), []
        else:
            group, tables = rows.columns[split].index, self.tables(rows, split)
        return Features(xs[0] if len(xs) == 1 else torch.cat(xs, dim=1), group, tables, [x.shape[1] for x in xs])

    def tables(self, rows: Rows, split: str) -> list[Tensor]:
        """Per term the features of the distinct values of the column that is kept apart, with the scales."""
        tables = []
        for term in self.terms():
            apart = [leaf.table_factor(rows) for leaf in term.leaves if leaf.key == split]
            table = functools.reduce(rowwise_outer, apart or [_ones(len(rows.columns[split].values), rows)])
            tables.append(table * term.amplitude() ** 0.5 if term.scales else table)
        return tables

    def widths(self, split: str) -> list[int]:
        """Per term the number of features that do not come from the column that is kept apart."""
        return [math.prod(leaf.rank for leaf in term.leaves if leaf.key != split) for term in self.terms()]

    @contextlib.contextmanager
    def held(self, slow_only: bool = False) -> Iterator[None]:
        """Nothing that the kernel reads changes inside, so features of distinct values are made once.

        Gradients that reach them wait, and go on to the parameters together at the end.

        Args:
            slow_only: leave out leaves that only look features up; rows need few of them.
        """
        held = [leaf for leaf in self.leaves() if leaf.slow or not slow_only]
        for leaf in held:
            leaf.holds = True
        try:
            yield
            for leaf in held:
                leaf.pass_on()
        finally:
            for leaf in held:
                leaf.holds, leaf.kept = False, None

    def best_split(self, rows: Rows, rows_at_once: int | None = None, sums_between: int | None = None) -> str | None:
        """The coded column that makes the Gram matrix cheapest, or None when splitting does not pay.

        Cost of the Gram matrix of N rows: N H^2 dense; when a column of Q levels is split off N M^2, and Q H^2 each
        time that the sums are widened. It also means Q small products per sum, or one that is Q times as large, and
        some more where every sum has gradients of tables.

        Args:
            rows: all of them.  rows_at_once: how many are summed at a time; all when None.
            sums_between: how many such sums later they are widened again, and the prior steps after each; None when
                it steps once, after all of them.
        """
        n, best, best_cost = len(rows), None, float(len(rows)) * self.rank**2
        sums = -(-n // (rows_at_once or n))
        widened = sums / (sums_between or sums)
        stepping = sums * PULLED_TABLES * SMALL_PRODUCT if sums_between else 0.0
        for key, column in rows.columns.items():
            q = column.values.shape[0]
            m = sum(self.widths(key))
            products = sums * min(SMALL_PRODUCT, n / sums * m**2)
            cost = float(n) * m**2 + q * (widened * self.rank**2 + products) + stepping
            if cost < best_cost and q * m**2 <= 2**26:
                best, best_cost = key, cost
        return best

    def diag(self, rows: Rows) -> Tensor:
        """k(a_n, a_n), (N,)."""
        return self._sum_over_terms(lambda leaf: leaf.row_variance(rows))

    def residual(self, rows: Rows) -> Tensor:
        """Prior variance that the features do not carry, (N,) and never negative."""
        carried = self._sum_over_terms(lambda leaf: leaf.row_factor(rows).square().sum(1))
        return (self.diag(rows) - carried).clamp_min(0.0)

    def gram(self, a: Rows, b: Rows) -> Tensor:
        """Dense covariance, (N_a, N_b), for tests and small tables only."""
        if max(len(a), len(b)) > MAX_DENSE_ROWS:
            raise ValueError(f"expected at most {MAX_DENSE_ROWS} rows, got {max(len(a), len(b))}; use features()")
        parts = []
        for term in self.terms():
            coded = [(leaf, a.columns[leaf.key], b.columns[leaf.key]) for leaf in term.leaves]
            blocks = [leaf.covariance(ca.values, cb.values)[ca.index][:, cb.index] for leaf, ca, cb in coded]
            parts.append(functools.reduce(torch.mul, blocks) * term.amplitude())
        return functools.reduce(torch.add, parts)

    def neg_log_prior(self) -> Tensor:
        """Minus log prior of the kernel's own parameters, up to a constant: N(0, I) for learned features."""
        parts = [part for leaf in self.leaves() if (part := leaf.neg_log_prior_leaf()) is not None]
        return functools.reduce(torch.add, parts) if parts else torch.zeros((), dtype=torch.float64)

    def _sum_over_terms(self, of_leaf: Callable[[Leaf], Tensor]) -> Tensor:
        parts = [
            functools.reduce(torch.mul, (of_leaf(leaf) for leaf in term.leaves)) * term.amplitude()
            for term in self.terms()
        ]
        return functools.reduce(torch.add, parts)

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scale(self, float(other)) if isinstance(other, (int, float)) else NotImplemented

    def __rmul__(self, other: float) -> Kernel:
        return Scale(self, float(other)) if isinstance(other, (int, float)) else NotImplemented


class Leaf(Kernel):
    """A kernel that reads columns itself. `values` are the distinct coded values of those columns."""

    columns_read: tuple[str, ...] = ()
    complete: bool = True
    slow: bool = False  # whether features of distinct values cost more than looking them up
    holds: bool = False  # inside Kernel.held()
    kept: tuple[Tensor, Tensor, Tensor] | None = None  # values, their features, and what stands for these

    def _expand(self) -> list[Term]:
        return [Term((), (self,))]

    @property
    def key(self) -> str:
        """Name of the coded column this leaf looks up in `Rows`."""
        raise NotImplementedError

    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        raise NotImplementedError

    def code_leaf(self, table: Table) -> Column:
        raise NotImplementedError

    def factor(self, values: Tensor) -> Tensor:
        """Features of distinct values, (D, R)."""
        raise NotImplementedError

    def variance(self, values: Tensor) -> Tensor:
        """Prior variance at distinct values, (D,); the squared features where they carry it all."""
        return self.factor(values).square().sum(1)

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        """Dense covariance of distinct values, (D_a, D_b)."""
        return self.factor(a) @ self.factor(b).T

    def neg_log_prior_leaf(self) -> Tensor | None:
        """Of this leaf's own parameters; None when they have no prior."""
        return None

    def extra_state(self) -> dict[str, object]:
        """What `bind` fixed and the parameters do not hold (levels), as JSON values."""
        return {}

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        """Create the parameters as `bind` did, from saved levels and the shapes of saved tensors."""
        raise NotImplementedError

    def row_factor(self, rows: Rows) -> Tensor:
        """Features of rows, (N, R): on the distinct values when they are fewer than the rows, or known already."""
        column = rows.columns[self.key]
        known = self.kept is not None and self.kept[0] is column.values
        if known or column.values.shape[0] <= column.index.shape[0]:
            return self._factor_once(column.values).index_select(0, column.index)
        return self.factor(column.values[column.index])

    def table_factor(self, rows: Rows) -> Tensor:
        """Features of the distinct values, (D, R)."""
        return self._factor_once(rows.columns[self.key].values)

    def _factor_once(self, values: Tensor) -> Tensor:
        if not self.holds:
            return self.factor(values)
        if self.kept is None:
            with torch.enable_grad():
                made = self.factor(values)
            self.kept = values, made, made.detach().requires_grad_(made.requires_grad)
        known, _, stands = self.kept
        return stands if known is values else self.factor(values)

    def pass_on(self) -> None:
        """Back-propagate what has reached the features that were kept."""
        if self.kept is not None and self.kept[2].grad is not None:
            self.kept[1].backward(self.kept[2].grad)

    def row_variance(self, rows: Rows) -> Tensor:
        column = rows.columns[self.key]
        return self.variance(column.values)[column.index]


class Constant(Leaf):
    """k = 1 for every pair: a shared offset. Write `0.5 * Constant()` for another starting size."""

    @property
    def key(self) -> str:
        return "(constant)"

    @property
    def rank(self) -> int:
        return 1

    def text(self) -> str:
        return "Constant()"

    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        return None

    def code_leaf(self, table: Table) -> Column:
        return Column(torch.zeros(len(table), dtype=torch.int64), torch.zeros(1, dtype=torch.int64))

    def factor(self, values: Tensor) -> Tensor:
        return torch.ones(values.shape[0], 1, dtype=torch.float64, device=values.device)

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        return None


class Sum(Kernel):
    """k = k_left + k_right; features side by side."""

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left, self.right = left, right

    def _expand(self) -> list[Term]:
        return self.left.terms() + self.right.terms()

    def text(self) -> str:
        return f"{self.left.text()} + {_grouped(self.right, Sum)}"


class Product(Kernel):
    """k = k_left k_right; features are row-wise outer products."""

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left, self.right = left, right

    def _expand(self) -> list[Term]:
        return [Term(a.scales + b.scales, a.leaves + b.leaves) for a in self.left.terms() for b in self.right.terms()]

    def text(self) -> str:
        return f"{_grouped(self.left, Sum)} * {_grouped(self.right, Sum, Product, Scale)}"


class Scale(Kernel):
    """A learned positive amplitude in front of a kernel, `2.0 * kernel`."""

    def __init__(self, kernel: Kernel, value: float = 1.0) -> None:
        super().__init__()
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"the number in front of a kernel must be positive, got {value}; use for example 1.0")
        self.kernel = kernel
        self.initial = value
        self.log_value = nn.Parameter(torch.tensor(value, dtype=torch.float64).log())

    @property
    def value(self) -> Tensor:
        return self.log_value.exp()

    def _expand(self) -> list[Term]:
        return [Term((self, *term.scales), term.leaves) for term in self.kernel.terms()]

    def text(self) -> str:
        return f"{self.initial!r} * {_grouped(self.kernel, Sum, Product, Scale)}"


def _ones(n: int, rows: Rows) -> Tensor:
    return torch.ones(n, 1, dtype=torch.float64, device=rows.device)


def _grouped(kernel: Kernel, *kinds: type[Kernel]) -> str:
    return f"({kernel.text()})" if isinstance(kernel, kinds) else kernel.text()
