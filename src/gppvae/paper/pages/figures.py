"""Figures and pages of the paper, drawn by matplotlib without a display.

Every function returns a `matplotlib.figure.Figure` that is registered nowhere, so it is freed like any other object.
Colours are the Okabe-Ito palette, which colour-blind readers can tell apart.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from scipy.stats import gaussian_kde

from gppvae.data.atomic import write_bytes
from gppvae.report.images import check_images, to_uint8
from gppvae.report.page import Page
from gppvae.report.plots import check_square, cluster_order

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
GREY = "#5b6675"
# fmt: off
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.edgecolor": GREY, "axes.axisbelow": True, "grid.color": "#e6eaee", "legend.frameon": False,
    "lines.linewidth": 1.6, "lines.markersize": 4, "errorbar.capsize": 3, "pdf.fonttype": 42,
}
# fmt: on
Labels = Sequence[object] | None
styled = matplotlib.rc_context(STYLE)  # as a decorator: applies the style during the call, then restores


def render(fig: Figure, kind: str = "png", dpi: int = 200) -> bytes:
    """The figure as the bytes of a PNG or PDF file; equal figures give equal bytes (no dates inside)."""
    stamp = {"Software": None} if kind == "png" else {"CreationDate": None, "Producer": None, "Creator": None}
    out = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        fig.savefig(out, format=kind, dpi=dpi, metadata=stamp)
    return out.getvalue()


def save(fig: Figure, path_without_suffix: str | Path) -> tuple[Path, Path]:
    """Write `<path>.png` (200 dpi) and `<path>.pdf`, each atomically; returns both paths."""
    base = Path(path_without_suffix)
    png = write_bytes(base.with_name(base.name + ".png"), render(fig, "png"))
    return png, write_bytes(base.with_name(base.name + ".pdf"), render(fig, "pdf"))


class FigurePage(Page):
    """A report page that takes matplotlib figures too."""

    def figure(self, fig: Figure, caption: str, alt: str) -> None:
        """Add a figure at its natural size; `alt` describes it for those who cannot see it."""
        width, height = (round(96 * inches) for inches in fig.get_size_inches())
        uri = "data:image/png;base64," + base64.b64encode(render(fig, "png", 192)).decode("ascii")
        size = f'class="plot" width="{width}" height="{height}"'
        self._figure(f'<img {size} src="{uri}" alt="{escape(alt)}">', caption)


def new_axes(width: float, height: float, rows: int = 1, cols: int = 1) -> tuple[Figure, NDArray[Any]]:
    fig = Figure(figsize=(width, height), layout="compressed")
    return fig, fig.subplots(rows, cols, squeeze=False)


def finish(fig: Figure, ax: Axes, **settings: Any) -> Figure:
    ax.set(**settings)
    ax.legend()
    return fig


def series_style(i: int) -> dict[str, Any]:
    return {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)]}


def vector(values: ArrayLike, name: str, length: int | None = None) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or (length is not None and array.size != length):
        wanted = "a non-empty vector" if length is None else f"a vector of length {length}"
        raise ValueError(f"{name} must be {wanted}, got shape {array.shape}")
    return array


@styled
def prediction_montage(
    truth: ArrayLike,
    predictions: Mapping[str, ArrayLike],
    std: ArrayLike | None = None,
) -> Figure:
    """Rows of images: the truth, each method's prediction and, if given, the predicted standard deviation.

    Args:
        truth: (n, h, w) grey or (n, h, w, 3) colour, floats in [0, 1] or uint8.
        predictions: method name -> images of the same shape.
        std: like truth, in pixel units; colour is averaged over channels and drawn as a heat map.
    """
    rows = {"truth": truth, **predictions} | ({} if std is None else {"std": std})
    images = {name: check_images(value, 1, name) for name, value in rows.items()}
    size = images["truth"].shape[:3]
    wrong = [f"{name} {value.shape}" for name, value in images.items() if value.shape[:3] != size]
    if wrong:
        raise ValueError(f"all images must have the shape of truth {size}, got {wrong[0]}")
    n, height, width = size
    fig, grid = new_axes(1.4 + 0.85 * n, 0.88 * len(rows) * height / width, len(rows), n)
    fig.set_layout_engine("compressed", w_pad=0.01, h_pad=0.01, wspace=0.0, hspace=0.0)
    for axes, (name, pictures) in zip(grid, images.items(), strict=True):
        heat = pictures.mean(axis=-1) if pictures.ndim == 4 else pictures
        shade = ("magma", float(heat.max()), heat) if name == "std" else ("gray", 255.0, to_uint8(pictures))
        for ax, image in zip(axes, shade[2], strict=True):
            shown = ax.imshow(image, cmap=shade[0], vmin=0, vmax=shade[1], interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center")
    if std is not None:
        fig.colorbar(shown, ax=list(grid[-1]), pad=0.01, fraction=0.05)
    return fig


def _heat(fig: Figure, ax: Axes, matrix: NDArray[np.float64], labels: Labels, title: str) -> None:
    peak = float(np.abs(matrix).max()) or 1.0
    low, colours = (-peak, "RdBu_r") if matrix.min() < -1e-9 * peak else (0.0, "cividis")
    shown = ax.imshow(matrix, cmap=colours, vmin=low, vmax=peak, interpolation="nearest")
    fig.colorbar(shown, ax=ax, shrink=0.82)
    ax.set(title=title, xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set_visible(False)
    if labels is None:
        return
    if len(labels) != len(matrix):
        raise ValueError(f"there must be one label per row ({len(matrix)}), got {len(labels)}")
    at = range(0, len(labels), -(-len(labels) // 20))  # more than about 20 labels per side are unreadable
    ax.set_xticks(at, [str(labels[i]) for i in at], rotation=90, fontsize=7)
    ax.set_yticks(at, [str(labels[i]) for i in at], fontsize=7)


@styled
def covariance_pair(object_cov: ArrayLike, view_cov: ArrayLike, view_labels: Sequence[object]) -> Figure:
    """Object covariance, ordered by clustering, and view covariance in its own order."""
    objects = check_square(object_cov, "object_cov")
    order = cluster_order(objects)
    fig, ((left, right),) = new_axes(8.4, 3.8, 1, 2)
    _heat(fig, left, objects[np.ix_(order, order)], None, "between objects (clustered)")
    _heat(fig, right, check_square(view_cov, "view_cov"), view_labels, "between views")
    return fig


@styled
def calibration(levels: ArrayLike, coverage: ArrayLike | Mapping[str, ArrayLike]) -> Figure:
    """Reliability diagram: share of true values (of one or several named methods) inside each interval."""
    nominal = vector(levels, "levels")
    curves = coverage if isinstance(coverage, Mapping) else {"observed": coverage}
    fig, ((ax,),) = new_axes(3.8, 3.7)
    ax.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="perfect")
    for i, (name, values) in enumerate(curves.items()):
        ax.plot(nominal, vector(values, f"coverage {name!r}", nominal.size), label=name, **series_style(i))
    ax.text(0.97, 0.04, "intervals too narrow", ha="right", fontsize=7.5, color=GREY)
    ax.text(0.03, 0.68, "intervals too wide", ha="left", fontsize=7.5, color=GREY)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return finish(fig, ax, xlabel="nominal level", ylabel="observed coverage")


@styled
def bar_mse(
    names: Sequence[str],
    means: ArrayLike,
    standard_errors: ArrayLike,
    reference: Mapping[str, float | None] | None = None,
) -> Figure:
    """Bars of mean squared error with standard errors; published values, where given, as open diamonds."""
    mean = vector(means, "means", len(names))
    top = mean + vector(standard_errors, "standard_errors", len(names))
    unknown = set(reference or {}) - set(names)
    if unknown:
        raise ValueError(f"reference names must be among {list(names)}, got {sorted(unknown)}")
    fig, ((ax,),) = new_axes(max(3.6, 1.0 + 1.0 * len(names)), 3.2)
    ax.bar(range(len(names)), mean, 0.62, yerr=top - mean, color=PALETTE[5], edgecolor=PALETTE[0])
    published = {i: v for i, name in enumerate(names) if (v := (reference or {}).get(name)) is not None}
    if published:
        ax.plot(list(published), list(published.values()), "D", label="paper", gid="paper", zorder=4,
                markersize=7, markerfacecolor="white", markeredgecolor=PALETTE[1])  # fmt: skip
        ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    for i, value in enumerate(mean):
        at = (i, max(top[i], published.get(i, 0.0)))
        ax.annotate(f"{value:#.3g}", at, xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8)
    long = max(len(name) for name in names) > 12
    ax.set_xticks(range(len(names)), names, rotation=20 if long else 0, ha="right" if long else "center")
    ax.grid(False, axis="x")
    ax.set(ylabel="mean squared error", ymargin=0.14)
    return fig


@styled
def density(series: Mapping[str, ArrayLike], xlabel: str) -> Figure:
    """Gaussian kernel density of each named sample, Scott's bandwidth, on a common axis."""
    fig, ((ax,),) = new_axes(4.4, 3.0)
    samples = {name: vector(values, f"series {name!r}") for name, values in series.items()}
    for name, values in samples.items():
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            raise ValueError(f"series {name!r} must hold finite, differing values to have a density")
    curves = {name: gaussian_kde(values) for name, values in samples.items()}
    tail = 3.0 * max(float(np.sqrt(curve.covariance[0, 0])) for curve in curves.values())
    everything = np.concatenate(list(samples.values()))
    grid = np.linspace(everything.min() - tail, everything.max() + tail, 400)
    for i, (name, curve) in enumerate(curves.items()):
        colour = PALETTE[i % len(PALETTE)]
        ax.plot(grid, curve(grid), color=colour, linestyle=LINES[i % len(LINES)], label=name)
        ax.fill_between(grid, curve(grid), color=colour, alpha=0.12, linewidth=0)
    return finish(fig, ax, xlabel=xlabel, ylabel="density", ylim=(0, None))


@styled
def curve_with_choice(
    x: ArrayLike,
    y: ArrayLike,
    yerr: ArrayLike | None,
    chosen: float,
    xlabel: str,
    ylabel: str,
    log_x: bool = False,
) -> Figure:
    """A curve over a setting with error bars and the chosen setting ringed; `chosen` must be one of x."""
    at = vector(x, "x")
    value = vector(y, "y", at.size)
    hit = np.flatnonzero(np.isclose(at, chosen))[:1]
    if hit.size == 0:
        raise ValueError(f"chosen must be one of x = {at.tolist()}, got {chosen}")
    fig, ((ax,),) = new_axes(4.4, 3.0)
    ax.errorbar(
        at,
        value,
        yerr=None if yerr is None else vector(yerr, "yerr", at.size),
        capsize=3,
        **series_style(0),
    )
    ax.axvline(at[hit[0]], color=PALETTE[1], linestyle="--", linewidth=1.0)
    ax.plot(at[hit], value[hit], "o", label=f"chosen: {chosen:g}", gid="chosen", markersize=11,
            markerfacecolor="none", markeredgecolor=PALETTE[1], markeredgewidth=1.8)  # fmt: skip
    return finish(fig, ax, xlabel=xlabel, ylabel=ylabel, xscale="log" if log_x else "linear")


@styled
def lines_by_k(k: ArrayLike, series: Mapping[str, tuple[ArrayLike, ArrayLike | None]], ylabel: str) -> Figure:
    """One line per method over the number k of given views, (mean, standard error or None) each."""
    at = vector(k, "k")
    fig, ((ax,),) = new_axes(4.6, 3.1)
    for i, (name, (mean, error)) in enumerate(series.items()):
        bars = None if error is None else vector(error, f"standard error of {name!r}", at.size)
        ax.errorbar(at, vector(mean, f"mean of {name!r}", at.size), bars, label=name, **series_style(i))
    ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    return finish(fig, ax, xlabel="views given of the new object", ylabel=ylabel)


def turning_gif(frames: ArrayLike, path: str | Path, ms: int = 120, min_side: int = 224) -> Path:
    """Write an endless GIF of (n_views, h, w[, 3]) frames, enlarged by a whole factor to `min_side`."""
    pixels = to_uint8(check_images(frames, 1, "frames"))
    factor = max(1, -(-min_side // min(pixels.shape[1:3])))
    pictures = [Image.fromarray(frame.repeat(factor, axis=0).repeat(factor, axis=1)) for frame in pixels]
    out = io.BytesIO()
    pictures[0].save(out, format="GIF", save_all=True, append_images=pictures[1:], duration=ms, loop=0)
    return write_bytes(path, out.getvalue())
