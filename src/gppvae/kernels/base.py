"""Kernels as feature maps: the interface, and what +, * and a number in front do to it.

Every kernel is approximated by H features, k(a, b) = v(a)'v(b), plus a residual on the diagonal (FITC):

    k_1 + k_2:   v = [v_1, v_2]         features side by side
    k_1 k_2:     v = v_1 (x) v_2        row-wise outer products
    s k_1:       v = sqrt(s) v_1

So any expression multiplies out into a sum of terms, each a product of leaves times positive scales, and all algebra is
written once, over terms.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gppvae.data.table import Column, Rows, Table
from gppvae.data.words import shown
from gppvae.kernels.arguments import read_arguments, write_call
from gppvae.kernels.not_applicable import fill_switched_off, rows_that_apply

MAX_DENSE_ROWS = 4096
MAX_PARTS = 100  # leaves and scales in one expression; also keeps recursion over the expression shallow
MAX_TERMS = 256  # products of leaves after multiplying out
FEW_FEATURES = 64  # of a leaf; up to this number the cost is negligible
AUTO_FEATURES = 1024  # of a term, at most, where a leaf chooses its own rank
MAX_SHOWN = 4  # largest size of a parameter that summaries show
AMPLITUDES = (1e-12, 1e12)  # beyond these, sums of squared features lose all digits of float64


@dataclass(frozen=True)
class Term:
    """One product of leaves with its scales, s_1 ... s_j k_1 ... k_i."""

    scales: tuple[Scale, ...]
    leaves: tuple[Leaf, ...]

    def amplitude(self) -> Tensor | float:
        """Product of the scales: the variance in front of the product of the leaves."""
        return math.prod((scale.value for scale in self.scales), start=1.0)

    @property
    def rank(self) -> int:
        """Number of features, the product of the leaves' ranks."""
        return math.prod(leaf.rank for leaf in self.leaves)


class Kernel(nn.Module, ABC):
    """A covariance function over named columns of a table.

    Use: write the expression; `bind` it to the training table, which fixes levels and inducing points; turn tables into
    `Rows` with `code`; then evaluate `features`, `diag`, `residual` or `gram` at rows.

    Example:
        >>> from gppvae import RBF, Categorical
        >>> kernel = RBF("age") + 0.5 * Categorical("sex") * RBF("age")
        >>> kernel.columns(), len(kernel.terms())
        (['age', 'sex'], 2)
    """

    n_parts: int = 1  # leaves and scales in the expression
    n_terms: int = 1  # len(terms()), known without multiplying out

    @abstractmethod
    def terms(self) -> list[Term]:
        """The kernel multiplied out into a sum of products of leaves."""

    @abstractmethod
    def text(self) -> str:
        """The expression that `parse_kernel` reads back."""

    def __repr__(self) -> str:
        return self.text()

    def leaves(self) -> list[Leaf]:
        """All leaves, each once."""
        return list(dict.fromkeys(leaf for term in self.terms() for leaf in term.leaves))

    def placed_terms(self) -> list[tuple[Term, slice]]:
        """The terms, each with its columns of `features`."""
        terms = self.terms()
        ends = itertools.accumulate(term.rank for term in terms)
        return [(term, slice(end - term.rank, end)) for term, end in zip(terms, ends, strict=True)]

    def columns(self) -> list[str]:
        """Names of the columns the kernel reads, in order of appearance."""
        return list(dict.fromkeys(name for leaf in self.leaves() for name in leaf.columns_read))

    def bind(self, table: Table, generator: torch.Generator | None = None) -> None:
        """Fix levels and inducing points from the training table; create the parameters that depend on them."""
        check_keys(self.leaves())
        for leaf in sorted(self.leaves(), key=lambda leaf: leaf.chooses_rank):  # open ranks last, given the others
            leaf.most_features = self._room_for(leaf)
            known = rows_that_apply(leaf, self.terms(), table)
            leaf.bind_leaf(known, generator)
            leaf.check_features(known)
        fill_switched_off(self.terms(), table)  # raises where a missing number matters

    def code(self, table: Table) -> Rows:
        """Turn a table into coded rows; unknown ids and non-numeric values are errors that name them.

        Numbers may be missing where every term that reads them is 0 (not_applicable.py).
        """
        table = fill_switched_off(self.terms(), table)
        columns: dict[str, Column] = {}
        for leaf in self.leaves():
            if leaf.key not in columns:
                columns[leaf.key] = leaf.code_leaf(table)
        return Rows(columns, len(table)).to(self.device)

    @property
    def device(self) -> torch.device:
        """Where parameters and buffers live."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    @property
    def rank(self) -> int:
        """H, the number of features."""
        return sum(term.rank for term in self.terms())

    @property
    def carries_training_variance(self) -> bool:
        """Whether the features of training rows carry the whole prior variance, so that no residual is left."""
        return all(leaf.complete for leaf in self.leaves())

    def features(self, rows: Rows) -> Tensor:
        """V, (N, H), with V V' equal to the covariance up to the residual on its diagonal. Cost O(N H)."""
        factors = {leaf: leaf.row_factor(rows) for leaf in self.leaves()}
        blocks = []
        for term in self.terms():
            first, *others = (factors[leaf] for leaf in term.leaves)
            if term.scales:
                first = first * term.amplitude() ** 0.5  # before the outer products: R_1 columns instead of H
            blocks.append(functools.reduce(rowwise_outer, others, first))  # (N, R_1 R_2 ...)
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)

    def diag(self, rows: Rows) -> Tensor:
        """k(a_n, a_n), (N,)."""
        return self._sum_over_terms({leaf: leaf.row_variance(rows) for leaf in self.leaves()})

    def residual(self, rows: Rows) -> Tensor:
        """r_n = k(a_n, a_n) - |v(a_n)|^2: prior variance that the features do not carry, (N,), never negative."""
        carried = {leaf: leaf.row_carried(rows) for leaf in self.leaves()}
        return (self.diag(rows) - self._sum_over_terms(carried)).clamp_min(0.0)

    def gram(self, a: Rows, b: Rows) -> Tensor:
        """k(a_n, b_m) as a dense matrix, (N_a, N_b), for tests and small tables only."""
        if max(len(a), len(b)) > MAX_DENSE_ROWS:
            raise ValueError(f"expected at most {MAX_DENSE_ROWS} rows, got {max(len(a), len(b))}; use features()")
        blocks = {}
        for leaf in self.leaves():
            left, right = a.columns[leaf.key], b.columns[leaf.key]
            blocks[leaf] = leaf.covariance(left.values, right.values)[left.index][:, right.index]  # (N_a, N_b)
        return self._sum_over_terms(blocks)

    def neg_log_prior(self) -> Tensor:
        """Negative log prior of the kernel's parameters, up to a constant: N(0, I) for learned vectors."""
        parts = [part for leaf in self.leaves() if (part := leaf.neg_log_prior_leaf()) is not None]
        return functools.reduce(torch.add, parts) if parts else torch.zeros((), dtype=torch.float64)

    def _room_for(self, leaf: Leaf) -> int:
        """The largest rank that a leaf may choose: AUTO_FEATURES per term, over the ranks of the other leaves."""
        room = AUTO_FEATURES
        for term in self.terms():
            if leaf in term.leaves:
                others = [other for other in term.leaves if other is not leaf]
                if any(other.independent for other in others):  # every id has this number of features
                    return FEW_FEATURES
                room = min(room, AUTO_FEATURES // max(1, math.prod(max(1, other.rank) for other in others)))
        return max(room, FEW_FEATURES)

    def _sum_over_terms(self, of_leaf: Mapping[Leaf, Tensor]) -> Tensor:
        """sum over terms of amplitude times the product over the term's leaves, elementwise."""
        parts = [
            functools.reduce(torch.mul, (of_leaf[leaf] for leaf in term.leaves)) * term.amplitude()
            for term in self.terms()
        ]
        return functools.reduce(torch.add, parts)

    def _set_size(self, n_parts: int, n_terms: int) -> None:
        if n_parts > MAX_PARTS:
            raise ValueError(
                f"a kernel may have at most {MAX_PARTS} parts (kernels and numbers in front), got {n_parts}; "
                "leave some out or read several columns with one kernel"
            )
        if n_terms > MAX_TERMS:
            raise ValueError(
                f"a kernel may have at most {MAX_TERMS} terms after multiplying out, got {n_terms}; "
                "multiply fewer sums with each other"
            )
        self.n_parts, self.n_terms = n_parts, n_terms

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        return Product(self, other) if isinstance(other, Kernel) else self.__rmul__(other)

    def __rmul__(self, other: Any) -> Kernel:
        number = isinstance(other, Real) and not isinstance(other, bool)
        return Scale(self, other) if number else NotImplemented


class Leaf(Kernel):
    """A kernel over columns of the table, k(a, b) = v(a)'v(b) + residual: a factor of a term.

    Everything is computed at the distinct values of its columns, `values`: (D, d) numbers or (D,) codes of ids; rows
    look it up. A kernel of your own derives from NumericLeaf, InducingLeaf or IdLeaf (docs/extending/kernel.md).

    Attributes:
        columns_read: names of the columns.
        complete: whether the features carry the whole variance at training rows, so that their residual is 0.
        reads_numbers: whether its columns are numbers, which may be missing where a term is switched off.
        independent: whether ids are independent: k = 1 for equal ids and 0 otherwise.
        chooses_rank: whether its rank is chosen from the training table, up to `most_features`.
        arguments: the arguments of the constructor, by name.
    """

    columns_read: tuple[str, ...] = ()
    complete: bool = True
    reads_numbers: bool = False
    independent: bool = False
    chooses_rank: bool = False
    most_features: int = FEW_FEATURES
    arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Leaf:
        # In __new__, so that arguments of a user's own class are checked and stored without code of theirs.
        leaf: Leaf = super().__new__(cls)
        leaf.__dict__["arguments"] = read_arguments(cls, args, kwargs)
        return leaf

    def terms(self) -> list[Term]:
        return [Term((), (self,))]

    def text(self) -> str:
        return write_call(type(self), self.arguments)

    @property
    @abstractmethod
    def rank(self) -> int:
        """R, the number of features of this leaf."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Name of the leaf's coded column in `Rows`; leaves that read the same values share it."""

    @abstractmethod
    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        """Fix levels, inducing points and whatever else depends on the training table."""

    @abstractmethod
    def code_leaf(self, table: Table) -> Column:
        """The distinct values of the columns, and which of them each row holds."""

    @abstractmethod
    def factor(self, values: Tensor) -> Tensor:
        """v at distinct values, (D, R)."""

    def variance(self, values: Tensor) -> Tensor:
        """k(a, a) at distinct values, (D,); by default |v(a)|^2, without a residual."""
        return self.factor(values).square().sum(1)

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        """k(a, b) at distinct values, (D_a, D_b)."""
        return self.factor(a) @ self.factor(b).T

    def row_factor(self, rows: Rows) -> Tensor:
        """v at rows, (N, R)."""
        return self._at_rows(self.factor, rows)

    def table_factor(self, rows: Rows) -> Tensor:
        """v at all distinct values of the coded column, (D, R)."""
        return self.factor(rows.columns[self.key].values)

    def row_variance(self, rows: Rows) -> Tensor:
        """k(a_n, a_n), (N,)."""
        return self._at_rows(self.variance, rows)

    def row_carried(self, rows: Rows) -> Tensor:
        """|v(a_n)|^2, the variance that the features carry, (N,)."""
        return self.row_factor(rows).square().sum(1)

    def _at_rows(self, of_values: Callable[[Tensor], Tensor], rows: Rows) -> Tensor:
        column = rows.columns[self.key]
        if column.values.shape[0] <= column.index.shape[0]:
            return of_values(column.values).index_select(0, column.index)  # (D, ...) -> (N, ...)
        return of_values(column.by_row)  # N < D: a short slice of a column with many values

    def neg_log_prior_leaf(self) -> Tensor | None:
        """Negative log prior of this leaf's parameters; None without one."""
        return None

    def extra_state(self) -> dict[str, object]:
        """State that `bind` fixed and that is in no parameter or buffer (levels, for example), as JSON values."""
        return {}

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        """Prepare a new leaf for load_state_dict: every parameter and buffer gets its saved shape.

        Args:
            extra: the saved `extra_state`.  tensors: the saved state of this leaf.
        """
        modules = dict(self.named_modules())
        for name, saved in tensors.items():
            path, _, own = name.rpartition(".")
            owner = modules.get(path)
            if owner is None or (own not in owner._parameters and own not in owner._buffers):
                raise ValueError(
                    f"{type(self).__name__} must have the saved tensor {name!r}, got none of that name; "
                    "create parameters and buffers in __init__, with no rows if their size is not known yet"
                )
            now = getattr(owner, own)
            if now is not None and not _may_become(now, saved, own in owner._buffers):
                raise ValueError(
                    f"{name} of {type(self).__name__} must be {now.dtype} of shape {tuple(now.shape)}, got "
                    f"{saved.dtype} of {tuple(saved.shape)}; only sizes of 0 may differ"
                )
            if now is None or now.shape != saved.shape:
                empty = torch.zeros_like(saved)
                learns = now is None or now.requires_grad
                setattr(owner, own, nn.Parameter(empty, learns) if own in owner._parameters else empty)

    def learned_numbers(self) -> dict[str, Tensor]:
        """Learned values that summaries show, by name: by default the small parameters, under their attribute names."""
        return {name: value for name, value in self.named_parameters() if value.numel() <= MAX_SHOWN}

    def in_words(self, learned: dict[str, str]) -> list[str]:
        """A description of the fitted leaf, in a few words.

        Args:
            learned: the entries of `learned_numbers` as text.
        """
        return [f"{name} {numbers}" for name, numbers in learned.items()]

    def check_features(self, table: Table) -> None:
        """Raise ValueError unless `factor` gives finite float64 features of shape (D, rank); for users' classes."""
        if len(table) == 0:
            return
        first = table.take(np.arange(min(len(table), 3)))
        try:
            with torch.no_grad():
                v = self.row_factor(self.code(first))
        except torch.linalg.LinAlgError as error:  # its message has the advice
            raise ValueError(str(error)) from None
        expected = (len(first), self.rank)
        if tuple(v.shape) != expected or v.dtype != torch.float64:
            raise ValueError(
                f"{type(self).__name__}.factor must give float64 features of shape {expected} (values, rank), "
                f"got {str(v.dtype).removeprefix('torch.')} of {tuple(v.shape)}; see docs/extending/kernel.md"
            )
        if not v.isfinite().all():
            raise ValueError(
                f"{self.text()} must have finite features, got NaN or infinity at the first rows of "
                f"{', '.join(self.columns_read)}; rescale the column or choose another kernel"
            )


class Sum(Kernel):
    """The sum of two kernels: a function of each, independent of the other.

    k(a, b) = k_left(a, b) + k_right(a, b),   v = [v_left, v_right]
    """

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self._set_size(left.n_parts + right.n_parts, left.n_terms + right.n_terms)
        self.left, self.right = left, right

    def terms(self) -> list[Term]:
        return self.left.terms() + self.right.terms()

    def text(self) -> str:
        return f"{self.left.text()} + {_grouped(self.right, Sum)}"


class Product(Kernel):
    """The product of two kernels: rows covary only where they do under both factors.

    k(a, b) = k_left(a, b) k_right(a, b),   v = v_left (x) v_right
    """

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self._set_size(left.n_parts + right.n_parts, left.n_terms * right.n_terms)
        self.left, self.right = left, right

    def terms(self) -> list[Term]:
        pairs = itertools.product(self.left.terms(), self.right.terms())
        return [Term(a.scales + b.scales, a.leaves + b.leaves) for a, b in pairs]

    def text(self) -> str:
        return f"{_grouped(self.left, Sum)} * {_grouped(self.right, Sum, Product, Scale)}"


class Scale(Kernel):
    """A learned positive amplitude s in front of a kernel, `2.0 * kernel`.

        k(a, b) = s k_inner(a, b),   v = sqrt(s) v_inner

    Args:
        kernel: k_inner.
        value: initial s.
    """

    def __init__(self, kernel: Kernel, value: float = 1.0) -> None:
        super().__init__()
        self._set_size(kernel.n_parts + 1, kernel.n_terms)
        low, high = AMPLITUDES
        if not low <= value <= high:
            raise ValueError(
                f"the number in front of a kernel must be between {low:g} and {high:g}, got {shown(value)}; "
                "use for example 1.0"
            )
        self.kernel = kernel
        self.initial = float(value)
        self.log_value = nn.Parameter(torch.tensor(self.initial, dtype=torch.float64).log())

    @property
    def value(self) -> Tensor:
        """s, ()."""
        return self.log_value.exp()

    def learned_numbers(self) -> dict[str, Tensor]:
        """As of a leaf."""
        return {"s": self.value}

    def in_words(self, learned: dict[str, str]) -> list[str]:
        """As of a leaf."""
        return [learned["s"]]

    def terms(self) -> list[Term]:
        return [Term((self, *term.scales), term.leaves) for term in self.kernel.terms()]

    def text(self) -> str:
        return f"{self.initial!r} * {_grouped(self.kernel, Sum, Product, Scale)}"


def check_keys(leaves: Iterable[Leaf]) -> None:
    """Raise ValueError unless leaves that share a coded column read the same columns."""
    readers: dict[str, Leaf] = {}
    for leaf in leaves:
        other = readers.setdefault(leaf.key, leaf)
        if other.columns_read != leaf.columns_read:
            raise ValueError(
                f"the columns {other.columns_read} and {leaf.columns_read} must have different keys, got {leaf.key!r}; "
                "rename one of them"
            )


def with_amplitudes(kernel: Kernel) -> Kernel:
    """The kernel with a learned amplitude in front of every summand of a sum that has none.

    Amplitudes are the prior variances of the terms relative to each other. A single term needs none: the decoder
    absorbs any scale.
    """
    if isinstance(kernel, Sum):
        return Sum(_amplified(kernel.left), _amplified(kernel.right))
    return kernel


def _amplified(kernel: Kernel) -> Kernel:
    if isinstance(kernel, Sum):
        return with_amplitudes(kernel)
    return kernel if _has_scale(kernel) else Scale(kernel, 1.0)


def _has_scale(kernel: Kernel) -> bool:
    if isinstance(kernel, Product):
        return _has_scale(kernel.left) or _has_scale(kernel.right)
    return isinstance(kernel, Scale)


def _may_become(now: Tensor, saved: Tensor, any_rows: bool) -> bool:
    """Whether a leaf's tensor can be the saved one: sizes that depend on the table are 0 in a new leaf.

    Args:
        any_rows: whether the first size may differ, as with the number of inducing points.
    """
    sizes = list(zip(now.shape, saved.shape, strict=False))[1 if any_rows else 0 :]
    return now.dtype == saved.dtype and now.ndim == saved.ndim and all(a in (0, b) for a, b in sizes)


def rowwise_outer(left: Tensor, right: Tensor) -> Tensor:
    """Row n is left_n (x) right_n: (N, A), (N, B) -> (N, A*B)."""
    if right.shape[1] == 1:
        return left * right
    return (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1)  # (N, A, 1) (N, 1, B) -> (N, A*B)


def _grouped(kernel: Kernel, *kinds: type[Kernel]) -> str:
    return f"({kernel.text()})" if isinstance(kernel, kinds) else kernel.text()
