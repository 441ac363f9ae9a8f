"""Columns that do not apply to some rows: NaN is allowed where another factor of the product is 0.

`Linear(sick) * RBF(years_since_onset)` is 0 at rows with `sick` = 0, whatever the years are, so these may be NaN.
Anywhere else a missing number is an error that names the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from gppvae.data.table import Table

if TYPE_CHECKING:
    from gppvae.kernels.base import Leaf, Term


def rows_that_apply(leaf: Leaf, terms: Sequence[Term], table: Table) -> Table:
    """The rows without missing numbers in the columns of a leaf, to which it is bound."""
    missing = _missing(leaf, table)
    if not missing.any():
        return table
    alone = any(set(term.leaves) == {leaf} for term in terms)
    table.numeric(leaf.columns_read, may_miss=not alone and not missing.all())  # errors with the numbers of all rows
    return table.take(np.flatnonzero(~missing))


def fill_switched_off(terms: Sequence[Term], table: Table) -> Table:
    """The table with missing numbers replaced where every term that reads them is 0, so that they have no effect.

    Raises:
        ValueError: where a missing number has an effect.
    """
    leaves = dict.fromkeys(leaf for term in terms for leaf in term.leaves)
    missing = {leaf: found for leaf in leaves if (found := _missing(leaf, table)).any()}
    if not missing:
        return table
    for term in terms:
        for leaf in term.leaves:
            if leaf in missing:
                _check_switched_off(leaf, term, missing, table)
    return filled(table, dict.fromkeys(name for leaf in missing for name in leaf.columns_read))


def filled(table: Table, names: Iterable[str]) -> Table:
    """The table with missing entries of these columns replaced, for kernels whose terms do not depend on them."""
    columns = dict(table.columns)
    for name in names:
        gaps = pd.isna(columns[name])
        there = np.flatnonzero(~gaps)
        if gaps.any():
            # A value of the column, so that the number of distinct values stays the same.
            value = columns[name][there[0]] if there.size else 0.0
            columns[name] = np.where(gaps, value, columns[name]) if there.size else np.zeros(len(gaps))
    return Table(columns)


def _missing(leaf: Leaf, table: Table) -> np.ndarray:
    """Rows with a missing number in a column of the leaf, (N,) bool; ids must never be missing."""
    if not leaf.reads_numbers:
        return np.zeros(len(table), dtype=bool)
    return np.any([pd.isna(table[name]) for name in leaf.columns_read], axis=0)


def _check_switched_off(leaf: Leaf, term: Term, missing: dict[Leaf, np.ndarray], table: Table) -> None:
    rows = np.flatnonzero(missing[leaf])
    off = np.zeros(len(rows), dtype=bool)  # whether another factor of the term is 0
    for other in term.leaves:
        known = np.flatnonzero(~missing[other][rows]) if other in missing else np.arange(len(rows))
        # Numeric factors only: a learned vector that happens to be 0 does not switch a term off.
        if other is not leaf and other.reads_numbers and known.size:
            with torch.no_grad():
                factor = other.row_factor(other.code(table.take(rows[known])))  # (n, R)
            off[known] |= (factor == 0.0).all(1).cpu().numpy()
    if off.all():
        return
    bad = rows[~off]
    name = next(name for name in leaf.columns_read if pd.isna(table[name])[bad[0]])
    raise ValueError(
        f"column {name!r} must be finite, got nan in row {bad[0]} ({len(bad)} such rows); remove or fill those rows, "
        f"or multiply by a column that is 0 where it does not apply, as in Linear(sick) * {leaf.text()}"
    )
