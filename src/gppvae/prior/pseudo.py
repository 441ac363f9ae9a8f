"""The posterior given pseudo-observations, and how a bound on it changes with them.

q(B) = N(m, Sigma) is conditioned on values mu_n of f(row_n) with noise d_n, so every row acts on the f of all others.
With f_n = m'v_n and s_n = v_n' Sigma v_n, and g_n, h_n the gradients of what is to be minimised with respect to them,
all that a row has to know of the others is two sums, which the rows seen last are enough to estimate:

    G = sum v g'   A = sum h v v'
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.kernels.features import Features
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import SharedCovariance, condition
from gppvae.prior.statistics import Statistics, row_sums


@dataclass(frozen=True)
class Conditioned:
    """q(B) at the sums of pseudo-observations, with the gradients of reconstruction + KL(q(B)) there.

    Attributes:
        weights: q(B).
        pull: gradient with respect to the sums, for `pull_rows` of a batch.
        by_tables: gradients with respect to the view tables, as far as these act through the sums.
        own: how often a row's effect on itself is to be added to what `pull` says.
    """

    weights: SharedCovariance
    pull: Statistics
    by_tables: list[Tensor]
    own: float


def pseudo_sums(features: Features, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor) -> Statistics:
    """S and R of these rows, and beside them A and G: what `condition_on_pseudo` needs of all rows.

    Args:
        features: of the rows.  mean: pseudo-observations (n, L).  noise: their variances (n,).
        g: gradient with respect to f at the rows (n, L).  h: with respect to s (n, 1).
    """
    c = noise.reciprocal().unsqueeze(1)
    return row_sums(features, [(c, c * mean), (h, g)])


def split_pseudo_sums(sums: Statistics) -> tuple[Statistics, Statistics]:
    """What q(B) is conditioned on (S, R), and what the rows ask for (A, G)."""
    width = sums.outer.shape[1] + sums.n_latents
    observed, asked = (
        Statistics(part.contiguous(), sums.sums, sums.n_latents) for part in sums.outer.split(width, dim=2)
    )
    return observed, asked


def condition_on_pseudo(observed: Statistics, asked: Statistics, tables: list[Tensor], sizes: list[int]) -> Conditioned:
    """q(B) given the sums over all rows, and the gradient with respect to them.

    With Sigma = (I + S)^-1 and m = Sigma R, for L latents:
        dR = Sigma (G + m),  dS = L/2 Sigma - Sigma (A + L/2 I) Sigma - (dR m' + m dR') / 2
    Through S and R the gradient goes on to the grouped sums and to the tables that widen them.

    Args:
        observed: S and R of all rows.
        asked: A and G of all rows, or of as many as are known, which then stand for all: rows to come are not among
            them, so that their effect on themselves is missing.
        tables, sizes: of the kernel's features.
    Cost: O(H^3 + H^2 L + Q H^2), whatever N is.
    """
    L, known = observed.n_latents, float(asked.sums[3] / observed.sums[3])
    own = 0.0 if known == 1.0 else 1.0
    asked = asked.scaled(1.0 / known)
    with torch.no_grad():
        weights, widened = condition(assemble(observed, tables, sizes)), assemble(asked, tables, sizes)
        Sigma, m, A, G = weights.covariance, weights.mean, widened.S, widened.R
        dR = Sigma @ (G + m)
        half = 0.25 * L * Sigma - 0.5 * (Sigma @ (A @ Sigma + 0.5 * L * Sigma) + dR @ m.T)
        dS = half + half.T
    by_outer, by_tables = _to_groups(observed, tables, sizes, dS, dR)
    return Conditioned(weights, Statistics(by_outer, torch.zeros_like(observed.sums), L), by_tables, own)


def _to_groups(
    observed: Statistics, tables: list[Tensor], sizes: list[int], dS: Tensor, dR: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The gradient with respect to grouped sums and tables of what has dS, dR with respect to S, R."""
    if not tables:
        return torch.cat([dS, dR], dim=1).unsqueeze(0), []
    held = [table.detach().requires_grad_() for table in tables]
    outer = observed.outer.detach().requires_grad_()
    with torch.enable_grad():
        full = assemble(Statistics(outer, observed.sums, observed.n_latents), held, sizes)
    by_outer, *by_tables = torch.autograd.grad((full.S, full.R), (outer, *held), (dS, dR))
    return by_outer, by_tables


def posterior_at(weights: SharedCovariance, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (n, L) and variance (n, 1) of f at feature rows, and V Sigma (n, H). Cost: O(n H (H + L))."""
    P = V @ weights.covariance
    return V @ weights.mean, (P * V).sum(1, keepdim=True), P


def pull_own(
    given: Conditioned, P: Tensor, f: Tensor, s: Tensor, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to V, mean and noise of f and s at these rows: directly, and by a row's effect on itself.

    Directly dV = g m' + 2 h P. Through q(B), `given.own` times, with c = 1/d and r = mu - f:
        dV = c ((g.r - 2 h s) P - s g m'),  dmu = c s g,  dd = -c^2 (s g.r - h s^2)

    Args:
        given: q(B).  P, f, s: of `posterior_at`.  mean, noise: the rows' pseudo-observations.  g, h: gradients at f, s.
    """
    c, gr = noise.reciprocal().unsqueeze(1) * given.own, (g * (mean - f)).sum(1, keepdim=True)
    dmu = (c * s) * g
    dV = torch.addmm((2.0 * h + c * (gr - 2.0 * h * s)) * P, g - dmu, given.weights.mean.T)
    return dV, dmu, -(c * (s * gr - h * s.square())).squeeze(1) / noise
