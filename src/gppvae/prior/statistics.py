"""Sums over samples that are all the GP needs to know about the data.

With weights c_n = 1/d_n, d_n the latent noise variance of row n (alpha, plus the residual of the features),
encoder means mu and sbar_n = sum_l s2_nl:

    S = sum c v v'   R = sum c v mu'   T = sum c^2 sbar v v'   t = sum c |mu|^2   u = sum c sbar   e = sum log d

For one noise level these are the S/alpha, R/alpha ... of docs/math.md. They add over rows, batches and processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.layout import GroupedRows


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
        """The same sums, each tensor changed."""
        return Statistics(change(self.outer), change(self.sums), self.n_latents)

    def plus(self, other: Statistics, times: float = 1.0) -> Statistics:
        """These rows, and those of another set with weight `times`."""
        outer, sums = (a.add(b, alpha=times) for a, b in zip(self.tensors(), other.tensors(), strict=True))
        return Statistics(outer, sums, self.n_latents)

    def dot(self, other: Statistics) -> Tensor:
        """Inner product of all entries; with a gradient with respect to sums, a loss that has this gradient."""
        return (self.outer * other.outer).sum() + (self.sums * other.sums).sum()

    def tensors(self) -> list[Tensor]:
        """What processes add up."""
        return [self.outer, self.sums]

    def split(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Parts of S (Q, M, M), R (Q, M, L) and T (Q, M, M) or None."""
        M, L = self.outer.shape[1], self.n_latents
        S, R, T = self.outer.split([M, L, self.outer.shape[2] - M - L], dim=2)
        return S, R, T if T.shape[2] else None


Sums = list[Statistics]  # one per group of latents


def statistics(rows: GroupedRows, mean: Tensor, var: Tensor | None, noise: Tensor) -> Statistics:
    """Sums over these rows.

    Args:
        rows: x (N, M).  mean: encoder means or a sampled Z, (N, L).
        var: encoder variances (N, L), or None when `mean` is a sample.
        noise: d, (N,) or ().
    Cost: O(N M (2M + L)).
    """
    x, c = rows.x, noise.reciprocal().reshape(-1, 1)  # (N, 1) or (1, 1)
    right = [x, mean] if var is None else [x, mean, (c * var.sum(1, keepdim=True)) * x]
    outer = rows.outer(c * torch.cat(right, dim=1))
    return Statistics(outer, _scalar_sums(mean, var, noise), mean.shape[1])


def weighted_sums(rows: GroupedRows, weight: Tensor, values: Tensor) -> Statistics:
    """Sums of weight v v' and of v values', in the places of S and R; of the scalars only N.

    Args:
        rows: x (N, M).  weight: (N, 1).  values: (N, L).
    """
    outer = rows.outer(torch.cat([weight * rows.x, values], dim=1))
    return Statistics(outer, outer.new_tensor([0.0, 0.0, 0.0, len(values)]), values.shape[1])


def _scalar_sums(mean: Tensor, var: Tensor | None, noise: Tensor) -> Tensor:
    """t, u, e and N."""

    def weighted(values: Tensor) -> Tensor:
        return (values.sum(1) / noise).sum() if noise.ndim else values.sum() / noise

    n, t = len(mean), weighted(mean.square())
    u = torch.zeros_like(t) if var is None else weighted(var)
    e = noise.log().sum() if noise.ndim else n * noise.log()
    return torch.stack([t, u, e, torch.full_like(t, n)])


class StatisticsSum:
    """A running sum with compensation for rounding (Kahan 1965).

    The error stays at about two units in the last place, however many parts are added: a second set of numbers holds
    the digits that rounding loses.
    """

    def __init__(self) -> None:
        self._total: Sums = []
        self._lost: list[list[Tensor]] = []

    @property
    def value(self) -> Sums:
        assert self._total, "at least one part is added before the sum is asked for"
        return self._total

    def add(self, parts: Sums) -> None:
        """Add the sums over further rows, one per group of latents."""
        if not self._total:
            self._total = list(parts)
            self._lost = [[torch.zeros_like(x) for x in part.tensors()] for part in parts]
            return
        total = []
        for so_far, lost, part in zip(self._total, self._lost, parts, strict=True):
            outer, sums = (_add_keeping(*each) for each in zip(so_far.tensors(), lost, part.tensors(), strict=True))
            total.append(Statistics(outer, sums, part.n_latents))
        self._total = total


def _add_keeping(total: Tensor, lost: Tensor, x: Tensor) -> Tensor:
    """total + x with compensation; the digits that rounding loses are kept in `lost`, in place."""
    y = x - lost
    new = total + y
    torch.sub(new, total, out=lost).sub_(y)
    return new
