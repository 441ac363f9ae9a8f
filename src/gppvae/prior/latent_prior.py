"""The prior of the latents, and the only interface to the Gaussian process: kernels, noise, sums, posterior.

Latents come in groups, each with its own kernel; a group without a kernel has the prior of an ordinary VAE:

    z_n = B'v(row_n) + eta_n,  B_hl ~ N(0, 1),  eta_n ~ N(0, alpha I)        with a kernel, k(a, b) = v(a)'v(b)
    z_n = eta_n,               eta_n ~ N(0, I)                               without: variation that no column explains

The second is the first with no features and alpha = 1, so no formula below needs a case for it.
"""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from gppvae.data.sizes import SIZE, code_sizes
from gppvae.data.table import Column, Rows, Table
from gppvae.kernels.base import Kernel, Leaf, check_keys
from gppvae.kernels.ids import IdLeaf
from gppvae.kernels.not_applicable import fill_switched_off
from gppvae.prior.arrowhead import arrowhead_nll
from gppvae.prior.at_rows import RowFeatures, joined, over_whole
from gppvae.prior.blocks import BlockFeatures, BlockLayout, NewIds, Places, block_column
from gppvae.prior.closed_form import (
    PosteriorAtRows,
    PseudoPosterior,
    condition_blocks_on_pseudo,
    condition_on_pseudo,
)
from gppvae.prior.latents import Latents
from gppvae.prior.layout import Layout, plan_layout
from gppvae.prior.lowrank import assemble, gp_nll
from gppvae.prior.posterior import (
    DiagonalCovariance,
    Features,
    LatentPosterior,
    WeightPosterior,
    condition,
    condition_blocks,
)
from gppvae.prior.statistics import (
    BlockStatistics,
    Statistics,
    Sums,
    block_statistics,
    statistics,
    weighted_block_sums,
    weighted_sums,
)

log = logging.getLogger("gppvae")


class LatentGroup(nn.Module):
    """Latents that share a kernel.

    Args:
        kernel: None for the ordinary VAE prior.
        n_latents: L of this group.
        alpha: initial latent noise variance; without a kernel it is fixed at 1.

    Attributes:
        least_in_blocks: rank H from which block algebra is used, one block per id (prior/blocks.py).
    """

    least_in_blocks: int = 512

    def __init__(self, kernel: Kernel | None, n_latents: int, alpha: float) -> None:
        super().__init__()
        self.kernel, self.n_latents = kernel, n_latents
        start = torch.tensor(math.log(alpha) if kernel is not None else 0.0, dtype=torch.float64)
        self.log_alpha = nn.Parameter(start, requires_grad=kernel is not None)
        self.layout = Layout(kernel)
        self._split: tuple[object, BlockLayout | None] = (None, None)

    @property
    def alpha(self) -> Tensor:
        """Latent noise variance, ()."""
        return self.log_alpha.exp()

    @property
    def rank(self) -> int:
        """H, the number of features; 0 without a kernel."""
        return 0 if self.kernel is None else self.kernel.rank

    @property
    def split(self) -> BlockLayout | None:
        """Features split into shared ones and a block per id; None without a Categorical kernel."""
        key = None if self.kernel is None else block_column(self.kernel)
        if self.kernel is None or key is None:
            return None
        state = key, self.kernel.device, [leaf.rank for leaf in self.kernel.leaves()]  # ids may be added after a fit
        if self._split[0] != state:
            self._split = state, BlockLayout(self.kernel, key)
        return self._split[1]

    @property
    def blocks(self) -> BlockLayout | None:
        """`split` where the rank is large enough for block algebra, else None."""
        return self.split if self.rank >= self.least_in_blocks else None

    def new_ids(self, rows: Rows, within: slice | None = None) -> NewIds | None:
        """Features of the rows of ids that were not in the training set; None when there are no such ids.

        Args:
            within: only these features are kept, for example those of one term of the kernel.
        """
        split = self.split
        if split is None or len(rows.columns[split.key].values) == split.n_blocks:
            return None
        V = split.features(rows)
        return V.new if within is None else V.within(within).new

    @property
    def places(self) -> Places | None:
        """Positions of the shared and the per-id weights; None without block algebra."""
        return None if self.blocks is None else self.blocks.places

    def features(self, rows: Rows) -> Features:
        """V, (N, H)."""
        if self.kernel is None:
            return self.log_alpha.new_zeros(len(rows), 0)
        return self.kernel.features(rows) if self.blocks is None else self.blocks.features(rows)

    def statistics(self, rows: Rows, mean: Tensor, var: Tensor | None, noise: Tensor) -> Statistics:
        """Sums over rows; see `statistics` in prior/statistics.py."""
        if self.blocks is None:
            return statistics(self.layout.rows(rows), mean, var, noise)
        return block_statistics(self.blocks.features(rows), mean, var, noise)

    def weighted_sums(self, rows: Rows, weight: Tensor, values: Tensor) -> Statistics:
        """sum_n weight_n v v' and sum_n v values', in the places of S and R."""
        if self.blocks is None:
            return weighted_sums(self.layout.rows(rows), weight, values)
        return weighted_block_sums(self.blocks.features(rows), weight, values)

    def nll(self, sums: Statistics) -> Tensor:
        """Expected negative log density of the latents, from the sums over all rows."""
        if isinstance(sums, BlockStatistics):
            return arrowhead_nll(sums.assembled())
        return gp_nll(assemble(sums, self.layout))

    def condition(self, sums: Statistics) -> WeightPosterior:
        """q(B) given sums over the latents."""
        if isinstance(sums, BlockStatistics) and self.places is not None:
            return condition_blocks(sums.assembled(), self.places, self.rank)
        return condition(assemble(sums, self.layout))

    def condition_on_pseudo(self, observed: Statistics, gradients: Statistics) -> PseudoPosterior:
        """q(B) given pseudo-observations, with the gradient of the bound with respect to their sums."""
        share = float(gradients.sums[3] / observed.sums[3])  # of all rows, in the gradient sums
        if isinstance(observed, BlockStatistics) and isinstance(gradients, BlockStatistics) and self.places is not None:
            S_R, A_G = observed.assembled(), gradients.assembled()
            return condition_blocks_on_pseudo(S_R, A_G, share, self.places, self.rank)
        full, by = assemble(observed, self.layout), assemble(gradients, self.layout)  # by.S is A, by.R is G
        return condition_on_pseudo(full.S, full.R, by.S / share, by.R / share, stale=share != 1.0)

    def noise(self, rows: Rows, training: bool) -> Tensor:
        """d, () or (N,): alpha plus the residual prior variance of these rows, k(a, a) - |v(a)|^2.

        Args:
            training: whether all rows are training rows, at which the features of some kernels are exact.
        """
        if self.kernel is None or (training and self.kernel.carries_training_variance):
            return self.alpha
        return self.alpha + self.kernel.residual(rows)


def _shares(kernel: Kernel | None, n_latents: int, copies: int) -> list[tuple[Kernel | None, int]]:
    """Copies of a group's kernel, with its latents divided among them as evenly as possible."""
    if copies > n_latents:
        raise ValueError(
            f"expected at least one latent per member in every group, got {n_latents} for {copies} members; "
            "give members a smaller number"
        )
    sizes = [n_latents // copies + (number < n_latents % copies) for number in range(copies)]
    return [(kernel if number == 0 else copy.deepcopy(kernel), size) for number, size in enumerate(sizes)]


class LatentPrior(nn.Module):
    """Prior of all latents. Networks, training loop and estimator see the GP through this object only.

    Args:
        groups: (kernel, number of latents) of each group as written, in the order of the latents.
        alpha: initial latent noise variance.
        copies: of every group, one for each member of an ensemble: each has its share of the group's latents and a copy
            of its kernel.

    Attributes:
        written_sizes: numbers of latents of the groups as written.
        size_column: column with the sizes of samples, which coded rows hold for the likelihood; None for none.
            A column named "(size)" takes precedence.
    """

    size_column: str | None = None

    def __init__(self, groups: Sequence[tuple[Kernel | None, int]], alpha: float = 0.1, copies: int = 1) -> None:
        super().__init__()
        self.copies, self.written_sizes = copies, [n for _, n in groups]
        shares = [share for kernel, n in groups for share in _shares(kernel, n, copies)]
        # Groups, not members of an ensemble: the name is part of model files.
        self.members = nn.ModuleList([LatentGroup(kernel, n, alpha) for kernel, n in shares])
        self.sizes = [n for _, n in shares]
        # Mean and covariance of z over the training rows, measured at the end of a fit; N(0, I) until then.
        self.typical_mean: Tensor
        self.typical_cov: Tensor
        self.register_buffer("typical_mean", torch.zeros(sum(self.sizes), dtype=torch.float64))
        self.register_buffer("typical_cov", torch.eye(sum(self.sizes), dtype=torch.float64))

    # -- groups, kernels and sizes

    @property
    def groups(self) -> list[LatentGroup]:
        """Groups of latents, in order; the copies of a group lie side by side."""
        return cast("list[LatentGroup]", list(self.members))

    @property
    def written_groups(self) -> list[list[LatentGroup]]:
        """The copies of each group as written; one each without an ensemble."""
        groups = self.groups
        return [groups[first : first + self.copies] for first in range(0, len(groups), self.copies)]

    @property
    def written_kernels(self) -> list[Kernel | None]:
        """Kernels of the groups as written; in an ensemble those of the first member."""
        return [copies[0].kernel for copies in self.written_groups]

    @property
    def n_latents(self) -> int:
        """L."""
        return sum(self.sizes)

    @property
    def latent_slices(self) -> list[slice]:
        """The latents of each group."""
        ends = itertools.accumulate(self.sizes)
        return [slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    @property
    def kernels(self) -> list[Kernel]:
        """Kernels of the groups that have one."""
        return [group.kernel for group in self.groups if group.kernel is not None]

    @property
    def n_blocks(self) -> int:
        """Number of per-id blocks, the largest over the groups; 0 without block algebra."""
        return max(0 if group.blocks is None else group.blocks.n_blocks for group in self.groups)

    @property
    def device(self) -> torch.device:
        return self.groups[0].log_alpha.device

    def leaves(self) -> list[Leaf]:
        """Leaves of all kernels."""
        return [leaf for kernel in self.kernels for leaf in kernel.leaves()]

    def written_leaves(self) -> list[Leaf]:
        """Leaves of the kernels as written; in an ensemble those of the first member."""
        return [same[0] for same in self.leaves_by_member()]

    def leaves_by_member(self) -> list[list[Leaf]]:
        """Each leaf of the kernels as written, followed by the same leaf of the other members of an ensemble."""
        found = []
        for copies in self.written_groups:
            kernels = [group.kernel for group in copies if group.kernel is not None]
            found += [list(same) for same in zip(*(kernel.leaves() for kernel in kernels), strict=True)]
        return found

    def columns(self) -> list[str]:
        """Names of the columns that the kernels read, each once."""
        return list(dict.fromkeys(name for kernel in self.kernels for name in kernel.columns()))

    def unexplained(self) -> Tensor:
        """Which latents have no kernel, (L,) bool."""
        parts = [torch.full((group.n_latents,), group.kernel is None) for group in self.groups]
        return torch.cat(parts).to(self.device)

    def neg_log_prior(self) -> Tensor:
        """Negative log prior of the kernels' parameters, up to a constant."""
        parts = [kernel.neg_log_prior() for kernel in self.kernels]
        return functools.reduce(torch.add, parts, torch.zeros((), dtype=torch.float64, device=self.device))

    def to_gp(self, x: Tensor) -> Tensor:
        """A network's output in float64, on the GP's device."""
        return x.to(self.device).to(torch.float64)

    # -- the table

    def bind(self, table: Table, generator: torch.Generator | None = None) -> None:
        """Fix levels and inducing points of all kernels from the training table."""
        check_keys(self.leaves())  # rows hold one coded column per key, for all groups
        for kernel in self.kernels:
            kernel.bind(table, generator)

    def code(self, table: Table, new_ids: bool = True) -> Rows:
        """The table as `Rows`; unknown ids and non-numeric values are errors that name them.

        Args:
            new_ids: accept ids that were not in the training set, in columns that only select a per-id block. Such ids
                keep the prior, and a warning counts them.

        Numbers may be missing where every term that reads them is 0 (kernels/not_applicable.py).
        """
        table = fill_switched_off([term for kernel in self.kernels for term in kernel.terms()], table)
        readers: dict[str, list[Leaf]] = {}
        for leaf in self.leaves():
            readers.setdefault(leaf.key, []).append(leaf)
        columns: dict[str, Column] = {}
        for key, leaves in readers.items():
            # Some leaves of a column may lack ids added later: the leaf with the most levels defines the codes.
            leaf = max(leaves, key=lambda leaf: len(leaf.levels) if isinstance(leaf, IdLeaf) else 0)
            if new_ids and isinstance(leaf, IdLeaf) and self._only_in_blocks(key):
                columns[key] = leaf.code_leaf(table, new_ids=True)
                _warn_of_new_ids(leaf, len(columns[key].values) - len(leaf.levels))
            else:
                columns[key] = leaf.code_leaf(table)
        for name in (SIZE, self.size_column):
            if name is not None and name in table.columns and SIZE not in columns:
                columns[SIZE] = code_sizes(table, name)
        return Rows(columns, len(table)).to(self.device)

    def knows(self, table: Table) -> np.ndarray:
        """Rows whose ids are all known, (N,) bool."""
        known = np.ones(len(table), dtype=bool)
        for leaf in self.leaves():
            if isinstance(leaf, IdLeaf):
                known &= np.isin(table.ids(leaf.column), leaf.levels)
        return known

    def _only_in_blocks(self, key: str) -> bool:
        """Whether the ids of a column only select per-id blocks, in every kernel that reads it."""
        for group in self.groups:
            readers = [] if group.kernel is None else [leaf for leaf in group.kernel.leaves() if leaf.key == key]
            split = group.split
            if readers and (split is None or split.key != key or not all(map(split.is_block, readers))):
                return False
        return True

    def plan(self, rows: Rows, batch_size: int) -> None:
        """Choose the layout in which the training rows are summed."""
        for group in self.groups:
            if group.blocks is None:
                group.layout = plan_layout(group.kernel, rows, batch_size)

    def rows_of_ids(self, rows: Rows) -> list[Tensor | None]:
        """Number of these rows of each id with a block, (P,) per group; None without block algebra."""
        return [
            None
            if group.blocks is None
            else torch.bincount(rows.columns[group.blocks.key].index, minlength=group.blocks.n_blocks)
            for group in self.groups
        ]

    # -- sums over rows, the GP term and q(B)

    def statistics(self, rows: Rows, mean: Tensor, var: Tensor | None = None) -> Sums:
        """Sums over rows whose latents are N(mean, var), or known to be `mean`; (N, L) each.

        They add over batches and processes. Cost: O(N M (2M + L)).
        """
        means = self.to_gp(mean).split(self.sizes, dim=1)
        variances = [None] * len(means) if var is None else self.to_gp(var).split(self.sizes, dim=1)
        return [
            group.statistics(rows, own, own_var, group.noise(rows, training=True))
            for group, own, own_var in zip(self.groups, means, variances, strict=True)
        ]

    def nll(self, totals: Sums) -> Tensor:
        """Expected negative log density of all latents, from the sums over all rows. Cost: O(H^3 + H^2 L)."""
        parts = [group.nll(sums) for group, sums in self._with(totals)]
        return functools.reduce(torch.add, parts)

    def posterior(self, totals: Sums) -> LatentPosterior:
        """q(B) given sums over the latents; if variances were summed too, they are integrated out."""
        return LatentPosterior(tuple(group.condition(sums) for group, sums in self._with(totals)))

    def over_features(self, totals: Sums) -> Sums:
        """S and R of these sums over whole features, whatever the layout in which rows are summed."""
        found: Sums = []
        for group, own in self._with(totals):
            if isinstance(own, BlockStatistics):
                found.append(own)
                continue
            full = assemble(own, group.layout)
            outer = torch.cat([full.S, full.R], dim=1).unsqueeze(0)  # one group of rows, (1, H, H + L)
            found.append(Statistics(outer, own.sums, own.n_latents))
        return found

    def given(self, totals: Sums) -> LatentPosterior:
        """q(B) given sums over whole features, as from `over_features`."""
        return LatentPosterior(
            tuple(
                group.condition(own) if isinstance(own, BlockStatistics) else condition(over_whole(own))
                for group, own in self._with(totals)
            )
        )

    def before_data(self) -> LatentPosterior:
        """q(B) before any data: N(0, I)."""
        parts = []
        for group in self.groups:
            zeros = group.log_alpha.detach().new_zeros(group.rank, group.n_latents)
            parts.append(DiagonalCovariance(zeros, torch.ones_like(zeros)))
        return LatentPosterior(tuple(parts))

    def _with(self, totals: Sums) -> zip[tuple[LatentGroup, Statistics]]:
        return zip(self.groups, totals, strict=True)

    # -- latents of rows

    def at(self, rows: Rows, weights: LatentPosterior, training: bool = False) -> Latents:
        """Posterior of the latents of rows at q(B); far from all data, var + noise is the prior variance.

        Args:
            training: whether all are training rows; see `LatentGroup.noise`.
        Cost: O(N H (H + L)).
        """
        return self.features_at(rows, training).at(weights)

    def features_at(self, rows: Rows, training: bool = True) -> RowFeatures:
        """Features and noise of rows, to be evaluated under several posteriors; `training` as in `at`."""
        # alpha () or alpha + residual (N,) -> (N, 1)
        noise = [group.noise(rows, training).reshape(-1, 1).expand(len(rows), 1) for group in self.groups]
        new = [group.new_ids(rows) for group in self.groups]
        return RowFeatures([group.features(rows) for group in self.groups], noise, self.sizes, new)

    def functions_at(self, rows: Rows, draws: Sequence[Tensor], generator: torch.Generator | None = None) -> Tensor:
        """f = B'v at rows for one draw of B per group, (N, L).

        Args:
            generator: draws the weights of ids that were not in the training set; without it, their prior mean 0.
        """
        parts = []
        for group, B in zip(self.groups, draws, strict=True):
            f = group.features(rows) @ B
            new = None if generator is None else group.new_ids(rows)
            parts.append(f if new is None or generator is None else f + new.drawn(group.n_latents, generator))
        return joined(parts)

    def noise_at(self, rows: Rows, training: bool = False) -> Tensor:
        """Variance of eta plus the residual variance of the rows, (N, L); `training` as in `at`."""
        sizes = [(group, (len(rows), group.n_latents)) for group in self.groups]
        return joined([group.noise(rows, training).reshape(-1, 1).expand(size) for group, size in sizes])

    # -- posterior coding: encoder outputs as pseudo-observations

    def pseudo_noise(self, logvar: Tensor, rows: Rows) -> list[Tensor]:
        """Noise of the pseudo-observations of rows, (N,) per group.

        The geometric mean of the encoder's variances over the group's latents, so that these share one covariance, plus
        the residual variance.
        """
        found = []
        for group, own in zip(self.groups, self.to_gp(logvar).split(self.sizes, dim=1), strict=True):
            noise = own.mean(1).exp()  # (N, L_g) -> (N,)
            if group.kernel is not None and not group.kernel.carries_training_variance:
                noise = noise + group.kernel.residual(rows)
            found.append(noise)
        return found

    def pseudo_statistics(self, rows: Rows, mean: Tensor, noise: list[Tensor]) -> Sums:
        """S and R over rows with pseudo-observations `mean` (N, L) of these noises."""
        means = mean.split(self.sizes, dim=1)
        return [
            group.statistics(rows, own, None, own_noise)
            for group, own, own_noise in zip(self.groups, means, noise, strict=True)
        ]

    def gradient_statistics(self, rows: Rows, by_mean: Tensor, by_var: Tensor) -> Sums:
        """A = sum h v v' and G = sum v g', in the places of S and R.

        Args:
            by_mean, by_var: gradients of -E log p(y | z) with respect to the mean and variance of f, (N, L) each.
        """
        parts = zip(self.groups, by_mean.split(self.sizes, 1), by_var.split(self.sizes, 1), strict=True)
        return [group.weighted_sums(rows, h.sum(1, keepdim=True), g) for group, g, h in parts]

    def condition_on_pseudo(self, observed: Sums, gradients: Sums) -> list[PseudoPosterior]:
        """q(B) given pseudo-observations, with the gradient of the bound with respect to their sums.

        Args:
            observed: S and R over all rows.  gradients: A and G over all rows, or over some, then scaled up to all.
        """
        parts = zip(self.groups, observed, gradients, strict=True)
        return [group.condition_on_pseudo(own, by) for group, own, by in parts]

    def at_pseudo(
        self, rows: Rows, mean: Tensor, noise: list[Tensor], given: list[PseudoPosterior], n: int
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at rows, (N, L) each, differentiable through the q(B) of all rows.

        Args:
            mean, noise: pseudo-observations of the rows.  given: q(B).  n: rows of the batch over all processes.
        """
        means, variances = [], []
        parts = zip(self.groups, mean.split(self.sizes, dim=1), noise, given, strict=True)
        for group, own, own_noise, q in parts:
            V = group.features(rows)
            x, blocks = (V.x, V.detach()) if isinstance(V, BlockFeatures) else (V, None)  # (N, H0 + R) or (N, H)
            f, s = PosteriorAtRows.apply(x, own, own_noise, q, n, blocks)
            means.append(f)
            variances.append(s.expand_as(f))
        return joined(means), joined(variances)


def _warn_of_new_ids(leaf: IdLeaf, new: int) -> None:
    if new:
        log.warning(
            "%d ids of column %r were not in the training set: %s gives them its prior until add_objects() learns them "
            "from samples",
            new, leaf.column, leaf.text(),
        )  # fmt: skip
