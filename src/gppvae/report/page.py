"""A self-contained HTML report: text, tables, figures and turntables.

The page includes its style, script and pictures (PNG data URIs), and a content security policy that forbids all
requests. So it can be mailed, archived or opened offline.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gppvae.data.atomic import write_bytes
from gppvae.data.png import png_uri
from gppvae.report.images import check_images, to_uint8
from gppvae.report.svg import CHART_CSS, DARK, LIGHT, Plot

MAX_SIDE = 32000  # pixels; browsers do not decode much larger pictures
DASH = "\u2013"
_NUMBER = re.compile(r"[-+\u2212]?[\d.,]+(e[-+]?\d+)?( ?%|\s*(\u00b1|\+/?-)\s*[\d.,]+(e[-+]?\d+)?)?", re.I)


@dataclass(frozen=True)
class Panel:
    """Frames of a turntable with a separate value range or colour map, e.g. a standard deviation."""

    frames: ArrayLike
    vmin: float | None = None
    vmax: float | None = None
    colormap: str | None = None


class Page:
    """Builds a report section by section; `write` saves it as one HTML file. All text is escaped."""

    def __init__(self, title: str, subtitle: str | None = None) -> None:
        self.title = title
        self.subtitle = subtitle
        self._sections: list[tuple[str, list[str]]] = []

    def section(self, heading: str, text: str | None = None) -> None:
        """Start a section, listed in the contents; a blank line in `text` starts a new paragraph."""
        self._sections.append((heading, []))
        self.text(text or "")

    def text(self, text: str) -> None:
        """Add paragraphs; a blank line starts a new one."""
        paragraphs = re.split(r"\n\s*\n", text.strip())
        self._add(*(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs if paragraph))

    def parts(self) -> dict[str, str]:
        """HTML of each section by heading, without the heading."""
        return {heading: "\n".join(parts) for heading, parts in self._sections}

    def carry(self, heading: str, html: str) -> None:
        """Add a section with the HTML from `parts` of another page."""
        self._sections.append((heading, [html]))

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        caption: str,
        highlight_row: int | None = None,
    ) -> None:
        """Add a table; columns of numbers are right-aligned and `highlight_row` is emphasised.

        Floats are shown with four significant digits, None and NaN as a dash; pass text to format otherwise.
        """
        for i, row in enumerate(rows):
            _check_count(row, len(columns), f"row {i}")
        if highlight_row is not None and not 0 <= highlight_row < len(rows):
            raise ValueError(f"highlight_row must be in [0, {len(rows)}), got {highlight_row}")
        cells = [[_cell(value) for value in row] for row in rows]
        numeric = [[text == DASH or bool(_NUMBER.fullmatch(text)) for text in row] for row in cells]
        kind = [' class="num"' if all(row[j] for row in numeric) else "" for j in range(len(columns))]
        head = "".join(f'<th scope="col"{k}>{escape(c)}</th>' for c, k in zip(columns, kind, strict=True))
        body = ""
        for i, texts in enumerate(cells):
            inner = "".join(f"<td{k}>{escape(text)}</td>" for text, k in zip(texts, kind, strict=True))
            body += f'<tr class="ours">{inner}</tr>' if i == highlight_row else f"<tr>{inner}</tr>"
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        region = f'class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"'
        self._figure(f"<div {region}>{table}</div>", caption)

    def plot(self, plot: Plot) -> None:
        """Add charts with their caption."""
        self._figure(plot.html(), plot.caption)

    def download(self, name: str, csv: str, what: str) -> None:
        """Add a download link for a CSV file that is embedded in the page."""
        uri = "data:text/csv;base64," + base64.b64encode(csv.encode("utf-8")).decode("ascii")
        self._add(f'<p class="save"><a download="{escape(name)}" href="{uri}">{escape(name)}</a> {escape(what)}</p>')

    def turntable(
        self,
        panels: Mapping[str, ArrayLike | Panel],
        labels: Sequence[str],
        caption: str,
        object_names: Sequence[str],
        held_out: ArrayLike | None = None,
        ms: int = 220,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        """Add objects that turn by a slider, a play button, arrow keys or dragging.

        Args:
            panels: name -> (n_objects, n_views, h, w) or (..., h, w, 3), shown side by side; frames of NaN are
                labelled "not measured".
            labels: one per view, e.g. "157.5 deg".  held_out: bool (n_views,) or (n_objects, n_views).
            object_names: one per object.  ms: milliseconds per view while playing.
            start: object and view shown first.
        """
        drawn = {name: _draw(f"panel {name!r}", panel) for name, panel in panels.items()}
        sizes = {name: pixels.shape[:4] for name, (pixels, _) in drawn.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"panels must agree in (objects, views, h, w), got {sizes or 'no panel'}")
        n_objects, n_views, height, width = next(iter(sizes.values()))
        _check_count(labels, n_views, "labels")
        _check_count(object_names, n_objects, "object_names")
        held = np.zeros(n_views, bool) if held_out is None else np.asarray(held_out, dtype=bool)
        if held.shape not in {(n_views,), (n_objects, n_views)}:
            raise ValueError(f"held_out must be ({n_views},) or ({n_objects}, {n_views}), got {held.shape}")
        gaps = np.stack([gap for _, gap in drawn.values()], axis=1).reshape(-1, n_views)  # (objects * panels, views)
        names = {"panels": list(panels), "labels": list(labels), "objects": list(object_names)}
        marks = {"held": _bits(np.broadcast_to(held, (n_objects, n_views))), "gaps": _bits(gaps)}
        if not (0 <= start[0] < n_objects and 0 <= start[1] < n_views):
            raise ValueError(f"start must be an object and a view of {n_objects} x {n_views}, got {start}")
        data = {"w": width, "h": height, "ms": ms, "start": list(start), **names, **marks}
        inner = _turntable_html(data, png_uri(pack_sprite([pixels for pixels, _ in drawn.values()]), optimize=True))
        self._figure(inner, caption, f' class="turntable" data-turntable="{escape(json.dumps(data))}"')

    def facts(self, facts: Mapping[str, object]) -> None:
        """Add a compact list of facts about the run, such as seed, versions, commit and wall time."""
        pairs = ((escape(str(key)), escape(_cell(value))) for key, value in facts.items())
        items = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in pairs)
        self._add(f'<dl class="facts">{items}</dl>')

    def html(self) -> str:
        """The whole page as text."""
        named = [(i, heading) for i, (heading, _) in enumerate(self._sections, 1) if heading]
        links = "".join(f'<a href="#s{i}">{escape(heading)}</a>' for i, heading in named)
        contents = f'<nav aria-label="Contents">{links}</nav>' if len(named) > 1 else ""
        body = []
        for i, (heading, parts) in enumerate(self._sections, 1):
            body += [f'<h2 id="s{i}">{escape(heading)}</h2>'] * bool(heading) + parts
        subtitle = f"<p>{escape(self.subtitle)}</p>" if self.subtitle else ""
        return (
            f"{_HEAD}<title>{escape(self.title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
            f"<header><h1>{escape(self.title)}</h1>{subtitle}</header>\n{contents}\n<main>\n"
            + "\n".join(body)
            + f"\n</main>\n<script>{_JS}</script>\n</body>\n</html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page atomically and return its path."""
        return write_bytes(path, self.html().encode("utf-8"))

    def _add(self, *parts: str) -> None:
        if not self._sections and parts:
            self._sections.append(("", []))  # content before the first heading
        if parts:
            self._sections[-1][1].extend(parts)

    def _figure(self, inner: str, caption: str, attributes: str = "") -> None:
        self._add(f"<figure{attributes}>{inner}<figcaption>{escape(caption)}</figcaption></figure>")


def pack_sprite(panels: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Pack panels (n_objects, n_views, h, w[, 3]) into one picture, in colour if any panel is.

    Columns are views; object o of panel p is in row o * n_panels + p.
    """
    if any(panel.ndim == 5 for panel in panels):
        panels = [panel if panel.ndim == 5 else np.repeat(panel[..., None], 3, axis=-1) for panel in panels]
    stack = np.stack(list(panels), axis=1)  # (n_objects, n_panels, n_views, h, w[, 3])
    n_objects, n_panels, n_views, height, width = stack.shape[:5]
    tall, wide = n_objects * n_panels * height, n_views * width
    if max(tall, wide) > MAX_SIDE:
        raise ValueError(f"a sprite of {wide} x {tall} pixels exceeds {MAX_SIDE}; show fewer objects")
    # (n_objects, n_panels, h, n_views, w[, 3]) -> (n_objects * n_panels * h, n_views * w[, 3])
    return stack.swapaxes(2, 3).reshape(tall, wide, *stack.shape[5:])


def _draw(name: str, panel: ArrayLike | Panel) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Pixels of a panel, (n_objects, n_views, h, w[, 3]), and the mask of missing frames, (n_objects, n_views)."""
    panel = panel if isinstance(panel, Panel) else Panel(panel)
    frames = check_images(panel.frames, 2, name)
    pixels = to_uint8(frames, panel.vmin, panel.vmax)
    if panel.colormap is not None:
        if frames.ndim == 5:
            raise ValueError(f"{name} must be grey to take a colour map, got shape {frames.shape}")
        pixels = matplotlib.colormaps[panel.colormap](pixels, bytes=True)[..., :3]
    return pixels, np.isnan(frames).all(axis=tuple(range(2, frames.ndim)))


def _turntable_html(data: Mapping[str, Any], sprite: str) -> str:
    canvas, n_views = f'<canvas width="{data["w"]}" height="{data["h"]}"', len(data["labels"])
    frame = f'<div class="panel"><div class="frame">{canvas} role="img"></canvas></div>'
    stage = "".join(f"{frame}<span>{escape(name)}</span></div>" for name in data["panels"])
    button = f'<button type="button" title="%s" aria-label="%s">{canvas}></canvas></button>'
    thumbs = "".join(button.replace("%s", escape(name)) for name in data["objects"])
    ticks = "".join(f'<i style="--at:{i / max(1, n_views - 1):.4f}"></i>' for i in range(n_views))
    key = '<b class="mark"></b> held out from training. ' if any("1" in row for row in data["held"]) else ""
    return (
        f'<div style="{_scaling(data["h"], data["w"])}"><div class="stage">{stage}</div>'
        '<div class="controls"><button type="button" class="play">Play</button><div class="dial">'
        f'<input type="range" min="0" max="{n_views - 1}" value="0" aria-label="View">'
        f'<div class="ticks" aria-hidden="true">{ticks}</div></div><output aria-live="off"></output></div>'
        f'<div class="thumbs" role="group" aria-label="Object">{thumbs}</div><p class="hint">{key}'
        "Drag a picture or press \u2190 \u2192 to turn, \u2191 \u2193 to change the object.</p>"
        f'<img class="sprite" src="{sprite}" alt="All frames, one column per view" hidden></div>'
    )


def _scaling(height: int, width: int) -> str:
    # Small images are scaled up without interpolation, photographs with it.
    return f"--scaling:{'pixelated' if max(height, width) < 96 else 'auto'}"


def _bits(rows: NDArray[np.bool_]) -> list[str]:
    return ["".join("1" if bit else "0" for bit in row) for row in rows]


def _check_count(items: Sequence[object], count: int, name: str) -> None:
    if len(items) != count:
        raise ValueError(f"{name} must have {count} entries, got {len(items)}")


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN
        return DASH
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    is_float = isinstance(value, Real) and not isinstance(value, Integral)
    return f"{value:.4g}" if is_float else str(value)


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:;
style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<noscript><style>.sprite[hidden]{display:block}
.stage,.controls,.thumbs,.hint{display:none!important}</style></noscript>
"""
_CSS = (
    """
:root{color-scheme:light dark;--ink:#1b232e;--soft:#5a6573;--line:#dfe4ea;--paper:#fff;--card:#f5f7f9;
--accent:#0072b2;--mark:#c95400;--ours:#e8f2f9;LIGHT}
@media (prefers-color-scheme:dark){:root{--ink:#e5e9ef;--soft:#9ca8b6;--line:#2d3642;--paper:#11151b;
--card:#191f28;--accent:#56b4e9;--mark:#f0a030;--ours:#16293a;DARK}}
*{box-sizing:border-box} .sprite{max-width:100%} html{scroll-padding-top:3.5rem}
body{margin:0 auto;max-width:1000px;padding:2.5rem 1.25rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header{border-left:4px solid var(--accent);padding-left:1rem;margin-bottom:1.25rem}
header p{margin:.35rem 0 0;color:var(--soft);font-size:1.05rem}
h1{font-size:clamp(1.5rem,4.5vw,2.1rem);line-height:1.2;letter-spacing:-.015em;margin:0}
h2{font-size:1.3rem;line-height:1.3;margin:2.6rem 0 .5rem} p{max-width:46rem;margin:.5rem 0 1rem}
nav{position:sticky;top:0;z-index:5;display:flex;flex-wrap:wrap;gap:.1rem 1.25rem;padding:.6rem 0;font-size:.86rem;
background:var(--paper);border-bottom:1px solid var(--line);white-space:nowrap}
nav a{color:var(--soft);text-decoration:none} nav a:hover{color:var(--accent);text-decoration:underline}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:4px}
figure{margin:1.25rem 0 2rem} figcaption{color:var(--soft);font-size:.88rem;line-height:1.5;margin-top:.6rem;
max-width:46rem} .plot{display:block;max-width:100%;height:auto;background:#fff;border-radius:8px}
.scroll{overflow-x:auto} table{border-collapse:collapse;font-size:.94rem;font-variant-numeric:tabular-nums}
table{width:100%;border:solid var(--ink);border-width:2px 0}
th,td{padding:.45rem .8rem;text-align:left;vertical-align:baseline}
thead th{font-weight:600;border-bottom:1px solid var(--soft)} tbody tr+tr>*{border-top:1px solid var(--line)}
.num{text-align:right;white-space:nowrap} .ours{background:var(--ours);font-weight:650}
.ours td:first-child{box-shadow:inset 3px 0 var(--accent)}
.gap{background:repeating-linear-gradient(45deg,var(--line) 0 2px,transparent 2px 9px)}
.turntable>div{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:1.25rem}
.stage{display:flex;justify-content:center;gap:clamp(.5rem,2.5vw,1.5rem)}
.panel{flex:0 1 260px;min-width:0;text-align:center;font-size:.85rem;line-height:1.35;color:var(--soft)}
.frame{position:relative;overflow:hidden;border-radius:8px;border:1px solid var(--line);margin-bottom:.4rem;
cursor:grab;touch-action:pan-y;user-select:none} .out .frame{outline:3px solid var(--mark);outline-offset:1px}
canvas{display:block;width:100%;height:auto;image-rendering:var(--scaling)} .gap canvas{opacity:0}
.gap::after{content:"not measured";position:absolute;inset:0;display:grid;place-content:center}
.controls{display:flex;align-items:center;gap:.5rem 1rem;max-width:800px;margin:1.1rem auto 0}
button{font:inherit;color:inherit;cursor:pointer;background:var(--paper);border:1px solid var(--line);
border-radius:8px} button:hover{border-color:var(--accent)}
.play{display:flex;align-items:center;justify-content:center;gap:.5rem;width:6rem;padding:.4rem 0}
.play::before{content:"";width:10px;height:12px;background:var(--accent);
clip-path:polygon(0 0,100% 50%,0 100%)} .playing::before{
clip-path:polygon(0 0,35% 0,35% 100%,65% 100%,65% 0,100% 0,100% 100%,0 100%)} .dial{flex:1;min-width:0}
.dial input{display:block;width:100%;margin:0;height:24px;accent-color:var(--accent)}
.ticks{position:relative;height:10px;margin:0 8px} .ticks i{position:absolute;left:calc(100%*var(--at));
width:2px;height:6px;margin-left:-1px;background:var(--soft);opacity:.55}
.ticks .held,.mark{background:var(--mark);width:9px;height:9px;margin-left:-4.5px;border-radius:50%;opacity:1}
.mark{display:inline-block;margin:0 .2rem 0 0} .out output{color:var(--mark)}
output{width:11.5rem;font-variant-numeric:tabular-nums;font-weight:600;white-space:nowrap}
.thumbs,.hint{max-width:800px;margin:.8rem auto 0} .thumbs{display:flex;gap:6px;overflow-x:auto;padding:4px}
.thumbs button{flex:0 0 46px;padding:2px;overflow:hidden;border-width:2px}
.thumbs [aria-pressed=true]{border-color:var(--accent)} .hint{color:var(--soft);font-size:.8rem}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(190px,1fr));gap:.9rem 1.5rem}
.facts div{border-top:1px solid var(--line);padding-top:.5rem} dt{color:var(--soft);font-size:.8rem}
dd{margin:0;overflow-wrap:anywhere}
@media (max-width:560px){body{padding-top:1.5rem} nav{position:static} html{scroll-padding-top:1rem}
.facts{grid-template-columns:repeat(2,minmax(0,1fr))} .turntable>div{padding:.8rem} .controls{flex-wrap:wrap}
.dial{order:3;flex-basis:100%} th,td{padding:.4rem .5rem}}
@media print{nav,.play,.dial,.thumbs,.hint{display:none} body{max-width:none;padding:0;font-size:10.5pt}
figure,tr{break-inside:avoid} h2{break-after:avoid} .scroll{overflow:visible}
.controls{justify-content:center} output{text-align:center} *{print-color-adjust:exact}}
.charts{display:flex;flex-wrap:wrap;gap:1.1rem 1.6rem;align-items:flex-start} .save{margin:.2rem 0;font-size:.88rem;
color:var(--soft)} .save a{color:var(--accent)}
""".replace("LIGHT", LIGHT).replace("DARK", DARK)
    + CHART_CSS
)
_JS = """
"use strict";
for (const box of document.querySelectorAll(".turntable")) {
  const data = JSON.parse(box.dataset.turntable), all = s => [...box.querySelectorAll(s)];
  const [sprite, range, play, label] = [".sprite", "input", ".play", "output"].map(s => box.querySelector(s));
  const frames = all(".frame"), ticks = all(".ticks i"), thumbs = all(".thumbs button"), rows = frames.length;
  const wrap = (i, n) => (i % n + n) % n, {w, h} = data;
  let object = data.start[0], timer = 0;
  range.value = data.start[1];
  const draw = (c, row, view) => c.getContext("2d").drawImage(sprite, view * w, row * h, w, h, 0, 0, w, h);
  const show = () => {
    const view = +range.value, held = data.held[object];
    const text = data.labels[view] + (held[view] > 0 ? ", held out" : "");
    label.textContent = text;
    range.setAttribute("aria-valuetext", text);
    box.classList.toggle("out", held[view] > 0);
    ticks.forEach((tick, i) => tick.classList.toggle("held", held[i] > 0));
    thumbs.forEach((thumb, i) => thumb.setAttribute("aria-pressed", i === object));
    frames.forEach((frame, panel) => {
      const row = object * rows + panel, gap = data.gaps[row][view] > 0, canvas = frame.firstChild;
      draw(canvas, row, view);
      frame.classList.toggle("gap", gap);
      const words = [data.panels[panel], data.objects[object], text].concat(gap ? "not measured" : []);
      canvas.setAttribute("aria-label", words.join(", "));
    });
  };
  const turn = view => { range.value = wrap(view, ticks.length); show(); };
  const choose = i => { object = wrap(i, thumbs.length); show(); };
  const run = on => {
    clearInterval(timer);
    timer = on ? setInterval(() => turn(+range.value + 1), data.ms) : 0;
    play.classList.toggle("playing", on);
    play.textContent = on ? "Pause" : "Play";
  };
  const keys = {ArrowLeft: () => turn(range.value - 1), ArrowRight: () => turn(+range.value + 1),
    ArrowUp: () => choose(object - 1), ArrowDown: () => choose(object + 1)};
  const drag = event => {
    const frame = event.currentTarget, from = +range.value, step = frame.clientWidth / ticks.length;
    event.preventDefault();
    run(false);
    range.focus({preventScroll: true});
    frame.setPointerCapture(event.pointerId);
    frame.onpointermove = move => turn(from + Math.round((move.clientX - event.clientX) / step));
    frame.onpointerup = frame.onpointercancel = () => { frame.onpointermove = null; };
  };
  sprite.decode().then(() => {
    thumbs.forEach((thumb, i) => {
      draw(thumb.firstChild, i * rows, Math.max(0, data.gaps[i * rows].indexOf("0")));
      thumb.onclick = () => choose(i);
    });
    frames.forEach(frame => { frame.onpointerdown = drag; });
    range.oninput = () => { run(false); show(); };
    play.onclick = () => run(!timer);
    box.onkeydown = event => {
      if (!(event.key in keys) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      run(false);
      keys[event.key]();
    };
    show();
  });
}
"""
