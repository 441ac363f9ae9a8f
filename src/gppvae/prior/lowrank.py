"""The low-rank algebra, K = V V' + D: one Cholesky factor of the H x H capacitance C = I + V'D^-1 V."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.closed_form import GPTerm
from gppvae.prior.layout import Layout
from gppvae.prior.statistics import Statistics


@dataclass(frozen=True)
class Assembled:
    """Statistics in the H x H form of the equations; T is None when Z was sampled."""

    S: Tensor  # (H, H)
    R: Tensor  # (H, L)
    T: Tensor | None  # (H, H)
    sums: Tensor  # (4,) t, u, e, N


def assemble(stats: Statistics, layout: Layout) -> Assembled:
    """Sums per group of the layout, widened to all features. Cost O(Q H^2), whatever N is."""
    A, B, A_var = stats.split()  # (Q, M, M), (Q, M, L), (Q, M, M)
    squares, R = layout.widen(torch.stack([A] if A_var is None else [A, A_var], dim=2), B)
    return Assembled(squares[0], R, None if A_var is None else squares[1], stats.sums)


def gp_nll(full: Assembled) -> Tensor:
    """Expected negative log density of the latents under the GP prior, summed over L.

    With C = I + S and D the diagonal noise:
        1/2 [t - tr R'C^-1 R + u - tr C^-1 T + L (sum log d + logdet C) + N L log 2 pi]
    For sampled Z: u = 0, T absent. Source: Casale et al. 2018, "Efficient GP computations"; docs/math.md.

    Args:
        full: sums over all rows.
    Cost: O(H^3 + H^2 L), whatever N is.
    """
    value: Tensor = GPTerm.apply(full.S, full.R, full.T, full.sums)
    return value
