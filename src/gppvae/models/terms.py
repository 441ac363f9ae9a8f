"""The latents as a sum over kernel terms, and what each term changes in the decoded samples."""

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
PATH_STEPS = 4  # of the way from the mean latents to those of a row


@dataclass(frozen=True)
class TermPart:
    """Where the features and latents of a term are in one group of latents.

    Attributes:
        group: number of the group in the prior.  features: columns of the group's features.  latents: of the group.
    """

    group: int
    features: slice
    latents: slice


@dataclass(frozen=True)
class KernelTerm:
    """One product of leaves, and where its features and latents are.

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
        """Those of its group; the shares of members lie side by side."""
        return slice(self.parts[0].latents.start, self.parts[-1].latents.stop)

    @property
    def columns(self) -> list[str]:
        """Names of the columns it reads, each once."""
        return list(dict.fromkeys(name for leaf in self.leaves for name in leaf.columns_read))

    def column_sets(self) -> list[tuple[str, ...]]:
        """Its columns, those together that one leaf reads together (the two of a place, for example)."""
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
    return _told_apart(terms)


def contributions(
    prior: LatentPrior, weights: LatentPosterior, rows: Rows, terms: Sequence[KernelTerm]
) -> tuple[Tensor, Tensor]:
    """Posterior mean and variance of each term's part of f at rows, (T, N, L) each.

        f_n = sum_t f_tn,   f_tn = B_t'v_t(row_n)

    A term is zero at the latents of other groups. The means add up to those of f; the variances do not, since terms
    share rows and are correlated after them. Cost: O(T N H (H + L)).
    """
    size = (len(terms), len(rows), prior.n_latents)
    mean = torch.zeros(size, dtype=torch.float64, device=prior.device)
    var = torch.zeros_like(mean)
    groups = {part.group for term in terms for part in term.parts}
    features = {number: prior.groups[number].features(rows) for number in groups}
    for place, part in ((place, part) for place, term in enumerate(terms) for part in term.parts):
        V, q = _of_term(features[part.group], part), weights.parts[part.group]
        mean[place, :, part.latents], var[place, :, part.latents] = q.mean_at(V), q.var_at(V)
        if isinstance(V, BlockFeatures) and V.new is not None:
            var[place, :, part.latents] += V.new.variance()
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
    """Mean and variance of a term's part of f, averaged over `per_value` rows at a time, (M, L_group) each.

    The part is linear in the features, so those are averaged, and the moments are exact.
    """
    moments = [_averaged(prior, weights, rows, part, per_value) for part in term.parts]
    mean, var = (torch.cat(own, dim=1) for own in zip(*moments, strict=True))
    return mean, var


def _averaged(
    prior: LatentPrior, weights: LatentPosterior, rows: Rows, part: TermPart, per_value: int
) -> tuple[Tensor, Tensor]:
    """The same for one group of latents of the prior."""
    group, q = prior.groups[part.group], weights.parts[part.group]
    blocks = []
    step = max(1, min(CHUNK, MAX_NUMBERS // max(group.rank, 1)) // per_value) * per_value
    for start in range(0, len(rows), step):
        V = group.features(rows[start : start + step])
        own = (V.dense(group.rank) if isinstance(V, BlockFeatures) else V)[:, part.features]
        blocks.append(own.reshape(-1, per_value, own.shape[1]).mean(1))  # (M R, H_t) -> (M, H_t)
    averaged = torch.cat(blocks)
    whole = averaged.new_zeros(len(averaged), group.rank)
    whole[:, part.features] = averaged
    mean = q.mean_at(whole)
    return mean, q.var_at(whole).expand_as(mean)


def signal_parts(
    decode: Callable[[Tensor], Tensor], parts: Tensor, centre: Tensor, steps: int = PATH_STEPS
) -> tuple[Tensor, Tensor]:
    """What each term adds to the decoded samples: parts that sum to decode(z) - decode(centre) exactly.

    On the straight way from the centre to z = centre + sum_t parts_t, in `steps` steps, the terms move one after the
    other, in the order of the kernel and in the reverse one; a term's part is the change while it moves, averaged over
    the two orders. It tends to the path integral of the decoder's Jacobian times parts_t, needs no derivative of the
    decoder, and for a linear decoder W it is W parts_t. Source: docs/math.md, "What each term explains".

    Args:
        decode: latents (N, L) -> samples.  parts: (T, N, L).  centre: (L,).

    Returns:
        (T, N, *shape), and decode(centre), (1, *shape).
    Cost: 2 T steps decoded samples per row; one for a single term.
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
                found[term] += (after - before) / len(orders)
                before = after
    return found, start


def _short(leaves: tuple[Leaf, ...]) -> str:
    return " * ".join(f"{type(leaf).__name__}({', '.join(leaf.columns_read)})" for leaf in leaves)


def _told_apart(terms: list[KernelTerm]) -> list[KernelTerm]:
    """The same terms; names that stand several times are numbered."""
    counts, seen = Counter(term.name for term in terms), Counter[str]()
    found = []
    for term in terms:
        seen[term.name] += 1
        number = f" ({seen[term.name]})" if counts[term.name] > 1 else ""
        found.append(replace(term, name=term.name + number))
    return found
