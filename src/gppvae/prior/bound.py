"""The GP term as a sum over samples, at any q(B)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.groups import GroupedRows
from gppvae.prior.per_group import SquaresPerGroup, TallPerGroup
from gppvae.prior.posterior import WeightPosterior
from gppvae.prior.statistics import Statistics, row_sums


@dataclass(frozen=True)
class Held:
    """q(B) as the bound wants it, held fixed.

    Attributes:
        covariance: sum_l Sigma_l.  mean: m.  kl: KL(q(B) || N(0, I)).
    """

    covariance: SquaresPerGroup
    mean: TallPerGroup
    kl: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, weights: WeightPosterior, tables: list[Tensor], sizes: list[int]) -> Held:
        widths = [table.shape[1] for table in tables]
        covariance = SquaresPerGroup(weights.sum_of_covariances().unsqueeze(0), sizes, widths)
        return cls(covariance, TallPerGroup(weights.mean, sizes, widths), weights.kl())


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
    P, r = rows.times(given.covariance.at(tables)), mean - rows.times(given.mean.at(tables))
    quad = (r.square() + var).sum(1, keepdim=True) + (rows.x * P).sum(1, keepdim=True)
    value = 0.5 * (quad / d + L * (math.log(2.0 * math.pi) + d.log()))
    return RowNLL(value.squeeze(1), r, P, quad)


@dataclass(frozen=True)
class Pulled:
    """Gradients of the bound with respect to x, mean, var, noise and tables, and the sums S and R of the rows."""

    x: Tensor
    mean: Tensor
    var: Tensor
    noise: Tensor
    tables: list[Tensor]
    observed: Statistics


@torch.no_grad()
def pull_row_nll(
    given: Held, at: RowNLL, rows: GroupedRows, tables: list[Tensor], mean: Tensor, noise: Tensor, share: float
) -> Pulled:
    """Gradients of `share` times the sum of the bound over rows, and what q(B) is conditioned on.

    With r = mu - f and q the quadratic terms of a row:
        dmu = r / d,  ds2 = 1 / (2 d),  dx = (sum_l Sigma_l x - m r) / d,  dd = (L - q / d) / (2 d)

    Args:
        given, rows, tables, mean, noise: as in `row_nll`, and `at` what it said.
    Cost: O(N M (M + L)).
    """
    (n, L), M, d = mean.shape, rows.x.shape[1], noise.reshape(-1, 1)
    c = d.reciprocal().expand(n, 1)
    by_f = (-share * c) * at.r
    dx = rows.back(by_f, given.mean.at(tables)).addcmul_(c, at.P, value=share)
    dd = (0.5 * share) * c * (L - at.quad / d)
    sums = row_sums(rows, (c, c * mean), ((0.5 * share) * c, by_f))
    observed, by_covariance, by_mean = sums.split([M + L, M, L], dim=2)
    by_tables = zip(given.covariance.pull(by_covariance, tables), given.mean.pull(by_mean, tables), strict=True)
    return Pulled(
        dx,
        -by_f,
        ((0.5 * share) * c).expand(n, L),
        dd.squeeze(1) if noise.ndim else dd.sum(),
        [a + b for a, b in by_tables],
        Statistics.observed(observed.contiguous(), n, L),
    )
