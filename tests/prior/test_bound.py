"""The bound that is a sum over rows: never below the exact term, and tight at the exact posterior."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gppvae.prior.latents import Latents
from gppvae.prior.lowrank import gp_nll
from gppvae.prior.posterior import DiagonalCovariance, SharedCovariance, WeightPosterior, condition
from prior.problems import ALPHAS, SIZES, Problem, problem, tensor


def latents_at(V: Tensor, weights: WeightPosterior, noise: Tensor) -> Latents:
    size = len(V), weights.mean.shape[1]
    return Latents(weights.mean_at(V), weights.var_at(V).expand(size), noise.reshape(-1, 1).expand(size))


def bound(p: Problem, weights: WeightPosterior, expected: bool) -> float:
    var = tensor(p.var) if expected else torch.zeros_like(tensor(p.var))
    rows = latents_at(tensor(p.V), weights, tensor(p.noise)).expected_nll(tensor(p.mean), var)
    assert rows.shape == (len(p.V),)
    return (rows.sum() + weights.kl()).item()


def exact(p: Problem, expected: bool) -> float:
    return gp_nll(p.assembled(expected)).item()


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
def test_rows_and_their_gradients(uneven: bool, diagonal: bool) -> None:
    """Every row, written as a loop over latents, and the gradient for every input."""
    p = problem(12, 8, 0.3, uneven=True)
    weights = random_weights(8, 3, 0.5, diagonal)
    noise = tensor(p.noise if uneven else p.noise[0])
    inputs = [part.requires_grad_() for part in (tensor(p.V), tensor(p.mean), tensor(p.var), noise)]
    V, mean, var, _ = inputs
    d, want = noise.expand(12), []
    for i, v in enumerate(V):
        value = torch.zeros((), dtype=torch.float64)
        for k in range(3):
            Sigma = torch.diag(weights.std[:, k] ** 2) if diagonal else weights.root @ weights.root.T
            spread = var[i, k] + v @ Sigma @ v
            density = torch.distributions.Normal(v @ weights.mean[:, k], d[i].sqrt()).log_prob(mean[i, k])
            value = value - density + 0.5 * spread / d[i]
        want.append(value)
    got = latents_at(V, weights, noise).expected_nll(mean, var)
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-10, atol=1e-10)
    found, expected = (torch.autograd.grad(rows.sum(), inputs) for rows in (got, torch.stack(want)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
