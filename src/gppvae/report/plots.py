"""The figures of the report as SVG plots; `model.plot_*` gives the same ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from gppvae.data.png import png_uri
from gppvae.data.subset import evenly
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE, Curve, Explanation, TermExplanation
from gppvae.kernels import FreeForm, IdLeaf, InducingLeaf, Leaf, Learned
from gppvae.kernels.not_applicable import filled
from gppvae.likelihoods import Bernoulli
from gppvae.likelihoods.counts import Counts
from gppvae.report.checked import (
    LEVELS,
    Checked,
    Part,
    channel_names,
    channels_first,
    check_rows,
    read,
    row_label,
)
from gppvae.report.images import is_image, shade_range, to_pictures, to_uint8
from gppvae.report.svg import (
    LINE,
    Chart,
    Plot,
    Series,
    bar_chart,
    cut,
    heat_map,
    line_chart,
    scatter_map,
    titled,
    wrapped,
)

TERMS = {
    "loss": "total loss", "recon_nll": "reconstruction NLL", "gp_nll": "GP prior NLL",
    "neg_entropy": "negative entropy", "penalty": "penalty", "valid_mse": "validation MSE",
    "valid_deviance": "validation deviance",
}  # fmt: skip
MAX_MARKS = 40  # rows of a heat map, and names along an axis
MAX_CHANNELS, MAX_LINES = 6, 4
STRIP, PER_ROW = 10, 5  # pictures along a curve, and per row of a chart
READING = (
    "On the diagonal intervals are right: 90 % of the 90 % intervals contain the true value. Below it they are too "
    "narrow (the model is overconfident), above it too wide."
)


# -- training


def plot_training(model: GPPVAE) -> Plot:
    """Terms of the loss and the validation error over epochs; colours mark the phases."""
    rows = curve_rows(model.history_, model.resolved_["phases"])
    present = [term for term in TERMS if any(row.get(term) is not None for row in rows)]
    x = epoch_axis(rows)
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    spans = _phase_spans(rows, x, phases)
    charts = []
    for term in present:
        known = [i for i, row in enumerate(rows) if row.get(term) is not None]
        at, values = np.array([x[i] for i in known]), np.array([float(rows[i][term]) for i in known])
        wide = bool(values.min() > 0 and values.max() > 30 * values.min())
        series = Series(at, values, dots=len(at) < 25)
        charts.append(line_chart([series], TERMS[term], "epoch", log=wide, spans=spans, width=300, height=180))
    return Plot(charts, "The loss and its terms per sample in nats, by epoch; colours mark the phases.")


def curve_rows(history: list[dict[str, Any]], phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The log for curves: one name for the validation error, no terms that are always zero.

    Phases that train only the encoder are left out: it is fitted to finished latents, with a different loss.

    Args:
        history: metrics per epoch.  phases: those that were trained, as in `resolved_`.
    """
    apart = {phase["name"] for phase in phases if set(phase["lr"]) == {"encoder"}}
    rows = [dict(row) for row in history if row["phase"] not in apart]
    for row in rows:
        for error in ("mse", "deviance"):
            found = row.get(f"valid_{error}_prediction", row.get(f"valid_{error}_reconstruction"))
            row |= {} if found is None else {f"valid_{error}": found}
    zero = [term for term in TERMS if rows and all(not row.get(term) for row in rows)]
    return [{name: value for name, value in row.items() if name not in zero} for row in rows]


def epoch_axis(metrics: Sequence[Mapping[str, Any]]) -> list[float]:
    """Epochs counted over the whole run, even if each phase counts from 0 or 1."""
    axis: list[float] = []
    shift = 0.0
    for i, row in enumerate(metrics):
        epoch = float(row["epoch"])
        if i and row["phase"] != metrics[i - 1]["phase"] and epoch + shift <= axis[-1]:
            shift = axis[-1] + (1.0 if epoch == 0 else 0.0)
        axis.append(epoch + shift)
    return axis


def _phase_spans(
    rows: Sequence[Mapping[str, Any]], x: Sequence[float], phases: list[str]
) -> list[tuple[float, float, int, str]]:
    starts = [i for i, row in enumerate(rows) if not i or row["phase"] != rows[i - 1]["phase"]]
    if not starts:
        return []
    edges = [x[0], *(0.5 * (x[i - 1] + x[i]) for i in starts[1:]), x[-1]]
    names = [rows[i]["phase"] for i in starts]
    return [(edges[i], edges[i + 1], 2 + phases.index(name), name) for i, name in enumerate(names)]


# -- covariances


def covariances(model: GPPVAE, tables: Sequence[Table] = ()) -> list[tuple[str, np.ndarray, list[str], int]]:
    """(name, matrix, labels, size) of each leaf that has one; at most MAX_MARKS of `size` values.

    Args:
        tables: whose numbers are shown as well as those of training.
    """
    found, names = [], []
    for leaf in model.prior_.leaves():
        if not isinstance(leaf, (Learned, FreeForm, InducingLeaf)):
            continue
        numbers = None
        if isinstance(leaf, InducingLeaf):
            parts = [leaf.shown_values.cpu().numpy(), *(_numbers(table, leaf.columns_read) for table in tables)]
            numbers = np.unique(np.concatenate(parts), axis=0)
        matrix, labels, size = leaf_covariance(leaf, numbers, MAX_MARKS)
        names.append(leaf.text())
        name = leaf.text() + (f" ({names.count(leaf.text())})" if names.count(leaf.text()) > 1 else "")
        found.append((name, matrix, labels, size))
    return found


def plot_covariances(model: GPPVAE, tables: Sequence[Table] = ()) -> Plot:
    """What the kernel learned about ids and numbers, one heat map per part."""
    charts = []
    for name, matrix, labels, size in covariances(model, tables):
        some = f", {len(labels)} of {size}" if size > len(labels) else ""
        charts.append(heat_map(matrix, labels, name + some))
    return Plot(charts, "Learned covariances. Similar ids are adjacent; hover over a cell for its value.")


def leaf_covariance(leaf: Leaf, numbers: np.ndarray | None, most: int) -> tuple[np.ndarray, list[str], int]:
    """The covariance of a leaf, a label for each row, and the number of values it was thinned from.

    Args:
        numbers: (D, d), at which it is shown; None for a leaf over ids, where similar ids are adjacent.
        most: values to show.
    """
    if isinstance(leaf, IdLeaf):
        size = len(leaf.levels)
        few = evenly(size, most)
        labels, values = [leaf.levels[i] for i in few], torch.from_numpy(few)
    else:
        assert numbers is not None
        size = len(numbers)
        few = np.ascontiguousarray(numbers[evenly(size, most)])
        labels, values = [", ".join(f"{value:.4g}" for value in row) for row in few], torch.from_numpy(few)
    values = values.to(leaf.device)
    with torch.no_grad():
        matrix = leaf.covariance(values, values).cpu().numpy()
    if isinstance(leaf, Learned):
        order = cluster_order(matrix)
        matrix, labels = matrix[np.ix_(order, order)], [labels[i] for i in order]
    return matrix, labels, size


def cluster_order(matrix: ArrayLike) -> NDArray[np.intp]:
    """Order of rows that puts correlated ones side by side: average linkage on 1 - correlation."""
    cov = check_square(matrix, "matrix")
    if len(cov) < 3:
        return np.arange(len(cov))
    scale = np.sqrt(np.clip(np.diag(cov), np.finfo(float).tiny, None))
    distance = np.clip(1.0 - 0.5 * (cov + cov.T) / np.outer(scale, scale), 0.0, 2.0)
    np.fill_diagonal(distance, 0.0)
    # The optimal leaf order costs cubic time, so large trees keep their natural order.
    tree = hierarchy.linkage(squareform(distance, checks=False), "average", optimal_ordering=len(cov) <= 500)
    return np.asarray(hierarchy.leaves_list(tree), dtype=np.intp)


def check_square(matrix: ArrayLike, name: str) -> NDArray[np.float64]:
    """The matrix as floats, or ValueError unless it is square and finite."""
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name} must be a finite square matrix, got shape {array.shape}")
    return array


# -- what each term explains


def plot_explain(model: GPPVAE, explained: Explanation) -> Plot:
    """Shares of the terms, the covariance between them, and the curves of each term."""
    names = [term.name for term in explained.terms]
    bars = [(number, term.name, term.signal_share) for number, term in enumerate(explained.terms)]
    for number, term in reversed(list(enumerate(explained.terms))):
        bars[number + 1 : number + 1] = [(number, f"\u2022 {name}", share) for name, share in term.by_column.items()]
    labels, shares = [name for _, name, _ in bars], [share for *_, share in bars]
    charts = [bar_chart(labels, shares, "Share of the signal", percent=True, colours=[n for n, *_ in bars])]
    if len(names) > 1:
        title = "Covariance between terms (signal)"
        charts.append(heat_map(explained.signal_covariance, names, title, 200.0))
    if not is_image(model.shape_) and len(names) > 1:
        charts.append(_by_channel(explained))
    for number, term in enumerate(explained.terms):
        charts += _term_charts(model, term, number, len(explained.terms))
    return Plot(charts, explained.note)


def _by_channel(explained: Explanation) -> Chart:
    shares, n = explained.by_channel, len(explained.by_channel)
    labels = [str(name) for name in shares.index]
    x = np.arange(n)
    series = [
        Series(x, shares[name].to_numpy(), name, i, line=n > MAX_MARKS, dots=n <= MAX_MARKS,
               titles=[f"{label}, {name}: {share:.1%}" for label, share in zip(labels, shares[name], strict=True)])
        for i, name in enumerate(shares)
    ]  # fmt: skip
    return line_chart(series, "Share of each channel", "channel", x_names=labels if n <= MAX_MARKS else None, width=420)


def _term_charts(model: GPPVAE, term: TermExplanation, colour: int, n_terms: int) -> list[Chart]:
    charts: list[Chart] = []
    by_column: dict[tuple[str, ...], list[Curve]] = {}
    for curve in term.curves:
        by_column.setdefault(curve.columns, []).append(curve)
    for columns, curves in by_column.items():
        charts.append(_map(term, curves[0]) if len(columns) > 1 else _curve_chart(term, curves, colour))
        mean = curves[0]
        if mean.signal is None:
            continue
        if is_image(model.shape_):
            charts.append(_strip(model, term, mean))
        else:
            charts += _channel_curves(model, term, mean, colour)
    if is_image(model.shape_) and n_terms > 1:
        charts.append(_share_picture(model, term))
    return charts


def _axis(curve: Curve) -> tuple[np.ndarray, list[str] | None]:
    """Positions along the axis, and names where the values are ids."""
    if curve.values.dtype.kind in "fiu":
        return curve.values.astype(np.float64), None
    return np.arange(len(curve.values), dtype=np.float64), [str(value) for value in curve.values]


def _curve_chart(term: TermExplanation, curves: list[Curve], colour: int) -> Chart:
    x, names = _axis(curves[0])
    several = len(curves) > 1
    series = [
        Series(
            x, curve.score, f"{curve.by} {curve.level}", 1 + i, dashed=True, line=names is None, dots=names is not None
        )
        for i, curve in enumerate(curves[1:])
    ]
    mean = curves[0]
    label = "average" if several else ""
    series.append(Series(x, mean.score, label, colour, mean.score_std, line=names is None, dots=names is not None))
    return line_chart(series, f"{term.name} along {mean.columns[0]}", mean.axis, "change", x_names=names)


def _map(term: TermExplanation, curve: Curve) -> Chart:
    return scatter_map(curve.values[:, :2], curve.score, term.name, *curve.columns[:2], signed=True, width=340)


def _channel_curves(model: GPPVAE, term: TermExplanation, curve: Curve, colour: int) -> list[Chart]:
    """The channels of the samples that change most along a column."""
    assert curve.signal is not None and curve.signal_std is not None
    x, names = _axis(curve)
    labels, unit = channel_names(model), np.broadcast_to(model._unit(), curve.signal.shape[1:])
    moved = np.ptp(curve.signal, axis=0) / unit
    charts = []
    for channel in np.argsort(-moved, kind="stable")[: min(3, len(labels))]:
        series = Series(
            x,
            curve.signal[:, channel],
            "",
            colour,
            curve.signal_std[:, channel],
            line=names is None,
            dots=names is not None,
        )
        title = f"{labels[channel]}: what {term.name} does"
        charts.append(line_chart([series], title, curve.axis, labels[channel], x_names=names, width=260, height=170))
    return charts


def _strip(model: GPPVAE, term: TermExplanation, curve: Curve) -> Chart:
    assert curve.signal is not None
    few = evenly(len(curve.values), STRIP)
    frames = to_pictures(channels_first(model, curve.signal[few]))
    low, high = shade_range(frames)
    texts = [f"{v:.3g}" if not isinstance(v, str) else str(v) for v in curve.values[few].tolist()]
    title = f"{term.name}: the picture along {curve.axis}"
    return picture_chart([(text, to_uint8(frame, low, high)) for text, frame in zip(texts, frames, strict=True)], title)


def _share_picture(model: GPPVAE, term: TermExplanation) -> Chart:
    shares = np.nan_to_num(channels_first(model, term.by_value[None])[0]).mean(axis=0)
    pictures = [("from 0 to 1", heat_picture(shares, 1.0))]
    return picture_chart(pictures, term.name, "share of each pixel", side=150)


# -- cases, calibration, curves along a column


def plot_cases(model: GPPVAE, checked: Checked, others: Mapping[str, np.ndarray], each: int = 4) -> Plot:
    """Worst, typical and best predictions, each with truth, prediction and uncertainty.

    Args:
        others: predictions of other methods at the same rows, (n, *shape) each.
    """
    errors, columns = checked.errors(), model.prior_.columns()
    charts = []
    known = np.concatenate([checked.truth.ravel(), checked.mean.ravel()])
    low, high = shade_range(known)
    for kind, row in checked.cases(each):
        title, label = f"{kind}, MSE {errors[row]:.3g}", row_label(checked.table, row, columns)
        if is_image(model.shape_):
            pictures = {"truth": checked.truth[row], "predicted": checked.mean[row]}
            pictures |= {name: array[row] for name, array in others.items()}
            shown = [(name, to_uint8(to_pictures(image), low, high)) for name, image in pictures.items()]
            top = float(checked.spread.max()) or 1.0
            shown.insert(2, ("uncertainty", heat_picture(checked.spread[row].mean(axis=0), top)))
            charts.append(picture_chart(shown, title, label, side=88))
        else:
            charts.append(_vector_case(model, checked, row, title, label))
    if is_image(model.shape_):
        caption = f"Uncertainty is the standard deviation over draws; brightest {checked.spread.max():.2g}."
    else:
        caption = "Truth (points) and prediction (line) with a band of two standard deviations of a new sample."
    if np.any(checked.unit != 1.0):
        caption += " The MSE of a row is in standard deviations of each value, squared."
    return Plot(charts, caption)


def _vector_case(model: GPPVAE, checked: Checked, row: int, title: str, label: str) -> Chart:
    names = channel_names(model)
    x = np.arange(len(names))
    mean, std, truth = (array[row].ravel() for array in (checked.mean, checked.std, checked.truth))
    series = [
        Series(x, mean, "predicted", 0, std, least=_least(model)),
        Series(x, truth, "truth", 1, line=False, dots=True,
               titles=[f"{name}: {value:.4g}" for name, value in zip(names, truth, strict=True)]),
    ]  # fmt: skip
    return line_chart(series, title, label, x_names=names if len(names) <= MAX_MARKS else None, width=300, height=200)


def _least(model: GPPVAE) -> float:
    """The least value that a sample can have."""
    return 0.0 if isinstance(model.model_.autoencoder.likelihood.values, (Counts, Bernoulli)) else -math.inf


def plot_calibration(model: GPPVAE, checked: Checked) -> Plot:
    """Share of true values inside the predicted intervals, of all values and of single channels."""
    names = channel_names(model)
    series = [
        Series([0, 1], [0, 1], "perfect", 6, dashed=True),
        Series(LEVELS, checked.coverage(), "all values", 0, dots=True),
    ]
    for i, channel in enumerate(worst_channels(checked, len(names))):
        series.append(Series(LEVELS, checked.coverage(channel), names[channel], 1 + i))
    chart = line_chart(
        series, "Calibration", "nominal level", "observed share", width=340, height=300, y_range=(0.0, 1.0)
    )
    return Plot([chart], READING)


def worst_channels(checked: Checked, n: int) -> list[int]:
    """The channels whose coverage is furthest from nominal, at most MAX_CHANNELS - 1; none if there is only one."""
    if n == 1:
        return []
    far = [float(np.nanmean(np.abs(checked.coverage(i) - LEVELS))) for i in range(n)]
    order = [int(i) for i in np.argsort([-value for value in far], kind="stable") if math.isfinite(far[i])]
    return order[: MAX_CHANNELS - 1]


def coverage_reading(shares: Mapping[float, float], n: int) -> str:
    """What the coverage of intervals means, in a few words; differences within chance are ignored.

    Args:
        shares: of true values inside the intervals, by nominal level.  n: independent samples.
    """
    if not all(math.isfinite(share) for share in shares.values()):
        return "nothing observed"
    noise = {level: 2.0 * math.sqrt(level * (1.0 - level) / max(n, 1)) + 0.03 for level in shares}
    sides = {share > level for level, share in shares.items() if abs(share - level) > noise[level]}
    if len(sides) == 2:
        return "wrong in shape"
    return "about right" if not sides else "too wide" if sides == {True} else "too narrow"


def plot_along(model: GPPVAE, train: Part | None, test: Part | None) -> Plot | None:
    """Vectors along a numeric column for some ids, or on a map, with the measurements; None for other kernels."""
    parts = [part for part in (train, test) if part is not None]
    if is_image(model.shape_) or not parts:
        return None
    leaves = model.prior_.leaves()
    places = [leaf.columns_read for leaf in leaves if len(leaf.columns_read) == 2]
    if places:
        return _place_maps(model, places[0], train, test)
    ids = [leaf.column for leaf in leaves if isinstance(leaf, IdLeaf)]
    numeric = [leaf.columns_read[0] for leaf in leaves if len(leaf.columns_read) == 1 and not isinstance(leaf, IdLeaf)]
    numeric = [name for name in numeric if name not in ids]
    if not numeric:
        return None
    table = Table(parts[0][1])
    column = max(numeric, key=lambda name: len(np.unique(_numbers(table, (name,)))))
    return _lines_along(model, column, ids[0] if ids else None, train, test)


def _numbers(table: Table, columns: tuple[str, ...]) -> np.ndarray:
    """Numbers of these columns at the rows where they are known, (n, len(columns))."""
    return table.take(table.known(columns)).numeric(columns)


def _read_some(model: GPPVAE, part: Part, most: int, columns: Sequence[str]) -> tuple[Table, np.ndarray]:
    """At most so many rows at which these columns are known, and their samples."""
    table = Table(part[1])
    known = table.known(columns)
    index = known[evenly(len(known), most)]
    return table.take(index), read(model, part[0], index)


def _top_channels(model: GPPVAE, samples: np.ndarray, most: int) -> list[int]:
    with np.errstate(all="ignore"):
        size = np.nanstd(samples, axis=0) / np.broadcast_to(model._unit(), samples.shape[1:])
    return [int(i) for i in np.argsort(-np.nan_to_num(size.ravel()), kind="stable")[:most]]


def _lines_along(model: GPPVAE, column: str, by: str | None, train: Part | None, test: Part | None) -> Plot:
    data = {
        name: _read_some(model, part, 2000, [column])
        for name, part in (("train", train), ("test", test))
        if part is not None
    }
    tables = [table for table, _ in data.values()]
    levels: list[str | None] = [None]
    if by is not None:
        counts: dict[str, int] = {}
        for name, (table, _) in data.items():
            for level in table.ids(by).tolist():
                counts[level] = counts.get(level, 0) + (1000 if name == "test" else 1)
        levels = list(sorted(counts, key=lambda level: -counts[level])[:3])
    every = np.concatenate([table.numeric((column,))[:, 0] for table in tables])
    grid = np.linspace(every.min(), every.max(), 40)
    channels = _top_channels(model, np.concatenate([y for _, y in data.values()]), MAX_LINES)
    names, series = channel_names(model), {channel: list[Series]() for channel in channels}
    for colour, level in enumerate(levels):
        wanted = _filled(tables, column, grid, by, level)
        drawn = model.predict(wanted, n_samples=16, include_noise=True)
        mean, std = np.asarray(drawn.mean), np.asarray(drawn.std)
        for channel in channels:
            label = "" if level is None else f"{by} {level}"
            band = Series(grid, mean[:, channel], label, colour, std[:, channel], least=_least(model))
            series[channel].append(band)
            for name, (table, y) in data.items():
                own = np.ones(len(table), dtype=bool) if by is None else table.ids(by) == level
                x = table.numeric((column,))[own, 0]
                held = name == "test"
                series[channel].append(Series(x, y[own, channel], "", colour, line=False, dots=not held, rings=held))
    charts = [line_chart(series[c], names[c], column, names[c], width=330, height=220) for c in channels]
    rings = " Open points were held out." if test is not None and train is not None else ""
    return Plot(charts, f"Predictions along {column} with a band of two standard deviations of a new sample.{rings}")


def _filled(tables: list[Table], column: str, grid: np.ndarray, by: str | None, level: str | None) -> dict[str, Any]:
    """Rows along a grid of one column: other numbers interpolated from the table, ids from the nearest row.

    A column that is missing in some rows comes from the nearest row too. Where it is missing there any value will do:
    its term is switched off, or is switched on only by the grid.
    """
    names = set(tables[0].columns).intersection(*(table.columns for table in tables))
    joined = Table({name: np.concatenate([table[name] for table in tables]) for name in names})
    own = joined if by is None else joined.take(np.flatnonzero(joined.ids(by) == level))
    x = own.numeric((column,))[:, 0]
    order = np.argsort(x, kind="stable")
    nearest = np.abs(grid[:, None] - x[None, :]).argmin(axis=1)
    rows: dict[str, Any] = {}
    for name, values in own.columns.items():
        steady = values.dtype.kind not in "fiu" or name == by or len(np.unique(values)) < 3
        steady = steady or len(own.known([name])) < len(own)
        rows[name] = values[nearest] if steady else np.interp(grid, x[order], values[order].astype(np.float64))
    return filled(Table(rows | {column: grid}), rows).columns


def _place_maps(model: GPPVAE, columns: tuple[str, ...], train: Part | None, test: Part | None) -> Plot:
    parts = [_read_some(model, part, 500, columns) for part in (train, test) if part is not None]
    samples = np.concatenate([y for _, y in parts])
    places = np.concatenate([table.numeric(columns) for table, _ in parts])
    predicted = np.concatenate([np.asarray(model.predict(table).mean) for table, _ in parts])
    charts, names = [], channel_names(model)
    for channel in _top_channels(model, samples, 3):
        both = np.concatenate([samples[:, channel], predicted[:, channel]])
        limits = float(np.nanquantile(both, 0.01)), float(np.nanquantile(both, 0.99))
        for what, values in (("measured", samples), ("predicted", predicted)):
            title = f"{names[channel]}, {what}"
            charts.append(scatter_map(places, values[:, channel], title, columns[0], columns[1], limits=limits))
    return Plot(charts, f"The channels that vary most, at {len(places)} places: measured and predicted.")


# -- pictures inside charts


def picture_chart(
    pictures: Sequence[tuple[str, NDArray[np.uint8]]], title: str, subtitle: str = "", side: float = 72
) -> Chart:
    """Pictures (h, w) or (h, w, 3) side by side with a name below each."""
    gap, parts, top = 6.0, [], 34.0 if subtitle else 20.0
    rows = -(-len(pictures) // PER_ROW)
    per_row = -(-len(pictures) // rows)
    lines = [wrapped(name, side) for name, _ in pictures]
    height = max(side * image.shape[0] / image.shape[1] for _, image in pictures)
    below = 6.0 + LINE * max(map(len, lines))
    for i, (name, image) in enumerate(pictures):
        x, y = (i % per_row) * (side + gap), top + (i // per_row) * (height + below)
        style = ' style="image-rendering:pixelated"' if max(image.shape[:2]) < 96 else ""
        parts.append(
            f'<image href="{png_uri(image)}" x="{x:g}" y="{y:g}" width="{side:g}" height="{height:g}"{style}>'
            f"<title>{escape(name)}</title></image>"
        )
        parts += [
            f'<text class="soft" x="{x + side / 2:g}" y="{y + height + 13 + LINE * n:g}" text-anchor="middle">'
            f"{escape(line)}<title>{escape(name)}</title></text>"
            for n, line in enumerate(lines[i])
        ]
    width = max(per_row * (side + gap) - gap, 200.0)
    if subtitle:
        words = escape(cut(subtitle, width))
        parts.append(f'<text class="soft" x="0" y="27">{words}<title>{escape(subtitle)}</title></text>')
    names = ", ".join(name for name, _ in pictures)
    label = f"{title} {subtitle}: {names}"
    return titled(width, top + rows * (height + below), title, "".join(parts), label, left=0.0)


def heat_picture(values: np.ndarray, top: float) -> NDArray[np.uint8]:
    """(h, w) from 0 to `top` in colours from dark to bright."""
    return matplotlib.colormaps["magma"](to_uint8(values, 0.0, top or 1.0), bytes=True)[..., :3]


# -- as methods of the estimator


def plot_predictions_of(model: GPPVAE, samples: Any, table: Any, each: int = 4) -> Plot:
    """See GPPVAE.plot_predictions."""
    return plot_cases(model, check_rows(model, (samples, table), evenly(len(Table(table)), 256)), {}, each)


def plot_calibration_of(model: GPPVAE, samples: Any, table: Any) -> Plot:
    """See GPPVAE.plot_calibration."""
    return plot_calibration(model, check_rows(model, (samples, table), evenly(len(Table(table)), 256)))
