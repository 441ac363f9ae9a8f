"""Derivatives written by hand, each justified by a benchmark.

Everything else is differentiated by autograd. Each function here has a gradcheck and is compared with the plain
expression in tests/prior/test_closed_form.py; benchmarks/gp_term.py has the times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gppvae.prior.arrowhead import Arrowhead, ArrowheadSums
from gppvae.prior.blocks import BlockFeatures, Places
from gppvae.prior.linalg import eye_like


class GPTerm(torch.autograd.Function):
    """The formula of `lowrank.gp_nll`: several times cheaper than back-propagating through a Cholesky factor.

    With m = C^-1 R:
        dS = 1/2 (m m' + C^-1 T C^-1 + L C^-1),  dR = -m,  dT = -1/2 C^-1
    """

    @staticmethod
    def forward(ctx: Any, S: Tensor, R: Tensor, T: Tensor | None, sums: Tensor) -> Tensor:
        t, u, e, n = sums
        L = R.shape[1]
        L_C = torch.linalg.cholesky(S + eye_like(S))
        m = torch.cholesky_solve(R, L_C)  # (H, L)
        C_inv = torch.cholesky_inverse(L_C)  # the gradient itself is made of it
        quad = t + u - (R * m).sum()  # Woodbury
        dS = torch.addmm(C_inv, m, m.T, beta=0.5 * L, alpha=0.5)  # 1/2 (L C^-1 + m m'), (H, H)
        if T is not None:
            CT = C_inv @ T
            quad = quad - CT.diagonal().sum()  # tr C^-1 T
            dS = torch.addmm(dS, CT, C_inv, alpha=0.5)  # + 1/2 C^-1 T C^-1
        logdet = e + 2.0 * L_C.diagonal().log().sum()  # determinant lemma
        log_2pi = math.log(2.0 * math.pi)
        dsums = sums.new_tensor([1.0, 1.0, L, L * log_2pi]) * 0.5  # with respect to t, u, e, N
        ctx.save_for_backward(dS, m, C_inv, dsums)
        ctx.with_var = T is not None
        return 0.5 * (quad + L * logdet + n * L * log_2pi)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        dS, m, C_inv, dsums = ctx.saved_tensors
        (g,) = grads
        return g * dS, -g * m, -0.5 * g * C_inv if ctx.with_var else None, g * dsums


@dataclass(frozen=True)
class PseudoPosterior:
    """q(B) = N(m, Sigma) given pseudo-observations, and the gradient of the whole bound with respect to their sums.

    Attributes:
        m: (H, L).  Sigma: (H, H), or its blocks.  kl: KL(q(B) || N(0, I)).
        dR: gradient with respect to R, (H, L).
        dS: that with respect to S is dS - (dR m' + m dR') / 2, (H, H) or its blocks.
        stale: whether dR and dS were estimated from rows seen earlier; they then lack a row's effect on itself.
    """

    m: Tensor
    Sigma: Tensor | Arrowhead
    kl: Tensor
    dR: Tensor
    dS: Tensor | Arrowhead
    stale: bool


@torch.no_grad()
def condition_on_pseudo(S: Tensor, R: Tensor, A: Tensor, G: Tensor, stale: bool) -> PseudoPosterior:
    """q(B) given sums over all rows, and the gradient of the bound with respect to them.

    With Sigma = (I + S)^-1 and m = Sigma R, for L latents:
        dS = -Sigma (A Sigma + L/2 Sigma - L/2 I),  dR = Sigma (G + m)

    Args:
        S, R: sum v v'/d (H, H) and sum v mu'/d (H, L) over all rows.
        A, G: sum h v v' (H, H) and sum v g' (H, L), with g_n and h_n the gradients of the expected negative log
            likelihood with respect to the mean f_n = m'v_n and the variance s_n = v_n'Sigma v_n of a row.
        stale: see PseudoPosterior.
    Cost: O(H^3 + H^2 L).
    """
    H, L = R.shape
    eye = eye_like(S)
    cholesky = torch.linalg.cholesky(S + eye)
    root = torch.linalg.solve_triangular(cholesky, eye, upper=False)  # L_C^-1
    Sigma = root.T @ root  # C^-1, (H, H)
    m = Sigma @ R
    dS = -Sigma @ (A @ Sigma + 0.5 * L * (Sigma - eye))
    kl = 0.5 * (m.square().sum() + L * (Sigma.diagonal().sum() - H)) + L * cholesky.diagonal().log().sum()
    return PseudoPosterior(m, Sigma, kl, Sigma @ (G + m), dS, stale)


@torch.no_grad()
def condition_blocks_on_pseudo(
    full: ArrowheadSums, gradients: ArrowheadSums, share: float, places: Places, rank: int
) -> PseudoPosterior:
    """As `condition_on_pseudo`, where S and A are arrowheads: dS = L/2 Sigma - Sigma (A + L/2 I) Sigma.

    Args:
        full: S and R.  gradients: A and G over this share of the rows.  rank: H.
    """
    L = full.R[0].shape[1]
    C = full.S.plus_identity().factor()
    m, Sigma = C.solve(full.R), C.inverse()
    dS = Sigma.times(0.5 * L).plus(C.sandwich(gradients.S.times(1.0 / share).plus_identity(0.5 * L)), -1.0)
    dR = C.solve((gradients.R[0] / share + m[0], gradients.R[1] / share + m[1]))  # Sigma (G + m)
    squares = m[0].square().sum() + m[1].square().sum()  # |m|^2
    kl = 0.5 * (squares + L * (Sigma.trace() - places.n_weights + C.logdet()))
    zeros = m[0].new_zeros(rank, L)
    return PseudoPosterior(places.put(*m, zeros), Sigma, kl, places.put(*dR, zeros), dS, stale=share != 1.0)


def _times(V: Tensor | BlockFeatures, matrix: Tensor | Arrowhead) -> Tensor:
    """V times a symmetric matrix, at the nonzero entries of V, (N, H) or (N, H0 + R)."""
    if isinstance(V, BlockFeatures):
        assert isinstance(matrix, Arrowhead)
        return matrix.at(V.shared, V.own, V.block)
    assert isinstance(matrix, Tensor)
    return V @ matrix


class PosteriorAtRows(torch.autograd.Function):
    """f = V m and s = diag(V Sigma V') at a q(B) that depends on the pseudo-observations of *all* rows.

    Rows outside the batch enter only as sums, so autograd cannot see how q(B) depends on (mu_n, d_n, v_n). With
    c = 1/d, r = mu - f, b = dR'v, and g, h the incoming gradients at f and s, the gradient is the sum of
      the direct effect of v on f and s:
        dv = m g + 2 h Sigma v
      the effect through q(B) on the bound of all rows, divided by n, the rows of the batch:
        dv = c (2 dS v + dR r - m b) / n,   dmu = c b / n,   dd = -c^2 (v.dS v + r.b) / n
      and, where dR and dS are stale, the effect of a row on its own f and s:
        dv = c ((g.r - 2 h s) Sigma v - s m g),   dmu = c s g,   dd = -c^2 s (g.r - h s)
    Stale gradients drop the term r.b: f lags behind mu while the encoder changes, and r.b would shrink the noise of
    every row without end.
    Source: docs/math.md, "Posterior coding in mini-batches".
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        noise: Tensor,
        given: PseudoPosterior,
        n: int,
        blocks: BlockFeatures | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x: V (N, H), or the entries (N, H0 + R) of `blocks`; autograd needs them as one tensor.

        mean: mu (N, L).  noise: d (N,).  n: rows of the batch over all processes.
        """
        V = x if blocks is None else blocks
        P = _times(V, given.Sigma)  # V Sigma
        f, s = V @ given.m, (x * P).sum(1, keepdim=True)  # (N, L), (N, 1)
        ctx.save_for_backward(x, mean, noise, P, f, s)
        ctx.given, ctx.n, ctx.blocks = given, n, blocks
        return f, s

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g, h), given = grads, ctx.given  # (N, L), (N, 1)
        x, mean, noise, P, f, s = ctx.saved_tensors
        V = x if ctx.blocks is None else ctx.blocks
        c, r = noise.reciprocal().unsqueeze(1), mean - f  # (N, 1), (N, L)
        shared, own = c / ctx.n, c * float(given.stale)  # factors of the effect through q(B), and of a row on itself
        D, b = _times(V, given.dS), V @ given.dR  # (N, H), (N, L)
        sD, gr = (x * D).sum(1, keepdim=True), (g * r).sum(1, keepdim=True)  # v.dS v and g.r, (N, 1)
        dmu = shared * b + own * s * g
        dV = _back(V, g - dmu, given.m) + _back(V, shared * r, given.dR)
        dV = dV + (2.0 * h + own * (gr - 2.0 * h * s)) * P + 2.0 * shared * D
        through_q = sD if given.stale else sD + (r * b).sum(1, keepdim=True)
        dd = -c * (shared * through_q + own * s * (gr - h * s))
        return dV, dmu, dd.squeeze(1), None, None, None


def _back(V: Tensor | BlockFeatures, g: Tensor, B: Tensor) -> Tensor:
    """g B' at the nonzero entries of V: the vector-Jacobian product of V B."""
    return V.back(g, B) if isinstance(V, BlockFeatures) else g @ B.T


class ConditionedAtRows(torch.autograd.Function):
    """f = V m and s = diag(V Sigma V') at the q(B) of the sums S and R, Sigma = (I + S)^-1 and m = Sigma R.

    With X = V Sigma, and g, h the incoming gradients at f (N, L) and s (N, 1):
        dV = g m' + 2 h X,  dR = X'g,  dS = -X'(g m' + h X)
    so that the backward pass needs no solve. Source: docs/math.md, "Leave-out training". Cost: O(H^3 + N H (H + L)).
    """

    @staticmethod
    def forward(ctx: Any, V: Tensor, S: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
        L_C = torch.linalg.cholesky(S + eye_like(S))
        solved = torch.cholesky_solve(torch.cat([R, V.T], dim=1), L_C)  # C^-1 [R, V'], (H, L + N)
        m, X = solved[:, : R.shape[1]], solved[:, R.shape[1] :].T  # (H, L), (N, H)
        ctx.save_for_backward(m, X)
        return V @ m, (V * X).sum(1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (g, h), (m, X) = grads, ctx.saved_tensors
        hX = h * X
        half = torch.addmm(hX, g, m.T)  # g m' + h X
        return half + hX, -(X.T @ half), X.T @ g
