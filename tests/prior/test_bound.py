"""The bound that is a sum over rows: never below the exact term, and tight at the exact posterior."""

import numpy as np
import pytest
import torch
from gppvae.kernels.features import Features
from gppvae.prior.bound import Held, moments_at, pull_features, pull_latents, row_nll, sums_and_tables
from gppvae.prior.groups import GroupedRows
from hypothesis import given
from hypothesis import strategies as st

from gppvae.prior.lowrank import gp_nll
from gppvae.prior.posterior import DiagonalCovariance, SharedCovariance, WeightPosterior, condition
from prior.problems import ALPHAS, SIZES, Problem, problem, split_features, tensor


def bound(p: Problem, weights: WeightPosterior, expected: bool) -> float:
    var = tensor(p.var) if expected else torch.zeros_like(tensor(p.var))
    features = p.features()
    held = Held.of(weights, features.tables, features.sizes)
    at = moments_at(held, GroupedRows(features), features.tables)
    rows, _, _ = row_nll(at.f, at.s, tensor(p.mean), var, tensor(p.noise))
    assert rows.shape == (len(p.V),)
    return (rows.sum() + held.kl).item()


def exact(p: Problem, expected: bool) -> float:
    features = p.features()
    return gp_nll(p.statistics(expected), features.tables, features.sizes).item()


def random_weights(rank: int, seed: int, size: float, diagonal: bool) -> WeightPosterior:
    rng = np.random.default_rng(seed)
    mean = tensor(size * rng.normal(size=(rank, 3)))
    if diagonal:
        return DiagonalCovariance(mean, tensor(size * rng.uniform(0.1, 1.0, (rank, 3))))
    root = size * rng.normal(size=(rank, rank))
    return SharedCovariance(mean, tensor(root), tensor(np.linalg.slogdet(root @ root.T)[1]))


@given(st.sampled_from(list(SIZES)), st.sampled_from(ALPHAS), st.floats(0.01, 10.0), st.booleans(), st.integers(0, 999))
def test_never_below_the_exact_term(size: str, alpha: float, spread: float, diagonal: bool, seed: int) -> None:
    p = problem(*SIZES[size], alpha, uneven=True, seed=seed)
    weights = random_weights(SIZES[size][1], seed, spread, diagonal)
    assert bound(p, weights, expected=False) >= exact(p, expected=False) - 1e-9
    assert bound(p, weights, expected=True) >= exact(p, expected=True) - 1e-9


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_equal_at_the_exact_posterior(size: str, alpha: float) -> None:
    p = problem(*SIZES[size], alpha, uneven=True)
    rtol = 1e-9 if alpha > 1e-5 else 1e-6
    np.testing.assert_allclose(bound(p, condition(p.assembled()), expected=False), exact(p, expected=False), rtol=rtol)


@given(st.sampled_from(list(SIZES)), st.integers(0, 999))
def test_encoder_variances_cost_half_a_trace(size: str, seed: int) -> None:
    """q(Z) q(B) is one factor looser than q(Z) p(B | Z): by tr(C^-1 T) / 2 at the best q(B)."""
    p = problem(*SIZES[size], 0.3, uneven=True, seed=seed)
    C = np.eye(p.V.shape[1]) + p.V.T @ (p.V / p.noise[:, None])
    T = p.V.T @ (p.V * (p.var.sum(1) / p.noise**2)[:, None])
    gap = bound(p, condition(p.assembled()), expected=True) - exact(p, expected=True)
    np.testing.assert_allclose(gap, 0.5 * np.trace(np.linalg.solve(C, T)), rtol=1e-8)


def test_moving_away_from_the_posterior_costs() -> None:
    p = problem(*SIZES["H < N"], 0.3)
    best = condition(p.assembled())
    for shift, grow in ((0.1, 1.0), (0.0, 1.1), (0.0, 0.9)):
        logdet = best.logdet + 2 * best.root.shape[0] * np.log(grow)
        moved = SharedCovariance(best.mean + shift, best.root * grow, logdet)
        assert bound(p, moved, expected=True) > bound(p, best, expected=True) + 1e-3


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_gradient_of_rows(grouped: bool, uneven: bool, diagonal: bool) -> None:
    """A third of the bound, written as a loop over dense features, for every input that gets a gradient."""
    p = problem(12, 8, 0.3, uneven=True)
    start = split_features(12)
    if not grouped:
        start = Features(tensor(p.V), torch.zeros(12, dtype=torch.int64), [], [8])
    weights = random_weights(8, 3, 0.5, diagonal)
    noise = tensor(p.noise if uneven else p.noise[0])
    latents = [x.requires_grad_() for x in (tensor(p.mean), tensor(p.var), noise)]
    x, tables = start.x.requires_grad_(), [table.requires_grad_() for table in start.tables]
    features = Features(x, start.group, tables, start.sizes)
    mean, var, d = latents[0], latents[1], noise.expand(12)
    value = torch.zeros((), dtype=torch.float64)
    for i, v in enumerate(features.dense()):
        for k in range(3):
            Sigma = torch.diag(weights.std[:, k] ** 2) if diagonal else weights.root @ weights.root.T
            spread = var[i, k] + v @ Sigma @ v
            density = torch.distributions.Normal(v @ weights.mean[:, k], d[i].sqrt()).log_prob(mean[i, k])
            value = value - density + 0.5 * spread / d[i]
    want = torch.autograd.grad(value / 3, [x, *latents, *tables])
    held, rows = Held.of(weights, tables, start.sizes), GroupedRows(features)
    at = moments_at(held, rows, tables)
    of_rows, r, quad = row_nll(at.f, at.s, *latents)
    np.testing.assert_allclose(of_rows.sum().item(), value.item(), rtol=1e-10)
    by_x, by_noise = pull_features(held, at, rows, tables, r, quad, noise, 3)
    by_tables = sums_and_tables(held, rows, tables, mean, r, noise, 3)[1]
    got = [by_x, *pull_latents(r, noise, 1 / 3), by_noise, *by_tables]
    for found, expected in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
