"""The terms of a kernel: learned parameters, shares of the latent variance, and latents without some terms."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.estimator.kernel_summary import learned_words
from gppvae.explore.columns import ColumnFacts
from gppvae.kernels import Constant, IdLeaf, InducingLeaf, Leaf
from gppvae.kernels.base import Term
from gppvae.models.terms import contributions, kernel_terms
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.prior.posterior import LatentPosterior
from gppvae.report.plots import leaf_covariance

TermName = tuple[int, int]  # number of the group of latents as written, number of the term in its kernel
MAX_LEVELS = 120  # of a covariance on the page


def terms_of(prior: LatentPrior) -> dict[TermName, list[Term]]:
    """Every term of every kernel by name, with its copies in the members of an ensemble."""
    return {
        (number, place): list(same)
        for number, copies in enumerate(prior.written_groups)
        for place, same in enumerate(zip(*(_terms(group) for group in copies), strict=True))
    }


def _terms(group: LatentGroup) -> list[Term]:
    return [] if group.kernel is None else group.kernel.terms()


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


def _numbered(prior: LatentPrior) -> Iterator[tuple[int, LatentGroup]]:
    """All groups of latents, each with the number of the group as written."""
    return ((number, group) for number, copies in enumerate(prior.written_groups) for group in copies)


def weight_masks(prior: LatentPrior, off: Iterable[TermName]) -> list[Tensor]:
    """For each group (H, 1): 0 at the weights of terms that are off, 1 elsewhere."""
    masks = []
    for number, group in _numbered(prior):
        mask = torch.ones(group.rank, 1, dtype=torch.float64, device=prior.device)
        start = 0
        for place, term in enumerate(_terms(group)):
            if (number, place) in off:
                mask[start : start + term.rank] = 0.0
            start += term.rank
        masks.append(mask)
    return masks


def noise_without(prior: LatentPrior, rows: Rows, off: frozenset[TermName]) -> Tensor:
    """Variance of eta plus the residuals of the terms that are on, (N, L)."""
    if not off:
        return prior.noise_at(rows)
    parts = []
    for number, group in _numbered(prior):
        noise = group.alpha.expand(len(rows))
        for place, term in enumerate(_terms(group)):
            if (number, place) not in off:
                noise = noise + _residual(term, rows)
        parts.append(noise[:, None].expand(len(rows), group.n_latents))
    return torch.cat(parts, dim=1)


def _residual(term: Term, rows: Rows) -> Tensor:
    """The residual of one term: prior variance that its features do not carry, (N,)."""
    whole = functools.reduce(torch.mul, (leaf.row_variance(rows) for leaf in term.leaves))
    carried = functools.reduce(torch.mul, (leaf.row_factor(rows).square().sum(1) for leaf in term.leaves))
    return ((whole - carried) * term.amplitude()).clamp_min(0.0)


@torch.no_grad()
def shares(prior: LatentPrior, posterior: LatentPosterior, rows: Rows) -> dict[TermName, float]:
    """Share of each term in the variance of the latents over these rows: `latent_share` of `GPPVAE.explain`.

    Cov(f_term, f) / Var(f), numerator and denominator summed over latents.
    """
    names = list(terms_of(prior))
    if not names:
        return {}
    parts, _ = contributions(prior, posterior, rows, kernel_terms(prior))
    parts = parts - parts.mean(1, keepdim=True)  # (T, N, L)
    covariances = (parts * parts.sum(0)).sum((1, 2))  # (T,)
    total = float(covariances.sum()) or 1.0
    return {name: float(value) / total for name, value in zip(names, covariances, strict=True)}


@torch.no_grad()
def leaf_facts(leaf: Leaf, *others: Leaf) -> dict[str, Any]:
    """A leaf and its learned parameters as text; `others`: the same leaf in the other members of an ensemble."""
    return {
        "text": leaf.text(),
        "columns": list(leaf.columns_read),
        "learned": learned_words(leaf, *others),
        "has_covariance": bool(leaf.columns_read) and not isinstance(leaf, Constant),
    }


def covariance_of(leaves: Sequence[Leaf], columns: list[ColumnFacts]) -> dict[str, Any]:
    """The covariance of a leaf at its ids or training values, with similar ids adjacent.

    Args:
        leaves: the leaf in each member of an ensemble, averaged over; or a single leaf.

    Returns:
        "matrix" (n, n), "labels", and the numbers as "values" (n, d), None for ids.
    """
    leaf, numbers = leaves[0], None
    if not isinstance(leaf, IdLeaf):
        numbers = leaf.shown_values.cpu().numpy() if isinstance(leaf, InducingLeaf) else _training_values(leaf, columns)
    matrix, labels, _, values = leaf_covariance(leaves, numbers, MAX_LEVELS)
    return {"labels": labels, "matrix": matrix, "values": values}


def _training_values(leaf: Leaf, columns: list[ColumnFacts]) -> np.ndarray:
    """Training values of the column that a leaf reads, (D, 1)."""
    values = {column.name: column.values for column in columns}.get(leaf.columns_read[0], [])
    if len(leaf.columns_read) != 1 or not values:
        raise ValueError(f"{leaf.text()} has no values to show a covariance of; give --table")
    return np.array(values)[:, None]
