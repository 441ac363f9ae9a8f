"""q(B) given pseudo-observations and the gradients through it, against dense regression and autograd."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from gppvae.kernels.features import Features
from gppvae.prior.pseudo import Conditioned, condition_on_pseudo, posterior_at, pseudo_sums, pull_pseudo
from gppvae.prior.pseudo import split_pseudo_sums as split
from gppvae.prior.statistics import Statistics
from prior.problems import ALPHAS, SIZES, Problem, problem, tensor


def draw_gradients(p: Problem, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Of a loss with respect to f (n, L) and s (n, 1) at the rows."""
    return tensor(rng.normal(size=p.mean.shape)), tensor(rng.normal(size=(len(p.V), 1)))


def sums(p: Problem, g: Tensor, h: Tensor) -> tuple[Statistics, Statistics]:
    features = Features(tensor(p.V), torch.zeros(len(p.V), dtype=torch.int64), [], [p.V.shape[1]])
    return split(pseudo_sums(features, tensor(p.mean), tensor(p.noise), g, h))


def given(p: Problem, g: Tensor, h: Tensor) -> Conditioned:
    return condition_on_pseudo(*sums(p, g, h), [], [p.V.shape[1]])


@pytest.mark.parametrize("alpha", ALPHAS[1:])
@pytest.mark.parametrize("size", SIZES)
def test_posterior_at_rows_is_the_dense_one(size: str, alpha: float, rng: np.random.Generator) -> None:
    n, rank = SIZES[size]
    p = problem(n, rank, alpha, uneven=True)
    V_new = rng.normal(size=(8, rank))
    mean, cov = oracles.gp_posterior(p.K, V_new @ p.V.T, V_new @ V_new.T, p.mean)
    at = posterior_at(given(p, *draw_gradients(p, rng)), tensor(V_new))
    np.testing.assert_allclose(at.f.numpy(), mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(at.s[:, 0].numpy(), np.diag(cov), rtol=1e-7, atol=1e-8)


def dense_weights(V: Tensor, mean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """m (H, L), and C = Sigma^-1 (H, H)."""
    C = torch.eye(V.shape[1], dtype=torch.float64) + V.T @ (V / noise[:, None])
    return torch.linalg.solve(C, V.T @ (mean / noise[:, None])), C


def own_loss(V: Tensor, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor, own: float) -> Tensor:
    """g.f + h s at every row, in which of all observations that row alone moves q(B), `own` times."""
    value = torch.zeros((), dtype=torch.float64)
    for i in range(len(V)):
        moves = torch.zeros(len(V), 1, dtype=torch.float64)
        moves[i] = own
        W, mu = (part.detach() + moves * (part - part.detach()) for part in (V, mean))
        m, C = dense_weights(W, mu, noise.detach() + moves[:, 0] * (noise - noise.detach()))
        value = value + g[i] @ (V[i] @ m) + h[i, 0] * V[i] @ torch.linalg.solve(C, V[i])
    return value


def loss_through_all(V: Tensor, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor, late: bool) -> tuple[Tensor, Tensor]:
    """g.f + h s summed over rows that stay where they are, and KL(q(B)): the observations move q(B).

    Late, the noise moves the covariance of q(B), but not its mean.
    """
    m, C = dense_weights(V, mean, noise)
    m = dense_weights(V, mean, noise.detach())[0] if late else m
    at = V.detach()
    s = (at * torch.linalg.solve(C, at.T).T).sum(1, keepdim=True)
    kl = 0.5 * (m.square().sum() + m.shape[1] * (torch.linalg.inv(C).trace() - V.shape[1] + torch.logdet(C)))
    return (g * (at @ m)).sum() + (h * s).sum(), kl


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_rows(size: str, late: bool, rng: np.random.Generator) -> None:
    """Through f and s directly, through themselves, and a third of what all rows and the KL want of them."""
    p = problem(*SIZES[size], 0.3, uneven=True)
    g, h = draw_gradients(p, rng)
    rows = [tensor(part).requires_grad_() for part in (p.V, p.mean, p.noise)]
    of_all, kl = loss_through_all(*rows, g, h, late)
    value = own_loss(*rows, g, h, float(late)) + (of_all + kl) / 3
    want = torch.autograd.grad(value, rows)
    conditioned = dataclasses.replace(given(p, g, h), late=late)
    np.testing.assert_allclose(conditioned.kl.item(), kl.item(), rtol=1e-8)
    at = posterior_at(conditioned, tensor(p.V))
    got = pull_pseudo(conditioned, at, tensor(p.mean), tensor(p.noise), g, h, 3)
    for found, expected in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


def test_rows_that_are_known_stand_for_all(rng: np.random.Generator) -> None:
    p = problem(6, 3, 0.3)
    observed, asked = sums(p, *draw_gradients(p, rng))
    all_known = condition_on_pseudo(observed, asked, [], [3])
    half = Statistics(asked.outer / 2, asked.sums / 2, asked.n_latents)
    half_known = condition_on_pseudo(observed, half, [], [3])
    assert (all_known.late, half_known.late) == (False, True)
    torch.testing.assert_close(half_known.columns, all_known.columns)
