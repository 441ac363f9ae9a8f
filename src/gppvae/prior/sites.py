"""q(B) from sites: row n observes its latents through the decoder, with a precision of its own.

Along the directions u_k of a basis of the latents, row n observes u_k'z_n with precision lambda_nk. The latent noise
d_n (alpha and the residual) lies between z and f, so f is observed with lambda / (1 + d lambda), and

    Sigma_k = (I + sum_n lambda_nk / (1 + d_n lambda_nk) v_n v_n')^-1

Where nothing was observed, lambda = 0 and Sigma is the prior's. Source: docs/math.md, "A posterior from sites".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.prior.arrowhead import Arrowhead
from gppvae.prior.blocks import Places
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.prior.posterior import LatentPosterior, Rotated, RotatedBlocks, RotatedCovariance, WeightPosterior
from gppvae.prior.statistics import BlockStatistics, StatisticsSum, weighted_block_sums

MAX_NUMBERS = 2**22  # in the covariances of one group; directions share them beyond it


@dataclass(frozen=True)
class Sites:
    """What rows say of f along the directions of a basis.

    Attributes:
        precision: of each row and direction, (N, L).
        pull: gradient of the rows' log likelihood with respect to f, latent noise integrated out, (N, L); None where
            only the covariance is wanted.
    """

    precision: Tensor
    pull: Tensor | None = None


@dataclass(frozen=True)
class PlacedArrowhead:
    """A precision matrix that is an arrowhead over the ids of a column: `@`, `+` and `solve` as of an (H, H) one."""

    matrix: Arrowhead
    places: Places

    def __add__(self, other: PlacedArrowhead) -> PlacedArrowhead:
        return PlacedArrowhead(self.matrix.plus(other.matrix), self.places)

    def __matmul__(self, x: Tensor) -> Tensor:
        shared, own = self.places.take(x.unsqueeze(1))
        return self.places.put(*self.matrix.times_tall((shared, own)), x.unsqueeze(1)).squeeze(1)

    def solve(self, x: Tensor) -> Tensor:
        return self.places.put(*self.matrix.factor().solve(self.places.take(x.unsqueeze(1))), x.unsqueeze(1)).squeeze(1)


Precisions = Tensor | list[PlacedArrowhead]  # K matrices of H x H numbers, dense (K, H, H) or by blocks


def added(left: Precisions, right: Precisions) -> Precisions:
    """Sums of the matrices of the same number."""
    if isinstance(left, Tensor):
        assert isinstance(right, Tensor)
        return left + right
    return [a + b for a, b in zip(left, right, strict=True)]


def solved(matrix: Tensor | PlacedArrowhead, right: Tensor) -> Tensor:
    """matrix^-1 right, (H,)."""
    return matrix.solve(right) if isinstance(matrix, PlacedArrowhead) else torch.linalg.solve(matrix, right)


def n_covariances(group: LatentGroup) -> int:
    """How many of the L directions of a group have a covariance of their own."""
    numbers = max(group.rank, 1) ** 2
    if group.places is not None:
        numbers = group.places.own.numel() * (group.places.own.shape[1] + len(group.places.shared))
    return max(1, min(group.n_latents, MAX_NUMBERS // max(numbers, 1)))


def through_noise(precision: Tensor, noise: Tensor) -> Tensor:
    """Precision at which f is observed when z = f + eta is, eta ~ N(0, noise)."""
    return precision / (1.0 + noise * precision)


class SiteSums:
    """Sums over rows of the sites of all groups of latents; they add over batches and processes.

    Args:
        prior: the prior.  bases: directions of each group, (L_g, L_g).
    """

    def __init__(self, prior: LatentPrior, bases: list[Tensor]) -> None:
        self.prior, self.bases = prior, bases
        self._sums = [_BlockSites(group) if group.blocks is not None else _DenseSites(group) for group in prior.groups]

    @torch.no_grad()
    def add(self, rows: Rows, sites: list[Sites]) -> None:
        """Add rows; one `Sites` per group. Cost O(N K M^2)."""
        for group, sums, own in zip(self.prior.groups, self._sums, sites, strict=True):
            K = n_covariances(group)
            shared = torch.arange(group.n_latents) * K // group.n_latents
            weights = torch.stack([own.precision[:, shared == k].mean(1) for k in range(K)], dim=1)  # (N, K)
            sums.add(rows, weights, torch.zeros_like(own.precision) if own.pull is None else own.pull)

    def tensors(self) -> list[Tensor]:
        """What processes add up."""
        return [tensor for sums in self._sums for tensor in sums.tensors()]

    def precisions(self) -> list[Precisions]:
        """Per group sum_n precision v v', K of them."""
        return [sums.wide()[0] for sums in self._sums]

    def pulls(self) -> list[Tensor]:
        """Per group sum_n v pull', (H, L)."""
        return [sums.wide()[1] for sums in self._sums]


class _DenseSites:
    """Sums of one group in the layout of its rows: (Q, M, K M) and (Q, M, L)."""

    def __init__(self, group: LatentGroup) -> None:
        self.group = group
        self.squares: Tensor | None = None
        self.tall: Tensor | None = None

    def add(self, rows: Rows, weights: Tensor, pull: Tensor) -> None:
        grouped = self.group.layout.rows(rows)
        weighted = (weights.unsqueeze(2) * grouped.x.unsqueeze(1)).flatten(1)  # (N, K M)
        squares, tall = grouped.outer(weighted), grouped.outer(pull)
        self.squares = squares if self.squares is None else self.squares + squares
        self.tall = tall if self.tall is None else self.tall + tall

    def tensors(self) -> list[Tensor]:
        return [x for x in (self.squares, self.tall) if x is not None]

    def wide(self) -> tuple[Precisions, Tensor]:
        assert self.squares is not None and self.tall is not None, "rows are added first"
        Q, M, _ = self.squares.shape
        return self.group.layout.widen(self.squares.reshape(Q, M, n_covariances(self.group), M), self.tall)


class _BlockSites:
    """Sums of one group whose ids have blocks of their own, K of them; only the first has the pull."""

    def __init__(self, group: LatentGroup) -> None:
        self.group = group
        self.sums = [StatisticsSum() for _ in range(n_covariances(group))]

    def add(self, rows: Rows, weights: Tensor, pull: Tensor) -> None:
        assert self.group.blocks is not None
        V = self.group.blocks.features(rows)
        for number, sums in enumerate(self.sums):
            sums.add([weighted_block_sums(V, weights[:, number : number + 1], pull if number == 0 else pull[:, :0])])

    def tensors(self) -> list[Tensor]:
        return [tensor for sums in self.sums for tensor in sums.value[0].tensors()]

    def wide(self) -> tuple[Precisions, Tensor]:
        places = self.group.places
        assert places is not None
        full = [own.assembled() for sums in self.sums for own in sums.value if isinstance(own, BlockStatistics)]
        pull = places.put(*full[0].R, full[0].R[0].new_zeros(self.group.rank, full[0].R[0].shape[1]))
        return [PlacedArrowhead(each.S, places) for each in full], pull


@torch.no_grad()
def with_sites(weights: LatentPosterior, sums: SiteSums) -> LatentPosterior:
    """The same means with the covariances that the sites give, from the prior N(0, I). Cost O(R H^3) per group."""
    parts: list[WeightPosterior] = []
    for group, part, basis, S in zip(sums.prior.groups, weights.parts, sums.bases, sums.precisions(), strict=True):
        if group.kernel is None:
            parts.append(part)
            continue
        parts.append(from_precisions(part.mean, basis, _plus_identity(S)))
    return LatentPosterior(tuple(parts))


def _plus_identity(S: Precisions) -> Precisions:
    """I + S_k: the precisions of N(0, I) and of what was observed."""
    if isinstance(S, Tensor):
        return S + torch.eye(S.shape[1], dtype=S.dtype, device=S.device)
    return [PlacedArrowhead(each.matrix.plus_identity(), each.places) for each in S]


def from_precisions(mean: Tensor, basis: Tensor, precisions: Precisions) -> Rotated:
    """q(B) with these precision matrices along the directions."""
    if not isinstance(precisions, Tensor):
        factors = tuple(each.matrix.factor() for each in precisions)
        return RotatedBlocks(mean, basis.contiguous(), factors, precisions[0].places)
    L_P = steady_cholesky(precisions)
    eye = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    roots = torch.linalg.solve_triangular(L_P.transpose(1, 2), eye.expand_as(L_P), upper=True)
    return RotatedCovariance(
        mean, basis.contiguous(), roots.contiguous(), -2.0 * L_P.diagonal(dim1=1, dim2=2).log().sum(1)
    )


def steady_cholesky(precisions: Tensor) -> Tensor:
    """Cholesky factors of (R, H, H); where rounding makes one fail, all get as little more precision as helps.

    Precisions of rows may differ by more digits than float64 has; a smaller variance of what is known best is harmless.
    """
    size = precisions.diagonal(dim1=1, dim2=2).amax(1)[:, None]  # (R, 1)
    for jitter in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        factor, failed = torch.linalg.cholesky_ex(
            precisions + torch.diag_embed(jitter * size.expand(precisions.shape[:2]))
        )
        if not failed.any():
            return factor
    return torch.linalg.cholesky(precisions)  # raises with a reason


def precisions_of(part: WeightPosterior) -> Precisions:
    """Precision matrices along the directions of a q(B) that was made from sites."""
    if isinstance(part, RotatedBlocks):
        return [PlacedArrowhead(C.matrix(), part.places) for C in part.factors]
    if not isinstance(part, RotatedCovariance):
        raise ValueError("expected variances measured at the end of a fit, got none; fit again to update this model")
    eye = torch.eye(part.roots.shape[1], dtype=part.roots.dtype, device=part.roots.device)
    inverse = torch.linalg.solve_triangular(part.roots, eye.expand_as(part.roots), upper=True)
    return inverse.transpose(1, 2) @ inverse
