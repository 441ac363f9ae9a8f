"""Columns that only Periodic kernels read: everything that depends on them repeats after one period."""

from __future__ import annotations

from collections.abc import Iterable

from gppvae.kernels.base import Leaf
from gppvae.kernels.stationary import Periodic

CLOSE = 1e-6  # tolerance of a whole number of periods


def nested_periods(leaves: Iterable[Leaf], column: str) -> list[float]:
    """Periods of a column that only Periodic leaves read, in rising order: the column repeats after the last.

    Empty for a column that another leaf reads too, or whose longest period is no multiple of the others.
    """
    readers = [leaf for leaf in leaves if column in leaf.columns_read]
    periods = sorted({leaf.period for leaf in readers if isinstance(leaf, Periodic)})
    counts = [periods[-1] / period for period in periods]
    repeats = all(abs(count - round(count)) < CLOSE for count in counts)
    return periods if repeats and all(isinstance(leaf, Periodic) for leaf in readers) else []


def one_period(low: float, high: float, period: float) -> tuple[float, float]:
    """Ends of the period to show for values from `low` to `high`: [0, period], or one that starts at `low`."""
    if (low >= 0.0 and high <= period) or high - low > period:
        return 0.0, period
    return low, low + period
