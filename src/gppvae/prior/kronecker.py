"""The GP term of a complete design, by eigenvalues of two small Gram matrices instead of one factor of rank H.

When every object x_p is seen at every view w_q equally often, with one noise level, V is X (x) W up to the order of its
rows, and with A = sum_p x_p x_p' / d (M x M), G = sum_q w_q w_q' (R x R):

    C = I + A (x) G = (U (x) O) (I + lambda mu') (U (x) O)',   A = U diag(lambda) U',  G = O diag(mu) O'

so C^-1 and logdet C need the M R numbers D_ij = 1 / (1 + lambda_i mu_j) only. Source: docs/math.md, "Complete designs";
Stegle et al. 2011 for the same device in regression.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.kernels.base import Kernel
from gppvae.prior.statistics import Statistics

SMALL_RANK = 64  # below it one Cholesky factor takes no longer than starting a dozen small operations


def is_complete(kernel: Kernel, rows: Rows, split: str | None) -> bool:
    """Whether the rows are a complete design for a kernel split by a column: one product of leaves, the same noise for
    all rows, and every value of the column seen equally often with all that the other leaves read. Cost O(N log N).
    """
    terms = kernel.terms()
    if split is None or len(terms) > 1 or not kernel.carries_training_variance or len(rows) == 0:
        return False
    Q, view = rows.columns[split].values.shape[0], rows.columns[split].index
    objects = torch.zeros_like(view)
    for key in {leaf.key for leaf in terms[0].leaves} - {split}:
        column = rows.columns[key]
        objects = torch.unique(objects * column.values.shape[0] + column.index, return_inverse=True)[1]
    P = int(objects.max()) + 1
    if len(rows) < P * Q:
        return False
    counts = torch.bincount(objects * Q + view, minlength=P * Q).reshape(P, Q)
    return bool((counts == counts[:, :1]).all())


def is_cheaper(groups: int, width: int, table_rank: int, n_latents: int) -> bool:
    """Whether eigenvalues take fewer operations than a factor of C with its gradient, about 5 H^3 + 4 H^2 L.

    Args:
        groups: Q.  width: M.  table_rank: R.  n_latents: L.
    """
    Q, M, R, H = groups, width, table_rank, width * table_rank
    eigen = 25.0 * (M**3 + R**3) + 4.0 * H * n_latents * (M + R) + 4.0 * Q * M**2 * (M + R)
    return H >= SMALL_RANK and eigen < 5.0 * H**3 + 4.0 * H**2 * n_latents


def complete_design_nll(stats: Statistics, W: Tensor) -> Tensor:
    """`gp_nll` when all groups hold the same objects equally often and the noise is the same for all rows.

    Args:
        stats: grouped sums over all rows; their parts of S must be equal, which only the caller can know.
        W: (Q, R), the one table of the features.
    Cost: O(M^3 + R^3 + M R L (M + R) + Q M^2 (M + R)).
    """
    A, B, A_var = stats.split()
    R = torch.einsum("qml,qr->mrl", B, W)  # (M, R, L)
    value: Tensor = _CompleteTerm.apply(A.mean(0), W.T @ W, R, A_var, W, stats.sums)
    return value


class _CompleteTerm(torch.autograd.Function):
    """The formula of `gp_nll` and its gradient in the eigenbasis (marked ~), where C is diagonal.

    With m = C^-1 R and dS = 1/2 (m m' + C^-1 T C^-1 + L C^-1), dA and dG are dS contracted with the other factor.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, G: Tensor, R: Tensor, A_var: Tensor | None, W: Tensor, sums: Tensor) -> Tensor:
        t, u, e, n = sums
        L = R.shape[2]
        lam, U = torch.linalg.eigh(A)
        mu, O = torch.linalg.eigh(G)  # noqa: E741
        D = 1.0 / (1.0 + lam.unsqueeze(1) * mu)  # (M, R)
        rotated = torch.einsum("mi,mrl,rj->ijl", U, R, O)
        m = rotated * D.unsqueeze(2)  # ~C^-1 R
        quad = t - (rotated * m).sum()
        dA = 0.5 * (torch.einsum("ijl,j,kjl->ik", m, mu, m) + L * torch.diag(D @ mu))
        dG = 0.5 * (torch.einsum("ijl,i,ikl->jk", m, lam, m) + L * torch.diag(lam @ D))
        dA_var = dW = None
        if A_var is not None:
            turned, w2 = U.T @ A_var @ U, (W @ O).square()  # ~T = sum_q turned_q (x) ~w_q ~w_q'
            own = turned.diagonal(dim1=1, dim2=2)  # (Q, M)
            quad = quad + u - torch.einsum("qi,ij,qj->", own, D, w2)
            dA = dA + 0.5 * torch.einsum("qik,qj,ij,kj->ik", turned, w2 * mu, D, D)
            dG = dG + 0.5 * torch.einsum("qj,qk,qi,ij,ik->jk", W @ O, W @ O, own * lam, D, D)
            dA_var = -0.5 * (U * (w2 @ D.T).unsqueeze(1)) @ U.T
            dW = -((W @ O) * (own @ D)) @ O.T
        log_2pi = math.log(2.0 * math.pi)
        logdet = e - D.log().sum()
        dsums = sums.new_tensor([1.0, 0.0 if A_var is None else 1.0, L, L * log_2pi]) * 0.5
        back = torch.einsum("mi,ijl,rj->mrl", U, m, O)
        ctx.save_for_backward(U @ dA @ U.T, O @ dG @ O.T, back, dA_var, dW, dsums)
        return 0.5 * (quad + L * logdet + n * L * log_2pi)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dA, dG, m, dA_var, dW, dsums = ctx.saved_tensors
        (g,) = grads
        var_parts = (None, None) if dA_var is None else (g * dA_var, g * dW)
        return g * dA, g * dG, -g * m, *var_parts, g * dsums
