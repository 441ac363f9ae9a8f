"""Features and latent noise of rows, computed once and evaluated under several posteriors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gppvae.prior.blocks import BlockFeatures, NewIds
from gppvae.prior.closed_form import ConditionedAtRows
from gppvae.prior.latents import Latents
from gppvae.prior.layout import GroupedRows
from gppvae.prior.lowrank import Assembled
from gppvae.prior.posterior import Features, LatentPosterior, condition_blocks
from gppvae.prior.statistics import BlockStatistics, Statistics, Sums, weighted_block_sums, weighted_sums


@dataclass(frozen=True)
class ActiveWeights:
    """The weights of one group of latents that have nonzero features at some rows.

    Attributes:
        which: positions among all H weights, (H',).
        share: of each weight's KL that these rows count, a number or (H', 1); over an epoch shares add up to 1.
    """

    which: Tensor | slice
    share: Tensor | float


@dataclass(frozen=True)
class RowFeatures:
    """Features and noise of rows under the prior, one entry per group of latents.

    Attributes:
        features: V, (N, H).  noise: d, (N, 1).  sizes: L.
        new: rows of ids that were not in the training set.
    """

    features: list[Features]
    noise: list[Tensor]
    sizes: list[int]
    new: list[NewIds | None]

    def __getitem__(self, rows: slice | Tensor) -> RowFeatures:
        """A subset of these rows; all ids must be known, as in training."""
        return RowFeatures([V[rows] for V in self.features], [d[rows] for d in self.noise], self.sizes, self.new)

    def at(self, weights: LatentPosterior) -> Latents:
        """The latents of these rows at q(B). Cost: O(N H (H + L))."""
        found = []
        for V, q, new in zip(self.features, weights.parts, self.new, strict=True):
            var = q.var_at(V)  # v'Sigma v, (N, L) or (N, 1)
            found.append((q.mean_at(V), var if new is None else var + new.variance()))
        return self._latents(found)

    def given(self, sums: Sums) -> Latents:
        """The latents of these rows at the q(B) conditioned on sums S and R: Sigma = (I + S)^-1, m = Sigma R.

        Differentiable with respect to the sums, and to the features of these rows.

        Args:
            sums: over whole features, as from `RowFeatures.sums`.
        Cost: O(H^3 + N H (H + L)).
        """
        found = []
        for V, own in zip(self.features, sums, strict=True):
            if isinstance(V, BlockFeatures):
                assert isinstance(own, BlockStatistics)
                found.append(blocks_given(V, own))
            else:
                S, R, _ = own.split()  # (1, H, H), (1, H, L)
                found.append(ConditionedAtRows.apply(V, S[0], R[0]))
        return self._latents(found)

    def sums(self, z: Tensor) -> Sums:
        """S and R over these rows with latents `z` (N, L), over whole features. Cost: O(N H (H + L))."""
        found: Sums = []
        for V, d, own in zip(self.features, self.noise, z.split(self.sizes, dim=1), strict=True):
            c = d.reciprocal()  # (N, 1)
            if isinstance(V, BlockFeatures):
                found.append(weighted_block_sums(V, c, c * own))
            else:
                found.append(weighted_sums(GroupedRows(V), c, c * own))
        return found

    def active(self, batch_share: float, rows_of_ids: list[Tensor | None]) -> tuple[RowFeatures, list[ActiveWeights]]:
        """These rows as features of their active weights only: with per-id blocks, those of their own ids.

        The KL of a block is divided equally among the rows of its id, and that of all other weights among all rows.

        Args:
            batch_share: these rows as a share of those of an epoch.
            rows_of_ids: rows of each id in an epoch, from `LatentPrior.rows_of_ids`.
        """
        features: list[Features] = []
        active = []
        for V, rows_of in zip(self.features, rows_of_ids, strict=True):
            if rows_of is None or not isinstance(V, BlockFeatures):
                features.append(V)
                active.append(ActiveWeights(slice(None), batch_share))
                continue
            unseen = torch.nonzero(rows_of == 0).squeeze(1)  # ids without rows: in every batch, so that the KL is whole
            blocks = torch.cat([V.block, unseen]).unique()  # (G,)
            here = torch.bincount(V.block, minlength=len(rows_of))[blocks]  # rows of each id in this batch, (G,)
            of_ids = torch.where(rows_of[blocks] == 0, batch_share, here.double() / rows_of[blocks].clamp_min(1))
            few, which = V.compact(blocks)
            of_shared = of_ids.new_full((few.shared.shape[1],), batch_share)  # (H0,)
            share = torch.cat([of_shared, of_ids.repeat_interleave(few.own.shape[1])])  # (H0 + G R,)
            features.append(few)
            active.append(ActiveWeights(which, share.unsqueeze(1)))
        return replace(self, features=features), active

    def _latents(self, found: list[tuple[Tensor, Tensor]]) -> Latents:
        means = [mean for mean, _ in found]
        variances = [var.expand_as(mean) for mean, var in found]  # (N, 1) -> (N, L)
        noises = [d.expand_as(mean) for d, mean in zip(self.noise, means, strict=True)]
        return Latents(joined(means), joined(variances), joined(noises))


def over_whole(sums: Statistics) -> Assembled:
    """S and R of sums over whole features, which need no widening."""
    S, R, _ = sums.split()  # (1, H, H), (1, H, L)
    return Assembled(S[0], R[0], None, sums.sums)


def blocks_given(V: BlockFeatures, sums: BlockStatistics) -> tuple[Tensor, Tensor]:
    """Mean (N, L) and variance (N, 1) of f at rows, at the q(B) of S and R.

    Only the blocks of ids in these rows, and of ids in `sums.parts`, are factored. The weights of all others are
    integrated out once per `sums.own`, so the cost of a batch does not depend on the number of ids.
    """
    blocks = torch.cat([V.block, *(which for which, _ in sums.parts)]).unique()  # (G,)
    V, picked = V.compact(blocks)  # picked: (H0 + G R,)
    q = condition_blocks(sums.only(blocks).assembled(), V.places, len(picked))
    return q.mean_at(V), q.var_at(V)


def joined(parts: list[Tensor]) -> Tensor:
    """Columns of all groups of latents side by side, (N, L_g) each -> (N, L)."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
