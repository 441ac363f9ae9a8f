"""Ids that are added to a Categorical column after a fit: q(B) with a block of prior weights for each of them.

A new id has C_p = I and no arms, so that its block is B_p ~ N(0, I), independent of all else, and nothing else changes.
Its samples then condition q(B) like any others (inference/update.py). An id is dropped by removing its sites and
integrating out its block: in the factors of an arrowhead, the block is simply left out.
Source: docs/math.md, "Objects that were not in the training set".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.kernels import Categorical, IdLeaf, Kernel
from gppvae.prior.arrowhead import Arrowhead, Factor
from gppvae.prior.blocks import BlockFeatures, Places
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.prior.posterior import LatentPosterior, Rotated, RotatedBlocks, WeightPosterior
from gppvae.prior.sites import (
    PlacedArrowhead,
    Precisions,
    Sites,
    added,
    from_precisions,
    moved,
    precisions_of,
    shared_by,
    solved,
)
from gppvae.prior.statistics import weighted_block_sums


@dataclass(frozen=True)
class Move:
    """Old and new positions of the kept weights of one group; rank: the former number of weights."""

    old: Tensor
    new: Tensor
    rank: int


@torch.no_grad()
def change_levels(
    prior: LatentPrior, weights: LatentPosterior, leaves: list[Categorical], drop: list[str], add: list[str]
) -> tuple[LatentPosterior, list[Move | None]]:
    """Forget some added ids of a column and append new ones.

    Args:
        leaves: all Categorical leaves of the column, in whatever group.  drop: ids that were added before.

    Returns:
        q(B) over the new set of weights, and how the kept ones moved, None for groups that do not read the column.
    """
    gone = set(drop)
    kept = torch.tensor([n for n, level in enumerate(leaves[0].levels) if level not in gone], device=prior.device)
    kernels = [group.kernel for group in prior.groups]
    before = [
        (_weights_of(kernel, leaves, kept), kernel.rank)
        if kernel is not None and any(leaf in leaves for leaf in kernel.leaves())
        else None
        for kernel in kernels
    ]
    for leaf in leaves:
        leaf.drop_levels(drop)
        leaf.add_levels(add)
    parts: list[WeightPosterior] = []
    moves: list[Move | None] = []
    for group, kernel, part, was in zip(prior.groups, kernels, weights.parts, before, strict=True):
        if kernel is None or was is None:
            moves.append(None)
            parts.append(part)
            continue
        move = Move(was[0], _weights_of(kernel, leaves, torch.arange(len(kept), device=prior.device)), was[1])
        moves.append(move)
        parts.append(_with_weights(group, part, move, kept))
    return LatentPosterior(tuple(parts)), moves


def _weights_of(kernel: Kernel, leaves: list[Categorical], ids: Tensor) -> Tensor:
    """Positions among all H of the weights of some ids of a column, and of weights that do not depend on it."""
    found = []
    for term, at in kernel.placed_terms():
        places = torch.arange(at.start, at.stop, device=ids.device).reshape([leaf.rank for leaf in term.leaves])
        for axis, leaf in enumerate(term.leaves):  # one axis per leaf
            places = places.index_select(axis, ids) if leaf in leaves else places
        found.append(places.flatten())
    return torch.cat(found)


def _with_weights(group: LatentGroup, part: WeightPosterior, move: Move, kept: Tensor) -> Rotated:
    """q(B) with the kept weights moved, new ones at their prior, and dropped ones integrated out.

    Args:
        kept: numbers of the former ids that are kept.
    """
    dense = precisions_of(part) if not isinstance(part, RotatedBlocks) else None
    assert isinstance(part, Rotated), "precisions_of refuses all others"
    mean = part.mean.new_zeros(group.rank, part.mean.shape[1])
    mean[move.new] = part.mean[move.old]
    if isinstance(part, RotatedBlocks) and group.places is not None:
        factors = tuple(_with_blocks(C, kept, len(group.places.own)) for C in part.factors)
        return RotatedBlocks(mean, part.basis, factors, group.places)
    if isinstance(part, RotatedBlocks):  # so few ids are left that the algebra is dense again
        dense = torch.stack([_dense(C.matrix(), part.places, len(part.mean)) for C in part.factors])
    assert isinstance(dense, Tensor)
    precisions = torch.eye(group.rank).to(mean).repeat(len(dense), 1, 1)
    precisions[:, move.new[:, None], move.new[None, :]] = _marginal(dense, move.old)
    if group.places is None:
        return from_precisions(mean, part.basis, precisions)
    return from_precisions(mean, part.basis, [_in_blocks(P, group.places) for P in precisions])


def _with_blocks(C: Factor, kept: Tensor, n: int) -> Factor:
    """The blocks of the kept ids, followed by prior blocks, n in all."""
    more, R, H0 = n - len(kept), *C.arms.shape[1:]
    eye = torch.eye(R).to(C.own).expand(more, R, R)
    return Factor(torch.cat([C.own[kept], eye]), torch.cat([C.arms[kept], C.arms.new_zeros(more, R, H0)]), C.shared)


def _marginal(precisions: Tensor, kept: Tensor) -> Tensor:
    """Precisions of some weights, all others integrated out: the Schur complement, (K, H, H) -> (K, H', H')."""
    gone = torch.ones(precisions.shape[1], dtype=torch.bool, device=kept.device)
    gone[kept] = False
    own = precisions[:, kept[:, None], kept[None, :]]
    if not gone.any():
        return own
    cross = precisions[:, gone][:, :, kept]
    return own - cross.mT @ torch.linalg.solve(precisions[:, gone][:, :, gone], cross)


def _in_blocks(P: Tensor, places: Places) -> PlacedArrowhead:
    """The blocks of a precision matrix (H, H) that is zero outside them."""
    own = places.own
    arms, blocks = P[own][:, :, places.shared], P[own.unsqueeze(2), own.unsqueeze(1)]
    return PlacedArrowhead(Arrowhead(P[places.shared][:, places.shared], arms, blocks), places)


def _dense(matrix: Arrowhead, places: Places, rank: int) -> Tensor:
    """The inverse of `_in_blocks`; weights without a position have their prior."""
    P = torch.eye(rank).to(matrix.shared)
    P[places.shared[:, None], places.shared[None, :]] = matrix.shared
    P[places.own.unsqueeze(2), places.shared] = matrix.arms
    P[places.shared.reshape(-1, 1, 1), places.own] = matrix.arms.movedim(2, 0)  # (P, R, H0) -> (H0, P, R)
    P[places.own.unsqueeze(2), places.own.unsqueeze(1)] = matrix.own
    return P


@dataclass(frozen=True)
class TakenIn:
    """The sites of rows that q(B) was conditioned on, for one group of latents, so that they can be removed again.

    Attributes:
        shared: v0, (n, H0).  own: u, (n, R); without entries where no id has weights of its own.
        precision: of each row and covariance, (n, K).
        pull: linear term of the sites' log likelihood along the directions, (n, L): log p = pull'f - precision f^2 / 2.
        ids: of the rows, in the column of the group's blocks; empty where there is none.
    """

    shared: Tensor
    own: Tensor
    precision: Tensor
    pull: Tensor
    ids: tuple[str, ...]

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in TAKEN}

    @classmethod
    @torch.no_grad()
    def of(cls, group: LatentGroup, part: WeightPosterior, rows: Rows, sites: Sites) -> TakenIn:
        """Of rows with sites at the mean of q(B), given the pulls that led to this mean."""
        assert isinstance(part, Rotated) and sites.pull is not None
        K, L = part.n_covariances, part.mean.shape[1]
        precision, V = sites.shared(K), group.features(rows)
        pull = sites.pull + precision[:, shared_by(L, K)] * (part.mean_at(V) @ part.basis)
        if group.split is None:
            assert isinstance(V, Tensor)
            return cls(V, V[:, :0], precision, pull, ())
        split, levels = group.split.features(rows), _levels(group)
        ids = tuple(levels[block] for block in split.block.tolist())
        return cls(split.shared, split.own, precision, pull, ids)

    def check(self, group: LatentGroup, part: WeightPosterior) -> None:
        """Raise ValueError unless these are finite numbers of rows of this group."""
        n, (H0, R) = len(self.shared), (group.rank, 0)
        if group.split is not None:
            H0, R = len(group.split.places.shared), group.split.places.own.shape[1]
        K = part.n_covariances if isinstance(part, Rotated) else 0
        shapes = {"shared": (n, H0), "own": (n, R), "precision": (n, K), "pull": (n, group.n_latents)}
        for name, value in self.tensors().items():
            if tuple(value.shape) != shapes[name] or value.dtype != torch.float64 or not value.isfinite().all():
                raise ValueError(f"{name} of rows taken in must be finite and of shape {shapes[name]}")
        known = set() if group.split is None else set(_levels(group))
        if (
            len(self.ids) != (0 if group.split is None else n)
            or not set(self.ids) <= known
            or (self.precision < 0).any()
        ):
            raise ValueError("rows taken in must be of ids that the model knows")


TAKEN = ("shared", "own", "precision", "pull")


def _levels(group: LatentGroup) -> list[str]:
    """Ids of the column of a group's blocks."""
    assert group.kernel is not None and group.split is not None
    return next(
        leaf.levels for leaf in group.kernel.leaves() if isinstance(leaf, IdLeaf) and group.split.is_block(leaf)
    )


@torch.no_grad()
def take_back(prior: LatentPrior, weights: LatentPosterior, taken: list[TakenIn | None]) -> LatentPosterior:
    """q(B) with the sites of these rows removed, one entry per group of latents."""
    parts = []
    for group, part, own in zip(prior.groups, weights.parts, taken, strict=True):
        if own is None:
            parts.append(part)
            continue
        assert isinstance(part, Rotated)
        which = None
        if group.split is not None:
            number = {level: n for n, level in enumerate(_levels(group))}
            which = torch.tensor([number[level] for level in own.ids], dtype=torch.int64, device=prior.device)
        blocks = which.unique() if group.blocks is not None and which is not None else None
        known, (S, pull) = precisions_of(part, blocks), _sums(group, own, which, blocks)
        before, mean = added(known, S, -1.0), part.mean @ part.basis
        found = mean.clone()
        for direction, k in enumerate(shared_by(mean.shape[1], len(known))):
            along = slice(direction, direction + 1)
            found[:, along] = solved(before[k], known[k] @ mean[:, along] - pull[:, along])
        parts.append(moved(part, _only_seen(found, mean, part, blocks) @ part.basis.T, before, blocks))
    return LatentPosterior(tuple(parts))


def _only_seen(found: Tensor, mean: Tensor, part: Rotated, blocks: Tensor | None) -> Tensor:
    """The values found for the shared weights and those of a few ids, and the former mean elsewhere, (H, L)."""
    if not isinstance(part, RotatedBlocks) or blocks is None:
        return found
    places = part.places.only(blocks)
    return places.put(*places.take(found), mean)


def _sums(group: LatentGroup, taken: TakenIn, which: Tensor | None, blocks: Tensor | None) -> tuple[Precisions, Tensor]:
    """sum_n precision v v', K of them, and sum_n v pull', (H, L)."""
    V: Tensor | BlockFeatures = taken.shared
    if group.split is not None:
        assert which is not None
        V = BlockFeatures(taken.shared, taken.own, which, group.split.places)
    if isinstance(V, BlockFeatures) and blocks is not None:
        V = V.only(blocks)
        full = [weighted_block_sums(V, weight.unsqueeze(1), taken.pull).assembled() for weight in taken.precision.T]
        pull = V.places.put(*full[0].R, taken.pull.new_zeros(group.rank, taken.pull.shape[1]))
        return [PlacedArrowhead(each.S, V.places) for each in full], pull
    dense = V.dense(group.rank) if isinstance(V, BlockFeatures) else V
    return torch.einsum("nk,nh,ng->khg", taken.precision, dense, dense), dense.T @ taken.pull
