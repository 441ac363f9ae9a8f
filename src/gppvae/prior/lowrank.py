"""The low-rank algebra, K = V V' + D: one Cholesky factor of the H x H capacitance C = I + V'D^-1 V."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gppvae.prior.per_group import widen
from gppvae.prior.statistics import Statistics


@dataclass(frozen=True)
class Assembled:
    """Statistics in the H x H form of the equations; T is None when Z was sampled."""

    S: Tensor  # (H, H)
    R: Tensor  # (H, L)
    T: Tensor | None  # (H, H)
    sums: Tensor  # (4,) t, u, e, N

    def capacitance_cholesky(self) -> Tensor:
        """L_C with L_C L_C' = C = I + S, (H, H). Cost O(H^3)."""
        return torch.linalg.cholesky(self.S + torch.eye(self.S.shape[0], dtype=self.S.dtype, device=self.S.device))


def assemble(stats: Statistics, tables: list[Tensor], sizes: list[int]) -> Assembled:
    """Grouped sums as the equations want them, over all features. Cost O(Q H^2), whatever N is."""
    A, B, A_var = stats.split()
    squares, R = widen(torch.stack([A] if A_var is None else [A, A_var], dim=2), B, tables, sizes)
    return Assembled(squares[0], R, None if A_var is None else squares[1], stats.sums)


def gp_nll(stats: Statistics, tables: list[Tensor], sizes: list[int]) -> Tensor:
    """Expected negative log density of the latents under the GP prior, summed over L.

    With C = I + S and D the diagonal noise:
        1/2 [t - tr R'C^-1 R + u - tr C^-1 T + L (sum log d + logdet C) + N L log 2 pi]
    For sampled Z: u = 0, T absent. Source: Casale et al. 2018, "Efficient GP computations"; docs/math.md.

    Args:
        stats: grouped sums over all rows.  tables, sizes: of the kernel's features.
    Cost: O(H^3 + H^2 L + Q H^2), whatever N is.
    """
    full = assemble(stats, tables, sizes)
    value: Tensor = _GPTerm.apply(full.S, full.R, full.T, full.sums)
    return value


class _GPTerm(torch.autograd.Function):
    """The formula of `gp_nll` with its gradient in closed form: several times cheaper than back-propagating
    through a Cholesky factor. With m = C^-1 R:
        dS = 1/2 (m m' + C^-1 T C^-1 + L C^-1),  dR = -m,  dT = -1/2 C^-1
    """

    @staticmethod
    def forward(ctx: Any, S: Tensor, R: Tensor, T: Tensor | None, sums: Tensor) -> Tensor:
        t, u, e, n = sums
        L = R.shape[1]
        L_C = Assembled(S, R, T, sums).capacitance_cholesky()
        m = torch.cholesky_solve(R, L_C)
        C_inv = torch.cholesky_inverse(L_C)  # the gradient itself is made of it
        quad = t - (R * m).sum()  # Woodbury
        dS = torch.addmm(C_inv, m, m.T, beta=0.5 * L, alpha=0.5)
        if T is not None:
            CT = C_inv @ T
            quad = quad + u - CT.diagonal().sum()
            dS = torch.addmm(dS, CT, C_inv, alpha=0.5)
        logdet = e + 2.0 * L_C.diagonal().log().sum()  # determinant lemma
        log_2pi = math.log(2.0 * math.pi)
        dsums = sums.new_tensor([1.0, 0.0 if T is None else 1.0, L, L * log_2pi]) * 0.5
        ctx.save_for_backward(dS, m, C_inv, dsums)
        ctx.with_var = T is not None
        return 0.5 * (quad + L * logdet + n * L * log_2pi)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        dS, m, C_inv, dsums = ctx.saved_tensors
        (g,) = grads
        return g * dS, -g * m, -0.5 * g * C_inv if ctx.with_var else None, g * dsums
