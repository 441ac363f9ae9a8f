"""The figures of the report as SVG plots; `model.plot_*` returns the same figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from gppvae.data.subset import evenly
from gppvae.data.table import Table
from gppvae.estimator import GPPVAE, Curve, Explanation, TermExplanation
from gppvae.kernels import FreeForm, IdLeaf, InducingLeaf, Leaf, Learned
from gppvae.report.checked import (
    LEVELS,
    MAX_CHECKED,
    Checked,
    channel_names,
    channels_first,
    check_rows,
    known_numbers,
    named_entry,
    row_label,
    value_scales,
)
from gppvae.report.errors import error_words
from gppvae.report.images import is_image, shade_range, to_pictures, to_uint8
from gppvae.report.pictures import heat_picture, picture_chart
from gppvae.report.svg import (
    Chart,
    Plot,
    Series,
    bar_chart,
    heat_map,
    line_chart,
    scatter_map,
)

TERM_NAMES = {
    "loss": "total loss", "recon_nll": "reconstruction NLL", "gp_nll": "GP prior NLL",
    "neg_entropy": "negative entropy", "penalty": "penalty", "valid_mse": "validation MSE",
    "valid_deviance": "validation deviance",
}  # fmt: skip
MAX_MARKS = 40  # rows of a heat map, and labels along an axis
MAX_PLACES = 150  # of a covariance map
MAX_CHANNELS = 6  # curves of a calibration plot
MIN_SHARE = 5e-4  # of the signal: smaller terms would show as 0.0 % and have no curves
STRIP = 10  # pictures along a curve
CALIBRATION_CAPTION = (
    "On the diagonal, intervals are calibrated: 90 % of the 90 % intervals contain the true value. Below it they are "
    "too narrow (the model is overconfident), above it too wide."
)


# -- training


def plot_training(model: GPPVAE) -> Plot:
    """Loss terms and validation error over epochs; colours mark the phases."""
    rows = curve_rows(model.history_, model.resolved_["phases"])
    present = [term for term in TERM_NAMES if any(row.get(term) is not None for row in rows)]
    x = epoch_axis(rows)
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    spans = _phase_spans(rows, x, phases)
    charts = []
    for term in present:
        known = [i for i, row in enumerate(rows) if row.get(term) is not None]
        at, values = np.array([x[i] for i in known]), np.array([float(rows[i][term]) for i in known])
        wide = bool(values.min() > 0 and values.max() > 30 * values.min())
        series = Series(at, values, dots=len(at) < 25)
        charts.append(line_chart([series], TERM_NAMES[term], "epoch", log=wide, spans=spans, width=300, height=180))
    return Plot(charts, "The loss and its terms per sample in nats, by epoch; colours mark the phases.")


def curve_rows(history: list[dict[str, Any]], phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The history for plots: one name for the validation error, without terms that are always zero.

    Phases that train only the encoder are left out: it is fitted to the final latents, with a different loss.

    Args:
        history: metrics per epoch.  phases: the trained phases, as in `resolved_`.
    """
    encoder_only = {phase["name"] for phase in phases if set(phase["lr"]) == {"encoder"}}
    rows = [dict(row) for row in history if row["phase"] not in encoder_only]
    for row in rows:
        for error in ("mse", "deviance"):
            found = row.get(f"valid_{error}_prediction", row.get(f"valid_{error}_reconstruction"))
            row |= {} if found is None else {f"valid_{error}": found}
    zero = [term for term in TERM_NAMES if rows and all(not row.get(term) for row in rows)]
    return [{name: value for name, value in row.items() if name not in zero} for row in rows]


def epoch_axis(metrics: Sequence[Mapping[str, Any]]) -> list[float]:
    """Epochs counted over the whole run, also where each phase counts from 0 or 1."""
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


@dataclass(frozen=True)
class Covariance:
    """The covariance of one leaf of the kernel.

    Attributes:
        name: of the leaf.  columns: that it reads.  matrix: (n, n).  labels: of its rows.
        size: number of values, of which n are shown.  values: numbers (n, d); None for ids.
    """

    name: str
    columns: tuple[str, ...]
    matrix: np.ndarray
    labels: list[str]
    size: int
    values: np.ndarray | None


def covariances(model: GPPVAE, tables: Sequence[Table] = ()) -> list[Covariance]:
    """Covariances of the leaves, at up to MAX_MARKS values, or MAX_PLACES on a map.

    Args:
        tables: with numbers to show besides the training values.
    """
    found, names = [], []
    for leaves in model.prior_.leaves_by_member():
        leaf = leaves[0]
        if not isinstance(leaf, (Learned, FreeForm, InducingLeaf)):
            continue
        numbers = None
        if isinstance(leaf, InducingLeaf):
            parts = [leaf.shown_values.cpu().numpy(), *(known_numbers(table, leaf.columns_read) for table in tables)]
            numbers = np.unique(np.concatenate(parts), axis=0)
        names.append(leaf.text())
        name = leaf.text() + (f" ({names.count(leaf.text())})" if names.count(leaf.text()) > 1 else "")
        most = MAX_PLACES if len(leaf.columns_read) == 2 else MAX_MARKS
        found.append(Covariance(name, leaf.columns_read, *leaf_covariance(leaves, numbers, most)))
    return found


def plot_covariances(model: GPPVAE, tables: Sequence[Table] = ()) -> Plot:
    """Learned covariances of ids and numbers, one heat map or map per leaf of the kernel."""
    charts = []
    for found in covariances(model, tables):
        subset = f", {len(found.labels)} of {found.size}" if found.size > len(found.labels) else ""
        if found.values is not None and len(found.columns) == 2:
            middle = int(np.square(found.values - np.median(found.values, axis=0)).sum(1).argmin())
            title = f"{found.name}: covariance with the place {found.labels[middle]}"
            charts.append(scatter_map(found.values, found.matrix[middle], title, *found.columns, width=340))
        else:
            charts.append(heat_map(found.matrix, found.labels, found.name + subset))
    mean = f" Means over the {model.prior_.copies} networks of the ensemble." if model.prior_.copies > 1 else ""
    return Plot(charts, f"Learned covariances. Similar ids are adjacent; hover over a mark for its value.{mean}")


def leaf_covariance(
    leaves: Sequence[Leaf], numbers: np.ndarray | None, most: int
) -> tuple[np.ndarray, list[str], int, np.ndarray | None]:
    """The covariance of a leaf (n, n), the labels of its rows, the number of all values, and the numbers shown (n, d).

    Args:
        leaves: the leaf in each member of an ensemble, averaged over; or a single leaf.
        numbers: (D, d), at which to evaluate it; None for ids, which are sorted so that similar ones are adjacent.
        most: largest n.
    """
    leaf, few = leaves[0], None
    if isinstance(leaf, IdLeaf):
        size = len(leaf.levels)
        places = evenly(size, most)
        labels, values = [leaf.levels[i] for i in places], torch.from_numpy(places)
    else:
        assert numbers is not None
        size = len(numbers)
        few = np.ascontiguousarray(numbers[evenly(size, most)])
        labels, values = [", ".join(f"{value:.4g}" for value in row) for row in few], torch.from_numpy(few)
    values = values.to(leaf.device)
    with torch.no_grad():
        matrix = torch.stack([one.covariance(values, values) for one in leaves]).mean(0).cpu().numpy()
    if isinstance(leaf, Learned):
        order = cluster_order(matrix)
        matrix, labels = matrix[np.ix_(order, order)], [labels[i] for i in order]
    return matrix, labels, size, few


def cluster_order(matrix: ArrayLike) -> NDArray[np.intp]:
    """Order of rows with correlated ones adjacent: average linkage on 1 - correlation."""
    cov = check_square(matrix, "matrix")
    if len(cov) < 3:
        return np.arange(len(cov))
    scale = np.sqrt(np.clip(np.diag(cov), np.finfo(float).tiny, None))
    distance = np.clip(1.0 - 0.5 * (cov + cov.T) / np.outer(scale, scale), 0.0, 2.0)
    np.fill_diagonal(distance, 0.0)
    # Optimal leaf ordering takes cubic time, so large trees keep their default order.
    tree = hierarchy.linkage(squareform(distance, checks=False), "average", optimal_ordering=len(cov) <= 500)
    return np.asarray(hierarchy.leaves_list(tree), dtype=np.intp)


def check_square(matrix: ArrayLike, name: str) -> NDArray[np.float64]:
    """The matrix as floats, or ValueError unless it is square and finite."""
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name} must be a finite square matrix, got shape {array.shape}")
    return array


# -- explained terms


def plot_explain(model: GPPVAE, explained: Explanation) -> Plot:
    """Shares of the terms, covariances between them, and the curves of each term."""
    names = [term.name for term in explained.terms]
    bars = [(number, term.name, term.signal_share) for number, term in enumerate(explained.terms)]
    shown = [(number, term) for number, term in enumerate(explained.terms) if abs(term.signal_share) >= MIN_SHARE]
    for number, term in reversed(shown):
        bars[number + 1 : number + 1] = [(number, f"\u2022 {name}", share) for name, share in term.by_column.items()]
    labels, shares = [name for _, name, _ in bars], [share for *_, share in bars]
    charts = [bar_chart(labels, shares, "Share of the signal", percent=True, colours=[n for n, *_ in bars])]
    if len(names) > 1:
        title = "Covariance between terms (signal)"
        charts.append(heat_map(explained.signal_covariance, names, title, 200.0))
    if not is_image(model.shape_) and len(names) > 1:
        charts.append(_by_channel(explained))
    for number, term in shown:
        charts += _term_charts(model, term, number, len(explained.terms))
    without = [name for number, name in enumerate(names) if number not in dict(shown)]
    note = f" Terms with a negligible share have no curves: {', '.join(without)}." if without else ""
    return Plot(charts, explained.note + note)


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
    """Positions along the axis, and labels if the values are ids."""
    if curve.values.dtype.kind in "fiu":
        return curve.values.astype(np.float64), None
    return np.arange(len(curve.values), dtype=np.float64), [str(value) for value in curve.values]


def _curve_chart(term: TermExplanation, curves: list[Curve], colour: int) -> Chart:
    x, names = _axis(curves[0])
    line, dots = names is None, names is not None
    series = [
        Series(x, curve.score, named_entry(str(curve.by), str(curve.level)), 1 + i, dashed=True, line=line, dots=dots)
        for i, curve in enumerate(curves[1:])
    ]
    mean = curves[0]
    label = "average" if len(curves) > 1 else ""
    series.append(Series(x, mean.score, label, colour, mean.score_std, line=line, dots=dots))
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
        mean, std = curve.signal[:, channel], curve.signal_std[:, channel]
        series = Series(x, mean, "", colour, std, line=names is None, dots=names is not None)
        title = f"{labels[channel]}: effect of {term.name}"
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


# -- cases, calibration


def plot_cases(model: GPPVAE, checked: Checked, others: Mapping[str, np.ndarray], each: int = 4) -> Plot:
    """Worst, typical and best predictions, with truth and uncertainty.

    Args:
        others: predictions of other methods at the same rows, (n, *shape) each, by name.
    """
    errors, columns, measure = checked.errors(), model.prior_.columns(), error_words(checked.measure)[0]
    charts = []
    known = np.concatenate([checked.truth.ravel(), checked.mean.ravel()])
    low, high = shade_range(known)
    for kind, row in checked.cases(each):
        title, label = f"{kind}, {measure} {errors[row]:.3g}", row_label(checked.table, row, columns)
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
        if value_scales(model) is not None:
            caption += " Values differ in scale; each is shown in standard deviations from its training mean."
    if np.any(checked.unit != 1.0):
        caption += " The MSE of a row is in standard deviations of each value, squared."
    return Plot(charts, caption)


def _vector_case(model: GPPVAE, checked: Checked, row: int, title: str, label: str) -> Chart:
    names, scales = channel_names(model), value_scales(model)
    x, unit = np.arange(len(names)), "" if scales is None else "standard deviations"
    mean, std, truth = (array[row].ravel() for array in (checked.mean, checked.std, checked.truth))
    shift, spread = scales or (np.zeros_like(mean), np.ones_like(mean))
    values = model.model_.autoencoder.likelihood.values
    least, most = values.least_value, values.most_value
    series = [
        Series(x, (mean - shift) / spread, "predicted", 0, std / spread, least=least, most=most),
        Series(x, (truth - shift) / spread, "truth", 1, line=False, dots=True,
               titles=[f"{name}: {value:.4g}" for name, value in zip(names, truth, strict=True)]),
    ]  # fmt: skip
    return line_chart(
        series, title, label, unit, x_names=names if len(names) <= MAX_MARKS else None, width=300, height=200
    )


def plot_calibration(model: GPPVAE, checked: Checked) -> Plot:
    """Coverage of the predicted intervals by nominal level, of all values and of single channels."""
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
    return Plot([chart], CALIBRATION_CAPTION)


def worst_channels(checked: Checked, n: int) -> list[int]:
    """The channels with coverage furthest from nominal, at most MAX_CHANNELS - 1; none if there is only one."""
    if n == 1:
        return []
    far = [float(np.nanmean(np.abs(checked.coverage(i) - LEVELS))) for i in range(n)]
    order = [int(i) for i in np.argsort([-value for value in far], kind="stable") if math.isfinite(far[i])]
    return order[: MAX_CHANNELS - 1]


def coverage_verdict(shares: Mapping[float, float], n: int) -> str:
    """A verdict on the intervals from their coverage; deviations within chance are ignored.

    Args:
        shares: coverage by nominal level.  n: number of independent samples.
    """
    if not all(math.isfinite(share) for share in shares.values()):
        return "nothing observed"
    noise = {level: 2.0 * math.sqrt(level * (1.0 - level) / max(n, 1)) + 0.03 for level in shares}
    sides = {share > level for level, share in shares.items() if abs(share - level) > noise[level]}
    if len(sides) == 2:
        return "wrong in shape"
    return "about right" if not sides else "too wide" if sides == {True} else "too narrow"


# -- methods of the estimator


def plot_predictions_of(model: GPPVAE, samples: Any, table: Any, each: int = 4) -> Plot:
    """See GPPVAE.plot_predictions."""
    return plot_cases(model, check_rows(model, (samples, table), evenly(len(Table(table)), MAX_CHECKED)), {}, each)


def plot_calibration_of(model: GPPVAE, samples: Any, table: Any) -> Plot:
    """See GPPVAE.plot_calibration."""
    return plot_calibration(model, check_rows(model, (samples, table), evenly(len(Table(table)), MAX_CHECKED)))
