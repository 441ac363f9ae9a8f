"""The GP term as a sum over samples, at any q(B)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gppvae.prior.posterior import WeightPosterior


def row_nll(V: Tensor, mean: Tensor, var: Tensor, noise: Tensor, weights: WeightPosterior) -> Tensor:
    """Per-row part of an upper bound on `gp_nll`, (N,).

        1/2 sum_l [log 2 pi d + ((mu - v'm_l)^2 + s2_l + v'Sigma_l v) / d]
    Summed over all rows, plus `weights.kl()`, it is never below the exact term. At m = C^-1 R, Sigma = C^-1 it
    equals it for given latents; with encoder variances tr(C^-1 T) / 2 is left. q(B) is held fixed: `weights` get
    no gradient. Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

    Args:
        V: (N, H).  mean, var: encoder outputs (N, L).  noise: d, (N,) or ().  weights: q(B).
    Cost: O(N H (H + L)).
    """
    value: Tensor = _RowNLL.apply(V, mean, var, noise.expand(V.shape[0]), weights)
    return value


class _RowNLL(torch.autograd.Function):
    """The formula of `row_nll` with its gradient written out, in a third of the small operations.

    With r = mu - V m and q the quadratic terms of a row:
        dmu = r / d,  ds2 = 1 / (2 d),  dV = (sum_l V Sigma_l - r m') / d,  dd = (L - q / d) / (2 d)
    """

    @staticmethod
    def forward(ctx: Any, V: Tensor, mean: Tensor, var: Tensor, noise: Tensor, weights: WeightPosterior) -> Tensor:
        L, m = mean.shape[1], weights.mean.detach()
        r = torch.addmm(mean, V, m, alpha=-1.0)
        VS = weights.times_covariance(V)
        quad = (r.square() + var).sum(1) + (V * VS).sum(1)
        ctx.save_for_backward(r, VS, quad, noise, m)
        return 0.5 * (quad / noise + L * (math.log(2.0 * math.pi) + noise.log()))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        r, VS, quad, noise, m = ctx.saved_tensors
        L = r.shape[1]
        g = grads[0] / noise
        column = g.unsqueeze(1)
        dV = torch.addmm(VS, r, m.T, alpha=-1.0).mul_(column)
        return dV, r * column, (0.5 * column).expand_as(r), 0.5 * g * (L - quad / noise), None
