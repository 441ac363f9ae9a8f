"""Figures of the paper that a report of one run has no use for."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from PIL import Image
from scipy.stats import gaussian_kde

from gppvae.data.atomic import write_bytes
from gppvae.report.figures import (
    LINES,
    PALETTE,
    check_images,
    finish,
    new_axes,
    series_style,
    styled,
    to_uint8,
    vector,
)


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
