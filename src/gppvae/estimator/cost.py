"""What the Gaussian process of a fit will cost: said in the log, and as a warning before it hurts."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import dataclass

import torch

from gppvae.data.table import Rows
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.models.gppvae import GPPriorVAE
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


def tell_cost(model: GPPriorVAE, rows: Rows) -> None:
    """Log how features are made; warn when the rank is so large that each step will be felt."""
    if not first_process():
        return
    features = model.features(rows[:1])
    cost = GPCost(features.rank, features.n_groups, sum(features.sizes), model.latent_dim)
    by = f"summed in {cost.groups} groups by {model.split}" if model.split else "summed at once"
    log.info("features: H = %d of width %d, %s", cost.rank, cost.width, by)
    if model.complete_design:
        log.info("complete design: the GP term is made of eigenvalues of two small Gram matrices")
    for leaf in model.kernel.leaves():
        if isinstance(leaf, StationaryLeaf):
            log.info("%s: %s", leaf.text(), leaf.describe_features())
    if cost.rank > LARGE_RANK:
        seconds = cost.operations / _operations_per_second()
        warnings.warn(
            f"the kernel has H = {cost.rank} features: expect about {cost.bytes / 2**30:.1f} GiB and {seconds:.1f} s "
            "for every step that conditions the Gaussian process; fewer anchors (max_anchors) or learned dimensions "
            "make it lighter",
            stacklevel=3,
        )


def _operations_per_second(size: int = 512) -> float:
    """Measured on one product of matrices in float64."""
    matrix = torch.ones(size, size, dtype=torch.float64)
    matrix @ matrix
    started = time.perf_counter()
    matrix @ matrix
    return 2.0 * size**3 / max(time.perf_counter() - started, 1e-9)
