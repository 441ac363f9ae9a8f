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
class RowMoments:
    """What q(B) says of f at rows x.

    Attributes:
        f: means m'x (N, L).  P: x sum_l Sigma_l (N, M).  s: variances, summed over latents (N, 1).
    """

    f: Tensor
    P: Tensor
    s: Tensor


@torch.no_grad()
def moments_at(given: Held, rows: GroupedRows, tables: list[Tensor]) -> RowMoments:
    """Cost: O(N M (M + L))."""
    P, f = rows.times(given.moments.at(tables)).split([rows.x.shape[1], given.moments.tall.shape[1]], dim=1)
    return RowMoments(f, P, (rows.x * P).sum(1, keepdim=True))


@torch.no_grad()
def row_nll(f: Tensor, s: Tensor, mean: Tensor, var: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per-row part of an upper bound on `gp_nll`, (N,).

        1/2 sum_l [log 2 pi d + ((mu - v'm_l)^2 + s2_l + v'Sigma_l v) / d]
    Summed over all rows, plus KL(q(B)), it is never below the exact term. At m = C^-1 R, Sigma = C^-1 it
    equals it for given latents; with encoder variances tr(C^-1 T) / 2 is left. q(B) is held fixed.
    Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

    Args:
        f, s: of `moments_at`.  mean, var: encoder outputs (N, L).  noise: d, (N,) or ().
    Returns:
        the bound, r = mu - f (N, L), and the quadratic terms q (N, 1), which its gradients are made of.
    """
    L, d, r = mean.shape[1], noise.reshape(-1, 1), mean - f
    quad = (r.square() + var).sum(1, keepdim=True) + s
    value = 0.5 * (quad / d + L * (math.log(2.0 * math.pi) + d.log()))
    return value.squeeze(1), r, quad


@torch.no_grad()
def pull_latents(r: Tensor, noise: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Gradients of `share` times the sum of the bound over rows with respect to mean and var, (N, L) each.

    dmu = r / d,  ds2 = 1 / (2 d)
    """
    weight = share / noise.reshape(-1, 1)
    return weight * r, (0.5 * weight).expand_as(r)


@torch.no_grad()
def pull_features(
    given: Held, at: RowMoments, rows: GroupedRows, tables: list[Tensor], r: Tensor, quad: Tensor, noise: Tensor, n: int
) -> tuple[Tensor, Tensor]:
    """Gradients of 1 / n times the sum of the bound over rows with respect to x (N, M) and noise.

    With r and q as `row_nll` says:
        dx = (sum_l Sigma_l x - m r) / d,  dd = (L - q / d) / (2 d)

    Args:
        given, rows, tables: as in `moments_at`, and `at` what it said.  r, quad, noise: as in `row_nll`.
    Cost: O(N M L).
    """
    c = noise.reciprocal().reshape(-1, 1)
    weight = c / n
    dx = rows.back(r, given.moments.tall_at(tables)).neg_().add_(at.P).mul_(weight)
    dd = (0.5 * weight) * torch.sub(r.shape[1], c * quad)
    return dx, dd.squeeze(1) if noise.ndim else dd.sum()


@torch.no_grad()
def sums_and_tables(
    given: Held, rows: GroupedRows, tables: list[Tensor], mean: Tensor, r: Tensor, noise: Tensor, n: int
) -> tuple[Statistics, list[Tensor]]:
    """S and R of these rows, which q(B) is conditioned on, and the gradients of the bound with respect to the tables.

    Args:
        given, rows, tables: as in `moments_at`.  mean, r, noise: as in `row_nll`.  n: as in `pull_features`.
    Cost: O(N M (M + L)), and O(Q H^2) where there are tables.
    """
    (n_rows, L), c = mean.shape, noise.reciprocal().reshape(-1, 1)
    observed = (c, c * mean)
    if not tables:
        return Statistics.observed(row_sums(rows, observed), n_rows, L), []
    sums = row_sums(rows, observed, ((0.5 / n) * c, (-1.0 / n) * c * r))
    observed_sums, by_moments = sums.split(rows.x.shape[1] + L, dim=2)
    return Statistics.observed(observed_sums, n_rows, L), given.moments.pull(by_moments, tables)
