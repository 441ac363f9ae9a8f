"""Every kernel beside its definition, and random expressions of them beside theirs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch

import oracles
from gppvae.data.table import Table
from gppvae.kernels import RBF, Categorical, Constant, FreeForm, Kernel, Learned, Linear, Matern, Periodic
from gppvae.kernels import RationalQuadratic as RQ
from gppvae.kernels.ids import IdLeaf
from oracles import Array, Covariance, Row

N_ROWS = 14
JITTER_TOLERANCE = 2e-7  # a jitter of 1e-8 at the inducing points, over products and sums of a few leaves


def columns(n: int = N_ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """A table with few distinct values per column, so that ids and numbers repeat."""
    rng = np.random.default_rng(seed)
    return {
        "person": rng.choice(["ann", "bob", "cem", "dua"], n),
        "pose": rng.integers(0, 3, n),
        "angle": rng.choice([0.0, 22.5, 90.0, 157.5, 300.0], n),
        "time": np.round(rng.normal(size=n), 1),
        "place": np.round(rng.uniform(-2, 3, n), 1),
    }


def new_columns(n: int = 9, seed: int = 1) -> dict[str, np.ndarray]:
    """Rows with known ids and numbers that no training row has."""
    table = columns(n, seed)
    return table | {"angle": table["angle"] + 11.3, "time": table["time"] * 1.7 + 0.03, "place": table["place"] - 0.57}


def dict_rows(table: dict[str, np.ndarray]) -> list[Row]:
    """The rows as the oracles read them: ids as text."""
    n = len(next(iter(table.values())))
    ids = ("person", "pose")
    return [{c: str(v[i]) if c in ids else float(v[i]) for c, v in table.items()} for i in range(n)]


@dataclass(frozen=True)
class Case:
    """How to write a kernel, and its definition given the bound kernel and the training rows."""

    make: Callable[[], Kernel]
    definition: Callable[[Any, list[Row]], Covariance]


def by_level(leaf: IdLeaf, values: torch.Tensor) -> dict[str, Array]:
    return dict(zip(leaf.levels, values.detach().numpy(), strict=True))


def _start(rows: list[Row], names: tuple[str, ...]) -> list[float]:
    """The spread of each column, where its length scale starts when none is given."""
    return [float(np.std([row[c] for row in rows])) for c in names]


ALL_KERNELS: dict[str, Case] = {
    "RBF": Case(lambda: RBF("time", lengthscale=0.8), lambda k, t: oracles.rbf(("time",), 0.8)),
    "RBF of two columns": Case(
        lambda: RBF("time", "place"),
        lambda k, t: oracles.rbf(("time", "place"), _start(t, ("time", "place"))),
    ),
    "Matern 0.5": Case(
        lambda: Matern("time", nu=0.5, lengthscale=1.2), lambda k, t: oracles.matern(("time",), 0.5, 1.2)
    ),
    "Matern 1.5": Case(
        lambda: Matern("place", nu=1.5), lambda k, t: oracles.matern(("place",), 1.5, _start(t, ("place",)))
    ),
    "Matern 2.5": Case(
        lambda: Matern("time", "place", lengthscale=0.7), lambda k, t: oracles.matern(("time", "place"), 2.5, 0.7)
    ),
    "RationalQuadratic of two columns": Case(
        lambda: RQ("time", "place"),
        lambda k, t: oracles.rational_quadratic(("time", "place"), 1.0, _start(t, ("time", "place"))),
    ),
    "RationalQuadratic": Case(
        lambda: RQ("place", alpha=0.6, lengthscale=0.9), lambda k, t: oracles.rational_quadratic(("place",), 0.6, 0.9)
    ),
    "Periodic": Case(
        lambda: Periodic("angle", period=360, lengthscale=0.9), lambda k, t: oracles.periodic("angle", 360.0, 0.9)
    ),
    "Linear": Case(lambda: Linear("place"), lambda k, t: oracles.linear(("place",), t)),
    "Linear of two columns": Case(lambda: Linear("time", "place"), lambda k, t: oracles.linear(("time", "place"), t)),
    "Learned": Case(lambda: Learned("person", 3), lambda k, t: oracles.learned("person", by_level(k, k.x))),
    "Learned, normalised": Case(
        lambda: Learned("pose", 2, normalize=True),
        lambda k, t: oracles.learned("pose", by_level(k, k.x), normalize=True),
    ),
    "FreeForm": Case(
        lambda: FreeForm("pose"), lambda k, t: oracles.free_form("pose", k.levels, k.raw.detach().numpy())
    ),
    "Categorical": Case(lambda: Categorical("person"), lambda k, t: oracles.categorical("person")),
    "Constant": Case(Constant, lambda k, t: oracles.constant()),
}

Expression = tuple[Any, ...]


def expressions() -> st.SearchStrategy[Expression]:
    """Trees of ("leaf", name), ("+", a, b), ("*", a, b) and ("scale", value, a), at most five leaves deep in *."""
    leaves = st.sampled_from(sorted(ALL_KERNELS)).map(lambda name: ("leaf", name))
    value = st.floats(0.1, 4.0).map(lambda v: round(v, 3))

    def grow(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        return st.one_of(
            st.tuples(st.just("+"), inner, inner),
            st.tuples(st.just("*"), inner, inner),
            st.tuples(st.just("scale"), value, inner),
        )

    return st.recursive(leaves, grow, max_leaves=3)


def write(tree: Expression) -> Kernel:
    if tree[0] == "leaf":
        return ALL_KERNELS[tree[1]].make()
    if tree[0] == "scale":
        return tree[1] * write(tree[2])
    left, right = write(tree[1]), write(tree[2])
    return left + right if tree[0] == "+" else left * right


def define(tree: Expression, kernel: Any, training: list[Row]) -> Covariance:
    """The definition of a written and bound kernel, read off the same tree."""
    if tree[0] == "leaf":
        return ALL_KERNELS[tree[1]].definition(kernel, training)
    if tree[0] == "scale":
        return oracles.scaled(tree[1], define(tree[2], kernel.kernel, training))
    left, right = define(tree[1], kernel.left, training), define(tree[2], kernel.right, training)
    return oracles.added(left, right) if tree[0] == "+" else oracles.multiplied(left, right)


def bound(kernel: Kernel, table: dict[str, np.ndarray] | None = None, seed: int = 0) -> Kernel:
    """The kernel bound to a table, its learned parts away from their regular start."""
    kernel.bind(Table(columns() if table is None else table), torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for leaf in kernel.leaves():
            if isinstance(leaf, (FreeForm, Learned)):
                for parameter in leaf.parameters():
                    parameter.add_(0.4 * torch.randn(parameter.shape, dtype=torch.float64))
    return kernel
