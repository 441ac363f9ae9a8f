"""The GP term as a sum over samples, at any q(B)."""

from __future__ import annotations

import math

from torch import Tensor

from gppvae.prior.posterior import WeightPosterior


def row_nll(V: Tensor, mean: Tensor, var: Tensor, noise: Tensor, weights: WeightPosterior) -> Tensor:
    """Per-row part of an upper bound on `gp_nll`, (N,).

        1/2 sum_l [log 2 pi d + ((mu - v'm_l)^2 + s2_l + v'Sigma v) / d]
    Summed over all rows, plus `weights.kl()`, it is never below the exact term. At m = C^-1 R, Sigma = C^-1 it
    equals it for given latents; with encoder variances tr(C^-1 T) / 2 is left. Source: Hensman et al. 2013;
    docs/math.md, "A bound that factorises".

    Args:
        V: (N, H).  mean, var: encoder outputs (N, L).  noise: d, (N,) or ().  weights: q(B).
    Cost: O(N H (H + L)).
    """
    L = mean.shape[1]
    quad = (mean - weights.mean_at(V)).square() + var + weights.var_at(V)
    return 0.5 * (quad.sum(1) / noise + L * (math.log(2.0 * math.pi) + noise.log()))
