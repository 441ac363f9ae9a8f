"""Gram matrices, features and residuals of every kernel and of random expressions, against their definitions."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gppvae.data.table import Rows, Table
from gppvae.kernels import RBF, Categorical, FreeForm, Kernel, Learned, Linear, Matern, Periodic
from kernels.cases import (
    ALL_KERNELS,
    JITTER_TOLERANCE,
    Expression,
    bound,
    columns,
    define,
    dict_rows,
    expressions,
    new_columns,
    write,
)

EVERY_LEAF = [("leaf", name) for name in ALL_KERNELS]
leaf_by_leaf = pytest.mark.parametrize("tree", EVERY_LEAF, ids=lambda tree: tree[1])


def prepared(tree: Expression) -> tuple[Kernel, Rows, Rows]:
    """A bound kernel with its training rows and rows of new numbers."""
    kernel = bound(write(tree))
    return kernel, kernel.code(Table(columns())), kernel.code(Table(new_columns()))


def definition_gram(tree: Expression, kernel: Kernel, new: bool = False) -> oracles.Array:
    training = dict_rows(columns())
    a = dict_rows(new_columns()) if new else training
    return oracles.gram(define(tree, kernel, training), a, training)


def check_gram(tree: Expression) -> None:
    kernel, rows, new = prepared(tree)
    for a, is_new in ((rows, False), (new, True)):
        np.testing.assert_allclose(
            kernel.gram(a, rows).detach().numpy(), definition_gram(tree, kernel, is_new), rtol=1e-7, atol=1e-7
        )


def check_covariance(tree: Expression) -> None:
    kernel, rows, new = prepared(tree)
    for a in (rows, new):
        K = kernel.gram(a, a).detach().numpy()
        scale = max(1.0, float(np.abs(K).max()))
        np.testing.assert_allclose(K, K.T, atol=1e-12 * scale)
        assert np.linalg.eigvalsh(K).min() > -1e-6 * scale
        np.testing.assert_allclose(kernel.diag(a).detach().numpy(), np.diag(K), rtol=1e-9, atol=1e-9)


def check_features(tree: Expression) -> None:
    kernel, rows, new = prepared(tree)
    assert kernel.carries_training_variance
    V = kernel.features(rows)
    assert V.shape == (len(rows), kernel.rank) and V.dtype == torch.float64
    K = kernel.gram(rows, rows).detach()
    torch.testing.assert_close(V @ V.T, K, rtol=JITTER_TOLERANCE, atol=JITTER_TOLERANCE * K.abs().max().item())
    for a in (rows, new):
        residual = kernel.residual(a)
        carried = kernel.features(a).square().sum(1)
        assert (residual >= 0).all()
        torch.testing.assert_close(carried + residual, kernel.diag(a), rtol=1e-6, atol=1e-6)


@leaf_by_leaf
def test_leaf_gram_is_its_definition(tree: Expression) -> None:
    check_gram(tree)


@leaf_by_leaf
def test_leaf_is_a_covariance(tree: Expression) -> None:
    check_covariance(tree)


@leaf_by_leaf
def test_leaf_features_carry_the_gram(tree: Expression) -> None:
    check_features(tree)


@given(expressions())
def test_expression_gram_is_its_definition(tree: Expression) -> None:
    check_gram(tree)


@given(expressions())
def test_expression_is_a_covariance(tree: Expression) -> None:
    check_covariance(tree)


@given(expressions())
def test_expression_features_carry_the_gram(tree: Expression) -> None:
    check_features(tree)


@given(expressions())
def test_features_are_products_over_the_terms(tree: Expression) -> None:
    """Column by column: amplitude^1/2 times one feature of each leaf, in the order of nested loops."""
    kernel, rows, new = prepared(tree)
    for a in (rows, new):
        n = len(a)
        V = kernel.features(a).detach().numpy()
        wanted = []
        for term in kernel.terms():
            root = np.sqrt(np.prod([scale.log_value.exp().item() for scale in term.scales]))
            blocks = [leaf.row_factor(a).detach().numpy() for leaf in term.leaves]
            for pick in itertools.product(*(range(block.shape[1]) for block in blocks)):
                wanted.append([root * np.prod([w[i, j] for w, j in zip(blocks, pick, strict=True)]) for i in range(n)])
        np.testing.assert_allclose(V, np.array(wanted).T, rtol=1e-12, atol=1e-14)


@given(expressions())
def test_terms_add_up_to_the_kernel(tree: Expression) -> None:
    """What the prior builds on: amplitudes, ranks and the factors of distinct values of each coded column."""
    kernel, rows, _ = prepared(tree)
    assert len(kernel.terms()) == kernel.n_terms and sum(term.rank for term in kernel.terms()) == kernel.rank
    total = np.zeros((len(rows), len(rows)))
    for term in kernel.terms():
        part = np.full_like(total, float(torch.as_tensor(term.amplitude()).detach()))
        for leaf in term.leaves:
            table = leaf.table_factor(rows).detach().numpy()
            assert table.shape == (len(rows.columns[leaf.key].values), leaf.rank)
            index = rows.columns[leaf.key].index.numpy()
            part *= table[index] @ table[index].T
        total += part
    V = kernel.features(rows).detach().numpy()
    np.testing.assert_allclose(V @ V.T, total, rtol=1e-9, atol=1e-12)


@given(expressions(), st.permutations(range(len(columns()["time"]))))
def test_permuted_rows_permute_features(tree: Expression, order: list[int]) -> None:
    kernel, rows, _ = prepared(tree)
    index = torch.tensor(order)
    shuffled = kernel.code(Table(columns()).take(np.array(order)))
    V = kernel.features(rows)[index]
    torch.testing.assert_close(kernel.features(rows[index]), V)
    torch.testing.assert_close(kernel.features(shuffled), V)
    torch.testing.assert_close(kernel.residual(shuffled), kernel.residual(rows)[index], atol=1e-9, rtol=1e-9)


@given(expressions())
def test_a_slice_has_the_features_of_its_rows(tree: Expression) -> None:
    """A slice shorter than the number of distinct values takes another path through the leaves."""
    kernel, rows, _ = prepared(tree)
    V, diag = kernel.features(rows), kernel.diag(rows)
    for n in (1, 2):
        torch.testing.assert_close(kernel.features(rows[:n]), V[:n], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(kernel.diag(rows[:n]), diag[:n], rtol=1e-9, atol=1e-12)


def test_rank_counts_columns() -> None:
    kernel = bound(Learned("person", 3) * FreeForm("pose") + 2.0 * Categorical("person") + Linear("time", "place"))
    assert kernel.rank == 3 * 3 + 4 + 2
    assert bound(Periodic("angle", 360)).rank == len(np.unique(columns()["angle"]))


def test_residual_of_an_unseen_value_is_the_conditional_variance() -> None:
    """One inducing point at 0: k(w, w) - k(w, 0)^2 = 1 - exp(-w^2 / l^2)."""
    kernel = RBF("time", lengthscale=0.5)
    kernel.bind(Table({"time": [0.0, 0.0]}))
    w = np.array([0.0, 0.1, 0.7, 30.0])
    residual = kernel.residual(kernel.code(Table({"time": w})))
    np.testing.assert_allclose(residual.detach().numpy(), 1.0 - np.exp(-(w**2) / 0.25), atol=1e-7)


def test_periodic_is_equal_after_a_period_and_not_after_half() -> None:
    kernel = bound(Periodic("angle", 360, lengthscale=1.0))
    rows = kernel.code(Table({"angle": [0.0, 360.0, 180.0, 720.0]}))
    row = kernel.gram(rows, rows)[0].detach().numpy()
    np.testing.assert_allclose(row, [1.0, 1.0, np.exp(-2.0), 1.0], atol=1e-12)


def test_features_survive_coinciding_inducing_points() -> None:
    """0 and 360 degrees are one view to the kernel: without jitter their covariance is singular."""
    kernel = Periodic("angle", 360)
    table = Table({"angle": [0.0, 360.0, 90.0]})
    kernel.bind(table)
    V = kernel.features(kernel.code(table)).detach()
    np.testing.assert_allclose((V @ V.T)[0].numpy(), kernel.gram(*[kernel.code(table)] * 2)[0].detach(), atol=1e-7)


def test_many_distinct_values_share_inducing_points() -> None:
    rng = np.random.default_rng(0)
    table = Table({"time": rng.normal(size=300)})
    kernel = Matern("time", nu=1.5, max_inducing=20)
    kernel.bind(table)
    assert kernel.rank == 20 and not kernel.carries_training_variance
    assert (Matern("time") + kernel).carries_training_variance is False
    rows = kernel.code(table)
    assert 0.0 < kernel.residual(rows).max().item() < 0.2
    V = kernel.features(rows)
    assert (V @ V.T - kernel.gram(rows, rows)).abs().max().item() < 0.2
    inducing = kernel.inducing.numpy()
    assert inducing.min() > table["time"].min() and inducing.max() < table["time"].max()


def test_inducing_points_are_the_distinct_values_while_few() -> None:
    kernel = bound(RBF("time"))
    np.testing.assert_array_equal(kernel.inducing[:, 0].numpy(), np.unique(columns()["time"]))
    np.testing.assert_array_equal(kernel.shown_values, kernel.inducing)


def test_features_at_inducing_points_are_those_of_the_formula() -> None:
    """v(w) = L^-1 k(u, w) in NumPy, at the inducing points, among others, and alone."""
    kernel = bound(RBF("time", lengthscale=0.6, jitter=1e-3))
    u = kernel.inducing.numpy()
    k = lambda a, b: np.exp(-0.5 * ((a - b.T) / 0.6) ** 2)  # noqa: E731
    lower = np.linalg.cholesky(k(u, u) + 1e-3 * np.eye(len(u)))
    for w in (u, u + 0.05, u[:2], np.array([[0.123], [7.0]])):
        wanted = np.linalg.solve(lower, k(u, w)).T
        np.testing.assert_allclose(kernel.factor(torch.from_numpy(w)).detach().numpy(), wanted, rtol=1e-9, atol=1e-12)


def test_gram_refuses_large_tables() -> None:
    kernel = bound(Linear("time"))
    rows = kernel.code(Table({"time": np.zeros(5000)}))
    with pytest.raises(ValueError, match=r"at most 4096 rows, got 5000; use features\(\)"):
        kernel.gram(rows, rows)
