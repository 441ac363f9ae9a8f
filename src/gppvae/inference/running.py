"""Statistics that follow the parameters, and the loop of the inferences that condition q(B) on them now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import GPInference, LossTerms
from gppvae.kernels.base import Kernel
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.statistics import Statistics

REFRESHES_PER_EPOCH = 8
BATCHES_HELD = 4
Given = TypeVar("Given")  # what a batch needs to know of all rows: q(B), at least


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
        self._seen: Statistics | None = None

    @property
    def empty(self) -> bool:
        return self.last_outer.numel() == 0

    @property
    def n_rows(self) -> float:
        """Rows of an epoch."""
        return float(self.last_sums[3])

    def set(self, totals: Statistics) -> None:
        """Start a new epoch from the sum over all rows."""
        self.last_outer, self.last_sums = totals.outer, totals.sums
        self._seen = None

    def add(self, part: Statistics) -> None:
        """Rows of the epoch that were visited, those of all processes."""
        self._seen = part if self._seen is None else self._seen.plus(part)

    def current(self) -> Statistics:
        last = Statistics(self.last_outer, self.last_sums, self.n_latents)
        if self._seen is None:
            return last
        unseen = 1.0 - float(self._seen.sums[3]) / self.n_rows
        return self._seen.plus(last, max(unseen, 0.0))

    def end_epoch(self) -> None:
        assert self._seen is not None, "an epoch has batches"
        self.set(self._seen)


class _Slow:
    """The parts of a kernel that are slow to make stay for several batches, then step on the mean of their gradients.

    Such a part, the root of a covariance over few distinct values, has a handful of parameters that all rows share.
    """

    def __init__(self, kernel: Kernel, most: int) -> None:
        self.kernel, self.most = kernel, most
        self.batches = 0

    def before_batch(self) -> None:
        if self.batches == 0:
            self.kernel.hold(slow_only=True)
        self.batches += 1

    def after_batch(self, last: bool) -> None:
        """Gradients go on before the optimiser steps after this batch."""
        if last or self.batches == self.most:
            self.kernel.pass_on(1.0 / self.batches)
            self.close()

    def close(self) -> None:
        self.kernel.let_go()
        self.batches = 0


class RunningInference(GPInference, Generic[Given]):
    """Steps per batch at a q(B) that is conditioned on the running statistics several times per epoch."""

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.running = RunningStatistics(model.latent_dim)

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        every = self.batches_between(epoch.n_batches)
        recent: Statistics | None = None  # of this process, since q(B) was last conditioned
        with contextlib.closing(_Slow(self.model.kernel, BATCHES_HELD)) as slow:
            for number, batch in enumerate(epoch):
                slow.before_batch()
                if number % every == 0 and number + every <= epoch.n_batches:  # what is left at the end joins the last
                    self._take_over(recent, epoch)
                    recent = None
                    given = self.given(epoch)
                terms, part = self.batch_loss(batch, given, epoch)
                recent = part if recent is None else recent.add_(part)
                slow.after_batch(last=number + 1 == epoch.n_batches)
                yield terms
        self._take_over(recent, epoch)
        self.running.end_epoch()

    @classmethod
    def batches_between(cls, n_batches: int) -> int:
        return max(1, n_batches // REFRESHES_PER_EPOCH)

    def _take_over(self, recent: Statistics | None, epoch: Epoch) -> None:
        """Add what all processes saw since the last time."""
        if recent is not None:
            epoch.world.sum_(recent.tensors())
            self.take_over(recent)

    def take_over(self, recent: Statistics) -> None:
        """Keep the sums over the rows that all processes saw since q(B) was last conditioned."""
        self.running.add(recent)

    @torch.no_grad()
    def given(self, epoch: Epoch) -> Given:
        """What the running statistics say now."""
        return self.condition(self.running.current(), *self.model.tables(epoch.rows))

    def condition(self, totals: Statistics, tables: list[Tensor], sizes: list[int]) -> Given:
        """q(B) at these sums over all rows.

        Args:
            totals: running statistics.  tables, sizes: of the kernel's features.
        """
        raise NotImplementedError

    def batch_loss(self, batch: Batch, given: Given, epoch: Epoch) -> tuple[LossTerms, Statistics]:
        """Back-propagate this batch's share of the bound; return its terms and its rows' statistics.

        Args:
            batch: rows of this process.  given: what `condition` said last.  epoch: whose batch it is.
        """
        raise NotImplementedError
