"""Predictions and measurements of vectors along a numeric column, or on a map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gppvae.data.subset import evenly
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE
from gppvae.estimator.comparison import at_their_sizes
from gppvae.kernels import IdLeaf, Periodic
from gppvae.kernels.not_applicable import filled
from gppvae.kernels.stationary import StationaryLeaf
from gppvae.likelihoods.counts import Counts
from gppvae.report.checked import Part, channel_names, known_numbers, named_entry, read
from gppvae.report.images import is_image
from gppvae.report.svg import Plot, Series, line_chart, scatter_map

MAX_LINES = 4  # line charts, one per channel
MAX_ROWS, MAX_PLACES = 2000, 500  # read of training data, and of held-out data
HELD_OUT_WEIGHT = 1000  # of a held-out row, relative to a training row, in the choice of ids
LINE_POINTS, PERIOD_POINTS, SHOWN_PERIODS = 40, 16, 8  # points per line and per period; number of periods


def plot_along(model: GPPVAE, train: Part | None, test: Part | None) -> Plot | None:
    """Predictions and measurements of vectors along a numeric column for some ids, or on a map; else None."""
    parts = [part for part in (train, test) if part is not None]
    if is_image(model.shape_) or not parts:
        return None
    leaves = model.prior_.leaves()
    places = _place_columns(model)
    if places is not None:
        return _place_maps(model, places, train, test)
    ids = [leaf.column for leaf in leaves if isinstance(leaf, IdLeaf)]
    numeric = [leaf.columns_read[0] for leaf in leaves if len(leaf.columns_read) == 1 and not isinstance(leaf, IdLeaf)]
    numeric = [name for name in numeric if name not in ids]
    if not numeric:
        return None
    table = Table(parts[0][1])
    column = max(numeric, key=lambda name: len(np.unique(known_numbers(table, (name,)))))
    return _lines_along(model, column, ids[0] if ids else None, train, test)


def _place_columns(model: GPPVAE) -> tuple[str, ...] | None:
    """The two columns of a map: of RBF(x, y) or RBF(x) * RBF(y); None if the kernel has neither.

    Products with ids are shown as curves, one per id. In products with a Periodic both columns may be times.
    """
    products = [
        tuple(dict.fromkeys(name for leaf in term.leaves for name in leaf.columns_read))
        for kernel in model.prior_.kernels
        for term in kernel.terms()
        if all(isinstance(leaf, StationaryLeaf) and not isinstance(leaf, Periodic) for leaf in term.leaves)
    ]
    found = [leaf.columns_read for leaf in model.prior_.leaves()] + products
    return next((columns for columns in found if len(columns) == 2), None)


@dataclass(frozen=True)
class _Measured:
    """Measured samples at rows without missing values in the columns of the figure."""

    table: Table
    samples: np.ndarray
    held_out: bool


def _read_some(
    model: GPPVAE, part: Part, most: int, columns: Sequence[str], held_out: bool, sized: bool = False
) -> _Measured:
    """At most `most` rows without missing values in these columns; `sized` adds the sizes of count samples."""
    table = Table(part[1])
    known = table.known(columns)
    index = known[evenly(len(known), most)]
    rows = table.take(index)
    if sized:
        rows = at_their_sizes(model, model._samples(part[0]), rows, index)
    return _Measured(rows, read(model, part[0], index), held_out)


def _read_parts(
    model: GPPVAE, train: Part | None, test: Part | None, most: int, columns: Sequence[str], sized: bool = False
) -> list[_Measured]:
    """`_read_some` of the training and of the held-out rows, without parts to whose rows no column applies."""
    given = ((train, False), (test, True))
    parts = [_read_some(model, part, most, columns, held, sized) for part, held in given if part is not None]
    return [part for part in parts if len(part.table)]


def _top_channels(model: GPPVAE, samples: np.ndarray, most: int) -> list[int]:
    """Indices of the channels with the largest standard deviation, in their units."""
    with np.errstate(all="ignore"):
        size = np.nanstd(samples, axis=0) / np.broadcast_to(model._unit(), samples.shape[1:])
    return [int(i) for i in np.argsort(-np.nan_to_num(size.ravel()), kind="stable")[:most]]


def _lines_along(model: GPPVAE, column: str, by: str | None, train: Part | None, test: Part | None) -> Plot | None:
    """One chart per channel, for those that vary most: predictions along a column for some ids, and measurements."""
    parts = _read_parts(model, train, test, MAX_ROWS, [column])
    if not parts:
        return None
    tables = [part.table for part in parts]
    every = np.concatenate([table.numeric((column,))[:, 0] for table in tables])
    last = tables[-1].numeric((column,))  # the last part is the held-out one, if there is one
    grid = _grid_along(model, column, every, float(last.max()))
    channels = _top_channels(model, np.concatenate([part.samples for part in parts]), MAX_LINES)
    values = model.model_.autoencoder.likelihood.values
    least, most = values.least_value, values.most_value
    names, series = channel_names(model), {channel: list[Series]() for channel in channels}
    for colour, level in enumerate(_levels_shown(parts, by)):
        drawn = model.predict(_filled(tables, column, grid, by, level), n_samples=16, include_noise=True)
        mean, std = np.asarray(drawn.mean), np.asarray(drawn.std)
        label = "" if level is None else named_entry(str(by), level)
        for channel in channels:
            band = Series(grid, mean[:, channel], label, colour, std[:, channel], least=least, most=most)
            series[channel] += [band, *(_points(part, column, by, level, channel, grid, colour) for part in parts)]
    charts = [line_chart(series[c], names[c], column, names[c], width=330, height=220) for c in channels]
    rings = " Open points were held out." if len(parts) > 1 else ""
    low, high = float(grid[0]), float(grid[-1])
    part = "" if high - low >= np.ptp(every) else f", from {low:.6g} to {high:.6g}"
    words = f"Predictions along {column}{part} with a band of two standard deviations of a new sample.{rings}"
    return Plot(charts, words)


def _levels_shown(parts: list[_Measured], by: str | None) -> list[str | None]:
    """The three ids with the most held-out rows, ties by the number of rows; [None] without a column of ids."""
    if by is None:
        return [None]
    counts: Counter[str] = Counter()
    for part in parts:
        for level in part.table.ids(by).tolist():
            counts[level] += HELD_OUT_WEIGHT if part.held_out else 1
    return [level for level, _ in counts.most_common(3)]


def _points(
    part: _Measured, column: str, by: str | None, level: str | None, channel: int, grid: np.ndarray, colour: int
) -> Series:
    """The measurements of one id in the range of the grid."""
    shown = np.ones(len(part.table), dtype=bool) if by is None else part.table.ids(by) == level
    x = part.table.numeric((column,))[:, 0]
    shown &= (x >= grid[0]) & (x <= grid[-1])
    held = part.held_out
    return Series(x[shown], part.samples[shown, channel], "", colour, line=False, dots=not held, rings=held)


def _grid_along(model: GPPVAE, column: str, values: np.ndarray, last: float) -> np.ndarray:
    """The grid of a line chart: the whole range of the column, or some of its periods if it has many.

    Args:
        values: of the column.  last: end of the periods shown.
    """
    low, high = float(values.min()), float(values.max())
    leaves = [leaf for leaf in model.prior_.written_leaves() if isinstance(leaf, Periodic)]
    periods = [leaf.period for leaf in leaves if column in leaf.columns_read]
    if not periods:
        return np.linspace(low, high, LINE_POINTS)
    period = min(periods)
    if high - low > SHOWN_PERIODS * period:
        high = max(last, low + SHOWN_PERIODS * period)
        low = high - SHOWN_PERIODS * period
    return np.linspace(low, high, max(LINE_POINTS, 1 + round(PERIOD_POINTS * (high - low) / period)))


def _filled(tables: list[Table], column: str, grid: np.ndarray, by: str | None, level: str | None) -> dict[str, Any]:
    """Rows along a grid of one column: other numbers are interpolated, ids are those of the nearest row.

    Columns with missing values also take the value of the nearest row. If that is missing too, any value will do: the
    term is switched off there, or switched on only by the grid.
    """
    names = set(tables[0].columns).intersection(*(table.columns for table in tables))
    joined = Table({name: np.concatenate([table[name] for table in tables]) for name in names})
    of_level = joined if by is None else joined.take(np.flatnonzero(joined.ids(by) == level))
    x = of_level.numeric((column,))[:, 0]
    order = np.argsort(x, kind="stable")
    nearest = np.abs(grid[:, None] - x[None, :]).argmin(axis=1)  # (grid points,)
    rows: dict[str, Any] = {}
    for name, values in of_level.columns.items():
        discrete = values.dtype.kind not in "fiu" or name == by or len(np.unique(values)) < 3
        discrete = discrete or len(of_level.known([name])) < len(of_level)
        rows[name] = values[nearest] if discrete else np.interp(grid, x[order], values[order].astype(np.float64))
    return filled(Table(rows | {column: grid}), rows).columns


def _place_maps(model: GPPVAE, columns: tuple[str, ...], train: Part | None, test: Part | None) -> Plot | None:
    parts = _read_parts(model, train, test, MAX_PLACES, columns, sized=True)
    if not parts:
        return None
    samples = np.concatenate([part.samples for part in parts])
    places = np.concatenate([part.table.numeric(columns) for part in parts])
    predicted = np.concatenate([np.asarray(model.predict(part.table).mean) for part in parts])
    charts, names = [], channel_names(model)
    for channel in _top_channels(model, samples, 3):
        both = np.concatenate([samples[:, channel], predicted[:, channel]])
        limits = float(np.nanquantile(both, 0.01)), float(np.nanquantile(both, 0.99))
        for what, values in (("measured", samples), ("predicted", predicted)):
            title = f"{names[channel]}, {what}"
            charts.append(scatter_map(places, values[:, channel], title, columns[0], columns[1], limits=limits))
    counts = isinstance(model.model_.autoencoder.likelihood.values, Counts)
    sizes = ", each place at its size" if counts else ""
    return Plot(charts, f"The channels that vary most, at {len(places)} places: measured and predicted{sizes}.")
