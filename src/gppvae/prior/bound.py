"""The GP term as a sum over samples, at any q(B)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.groups import GroupedRows
from gppvae.prior.per_group import PerGroup
from gppvae.prior.posterior import WeightPosterior
from gppvae.prior.statistics import Statistics, row_sums


@dataclass(frozen=True)
class Held:
    """q(B) as the bound wants it, held fixed.

    Attributes:
        moments: sum_l Sigma_l, and m.  kl: KL(q(B) || N(0, I)).
    """

    moments: PerGroup
    kl: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, weights: WeightPosterior, tables: list[Tensor], sizes: list[int]) -> Held:
        widths = [table.shape[1] for table in tables]
        covariance = weights.sum_of_covariances().unsqueeze(0)
        return cls(PerGroup(covariance, weights.mean, sizes, widths), weights.kl())


@dataclass(frozen=True)
class RowNLL:
    """The bound at rows, and what its gradients are made of.

    Attributes:
        value: (N,).  r: mu - f (N, L).  P: x sum_l Sigma_l (N, M).  quad: the quadratic terms (N, 1).
    """

    value: Tensor
    r: Tensor
    P: Tensor
    quad: Tensor


@torch.no_grad()
def row_nll(given: Held, rows: GroupedRows, tables: list[Tensor], mean: Tensor, var: Tensor, noise: Tensor) -> RowNLL:
    """Per-row part of an upper bound on `gp_nll`.

        1/2 sum_l [log 2 pi d + ((mu - v'm_l)^2 + s2_l + v'Sigma_l v) / d]
    Summed over all rows, plus KL(q(B)), it is never below the exact term. At m = C^-1 R, Sigma = C^-1 it
    equals it for given latents; with encoder variances tr(C^-1 T) / 2 is left. q(B) is held fixed.
    Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

    Args:
        given: q(B).  rows, tables: features.  mean, var: encoder outputs (N, L).  noise: d, (N,) or ().
    Cost: O(N M (M + L)).
    """
    L, d = mean.shape[1], noise.reshape(-1, 1)
    P, f = rows.times(given.moments.at(tables)).split([rows.x.shape[1], L], dim=1)
    r = mean - f
    quad = (r.square() + var).sum(1, keepdim=True) + (rows.x * P).sum(1, keepdim=True)
    value = 0.5 * (quad / d + L * (math.log(2.0 * math.pi) + d.log()))
    return RowNLL(value.squeeze(1), r, P, quad)


@torch.no_grad()
def pull_row_nll(
    given: Held, at: RowNLL, rows: GroupedRows, tables: list[Tensor], noise: Tensor, share: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `share` times the sum of the bound over rows with respect to x, mean, var and noise.

    With r = mu - f and q the quadratic terms of a row:
        dmu = r / d,  ds2 = 1 / (2 d),  dx = (sum_l Sigma_l x - m r) / d,  dd = (L - q / d) / (2 d)

    Args:
        given, rows, tables, noise: as in `row_nll`, and `at` what it said.
    Cost: O(N M L).
    """
    (n, L), c = at.r.shape, noise.reciprocal().reshape(-1, 1)
    weight = (share * c).expand(n, 1)
    dmu, ds2 = weight * at.r, 0.5 * weight
    dx = torch.addcmul(rows.back(dmu, given.moments.tall_at(tables)).neg_(), weight, at.P)
    dd = torch.addcmul(L * ds2, ds2, c * at.quad, value=-1.0)
    return dx, dmu, ds2.expand(n, L), dd.squeeze(1) if noise.ndim else dd.sum()


@torch.no_grad()
def sums_and_tables(
    given: Held, rows: GroupedRows, tables: list[Tensor], mean: Tensor, noise: Tensor, by_mean: Tensor, share: float
) -> tuple[Statistics, list[Tensor]]:
    """S and R of these rows, which q(B) is conditioned on, and the gradients of the bound with respect to the tables.

    Args:
        given, rows, tables, mean, noise: as in `row_nll`.  by_mean: gradient of `pull_row_nll` with this `share`.
    Cost: O(N M (M + L)), and O(Q H^2) where there are tables.
    """
    (n, L), M, c = mean.shape, rows.x.shape[1], noise.reciprocal().reshape(-1, 1)
    observed = (c, c * mean)
    if not tables:
        return Statistics.observed(row_sums(rows, observed), n, L), []
    sums = row_sums(rows, observed, ((0.5 * share) * c, -by_mean))
    observed_sums, by_moments = sums.split(M + L, dim=2)
    return Statistics.observed(observed_sums, n, L), given.moments.pull(by_moments, tables)
