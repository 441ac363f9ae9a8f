"""Features of the anchors themselves: a root of their covariance, with its gradient in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def root_at_anchors(K: Tensor, nugget: float) -> Tensor:
    """F = K M' with M the inverse of the Cholesky factor of K + nugget I, so that F F' = K but for the nugget, (A, A).

    What features are at any other value, asked at the anchors: as in every step of training when the distinct values
    are few. Cost O(A^3).
    """
    F: Tensor = _Root.apply(K, nugget)
    return F


class _Root(torch.autograd.Function):
    """With the gradient g of F, and Phi(X) the lower triangle of X with half its diagonal:

        dK = g M + (S + S') / 2,  S = -M' Phi(g'K M') M
    Source: the derivative of a Cholesky factor, Murray 2016, "Differentiation of the Cholesky decomposition".
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, nugget: float) -> Tensor:
        C = K.clone()
        C.diagonal().add_(nugget)
        lower = torch.linalg.cholesky(C)
        F = torch.linalg.solve_triangular(lower, K, upper=False).T
        ctx.save_for_backward(F, lower)
        return F

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        F, lower = ctx.saved_tensors
        (g,) = grads
        M = torch.linalg.solve_triangular(lower, torch.eye(len(F), dtype=F.dtype, device=F.device), upper=False)
        phi = (g.T @ F).tril_()
        phi.diagonal().mul_(0.5)
        S = M.T @ phi @ M
        return torch.addmm(S + S.T, g, M, beta=-0.5), None
