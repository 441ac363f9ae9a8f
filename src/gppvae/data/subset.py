"""Subsets of a data set without copies, and random validation splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gppvae.data.table import Table


class Subset:
    """Samples of an array-like at the given positions, read on demand.

    Args:
        data: array-like with shape, dtype and indexing.
        index: (n,) positions of the samples, in the order wanted.
    """

    def __init__(self, data: Any, index: np.ndarray) -> None:
        self.data, self.index = data, np.asarray(index, dtype=np.int64)
        self.shape = (len(self.index), *data.shape[1:])
        self.dtype = data.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Any) -> np.ndarray:
        return np.asarray(self.data[self.index[key]])


def evenly(n: int, most: int) -> np.ndarray:
    """At most `most` of n positions, evenly spaced, including both ends."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)) if n else np.zeros(0, np.int64)


def hold_out(
    table: Table, fraction: float, id_columns: Sequence[str] = (), seed: int = 0, least_left: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the training and validation rows of a random split.

    Every id keeps training rows: unseen ids cannot be predicted.

    Args:
        table: all rows.  fraction: of the rows to hold out, in (0, 1).
        id_columns: columns of ids.  seed: of the split.  least_left: minimum number of training rows per id.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the validation fraction must be between 0 and 1, got {fraction}; use for example 0.1")
    ids = [table.ids(name) for name in id_columns]
    left = [Counter(column.tolist()) for column in ids]
    wanted = max(1, round(fraction * len(table)))
    held: list[int] = []
    for row in np.random.default_rng(seed).permutation(len(table)).tolist():
        names = [str(column[row]) for column in ids]
        if len(held) < wanted and all(count[name] > least_left for count, name in zip(left, names, strict=True)):
            held.append(row)
            for count, name in zip(left, names, strict=True):
                count[name] -= 1
    if not held or len(held) == len(table):
        raise ValueError(
            f"expected enough rows to hold some out, got {len(table)} rows, with too few rows per id for training; "
            "give separate validation data"
        )
    validation = np.sort(np.array(held))
    return np.setdiff1d(np.arange(len(table)), validation), validation
