"""The cost of the Gaussian process in a fit: logged, with a warning if it is large."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from gppvae.data.table import Rows
from gppvae.kernels.numeric import InducingLeaf
from gppvae.prior.latent_prior import LatentGroup, LatentPrior
from gppvae.training.distributed import first_process

LARGE_RANK = 2048
LEAST_CAPTURED = 0.95  # share of a kernel's variance that its features should capture after training
SQUARES = 8  # matrices over all weights in memory at once: S, T, C, its factor, and their gradients
CUBES = 5  # H^3 operations of one loss with gradient: factor, two triangular solves, and their adjoints

log = logging.getLogger("gppvae")


@dataclass(frozen=True)
class GPCost:
    """Size of the linear algebra of one group of latents.

    Attributes:
        rank: H.  groups: Q.  width: M.  n_latents: L.
    """

    rank: int
    groups: int
    width: int
    n_latents: int

    @property
    def bytes(self) -> int:
        """Peak memory of one loss with gradient: statistics with compensation and gradient, and H x H matrices."""
        statistics = 4 * self.groups * self.width * (2 * self.width + self.n_latents)
        return 8 * (statistics + SQUARES * self.rank**2 + 4 * self.rank * self.n_latents)

    @property
    def operations(self) -> float:
        """Of one loss with gradient, without the sums over rows."""
        return CUBES * self.rank**3 + 4.0 * self.rank**2 * self.n_latents + 4.0 * self.groups * self.rank**2

    def describe(self, split: str | None) -> str:
        by = f"summed in {self.groups} groups by {split}" if split else "summed at once"
        return f"H = {self.rank} features of width {self.width}, {by}"


@dataclass(frozen=True)
class BlockCost:
    """Size of the linear algebra with a block of features per id.

    Attributes:
        n_ids: P.  own: R, features of a block.  shared: H0.  n_latents: L.
    """

    n_ids: int
    own: int
    shared: int
    n_latents: int

    @property
    def bytes(self) -> int:
        """Linear in P: statistics with compensation and gradient, blocks and arms, weights of all ids."""
        wide, per_id = self.own + self.shared, self.n_ids * self.own
        statistics = 4 * per_id * (2 * wide + self.n_latents)
        return 8 * (statistics + SQUARES * (per_id * wide + self.shared**2 + per_id * self.n_latents))

    def describe(self) -> str:
        return f"{self.n_ids} ids with {self.own} features each beside {self.shared} shared ones"


def log_cost(prior: LatentPrior, rows: Rows) -> None:
    """Log the features of each kernel; warn of a large rank; ValueError if the algebra does not fit into memory."""
    _check_memory([group for group in prior.groups if group.kernel is not None], rows)
    if not first_process():
        return
    for group in (copies[0] for copies in prior.written_groups):
        if group.kernel is None:
            log.info("%d latents without a kernel: what no column explains", group.n_latents)
            continue
        cost = _cost_of(group, rows)
        if isinstance(cost, BlockCost):
            log.info("%s: %s, about %.2g GiB", group.kernel.text(), cost.describe(), cost.bytes / 2**30)
        else:
            log.info("%s: %s", group.kernel.text(), cost.describe(group.layout.split))
            _warn_if_large(cost)
        for leaf in group.kernel.leaves():
            if isinstance(leaf, InducingLeaf):
                log.info("%s: %s", leaf.text(), leaf.describe_features())


def warn_missing_variance(prior: LatentPrior) -> None:
    """Warn of numeric kernels whose features capture too little of their variance after training."""
    if not first_process():
        return
    for leaf in prior.written_leaves():
        if not isinstance(leaf, InducingLeaf) or leaf.complete or not len(leaf.shown_values):
            continue
        share = leaf.share_carried(leaf.shown_values)
        if share < LEAST_CAPTURED:
            log.warning(
                "%s: its %d features carry %.0f%% of its variance at the training rows, the rest counts as noise; fit "
                "again with a larger max_inducing (for example %d), or with lengthscale= near what was learned, which "
                "chooses the number for it",
                leaf.text(), leaf.rank, 100.0 * share, min(4 * leaf.rank, 4096),
            )  # fmt: skip


def _cost_of(group: LatentGroup, rows: Rows) -> GPCost | BlockCost:
    if group.places is not None:
        n_ids, own = group.places.own.shape
        return BlockCost(n_ids, own, len(group.places.shared), group.n_latents)
    summed = group.layout.rows(rows[:1])
    return GPCost(group.rank, summed.n_groups, summed.x.shape[1], group.n_latents)


def _check_memory(groups: list[LatentGroup], rows: Rows) -> None:
    """Raise ValueError unless the algebra of all groups of latents together fits into memory."""
    costs, memory = [_cost_of(group, rows) for group in groups], machine_memory()
    needed = sum(cost.bytes for cost in costs)
    if needed > memory:
        largest = max(costs, key=lambda cost: cost.bytes)
        what = largest.describe() if isinstance(largest, BlockCost) else f"H = {largest.rank} features"
        several = f" in {len(costs)} groups of latents" if len(costs) > 1 else ""
        raise ValueError(
            f"expected a kernel that fits into the {memory / 2**30:.3g} GiB of this machine, got {what}{several}, "
            f"which take about {needed / 2**30:.3g} GiB; use fewer inducing points (max_inducing), learned dimensions "
            "or ids, or a machine with more memory"
        )


def machine_memory() -> float:
    """Bytes available to this process; infinite if unknown."""
    known = [math.inf]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        known.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    with contextlib.suppress(OSError, ValueError):  # of a container; "max" means no limit
        known.append(float(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(known)


def _warn_if_large(cost: GPCost) -> None:
    if cost.rank > LARGE_RANK:
        seconds = cost.operations / _operations_per_second()
        warnings.warn(
            f"the kernel has H = {cost.rank} features: expect about {cost.bytes / 2**30:.1f} GiB and {seconds:.1f} s "
            "for every step that conditions the Gaussian process; fewer inducing points (max_inducing) or learned "
            "dimensions make it lighter",
            stacklevel=4,
        )


def _operations_per_second() -> float:
    """Measured with one matrix product in float64."""
    size = 512
    matrix = torch.ones(size, size, dtype=torch.float64)
    matrix @ matrix
    started = time.perf_counter()
    matrix @ matrix
    return 2.0 * size**3 / max(time.perf_counter() - started, 1e-9)
