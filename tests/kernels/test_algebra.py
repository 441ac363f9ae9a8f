"""Gram matrices, features and residuals of every kernel and of random expressions, against their definitions."""

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
    V = kernel.features(rows).dense()
    assert V.shape == (len(rows), kernel.rank) and V.dtype == torch.float64
    K = kernel.gram(rows, rows).detach()
    torch.testing.assert_close(V @ V.T, K, rtol=JITTER_TOLERANCE, atol=JITTER_TOLERANCE * K.abs().max().item())
    for a in (rows, new):
        residual = kernel.residual(a)
        carried = kernel.features(a).dense().square().sum(1)
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
def test_every_split_gives_the_same_features_up_to_order(tree: Expression) -> None:
    kernel, rows, _ = prepared(tree)
    V = kernel.features(rows).dense()
    for split in rows.columns:
        features = kernel.features(rows, split)
        W = features.dense()
        assert features.rank == W.shape[1] == kernel.rank
        torch.testing.assert_close(W @ W.T, V @ V.T)
        # Not only the same Gram: the same columns, in some order.
        weights = torch.linspace(1.0, 2.0, len(rows), dtype=torch.float64)
        torch.testing.assert_close((weights @ W).sort().values, (weights @ V).sort().values)


@given(expressions(), st.permutations(range(len(columns()["time"]))))
def test_permuted_rows_permute_features(tree: Expression, order: list[int]) -> None:
    kernel, rows, _ = prepared(tree)
    index = torch.tensor(order)
    shuffled = kernel.code(Table(columns()).take(np.array(order)))
    V = kernel.features(rows).dense()[index]
    torch.testing.assert_close(kernel.features(rows[index]).dense(), V)
    torch.testing.assert_close(kernel.features(shuffled).dense(), V)
    torch.testing.assert_close(kernel.residual(shuffled), kernel.residual(rows)[index], atol=1e-9, rtol=1e-9)


@given(expressions())
def test_a_slice_has_the_features_of_its_rows(tree: Expression) -> None:
    """A slice shorter than the number of distinct values takes another path through the leaves."""
    kernel, rows, _ = prepared(tree)
    V = kernel.features(rows).dense()
    for split in (None, *rows.columns):
        torch.testing.assert_close(
            kernel.features(rows[:2], split).dense(), kernel.features(rows, split).dense()[:2], rtol=1e-9, atol=1e-12
        )
    torch.testing.assert_close(kernel.features(rows[:1]).dense(), V[:1], rtol=1e-9, atol=1e-12)


def test_rank_counts_columns() -> None:
    kernel = bound(Learned("person", 3) * FreeForm("pose") + 2.0 * Categorical("person") + Linear("time", "place"))
    assert kernel.rank == 3 * 3 + 4 + 2
    assert bound(Periodic("angle", 360)).rank == len(np.unique(columns()["angle"]))


def test_residual_of_an_unseen_value_is_the_conditional_variance() -> None:
    """One anchor at 0: k(w, w) - k(w, 0)^2 = 1 - exp(-w^2 / l^2)."""
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


def test_features_survive_coinciding_anchors() -> None:
    """0 and 360 degrees are one view to the kernel: the anchors' covariance is singular but for its nugget."""
    kernel = Periodic("angle", 360)
    table = Table({"angle": [0.0, 360.0, 90.0]})
    kernel.bind(table)
    V = kernel.features(kernel.code(table)).dense().detach()
    np.testing.assert_allclose((V @ V.T)[0].numpy(), kernel.gram(*[kernel.code(table)] * 2)[0].detach(), atol=1e-7)


def test_many_distinct_values_share_anchors() -> None:
    rng = np.random.default_rng(0)
    table = Table({"time": rng.normal(size=300)})
    kernel = Matern("time", nu=1.5, max_anchors=20)
    kernel.bind(table)
    assert kernel.rank == 20 and not kernel.carries_training_variance
    assert (Matern("time") + kernel).carries_training_variance is False
    rows = kernel.code(table)
    assert 0.0 < kernel.residual(rows).max().item() < 0.2
    V = kernel.features(rows).dense()
    assert (V @ V.T - kernel.gram(rows, rows)).abs().max().item() < 0.2
    anchors = kernel.anchors.numpy()
    assert anchors.min() > table["time"].min() and anchors.max() < table["time"].max()


def test_anchors_are_the_distinct_values_while_few() -> None:
    kernel = bound(RBF("time"))
    np.testing.assert_array_equal(kernel.anchors[:, 0].numpy(), np.unique(columns()["time"]))


def test_best_split_picks_the_cheap_column() -> None:
    """1000 rows, 50 persons of 4 features, 5 views: a Gram of x costs 1000 * 4^2, of v 1000 * 20^2."""
    rng = np.random.default_rng(0)
    table = Table({"person": rng.integers(0, 50, 1000), "view": rng.integers(0, 5, 1000)})
    for kernel in (Learned("person", 4) * FreeForm("view"), FreeForm("view") * Learned("person", 4)):
        kernel.bind(table)
        assert kernel.best_split(kernel.code(table)) == "view (id)"
    alone = Linear("view")
    alone.bind(table)
    assert alone.best_split(alone.code(table)) is None


def test_gram_refuses_large_tables() -> None:
    kernel = bound(Linear("time"))
    rows = kernel.code(Table({"time": np.zeros(5000)}))
    with pytest.raises(ValueError, match=r"at most 4096 rows, got 5000; use features\(\)"):
        kernel.gram(rows, rows)


def test_what_splitting_costs_decides() -> None:
    """60,000 rows, 4 features of 100 objects: times 2 of 40 times, and times 6 of 6 views."""
    time, view = np.tile(np.arange(40) / 40.0, 1500), np.tile(np.arange(6), 10_000)
    table = Table({"object": np.arange(60_000) // 600, "time": time, "squared": time**2, "view": view})
    series = Learned("object", 4) * Linear("time", "squared")
    views = Learned("object", 4) * FreeForm("view")
    for kernel in (series, views):
        kernel.bind(table)
    assert series.best_split(series.code(table), rows_at_once=1000) is None  # 40 * 4^2 > 8^2 for every row
    rows = views.code(table)
    assert views.best_split(rows, rows_at_once=1000) == "view (id)"  # 7 * 4^2 < 24^2 for every row
    assert views.best_split(rows, rows_at_once=4) == "view (id)"
    assert views.best_split(rows, rows_at_once=4, sums_between=1) is None  # and 6 * 24^2 for every four rows
    assert views.best_split(rows, rows_at_once=1000, sums_between=4) is None  # gradients of tables every 1000 rows
    assert views.best_split(rows, rows_at_once=8000, sums_between=4) == "view (id)"


def test_held_features_are_made_once_and_pass_their_gradient_on() -> None:
    table = Table({"who": ["a", "b", "a", "b"], "when": [0.0, 1.0, 1.0, 0.0]})
    kernel = 2.0 * Learned("who", 2) * RBF("when", lengthscale=0.7)
    kernel.bind(table, torch.Generator().manual_seed(0))
    rows = kernel.code(table)
    made = []
    leaf = kernel.leaves()[1]
    plain = leaf.factor
    leaf.factor = lambda values: made.append(len(values)) or plain(values)  # type: ignore[method-assign]

    def use() -> None:
        for batch in (rows[:2], rows[2:], rows):
            kernel.features(batch).dense().sin().sum().backward()

    use()
    wanted = {name: p.grad.clone() for name, p in kernel.named_parameters() if p.grad is not None}
    assert len(made) == 3 and len(wanted) >= 3
    kernel.zero_grad()
    with kernel.held():
        use()
    assert len(made) == 4
    for name, gradient in wanted.items():
        torch.testing.assert_close(dict(kernel.named_parameters())[name].grad, gradient, rtol=1e-12, atol=1e-14)
    use()
    assert len(made) == 7  # outside again
