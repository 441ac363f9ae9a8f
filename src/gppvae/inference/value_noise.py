"""Covariance Psi of the noise of values: the errors of some values predict those of others."""

from __future__ import annotations

import torch
from torch import Tensor

from gppvae.prior.linalg import eye_like, matvec, steady_cholesky

ROUNDS = 30
LEAST = 1e-4  # variance of a value's noise, relative to the variance of the value
MAX_VALUES = 200  # of a sample; more values have too many pairs to estimate from a few hundred errors
MAX_NUMBERS = 10_000_000  # in the matrices of all rows together


def rows_enough(n_rows: int, n_values: int) -> int:
    """Number of rows to use, limited by the memory of their (K, K) matrices."""
    return min(n_rows, max(1, MAX_NUMBERS // n_values**2))


def noise_covariance(errors: Tensor, seen: Tensor, jacobian: Tensor, var: Tensor) -> Tensor:
    """Maximum-likelihood Psi, (K, K), for errors e_n ~ N(0, J_n W_n J_n' + Psi), partly observed.

    Expectation maximisation: with C_n = J_n W_n J_n' + Psi at the observed values o of row n,

        E eps_n = Psi_.o C_n^-1 e_n,   Cov eps_n = Psi - Psi_.o C_n^-1 Psi_o.,   Psi = mean_n (E eps E eps' + Cov eps)

    Correlations r_ij of the errors, with J W J' subtracted, are shrunk by the share of their sum of squares that is
    sampling variance: sum (1 - r_ij^2)^2 / sum (N_ij - 1) r_ij^2, over pairs observed together in N_ij > 1 rows. If
    nothing is missing, the share is that of Schaefer and Strimmer 2005.

    Args:
        errors: (N, K), each value in its unit.  seen: (N, K) bool.
        jacobian: J' of the decoder at the rows, (N, L, K).  var: W, posterior variance of their latents, (N, L).
    Cost: O(N K^3) a round.
    """
    N = len(errors)
    errors = torch.where(seen, errors, torch.zeros_like(errors))
    # Pairs of observed values, and variance 1 for missing ones, which makes each C_n invertible; (N, K, K) each.
    pairs, own = seen.unsqueeze(1) & seen.unsqueeze(2), torch.diag_embed((~seen).to(errors))
    signal = torch.where(pairs, (jacobian * var.unsqueeze(2)).transpose(1, 2) @ jacobian, 0.0)  # (N, K, K)
    count, reliable = seen.sum(0).to(errors), _reliable_share(errors, signal.sum(0), pairs.sum(0).to(errors))
    start = errors.square().sum(0) / count.clamp_min(1.0)  # (K,)
    psi = torch.diag(torch.where(count > 0, start, torch.ones_like(start)).clamp_min(LEAST))
    for _ in range(ROUNDS):
        root = steady_cholesky(signal + torch.where(pairs, psi, 0.0) + own)  # of C_n, (N, K, K)
        observed = psi * seen.unsqueeze(2)  # Psi_o., rows of missing values 0, (N, K, K)
        gain = torch.cholesky_solve(observed, root).transpose(1, 2)  # Psi_.o C_n^-1
        eps = matvec(gain, errors)  # E step: E eps_n, (N, K)
        psi = (eps.T @ eps + N * psi - (gain @ observed).sum(0)) / N  # M step
        diagonal = psi.diagonal().clamp_min(LEAST)
        psi = reliable * 0.5 * (psi + psi.T)
        psi.diagonal().copy_(diagonal)
    return psi


def _reliable_share(errors: Tensor, signal: Tensor, together: Tensor) -> Tensor:
    """Share of the correlations of Psi that is not sampling noise, (); below 1, so that Psi is positive definite.

    It is estimated from pairs that were observed together.

    Args:
        errors: (N, K), 0 where missing.  signal: sum of J W J' over rows with both values, (K, K).
        together: number of those rows, (K, K).
    """
    moments = (errors.T @ errors - signal) / together.clamp_min(1.0)
    var = moments.diagonal()
    std = var.clamp_min(LEAST).sqrt()
    r = (moments / std / std[:, None]).clamp(-1.0, 1.0)  # correlations, (K, K)
    known = (var > LEAST) & (var > LEAST).unsqueeze(1) & ~eye_like(r).bool()
    spare = torch.where(known, (together - 1.0).clamp_min(0.0), 0.0)  # degrees of freedom N_ij - 1
    sampling = torch.where(spare > 0.0, (1.0 - r.square()).square(), 0.0).sum()
    return (1.0 - sampling / (spare * r.square()).sum().clamp_min(1e-12)).clamp(0.0, 1.0 - LEAST)


def rows_per_pair(seen: Tensor) -> float:
    """Number of rows in which both values of a pair were observed, averaged over pairs.

    Args:
        seen: (N, K) bool.
    """
    K = seen.shape[1]
    per_row = seen.sum(1).double()
    return float((per_row * (per_row - 1.0)).sum() / max(K * (K - 1), 1))
