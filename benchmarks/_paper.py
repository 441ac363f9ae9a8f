"""The paper's low-memory gradient as it is printed: V as a dense matrix, coefficients a, B, c for all rows.

Casale et al. 2018, "Low-memory stochastic backpropagation". With f = -log N(Z; 0, K), K = V V' + alpha I:
    a = df/dZ = K^-1 Z    B = df/dV = L K^-1 V - a a'V    c = df/dalpha = (L tr K^-1 - |a|^2) / 2
The variances s2 of the expected form add, with D = diag(sum_l s2_nl) and P = K^-1 V:
    df/ds2 = diag(K^-1) / 2    B += -K^-1 D P    c += -tr(K^-1 D K^-1) / 2
"""

# ruff: noqa: N803, N806 (the letters of the paper are the names here)
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Coefficients:
    """The value f, and gradients with respect to Z (N, L), V (N, H), alpha () and, in the expected form, s2 (N, 1)."""

    value: Tensor
    a: Tensor
    B: Tensor
    c: Tensor
    s: Tensor | None


def coefficients(V: Tensor, Z: Tensor, var: Tensor | None, alpha: Tensor) -> Coefficients:
    """All coefficients with one factor of the H x H system (Woodbury).

    Args:
        V: (N, H).  Z: sampled latents, or encoder means, (N, L).  var: encoder variances (N, L), or None.
    Cost: O(N H (H + L)) time, O(N (H + L)) memory.
    """
    (n, rank), n_latents = V.shape, Z.shape[1]
    both = torch.cat([V, Z], dim=1)
    products = V.T @ both  # V'V and V'Z
    C = products[:, :rank] + alpha * torch.eye(rank, dtype=V.dtype)
    L_C = torch.linalg.cholesky(C)
    solved = torch.cholesky_solve(products, L_C)
    inverse = (both - V @ solved) / alpha  # K^-1 [V, Z]
    P, a = inverse[:, :rank], inverse[:, rank:]
    B = n_latents * P - a @ (a.T @ V)
    c = 0.5 * (n_latents * (n - solved[:, :rank].trace()) / alpha - a.square().sum())
    logdet = (n - rank) * alpha.log() + 2.0 * L_C.diagonal().log().sum() + n * math.log(2.0 * math.pi)
    value = 0.5 * ((Z * a).sum() + n_latents * logdet)
    if var is None:
        return Coefficients(value, a, B, c, None)
    # P = V C^-1 by the push-through identity, so K^-1 = (I - P V') / alpha.
    total = var.sum(1, keepdim=True)
    diagonal = (1.0 - (P * V).sum(1, keepdim=True)) / alpha
    weighted = total * P
    B = B - (weighted - P @ (V.T @ weighted)) / alpha
    twice = (P - P @ (V.T @ P)) / alpha  # K^-1 P
    squared = (diagonal - (twice * V).sum(1, keepdim=True)) / alpha  # diag(K^-2)
    value = value + 0.5 * (total * diagonal).sum()
    return Coefficients(value, a, B, c - 0.5 * (total * squared).sum(), 0.5 * diagonal)
