"""The processes that share a fit. One process is the case of size 1."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class World(abc.ABC):
    """Processes with the same model and different rows.

    `sum_` adds up sums over rows. Other terms (the penalty of a prior, a KL divergence) are multiplied by `share`
    first, so that they count once.

    Attributes:
        rank: of this process, from 0.  size: number of processes.
    """

    rank: int
    size: int

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    @property
    def share(self) -> float:
        return 1.0 / self.size

    def part(self, n: int) -> slice:
        """This process's part of n items; sizes differ by at most one, and parts may be empty."""
        return slice(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def join(self, part: Tensor, here: slice, total: int) -> Tensor:
        """All-gather: rows of all processes, (total, ...), with `part` at `here`; gradients flow back to each."""
        if self.size == 1:
            return part
        joined: Tensor = _Join.apply(part, self, here, total)
        return joined

    @abc.abstractmethod
    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """All-reduce: sum each tensor over all processes, in place. All must call it, with tensors of equal shapes."""

    @abc.abstractmethod
    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Copy the values of the first process to all others, in place."""

    @abc.abstractmethod
    def barrier(self) -> None:
        """Wait for all processes."""


class _Join(torch.autograd.Function):
    """All-gather with a gradient: the loss of every process may depend on all rows."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, world: World, here: slice, total: int) -> Tensor:
        ctx.world, ctx.here = world, here
        whole = part.new_zeros(total, *part.shape[1:])
        whole[here] = part
        world.sum_([whole])
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        whole = grads[0].clone()
        ctx.world.sum_([whole])
        return whole[ctx.here], None, None, None


class OneProcess(World):
    """A single process, whose sums are already complete."""

    rank = 0
    size = 1

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        return None

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        return None

    def barrier(self) -> None:
        return None


ALONE = OneProcess()
