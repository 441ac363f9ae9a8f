"""One pass over the data in batches; every iteration gives the same batches and noise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gppvae.data.arrays import Samples
from gppvae.data.progress import rows_done
from gppvae.data.table import Rows
from gppvae.data.world import ALONE, World

MIN_AHEAD = 4  # batches read ahead, so that one slow read does not stall training
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Batch:
    """This process's part of a batch: samples with their coded rows.

    Attributes:
        y: (B, *shape) float32.  mask: True where observed, or None.  rows: coded.
        index: (B,) positions in the data set.  seed: of the batch's noise.
        total: size of the batch over all processes.  start: position of this part in the batch.
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
        """Standard normal (B, L) float32: the same at every call, on every device, for any number of processes."""
        generator = torch.Generator().manual_seed(self.seed)
        whole = torch.randn(self.total, n_latents, generator=generator)  # of all processes, (total, L)
        return whole[self.start : self.start + len(self)].to(self.y.device)


@dataclass(frozen=True)
class Epoch:
    """A re-iterable pass: two sweeps get the same batches in the same order with the same noise.

    Attributes:
        samples, rows: the data.  batch_size: B.  seed: of order and noise; None keeps the order of the data.
        device: of the batches.  tick: called after each batch, for the progress bar.
        world: the processes that share every batch; sizes are totals over them.
        together: (N,) codes; rows of equal code should share a batch. None for random batches.
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
        """The same pass with rows of equal code (N,) in the same batch, as far as the batch size allows."""
        return replace(self, together=together)

    @property
    def n_rows(self) -> int:
        return len(self.samples)

    @property
    def n_batches(self) -> int:
        return -(-self.n_rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        order = batch_order(self.n_rows, self.batch_size, self.seed, *self.samples.storage_units, self.together)
        parts = ((index, self.world.part(len(index))) for index in order)
        read = read_ahead(lambda key: self.samples.read(key[0][key[1]]), parts, self.samples.threads)
        done = 0
        for number, ((whole, part), (y, mask)) in enumerate(read):
            index, total = whole[part], len(whole)
            mask = mask if mask is None else mask.to(self.device)
            rows = self.rows[index.to(self.rows.device)]
            seed = derive_seed(self.seed or 0, number)
            yield Batch(y.to(self.device), mask, rows, index, seed, total, part.start)
            self.tick()
            done += total
            rows_done(done, self.n_rows)


def derive_seed(*parts: int) -> int:
    """A seed derived from integers (run seed, phase, epoch ...): reproducible, independent for different integers."""
    return int(np.random.SeedSequence([part % 2**32 for part in parts]).generate_state(1, np.uint32)[0])


def batch_order(
    n_rows: int,
    batch_size: int,
    seed: int | None,
    unit_rows: int = 1,
    buffer_units: int = 1,
    together: Tensor | None = None,
) -> Iterator[Tensor]:
    """Row positions of each batch, every row once.

    Args:
        n_rows: N.  batch_size: B.  seed: None keeps the order of the data.
        unit_rows: rows that are stored together; with 1 the order is a random permutation.
        buffer_units: size of the shuffle buffer: units come in random order, and rows are drawn at random from this
            number of them. The rows of a batch are then sorted, to be read in the order of the file.
        together: (N,) int64 codes; rows of equal code follow each other, wherever they are stored.
    """
    if seed is None:
        yield from torch.arange(n_rows).split(batch_size)
        return
    generator = torch.Generator().manual_seed(seed)
    if together is not None:
        shuffled = torch.randperm(n_rows, generator=generator)
        rank = torch.randperm(int(together.max()) + 1, generator=generator)  # random order of the codes
        yield from shuffled[torch.argsort(rank[together[shuffled]], stable=True)].split(batch_size)
        return
    if unit_rows == 1:
        yield from torch.randperm(n_rows, generator=generator).split(batch_size)
        return
    left = torch.empty(0, dtype=torch.int64)
    for units in torch.randperm(-(-n_rows // unit_rows), generator=generator).split(buffer_units):
        rows = (units.unsqueeze(1) * unit_rows + torch.arange(unit_rows)).flatten()  # (buffer_units * unit_rows,)
        rows = rows[rows < n_rows]
        left = torch.cat([left, rows[torch.randperm(len(rows), generator=generator)]])
        whole = len(left) // batch_size * batch_size
        for batch in left[:whole].split(batch_size) if whole else ():
            yield batch.sort().values
        left = left[whole:]
    if len(left):
        yield left.sort().values


def read_ahead(read: Callable[[Key], Value], keys: Iterable[Key], threads: int) -> Iterator[tuple[Key, Value]]:
    """(key, read(key)) in the order of the keys; two per thread, at least four, are prefetched.

    Threads rather than processes: file reads, decompression, image decoding and type conversion release the GIL, no
    data are copied between processes, and open files need not survive a fork.

    Args:
        read: thread-safe.  threads: 0 reads on demand.
    """
    if threads == 0:
        for key in keys:
            yield key, read(key)
        return
    waiting: deque[tuple[Key, Future[Value]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="gppvae-read") as pool:
        try:
            for key in keys:
                waiting.append((key, pool.submit(read, key)))
                if len(waiting) > max(MIN_AHEAD, 2 * threads):
                    first, value = waiting.popleft()
                    yield first, value.result()
            while waiting:
                first, value = waiting.popleft()
                yield first, value.result()
        finally:
            for _, value in waiting:
                value.cancel()
