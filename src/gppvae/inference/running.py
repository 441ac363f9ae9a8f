"""Statistics that follow the parameters, and the loop of the inferences that condition q(B) on them now and then."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import TOGETHER, GPInference, LossTerms
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.statistics import Statistics

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


class RunningInference(GPInference, Generic[Given]):
    """Steps per batch at a q(B) that is conditioned on the running statistics again after some batches.

    The prior stays as it is for a few batches and then takes one step for all of them, on the mean of their gradients:
    what the GP computes of their rows is computed once.
    """

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.running = RunningStatistics(model.latent_dim)

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        every, batches = self.batches_between(epoch.n_batches), iter(epoch)
        size = min(TOGETHER, every)
        groups, between = epoch.n_batches // size, every // size
        recent: Statistics | None = None  # of this process, since q(B) was last conditioned
        for number in range(groups):
            with self.model.kernel.held(slow_only=True):
                if number % between == 0 and number + between <= groups:  # what is left at the end joins the last
                    self._take_over(recent, epoch)
                    recent, given = None, self.given(epoch)
                some = list(itertools.islice(batches, size) if number + 1 < groups else batches)
                terms, part = yield from self.steps_together(given, some, epoch)
                recent = part if recent is None else recent.add_(part)
            yield dataclasses.replace(terms, batches=len(some))
        self._take_over(recent, epoch)
        self.running.end_epoch()

    @classmethod
    def batches_between(cls, n_batches: int) -> int:
        """After how many of an epoch's batches q(B) is conditioned again."""
        raise NotImplementedError

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

    def steps_together(
        self, given: Given, batches: list[Batch], epoch: Epoch
    ) -> Generator[LossTerms, None, tuple[LossTerms, Statistics]]:
        """Step with every batch but the last; return that one's terms and the sums over the rows of all.

        Args:
            given: what `condition` said.  batches: rows of this process; the prior steps with the last, on gradients
                per sample of all.  epoch: whose batches they are.
        """
        raise NotImplementedError
