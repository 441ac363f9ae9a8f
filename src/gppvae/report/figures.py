"""Figures of a run, drawn without a display.

Every function returns a `matplotlib.figure.Figure` that is registered nowhere, so it is freed like any other
object. Colours are the Okabe-Ito palette, which colour-blind readers can tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from gppvae.data.atomic import write_bytes

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


def check_images(images: ArrayLike, leading: int, name: str) -> NDArray[Any]:
    """Return an array of `leading` axes followed by (h, w) or (h, w, 3), or say what is wrong with it."""
    array = np.asarray(images)
    colour = array.ndim == leading + 3 and array.shape[-1] == 3
    if array.size == 0 or not (array.ndim == leading + 2 or colour):
        lead = "n, " * leading
        raise ValueError(f"{name} must have shape ({lead}h, w) or ({lead}h, w, 3), got {array.shape}")
    return array


def to_uint8(images: ArrayLike, vmin: float | None = None, vmax: float | None = None) -> NDArray[np.uint8]:
    """Map vmin..vmax to 0..255, clipping outside; NaN becomes 0.

    By default 0 to the white of the type: 65535 for 16 bits, 255 for other integers, 1 for floats.
    """
    array = np.asarray(images)
    default = 65535.0 if array.dtype == np.uint16 else 255.0 if array.dtype.kind in "iu" else 1.0
    low, high = 0.0 if vmin is None else vmin, default if vmax is None else vmax
    if not high > low:
        raise ValueError(f"vmax must be greater than vmin, got vmin={low} and vmax={high}")
    scaled = np.clip((array.astype(np.float64) - low) / (high - low), 0.0, 1.0)
    return np.rint(255.0 * np.nan_to_num(scaled)).astype(np.uint8)


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


def _square(matrix: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name} must be a finite square matrix, got shape {array.shape}")
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


def cluster_order(matrix: ArrayLike) -> NDArray[np.intp]:
    """Order of rows that puts correlated ones side by side: average linkage on 1 - correlation."""
    cov = _square(matrix, "matrix")
    if len(cov) < 3:
        return np.arange(len(cov))
    scale = np.sqrt(np.clip(np.diag(cov), np.finfo(float).tiny, None))
    distance = np.clip(1.0 - 0.5 * (cov + cov.T) / np.outer(scale, scale), 0.0, 2.0)
    np.fill_diagonal(distance, 0.0)
    # The optimal leaf order costs cubic time, so large trees keep their natural order.
    tree = hierarchy.linkage(squareform(distance, checks=False), "average", optimal_ordering=len(cov) <= 500)
    return np.asarray(hierarchy.leaves_list(tree), dtype=np.intp)


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
    objects = _square(object_cov, "object_cov")
    order = cluster_order(objects)
    fig, ((left, right),) = new_axes(8.4, 3.8, 1, 2)
    _heat(fig, left, objects[np.ix_(order, order)], None, "between objects (clustered)")
    _heat(fig, right, _square(view_cov, "view_cov"), view_labels, "between views")
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
