"""The turntable: its objects and views, and which of them were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gppvae.data.subset import evenly
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE
from gppvae.kernels import IdLeaf, InducingLeaf, Leaf, Learned
from gppvae.kernels.periods import nested_periods
from gppvae.report.checked import Part, read

MAX_VIEWS, MAX_OBJECTS, MAX_BETWEEN = 64, 12, 3
MAX_PIXELS = 6_000_000  # of the sprite, to keep the page at a few megabytes
MAX_WIDE = 30_000  # side of the sprite
DIGITS = 9  # to which numbers are rounded to compare them


@dataclass(frozen=True)
class Turn:
    """Rows of a turntable.

    Attributes:
        object_column, view_column: names.  objects: ids.  views: values in turning order, numbers or ids.
        period: of the views, which are then from 0 to it; None for ids and where the kernel does not repeat.
    """

    object_column: str
    view_column: str
    objects: list[str]
    views: list[Any]
    period: float | None = None

    def rows(self) -> dict[str, list[Any]]:
        """Every view of every object, object by object."""
        return {
            self.object_column: [name for name in self.objects for _ in self.views],
            self.view_column: self.views * len(self.objects),
        }

    def labels(self) -> list[str]:
        return [f"{self.view_column} {view if isinstance(view, str) else format(view, 'g')}" for view in self.views]


def find_turn(model: GPPVAE, test: Part | None = None) -> Turn | None:
    """The turntable of a model over one column of objects and one column of views; None for other kernels.

    Objects with test samples are preferred. Views are those of training and test data and, for numbers, values in
    between.
    """
    pair = _object_and_view(model)
    if pair is None:
        return None
    objects, view_leaf = pair
    height, width = model.shape_[-2:]
    limit = min(MAX_VIEWS, MAX_WIDE // width)
    table = None if test is None else Table(test[1])
    if isinstance(view_leaf, IdLeaf):
        views, period = list[Any](view_leaf.levels[:limit]), None
    else:
        period = max(nested_periods(model.prior_.leaves(), view_leaf.columns_read[0]), default=None)
        views = _numbers(view_leaf, table, limit, period)
    n_objects = min(MAX_OBJECTS, MAX_PIXELS // (3 * len(views) * height * width), MAX_WIDE // (3 * height))
    tested = [] if table is None else list(dict.fromkeys(table.ids(objects.column).tolist()))
    known = [name for name in tested if name in set(objects.levels)]
    names = list(dict.fromkeys([*known, *objects.levels]))[: max(1, n_objects)]
    return Turn(objects.column, view_leaf.columns_read[0], sorted(names, key=objects.levels.index), views, period)


def _object_and_view(model: GPPVAE) -> tuple[IdLeaf, Leaf] | None:
    leaves = [leaf for leaf in model.prior_.leaves() if leaf.columns_read]
    ids = [leaf for leaf in leaves if isinstance(leaf, IdLeaf)]
    if len(model.prior_.columns()) != 2 or not ids:
        return None
    objects = max(ids, key=lambda leaf: (isinstance(leaf, Learned), len(leaf.levels)))
    views = [
        leaf
        for leaf in leaves
        if leaf.columns_read[0] != objects.column
        and (isinstance(leaf, IdLeaf) or (isinstance(leaf, InducingLeaf) and len(leaf.columns_read) == 1))
    ]
    return (objects, views[0]) if views else None


def _numbers(leaf: Leaf, test: Table | None, limit: int, period: float | None) -> list[float]:
    assert isinstance(leaf, InducingLeaf)
    values = leaf.shown_values[:, 0].cpu().numpy()
    if test is not None:
        values = np.concatenate([values, test.numeric(leaf.columns_read)[:, 0]])
    distinct = np.unique(values if period is None else around(values, period))
    return with_between(distinct[evenly(len(distinct), limit)], limit, period)


def with_between(values: np.ndarray, limit: int, period: float | None = None) -> list[float]:
    """Sorted values with up to MAX_BETWEEN evenly spaced ones in every gap; cyclic if there is a period."""
    ends = np.append(values[1:], values[0] + period) if period is not None else values[1:]
    n_between = min(MAX_BETWEEN, (limit - len(values)) // max(1, len(ends)))
    shares = np.arange(1, n_between + 1) / (n_between + 1)
    filled = list(values)
    for start, end in zip(values, ends, strict=False):
        filled += list(start + shares * (end - start))
    turned = np.array(filled) if period is None else around(np.array(filled), period)
    # Merges values that differ only by rounding errors, and keeps the measured ones.
    distinct = {round(float(value), DIGITS): float(value) for value in reversed(turned)}
    return sorted(distinct.values())


def around(values: np.ndarray, period: float) -> np.ndarray:
    """Values from 0 up to the period, which itself is 0, up to rounding errors."""
    turned = values % period
    return np.where(turned.round(DIGITS) == round(period, DIGITS), 0.0, turned)


def measured(model: GPPVAE, turn: Turn, train: Part | None, test: Part | None) -> tuple[np.ndarray, np.ndarray]:
    """Measured samples of a turntable, (objects, views, *shape), NaN elsewhere, and the mask of test samples."""
    shape = (len(turn.objects), len(turn.views))
    frames = np.full((*shape, *model.shape_), np.nan, dtype=np.float32)
    held = np.zeros(shape, dtype=bool)
    cells = {row: cell for cell, row in enumerate(zip(*_keys(turn, Table(turn.rows())), strict=True))}
    for part, is_test in ((train, False), (test, True)):
        if part is None:
            continue
        found = [
            (number, cells[key])
            for number, key in enumerate(zip(*_keys(turn, Table(part[1])), strict=True))
            if key in cells
        ]
        if not found:
            continue
        y = read(model, part[0], np.array([number for number, _ in found]))
        for sample, (_, cell) in zip(y, found, strict=True):
            frames[cell // shape[1], cell % shape[1]] = sample
            held[cell // shape[1], cell % shape[1]] = is_test
    return frames, held


def _keys(turn: Turn, table: Table) -> tuple[list[str], list[Any]]:
    """Object and view of each row as keys that compare equal across tables."""
    if isinstance(turn.views[0], str):
        return table.ids(turn.object_column).tolist(), table.ids(turn.view_column).tolist()
    numbers = table.numeric((turn.view_column,))[:, 0]
    numbers = numbers if turn.period is None else around(numbers, turn.period)
    return table.ids(turn.object_column).tolist(), numbers.round(DIGITS).tolist()
