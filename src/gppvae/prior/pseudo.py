"""The posterior given pseudo-observations, and how a bound on it changes with them.

q(B) = N(m, Sigma) is conditioned on values mu_n of f(row_n) with noise d_n, so every row acts on the f of all others.
With f_n = m'v_n and s_n = v_n' Sigma v_n, and g_n, h_n the gradients of what is to be minimised with respect to them,
all that a row has to know of the others is two sums, of which a running value is as good as one of q(B) itself:

    G = sum v g'   A = sum h v v'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
        pull: gradient with respect to the sums, for `statistics.inner` of a batch's rows.
        by_tables: gradients with respect to the view tables, as far as these act through the sums.
    """

    weights: SharedCovariance
    pull: Statistics
    by_tables: list[Tensor]

    def tables_share(self, tables: list[Tensor]) -> Tensor | float:
        """A value whose gradient is that of the tables through the sums of all rows."""
        return sum((by * table).sum() for by, table in zip(self.by_tables, tables, strict=True))


def pseudo_sums(features: Features, mean: Tensor, noise: Tensor, g: Tensor, h: Tensor) -> Statistics:
    """S and R of these rows, and beside them A and G: what `condition_on_pseudo` needs of all rows.

    Args:
        features: of the rows.  mean: pseudo-observations (n, L).  noise: their variances (n,).
        g: gradient with respect to f at the rows (n, L).  h: with respect to s (n, 1).
    """
    c = (1.0 / noise).unsqueeze(1)
    return row_sums(features, [(c, c * mean), (h, g)])


def condition_on_pseudo(totals: Statistics, tables: list[Tensor], sizes: list[int]) -> Conditioned:
    """q(B) given the sums over all rows, and the gradient with respect to them.

    With Sigma = (I + S)^-1 and m = Sigma R, for L latents:
        dR = Sigma (G + m),  dS = L/2 (Sigma - Sigma^2) - Sigma A Sigma - dR m'
    Through S and R the gradient goes on to the grouped sums and to the tables that widen them.

    Args:
        totals: of `pseudo_sums`.  tables, sizes: of the kernel's features.
    Cost: O(H^3 + H^2 L + Q H^2), whatever N is.
    """
    M, L = totals.outer.shape[1], totals.n_latents
    observed, asked = (Statistics(part, totals.sums, L) for part in totals.outer.split(M + L, dim=2))
    held = [table.detach().requires_grad_() for table in tables]
    outer = observed.outer.detach().requires_grad_()
    with torch.enable_grad():
        full = assemble(Statistics(outer, totals.sums, L), held, sizes)
    with torch.no_grad():
        weights, widened = condition(full), assemble(asked, tables, sizes)
        Sigma, m, A, G = weights.covariance, weights.mean, widened.S, widened.R
        dR = Sigma @ (G + m)
        dS = torch.addmm(weights.kl_by_sums - Sigma @ A @ Sigma, dR, m.T, alpha=-1.0)
    by_outer, *by_tables = torch.autograd.grad((full.S, full.R), (outer, *held), (dS, dR))
    return Conditioned(weights, Statistics(by_outer, torch.zeros_like(totals.sums), L), by_tables)


def posterior_at(weights: SharedCovariance, V: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (n, L) and variance (n, 1) of f at feature rows; q(B) is held fixed. Cost: O(n H (H + L))."""
    f, s = _PosteriorAt.apply(weights, V)
    return f, s


class _PosteriorAt(torch.autograd.Function):
    """f = V m, s = diag V Sigma V'; with the gradients g and h of the two, dV = g m' + 2 h V Sigma."""

    @staticmethod
    def forward(ctx: Any, weights: SharedCovariance, V: Tensor) -> tuple[Tensor, Tensor]:
        P = V @ weights.covariance
        ctx.save_for_backward(P, weights.mean)
        return V @ weights.mean, (P * V).sum(1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (g, h), (P, m) = grads, ctx.saved_tensors
        return None, torch.addmm(h * P, g, m.T, beta=2.0)
