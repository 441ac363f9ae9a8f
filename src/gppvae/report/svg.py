"""Charts as SVG text: lines with bands, bars, heat maps and maps, without a plotting library.

Colours are CSS classes, so that a chart follows the light or dark theme of its page. Marks have a <title>, which
browsers show as a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from gppvae.data.atomic import write_bytes

# The colour-blind safe palette of Okabe and Ito, lightened for dark pages.
LIGHT = "--k0:#0072b2;--k1:#d55e00;--k2:#009e73;--k3:#b45f93;--k4:#a87500;--k5:#3a8fc0;--k6:#5a6573"
DARK = "--k0:#56b4e9;--k1:#f28e4a;--k2:#35c79a;--k3:#e3a3c8;--k4:#e6b74f;--k5:#8fd0f5;--k6:#9ca8b6"
N_COLOURS = 7
CHART_CSS = (
    """.chart{display:block;max-width:100%;height:auto;font:11px system-ui,sans-serif;color:var(--ink,#1b232e)}
.chart text{fill:currentColor;stroke:none} .chart .soft{color:var(--soft,#5a6573)}
.chart .rule{stroke:var(--line,#dfe4ea);stroke-width:1} .chart .axis{stroke:var(--soft,#5a6573);stroke-width:1}
.chart .line{fill:none;stroke:currentColor;stroke-width:1.7;stroke-linejoin:round} .chart .band{fill:currentColor;
stroke:none;opacity:.2} .chart .dot{fill:currentColor;stroke:none} .chart .ring{fill:none;stroke:currentColor;
stroke-width:1.6} .chart .dash{stroke-dasharray:4 3} .chart .span{fill:currentColor;stroke:none;opacity:.1}
.chart .bold{font-weight:600} .chart .none{fill:var(--line,#dfe4ea)} .chart a{cursor:default}
"""
    + "".join(f".chart .k{i}{{color:var(--k{i})}}" for i in range(N_COLOURS))
    + "\n"
)
# Style of a chart outside a report page.
OWN_CSS = (
    f".chart,.charts{{{LIGHT};--ink:#1b232e;--soft:#5a6573;--line:#dfe4ea}}"
    "@media (prefers-color-scheme:dark){.chart,.charts{"
    f"{DARK};--ink:#e5e9ef;--soft:#9ca8b6;--line:#2d3642}}}}\n"
    ".charts{display:flex;flex-wrap:wrap;gap:.6rem 1rem;align-items:flex-start}\n"
) + CHART_CSS
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 22.0, 34.0
LETTER = 6.1  # mean width of a character, for margins
BOLD = 1.12  # relative width of bold characters
LINE = 14.0  # line height
MAX_LINES = 3  # of a title or label


@dataclass(frozen=True)
class Chart:
    """One drawing: `body` is `width` x `height` pixels."""

    width: float
    height: float
    body: str
    label: str

    def svg(self, extra: str = "", inner: str = "") -> str:
        """The <svg> element; screen readers read `label`."""
        return (
            f'<svg class="chart" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" role="img" aria-label="{escape(self.label)}"{extra}>'
            f"{inner}{self.body}</svg>"
        )


@dataclass(frozen=True, repr=False)
class Plot:
    """Charts with a common caption. Notebooks display them; `save` writes one SVG file.

    Attributes:
        charts: in reading order.  caption: below them.
    """

    charts: list[Chart]
    caption: str

    def html(self) -> str:
        """The charts in a row that wraps; the page provides the style."""
        return f'<div class="charts">{"".join(chart.svg() for chart in self.charts)}</div>'

    def _repr_html_(self) -> str:
        return f"<style>{OWN_CSS}</style>{self.html()}<p>{escape(self.caption)}</p>"

    def __repr__(self) -> str:
        return f"Plot({len(self.charts)} charts: {self.caption}) with .save('figure.svg')"

    def svg(self, columns: int = 3) -> str:
        """All charts in one SVG file, in rows of `columns`."""
        parts, top, wide = [], 0.0, 0.0
        for start in range(0, len(self.charts), columns):
            row, left = self.charts[start : start + columns], 0.0
            for chart in row:
                parts.append(chart.svg(f' x="{left:g}" y="{top:g}"'))
                left += chart.width + 12
            wide, top = max(wide, left - 12), top + max(chart.height for chart in row) + 12
        whole = Chart(max(wide, 1.0), max(top - 12, 1.0), "".join(parts), self.caption)
        return whole.svg(' xmlns="http://www.w3.org/2000/svg"', f"<style>{OWN_CSS}</style>")

    def save(self, path: str | Path) -> Path:
        """Write one SVG file, atomically."""
        if Path(path).suffix.lower() != ".svg":
            raise ValueError(f"expected the name of an SVG file, got {str(path)!r}; let it end in .svg")
        return write_bytes(Path(path), self.svg().encode("utf-8"))


@dataclass(frozen=True)
class Series:
    """A line, points or both over x.

    Attributes:
        x, y: (M,); NaN breaks the line.  std: (M,), for a band of two standard deviations, or None.
        name: in the legend.  colour: index in the palette.
        line, dots, rings: what to draw; rings are open dots.  titles: tooltips of the dots.
        least, most: bounds of the values, at which the band is clipped.
    """

    x: Any
    y: Any
    name: str = ""
    colour: int = 0
    std: Any = None
    line: bool = True
    dots: bool = False
    rings: bool = False
    dashed: bool = False
    titles: Sequence[str] = field(default_factory=list)
    least: float = -math.inf
    most: float = math.inf

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper edge of the band."""
        y, half = np.asarray(self.y, dtype=np.float64), 2.0 * np.asarray(self.std, dtype=np.float64)
        return np.maximum(y - half, self.least), np.minimum(y + half, self.most)


def number(value: float, digits: int = 4) -> str:
    """A number as a label."""
    return f"{value:.{digits}g}".replace("-", "\u2212") if math.isfinite(value) else "\u2013"


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """About `most` round numbers from low to high."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * size >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    series: Sequence[Series],
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    *,
    width: float = 320,
    height: float = 210,
    x_names: Sequence[str] | None = None,
    y_range: tuple[float, float] | None = None,
    log: bool = False,
    spans: Sequence[tuple[float, float, int, str]] = (),
) -> Chart:
    """Series over one axis with a legend; `spans` are (from, to, colour, name) in the background.

    Args:
        x_names: labels at x = 0, 1, ..., instead of numbers.  log: whether the y axis is logarithmic.
    """
    ys = [np.asarray(s.y, dtype=np.float64) for s in series]
    limits = [edge for s, y in zip(series, ys, strict=True) for edge in ([y] if s.std is None else s.band())]
    low, high = y_range or _range(np.concatenate([np.ravel(part) for part in limits]) if limits else np.zeros(1), log)
    xs = np.concatenate([np.asarray(s.x, dtype=np.float64).ravel() for s in series]) if series else np.zeros(1)
    x0, x1 = (float(xs.min()), float(xs.max())) if xs.size else (0.0, 1.0)
    if x0 == x1 or x_names is not None:
        x0, x1 = x0 - 0.5, x1 + 0.5
    legend = [(s.colour, s.name) for s in series if s.name] + [(colour, name) for *_, colour, name in spans]
    legend = list(dict.fromkeys(legend)) if len(set(legend)) > 1 else []
    rows = _legend_rows(legend, width - LEFT)
    top = TOP + 14 * len(rows)
    names = _names_height(x_names) if x_names else 0.0
    bottom, height = BOTTOM + names, height + names
    box = _Box(x0, x1, low, high, LEFT, width - RIGHT, top, height + 14 * len(rows) - bottom, log)
    if y_label:  # left of the tick labels
        box = replace(box, left=max(LEFT, 24.0 + LETTER * max(len(words) for _, words in box.y_ticks())))
    out = [_legend(rows)]
    out += [_span(box, *span) for span in spans]
    out.append(box.frame(x_label, y_label, x_names))
    out += [_series(box, s, y) for s, y in zip(series, ys, strict=True)]
    return titled(width, height + 14 * len(rows), title, "".join(out), title or y_label or "chart")


def bar_chart(
    names: Sequence[str], values: Sequence[float], title: str = "", *, width: float = 420, percent: bool = False,
    colours: Sequence[int] | None = None,
) -> Chart:  # fmt: skip
    """One horizontal bar per name with its value; negative bars extend to the left."""
    colours = range(len(names)) if colours is None else colours
    given = [value if math.isfinite(value) else 0.0 for value in values]
    shown = [f"{100 * v:.1f} %" if percent else number(v) for v in values]
    left = min(max([LETTER * len(name) for name in names] + [30.0]) + 8, width * 0.55)
    low, high = min([0.0, *given]), max([0.0, *given]) or 1.0
    room = width - left - 58
    at = lambda v: left + (v - low) / (high - low) * room  # noqa: E731
    parts = []
    for i, (name, value, text) in enumerate(zip(names, given, shown, strict=True)):
        y = TOP + 22 * i
        start, end = sorted((at(0.0), at(value)))
        parts.append(
            f'<text x="{left - 6:.1f}" y="{y + 14:g}" text-anchor="end">{escape(cut(name, left))}'
            f"<title>{escape(name)}</title></text>"
            f'<rect class="dot k{colours[i] % N_COLOURS}" x="{start:.1f}" y="{y + 3:g}" height="15" rx="2" '
            f'width="{max(end - start, 1):.1f}"><title>{escape(name)}: {text}</title></rect>'
            f'<text x="{end + 5:.1f}" y="{y + 14:g}">{text}</text>'
        )
    return titled(width, TOP + 22 * len(names) + 6, title, "".join(parts), title or "bars")


def heat_map(matrix: Any, labels: Sequence[str], title: str = "", most: float = 110.0) -> Chart:
    """A square matrix, blue above zero and orange below; tooltips show labels and value.

    Args:
        most: largest width of a label in pixels.
    """
    cells = np.asarray(matrix, dtype=np.float64)
    n = len(cells)
    if cells.shape != (n, n) or len(labels) != n:
        raise ValueError(f"expected a square matrix with one label per row, got {cells.shape} and {len(labels)} labels")
    peak = (float(np.abs(cells).max()) if n else 1.0) or 1.0
    size = max(5.0, min(26.0, 300.0 / max(n, 1)))
    margin = min(max([LETTER * len(label) for label in labels] + [10.0]), most) + 8
    wide = max(margin + n * size + 70, min(LETTER * BOLD * len(title) + 6, 320.0))
    parts = []
    for i in range(n):
        for j in range(n):
            value = cells[i, j]
            words = f"{labels[i]}, {labels[j]}: {number(value)}"
            parts.append(
                f'<rect class="dot k{0 if value >= 0 else 1}" x="{margin + j * size:.1f}" '
                f'y="{TOP + i * size:.1f}" width="{size:.1f}" height="{size:.1f}" '
                f'fill-opacity="{abs(value) / peak:.3f}"><title>{escape(words)}</title></rect>'
            )
    step = max(1, math.ceil(12.0 / size))  # a label takes twelve pixels
    for i in range(0, n, step):
        at, text = i * size + size / 2, escape(cut(labels[i], margin))
        parts.append(f'<text x="{margin - 5:.1f}" y="{TOP + at + 4:.1f}" text-anchor="end">{text}</text>')
        x, y = margin + at + 4, TOP + n * size + 6
        parts.append(f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)" text-anchor="end">{text}</text>')
    signed = bool((cells < -1e-9 * peak).any())
    parts.append(_scale_bar(margin + n * size + 14, TOP, min(max(n * size, 60.0), 140.0), peak, signed))
    label = f"{title}: {n} x {n}, largest {number(peak)}"
    return titled(wide, TOP + n * size + margin + 4, title, "".join(parts), label)


def scatter_map(
    places: Any, values: Any, title: str, x_label: str, y_label: str, *, width: float = 280, signed: bool = False,
    limits: tuple[float, float] | None = None,
) -> Chart:  # fmt: skip
    """Dots at places, (M, 2), more opaque for larger values; equal aspect ratio."""
    at, given = np.asarray(places, dtype=np.float64), np.asarray(values, dtype=np.float64)
    (x0, y0), (x1, y1) = at.min(axis=0), at.max(axis=0)
    x1, y1 = max(x1, x0 + 1e-9), max(y1, y0 + 1e-9)
    room = width - LEFT - RIGHT - 62
    height = float(np.clip(room * (y1 - y0) / (x1 - x0), 90.0, 320.0))
    pad_x, pad_y = 0.03 * (x1 - x0), 0.03 * (y1 - y0)
    box = _Box(x0 - pad_x, x1 + pad_x, y0 - pad_y, y1 + pad_y, LEFT, LEFT + room, TOP, TOP + height, False)
    finite = given[np.isfinite(given)]
    low, high = limits or ((float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0))
    if signed:
        high = max(abs(low), abs(high))
        low = 0.0
    radius = float(np.clip(0.5 * math.sqrt(room * height / max(len(at), 1)), 1.6, 6.0))
    parts = [box.frame(x_label, y_label, None)]
    for (x, y), value in zip(at, given, strict=True):
        strength = (abs(value) if signed else value) - low
        opacity = float(np.clip(strength / ((high - low) or 1.0), 0.0, 1.0)) if math.isfinite(value) else 0.0
        words = f"{x_label} {number(x)}, {y_label} {number(y)}: {number(value)}"
        parts.append(
            f'<circle class="dot k{1 if signed and value < 0 else 0}" cx="{box.x(x):.1f}" cy="{box.y(y):.1f}" '
            f'r="{radius:.1f}" fill-opacity="{0.06 + 0.94 * opacity:.3f}"><title>{escape(words)}</title></circle>'
        )
    parts.append(_scale_bar(LEFT + room + 12, TOP, min(height, 120.0), high, signed, low))
    return titled(width, TOP + height + BOTTOM, title, "".join(parts), title)


@dataclass(frozen=True)
class _Box:
    """The plotting area, in data and in pixel coordinates."""

    x0: float
    x1: float
    y0: float
    y1: float
    left: float
    right: float
    top: float
    bottom: float
    log: bool

    def x(self, value: float) -> float:
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.right - self.left)

    def y(self, value: float) -> float:
        if self.log:
            low, high, value = math.log(self.y0), math.log(self.y1), math.log(max(value, self.y0 * 1e-6))
        else:
            low, high = self.y0, self.y1
        share = (value - low) / (high - low)
        return self.bottom - min(max(share, -0.02), 1.02) * (self.bottom - self.top)

    def y_ticks(self) -> list[tuple[float, str]]:
        """Ticks of the y axis with labels, with enough digits to be distinct."""
        ticks = _log_ticks(self.y0, self.y1) if self.log else nice_ticks(self.y0, self.y1, 4)
        for digits in range(4, 10):
            labels = [number(tick, digits) for tick in ticks]
            if len(set(labels)) == len(labels):
                break
        return list(zip(ticks, labels, strict=True))

    def frame(self, x_label: str, y_label: str, x_names: Sequence[str] | None) -> str:
        parts = []
        for tick, words in self.y_ticks():
            y = self.y(tick)
            parts.append(
                f'<line class="rule" x1="{self.left:g}" x2="{self.right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="soft" x="{self.left - 5:g}" y="{y + 4:.1f}" text-anchor="end">{words}</text>'
            )
        parts.append(
            f'<line class="axis" x1="{self.left:g}" x2="{self.right:g}" y1="{self.bottom:g}" y2="{self.bottom:g}"/>'
        )
        below = 14.0
        if x_names is None:
            for tick in nice_ticks(self.x0, self.x1, max(2, int((self.right - self.left) / 60))):
                parts.append(
                    f'<text class="soft" x="{self.x(tick):.1f}" y="{self.bottom + 14:g}" text-anchor="middle">'
                    f"{number(tick)}</text>"
                )
        else:
            below += _names_height(x_names)
            every = max(1, math.ceil(12 * len(x_names) / max(self.right - self.left, 1)))
            for i in range(0, len(x_names), every):
                place = f"translate({self.x(i) + 4:.1f} {self.bottom + 6:g}) rotate(-90)"
                words = escape(cut(x_names[i], 80))
                parts.append(f'<text class="soft" transform="{place}" text-anchor="end">{words}</text>')
        middle = (self.left + self.right) / 2
        parts.append(
            f'<text class="soft" x="{middle:.1f}" y="{self.bottom + below + 14:g}" text-anchor="middle">'
            f"{escape(x_label)}</text>"
        )
        if y_label:
            words = f"{escape(cut(y_label, self.bottom - self.top + 20))}<title>{escape(y_label)}</title>"
            place = f"translate(10 {(self.top + self.bottom) / 2:.1f}) rotate(-90)"
            parts.append(f'<text class="soft" transform="{place}" text-anchor="middle">{words}</text>')
        return "".join(parts)


def _range(values: np.ndarray, log: bool) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if log:
        finite = finite[finite > 0]
    if finite.size == 0:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = float(finite.min()), float(finite.max())
    if log:
        return low / 1.15, high * 1.15
    pad = 0.05 * (high - low) or 0.5 * abs(high) or 0.5
    return low - pad, high + pad


def _series(box: _Box, s: Series, y: np.ndarray) -> str:
    x, parts = np.asarray(s.x, dtype=np.float64), []
    known = np.isfinite(y)
    title = f"<title>{escape(s.name)}</title>" if s.name else ""
    if s.std is not None and not s.line:
        for a, low, high in zip(x[known], *(edge[known] for edge in s.band()), strict=True):
            ends = f'y1="{box.y(low):.1f}" y2="{box.y(high):.1f}"'
            at = f"{box.x(a):.1f}"
            parts.append(f'<line class="line k{s.colour % N_COLOURS}" x1="{at}" x2="{at}" {ends} opacity=".5"/>')
    elif s.std is not None and known.any():
        down, up = (
            [f"{box.x(a):.1f},{box.y(b):.1f}" for a, b in zip(x[known], edge[known], strict=True)] for edge in s.band()
        )
        parts.append(f'<polygon class="band k{s.colour % N_COLOURS}" points="{" ".join(up + down[::-1])}"/>')
    if s.line:
        run: list[str] = []
        for a, b, good in zip(x, y, known, strict=True):
            if good:
                run.append(f"{'L' if run and run[-1] != 'gap' else 'M'}{box.x(a):.1f} {box.y(b):.1f}")
            elif run and run[-1] != "gap":
                run.append("gap")
        path = "".join(part for part in run if part != "gap")
        dash = " dash" if s.dashed else ""
        parts.append(f'<path class="line{dash} k{s.colour % N_COLOURS}" d="{path}">{title}</path>')
    if s.dots or s.rings:
        kind = "ring" if s.rings else "dot"
        for i in np.flatnonzero(known).tolist():
            words = s.titles[i] if i < len(s.titles) else f"{number(x[i])}: {number(y[i])}"
            parts.append(
                f'<circle class="{kind} k{s.colour % N_COLOURS}" cx="{box.x(x[i]):.1f}" cy="{box.y(y[i]):.1f}" '
                f'r="2.6"><title>{escape(words)}</title></circle>'
            )
    return "".join(parts)


def _span(box: _Box, start: float, end: float, colour: int, name: str) -> str:
    left, right = box.x(start), box.x(end)
    return (
        f'<rect class="span k{colour % N_COLOURS}" x="{left:.1f}" y="{box.top:g}" width="{max(right - left, 1):.1f}" '
        f'height="{box.bottom - box.top:g}"><title>{escape(name)}</title></rect>'
    )


def titled(width: float, height: float, title: str, body: str, label: str, left: float = 2.0) -> Chart:
    """A chart below its title, which may take several lines; `body` has room for one."""
    lines = wrapped(title, width / BOLD)
    words = "".join(
        f'<text class="bold" x="{left:g}" y="{13 + LINE * i:g}">{escape(line)}<title>{escape(title)}</title></text>'
        for i, line in enumerate(lines)
    )
    down = LINE * (len(lines) - 1)
    moved = f'<g transform="translate(0 {down:g})">{body}</g>' if down else body
    return Chart(width, height + down, words + moved, label)


def _legend_rows(legend: list[tuple[int, str]], width: float) -> list[list[tuple[float, int, str]]]:
    rows: list[list[tuple[float, int, str]]] = []
    at = math.inf
    for colour, name in legend:
        wide = 18 + LETTER * min(len(name), 30) + 10
        if at + wide > width:
            rows.append([])
            at = 0.0
        rows[-1].append((at, colour, name))
        at += wide
    return rows


def _legend(rows: list[list[tuple[float, int, str]]]) -> str:
    parts = []
    for row, entries in enumerate(rows):
        y = TOP + 14 * row - 2
        for left, colour, name in entries:
            parts.append(
                f'<rect class="dot k{colour % N_COLOURS}" x="{LEFT + left:.1f}" y="{y:g}" width="11" height="7" '
                f'rx="1"/><text class="soft" x="{LEFT + left + 15:.1f}" y="{y + 8:g}">'
                f"{escape(cut(name, 190))}</text>"
            )
    return "".join(parts)


def _scale_bar(x: float, y: float, height: float, high: float, signed: bool, low: float = 0.0) -> str:
    """The legend of opacities."""
    n = 10
    parts = []
    for i in range(n):
        share = 1.0 - (i + 0.5) / n
        value = 2.0 * share - 1.0 if signed else share
        parts.append(
            f'<rect class="dot k{0 if value >= 0 else 1}" x="{x:.1f}" y="{y + i * height / n:.1f}" width="10" '
            f'height="{height / n:.1f}" fill-opacity="{abs(value):.2f}"/>'
        )
    ends = ((high, y + 8), (-high if signed else low, y + height))
    parts += [f'<text class="soft" x="{x + 14:.1f}" y="{at:.1f}">{number(value)}</text>' for value, at in ends]
    return "".join(parts)


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1.0,) if last - first > 3 else (1.0, 3.0)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [tick for tick in ticks if low <= tick <= high] or [low, high]


def _names_height(names: Sequence[str]) -> float:
    return min(LETTER * max((len(name) for name in names), default=0), 80.0) + 2


def cut(text: str, width: float) -> str:
    """The text, truncated to `width` pixels."""
    most = max(3, int(width / LETTER))
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def wrapped(text: str, width: float) -> list[str]:
    """The text in at most MAX_LINES lines of `width` pixels, broken at spaces; the rest is truncated."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) * LETTER <= width or not lines[-1] or len(lines) == MAX_LINES:
            lines[-1] = longer
        else:
            lines.append(word)
    return [cut(line, width) for line in lines]
