"""Charts of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import matplotlib
import numpy as np
from numpy.typing import NDArray

from gppvae.data.png import png_uri
from gppvae.report.images import to_uint8
from gppvae.report.svg import LINE, Chart, cut, titled, wrapped

PER_ROW = 5  # largest number of pictures side by side


def picture_chart(
    pictures: Sequence[tuple[str, NDArray[np.uint8]]], title: str, subtitle: str = "", side: float = 72
) -> Chart:
    """Pictures (h, w) or (h, w, 3) side by side, with their names below."""
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
    """Values (h, w) from 0 to `top` in the colour map magma, (h, w, 3)."""
    return matplotlib.colormaps["magma"](to_uint8(values, 0.0, top or 1.0), bytes=True)[..., :3]
