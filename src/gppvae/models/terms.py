"""The latents as a sum over kernel terms, f = sum_t f_t, and the part of each term in the decoded samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.kernels.base import Leaf
from gppvae.prior.blocks import BlockFeatures
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import Features, LatentPosterior

CHUNK = 1024  # rows whose features are formed at a time
MAX_NUMBERS = 2**24  # in those features
PATH_STEPS = 4  # steps of the path integral from the mean latents to those of a row


@dataclass(frozen=True)
class TermPart:
    """The features of a term in one group of latents.

    Attributes:
        group: number of the group in the prior.  features: columns of its V.  latents: of the group.
    """

    group: int
    features: slice
    latents: slice


@dataclass(frozen=True)
class KernelTerm:
    """One product of leaves, with its features and latents.

    Attributes:
        name: short and different for every term.  group: number of its group of latents, as written.
        leaves: of the product; in an ensemble those of the first member.
        parts: one for each member of an ensemble, in the order of the latents; else one.
    """

    name: str
    group: int
    leaves: tuple[Leaf, ...]
    parts: tuple[TermPart, ...]

    @property
    def latents(self) -> slice:
        """The latents of its group; those of the members of an ensemble are adjacent."""
        return slice(self.parts[0].latents.start, self.parts[-1].latents.stop)

    @property
    def columns(self) -> list[str]:
        """Names of the columns it reads, each once."""
        return list(dict.fromkeys(name for leaf in self.leaves for name in leaf.columns_read))

    def column_sets(self) -> list[tuple[str, ...]]:
        """Its columns, in sets: those that one leaf reads are in one set (two coordinates, for example)."""
        sets: list[tuple[str, ...]] = []
        for leaf in self.leaves:
            own = leaf.columns_read
            joined = [other for other in sets if set(other) & set(own)]
            merged = tuple(dict.fromkeys(name for part in (*joined, own) for name in part))
            sets = [other for other in sets if other not in joined] + ([merged] if merged else [])
        return sets


def kernel_terms(prior: LatentPrior) -> list[KernelTerm]:
    """The terms of all kernels, group by group, in the order in which they are written."""
    several = sum(kernel is not None for kernel in prior.written_kernels) > 1
    slices = prior.latent_slices
    terms: list[KernelTerm] = []
    for number, kernel in enumerate(prior.written_kernels):
        first = number * prior.copies
        products = [] if kernel is None else kernel.placed_terms()
        short = [_short(term.leaves) for term, _ in products]
        start = f"group {number + 1}: " if several else ""
        for (term, features), brief in zip(products, short, strict=True):
            name = brief if short.count(brief) == 1 else " * ".join(leaf.text() for leaf in term.leaves)
            parts = tuple(TermPart(group, features, slices[group]) for group in range(first, first + prior.copies))
            terms.append(KernelTerm(start + name, number, term.leaves, parts))
    return _unique_names(terms)


def contributions(
    prior: LatentPrior, weights: LatentPosterior, rows: Rows, terms: Sequence[KernelTerm]
) -> tuple[Tensor, Tensor]:
    """Posterior mean and variance of each term's part of f at rows, (T, N, L) each.

        f_n = sum_t f_tn,   f_tn = B_t'v_t(row_n),   E f_tn = m_t'v_t,   Var f_tn = v_t'Sigma_tt v_t

    A term is zero at the latents of other groups. The means add up to those of f; the variances do not, since terms are
    correlated in the posterior. Cost: O(T N H (H + L)).
    """
    size = (len(terms), len(rows), prior.n_latents)
    mean = torch.zeros(size, dtype=torch.float64, device=prior.device)
    var = torch.zeros_like(mean)
    groups = {part.group for term in terms for part in term.parts}
    features = {number: prior.groups[number].features(rows) for number in groups}
    for place, part in ((place, part) for place, term in enumerate(terms) for part in term.parts):
        V, q = _of_term(features[part.group], part), weights.parts[part.group]
        mean[place, :, part.latents], var[place, :, part.latents] = q.mean_at(V), q.var_at(V)
        new = prior.groups[part.group].new_ids(rows, part.features)
        if new is not None:
            var[place, :, part.latents] += new.variance()
    return mean, var


def _of_term(V: Features, part: TermPart) -> Features:
    """Features with zeros outside of those of one term."""
    if isinstance(V, BlockFeatures):
        return V.within(part.features)
    alone = torch.zeros_like(V)
    alone[:, part.features] = V[:, part.features]
    return alone


def averaged_contribution(
    prior: LatentPrior, weights: LatentPosterior, rows: Rows, term: KernelTerm, per_value: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a term's part of f, averaged over runs of `per_value` rows, (M, L_g) each.

    f_t is linear in v_t, so features are averaged, and the moments are exact.
    """
    moments = [_averaged(prior, weights, rows, part, per_value) for part in term.parts]
    mean, var = (torch.cat(own, dim=1) for own in zip(*moments, strict=True))
    return mean, var


def _averaged(
    prior: LatentPrior, weights: LatentPosterior, rows: Rows, part: TermPart, per_value: int
) -> tuple[Tensor, Tensor]:
    """`averaged_contribution` of one group of latents."""
    group, q = prior.groups[part.group], weights.parts[part.group]
    blocks, of_new_ids = [], torch.zeros(len(rows) // per_value, 1, dtype=torch.float64, device=rows.device)
    step = max(1, min(CHUNK, MAX_NUMBERS // max(group.rank, 1)) // per_value) * per_value
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        V, new = group.features(chunk), group.new_ids(chunk, part.features)
        if new is not None:
            runs = slice(start // per_value, (start + len(chunk)) // per_value)
            of_new_ids[runs] = new.averaged_variance(per_value)
        own = (V.dense(group.rank) if isinstance(V, BlockFeatures) else V)[:, part.features]
        blocks.append(own.reshape(-1, per_value, own.shape[1]).mean(1))  # (M per_value, H_t) -> (M, H_t)
    averaged = torch.cat(blocks)
    whole = averaged.new_zeros(len(averaged), group.rank)  # v_t among zeros, (M, H)
    whole[:, part.features] = averaged
    mean = q.mean_at(whole)
    return mean, q.var_at(whole).expand_as(mean) + of_new_ids


def signal_parts(
    decode: Callable[[Tensor], Tensor], parts: Tensor, centre: Tensor, steps: int = PATH_STEPS
) -> tuple[Tensor, Tensor]:
    """The part a_t of each term in the decoded samples: sum_t a_t = decode(z) - decode(centre) exactly.

        a_t = int_0^1 J(centre + s sum_u parts_u) parts_t ds,   J the Jacobian of `decode`

    The integral is taken in `steps` steps of finite differences. In each the terms move one after the other, in the
    order of the kernel and in reverse, and a_t is the average change while term t moves. For a linear decoder W it is
    W parts_t. Source: docs/math.md, "What each term explains".

    Args:
        decode: latents (N, L) -> samples.  parts: (T, N, L).  centre: (L,).

    Returns:
        (T, N, *shape), and decode(centre), (1, *shape).
    Cost: 2 T `steps` decoded samples per row; one for a single term.
    """
    n_terms = len(parts)
    start = decode(centre.unsqueeze(0))
    if n_terms == 1:
        return (decode(centre + parts[0]) - start).unsqueeze(0), start
    found = torch.zeros(n_terms, parts.shape[1], *start.shape[1:], dtype=start.dtype, device=start.device)
    orders = [list(range(n_terms)), list(range(n_terms))[::-1]]
    for order in orders:
        z = centre.expand_as(parts[0]).clone()
        before = start
        for _ in range(steps):
            for term in order:
                z = z + parts[term] / steps
                after = decode(z)
                found[term] += (after - before) / len(orders)  # (N, *shape)
                before = after
    return found, start


def _short(leaves: tuple[Leaf, ...]) -> str:
    return " * ".join(f"{type(leaf).__name__}({', '.join(leaf.columns_read)})" for leaf in leaves)


def _unique_names(terms: list[KernelTerm]) -> list[KernelTerm]:
    """The same terms; names that occur several times are numbered."""
    counts, seen = Counter(term.name for term in terms), Counter[str]()
    found = []
    for term in terms:
        seen[term.name] += 1
        number = f" ({seen[term.name]})" if counts[term.name] > 1 else ""
        found.append(replace(term, name=term.name + number))
    return found
