"""Derivatives in closed form, against finite differences and autograd through the plain expressions."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from gppvae.prior.closed_form import ConditionedAtRows, GPTerm, PosteriorAtRows, PseudoPosterior, condition_on_pseudo
from prior.problems import ALPHAS, SIZES, Problem, problem, tensor

# -- the GP term


def plain_term(S: Tensor, R: Tensor, T: Tensor | None, sums: Tensor) -> Tensor:
    """The formula, with a Cholesky factor that autograd goes through."""
    (t, u, e, n), L = sums, R.shape[1]
    C = torch.eye(len(S), dtype=torch.float64) + S
    L_C = torch.linalg.cholesky(C)
    quad = t + u - torch.linalg.solve_triangular(L_C, R, upper=False).square().sum()
    if T is not None:
        quad = quad - torch.cholesky_solve(T, L_C).trace()
    return 0.5 * (quad + L * (e + torch.logdet(C)) + n * L * math.log(2.0 * math.pi))


def term_inputs(size: str, with_var: bool, alpha: float = 0.3) -> list[Tensor]:
    """V with S = V'V / alpha, R, sums, and T."""
    full, p = problem(*SIZES[size], alpha).assembled(expected=True), problem(*SIZES[size], alpha)
    parts = [tensor(p.V) / math.sqrt(alpha), full.R, full.sums] + ([full.T] if with_var else [])
    return [part.detach().clone().requires_grad_() for part in parts]


@pytest.mark.parametrize("with_var", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_gp_term_by_differences(size: str, with_var: bool) -> None:
    def term(V: Tensor, R: Tensor, sums: Tensor, T: Tensor | None = None) -> Tensor:
        return 1.7 * GPTerm.apply(V.T @ V, R, T, sums)

    assert torch.autograd.gradcheck(term, term_inputs(size, with_var), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.01, *ALPHAS[2:]])
@pytest.mark.parametrize("with_var", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_gp_term_is_the_plain_expression(size: str, with_var: bool, alpha: float) -> None:
    inputs = term_inputs(size, with_var, alpha)
    V, R, sums, T = inputs if with_var else [*inputs, None]
    values, found = [], []
    for of in (GPTerm.apply, plain_term):
        value = of(V.T @ V, R, T, sums)
        values.append(value.item())
        found.append(torch.autograd.grad(2.5 * value, inputs))
    subtracted = (sums[0] + sums[1]).item()  # t + u, of size 1 / alpha, of which little is left
    np.testing.assert_allclose(values[0], values[1], rtol=1e-12, atol=1e-12 * subtracted)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10 * max(1.0, other.abs().max().item()))


# -- posterior coding: q(B) given pseudo-observations


def dense_weights(V: Tensor, mean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """m (H, L), and C = Sigma^-1 (H, H)."""
    C = torch.eye(V.shape[1], dtype=torch.float64) + V.T @ (V / noise[:, None])
    return torch.linalg.solve(C, V.T @ (mean / noise[:, None])), C


def dense_kl(m: Tensor, C: Tensor) -> Tensor:
    """KL(N(m, C^-1) || N(0, I))."""
    return 0.5 * (m.square().sum() + m.shape[1] * (torch.linalg.inv(C).trace() - len(C) + torch.logdet(C)))


def variances(V: Tensor, C: Tensor) -> Tensor:
    """v'C^-1 v of every row, (n, 1)."""
    return (V * torch.linalg.solve(C, V.T).T).sum(1, keepdim=True)


def given(p: Problem, g: Tensor, h: Tensor, stale: bool = False) -> PseudoPosterior:
    """q(B) by loops over rows: sums of v v'/d and v mu'/d, of h v v' and v g'."""
    S, R, A, G = (torch.zeros(p.V.shape[1], width, dtype=torch.float64) for width in [p.V.shape[1], 3] * 2)
    for v, mean, d, g_n, h_n in zip(*map(tensor, (p.V, p.mean, p.noise)), g, h, strict=True):
        S += torch.outer(v, v) / d
        R += torch.outer(v, mean) / d
        A += h_n * torch.outer(v, v)
        G += torch.outer(v, g_n)
    return condition_on_pseudo(S, R, A, G, stale)


def draw_gradients(p: Problem, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Of a loss with respect to f (n, L) and s (n, 1) at the rows."""
    return tensor(rng.normal(size=p.mean.shape)), tensor(rng.normal(size=(len(p.V), 1)))


@pytest.mark.parametrize("alpha", ALPHAS[1:])
@pytest.mark.parametrize("size", SIZES)
def test_posterior_at_rows_is_the_dense_one(size: str, alpha: float, rng: np.random.Generator) -> None:
    n, rank = SIZES[size]
    p = problem(n, rank, alpha, uneven=True)
    V_new = rng.normal(size=(8, rank))
    mean, cov = oracles.gp_posterior(p.K, V_new @ p.V.T, V_new @ V_new.T, p.mean)
    q = given(p, *draw_gradients(p, rng))
    f, s = PosteriorAtRows.apply(tensor(V_new), torch.zeros(8, 3).double(), torch.ones(8).double(), q, 8)
    np.testing.assert_allclose(f.numpy(), mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(s[:, 0].numpy(), np.diag(cov), rtol=1e-7, atol=1e-8)
    m, C = dense_weights(*map(tensor, (p.V, p.mean, p.noise)))
    np.testing.assert_allclose(q.kl.item(), dense_kl(m, C).item(), rtol=1e-8)


def recon(f: Tensor, s: Tensor, eps: Tensor) -> Tensor:
    """Something that is not linear in f and s, per row."""
    return (torch.sin(f + (s + 0.2).sqrt() * eps) - 0.5 * f).square().sum(1)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("rank", [3, 9, 14])
def test_gradients_of_all_rows_are_those_through_plain_conditioning(
    rank: int, batches: int, rng: np.random.Generator
) -> None:
    """The whole bound per row, by autograd through the solve; batches at one q(B) give their rows' part of it."""
    N = 9
    p, eps = problem(N, rank, 0.3, uneven=True), tensor(rng.normal(size=(N, 3)))
    V, mean, noise = (tensor(part).requires_grad_() for part in (p.V, p.mean, p.noise))
    m, C = dense_weights(V, mean, noise)
    f, s = V @ m, variances(V, C)
    of_rows = recon(f, s, eps).sum()
    want = torch.autograd.grad((of_rows + dense_kl(m, C)) / N, [V, mean, noise], retain_graph=True)
    q = given(p, *torch.autograd.grad(of_rows, [f, s]))
    n = N // batches
    for index in torch.randperm(N).split(n):
        f, s = PosteriorAtRows.apply(V[index], mean[index], noise[index], q, n)
        (recon(f, s, eps[index]).sum() / n).backward()
    for row, expected in zip((V, mean, noise), want, strict=True):
        torch.testing.assert_close(row.grad / batches, expected, rtol=1e-9, atol=1e-10)


def own_loss(V: Tensor, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """g.f + h s at every row, in which of all observations that row alone moves q(B)."""
    value = torch.zeros((), dtype=torch.float64)
    for i in range(len(V)):
        own = torch.zeros(len(V), dtype=torch.bool)
        own[i] = True
        W, mu = (torch.where(own[:, None], part, part.detach()) for part in (V, mean))
        m, C = dense_weights(W, mu, torch.where(own, noise, noise.detach()))
        value = value + g[i] @ (V[i] @ m) + h[i, 0] * V[i] @ torch.linalg.solve(C, V[i])
    return value


def loss_of_others(V: Tensor, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """g.f + h s at rows that stay where they are, and KL: observations move q(B), their noise its covariance only."""
    m, C = dense_weights(V, mean, noise)
    m, at = dense_weights(V, mean, noise.detach())[0], V.detach()
    return (g * (at @ m)).sum() + (h * variances(at, C)).sum() + dense_kl(m, C)


@pytest.mark.parametrize("others", [False, True], ids=["own part alone", "with what others want"])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_when_others_were_seen_before(size: str, others: bool, rng: np.random.Generator) -> None:
    """Through f and s directly and through the row's own observation; and a third of what all rows want."""
    p = problem(*SIZES[size], 0.3, uneven=True)
    g, h = draw_gradients(p, rng)
    inputs = [tensor(part).requires_grad_() for part in (p.V, p.mean, p.noise)]
    q = given(p, g, h, stale=True)
    if not others:
        q = dataclasses.replace(q, dR=torch.zeros_like(q.dR), dS=torch.zeros_like(q.dS))
    want = own_loss(*inputs, g, h)
    want = want + loss_of_others(*inputs, g, h) / 3 if others else want
    f, s = PosteriorAtRows.apply(*inputs, q, 3)
    got = (g * f).sum() + (h * s).sum()
    for one, other in zip(*(torch.autograd.grad(value, inputs) for value in (got, want)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


# -- predictions from sums that carry a gradient: rows left out


def plain_prediction(V: Tensor, S: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of f by an explicit inverse, which autograd goes through."""
    Sigma = torch.linalg.inv(torch.eye(len(S), dtype=torch.float64) + S)
    return V @ Sigma @ R, (V @ Sigma * V).sum(1, keepdim=True)


@pytest.mark.parametrize("size", SIZES)
def test_predictions_from_sums_by_differences(size: str, rng: np.random.Generator) -> None:
    p = problem(*SIZES[size], 0.3)
    inputs = [tensor(part).requires_grad_() for part in (rng.normal(size=(4, p.V.shape[1])), p.V, p.mean)]

    def predicted(V: Tensor, W: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return tuple(ConditionedAtRows.apply(V, W.T @ W, W.T @ z))

    assert torch.autograd.gradcheck(predicted, inputs, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", ALPHAS[1:])
@pytest.mark.parametrize("size", SIZES)
def test_predictions_from_sums_are_the_plain_expression(size: str, alpha: float, rng: np.random.Generator) -> None:
    p = problem(*SIZES[size], alpha)
    V, W, z = (tensor(part).requires_grad_() for part in (rng.normal(size=(4, p.V.shape[1])), p.V, p.mean))
    weight = [tensor(rng.normal(size=(4, width))) for width in (p.mean.shape[1], 1)]
    found = []
    for of in (ConditionedAtRows.apply, plain_prediction):
        f, s = of(V, W.T @ W / alpha, W.T @ z / alpha)
        loss = (weight[0] * f).sum() + (weight[1] * s).sum()
        found.append([f.detach(), s.detach(), *torch.autograd.grad(loss, [V, W, z])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7 * max(1.0, other.abs().max().item()))
