"""The one seam between the Gaussian process and everything else: kernels, latent noise, sums, posterior.

Latents come in groups, each with a kernel of its own; a group without one has the prior of an ordinary VAE:

    z_n = B'v(row_n) + eta_n,  B_hl ~ N(0, 1),  eta_n ~ N(0, alpha I)        with a kernel, k(a, b) = v(a)'v(b)
    z_n = eta_n,               eta_n ~ N(0, I)                               without: what no column explains

The second is the first with no features and alpha = 1, so no formula below needs a case for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from gppvae.data.sizes import SIZE, code_sizes
from gppvae.data.table import Column, Rows, Table
from gppvae.kernels.base import Kernel, Leaf
from gppvae.prior.closed_form import PosteriorAtRows, PseudoPosterior, condition_on_pseudo
from gppvae.prior.layout import Layout, plan_layout
from gppvae.prior.lowrank import assemble, gp_nll
from gppvae.prior.posterior import LatentPosterior, SharedCovariance, condition
from gppvae.prior.statistics import Statistics, Sums, statistics, weighted_sums


@dataclass(frozen=True)
class Latents:
    """Posterior of the latents at rows: f ~ N(mean, var), z = f + eta, eta ~ N(0, noise); (N, L) each."""

    mean: Tensor
    var: Tensor
    noise: Tensor

    def leave_one_out(self, z: Tensor) -> Latents:
        """Each row's latents given all rows but itself, when q(B) was conditioned on all rows, these at `z`.

        With the leverage h = v'Sigma v / d:
            mean = f - h / (1 - h) (z - f),   var = v'Sigma v / (1 - h)
        so that var + noise = d / (1 - h). Source: docs/math.md, "Leave-out training".

        Args:
            z: (N, L), the values that q(B) was conditioned on.
        """
        leverage = self.var / self.noise
        mean = self.mean - leverage / (1.0 - leverage) * (z - self.mean)
        return Latents(mean, self.var / (1.0 - leverage), self.noise)

    def expected_nll(self, mean: Tensor, var: Tensor) -> Tensor:
        """-E log N(z; f, noise) per row for z ~ N(mean, var), (N,).

            1/2 sum_l [log 2 pi d + ((mu - f)^2 + s2 + v'Sigma v) / d]
        Summed over all rows, plus KL(q(B)), it is never below the exact GP term, and equals it for given latents at
        the posterior q(B). Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

        Args:
            mean, var: of q(z | y), (N, L) each.
        """
        quad = (mean - self.mean).square() + var + self.var
        return 0.5 * (quad / self.noise + self.noise.log() + math.log(2.0 * math.pi)).sum(1)


class LatentGroup(nn.Module):
    """Latents that share a kernel.

    Args:
        kernel: None for the ordinary VAE prior.
        n_latents: L of this group.
        alpha: latent noise variance to start from; without a kernel it is 1 and stays so.
    """

    def __init__(self, kernel: Kernel | None, n_latents: int, alpha: float) -> None:
        super().__init__()
        self.kernel, self.n_latents = kernel, n_latents
        start = torch.tensor(math.log(alpha) if kernel is not None else 0.0, dtype=torch.float64)
        self.log_alpha = nn.Parameter(start, requires_grad=kernel is not None)
        self.layout = Layout(kernel)

    @property
    def alpha(self) -> Tensor:
        """Latent noise variance, ()."""
        return self.log_alpha.exp()

    @property
    def rank(self) -> int:
        """H, the number of features; 0 without a kernel."""
        return 0 if self.kernel is None else self.kernel.rank

    def features(self, rows: Rows) -> Tensor:
        """V, (N, H)."""
        if self.kernel is None:
            return self.log_alpha.new_zeros(len(rows), 0)
        return self.kernel.features(rows)

    def noise(self, rows: Rows, training: bool) -> Tensor:
        """d, () or (N,): alpha, plus the prior variance that the features of these rows do not carry.

        Args:
            training: whether all are training rows, where the features of some kernels carry the whole variance.
        """
        if self.kernel is None or (training and self.kernel.carries_training_variance):
            return self.alpha
        return self.alpha + self.kernel.residual(rows)


class LatentPrior(nn.Module):
    """Prior of all latents. Networks, training loop and estimator see the GP through this object only.

    Args:
        groups: (kernel, number of latents) of each group, in the order of the latents.
        alpha: latent noise variance to start from.

    Attributes:
        size_column: column with the sizes of samples, which coded rows carry along for the
            likelihood; None for none. A column of the name "(size)" comes before it.
    """

    size_column: str | None = None

    def __init__(self, groups: Sequence[tuple[Kernel | None, int]], alpha: float = 0.1) -> None:
        super().__init__()
        self.members = nn.ModuleList([LatentGroup(kernel, n, alpha) for kernel, n in groups])
        self.sizes = [n for _, n in groups]

    # -- what it is

    @property
    def groups(self) -> list[LatentGroup]:
        """Groups of latents, in order."""
        return cast("list[LatentGroup]", list(self.members))

    @property
    def n_latents(self) -> int:
        """L."""
        return sum(self.sizes)

    @property
    def kernels(self) -> list[Kernel]:
        """Kernels of the groups that have one."""
        return [group.kernel for group in self.groups if group.kernel is not None]

    @property
    def device(self) -> torch.device:
        return self.groups[0].log_alpha.device

    def leaves(self) -> list[Leaf]:
        """Leaves of all kernels."""
        return [leaf for kernel in self.kernels for leaf in kernel.leaves()]

    def columns(self) -> list[str]:
        """Names of the columns that the kernels read, each once."""
        return list(dict.fromkeys(name for kernel in self.kernels for name in kernel.columns()))

    def unexplained(self) -> Tensor:
        """Which latents have no kernel, (L,) bool."""
        parts = [torch.full((group.n_latents,), group.kernel is None) for group in self.groups]
        return torch.cat(parts).to(self.device)

    def neg_log_prior(self) -> Tensor:
        """Minus log prior of the kernels' own parameters, up to a constant."""
        parts = [kernel.neg_log_prior() for kernel in self.kernels]
        return functools.reduce(torch.add, parts, torch.zeros((), dtype=torch.float64, device=self.device))

    def to_gp(self, x: Tensor) -> Tensor:
        """A network's output in float64, on the GP's device."""
        return x.to(self.device).to(torch.float64)

    # -- the table

    def bind(self, table: Table, generator: torch.Generator | None = None) -> None:
        """Fix levels and inducing points of all kernels from the training table."""
        readers: dict[str, Leaf] = {}  # rows hold one coded column per name, for all groups
        for leaf in self.leaves():
            other = readers.setdefault(leaf.key, leaf)
            if other.columns_read != leaf.columns_read:
                raise ValueError(
                    f"the columns {other.columns_read} and {leaf.columns_read} cannot be told apart as {leaf.key!r}; "
                    "rename one of them"
                )
        for kernel in self.kernels:
            kernel.bind(table, generator)

    def code(self, table: Table) -> Rows:
        """The table as the kernels read it; unknown ids and non-numeric values are errors that name them."""
        columns: dict[str, Column] = {}
        for kernel in self.kernels:
            columns |= kernel.code(table).columns
        for name in (SIZE, self.size_column):
            if name is not None and name in table.columns and SIZE not in columns:
                columns[SIZE] = code_sizes(table, name)
        return Rows(columns, len(table)).to(self.device)

    def plan(self, rows: Rows, batch_size: int) -> None:
        """Choose the layout in which the training rows are summed."""
        for group in self.groups:
            group.layout = plan_layout(group.kernel, rows, batch_size)

    # -- sums over rows, and what follows from them

    def statistics(self, rows: Rows, mean: Tensor, var: Tensor | None = None) -> Sums:
        """Sums over rows whose latents are N(mean, var), or known to be `mean`; (N, L) each.

        They add over batches and processes. Cost: O(N M (2M + L)).
        """
        means = self.to_gp(mean).split(self.sizes, dim=1)
        variances = [None] * len(means) if var is None else self.to_gp(var).split(self.sizes, dim=1)
        return [
            statistics(group.layout.rows(rows), own, own_var, group.noise(rows, training=True))
            for group, own, own_var in zip(self.groups, means, variances, strict=True)
        ]

    def nll(self, totals: Sums) -> Tensor:
        """Expected negative log density of all latents, from the sums over all rows. Cost: O(H^3 + H^2 L)."""
        parts = [gp_nll(assemble(sums, group.layout)) for group, sums in self._with(totals)]
        return functools.reduce(torch.add, parts)

    def posterior(self, totals: Sums) -> LatentPosterior:
        """q(B) given the latents that were summed, the encoder's uncertainty in them integrated out if it was."""
        full = [assemble(sums, group.layout) for group, sums in self._with(totals)]
        return LatentPosterior(tuple(condition(part) for part in full))

    def before_data(self) -> LatentPosterior:
        """q(B) before any data: N(0, I)."""
        parts = []
        for group in self.groups:
            zeros = group.log_alpha.detach().new_zeros(group.rank, group.n_latents)
            parts.append(SharedCovariance(zeros, torch.eye(group.rank).to(zeros), zeros.new_zeros(())))
        return LatentPosterior(tuple(parts))

    def _with(self, totals: Sums) -> zip[tuple[LatentGroup, Statistics]]:
        return zip(self.groups, totals, strict=True)

    # -- latents of rows

    def at(self, rows: Rows, weights: LatentPosterior, training: bool = False) -> Latents:
        """The latents of rows at q(B). Far from the data var + noise is the prior's variance. Cost: O(N H (H + L)).

        Args:
            training: whether all are training rows; see `LatentGroup.noise`.
        """
        means, variances, noises = [], [], []
        for group, q in zip(self.groups, weights.parts, strict=True):
            V, size = group.features(rows), (len(rows), group.n_latents)
            means.append(q.mean_at(V))
            variances.append(q.var_at(V).expand(size))
            noises.append(self._noise_of(group, rows, training))
        return Latents(_joined(means), _joined(variances), _joined(noises))

    def functions_at(self, rows: Rows, draws: Sequence[Tensor]) -> Tensor:
        """f at rows for one draw of B per group, (N, L)."""
        return _joined([group.features(rows) @ B for group, B in zip(self.groups, draws, strict=True)])

    def noise_at(self, rows: Rows, training: bool = False) -> Tensor:
        """Variance of eta plus the residual variance of the rows, (N, L); `training` as in `at`."""
        return _joined([self._noise_of(group, rows, training) for group in self.groups])

    def _noise_of(self, group: LatentGroup, rows: Rows, training: bool) -> Tensor:
        return group.noise(rows, training).reshape(-1, 1).expand(len(rows), group.n_latents)

    # -- posterior coding: encoder outputs as pseudo-observations

    def pseudo_noise(self, logvar: Tensor, rows: Rows) -> list[Tensor]:
        """Noise of the pseudo-observations of rows, (N,) per group.

        The geometric mean over the group's latents, so that they share one covariance, plus the residual variance.
        """
        found = []
        for group, own in zip(self.groups, self.to_gp(logvar).split(self.sizes, dim=1), strict=True):
            noise = own.mean(1).exp()
            if group.kernel is not None and not group.kernel.carries_training_variance:
                noise = noise + group.kernel.residual(rows)
            found.append(noise)
        return found

    def pseudo_statistics(self, rows: Rows, mean: Tensor, noise: list[Tensor]) -> Sums:
        """S and R over rows with pseudo-observations `mean` (N, L) of these noises."""
        means = mean.split(self.sizes, dim=1)
        return [
            statistics(group.layout.rows(rows), own, None, own_noise)
            for group, own, own_noise in zip(self.groups, means, noise, strict=True)
        ]

    def wanted_statistics(self, rows: Rows, by_mean: Tensor, by_var: Tensor) -> Sums:
        """Sums of the gradients with respect to the mean and variance of f, (N, L) each: G and A of docs/math.md."""
        parts = zip(self.groups, by_mean.split(self.sizes, 1), by_var.split(self.sizes, 1), strict=True)
        return [weighted_sums(group.layout.rows(rows), h.sum(1, keepdim=True), g) for group, g, h in parts]

    def condition_on_pseudo(self, observed: Sums, wanted: Sums) -> list[PseudoPosterior]:
        """q(B) given pseudo-observations, with the gradient of the bound with respect to their sums.

        Args:
            observed: sums over all rows.  wanted: over all rows, or over some of them, scaled up to all.
        """
        found = []
        for group, own, asked in zip(self.groups, observed, wanted, strict=True):
            known = float(asked.sums[3] / own.sums[3])
            full, asks = assemble(own, group.layout), assemble(asked, group.layout)
            found.append(condition_on_pseudo(full.S, full.R, asks.S / known, asks.R / known, late=known != 1.0))
        return found

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
            f, s = PosteriorAtRows.apply(group.features(rows), own, own_noise, q, n)
            means.append(f)
            variances.append(s.expand_as(f))
        return _joined(means), _joined(variances)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
