"""The cost of the Gaussian process of a fit: a line in the log, and a warning when it is large."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import dataclass

import torch

from gppvae.data.table import Rows
from gppvae.kernels.numeric import InducingLeaf
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.distributed import first_process

LARGE_RANK = 2048
SQUARES = 8  # H x H matrices that live at once: S, T, C, its factor, and their gradients
CUBES = 5  # H^3 operations of one value with gradient: factor, two triangular solves, and their adjoints

log = logging.getLogger("gppvae")


@dataclass(frozen=True)
class GPCost:
    """Size of the GP's algebra.

    Attributes:
        rank: H.  groups: Q.  width: M.  n_latents: L.
    """

    rank: int
    groups: int
    width: int
    n_latents: int

    @property
    def bytes(self) -> int:
        """Peak of one value with gradient: statistics with their compensation and gradient, and H x H matrices."""
        statistics = 4 * self.groups * self.width * (2 * self.width + self.n_latents)
        return 8 * (statistics + SQUARES * self.rank**2 + 4 * self.rank * self.n_latents)

    @property
    def operations(self) -> float:
        """Of one value with gradient, apart from the sums over rows."""
        return CUBES * self.rank**3 + 4.0 * self.rank**2 * self.n_latents + 4.0 * self.groups * self.rank**2


def tell_cost(prior: LatentPrior, rows: Rows) -> None:
    """Log how features are made; warn when the rank makes each step slow."""
    if not first_process():
        return
    for group in prior.groups:
        if group.kernel is None:
            log.info("%d latents without a kernel: what no column explains", group.n_latents)
            continue
        summed = group.layout.rows(rows[:1])
        cost = GPCost(group.rank, summed.n_groups, summed.x.shape[1], group.n_latents)
        by = f"summed in {cost.groups} groups by {group.layout.split}" if group.layout.split else "summed at once"
        log.info("%s: H = %d features of width %d, %s", group.kernel.text(), cost.rank, cost.width, by)
        for leaf in group.kernel.leaves():
            if isinstance(leaf, InducingLeaf):
                log.info("%s: %s", leaf.text(), leaf.describe_features())
        _warn_if_large(cost)


def _warn_if_large(cost: GPCost) -> None:
    if cost.rank > LARGE_RANK:
        seconds = cost.operations / _operations_per_second()
        warnings.warn(
            f"the kernel has H = {cost.rank} features: expect about {cost.bytes / 2**30:.1f} GiB and {seconds:.1f} s "
            "for every step that conditions the Gaussian process; fewer inducing points (max_inducing) or learned "
            "dimensions make it lighter",
            stacklevel=4,
        )


def _operations_per_second(size: int = 512) -> float:
    """Measured on one product of matrices in float64."""
    matrix = torch.ones(size, size, dtype=torch.float64)
    matrix @ matrix
    started = time.perf_counter()
    matrix @ matrix
    return 2.0 * size**3 / max(time.perf_counter() - started, 1e-9)
