"""Statistics that follow the parameters, and the loop of the inferences that condition q(B) on them now and then."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import GPInference, LossTerms
from gppvae.kernels.base import Kernel
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.statistics import Statistics

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


class Slow:
    """The parts of a kernel that are slow to make stay for several batches, then step on the mean of their gradients.

    Such a part, the root of a covariance over few distinct values, has a handful of parameters that all rows share.

    Args:
        kernel: whose parts.  n_batches: of the epoch.
    """

    def __init__(self, kernel: Kernel, n_batches: int) -> None:
        self.kernel, self.left = kernel, n_batches
        self.batches = self.gradients = 0

    def hold(self) -> None:
        """Before anything of a batch is computed."""
        if self.batches == 0:
            self.kernel.hold(slow_only=True)

    def passed(self, batches: int = 1) -> None:
        """One more gradient, of so many batches, has come; before the optimiser steps on it."""
        self.batches, self.gradients, self.left = self.batches + batches, self.gradients + 1, self.left - batches
        if self.left == 0 or self.batches >= BATCHES_HELD:
            self.kernel.pass_on(1.0 / self.gradients)
            self.close()

    def close(self) -> None:
        self.kernel.let_go()
        self.batches = self.gradients = 0


class RunningInference(GPInference, Generic[Given]):
    """Steps per batch at a q(B) that is conditioned on the running statistics again after some batches."""

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.running = RunningStatistics(model.latent_dim)

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        every, batches = self.batches_between(epoch.n_batches), iter(epoch)
        times = epoch.n_batches // every
        with contextlib.closing(Slow(self.model.kernel, epoch.n_batches)) as slow:
            for time in range(times):
                slow.hold()
                given = self.given(epoch)
                some = itertools.islice(batches, every) if time + 1 < times else batches  # the last have what is left
                recent = yield from self.steps_at(given, some, epoch, slow)
                epoch.world.sum_(recent.tensors())
                self.take_over(recent)
        self.running.end_epoch()

    @classmethod
    def batches_between(cls, n_batches: int) -> int:
        """After how many of an epoch's batches q(B) is conditioned again."""
        raise NotImplementedError

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

    def steps_at(
        self, given: Given, batches: Iterable[Batch], epoch: Epoch, slow: Slow
    ) -> Generator[LossTerms, None, Statistics]:
        """Step through batches at the same q(B); return the sums over their rows.

        Args:
            given: what `condition` said.  batches: rows of this process.  epoch: whose batches they are.
            slow: parts of the kernel, held when this is called.
        """
        raise NotImplementedError
