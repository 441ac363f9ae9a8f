"""q(B) given pseudo-observations and the gradients through it, against dense regression and autograd."""

import dataclasses

import numpy as np
import pytest
import torch
from gppvae.kernels.features import Features
from gppvae.prior.groups import GroupedRows
from gppvae.prior.pseudo import Conditioned, condition_on_pseudo, posterior_at, pseudo_sums, pull_pseudo
from gppvae.prior.pseudo import split_pseudo_sums as split
from torch import Tensor

import oracles
from gppvae.prior.statistics import Statistics
from prior.problems import ALPHAS, SIZES, Problem, problem, split_features, tensor


def draw_gradients(p: Problem, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Of a loss with respect to f (n, L) and s (n, 1) at the rows."""
    return tensor(rng.normal(size=p.mean.shape)), tensor(rng.normal(size=(len(p.V), 1)))


def dense_features(V: Tensor) -> Features:
    return Features(V, torch.zeros(len(V), dtype=torch.int64), [], [V.shape[1]])


def sums(p: Problem, g: Tensor, h: Tensor, features: Features | None = None) -> tuple[Statistics, Statistics]:
    rows = GroupedRows(features or dense_features(tensor(p.V)))
    with torch.no_grad():
        return split(pseudo_sums(rows, tensor(p.mean), tensor(p.noise), g, h))


def given(p: Problem, g: Tensor, h: Tensor) -> Conditioned:
    return condition_on_pseudo(*sums(p, g, h), [], [p.V.shape[1]])


@pytest.mark.parametrize("alpha", ALPHAS[1:])
@pytest.mark.parametrize("size", SIZES)
def test_posterior_at_rows_is_the_dense_one(size: str, alpha: float, rng: np.random.Generator) -> None:
    n, rank = SIZES[size]
    p = problem(n, rank, alpha, uneven=True)
    V_new = rng.normal(size=(8, rank))
    mean, cov = oracles.gp_posterior(p.K, V_new @ p.V.T, V_new @ V_new.T, p.mean)
    at = posterior_at(given(p, *draw_gradients(p, rng)), GroupedRows(dense_features(tensor(V_new))), [])
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
@pytest.mark.parametrize("size", [*SIZES, "in groups"])
def test_gradients_of_rows(size: str, late: bool, rng: np.random.Generator) -> None:
    """Through f and s directly, through themselves, and a third of what all rows and the KL want of them."""
    p = problem(*SIZES.get(size, (12, 8)), 0.3, uneven=True)
    start = split_features(12) if size == "in groups" else dense_features(tensor(p.V))
    g, h = draw_gradients(p, rng)
    x, mean, noise = (part.requires_grad_() for part in (start.x, tensor(p.mean), tensor(p.noise)))
    features = Features(x, start.group, start.tables, start.sizes)
    of_all, kl = loss_through_all(features.dense(), mean, noise, g, h, late)
    value = own_loss(features.dense(), mean, noise, g, h, float(late)) + (of_all + kl) / 3
    want = torch.autograd.grad(value, [x, mean, noise])
    conditioned = condition_on_pseudo(*sums(p, g, h, features), start.tables, start.sizes)
    conditioned = dataclasses.replace(conditioned, late=late)
    np.testing.assert_allclose(conditioned.kl.item(), kl.item(), rtol=1e-8)
    rows = GroupedRows(features)
    with torch.no_grad():
        at = posterior_at(conditioned, rows, start.tables)
        got = pull_pseudo(conditioned, at, rows, start.tables, mean, noise, g, h, 3)
    for found, expected in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


def test_gradients_of_tables(rng: np.random.Generator) -> None:
    """All rows move with them: f and s directly, and q(B)."""
    p, start = problem(12, 8, 0.3, uneven=True), split_features(12)
    g, h = draw_gradients(p, rng)
    tables = [table.requires_grad_() for table in start.tables]
    V = Features(start.x, start.group, tables, start.sizes).dense()
    m, C = dense_weights(V, tensor(p.mean), tensor(p.noise))
    s = (V * torch.linalg.solve(C, V.T).T).sum(1, keepdim=True)
    kl = 0.5 * (m.square().sum() + 3 * (torch.linalg.inv(C).trace() - 8 + torch.logdet(C)))
    want = torch.autograd.grad((g * (V @ m)).sum() + (h * s).sum() + kl, tables)
    observed, asked = sums(p, g, h, start)
    for known in (asked, Statistics(asked.outer / 4, asked.sums / 4, asked.n_latents)):
        got = condition_on_pseudo(observed, known, tables, start.sizes).by_tables
        for found, expected in zip(got, want, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_rows_that_are_known_stand_for_all(rng: np.random.Generator) -> None:
    p = problem(6, 3, 0.3)
    observed, asked = sums(p, *draw_gradients(p, rng))
    all_known = condition_on_pseudo(observed, asked, [], [3])
    half = Statistics(asked.outer / 2, asked.sums / 2, asked.n_latents)
    half_known = condition_on_pseudo(observed, half, [], [3])
    assert (all_known.late, half_known.late) == (False, True)
    torch.testing.assert_close(half_known.moments.at([]), all_known.moments.at([]))
