"""Statistics that follow the parameters: this epoch's batches, and last epoch's for the rows not yet seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gppvae.prior.statistics import Statistics, StatisticsSum


class RunningStatistics(nn.Module):
    """Sum over all rows, each at its last visit (unseen rows of the epoch as their average share).

    At the end of an epoch it is exactly the sum over that epoch's batches. The buffers go into checkpoints.
    """

    def __init__(self, n_latents: int) -> None:
        super().__init__()
        self.n_latents = n_latents
        self.last_outer: Tensor
        self.last_sums: Tensor
        self.register_buffer("last_outer", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("last_sums", torch.zeros(0, dtype=torch.float64))
        self._seen = StatisticsSum()

    @property
    def empty(self) -> bool:
        return self.last_outer.numel() == 0

    def set(self, totals: Statistics) -> None:
        """Start a new epoch from the sum over all rows."""
        self.last_outer, self.last_sums = totals.outer, totals.sums
        self._seen = StatisticsSum()

    def add(self, part: Statistics) -> None:
        """Rows of the epoch that were visited, those of all processes."""
        self._seen.add(part)

    def current(self) -> Statistics:
        last = Statistics(self.last_outer, self.last_sums, self.n_latents)
        if self._seen.empty:
            return last
        seen = self._seen.value
        unseen = 1.0 - float(seen.sums[3] / self.last_sums[3])
        return seen + last.scaled(max(unseen, 0.0))

    def end_epoch(self) -> None:
        self.set(self._seen.value)
