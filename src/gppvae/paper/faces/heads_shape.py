"""Surfaces of skull, ears, neck and clothes of one person.

The skull is a stack of horizontal rings. Ring y has a half-width, reaches forward to `front`, back to `back`,
and is widest at the depth `mid`. The face is a relief on the front of the stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.interpolate import CubicSpline

from .heads_face import Paint, bump, paint_face, relief, scaled, smooth
from .heads_person import Colour, Person
from .heads_render import FloatArray, Surface, sheet

CROWN, CHIN = 1.15, -1.10

# Height, then half-width, front, mid and back of the average head.
_RINGS = np.array(
    [
        [-1.10, 0.28, 0.72, 0.42, 0.26],
        [-0.95, 0.36, 0.77, 0.33, 0.10],
        [-0.80, 0.47, 0.785, 0.20, -0.12],
        [-0.60, 0.58, 0.79, 0.06, -0.42],
        [-0.35, 0.66, 0.795, 0.02, -0.72],
        [-0.10, 0.72, 0.80, -0.02, -0.93],
        [0.10, 0.735, 0.83, -0.05, -0.99],
        [0.35, 0.735, 0.85, -0.08, -0.98],
        [0.60, 0.71, 0.81, -0.10, -0.92],
        [1.15, 0.66, 0.74, -0.10, -0.80],
    ]
)
_AVERAGE = CubicSpline(_RINGS[:, 0], _RINGS[:, 1:], bc_type="natural")


@dataclass(frozen=True)
class Skull:
    """Ring profile of a person's head, shared by the skin and by the hair that lies on it."""

    person: Person

    @cached_property
    def outline(self) -> tuple[FloatArray, FloatArray]:
        """Arc length from the crown and height of even steps down the outline of the head, both (4096,)."""
        y = CROWN + (CHIN - CROWN) * (0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 4096)))
        path = np.stack([y, *(0.6 * self.ring(y))])
        arc = np.concatenate([[0], np.cumsum(np.sqrt((np.diff(path) ** 2).sum(axis=0)))])
        even = np.linspace(0, arc[-1], len(arc))
        return even.astype(np.float32), np.interp(even, arc, y).astype(np.float32)

    @cached_property
    def _steps(self) -> FloatArray:
        return self.ring(self.outline[1])

    def ring_at(self, arc: FloatArray) -> FloatArray:
        """Rings by arc length from the crown, (4, ...): a look-up, since hair asks for many."""
        last = len(self.outline[0]) - 1
        return self._steps[:, np.rint(arc * (last / self.outline[0][-1])).astype(np.int32)]

    def ring(self, y: FloatArray) -> FloatArray:
        """Half-width, front, mid and back at heights y, (4, ...)."""
        p = self.person
        half, front, mid, back = np.moveaxis(_AVERAGE(np.clip(y, CHIN, CROWN)), -1, 0)
        above = np.clip((y - 0.30) / (CROWN - 0.30), 0, 1)
        below = np.clip((-0.86 - y) / (-0.86 - CHIN), 0, 1)
        cap = np.maximum(1 - above**2.5, 0) ** 0.5 * np.maximum(1 - below**2.4, 0) ** 0.45
        low = 1 / (1 + np.exp((y + 0.52) / 0.09))  # 1 at the jaw, 0 above the mouth
        half = half * p.face_width * (1 + low * (p.jaw - 1)) * cap
        front = (front - mid) * cap + mid + p.chin * low
        back = (back - mid) * cap * p.head_depth + mid
        return np.stack([half, front, mid, back]).astype(np.float32)

    def lift(self, y: FloatArray) -> FloatArray:
        """Final height of a point of the stack: above the brows some skulls are taller."""
        return y + np.clip(y - 0.25, 0, None) * np.float32((self.person.head_height - 1) * 1.6)


def around(ring: FloatArray, angle: FloatArray, extra: FloatArray | float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Points (x, z) of rings at angles from the front (0) to the back (pi), pushed outwards by `extra`."""
    half, front, mid, back = ring
    s, c = np.sin(angle), np.cos(angle)
    s, c = np.sign(s) * np.abs(s) ** 0.93, np.sign(c) * np.abs(c) ** 0.93
    reach = np.where(c > 0, front - mid, mid - back)
    return (half + extra) * s, mid + (reach + extra) * c


def filled(colour: Colour, shape: tuple[int, ...]) -> FloatArray:
    """Grid of one colour, (3, rows, columns)."""
    return np.broadcast_to(np.array(colour, np.float32)[:, None, None], (3, *shape)).copy()


def ticks(low: float, high: float, count: int, detail: float) -> FloatArray:
    """Even grid from low to high, `count` points at detail 1 (pictures of 128 pixels)."""
    return np.linspace(low, high, max(8, round(count * detail)), dtype=np.float32)


def head_surface(skull: Skull, hair_end: tuple[FloatArray, FloatArray], detail: float) -> Surface:
    """Skull and face with eyes, brows, lips and beard.

    Args:
        skull: the head.  hair_end: angles and the heights where hair ends there; skin far above is left out.
        detail: sampling density.
    """
    p = skull.person
    arc, heights = skull.outline
    rows = np.interp(ticks(0, 0.998 * float(arc[-1]), 270, detail), arc, heights).astype(np.float32)[:, None]
    u = ticks(-1, 1, 420, detail)
    angle = np.pi * u - 0.38 * np.sin(np.pi * u)  # columns are denser on the face
    x, z = around(skull.ring(rows), angle[None, :])
    y = np.broadcast_to(rows, x.shape)
    colour, gloss = filled(p.skin, x.shape), np.full(x.shape, 0.06, np.float32)
    face = slice(*np.searchsorted(angle, [-1.65, 1.65]))
    low = slice(int(np.searchsorted(-rows[:, 0], -0.75)), None)  # nothing of the face is above the forehead
    reach = np.clip(np.cos(angle[face]) / 0.3 + 0.1, 0, 1)[None, :]
    z[low, face] += relief(p, x[low, face], y[low, face]) * reach
    paint_face(p, Paint(x[low, face], y[low, face], colour[:, low, face], gloss[low, face], reach))
    keep = (y < np.interp(angle, *hair_end)[None, :] + 0.3) | ((np.abs(angle) < 1.9)[None, :] & (y < 0.7))
    return sheet((x, skull.lift(y), z), colour, gloss, keep)


def ear_surfaces(skull: Skull, covered: float, detail: float) -> list[Surface]:
    """Both ears: oval plates that stand off the head, with a raised rim and a dark hollow.

    Args:
        skull: the head.  covered: 0 for free ears, 1 for ears pressed flat under the hair.
        detail: sampling density.
    """
    p = skull.person
    if covered > 0.95:
        return []
    r = ticks(0.02, 1, 44, detail)[:, None]
    turn = ticks(np.pi, -np.pi, 150, detail)[None, :]
    up = r * np.sin(turn)
    forth = r * np.cos(turn) * (0.8 + 0.2 * np.sin(turn))
    rim = np.exp(-(((r - 0.84) / 0.12) ** 2)) * smooth(forth, 0.75, 0.2)
    hollow = bump(forth, up, (0.1, -0.08), 0.42, 0.45)
    groove = np.exp(-(((r - 0.62) / 0.1) ** 2)) * smooth(up, -0.5, 0.2) * smooth(forth, 0.5, 0.0)
    stand = 0.13 * smooth(forth, 0.75, -0.7) + 0.045 * rim - 0.05 * hollow - 0.015 * groove
    stand *= (1 - covered) * (1 - 0.6 * smooth(r, 0.9, 1.0))
    colour = filled(scaled(p.skin, 1.0, 0.93, 0.91), up.shape)
    colour *= 1 - 0.45 * np.clip(hollow + 0.6 * groove, 0, 1)
    half, _, mid, _ = skull.ring(np.array(-0.1))
    x = half - 0.02 + stand - 0.03 * smooth(up, -0.3, -1.0)
    y = 0.25 * p.ear_size * up - 0.10
    z = mid - 0.10 + 0.155 * p.ear_size * (forth - 0.25 * up)
    flip = (slice(None), slice(None, None, -1))
    return [
        sheet((x, y, z), colour, 0.05),
        sheet((-x[flip], y[flip], z[flip]), colour[(slice(None), *flip)], 0.05),
    ]


def neck_surface(p: Person, detail: float) -> Surface:
    """Neck that widens into shoulders; below the neckline it has the colour of the clothes."""
    step = ticks(0, 1, 170, detail)[:, None]
    y = -0.45 - 0.8 * step - 0.55 * step**4  # rows crowd where the shoulders flatten
    angle = ticks(-np.pi, np.pi, 400, detail)[None, :]
    slope = smooth(y, -1.12, -1.95)
    centre = -0.20 - 0.20 * smooth(y, -0.5, -1.4)
    x = (0.42 * p.neck_width + 1.35 * slope**1.1) * np.sin(angle)
    z = (0.40 * p.neck_width + 0.30 * slope) * np.cos(angle)
    y = np.broadcast_to(y, x.shape)
    neckline = -1.34 + 0.6 * p.collar - 0.2 * bump(x, z, (0, 0.6), 0.4, 0.5)
    cloth = smooth(y - neckline, 0.012, -0.012)
    colour = filled(scaled(p.skin, 0.94, 0.91, 0.9), x.shape)
    colour += cloth * (np.array(p.clothes, np.float32)[:, None, None] - colour)
    colour *= 1 - 0.3 * np.exp(-(((y - neckline) / 0.02) ** 2))
    swell = 1 + 0.06 * cloth
    return sheet((x * swell, y, centre + z * swell), colour, 0.03 * (1 - cloth))
