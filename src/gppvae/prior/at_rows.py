"""Features and latent noise of rows, computed once for all that is asked of these rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.prior.closed_form import ConditionedAtRows
from gppvae.prior.latents import Latents
from gppvae.prior.layout import GroupedRows
from gppvae.prior.lowrank import Assembled
from gppvae.prior.posterior import LatentPosterior, condition
from gppvae.prior.statistics import Sums, weighted_sums


@dataclass(frozen=True)
class RowFeatures:
    """What the prior knows of rows, one entry per group of latents.

    Attributes:
        features: V, (N, H).  noise: d, (N, 1).  sizes: L.
    """

    features: list[Tensor]
    noise: list[Tensor]
    sizes: list[int]

    def __getitem__(self, rows: slice | Tensor) -> RowFeatures:
        return RowFeatures([V[rows] for V in self.features], [d[rows] for d in self.noise], self.sizes)

    def at(self, weights: LatentPosterior) -> Latents:
        """The latents of these rows at q(B). Cost: O(N H (H + L))."""
        found = [(q.mean_at(V), q.var_at(V)) for V, q in zip(self.features, weights.parts, strict=True)]
        return self._latents(found)

    def given(self, sums: Sums) -> Latents:
        """The latents of these rows at the q(B) of S and R over rows; gradients reach both. Cost: H^3 + O(N H (H + L)).

        Args:
            sums: over whole features, as `sums` gives them.
        """
        found = []
        for V, own in zip(self.features, sums, strict=True):
            S, R, _ = own.split()
            found.append(ConditionedAtRows.apply(V, S[0], R[0]))
        return self._latents(found)

    def sums(self, z: Tensor) -> Sums:
        """S and R over these rows with latents `z` (N, L), over whole features. Cost: O(N H (H + L))."""
        found = []
        for V, d, own in zip(self.features, self.noise, z.split(self.sizes, dim=1), strict=True):
            c = d.reciprocal()
            found.append(weighted_sums(GroupedRows(V), c, c * own))
        return found

    def _latents(self, found: list[tuple[Tensor, Tensor]]) -> Latents:
        means = [mean for mean, _ in found]
        variances = [var.expand_as(mean) for mean, var in found]
        noises = [d.expand_as(mean) for d, mean in zip(self.noise, means, strict=True)]
        return Latents(joined(means), joined(variances), joined(noises))


def given(sums: Sums) -> LatentPosterior:
    """q(B) of S and R over whole features."""
    found = []
    for own in sums:
        S, R, _ = own.split()
        found.append(condition(Assembled(S[0], R[0], None, own.sums)))
    return LatentPosterior(tuple(found))


def joined(parts: list[Tensor]) -> Tensor:
    """Parts of all groups of latents side by side, (N, L)."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
