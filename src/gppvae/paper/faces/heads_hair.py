"""Hair: a shell of strands over the skull that ends at a hair line and hangs down where it is long."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from .heads_face import smooth
from .heads_person import Person
from .heads_render import FloatArray, Surface, sheet
from .heads_shape import Skull, around, filled, ticks

_PATTERN = (24, 512)  # rows and columns of the random strand pattern


def cover(p: Person) -> float:
    """How far the hair hides the ears, 0 to 1."""
    return float(smooth(np.array(p.hair_length), 0.2, 0.4))


def hair_end(p: Person, angle: FloatArray) -> FloatArray:
    """Height at which the hair of each direction ends: 0 is the front, pi the back."""
    turn = np.abs(angle)
    hairline = 0.66 + p.hairline + 0.04 * np.cos(4 * angle) - 0.10 * smooth(turn, 0.5, 1.1)
    lean = angle * np.sign(p.parting) * abs(p.parting) ** 0.5
    sweep = 1 - abs(p.parting) * (0.5 + 0.5 * np.tanh(3 * (lean - 0.25)))
    front = hairline - p.fringe * 0.36 * sweep * smooth(turn, 1.15, 0.75)
    at = [1.0, 1.25, 1.42, 1.55, 1.75, 1.95, 2.3, np.pi]
    short = np.interp(turn, at, [0.5, 0.2, -0.12, -0.1, 0.14, -0.1, -0.5, -0.6])
    long = -0.30 - 1.25 * np.clip((p.hair_length - 0.25) / 0.75, 0, 1) + 0.15 * (1 - smooth(turn, 1.1, 2.4))
    side = short + cover(p) * (long - short)
    opening = 1.10 - 0.10 * cover(p) * min(p.hair_volume, 1.2)
    return front + smooth(turn, opening - 0.22, opening + 0.2) * (side - front)


def hair_surfaces(skull: Skull, detail: float) -> list[Surface]:
    """The shell of hair, and the knot at the back if the person wears one."""
    p = skull.person
    angle = _columns(detail)[None, :]
    steps = ticks(0.004, 1, 230 + round(90 * cover(p)), detail)[:, None]
    fine, locks, blobs = _strands(p, steps[:, 0], angle[0])
    end = hair_end(p, angle) + 0.012 * fine + (0.015 + 0.03 * p.curl) * locks
    hang = 0.05 - 0.6 * (1 - cover(p))  # where it stops following the skull
    y, ring = _path(skull, end, steps, hang)
    fall = np.clip(hang - y, 0, None)
    waves = 0.08 * locks + (0.04 + 0.4 * p.curl) * blobs
    extra = _thickness(p, angle, y, end, waves)
    aside = angle + np.sign(angle) * _tuck(p, angle, y)
    x, z = around(ring, aside, extra)
    inwards = (0.16 - 0.10 * p.hair_volume) * np.minimum(fall, 1.1) + 0.10 * smooth(y - end, 0.2, 0.0) * (fall > 0)
    x = x * (1 - inwards)
    z = z - (z + 0.15) * (inwards + 0.12 * fall) * (z < -0.15)
    tone = np.clip(1 + 0.10 * fine + 0.06 * locks + (0.03 + 0.12 * p.curl) * blobs, 0.4, 1.6)
    high = skull.lift(y) + 0.5 * extra * smooth(y, 0.5, 1.1)
    colour = filled(p.hair, x.shape) * tone
    shell = sheet((x, high, z), colour, 0.35, hair=True, two_sided=(fall > 0) | (y - end < 0.1))
    return [shell, *_knot(skull, detail)]


def _columns(detail: float) -> FloatArray:
    """Angles of the strands, denser beside the face, where the tuck spreads them."""
    turn = np.linspace(-np.pi, np.pi, 721)
    density = 1 + 1.6 * np.exp(-(((np.abs(turn) - 1.1) / 0.3) ** 2))
    share = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return np.interp(ticks(0, 1, 580, detail), share / share[-1], turn).astype(np.float32)


def _path(skull: Skull, end: FloatArray, steps: FloatArray, hang: float) -> tuple[FloatArray, FloatArray]:
    """Heights (rows, columns) and rings (4, rows, columns) of strands, in even steps from crown to end."""
    arc, heights = skull.outline
    free = np.interp(-hang, -heights, arc)  # from here on the strand hangs straight down
    total = np.where(end >= hang, np.interp(-end, -heights, arc), free + hang - end)
    path = steps * total.astype(np.float32)
    on_skull = np.minimum(path, np.float32(free))
    y = heights[np.rint(on_skull * ((len(arc) - 1) / arc[-1])).astype(np.int32)] - (path - on_skull)
    return y, skull.ring_at(on_skull)


def _tuck(p: Person, angle: FloatArray, y: FloatArray) -> FloatArray:
    """Turn of the strands beside the face: combed back at the cheeks, coming forward again lower down."""
    beside = smooth(np.abs(angle), 0.8, 1.1) * smooth(np.abs(angle), 2.2, 1.2) * cover(p)
    cheek = smooth(y, 0.65, 0.1) * (1 - 0.7 * smooth(y, -0.3, -1.1))
    return 0.42 * (1 - 0.6 * min(p.hair_volume, 1.2)) * beside * cheek


def _thickness(p: Person, angle: FloatArray, y: FloatArray, end: FloatArray, waves: FloatArray) -> FloatArray:
    """Distance of the hair from the skull; it closes down to the skin along the edge of short hair."""
    covered = cover(p)
    thick = 0.045 + 0.085 * p.hair_volume * (0.55 + 0.45 * covered)
    edge = np.clip((y - end) / 0.3, 0, 1) ** 0.6
    frontal = smooth(np.abs(angle), 1.5, 0.9)
    closed = edge + (1 - edge) * (0.12 * frontal * p.fringe + 0.8 * covered * (1 - frontal))
    return ((thick * (1 + waves) - 0.02) * closed + 0.012).astype(np.float32)


def _knot(skull: Skull, detail: float) -> list[Surface]:
    """An oval knot behind the crown."""
    p = skull.person
    if p.bun <= 0:
        return []
    rows = ticks(0.01, np.pi - 0.01, 90, detail)[:, None]
    angle = ticks(-np.pi, np.pi, 160, detail)[None, :]
    radius = 0.08 + 0.18 * min(p.bun, 1.1)
    coil = np.sin(9 * angle + 5 * rows)
    x = radius * np.sin(rows) * np.sin(angle) * (1 + 0.04 * coil)
    y = 0.45 + 0.95 * radius * np.cos(rows) + 0 * angle
    z = -0.92 * p.head_depth - 0.5 * radius + radius * np.sin(rows) * np.cos(angle) * (1 + 0.04 * coil)
    colour = filled(p.hair, x.shape) * (0.9 + 0.12 * coil)
    return [sheet((x, skull.lift(y), z), colour, 0.3, hair=True)]


def _strands(p: Person, steps: FloatArray, angle: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Random pattern of the hair, about unit size: strands and locks (1, columns), waves (rows, columns).

    It is drawn on a fixed grid and looked up, so the same person has the same hair at every picture size.
    """
    rng = np.random.default_rng(p.texture)
    rows, columns = _PATTERN
    raw = rng.standard_normal((2, columns))
    where = (angle + np.pi) / (2 * np.pi) * columns
    ring = np.arange(columns + 1)  # the first column once more, to close the circle
    fine, locks = (
        np.interp(where, ring, np.append(row, row[0]))[None, :].astype(np.float32)
        for row in (
            1.5 * ndimage.gaussian_filter1d(raw[0], 0.7, mode="wrap"),
            3.4 * ndimage.gaussian_filter1d(raw[1], 4, mode="wrap"),
        )
    )
    coarse = rng.standard_normal((rows, columns // 12)).astype(np.float32)
    return fine, locks, _spread(coarse, steps * (rows - 1), where / columns * coarse.shape[1])


def _spread(coarse: FloatArray, at_row: FloatArray, at_column: FloatArray) -> FloatArray:
    """Smooth interpolation of a coarse pattern on a grid; the columns form a circle."""

    def weights(at: FloatArray, count: int, closed: bool) -> FloatArray:
        gap = np.abs(at[:, None] - np.arange(count)[None, :])
        gap = np.minimum(gap, count - gap) if closed else gap
        return (1 - smooth(gap, 0.0, 1.0)).astype(np.float32)

    rows, columns = coarse.shape
    return weights(at_row, rows, False) @ coarse @ weights(at_column, columns, True).T
