"""q(B) from sites: the likelihood of each row as a Gaussian in its latents (Laplace).

Along the directions u_k of a basis of the latents, row n observes u_k'z_n with precision lambda_nk. Since z = f + eta
with noise d_n (alpha and the residual), it observes u_k'f_n with precision lambda / (1 + d lambda), and

    Sigma_k = (I + sum_n lambda_nk / (1 + d_n lambda_nk) v_n v_n')^-1

Where nothing was observed, lambda = 0 and Sigma is the prior. Source: docs/math.md, "A posterior from sites".
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.prior.arrowhead import Arrowhead
from gppvae.prior.blocks import Places
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.prior.layout import Layout
from gppvae.prior.linalg import eye_like, inverse_root, steady_cholesky
from gppvae.prior.posterior import LatentPosterior, Rotated, RotatedBlocks, RotatedCovariance, WeightPosterior
from gppvae.prior.statistics import BlockStatistics, StatisticsSum, weighted_block_sums

MAX_NUMBERS = 2**22  # in the covariances of one group; beyond it, directions share covariances


@dataclass(frozen=True)
class Sites:
    """Gaussian approximation of the likelihood of rows as a function of f, along the directions of a basis.

    Attributes:
        precision: of each row and direction, (N, L).
        pull: gradient of the rows' log likelihood with respect to f, latent noise integrated out, (N, L); None where
            only the covariance is needed.
    """

    precision: Tensor
    pull: Tensor | None = None

    def averaged(self, n: int) -> Tensor:
        """Site precisions for n covariances, each the mean over the directions that share it, (N, L) -> (N, n)."""
        which = torch.tensor(covariance_index(self.precision.shape[1], n), device=self.precision.device)
        return torch.stack([self.precision[:, which == k].mean(1) for k in range(n)], dim=1)


@dataclass(frozen=True)
class PlacedArrowhead:
    """A precision matrix that is an arrowhead over the ids of a column: `@`, `+` and `solve` as of an (H, H) one."""

    matrix: Arrowhead
    places: Places

    def __add__(self, other: PlacedArrowhead) -> PlacedArrowhead:
        return PlacedArrowhead(self.matrix.plus(other.matrix), self.places)

    def __mul__(self, factor: float) -> PlacedArrowhead:
        return PlacedArrowhead(self.matrix.times(factor), self.places)

    def __matmul__(self, x: Tensor) -> Tensor:
        """(H, n) -> (H, n); weights without a position here are unchanged."""
        return self.places.put(*self.matrix.times_tall(self.places.take(x)), x)

    def solve(self, x: Tensor) -> Tensor:
        """The inverse of `@`."""
        return self.places.put(*self.matrix.factor().solve(self.places.take(x)), x)


Precisions = Tensor | list[PlacedArrowhead]  # K precision matrices, dense (K, H, H) or by blocks


def add_precisions(left: Precisions, right: Precisions, times: float = 1.0) -> Precisions:
    """left + times right, matrix by matrix."""
    if isinstance(left, Tensor):
        assert isinstance(right, Tensor)
        return left.add(right, alpha=times)
    return [PlacedArrowhead(a.matrix.plus(b.matrix, times), a.places) for a, b in zip(left, right, strict=True)]


def solve_precision(matrix: Tensor | PlacedArrowhead, right: Tensor) -> Tensor:
    """matrix^-1 right, (H, n)."""
    return matrix.solve(right) if isinstance(matrix, PlacedArrowhead) else torch.linalg.solve(matrix, right)


def average_precisions(sums: Precisions, n_latents: int, n: int) -> Precisions:
    """From the K matrices that L directions share to n matrices, each the mean over the directions that share it."""
    if len(sums) == n:
        return sums
    pairs = list(zip(covariance_index(n_latents, len(sums)), covariance_index(n_latents, n), strict=True))  # (old, new)
    which = [[own for own, k in pairs if k == number] for number in range(n)]
    if isinstance(sums, Tensor):
        return torch.stack([sums[own].mean(0) for own in which])
    return [functools.reduce(operator.add, [sums[k] for k in own]) * (1.0 / len(own)) for own in which]


def covariance_index(n_latents: int, n: int) -> list[int]:
    """Number of the covariance of each direction, if L directions share n covariances."""
    return [direction * n // n_latents for direction in range(n_latents)]


def n_covariances(group: LatentGroup, n_ids: int | None = None) -> int:
    """Number K of covariances that the L directions of a group share, limited by MAX_NUMBERS.

    Args:
        n_ids: number of per-id blocks that are kept; all when None.
    """
    numbers = max(group.rank, 1) ** 2  # in one covariance
    if group.places is not None:
        P, R = group.places.own.shape
        numbers = (P if n_ids is None else n_ids) * R * (R + len(group.places.shared))
    return max(1, min(group.n_latents, MAX_NUMBERS // max(numbers, 1)))


def through_noise(precision: Tensor, noise: Tensor) -> Tensor:
    """lambda / (1 + d lambda): precision of the site in f, from that in z = f + eta, eta ~ N(0, d)."""
    return precision / (1.0 + noise * precision)


class SiteSums:
    """Sums over rows of the sites of all groups of latents; they add over batches and processes.

    Args:
        prior: the prior.  bases: directions of each group, (L_g, L_g).
        blocks: with block algebra, the ids whose weights are kept, (G,) sorted, per group; all when None.
        counts: the number of covariances that the directions share, per group; `n_covariances` when None.
        training: whether rows are from the training table, whose distinct values the layout of the sums needs.
    """

    def __init__(
        self,
        prior: LatentPrior,
        bases: list[Tensor],
        blocks: list[Tensor | None] | None = None,
        counts: list[int] | None = None,
        training: bool = True,
    ) -> None:
        self.prior, self.bases = prior, bases
        self.counts = [n_covariances(group) for group in prior.groups] if counts is None else counts
        only = [None] * len(bases) if blocks is None else blocks
        self._sums = [
            _BlockSites(group, K, own) if group.blocks is not None else _DenseSites(group, K, training)
            for group, K, own in zip(prior.groups, self.counts, only, strict=True)
        ]

    @torch.no_grad()
    def add(self, rows: Rows, sites: list[Sites]) -> None:
        """Add the sites of rows, one `Sites` per group. Cost O(N K M^2)."""
        for K, sums, own in zip(self.counts, self._sums, sites, strict=True):
            sums.add(rows, own.averaged(K), torch.zeros_like(own.precision) if own.pull is None else own.pull)

    def tensors(self) -> list[Tensor]:
        """The tensors that are summed over processes."""
        return [tensor for sums in self._sums for tensor in sums.tensors()]

    def totals(self) -> list[tuple[Precisions, Tensor]]:
        """Per group the K matrices sum_n precision_nk v v', and sum_n v pull', (H, L)."""
        return [sums.wide() for sums in self._sums]


class _DenseSites:
    """Sums of one group in its layout: squares (Q, M, K M) and pulls (Q, M, L)."""

    def __init__(self, group: LatentGroup, n: int, training: bool) -> None:
        self.layout, self.n = group.layout if training else Layout(group.kernel), n
        self.squares: Tensor | None = None
        self.tall: Tensor | None = None

    def add(self, rows: Rows, weights: Tensor, pull: Tensor) -> None:
        grouped = self.layout.rows(rows)
        weighted = (weights.unsqueeze(2) * grouped.x.unsqueeze(1)).flatten(1)  # (N, K, 1) (N, 1, M) -> (N, K M)
        squares, tall = grouped.outer(weighted), grouped.outer(pull)
        self.squares = squares if self.squares is None else self.squares + squares
        self.tall = tall if self.tall is None else self.tall + tall

    def tensors(self) -> list[Tensor]:
        return [x for x in (self.squares, self.tall) if x is not None]

    def wide(self) -> tuple[Precisions, Tensor]:
        assert self.squares is not None and self.tall is not None, "add() comes before wide()"
        Q, M, _ = self.squares.shape
        return self.layout.widen(self.squares.reshape(Q, M, self.n, M), self.tall)  # (K, H, H), (H, L)


class _BlockSites:
    """Sums of one group with per-id blocks, one per covariance; only the first also sums the pull."""

    def __init__(self, group: LatentGroup, n: int, blocks: Tensor | None) -> None:
        self.group, self.blocks = group, blocks
        self.sums = [StatisticsSum() for _ in range(n)]

    def add(self, rows: Rows, weights: Tensor, pull: Tensor) -> None:
        assert self.group.blocks is not None
        V = self.group.blocks.features(rows)
        V = V if self.blocks is None else V.only(self.blocks)
        for number, sums in enumerate(self.sums):
            sums.add([weighted_block_sums(V, weights[:, number : number + 1], pull if number == 0 else pull[:, :0])])

    def tensors(self) -> list[Tensor]:
        return [tensor for sums in self.sums for tensor in sums.value[0].tensors()]

    def wide(self) -> tuple[Precisions, Tensor]:
        places = self.group.places
        assert places is not None
        places = places if self.blocks is None else places.only(self.blocks)
        full = [own.assembled() for sums in self.sums for own in sums.value if isinstance(own, BlockStatistics)]
        pull = places.put(*full[0].R, full[0].R[0].new_zeros(self.group.rank, full[0].R[0].shape[1]))
        return [PlacedArrowhead(each.S, places) for each in full], pull


@torch.no_grad()
def with_sites(weights: LatentPosterior, sums: SiteSums) -> LatentPosterior:
    """The same means with covariances (I + S_k)^-1, S_k the sums of the sites. Cost O(K H^3) per group."""
    parts: list[WeightPosterior] = []
    for group, part, basis, (S, _) in zip(sums.prior.groups, weights.parts, sums.bases, sums.totals(), strict=True):
        if group.kernel is None:
            parts.append(part)
            continue
        parts.append(from_precisions(part.mean, basis, _plus_identity(S)))
    return LatentPosterior(tuple(parts))


def _plus_identity(S: Precisions) -> Precisions:
    """I + S_k: the prior's precision plus that of the sites."""
    if isinstance(S, Tensor):
        return S + eye_like(S)
    return [PlacedArrowhead(each.matrix.plus_identity(), each.places) for each in S]


def from_precisions(mean: Tensor, basis: Tensor, precisions: Precisions) -> Rotated:
    """q(B) with these precision matrices along the directions."""
    if not isinstance(precisions, Tensor):
        factors = tuple(each.matrix.factor() for each in precisions)
        return RotatedBlocks(mean, basis.contiguous(), factors, precisions[0].places)
    L_P = steady_cholesky(precisions)  # (K, H, H)
    logdets = -2.0 * L_P.diagonal(dim1=1, dim2=2).log().sum(1)
    return RotatedCovariance(mean, basis.contiguous(), inverse_root(L_P).contiguous(), logdets)


def precisions_of(part: WeightPosterior, blocks: Tensor | None = None) -> Precisions:
    """Precision matrices along the directions of a q(B) from sites.

    Args:
        blocks: with block algebra, ids to keep, (G,); the weights of all others are integrated out.
    """
    if isinstance(part, RotatedBlocks):
        if blocks is None:
            return [PlacedArrowhead(C.matrix(), part.places) for C in part.factors]
        return [PlacedArrowhead(C.only(blocks).matrix(), part.places.only(blocks)) for C in part.factors]
    if not isinstance(part, RotatedCovariance):
        raise ValueError("expected variances measured at the end of a fit, got none; fit again to update this model")
    inverse = inverse_root(part.roots.mT)  # roots are L_P^-T, so this is L_P'
    return inverse.transpose(1, 2) @ inverse  # L_P L_P', (K, H, H)


def with_precisions(part: Rotated, mean: Tensor, precisions: Precisions, blocks: Tensor | None) -> Rotated:
    """q(B) with new means and precisions of the shared weights and of those of a few ids.

    All other ids keep their conditionals given the shared weights, so their means change to m_p - A_p (m_0' - m_0).
    This is exact if only rows of `blocks` were added or removed.

    Args:
        mean: (H, L), with the old means of the other ids.  precisions, blocks: as in `precisions_of`.
    """
    if not isinstance(part, RotatedBlocks) or blocks is None:
        return from_precisions(mean, part.basis, precisions)
    assert not isinstance(precisions, Tensor)
    places, change = part.places, (mean - part.mean) @ part.basis  # along the directions, (H, L)
    follow = torch.zeros_like(change[places.own])  # change of the blocks' means, (P, R, L)
    for k, C in enumerate(part.factors):
        along = part.covariance_index == k
        follow[:, :, along] = -C.arms @ change[places.shared][:, along]  # -A_p (m_0' - m_0)
    follow[blocks] = 0.0  # their new means are given
    mean = mean + places.put(torch.zeros_like(change[places.shared]), follow, torch.zeros_like(mean)) @ part.basis.T
    each = zip(part.factors, precisions, strict=True)
    factors = tuple(C.put(blocks, own.matrix.factor()) for C, own in each)
    return RotatedBlocks(mean, part.basis, factors, places)
