"""Algebra of an arrowhead C = I + S: one dense block C_00, small blocks C_p on the diagonal, arms S_p between them.

    A_p = C_p^-1 S_p      Schur = C_00 - sum_p S_p'A_p      C^-1 R:  m_0 = Schur^-1 (R_0 - sum_p A_p'R_p)
    logdet C = logdet Schur + sum_p logdet C_p                       m_p = C_p^-1 R_p - A_p m_0

Nothing has more than O(P R (R + H0)) numbers: time and memory are linear in the number P of ids. A block without data
has S_p = 0 and keeps its prior. Source: docs/math.md, "Terms of many ids".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.linalg import eye_like, matvec, vecmat

Tall = tuple[Tensor, Tensor]  # H x L numbers: shared (H0, L), and of each id (P, R, L)


@dataclass(frozen=True)
class Arrowhead:
    """Blocks of a symmetric matrix: shared (H0, H0), arms (P, R, H0), own (P, R, R); all other blocks are not stored.

    They are zero, or, in an inverse, not needed: v'M v at a row reads only these.
    """

    shared: Tensor
    arms: Tensor
    own: Tensor

    def plus(self, other: Arrowhead, times: float = 1.0) -> Arrowhead:
        return Arrowhead(
            self.shared.add(other.shared, alpha=times),
            self.arms.add(other.arms, alpha=times),
            self.own.add(other.own, alpha=times),
        )

    def times(self, value: float) -> Arrowhead:
        return Arrowhead(self.shared * value, self.arms * value, self.own * value)

    def plus_identity(self, value: float = 1.0) -> Arrowhead:
        return Arrowhead(self.shared + value * eye_like(self.shared), self.arms, self.own + value * eye_like(self.own))

    def times_tall(self, x: Tall) -> Tall:
        """M x, where M is zero outside the stored blocks. Cost O(P R (R + H0) L + H0^2 L)."""
        return self.shared @ x[0] + _sum_over_ids(self.arms, x[1]), self.arms @ x[0] + self.own @ x[1]

    def trace(self) -> Tensor:
        return self.shared.diagonal().sum() + self.own.diagonal(dim1=1, dim2=2).sum()

    def at(self, shared: Tensor, own: Tensor, block: Tensor) -> Tensor:
        """M v_n at the nonzero entries of v_n, (N, H0 + R).

        Args:
            shared: v0, (N, H0).  own: u, (N, R).  block: p, (N,).
        """
        arms, blocks = self.arms[block], self.own[block]  # (N, R, H0), (N, R, R)
        top = shared @ self.shared + vecmat(own, arms)
        return torch.cat([top, matvec(arms, shared) + matvec(blocks, own)], dim=1)

    def factor(self) -> Factor:
        """Block Cholesky factor: eliminate the ids, then factor the Schur complement.

        Cost O(P R^2 (R + H0) + P R H0^2 + H0^3).
        """
        L_p = torch.linalg.cholesky(self.own)  # (P, R, R)
        A = torch.cholesky_solve(self.arms, L_p)  # C_p^-1 S_p, (P, R, H0)
        L_0 = torch.linalg.cholesky(self.shared - _sum_over_ids(self.arms, A))  # Schur complement, (H0, H0)
        # Contiguous, as tensors read from a file are, so that a loaded model rounds in the same way.
        return Factor(L_p.contiguous(), A.contiguous(), L_0.contiguous())


@dataclass(frozen=True)
class Factor:
    """C = F F' by blocks: Cholesky factors of C_p (P, R, R) and of Schur (H0, H0), and A_p = C_p^-1 S_p (P, R, H0)."""

    own: Tensor
    arms: Tensor
    shared: Tensor

    def only(self, blocks: Tensor) -> Factor:
        """The marginal of the shared weights and those of a few ids, (G,): blocks of the others are left out."""
        return Factor(self.own[blocks], self.arms[blocks], self.shared)

    def put(self, blocks: Tensor, other: Factor) -> Factor:
        """The inverse of `only`: new factors of a few ids and of the shared weights.

        The conditionals of all other ids given the shared weights, C_p and A_p, stay as they are.
        """
        own, arms = self.own.index_copy(0, blocks, other.own), self.arms.index_copy(0, blocks, other.arms)
        return Factor(own, arms, other.shared)

    def logdet(self) -> Tensor:
        """log |C| = log |Schur| + sum_p log |C_p|."""
        diagonals = self.shared.diagonal().log().sum() + self.own.diagonal(dim1=1, dim2=2).log().sum()
        return 2.0 * diagonals

    def solve(self, right: Tall) -> Tall:
        """C^-1 R."""
        R_0, R_p = right
        m_0 = torch.cholesky_solve(R_0 - _sum_over_ids(self.arms, R_p), self.shared)  # (H0, L)
        return m_0, torch.cholesky_solve(R_p, self.own) - self.arms @ m_0

    def times(self, eps: Tall) -> Tall:
        """F eps, a draw of N(0, C) for eps ~ N(0, I), with F = [[L_0, A_p'L_p], [0, L_p]]."""
        own = self.own @ eps[1]  # L_p eps_p, (P, R, L)
        return self.shared @ eps[0] + _sum_over_ids(self.arms, own), own

    def matrix(self) -> Arrowhead:
        """C itself."""
        own = self.own @ self.own.mT  # C_p
        arms = own @ self.arms  # S_p = C_p A_p
        return Arrowhead(self.shared @ self.shared.mT + _sum_over_ids(self.arms, arms), arms, own)

    def inverse(self) -> Arrowhead:
        """The blocks of C^-1 as in `Arrowhead`: Schur^-1, -A_p Schur^-1, C_p^-1 + A_p Schur^-1 A_p'."""
        shared = torch.cholesky_inverse(self.shared)
        arms = -self.arms @ shared
        return Arrowhead(shared, arms, torch.cholesky_inverse(self.own) - arms @ self.arms.mT)

    def sandwich(self, X: Arrowhead) -> Arrowhead:
        """The blocks of C^-1 X C^-1 as in `Arrowhead`, X an arrowhead.

        With M = X_00 - sum_p (A_p'X_p0 + X_p0'A_p - A_p'X_p A_p), N_p = X_p0 - X_p A_p and K_p = C_p^-1 N_p Schur^-1:
            Q_00 = Schur^-1 M Schur^-1              Q_p0 = K_p - A_p Q_00
            Q_p = C_p^-1 X_p C_p^-1 - K_p A_p' - A_p K_p' + A_p Q_00 A_p'
        """
        inner = torch.cholesky_solve(self._projected(X), self.shared)  # Schur^-1 M
        shared = torch.cholesky_solve(inner.mT, self.shared)  # Q_00: M is symmetric, so (Schur^-1 M)' = M Schur^-1
        N = X.arms - X.own @ self.arms  # N_p, (P, R, H0)
        CN = torch.cholesky_solve(N, self.own).flatten(0, 1)  # (P, R, H0) -> (P R, H0)
        K = torch.cholesky_solve(CN.mT, self.shared).mT.view_as(N)  # K_p, one solve for all ids
        KA = K @ self.arms.mT  # (P, R, R)
        own = torch.cholesky_solve(torch.cholesky_solve(X.own, self.own).mT, self.own)  # C_p^-1 X_p C_p^-1
        return Arrowhead(shared, K - self.arms @ shared, own - KA - KA.mT + self.arms @ shared @ self.arms.mT)

    def trace_of_inverse_times(self, X: Arrowhead) -> Tensor:
        """tr C^-1 X = tr Schur^-1 M + sum_p tr C_p^-1 X_p, M as in `sandwich`."""
        shared = torch.cholesky_solve(self._projected(X), self.shared).diagonal().sum()
        return shared + torch.cholesky_solve(X.own, self.own).diagonal(dim1=1, dim2=2).sum()

    def _projected(self, X: Arrowhead) -> Tensor:
        """M of `sandwich`: [I, -A']X[I, -A']' over the shared weights, (H0, H0)."""
        cross = _sum_over_ids(self.arms, X.arms)
        return X.shared - cross - cross.mT + _sum_over_ids(self.arms, X.own @ self.arms)


@dataclass(frozen=True)
class ArrowheadSums:
    """Statistics in the form of the equations; T is None when Z was sampled."""

    S: Arrowhead
    R: Tall
    T: Arrowhead | None
    sums: Tensor  # (4,) t, u, e, N


def arrowhead_nll(full: ArrowheadSums) -> Tensor:
    """The formula of `lowrank.gp_nll`, from blocks."""
    t, u, e, n = full.sums
    L = full.R[0].shape[1]
    C = full.S.plus_identity().factor()  # I + S
    # t - tr R'C^-1 R + u, the trace over the shared weights and over the blocks.
    quad = t + u - sum(((r * m).sum() for r, m in zip(full.R, C.solve(full.R), strict=True)), torch.zeros_like(t))
    if full.T is not None:
        quad = quad - C.trace_of_inverse_times(full.T)
    return 0.5 * (quad + L * (e + C.logdet()) + n * L * math.log(2.0 * math.pi))


def _sum_over_ids(left: Tensor, right: Tensor) -> Tensor:
    """sum_p left_p'right_p, (P, R, A), (P, R, B) -> (A, B)."""
    return left.flatten(0, 1).mT @ right.flatten(0, 1)  # (A, P R) (P R, B)
