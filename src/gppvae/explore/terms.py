"""The terms of a kernel: what each learned, its share of the latents' variance, and the latents without it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.explore.columns import ColumnFacts
from gppvae.kernels import Constant, IdLeaf, InducingLeaf, Leaf, Learned
from gppvae.kernels.base import Term
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.models.terms import contributions, kernel_terms
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior
from gppvae.report.plots import cluster_order

TermName = tuple[int, int]  # number of the group of latents, number of the term in its kernel
MAX_LEVELS = 120  # of a covariance that is shown
MAX_NUMBERS = 4  # of one parameter, to be shown


def terms_of(prior: LatentPrior) -> dict[TermName, Term]:
    """Every term of every kernel by its name."""
    return {
        (number, place): term
        for number, group in enumerate(prior.groups)
        if group.kernel is not None
        for place, term in enumerate(group.kernel.terms())
    }


def check_off(prior: LatentPrior, off: Any) -> frozenset[TermName]:
    """The terms that a request switches off, as [group, term] each."""
    known = terms_of(prior)
    found = set()
    for entry in off if isinstance(off, list) else [off]:
        name = tuple(entry) if isinstance(entry, list) else entry
        if name not in known:
            raise ValueError(f"expected terms of the kernel as [group, term], got {entry!r:.60}")
        found.add(name)
    return frozenset(found)


def weight_masks(prior: LatentPrior, off: Iterable[TermName]) -> list[Tensor]:
    """For each group (H, 1): zero at the weights of terms that are switched off, one elsewhere."""
    masks = []
    for number, group in enumerate(prior.groups):
        mask = torch.ones(group.rank, 1, dtype=torch.float64, device=prior.device)
        start = 0
        for place, term in enumerate([] if group.kernel is None else group.kernel.terms()):
            if (number, place) in off:
                mask[start : start + term.rank] = 0.0
            start += term.rank
        masks.append(mask)
    return masks


def noise_without(prior: LatentPrior, rows: Rows, off: frozenset[TermName]) -> Tensor:
    """Variance of eta plus the residual variance of the terms that are on, (N, L)."""
    if not off:
        return prior.noise_at(rows)
    parts = []
    for number, group in enumerate(prior.groups):
        noise = group.alpha.expand(len(rows))
        for place, term in enumerate([] if group.kernel is None else group.kernel.terms()):
            if (number, place) not in off:
                noise = noise + _residual(term, rows)
        parts.append(noise[:, None].expand(len(rows), group.n_latents))
    return torch.cat(parts, dim=1)


def _residual(term: Term, rows: Rows) -> Tensor:
    """Prior variance of one term that its features do not carry, (N,)."""
    whole = functools.reduce(torch.mul, (leaf.row_variance(rows) for leaf in term.leaves))
    carried = functools.reduce(torch.mul, (leaf.row_factor(rows).square().sum(1) for leaf in term.leaves))
    return ((whole - carried) * term.amplitude()).clamp_min(0.0)


@torch.no_grad()
def shares(prior: LatentPrior, posterior: LatentPosterior, rows: Rows) -> dict[TermName, float]:
    """Share of each term in the variance of the latents over these rows: `latent_share` of `GPPVAE.explain`.

    It is the covariance of the term's part of f with f, over the variance of f, each summed over latents.
    """
    names = list(terms_of(prior))
    if not names:
        return {}
    parts, _ = contributions(prior, posterior, rows, kernel_terms(prior))
    parts = parts - parts.mean(1, keepdim=True)  # (T, N, L)
    with_all = (parts * parts.sum(0)).sum((1, 2))
    total = float(with_all.sum()) or 1.0
    return {name: float(value) / total for name, value in zip(names, with_all, strict=True)}


@torch.no_grad()
def leaf_facts(leaf: Leaf) -> dict[str, Any]:
    """What a leaf is and what it learned, in words."""
    return {
        "text": leaf.text(),
        "columns": list(leaf.columns_read),
        "learned": _learned(leaf),
        "has_covariance": bool(leaf.columns_read) and not isinstance(leaf, Constant),
    }


def _learned(leaf: Leaf) -> str:
    if isinstance(leaf, Learned):
        size = float(leaf.vectors().square().sum(1).mean())
        return f"{len(leaf.levels)} ids, vectors of length {leaf.dim}, mean variance {size:.3g}"
    if isinstance(leaf, IdLeaf):
        return f"{len(leaf.levels)} levels"
    if isinstance(leaf, StationaryLeaf):
        scales = [f"{float(value):.3g}" for value in leaf.base.lengthscale.flatten()]
        several = len(scales) == len(leaf.columns_read) > 1
        shown = ", ".join(f"{c} {s}" for c, s in zip(leaf.columns_read, scales, strict=True)) if several else scales[0]
        return f"length scale {shown}"
    few = [(name, p) for name, p in leaf.named_parameters() if p.numel() <= MAX_NUMBERS]
    return ", ".join(f"{name} {', '.join(f'{float(v):.3g}' for v in p.flatten())}" for name, p in few)


@torch.no_grad()
def covariance_of(leaf: Leaf, columns: list[ColumnFacts]) -> dict[str, Any]:
    """The covariance of a leaf at its ids or training values, with a label for each; alike ids side by side."""
    device = next((p.device for p in leaf.parameters()), torch.device("cpu"))
    if isinstance(leaf, IdLeaf):
        picked = _spread(len(leaf.levels))
        labels = [leaf.levels[number] for number in picked]
        values = torch.from_numpy(picked).to(device)
    else:
        numbers = leaf.shown_values.cpu().numpy() if isinstance(leaf, InducingLeaf) else _training_values(leaf, columns)
        labels = [", ".join(f"{value:.4g}" for value in row) for row in numbers]
        values = torch.from_numpy(np.ascontiguousarray(numbers)).to(device)
    matrix = leaf.covariance(values, values).cpu().numpy()
    if isinstance(leaf, Learned) and len(labels) > 2:
        order = list(cluster_order(matrix))
        labels, matrix = [labels[n] for n in order], matrix[np.ix_(order, order)]
    return {"labels": labels, "matrix": matrix}


def _training_values(leaf: Leaf, columns: list[ColumnFacts]) -> np.ndarray:
    """Values of the one column that a leaf reads, (D, 1)."""
    values = {column.name: column.values for column in columns}.get(leaf.columns_read[0], [])
    if len(leaf.columns_read) != 1 or not values:
        raise ValueError(f"{leaf.text()} has no values to show a covariance of; give --table")
    return np.array(values)[:, None]


def _spread(n: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(n, MAX_LEVELS)).round().astype(np.int64))
