"""Renderer of point-sampled surfaces: z-buffered splatting, then shading of the visible points only.

The meshes are sampled more densely than the pixel grid, so a surface is drawn by marking, for each pixel, the
nearest point that falls into it; no triangle is ever set up. A view costs O(points + pixels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

FloatArray = NDArray[np.floating[Any]]

LIGHT = (-0.38, 0.52, 0.77)
"""Direction of the key light in camera axes (right, up, towards the camera): above, a little to the left."""
BACKGROUND = (0.955, 0.955, 0.96)

_SUPERSAMPLING = 2
_TOP, _BOTTOM = 1.50, -1.70  # head units shown
_INDEX_BITS = 32  # a z-buffer entry is depth above, point number below


@dataclass(frozen=True)
class Surface:
    """Points of the surfaces of one head; one column per point, V columns.

    Attributes:
        points: positions, (3, V), axes right, up, front.  normals: outward unit vectors, (3, V).
        strands: unit direction of hair fibres, (3, V), zero for everything that is not hair.
        colours: linear RGB, (3, V).  gloss: strength of the mirror reflection, (V,).
        hair: whether the point is hair, (V,).  two_sided: whether it is seen from its back as well, (V,).
    """

    points: FloatArray
    normals: FloatArray
    strands: FloatArray
    colours: FloatArray
    gloss: FloatArray
    hair: NDArray[np.bool_]
    two_sided: NDArray[np.bool_]


def join(surfaces: Sequence[Surface]) -> Surface:
    """One surface holding the points of all the given ones."""
    names = ("points", "normals", "strands", "colours", "gloss", "hair", "two_sided")
    return Surface(**{name: np.concatenate([getattr(s, name) for s in surfaces], axis=-1) for name in names})


def sheet(
    xyz: tuple[FloatArray, FloatArray, FloatArray],
    colours: FloatArray,
    gloss: FloatArray | float,
    keep: NDArray[np.bool_] | None = None,
    hair: bool = False,
    two_sided: NDArray[np.bool_] | bool = False,
) -> Surface:
    """Surface from a regular grid of points; seen from outside, rows run down and columns to the right.

    Args:
        xyz: coordinates, each (rows, columns).  colours: sRGB in [0, 1], (3, rows, columns).
        gloss, two_sided: one value or (rows, columns).  keep: points to use, (rows, columns); None for all.
        hair: shade with fibres along the columns.
    """
    shape = xyz[1].shape
    points = np.stack(xyz).astype(np.float32)
    down, along = (np.asarray(np.gradient(points, axis=axis)) for axis in (1, 2))
    chosen = np.arange(points[0].size) if keep is None else np.flatnonzero(keep)

    def take(grid: FloatArray) -> FloatArray:
        return np.take(grid.reshape(3, -1), chosen, axis=1)

    normals = _unit(_cross(take(down), take(along)))
    return Surface(
        take(points),
        normals,
        _unit(take(down)) if hair else np.zeros_like(normals),
        linear(take(colours)),
        np.broadcast_to(np.asarray(gloss, np.float32), shape).reshape(-1)[chosen],
        np.full(len(chosen), hair),
        np.broadcast_to(np.asarray(two_sided, bool), shape).reshape(-1)[chosen],
    )


def linear(colour: FloatArray) -> FloatArray:
    """Linear light of an sRGB colour (power 2.2)."""
    return np.maximum(colour, 0).astype(np.float32) ** np.float32(2.2)


def render(surface: Surface, angle: float, size: int, light: tuple[float, float, float] = LIGHT) -> NDArray[np.uint8]:
    """Picture of a surface turned about the vertical axis, (size, size, 3).

    Args:
        surface: what to draw.  angle: degrees; positive turns the face to the left of the picture.
        size: pixels per side.  light: direction to the key light in camera axes.
    """
    fine = size * _SUPERSAMPLING
    c, s = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    turn = np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]], np.float32)
    seen, depth = _visible(surface, turn, fine)
    inside = np.flatnonzero(seen >= 0)
    shade = _shade(surface, seen[inside], turn, np.array(light, np.float32))
    shade *= _cavities(depth, fine)[inside]
    canvas = np.empty((3, fine * fine), np.float32)
    canvas[:] = linear(np.array(BACKGROUND, np.float32))[:, None]
    canvas[:, inside] = shade
    pooled = _pool(canvas.reshape(3, fine, fine)).transpose(1, 2, 0)
    return np.rint(255 * np.clip(pooled, 0, 1) ** np.float32(1 / 2.2)).astype(np.uint8)


def _pool(fine: FloatArray) -> FloatArray:
    """Means of 2 x 2 pixels of (3, height, width)."""
    rows = fine[:, 0::2] + fine[:, 1::2]
    return (rows[:, :, 0::2] + rows[:, :, 1::2]) / _SUPERSAMPLING**2


def _visible(surface: Surface, turn: FloatArray, fine: int) -> tuple[NDArray[np.int64], FloatArray]:
    """Number of the nearest point of each pixel (-1: none) and its depth (-1.5: none), (fine**2,) each."""
    scale = np.float32(fine / (_TOP - _BOTTOM))
    facing = surface.two_sided | (turn[2] @ surface.normals > -0.05)
    number = np.flatnonzero(facing)
    x, y, z = turn @ np.take(surface.points, number, axis=1)
    # The half pixel makes the 2 x 2 pixels of `_thicken` the ones nearest to the point.
    column = np.floor(x * scale + np.float32(fine / 2 - 0.5)).astype(np.int32)
    row = np.floor((np.float32(_TOP) - y) * scale - np.float32(0.5)).astype(np.int32)
    kept = np.flatnonzero((column >= 0) & (column < fine) & (row >= 0) & (row < fine))
    level = ((z[kept] + 8) * 65536).astype(np.int64)
    buffer = np.full(fine * fine, -1, np.int64)
    np.maximum.at(buffer, row[kept] * fine + column[kept], (level << _INDEX_BITS) | number[kept])
    buffer = _thicken(buffer.reshape(fine, fine)).reshape(-1)
    empty = buffer < 0
    depth = ((buffer >> _INDEX_BITS) / 65536 - 8).astype(np.float32)
    depth[empty] = -1.5
    return np.where(empty, -1, buffer & ((1 << _INDEX_BITS) - 1)), depth


def _thicken(buffer: NDArray[np.int64]) -> NDArray[np.int64]:
    """Let every point cover 2 x 2 fine pixels, which closes gaps between points on stretched surfaces."""
    wide = buffer.copy()
    np.maximum(wide[:, 1:], buffer[:, :-1], out=wide[:, 1:])
    tall = wide.copy()
    np.maximum(tall[1:], wide[:-1], out=tall[1:])
    return tall


def _cavities(depth: FloatArray, fine: int) -> FloatArray:
    """Darkening of pixels that lie behind their surroundings: under the chin, beside the nose and so on."""
    around = depth.reshape(fine, fine)
    for _ in range(2):  # a single box would leave its straight edges in the picture
        around = ndimage.uniform_filter(around, size=max(3, fine // 24), mode="nearest")
    behind = np.clip(around.reshape(-1) - depth - np.float32(0.01), 0, 0.28)
    return 1 - np.float32(1.9) * behind


def _shade(surface: Surface, seen: NDArray[np.int64], turn: FloatArray, light: FloatArray) -> FloatArray:
    """Linear colour (3, n) of points: sky light, wrapped Lambert key light, mirror and fibre highlights."""
    light = light / np.linalg.norm(light)
    half = light + np.array([0, 0, 1], np.float32)
    half /= np.linalg.norm(half)
    normals = turn @ np.take(surface.normals, seen, axis=1)
    back = surface.two_sided[seen] & (normals[2] < 0)
    normals *= np.where(back, np.float32(-1), np.float32(1))
    lambert = np.clip((light @ normals + 0.15) / 1.15, 0, None)
    sky = 0.30 + 0.10 * normals[1] + 0.10 * normals[2]
    mirror = np.clip(half @ normals, 0, None)
    is_hair = surface.hair[seen]
    fibre = (half @ turn) @ np.take(surface.strands, seen, axis=1)  # brightest where perpendicular to `half`
    gleam = np.where(is_hair, 0.5 * (1 - fibre**2) ** 14 * mirror**2, mirror**24) * surface.gloss[seen]
    colours = np.take(surface.colours, seen, axis=1)
    tint = np.where(is_hair, np.sqrt(colours), np.float32(1))
    return colours * ((sky + 0.72 * lambert) * np.where(back, np.float32(0.45), np.float32(1))) + gleam * tint


def _cross(a: FloatArray, b: FloatArray) -> FloatArray:
    """Cross products of the columns of two (3, V) arrays."""
    return np.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def _unit(vectors: FloatArray) -> FloatArray:
    """Columns of a (3, V) array scaled to length 1."""
    length = np.sqrt((vectors * vectors).sum(axis=0))
    return vectors / np.maximum(length, np.float32(1e-9))
