"""Sums over samples that are all the GP needs to know about the data.

With weights c_n = 1/d_n, d_n the latent noise variance of row n (alpha, plus the residual of the features),
encoder means mu and sbar_n = sum_l s2_nl:

    S = sum c v v'   R = sum c v mu'   T = sum c^2 sbar v v'   t = sum c |mu|^2   u = sum c sbar   e = sum log d

For one noise level these are the S/alpha, R/alpha ... of docs/math.md. Rows v_n = x_n (x) w_{q_n} are summed
per group q, so nothing wider than x is ever formed: cost O(N M (2M + L)) instead of O(N H (2H + L)).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    sides = _sides(features, mean, var, noise)
    return Statistics(_outer(*sides), _scalar_sums(mean, var, noise), mean.shape[1])


def posterior_statistics(features: Features, mean: Tensor, noise: Tensor) -> Statistics:
    """Of the sums over these rows, those that q(B) is conditioned on: t, u and e are left at zero."""
    sums = mean.new_zeros(4)
    sums[3] = len(mean)
    return Statistics(_outer(*_sides(features, mean, None, noise)), sums, mean.shape[1])


def inner(pull: Statistics, features: Features, mean: Tensor, var: Tensor | None, noise: Tensor) -> Tensor:
    """<pull, statistics(rows)> without forming the rows' own sums: its gradient is the batch's share.

    The wide side is contracted first, so that what is kept for the backward pass is (N, M).
    """
    left, right, counts = _sides(features, mean, var, noise)
    narrow = [r @ g.T for r, g in zip(right.split(counts), pull.outer, strict=True)]
    return (torch.cat(narrow) * left).sum() + (pull.sums * _scalar_sums(mean, var, noise)).sum()


def _outer(left: Tensor, right: Tensor, counts: list[int]) -> Tensor:
    if len(counts) == 1:
        return (left.T @ right).unsqueeze(0)
    return torch.stack([x.T @ r for x, r in zip(left.split(counts), right.split(counts), strict=True)])


def _sides(features: Features, mean: Tensor, var: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Rows in the order of their groups: c x, (N, M), and [x, mu, c sbar x]; the groups' sizes."""
    x, c = features.x, (1.0 / noise).reshape(-1, 1)  # (N, 1) or (1, 1)
    right = [x, mean] if var is None else [x, mean, (c * var.sum(1, keepdim=True)) * x]
    left, wide = c * x, torch.cat(right, dim=1)
    if features.n_groups == 1:
        return left, wide, [len(mean)]
    order = torch.argsort(features.group)
    counts = torch.bincount(features.group, minlength=features.n_groups).tolist()
    return left[order], wide[order], counts


def _scalar_sums(mean: Tensor, var: Tensor | None, noise: Tensor) -> Tensor:
    """t, u, e and N."""
    n = mean.shape[0]
    d = noise.expand(n)
    c = 1.0 / d
    t, e = (c * mean.square().sum(1)).sum(), d.log().sum()
    u = torch.zeros_like(t) if var is None else (c * var.sum(1)).sum()
    return torch.stack([t, u, e, torch.as_tensor(float(n), dtype=mean.dtype, device=mean.device)])
