"""Sizes of the training samples, for likelihoods of counts."""

from __future__ import annotations

import torch
from torch import Tensor

from gppvae.data.arrays import Samples
from gppvae.data.sizes import sizes_in
from gppvae.data.table import Rows
from gppvae.data.world import World
from gppvae.likelihoods import Likelihood

TOTAL_ROWS = 256


def measure_sizes(likelihood: Likelihood, samples: Samples, rows: Rows, world: World) -> None:
    """Tell the likelihood the sizes of the training samples, if it wants any; a size of zero is an error."""
    if likelihood.needs_totals:
        likelihood.measure_sizes(totals(samples, world).to(likelihood.unit))
    elif likelihood.size_column is not None:
        given = sizes_in(rows)
        if given is None:
            raise ValueError(
                f"expected a table with the sizes in a column {likelihood.size_column!r}, got none; "
                "use size='total' for the totals of the samples"
            )
        likelihood.measure_sizes(given.to(likelihood.unit))


def totals(samples: Samples, world: World) -> Tensor:
    """Total of the observed values of every sample with any, (N,) float64; a total of zero is an error."""
    found = torch.zeros(2, len(samples), dtype=torch.float64)  # totals, and whether anything was observed
    starts = range(0, len(samples), TOTAL_ROWS)
    for start in starts[world.part(len(starts))]:
        stop = min(start + TOTAL_ROWS, len(samples))
        y, mask = samples.read(torch.arange(start, stop))
        found[0, start:stop] = y.double().flatten(1).sum(1)
        found[1, start:stop] = 1.0 if mask is None else mask.flatten(1).any(1).double()
    world.sum_([found])
    empty = torch.nonzero((found[0] <= 0.0) & (found[1] > 0.0)).flatten()
    if len(empty):
        raise ValueError(
            f"expected samples with a total count above zero, got a total of 0 in sample {int(empty[0])} "
            f"({len(empty)} such samples); remove them, or name a column of sizes"
        )
    return found[0, found[1] > 0.0]
