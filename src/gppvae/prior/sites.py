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
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.prior.posterior import LatentPosterior, RotatedCovariance, WeightPosterior

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


def n_covariances(group: LatentGroup) -> int:
    """How many of the L directions of a group have a covariance of their own."""
    return max(1, min(group.n_latents, MAX_NUMBERS // max(group.rank, 1) ** 2))


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
        self._squares: list[Tensor] = []  # (Q, M, R M) each
        self._talls: list[Tensor] = []  # (Q, M, L) each

    @torch.no_grad()
    def add(self, rows: Rows, sites: list[Sites]) -> None:
        """Add rows; one `Sites` per group. Cost O(N R M^2)."""
        squares, talls = [], []
        for group, own in zip(self.prior.groups, sites, strict=True):
            grouped, R = group.layout.rows(rows), n_covariances(group)
            shared = torch.arange(group.n_latents) * R // group.n_latents
            weights = torch.stack([own.precision[:, shared == k].mean(1) for k in range(R)], dim=1)  # (N, R)
            weighted = (weights.unsqueeze(2) * grouped.x.unsqueeze(1)).flatten(1)  # (N, R M)
            squares.append(grouped.outer(weighted))
            talls.append(grouped.outer(torch.zeros_like(own.precision) if own.pull is None else own.pull))
        self._squares = [a + b for a, b in zip(self._squares, squares, strict=True)] if self._squares else squares
        self._talls = [a + b for a, b in zip(self._talls, talls, strict=True)] if self._talls else talls

    def tensors(self) -> list[Tensor]:
        """What processes add up."""
        return [*self._squares, *self._talls]

    def precisions(self) -> list[Tensor]:
        """Per group sum_n precision v v', (R, H, H)."""
        return [self._wide(number)[0] for number in range(len(self.bases))]

    def pulls(self) -> list[Tensor]:
        """Per group sum_n v pull', (H, L)."""
        return [self._wide(number)[1] for number in range(len(self.bases))]

    def _wide(self, number: int) -> tuple[Tensor, Tensor]:
        group, squares = self.prior.groups[number], self._squares[number]
        Q, M, _ = squares.shape
        return group.layout.widen(squares.reshape(Q, M, n_covariances(group), M), self._talls[number])


@torch.no_grad()
def with_sites(weights: LatentPosterior, sums: SiteSums) -> LatentPosterior:
    """The same means with the covariances that the sites give, from the prior N(0, I). Cost O(R H^3) per group."""
    parts = []
    for group, part, basis, S in zip(sums.prior.groups, weights.parts, sums.bases, sums.precisions(), strict=True):
        if group.kernel is None:
            parts.append(part)
            continue
        eye = torch.eye(group.rank, dtype=S.dtype, device=S.device)
        parts.append(from_precisions(part.mean, basis, S + eye))
    return LatentPosterior(tuple(parts))


def from_precisions(mean: Tensor, basis: Tensor, precisions: Tensor) -> RotatedCovariance:
    """q(B) with these precision matrices along the directions, (R, H, H)."""
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


def precisions_of(part: WeightPosterior) -> Tensor:
    """Precision matrices along the directions of a q(B) that was made from sites, (R, H, H)."""
    if not isinstance(part, RotatedCovariance):
        raise ValueError("expected variances measured at the end of a fit, got none; fit again to update this model")
    eye = torch.eye(part.roots.shape[1], dtype=part.roots.dtype, device=part.roots.device)
    inverse = torch.linalg.solve_triangular(part.roots, eye.expand_as(part.roots), upper=True)
    return inverse.transpose(1, 2) @ inverse
