"""Kernels over thousands of places and long series: predictions of known latents beside a dense Gaussian process."""

import numpy as np
import pytest
import torch

from gppvae.data.table import Table
from gppvae.kernels import parse_kernel
from gppvae.prior.latent_prior import LatentPrior
from oracles import Array

NOISE = 0.05


def predicted(text: str, columns: dict[str, Array], n: int, z: Array) -> tuple[Array, LatentPrior]:
    """Means at all rows after the first n, given latents at those."""
    prior = LatentPrior([(parse_kernel(text), z.shape[1])], NOISE)
    table = Table({name: values[:n] for name, values in columns.items()})
    prior.bind(table)
    with torch.no_grad():
        q = prior.posterior(prior.statistics(prior.code(table), torch.from_numpy(z)))
        new = prior.code(Table({name: values[n:] for name, values in columns.items()}))
        return prior.at(new, q).mean.numpy(), prior


def dense(K: Array, n: int, z: Array) -> Array:
    return K[n:, :n] @ np.linalg.solve(K[:n, :n] + NOISE * np.eye(n), z)


@pytest.fixture(scope="module")
def field() -> tuple[dict[str, Array], int, Array, Array, Array]:
    """A field with a length scale of a twentieth of the map at 3,000 places; truth and dense answer at 300 more."""
    rng = np.random.default_rng(0)
    n, places = 3000, rng.uniform(size=(3300, 2))
    squares = np.square(places).sum(1)
    K = np.exp(-0.5 * (squares[:, None] + squares - 2.0 * places @ places.T) / 0.05**2)
    f = np.linalg.cholesky(K + 1e-6 * np.eye(len(K))) @ rng.normal(size=(len(K), 1))
    z = f[:n] + NOISE**0.5 * rng.normal(size=(n, 1))
    return {"x": places[:, 0], "y": places[:, 1]}, n, z, f[n:], dense(K, n, z)


def test_a_field_of_3000_places_is_predicted_as_by_a_dense_process(
    field: tuple[dict[str, Array], int, Array, Array, Array],
) -> None:
    columns, n, z, truth, exact = field
    found, prior = predicted("RBF(x, y, lengthscale=0.05, fixed=True)", columns, n, z)
    error, least = np.square(found - truth).mean(), np.square(exact - truth).mean()
    assert error < 1.1 * least
    leaf = prior.leaves()[0]
    assert 256 < leaf.rank <= 1024 and "carrying 9" in leaf.describe_features().replace("100.0", "99")


def test_few_points_carry_little_and_say_so(field: tuple[dict[str, Array], int, Array, Array, Array]) -> None:
    columns, n, z, truth, exact = field
    found, prior = predicted("RBF(x, y, lengthscale=0.05, fixed=True, max_inducing=64)", columns, n, z)
    assert np.square(found - truth).mean() > 3.0 * np.square(exact - truth).mean()
    leaf = prior.leaves()[0]
    assert leaf.share_carried(leaf.shown_values) < 0.7


def test_points_are_few_where_few_carry_all_or_many_would_cost_too_much() -> None:
    rng = np.random.default_rng(0)
    table = Table({"x": rng.uniform(size=500), "y": rng.uniform(size=500), "id": np.arange(500) % 20})

    def rank(text: str) -> int:
        kernel = parse_kernel(text)
        kernel.bind(table, torch.Generator().manual_seed(0))
        return max(leaf.rank for leaf in kernel.leaves() if leaf.columns_read == ("x", "y"))

    assert rank("RBF(x, y, lengthscale=1.0, fixed=True)") == 64
    assert rank("RBF(x, y, lengthscale=0.06, fixed=True)") > 128
    assert rank("RBF(x, y, lengthscale=0.06, fixed=True) * Learned(id, 8)") == 128  # 1024 features in all
    assert rank("RBF(x, y, lengthscale=0.06, fixed=True) * Categorical(id)") == 64  # as many again for every id


def test_hours_with_a_daily_round_and_a_trend() -> None:
    """Sixty days of hours with a gap of five, against the dense process with the same kernel."""
    rng = np.random.default_rng(1)
    hour = np.arange(24.0 * 60)
    gap = (hour > 500) & (hour < 620)
    hour = np.concatenate([hour[~gap], hour[gap]])
    n, apart = int((~gap).sum()), hour[:, None] - hour
    daily = np.exp(-2.0 * np.sin(np.pi * apart / 24.0) ** 2 / 0.5)
    trend = np.exp(-0.5 * (apart / 120.0) ** 2)
    K = daily + trend
    f = np.linalg.cholesky(K + 1e-6 * np.eye(len(K))) @ rng.normal(size=(len(K), 2))
    z = f[:n] + NOISE**0.5 * rng.normal(size=(n, 2))
    text = "Periodic(hour, 24, lengthscale=0.5, fixed=True) + RBF(hour, lengthscale=120, fixed=True)"
    found, prior = predicted(text, {"hour": hour}, n, z)
    exact = dense(K, n, z)
    assert np.square(found - f[n:]).mean() < 1.05 * np.square(exact - f[n:]).mean()
    assert np.abs(found - exact).max() < 0.2
    assert prior.groups[0].rank < 128  # 24 hours of a day, and a series over sixty days
