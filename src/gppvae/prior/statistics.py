"""Sums over samples that are all the GP needs to know about the data.

With weights c_n = 1/d_n, d_n the latent noise variance of row n (alpha, plus the residual of the features),
encoder means mu and sbar_n = sum_l s2_nl:

    S = sum c v v'   R = sum c v mu'   T = sum c^2 sbar v v'   t = sum c |mu|^2   u = sum c sbar   e = sum log d

For one noise level these are the S/alpha, R/alpha ... of docs/math.md. Rows v_n = x_n (x) w_{q_n} are summed
per group q, so nothing wider than x is ever formed: cost O(N M (2M + L)) instead of O(N H (2H + L)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gppvae.kernels.features import Features


@dataclass(frozen=True)
class Statistics:
    """Grouped sums of a set of rows; add them to join sets.

    Attributes:
        outer: (Q, M, M + L + M), per group the sums of x [c x, c mu, c^2 sbar x]'; the last M columns
            are missing when Z was sampled.
        sums: (4,) t, u, e and the number of rows N.
        n_latents: L.
    """

    outer: Tensor
    sums: Tensor
    n_latents: int

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(self.outer + other.outer, self.sums + other.sums, self.n_latents)

    def tensors(self) -> list[Tensor]:
        """What processes add up."""
        return [self.outer, self.sums]

    def scaled(self, factor: float) -> Statistics:
        """The statistics of `factor` copies of the rows."""
        return Statistics(self.outer * factor, self.sums * factor, self.n_latents)

    def split(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Grouped parts of S (Q, M, M), R (Q, M, L) and T (Q, M, M) or None."""
        M, L = self.outer.shape[1], self.n_latents
        has_var = self.outer.shape[2] > M + L
        return (
            self.outer[:, :, :M],
            self.outer[:, :, M : M + L],
            self.outer[:, :, M + L :] if has_var else None,
        )


class StatisticsSum:
    """A running sum that keeps what rounding takes away (Kahan 1965).

    Adding k parts loses about two units in the last place however large k is, not k; a second set of numbers
    beside the sum holds the lost digits.
    """

    def __init__(self) -> None:
        self._total: Statistics | None = None
        self._lost: tuple[Tensor, Tensor] | None = None

    @property
    def empty(self) -> bool:
        return self._total is None

    @property
    def value(self) -> Statistics:
        assert self._total is not None, "at least one part is added before the sum is asked for"
        return self._total

    def add(self, part: Statistics) -> None:
        if self._total is None or self._lost is None:
            self._total = Statistics(part.outer.clone(), part.sums.clone(), part.n_latents)
            self._lost = torch.zeros_like(part.outer), torch.zeros_like(part.sums)
            return
        for total, lost, x in zip(self._total.tensors(), self._lost, part.tensors(), strict=True):
            y = x - lost
            new = total + y
            torch.sub(new, total, out=lost).sub_(y)
            total.copy_(new)


def statistics(features: Features, mean: Tensor, var: Tensor | None, noise: Tensor) -> Statistics:
    """Sums over these rows.

    Args:
        features: of the rows, x (N, M).  mean: encoder means or a sampled Z, (N, L).
        var: encoder variances (N, L), or None when `mean` is a sample.
        noise: d, (N,) or ().
    """
    x, c = features.x, (1.0 / noise).reshape(-1, 1)  # (N, 1) or (1, 1)
    right = [x, mean] if var is None else [x, mean, (c * var.sum(1, keepdim=True)) * x]
    outer = _outer(c * x, torch.cat(right, dim=1), _groups(features))
    return Statistics(outer, _scalar_sums(mean, var, noise), mean.shape[1])


def row_sums(features: Features, pairs: Sequence[tuple[Tensor, Tensor]]) -> Statistics:
    """Sums of x [c x, y]' over these rows for each pair (c, y), side by side; t, u and e are left at zero.

    Args:
        features: of the rows, x (N, M).  pairs: weights c, (N, 1) or (1, 1), and values y, (N, L).
    """
    x = features.x
    right = torch.cat([side for c, y in pairs for side in (c * x, y)], dim=1)
    sums = right.new_zeros(4)
    sums[3] = len(x)
    return Statistics(_outer(x, right, _groups(features)), sums, pairs[0][1].shape[1])


def posterior_statistics(features: Features, mean: Tensor, noise: Tensor) -> Statistics:
    """Of the sums over these rows, those that q(B) is conditioned on: S and R."""
    c = (1.0 / noise).reshape(-1, 1)
    return row_sums(features, [(c, c * mean)])


def inner(pull: Statistics, features: Features, mean: Tensor, var: Tensor | None, noise: Tensor) -> Tensor:
    """<pull, statistics(rows)> without forming the rows' own sums: its gradient is the batch's share.

    Tables are no part of these sums and get no gradient.
    """
    value: Tensor = _Inner.apply(features.x, mean, var, noise.expand(len(mean)), pull, _groups(features))
    return value


class _Inner(torch.autograd.Function):
    """The contraction with its gradient written out, in half the small operations.

    With A, B, T the blocks of `pull` for a row's group and p its factors of t, u, e, N, a row has the value
        x.a + p_t c |mu|^2 + p_u c sbar + p_e log d + p_N,   a = c (A x + B mu + c sbar T x)
    With [b_S, b_R, b_T] = c x'[A, B, T]:
        dx = a + b_S + c sbar b_T,  dmu = b_R + 2 p_t c mu,  ds2 = c (b_T.x + p_u)
        dd = c (p_e - x.a - c sbar b_T.x - p_t c |mu|^2 - p_u c sbar)
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, var: Tensor | None, noise: Tensor, pull: Statistics, groups: Groups
    ) -> Tensor:
        (t, u, e, per_row), c = pull.sums, (1.0 / noise).unsqueeze(1)
        cs = None if var is None else c * var.sum(1, keepdim=True)
        right = torch.cat([x, mean] if cs is None else [x, mean, cs * x], dim=1)
        a = _times(right, pull.outer.transpose(1, 2), groups).mul_(c)
        b = _times(c * x, pull.outer, groups)
        b_S, b_R, *b_T = b.split([x.shape[1], mean.shape[1]] + ([] if cs is None else [x.shape[1]]), dim=1)
        value = (x * a).sum(1, keepdim=True) + t * c * mean.square().sum(1, keepdim=True)
        dx, by_c, ds = a + b_S, value, None
        if cs is not None:
            bx = (b_T[0] * x).sum(1, keepdim=True)
            dx.addcmul_(cs, b_T[0])
            value = value + u * cs
            by_c, ds = torch.addcmul(value, cs, bx), (c * (bx + u)).expand_as(mean)
        ctx.save_for_backward(dx, torch.addcmul(b_R, mean, c * (2.0 * t)), ds, (c * (e - by_c)).squeeze(1))
        return value.sum() + e * noise.log().sum() + per_row * len(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if by is None else grads[0] * by for by in ctx.saved_tensors), None, None


@dataclass(frozen=True)
class Groups:
    """Rows in the order of their groups, and how many each group has; no order when there is one group."""

    order: Tensor | None
    counts: list[int]


def _groups(features: Features) -> Groups:
    if features.n_groups == 1:
        return Groups(None, [len(features.group)])
    counts = torch.bincount(features.group, minlength=features.n_groups).tolist()
    return Groups(torch.argsort(features.group), counts)


def _outer(left: Tensor, right: Tensor, groups: Groups) -> Tensor:
    """Per group the sum of left_n right_n', (Q, A, B)."""
    if groups.order is None:
        return (left.T @ right).unsqueeze(0)
    left, right = left[groups.order].split(groups.counts), right[groups.order].split(groups.counts)
    return torch.stack([x.T @ r for x, r in zip(left, right, strict=True)])


def _times(rows: Tensor, matrices: Tensor, groups: Groups) -> Tensor:
    """Every row times its group's matrix: (N, A), (Q, A, B) -> (N, B)."""
    if groups.order is None:
        return rows @ matrices[0]
    parts = rows[groups.order].split(groups.counts)
    product = torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])
    return torch.empty_like(product).index_copy_(0, groups.order, product)


def _scalar_sums(mean: Tensor, var: Tensor | None, noise: Tensor) -> Tensor:
    """t, u, e and N."""
    n = mean.shape[0]
    d = noise.expand(n)
    c = 1.0 / d
    t, e = (c * mean.square().sum(1)).sum(), d.log().sum()
    u = torch.zeros_like(t) if var is None else (c * var.sum(1)).sum()
    return torch.stack([t, u, e, torch.as_tensor(float(n), dtype=mean.dtype, device=mean.device)])
