"""Running sums over all rows, each row at the parameters of its last visit."""

from __future__ import annotations

import torch
from torch import nn

from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.statistics import BlockStatistics, Statistics, Sums


class KeptSums(nn.Module):
    """Sums per group of latents, as buffers for checkpoints; empty before `set`."""

    def __init__(self, prior: LatentPrior) -> None:
        super().__init__()
        self._sizes = prior.sizes
        self._n_blocks = [None if group.blocks is None else group.blocks.n_blocks for group in prior.groups]
        for number in range(len(self._sizes)):
            for name in self._names(number):
                self.register_buffer(name, torch.zeros(0, dtype=torch.float64))

    @property
    def empty(self) -> bool:
        return self.get_buffer("sums0").numel() == 0

    def set(self, totals: Sums) -> None:
        for number, sums in enumerate(totals):
            self._buffers |= dict(zip(self._names(number), sums.whole().tensors(), strict=True))

    def get(self) -> Sums:
        return [self._of_group(number) for number in range(len(self._sizes))]

    def _names(self, number: int) -> list[str]:
        names = ["outer", "sums"] if self._n_blocks[number] is None else ["outer", "sums", "own"]
        return [f"{name}{number}" for name in names]

    def _of_group(self, number: int) -> Statistics:
        outer, sums, *rest = map(self.get_buffer, self._names(number))
        n_blocks, n_latents = self._n_blocks[number], self._sizes[number]
        if n_blocks is None:
            return Statistics(outer, sums, n_latents)
        return BlockStatistics(outer, sums, n_latents, rest[0], (), n_blocks)

    @property
    def n_rows(self) -> float:
        """Rows that were summed."""
        return float(self.get_buffer("sums0")[3])


class RunningSums(KeptSums):
    """Sums over the batches of this epoch, plus the last epoch's sums times the share of rows not seen yet.

    At the end of an epoch it is exactly the sum over that epoch's batches.
    """

    def __init__(self, prior: LatentPrior) -> None:
        super().__init__(prior)
        self._seen: Sums = []

    def add(self, parts: Sums) -> None:
        """Add sums over rows of this epoch, of all processes."""
        self._seen = add(self._seen, parts)

    def current(self) -> Sums:
        """Estimate of the sums over all rows: seen + (1 - N_seen / N) last epoch."""
        if not self._seen:
            return self.get()
        unseen = max(1.0 - float(self._seen[0].sums[3]) / self.n_rows, 0.0)
        return add(self._seen, self.get(), unseen)

    def end_epoch(self) -> None:
        """Replace the last epoch's sums by those of this epoch."""
        assert self._seen, "an epoch has batches"
        self.set(self._seen)
        self._seen = []


def add(left: Sums, right: Sums, times: float = 1.0) -> Sums:
    """left + times right, group by group; an empty `left` gives `right`, whatever `times`."""
    return [a.plus(b, times) for a, b in zip(left, right, strict=True)] if left else right
