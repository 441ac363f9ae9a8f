"""Ids added to a Categorical column after a fit: q(B) with a block of prior weights for each of them.

A new id has C_p = I and no arms: its block is B_p ~ N(0, I), independent of all other weights, which do not change. Its
samples then condition q(B) like any others (inference/update.py). An id is dropped by subtracting its sites and
integrating out its block: the block is left out of the factors of the arrowhead.
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
    add_precisions,
    covariance_index,
    from_precisions,
    precisions_of,
    solve_precision,
    with_precisions,
)
from gppvae.prior.statistics import weighted_block_sums


@dataclass(frozen=True)
class Move:
    """Old and new positions of the kept weights of one group, (H',) each.

    Attributes:
        rank: H before.
    """

    old: Tensor
    new: Tensor
    rank: int


@torch.no_grad()
def change_levels(
    prior: LatentPrior, weights: LatentPosterior, leaves: list[Categorical], drop: list[str], add: list[str]
) -> tuple[LatentPosterior, list[Move | None]]:
    """Drop some added ids of a column and append new ones.

    Args:
        leaves: all Categorical leaves of the column, in all groups.  drop: ids that were added before.

    Returns:
        q(B) over the new weights, and a `Move` per group, None for groups that do not read the column.
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
    """Positions among all H of the weights of some ids of a column and of those that do not depend on it, (H',)."""
    found = []
    for term, at in kernel.placed_terms():
        places = torch.arange(at.start, at.stop, device=ids.device).reshape([leaf.rank for leaf in term.leaves])
        for axis, leaf in enumerate(term.leaves):  # places has one axis per leaf, (R_1, R_2, ...)
            places = places.index_select(axis, ids) if leaf in leaves else places
        found.append(places.flatten())
    return torch.cat(found)


def _with_weights(group: LatentGroup, part: WeightPosterior, move: Move, kept: Tensor) -> Rotated:
    """q(B) with the kept weights at their new positions, new ones at their prior, dropped ones integrated out.

    Args:
        kept: numbers of the kept ids among the old levels.
    """
    dense = precisions_of(part) if not isinstance(part, RotatedBlocks) else None
    assert isinstance(part, Rotated), "precisions_of refuses all others"
    mean = part.mean.new_zeros(group.rank, part.mean.shape[1])
    mean[move.new] = part.mean[move.old]
    if isinstance(part, RotatedBlocks) and group.places is not None:
        factors = tuple(_with_blocks(C, kept, len(group.places.own)) for C in part.factors)
        return RotatedBlocks(mean, part.basis, factors, group.places)
    if isinstance(part, RotatedBlocks):  # few ids are left: the rank is below that of block algebra
        dense = torch.stack([_dense(C.matrix(), part.places, len(part.mean)) for C in part.factors])
    assert isinstance(dense, Tensor)
    precisions = torch.eye(group.rank).to(mean).repeat(len(dense), 1, 1)  # new weights: N(0, I), (K, H, H)
    precisions[:, move.new[:, None], move.new[None, :]] = _marginal(dense, move.old)
    if group.places is None:
        return from_precisions(mean, part.basis, precisions)
    return from_precisions(mean, part.basis, [_in_blocks(P, group.places) for P in precisions])


def _with_blocks(C: Factor, kept: Tensor, n: int) -> Factor:
    """The blocks of the kept ids, followed by prior blocks, n in all."""
    more, R, H0 = n - len(kept), *C.arms.shape[1:]
    eye = torch.eye(R).to(C.own).expand(more, R, R)  # C_p = I, arms 0
    return Factor(torch.cat([C.own[kept], eye]), torch.cat([C.arms[kept], C.arms.new_zeros(more, R, H0)]), C.shared)


def _marginal(precisions: Tensor, kept: Tensor) -> Tensor:
    """Precisions of some weights, all others integrated out: Schur complement, (K, H, H) -> (K, H', H')."""
    gone = torch.ones(precisions.shape[1], dtype=torch.bool, device=kept.device)
    gone[kept] = False
    own = precisions[:, kept[:, None], kept[None, :]]  # (K, H', H')
    if not gone.any():
        return own
    cross = precisions[:, gone][:, :, kept]  # (K, H - H', H')
    return own - cross.mT @ torch.linalg.solve(precisions[:, gone][:, :, gone], cross)


def _in_blocks(P: Tensor, places: Places) -> PlacedArrowhead:
    """A dense precision matrix (H, H) that is an arrowhead, as its blocks."""
    own = places.own  # (P, R)
    arms, blocks = P[own][:, :, places.shared], P[own.unsqueeze(2), own.unsqueeze(1)]  # (P, R, H0), (P, R, R)
    return PlacedArrowhead(Arrowhead(P[places.shared][:, places.shared], arms, blocks), places)


def _dense(matrix: Arrowhead, places: Places, rank: int) -> Tensor:
    """The inverse of `_in_blocks`; weights without a position keep their prior."""
    P = torch.eye(rank).to(matrix.shared)
    P[places.shared[:, None], places.shared[None, :]] = matrix.shared
    P[places.own.unsqueeze(2), places.shared] = matrix.arms
    P[places.shared.reshape(-1, 1, 1), places.own] = matrix.arms.movedim(2, 0)  # (P, R, H0) -> (H0, P, R)
    P[places.own.unsqueeze(2), places.own.unsqueeze(1)] = matrix.own
    return P


@dataclass(frozen=True)
class ConditionedRows:
    """Rows that q(B) of one group was conditioned on after the fit: their sites, stored so that they can be removed.

    Attributes:
        shared: v0, (n, H0).  own: u, (n, R), with R = 0 in groups without blocks.
        precision: of each row and covariance, (n, K).
        pull: linear term of the sites' log likelihood along the directions, (n, L): log p = pull'f - precision f^2 / 2.
        ids: of the rows, in the column of the group's blocks; empty in groups without blocks.
    """

    shared: Tensor
    own: Tensor
    precision: Tensor
    pull: Tensor
    ids: tuple[str, ...]

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in STORED}

    @classmethod
    @torch.no_grad()
    def of(cls, group: LatentGroup, part: WeightPosterior, rows: Rows, sites: Sites) -> ConditionedRows:
        """From rows whose sites were taken at the mean of q(B).

        Args:
            sites: their pulls are those that led to this mean; see `WeightUpdate.run`.
        """
        assert isinstance(part, Rotated) and sites.pull is not None
        K, L = part.n_covariances, part.mean.shape[1]
        precision, V = sites.averaged(K), group.features(rows)
        # The pull is the slope at f, so the linear term is pull + precision f.
        pull = sites.pull + precision[:, covariance_index(L, K)] * (part.mean_at(V) @ part.basis)
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
                raise ValueError(f"{name} of the sites of added ids must be finite and of shape {shapes[name]}")
        known = set() if group.split is None else set(_levels(group))
        complete = len(self.ids) == (0 if group.split is None else n) and set(self.ids) <= known
        if not complete or (self.precision < 0).any():
            raise ValueError("the sites of added ids must be of ids that the model knows")


STORED = ("shared", "own", "precision", "pull")


def _levels(group: LatentGroup) -> list[str]:
    """Ids of the group's blocks."""
    assert group.kernel is not None and group.split is not None
    return next(
        leaf.levels for leaf in group.kernel.leaves() if isinstance(leaf, IdLeaf) and group.split.is_block(leaf)
    )


@torch.no_grad()
def remove_rows(prior: LatentPrior, weights: LatentPosterior, taken: list[ConditionedRows | None]) -> LatentPosterior:
    """q(B) without the sites of these rows, one entry per group of latents: precisions and linear terms subtracted."""
    parts = []
    for group, part, own in zip(prior.groups, weights.parts, taken, strict=True):
        if own is None:
            parts.append(part)
            continue
        assert isinstance(part, Rotated)
        which = None
        if group.split is not None:
            number = {level: n for n, level in enumerate(_levels(group))}
            which = torch.tensor([number[level] for level in own.ids], dtype=torch.int64, device=prior.device)  # (n,)
        blocks = which.unique() if group.blocks is not None and which is not None else None
        known, (S, pull) = precisions_of(part, blocks), _sums(group, own, which, blocks)
        before, mean = add_precisions(known, S, -1.0), part.mean @ part.basis
        found = mean.clone()
        for direction, k in enumerate(covariance_index(mean.shape[1], len(known))):
            along = slice(direction, direction + 1)
            found[:, along] = solve_precision(before[k], known[k] @ mean[:, along] - pull[:, along])
        if isinstance(part, RotatedBlocks) and blocks is not None:  # the means of other ids do not change here
            places = part.places.only(blocks)
            found = places.put(*places.take(found), mean)
        parts.append(with_precisions(part, found @ part.basis.T, before, blocks))
    return LatentPosterior(tuple(parts))


def _sums(
    group: LatentGroup, taken: ConditionedRows, which: Tensor | None, blocks: Tensor | None
) -> tuple[Precisions, Tensor]:
    """sum_n precision_nk v v', K of them, and sum_n v pull', (H, L).

    Args:
        which: blocks of the rows, (n,).  blocks: those whose weights are kept, (G,) sorted.
    """
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
    return torch.einsum("nk,nh,ng->khg", taken.precision, dense, dense), dense.T @ taken.pull  # (K, H, H), (H, L)
