"""The kernel's columns: ids with their levels, numbers with their range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gppvae.data.subset import evenly
from gppvae.data.table import Table, as_numbers, days, id_text
from gppvae.kernels import IdLeaf, InducingLeaf
from gppvae.kernels.periods import nested_periods, one_period
from gppvae.models.objects import learned_by_column, open_columns
from gppvae.prior.latent_prior import LatentPrior

MARGIN = 0.1  # of a slider beyond the training values, relative to their range
MAX_TICKS = 64
DIGITS = 9  # to which numbers are rounded in keys


@dataclass(frozen=True)
class ColumnFacts:
    """One column of the kernel.

    Attributes:
        name: in the table.
        levels: ids; None for numbers.
        values: distinct training values of a numeric column, if known.
        period: of a numeric column, if the kernel is periodic in it.
        takes_new: whether new objects can be added; if some ids have learned vectors, only in those columns.
    """

    name: str
    levels: list[str] | None
    values: list[float]
    period: float | None
    takes_new: bool

    def span(self) -> tuple[float, float]:
        """Ends of the slider."""
        if not self.values:
            return -1.0, 1.0
        low, high = min(self.values), max(self.values)
        if self.period is not None:
            return one_period(low, high, self.period)
        room = MARGIN * (high - low) or 1.0
        return low - room, high + room

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"name": self.name, "kind": "number" if self.levels is None else "id"}
        if self.levels is not None:
            return facts | {"levels": self.levels, "takes_new": self.takes_new}
        return facts | {"span": self.span(), "values": self.values, "period": self.period}


def columns_of(prior: LatentPrior, table: Table | None = None) -> list[ColumnFacts]:
    """The kernel's columns in order; with a table, values of numeric columns come from it."""
    found: list[ColumnFacts] = []
    learned, takes = learned_by_column(prior), open_columns(prior)
    objects = [name for name in takes if name in learned] or takes  # Categorical columns may be views of the learned
    for name in prior.columns():
        readers = [leaf for leaf in prior.leaves() if name in leaf.columns_read]
        ids = [leaf for leaf in readers if isinstance(leaf, IdLeaf)]
        if ids:
            found.append(ColumnFacts(name, list(ids[0].levels), [], None, name in objects))
            continue
        period = max(nested_periods(readers, name), default=None)
        values = [np.zeros(0)] if table is None else [numbers_in(table, name)]
        for leaf in readers:
            if isinstance(leaf, InducingLeaf) and table is None:
                values.append(leaf.shown_values[:, leaf.columns_read.index(name)].cpu().numpy())
        known = np.concatenate(values)
        distinct = np.unique(known[np.isfinite(known)])
        few = distinct[evenly(len(distinct), MAX_TICKS)]
        found.append(ColumnFacts(name, None, [float(value) for value in few], period, False))
    return found


def row_key(columns: list[ColumnFacts], row: dict[str, Any]) -> tuple[Any, ...]:
    """A row as a key that compares equal whatever its source."""
    return tuple(_key(float(row[c.name])) if c.levels is None else id_text(row[c.name]) for c in columns)


def table_keys(columns: list[ColumnFacts], table: Table) -> list[tuple[Any, ...]]:
    """`row_key` of every row of a table."""
    parts = [
        [_key(x) for x in numbers_in(table, c.name).tolist()] if c.levels is None else table.ids(c.name).tolist()
        for c in columns
    ]
    return list(zip(*parts, strict=True)) if parts else [()] * len(table)


def check_row(columns: list[ColumnFacts], row: Any) -> dict[str, Any]:
    """The kernel's columns in a request; ValueError if one is missing or invalid."""
    if not isinstance(row, dict):
        raise ValueError(f"expected a row with a value for every column, got {type(row).__name__}")
    found: dict[str, Any] = {}
    for column in columns:
        value = row.get(column.name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if column.levels is None:
            if value is None and column.name in row:  # a missing value, which the kernel may accept
                found[column.name] = float("nan")
                continue
            if not number or not np.isfinite(float(value)):  # type: ignore[arg-type]
                raise ValueError(f"column {column.name!r} must be a finite number, got {value!r:.60}")
            found[column.name] = float(value)  # type: ignore[arg-type]
        else:
            if not isinstance(value, str) and not number:
                raise ValueError(f"column {column.name!r} must name an id, got {value!r:.60}")
            found[column.name] = id_text(value)
    return found


def numbers_in(table: Table, name: str) -> np.ndarray:
    """A numeric column, (N,), NaN where missing; dates and durations are days, as the kernel reads them."""
    found = days(table[name])
    return as_numbers(table[name]) if found is None else found


def _key(number: float) -> float | None:
    """A number as a key; missing numbers compare equal."""
    return None if np.isnan(number) else round(number, DIGITS)
