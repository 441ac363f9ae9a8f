"""Sums and products per group against loops over rows, spread out and in the order of the groups."""

import numpy as np
import pytest
import torch
from gppvae.kernels.features import Features
from gppvae.prior.groups import GroupedRows
from gppvae.prior.per_group import PerGroup, widen
from torch import Tensor

from gppvae.prior import groups
from prior.problems import split_features, tensor

Q, M = 4, 3


@pytest.fixture(params=["spread out", "in order", "one group"])
def features(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Features:
    if request.param == "in order":
        monkeypatch.setattr(groups, "SMALL_PRODUCT", 0)
    found = split_features(9)
    return Features(found.x, torch.zeros_like(found.group), [], [M]) if request.param == "one group" else found


def matrices(features: Features, rng: np.random.Generator) -> Tensor:
    return tensor(rng.normal(size=(features.n_groups, M, 5)))


def test_sums_of_outer_products(features: Features, rng: np.random.Generator) -> None:
    right = tensor(rng.normal(size=(9, 5)))
    want = np.zeros((features.n_groups, M, 5))
    for x, q, r in zip(features.x, features.group, right, strict=True):
        want[int(q)] += np.outer(x, r)
    np.testing.assert_allclose(GroupedRows(features).outer(right).numpy(), want, atol=1e-12)


def test_rows_times_the_matrix_of_their_group(features: Features, rng: np.random.Generator) -> None:
    by_group = matrices(features, rng)
    want = [x @ by_group[int(q)] for x, q in zip(features.x, features.group, strict=True)]
    np.testing.assert_allclose(GroupedRows(features).times(by_group), torch.stack(want), atol=1e-12)


def test_the_matrix_of_a_group_times_other_rows(features: Features, rng: np.random.Generator) -> None:
    by_group, y = matrices(features, rng), tensor(rng.normal(size=(9, 5)))
    want = [by_group[int(q)] @ row for row, q in zip(y, features.group, strict=True)]
    np.testing.assert_allclose(GroupedRows(features).back(y, by_group), torch.stack(want), atol=1e-12)


def projections(features: Features) -> list[np.ndarray]:
    """P_q (H, M) with v = P_q x, from the features of unit vectors."""
    found = []
    for q in range(Q):
        group = torch.full((M,), q)
        found.append(
            Features(torch.eye(M, dtype=torch.float64), group, features.tables, features.sizes).dense().numpy().T
        )
    return found


def test_sums_over_all_features_are_those_of_the_groups(rng: np.random.Generator) -> None:
    features = split_features(9)
    A, B = rng.normal(size=(Q, M, 2, M)), rng.normal(size=(Q, M, 5))
    squares, tall = widen(tensor(A), tensor(B), features.tables, features.sizes)
    P = projections(features)
    for k in range(2):
        np.testing.assert_allclose(squares[k], sum(P[q] @ A[q, :, k] @ P[q].T for q in range(Q)), atol=1e-12)
    np.testing.assert_allclose(tall, sum(P[q] @ B[q] for q in range(Q)), atol=1e-12)


def test_matrices_as_groups_see_them(rng: np.random.Generator) -> None:
    features = split_features(9)
    widths = [table.shape[1] for table in features.tables]
    X = rng.normal(size=(2, 8, 8))
    X, Y = X + X.transpose(0, 2, 1), rng.normal(size=(8, 5))
    both = PerGroup(tensor(X), tensor(Y), features.sizes, widths)
    for tables in (features.tables, [2.0 * table for table in features.tables]):  # other tables are not taken for these
        P = projections(Features(features.x, features.group, tables, features.sizes))
        for q in range(Q):
            side_by_side = np.concatenate([P[q].T @ X[0] @ P[q], P[q].T @ X[1] @ P[q], P[q].T @ Y], axis=1)
            np.testing.assert_allclose(both.at(tables)[q], side_by_side, atol=1e-12)
            np.testing.assert_allclose(both.tall_at(tables)[q], P[q].T @ Y, atol=1e-12)
    assert both.at(tables) is both.at(tables)
    before = both.at(tables).clone()
    tables[0].mul_(3.0)  # in place: the same object, and yet another table
    assert (both.at(tables) - before).abs().max() > 0.1
