"""The order of an epoch: which rows make up each batch, given a seed and the layout of the file."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def batch_order(
    n_rows: int,
    batch_size: int,
    seed: int | None,
    unit_rows: int = 1,
    buffer_units: int = 1,
    together: Tensor | None = None,
) -> Iterator[Tensor]:
    """Positions of the rows of each batch, every row once.

    Args:
        n_rows: N.  batch_size: B.  seed: None keeps the order of the data.
        unit_rows: rows that are stored together; with 1 the order is any permutation.
        buffer_units: units that are mixed with each other: they come in random order, and rows are drawn at random
            from this many of them. The rows of a batch are then sorted, so that they are read in the file's order.
        together: (N,) int64; rows of equal number follow each other, wherever they are stored.
    """
    if seed is None:
        yield from torch.arange(n_rows).split(batch_size)
        return
    generator = torch.Generator().manual_seed(seed)
    if together is not None:
        shuffled = torch.randperm(n_rows, generator=generator)
        rank = torch.randperm(int(together.max()) + 1, generator=generator)
        yield from shuffled[torch.argsort(rank[together[shuffled]], stable=True)].split(batch_size)
        return
    if unit_rows == 1:
        yield from torch.randperm(n_rows, generator=generator).split(batch_size)
        return
    left = torch.empty(0, dtype=torch.int64)
    for units in torch.randperm(-(-n_rows // unit_rows), generator=generator).split(buffer_units):
        rows = (units.unsqueeze(1) * unit_rows + torch.arange(unit_rows)).flatten()
        rows = rows[rows < n_rows]
        left = torch.cat([left, rows[torch.randperm(len(rows), generator=generator)]])
        whole = len(left) // batch_size * batch_size
        for batch in left[:whole].split(batch_size) if whole else ():
            yield batch.sort().values
        left = left[whole:]
    if len(left):
        yield left.sort().values
