"""Sums over samples that are all the GP needs to know about the data.

With weights c_n = 1/d_n, d_n the latent noise variance of row n (alpha, plus the residual of the features),
encoder means mu and sbar_n = sum_l s2_nl:

    S = sum c v v'   R = sum c v mu'   T = sum c^2 sbar v v'   t = sum c |mu|^2   u = sum c sbar   e = sum log d

For one noise level these are the S/alpha, R/alpha ... of docs/math.md. Rows v_n = x_n (x) w_{q_n} are summed
per group q, so nothing wider than x is ever formed: cost O(N M (2M + L)) instead of O(N H (2H + L)).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.kernels.features import Features
from gppvae.prior.groups import GroupedRows


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

    @classmethod
    def observed(cls, outer: Tensor, n_rows: int, n_latents: int) -> Statistics:
        """Of rows of whose scalar sums only their number is asked."""
        return cls(outer, outer.new_tensor([0.0, 0.0, 0.0, n_rows]), n_latents)

    @functools.cached_property
    def scalars(self) -> list[float]:
        """The four numbers of `sums`, read once."""
        return self.sums.tolist()

    def plus(self, other: Statistics, times: float = 1.0) -> Statistics:
        """These rows, and those of another set so many times."""
        outer, sums = (a.add(b, alpha=times) for a, b in zip(self.tensors(), other.tensors(), strict=True))
        return Statistics(outer, sums, self.n_latents)

    def add_(self, other: Statistics, times: float = 1.0) -> Statistics:
        """As `plus`, in place."""
        for a, b in zip(self.tensors(), other.tensors(), strict=True):
            a.add_(b, alpha=times)
        return self

    def tensors(self) -> list[Tensor]:
        """What processes add up."""
        return [self.outer, self.sums]

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
        self._lost: list[Tensor] = []

    @property
    def empty(self) -> bool:
        return self._total is None

    @property
    def value(self) -> Statistics:
        assert self._total is not None, "at least one part is added before the sum is asked for"
        return self._total

    def add(self, part: Statistics) -> None:
        if self._total is None:
            self._total, self._lost = part, [torch.zeros_like(x) for x in part.tensors()]
            return
        parts = zip(self._total.tensors(), self._lost, part.tensors(), strict=True)
        outer, sums = (_add_keeping(*each) for each in parts)
        self._total = Statistics(outer, sums, part.n_latents)


def _add_keeping(total: Tensor, lost: Tensor, x: Tensor) -> Tensor:
    """total + x; `lost` takes what rounding took away, and gives what it took before."""
    y = x - lost
    new = total + y
    torch.sub(new, total, out=lost).sub_(y)
    return new


def statistics(features: Features, mean: Tensor, var: Tensor | None, noise: Tensor) -> Statistics:
    """Sums over these rows.

    Args:
        features: of the rows, x (N, M).  mean: encoder means or a sampled Z, (N, L).
        var: encoder variances (N, L), or None when `mean` is a sample.
        noise: d, (N,) or ().
    """
    x, c = features.x, noise.reciprocal().reshape(-1, 1)  # (N, 1) or (1, 1)
    right = [x, mean] if var is None else [x, mean, (c * var.sum(1, keepdim=True)) * x]
    outer = GroupedRows(features).outer(c * torch.cat(right, dim=1))
    return Statistics(outer, _scalar_sums(mean, var, noise), mean.shape[1])


def row_sums(rows: GroupedRows, *pairs: tuple[Tensor, Tensor]) -> Tensor:
    """Sums of x [c x, y]' over these rows for each pair (c, y), side by side, (Q, M, pairs * (M + L)).

    Args:
        rows: x (N, M).  pairs: weights c, (N, 1) or (1, 1), and values y, (N, L).
    """
    return rows.outer(torch.cat([part for c, y in pairs for part in (rows.x * c, y)], dim=1))


@dataclass(frozen=True)
class PulledRows:
    """What the gradients of rows are made of before their latents are known.

    Attributes:
        a, b, o: c x'[A, B, T] (N, M), (N, L), (N, M), with A, B, T the blocks of a gradient for a row's group.
        ox: o.x (N, 1). The last two are None when Z was sampled.
    """

    a: Tensor
    b: Tensor
    o: Tensor | None
    ox: Tensor | None


@torch.no_grad()
def pulled_at(pull: Statistics, rows: GroupedRows, noise: Tensor) -> PulledRows:
    """At rows, the gradient `pull` with respect to the sums over all rows. Cost: O(N M (2M + L))."""
    M, L = rows.x.shape[1], pull.n_latents
    product = noise.reciprocal().reshape(-1, 1) * rows.times(pull.outer)
    a, b = product[:, :M], product[:, M : M + L]
    if product.shape[1] == M + L:
        return PulledRows(a, b, None, None)
    o = product[:, M + L :]
    return PulledRows(a, b, o, (o * rows.x).sum(1, keepdim=True))


@torch.no_grad()
def pull_latents(
    pull: Statistics, b: Tensor, ox: Tensor | None, mean: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Gradients with respect to mean and var, (N, L) each; with p the factors of t and u in `pull`:

    dmu = b + 2 p_t c mu,  ds2 = c (o.x + p_u)
    """
    (t, u, _, _), c = pull.scalars, noise.reciprocal().reshape(-1, 1)
    dmu = torch.addcmul(b, mean, (2.0 * t) * c)
    return dmu, None if ox is None else (c * (ox + u)).expand_as(mean)


@torch.no_grad()
def pull_features(
    pull: Statistics, at: PulledRows, rows: GroupedRows, mean: Tensor, var: Tensor | None, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to x (N, M) and noise, with p the factors of t, u, e in `pull`:

    dx = 2 a + c B mu + 2 c sbar o
    dd = c (p_e - x.a - b.mu - 2 c sbar o.x - p_t c |mu|^2 - p_u c sbar)
    """
    (t, u, e, _), c = pull.scalars, noise.reciprocal().reshape(-1, 1)
    M, L, scaled = rows.x.shape[1], mean.shape[1], c * mean
    dx = rows.back(scaled, pull.outer[:, :, M : M + L]).add_(at.a, alpha=2.0)
    by_c = (rows.x * at.a).sum(1, keepdim=True) + (torch.add(at.b, scaled, alpha=t) * mean).sum(1, keepdim=True)
    if var is not None:
        assert at.o is not None and at.ox is not None
        cs = c * var.sum(1, keepdim=True)
        dx.addcmul_(cs, at.o, value=2.0)
        by_c = torch.addcmul(by_c, cs, 2.0 * at.ox + u)
    dd = (c * (e - by_c)).squeeze(1)
    return dx, dd if noise.ndim else dd.sum()


def pull_rows(
    pull: Statistics, features: Features, mean: Tensor, var: Tensor | None, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients of <pull, statistics(rows)> with respect to x, mean, var and noise, written out.

    Tables are no part of these sums. Source: docs/math.md, "Exact gradient in the memory of one batch".

    Args:
        pull: gradient with respect to the sums over all rows; as S and T are symmetric, so are its parts.
        features, mean, var, noise: of the rows, as for `statistics`.
    Cost: O(N M (2M + L)).
    """
    rows = GroupedRows(features)
    at = pulled_at(pull, rows, noise)
    dx, dd = pull_features(pull, at, rows, mean, var, noise)
    return dx, *pull_latents(pull, at.b, at.ox, mean, noise), dd


def _scalar_sums(mean: Tensor, var: Tensor | None, noise: Tensor) -> Tensor:
    """t, u, e and N."""

    def weighted(values: Tensor) -> Tensor:
        return (values.sum(1) / noise).sum() if noise.ndim else values.sum() / noise

    n, t = len(mean), weighted(mean.square())
    u = torch.zeros_like(t) if var is None else weighted(var)
    e = noise.log().sum() if noise.ndim else n * noise.log()
    return torch.stack([t, u, e, torch.full_like(t, n)])
