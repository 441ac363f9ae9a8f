"""One pass over the data as batches, the same batches and noise each time it is iterated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gppvae.data.arrays import Samples
from gppvae.data.table import Rows


@dataclass(frozen=True)
class Batch:
    """Samples with their coded rows.

    Attributes:
        y: (B, *shape) float32.  mask: of observed values, or None.  rows: coded, or None for a plain VAE.
        index: (B,) positions in the data set.  seed: of this batch's noise.
    """

    y: Tensor
    mask: Tensor | None
    rows: Rows
    index: Tensor
    seed: int

    def __len__(self) -> int:
        return self.index.shape[0]

    def noise(self, n_latents: int) -> Tensor:
        """Standard normal (B, L) float32: the same at every call, whatever the device."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(len(self), n_latents, generator=generator).to(self.y.device)


@dataclass(frozen=True)
class Epoch:
    """A re-iterable pass: two sweeps see the same batches in the same order with the same noise.

    Attributes:
        samples, rows: the data.  batch_size: B.  seed: of order and noise; None keeps the order of the data.
        device: where batches go.  tick: called after each batch, for the progress bar.
    """

    samples: Samples
    rows: Rows
    batch_size: int
    seed: int | None
    device: torch.device
    tick: Callable[[], None] = lambda: None

    @property
    def n_rows(self) -> int:
        return len(self.samples)

    @property
    def n_batches(self) -> int:
        return -(-self.n_rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if self.seed is None:
            order = torch.arange(self.n_rows)
        else:
            order = torch.randperm(self.n_rows, generator=torch.Generator().manual_seed(self.seed))
        for number, index in enumerate(order.split(self.batch_size)):
            y, mask = self.samples.read(index)
            mask = mask if mask is None else mask.to(self.device)
            rows = self.rows[index.to(self.rows.device)]
            yield Batch(y.to(self.device), mask, rows, index, derive_seed(self.seed or 0, number))
            self.tick()


def derive_seed(*parts: int) -> int:
    """A seed from integers (run seed, phase, epoch ...): repeatable, and unrelated for different parts."""
    return int(np.random.SeedSequence([part % 2**32 for part in parts]).generate_state(1, np.uint32)[0])
