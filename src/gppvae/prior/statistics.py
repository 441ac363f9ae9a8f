"""Sufficient statistics of the GP: sums over samples.

With weights c_n = 1/d_n, d_n the latent noise variance of row n (alpha, plus the residual of the features),
encoder means mu and sbar_n = sum_l s2_nl:

    S = sum c v v'   R = sum c v mu'   T = sum c^2 sbar v v'   t = sum c |mu|^2   u = sum c sbar   e = sum log d

For one noise level these are the S/alpha, R/alpha ... of docs/math.md. They add over rows, batches and processes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gppvae.prior.arrowhead import Arrowhead, ArrowheadSums
from gppvae.prior.blocks import BlockFeatures
from gppvae.prior.layout import GroupedRows
from gppvae.prior.linalg import eye_like


@dataclass(frozen=True)
class Statistics:
    """Sums over a set of rows, per group of the layout.

    Attributes:
        outer: (Q, M, M + L + M), per group the sums of x [c x, c mu, c^2 sbar x]'; the last M columns
            are missing when Z was sampled.
        sums: (4,) t, u, e and the number of rows N.
        n_latents: L.
    """

    outer: Tensor
    sums: Tensor
    n_latents: int

    def map(self, change: Callable[[Tensor], Tensor]) -> Statistics:
        """The same sums with a function applied to each tensor."""
        return Statistics(change(self.outer), change(self.sums), self.n_latents)

    def plus(self, other: Statistics, times: float = 1.0) -> Statistics:
        """These rows, and those of another set with weight `times`."""
        outer, sums = (a.add(b, alpha=times) for a, b in zip(self.tensors(), other.tensors(), strict=True))
        return Statistics(outer, sums, self.n_latents)

    def dot(self, other: Statistics) -> Tensor:
        """Inner product of all entries. If `self` is the gradient of a loss in the sums: its first-order part."""
        return (self.outer * other.outer).sum() + (self.sums * other.sums).sum()

    def tensors(self) -> list[Tensor]:
        """The tensors that are summed over processes."""
        return [self.outer, self.sums]

    def whole(self) -> Statistics:
        """The same sums with `parts` merged, so that `tensors` have the same shapes in all processes."""
        return self

    def plus_compensated(self, part: Statistics, lost: list[Tensor]) -> Statistics:
        """These rows and those of `part`, by Kahan summation; `lost` holds the rounding errors and is updated."""
        outer, sums = (_add_compensated(*each) for each in zip(self.tensors(), lost, part.tensors(), strict=True))
        return Statistics(outer, sums, self.n_latents)

    def split(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Parts of S (Q, M, M), R (Q, M, L) and T (Q, M, M) or None."""
        M, L = self.outer.shape[1], self.n_latents
        S, R, T = self.outer.split([M, L, self.outer.shape[2] - M - L], dim=2)
        return S, R, T if T.shape[2] else None


@dataclass(frozen=True)
class BlockStatistics(Statistics):
    """Sums over rows whose features are shared (v0) or of their id's own block (u).

    Attributes:
        outer: (1, H0, H0 + L + H0), the sums of v0 [c v0, c mu, c^2 sbar v0]'.
        own: (P, R, R + H0 + L + R + H0), per id the sums of u [c u, c v0, c mu, c^2 sbar u, c^2 sbar v0]'; as in
            `outer`, the columns with sbar are missing when Z was sampled. None for zeros.
        parts: further sums like `own`, each over few ids: their numbers (G,), without repeats, and (G, R, ...). The
            cost of a batch is then that of its rows, however many ids there are.
        n_blocks: P.
    """

    own: Tensor | None
    parts: tuple[tuple[Tensor, Tensor], ...]
    n_blocks: int

    def map(self, change: Callable[[Tensor], Tensor]) -> BlockStatistics:
        outer, sums, own = map(change, self.tensors())
        return replace(self, outer=outer, sums=sums, own=own)

    def plus(self, other: Statistics, times: float = 1.0) -> BlockStatistics:
        assert isinstance(other, BlockStatistics)
        outer, sums = self.outer.add(other.outer, alpha=times), self.sums.add(other.sums, alpha=times)
        own = self.own
        if other.own is not None:
            own = times * other.own if own is None else own.add(other.own, alpha=times)
        parts = self.parts + tuple((blocks, times * part) for blocks, part in other.parts)
        found = replace(self, outer=outer, sums=sums, own=own, parts=parts)
        if own is not None and own is self.own:  # unchanged, so what was eliminated is reused
            found.__dict__["eliminated"] = self.eliminated
        return found

    def dot(self, other: Statistics) -> Tensor:
        assert isinstance(other, BlockStatistics) and self.own is not None and not self.parts
        found = super().dot(other) + sum(((self.own[blocks] * part).sum() for blocks, part in other.parts), 0.0)
        return found if other.own is None else found + (self.own * other.own).sum()

    def tensors(self) -> list[Tensor]:
        assert self.own is not None and not self.parts, "whole() comes first"
        return [self.outer, self.sums, self.own]

    def whole(self) -> BlockStatistics:
        own = self.own
        for blocks, part in self.parts:  # (G,), (G, R, ...)
            own = part.new_zeros(self.n_blocks, *part.shape[1:]) if own is None else own
            in_place = own is not self.own and not own.requires_grad
            own = own.index_add_(0, blocks, part) if in_place else own.index_add(0, blocks, part)
        return replace(self, own=own, parts=())

    def plus_compensated(self, part: Statistics, lost: list[Tensor]) -> BlockStatistics:
        assert isinstance(part, BlockStatistics) and self.own is not None and part.own is None
        outer, sums = _add_compensated(self.outer, lost[0], part.outer), _add_compensated(self.sums, lost[1], part.sums)
        # In place, at the ids of these rows only: a sum over all batches costs O(N), not a copy of all ids per batch.
        for blocks, own in part.parts:
            of_blocks = lost[2][blocks]  # (G, R, ...)
            self.own[blocks] = _add_compensated(self.own[blocks], of_blocks, own)
            lost[2][blocks] = of_blocks
        return replace(self, outer=outer, sums=sums)

    def assembled(self) -> ArrowheadSums:
        """S, R and T as arrowheads."""
        own = self.whole().own  # (P, R, R + H0 + L [+ R + H0])
        assert own is not None
        shared, L = self.outer[0], self.n_latents
        H0, R = len(shared), own.shape[1]
        S_00, R_0, T_00 = shared.split([H0, L, shared.shape[1] - H0 - L], dim=1)
        with_var = own.shape[2] > R + H0 + L
        S_p, arms, R_p, T_p, T_arms = own.split([R, H0, L, *((R, H0) if with_var else (0, 0))], dim=2)
        T = Arrowhead(T_00, T_arms, T_p) if with_var else None
        return ArrowheadSums(Arrowhead(S_00, arms, S_p), (R_0, R_p), T, self.sums)

    @functools.cached_property
    def eliminated(self) -> Tensor:
        """sum_p S_p'C_p^-1 [S_p, R_p] over all ids in `own`: subtracted where their weights are integrated out."""
        assert self.own is not None
        return _eliminated(self.own, self.outer.shape[1], self.n_latents)

    def only(self, blocks: Tensor) -> BlockStatistics:
        """S and R of a few ids, renumbered; the weights of all others are integrated out, which is exact for q(B).

        Args:
            blocks: (G,) sorted, all those of `parts` among them.
        """
        assert self.own is not None
        H0, own = self.outer.shape[1], self.own[blocks]  # (G, R, ...)
        others = self.eliminated - _eliminated(own, H0, self.n_latents)  # (H0, H0 + L)
        parts = tuple((torch.searchsorted(blocks, which), part) for which, part in self.parts)
        outer = self.outer - torch.cat([others, self.outer.new_zeros(H0, self.outer.shape[2] - others.shape[1])], dim=1)
        return replace(self, outer=outer, own=own, parts=parts, n_blocks=len(blocks))


def _eliminated(own: Tensor, H0: int, L: int) -> Tensor:
    """sum_p S_p'C_p^-1 [S_p, R_p], the Schur complement's second term, (H0, H0 + L)."""
    R = own.shape[1]
    C = own[:, :, :R] + eye_like(own[:, :, :R])  # C_p, (P, R, R)
    right = own[:, :, R : R + H0 + L]  # arms and R_p, side by side
    solved = torch.cholesky_solve(right, torch.linalg.cholesky(C))  # [A_p, C_p^-1 R_p], (P, R, H0 + L)
    return right[:, :, :H0].flatten(0, 1).mT @ solved.flatten(0, 1)  # (H0, P R) (P R, H0 + L)


Sums = list[Statistics]  # one per group of latents


def statistics(rows: GroupedRows, mean: Tensor, var: Tensor | None, noise: Tensor) -> Statistics:
    """S, R, T and the scalars over these rows, per group of the layout (module docstring).

    Args:
        rows: x (N, M).  mean: encoder means or a sampled Z, (N, L).
        var: encoder variances (N, L), or None when `mean` is a sample.
        noise: d, (N,) or ().
    Cost: O(N M (2M + L)).
    """
    x, c = rows.x, noise.reciprocal().reshape(-1, 1)  # (N, 1) or (1, 1)
    right = [x, mean] if var is None else [x, mean, (c * var.sum(1, keepdim=True)) * x]
    outer = rows.outer(c * torch.cat(right, dim=1))  # one product for S, R and T: (Q, M, M + L + M)
    return Statistics(outer, _scalar_sums(mean, var, noise), mean.shape[1])


def weighted_sums(rows: GroupedRows, weight: Tensor, values: Tensor) -> Statistics:
    """sum_n weight_n v v' in the place of S and sum_n v values' in that of R; of the scalars only N.

    Args:
        rows: x (N, M).  weight: (N, 1).  values: (N, L).
    """
    outer = rows.outer(torch.cat([weight * rows.x, values], dim=1))  # (Q, M, M + L)
    return Statistics(outer, outer.new_tensor([0.0, 0.0, 0.0, len(values)]), values.shape[1])


def block_statistics(V: BlockFeatures, mean: Tensor, var: Tensor | None, noise: Tensor) -> BlockStatistics:
    """As `statistics`, for features in blocks. Cost: O(N (H0 + R) (2 H0 + 2 R + L))."""
    c = noise.reciprocal().reshape(-1, 1)  # (N, 1) or (1, 1)
    second = None if var is None else c * var.sum(1, keepdim=True)  # c sbar, (N, 1)
    shared = [V.shared, mean] if second is None else [V.shared, mean, second * V.shared]
    own = [V.own, V.shared, mean] if second is None else [V.own, V.shared, mean, second * V.own, second * V.shared]
    return _in_blocks(V, c * torch.cat(shared, 1), c * torch.cat(own, 1), _scalar_sums(mean, var, noise), mean.shape[1])


def weighted_block_sums(V: BlockFeatures, weight: Tensor, values: Tensor) -> BlockStatistics:
    """As `weighted_sums`, for features in blocks."""
    shared = torch.cat([weight * V.shared, values], dim=1)
    own = torch.cat([weight * V.own, weight * V.shared, values], dim=1)
    return _in_blocks(V, shared, own, values.new_tensor([0.0, 0.0, 0.0, len(values)]), values.shape[1])


def _in_blocks(V: BlockFeatures, shared: Tensor, own: Tensor, sums: Tensor, n_latents: int) -> BlockStatistics:
    """sum_n v0 shared', and sum_n u own' per id of these rows."""
    blocks, place = V.block.unique(return_inverse=True)  # (G,), (N,)
    part = blocks, GroupedRows(V.own, place, len(blocks)).outer(own)  # (G, R, ...)
    return BlockStatistics((V.shared.T @ shared).unsqueeze(0), sums, n_latents, None, (part,), len(V.places.own))


def _scalar_sums(mean: Tensor, var: Tensor | None, noise: Tensor) -> Tensor:
    """t, u, e and N, (4,)."""

    def weighted(values: Tensor) -> Tensor:  # (N, L) -> ()
        return (values.sum(1) / noise).sum() if noise.ndim else values.sum() / noise

    n, t = len(mean), weighted(mean.square())
    u = torch.zeros_like(t) if var is None else weighted(var)
    e = noise.log().sum() if noise.ndim else n * noise.log()
    return torch.stack([t, u, e, torch.full_like(t, n)])


class StatisticsSum:
    """A compensated sum of statistics (Kahan 1965).

    A second set of tensors holds the rounding errors, so the total error stays at about two units in the last place,
    however many batches are added.
    """

    def __init__(self) -> None:
        self._total: Sums = []
        self._lost: list[list[Tensor]] = []

    @property
    def value(self) -> Sums:
        assert self._total, "add() comes before value"
        return self._total

    def add(self, parts: Sums) -> None:
        """Add the sums over further rows, one per group of latents."""
        if not self._total:
            self._total = [part.whole() for part in parts]
            self._lost = [[torch.zeros_like(x) for x in part.tensors()] for part in self._total]
            return
        each = zip(self._total, self._lost, parts, strict=True)
        self._total = [so_far.plus_compensated(part, lost) for so_far, lost, part in each]


def _add_compensated(total: Tensor, lost: Tensor, x: Tensor) -> Tensor:
    """total + x by Kahan summation; `lost` is updated in place."""
    y = x - lost
    new = total + y
    torch.sub(new, total, out=lost).sub_(y)  # (new - total) - y: what rounding added to the sum
    return new
