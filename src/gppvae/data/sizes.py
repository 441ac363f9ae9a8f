"""Sizes of count samples, such as sequencing depth: a column of the table, stored with the coded rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gppvae.data.table import Column, Rows, Table, distinct_rows

SIZE = "(size)"


def code_sizes(table: Table, name: str) -> Column:
    """The coded column of sizes; other values than positive numbers raise ValueError."""
    values = table.numeric((name,))
    bad = np.flatnonzero(values[:, 0] <= 0.0)
    if bad.size:
        raise ValueError(
            f"sizes in column {name!r} must be above zero, got {values[bad[0], 0]:g} in row {bad[0]} "
            f"({bad.size} such rows); remove those samples or correct their sizes"
        )
    distinct, index = distinct_rows(values)
    return Column(torch.from_numpy(index), torch.from_numpy(distinct))


def sizes_in(rows: Rows) -> Tensor | None:
    """Sizes of rows, (N,) float64; None if the table had no such column."""
    column = rows.columns.get(SIZE)
    return None if column is None else column.by_row[:, 0]
