"""One pass over the data as batches, the same batches and noise each time it is iterated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gppvae.data.ahead import read_ahead
from gppvae.data.arrays import Samples
from gppvae.data.order import batch_order
from gppvae.data.progress import rows_done
from gppvae.data.table import Rows
from gppvae.data.world import ALONE, World


@dataclass(frozen=True)
class Batch:
    """Samples with their coded rows: the part of a batch that this process sees.

    Attributes:
        y: (B, *shape) float32.  mask: of observed values, or None.  rows: coded.
        index: (B,) positions in the data set.  seed: of this batch's noise.
        total: rows of the batch over all processes.  start: position of the first one here.
    """

    y: Tensor
    mask: Tensor | None
    rows: Rows
    index: Tensor
    seed: int
    total: int
    start: int = 0

    def __len__(self) -> int:
        return self.index.shape[0]

    def noise(self, n_latents: int) -> Tensor:
        """Standard normal (B, L) float32: the same at every call, whatever the device and number of processes."""
        generator = torch.Generator().manual_seed(self.seed)
        whole = torch.randn(self.total, n_latents, generator=generator)
        return whole[self.start : self.start + len(self)].to(self.y.device)


@dataclass(frozen=True)
class Epoch:
    """A re-iterable pass: two sweeps see the same batches in the same order with the same noise.

    Attributes:
        samples, rows: the data.  batch_size: B.  seed: of order and noise; None keeps the order of the data.
        device: where batches go.  tick: called after each batch, for the progress bar.
        world: the processes that share every batch; sizes here count the rows of all of them.
        together: numbers by which rows should share a batch; None when it does not matter.
    """

    samples: Samples
    rows: Rows
    batch_size: int
    seed: int | None
    device: torch.device
    tick: Callable[[], None] = lambda: None
    world: World = ALONE
    together: Tensor | None = None

    def with_together(self, together: Tensor) -> Epoch:
        """The same pass with rows of equal number (N,) in the same batches, as far as batches allow."""
        return replace(self, together=together)

    @property
    def n_rows(self) -> int:
        return len(self.samples)

    @property
    def n_batches(self) -> int:
        return -(-self.n_rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        order = batch_order(self.n_rows, self.batch_size, self.seed, *self.samples.storage_units, self.together)
        own = ((len(index), self.world.part(len(index)), index) for index in order)
        read = read_ahead(lambda key: self.samples.read(key[2][key[1]]), own, self.samples.threads)
        done = 0
        for number, ((total, part, whole), (y, mask)) in enumerate(read):
            index = whole[part]
            mask = mask if mask is None else mask.to(self.device)
            rows = self.rows[index.to(self.rows.device)]
            seed = derive_seed(self.seed or 0, number)
            yield Batch(y.to(self.device), mask, rows, index, seed, total, part.start)
            self.tick()
            done += total
            rows_done(done, self.n_rows)


def derive_seed(*parts: int) -> int:
    """A seed from integers (run seed, phase, epoch ...): repeatable, and unrelated for different parts."""
    return int(np.random.SeedSequence([part % 2**32 for part in parts]).generate_state(1, np.uint32)[0])
