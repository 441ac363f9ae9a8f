"""Linear algebra shared by the posteriors: products per row, inverse roots, Cholesky with jitter where needed."""

from __future__ import annotations

import torch
from torch import Tensor


def eye_like(x: Tensor) -> Tensor:
    """The identity matrix of the size of the last axis of x, with its type and device."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def matvec(A: Tensor, x: Tensor) -> Tensor:
    """A_n x_n for each n, (N, A, B), (N, B) -> (N, A)."""
    return (A @ x.unsqueeze(2)).squeeze(2)


def vecmat(x: Tensor, A: Tensor) -> Tensor:
    """x_n'A_n for each n, (N, A), (N, A, B) -> (N, B)."""
    return (x.unsqueeze(1) @ A).squeeze(1)


def inverse_root(L: Tensor) -> Tensor:
    """L^-T, so that L^-T L^-1 = (L L')^-1, for lower triangular L of shape (..., H, H)."""
    return torch.linalg.solve_triangular(L.mT, eye_like(L).expand_as(L), upper=True)


def steady_cholesky(precisions: Tensor) -> Tensor:
    """Cholesky factors of matrices (K, H, H), with the least jitter at which the factorisation succeeds.

    The precisions of rows may differ by more digits than float64 has. Jitter is relative to the largest diagonal entry,
    so it is small relative to the precision of the best determined direction.
    """
    size = precisions.diagonal(dim1=1, dim2=2).amax(1)[:, None]  # (K, 1)
    for jitter in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        factor, failed = torch.linalg.cholesky_ex(
            precisions + torch.diag_embed(jitter * size.expand(precisions.shape[:2]))
        )
        if not failed.any():
            return factor
    return torch.linalg.cholesky(precisions)  # raises an error that names the matrix
