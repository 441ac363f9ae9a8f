"""Running sums over all rows, each with the parameters of its last visit."""

from __future__ import annotations

import torch
from torch import nn

from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.statistics import BlockStatistics, Statistics, Sums


class KeptSums(nn.Module):
    """Sums per group of latents as buffers, so that checkpoints hold them; empty before `set`."""

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
    """Sums over all rows, each at its last visit; rows not yet visited in an epoch count by the last epoch's average.

    At the end of an epoch it is exactly the sum over that epoch's batches.
    """

    def __init__(self, prior: LatentPrior) -> None:
        super().__init__(prior)
        self._seen: Sums = []

    def add(self, parts: Sums) -> None:
        """Rows of the epoch that were visited, those of all processes."""
        self._seen = add(self._seen, parts)

    def current(self) -> Sums:
        """The rows seen in this epoch, and the unseen share of the last one's."""
        if not self._seen:
            return self.get()
        unseen = max(1.0 - float(self._seen[0].sums[3]) / self.n_rows, 0.0)
        return add(self._seen, self.get(), unseen)

    def end_epoch(self) -> None:
        """What was seen becomes the last epoch."""
        assert self._seen, "an epoch has batches"
        self.set(self._seen)
        self._seen = []


def add(left: Sums, right: Sums, times: float = 1.0) -> Sums:
    """Sums over both sets of rows, the second with weight `times`."""
    return [a.plus(b, times) for a, b in zip(left, right, strict=True)] if left else right
