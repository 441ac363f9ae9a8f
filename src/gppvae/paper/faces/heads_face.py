"""Relief and colours of the face, as functions of the position (x, y) seen from the front.

Lengths are in head units; x = 0 is the middle of the face, y = 0 lies just below the eyes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .heads_person import Colour, Person
from .heads_render import FloatArray

_EYE_Y, _BROW_Y, _NOSE_Y, _MOUTH_Y, _CHIN_Y = 0.04, 0.225, -0.37, -0.63, -0.93
_EYE_X = 0.305
_WHITE, _BLACK = (0.93, 0.92, 0.90), (0.03, 0.03, 0.035)


def bump(x: FloatArray, y: FloatArray, at: tuple[float, float], wide: float, tall: float) -> FloatArray:
    """Gaussian hill of height 1 with the given centre and radii."""
    return np.exp(-(((x - at[0]) / wide) ** 2) - ((y - at[1]) / tall) ** 2)


def smooth(x: FloatArray, low: float, high: float) -> FloatArray:
    """Cubic step from 0 at `low` to 1 at `high` (which may be the smaller one)."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def relief(p: Person, x: FloatArray, y: FloatArray) -> FloatArray:
    """Forward displacement of the face: sockets, eyeballs, brows, cheeks, nose, mouth, chin."""
    side = np.abs(x)
    eye_x = _EYE_X * p.eye_distance
    out = -0.115 * p.eye_depth * bump(side, y, (eye_x * 0.94, _EYE_Y + 0.01), 0.17, 0.105)
    out += 0.055 * bump(side, y, (eye_x, _EYE_Y), 0.115, 0.075)
    out += 0.035 * p.eye_depth * bump(side, y, (eye_x, _BROW_Y + 0.015), 0.26, 0.07)
    out += 0.045 * p.cheek * bump(side, y, (0.42, -0.26), 0.2, 0.2)
    out -= 0.035 * bump(side, y, (0.5, -0.62), 0.16, 0.2)
    out += _nose(p, x, y)
    out += 0.05 * bump(x, y, (0, _MOUTH_Y), 0.30, 0.17)
    full, wide = 0.032 * p.lip_fullness, 0.17 * p.mouth_width
    out += full * bump(side, y, (0.05, _MOUTH_Y + 0.055), wide, 0.042)
    out += 1.15 * full * bump(x, y, (0, _MOUTH_Y - 0.065), wide, 0.048)
    out -= 0.03 * bump(x, y, (0, _MOUTH_Y), 1.25 * wide, 0.018)
    out -= 0.045 * bump(x, y, (0, _MOUTH_Y - 0.175), 0.2, 0.05)
    out += (0.055 + 0.6 * p.chin) * bump(x, y, (0, _CHIN_Y), 0.2, 0.11)
    return out


def _nose_base(p: Person) -> float:
    return _NOSE_Y - 0.30 * (p.nose_length - 1)


def _nose(p: Person, x: FloatArray, y: FloatArray) -> FloatArray:
    """Bridge that rises from between the eyes to the tip, cut off below, with a wing on either side."""
    base = _nose_base(p)
    t = np.clip((0.17 - y) / (0.17 - base), 0, 1.3)  # 0 at the root, 1 at the base
    height = 0.235 * p.nose_height * (0.18 + 0.82 * np.minimum(t, 1) ** 1.25)
    height += 0.05 * p.nose_hook * np.exp(-(((t - 0.45) / 0.22) ** 2))
    wide = (0.066 + 0.066 * t**2) * (0.5 + 0.5 * p.nose_width)
    ends = smooth(y, 0.30, 0.08) * smooth(y, base - 0.065, base + 0.085)
    bridge = height * ends * np.exp(-(np.abs(x / wide) ** 2.2))
    wings = 0.105 * bump(np.abs(x), y, (0.115 * p.nose_width, base + 0.035), 0.062, 0.06)
    return bridge + wings


@dataclass
class Paint:
    """Colours under construction on a patch of skin.

    Attributes:
        x, y: position of each point, (rows, columns).  colour: sRGB, (3, rows, columns).
        gloss: strength of the mirror reflection, (rows, columns).
        reach: 1 on the front, fading to 0 towards the sides, where marks must not be smeared.
    """

    x: FloatArray
    y: FloatArray
    colour: FloatArray
    gloss: FloatArray
    reach: FloatArray

    def blend(self, weight: FloatArray, target: Colour, gloss: float | None = None) -> None:
        """Move the colour (and the gloss) towards the target by `weight` in [0, 1]."""
        weight = (weight * self.reach).astype(np.float32)
        self.colour += weight * (np.array(target, np.float32)[:, None, None] - self.colour)
        if gloss is not None:
            self.gloss += weight * (gloss - self.gloss)


def paint_face(p: Person, paint: Paint) -> None:
    """Put cheeks, beard, mouth, nostrils, eyes and eyebrows on the skin, in this order."""
    side, y = np.abs(paint.x), paint.y
    paint.gloss += 0.05 * bump(side, y, (0, _NOSE_Y + 0.08), 0.1, 0.12) + 0.03 * bump(side, y, (0, 0.45), 0.3, 0.15)
    paint.blend(0.4 * bump(side, y, (0.42, -0.27), 0.18, 0.15), scaled(p.skin, 1.0, 0.82, 0.8))
    paint.blend(0.35 * bump(side, y, (0.29 * p.eye_distance, _EYE_Y), 0.2, 0.12), scaled(p.skin, 0.72, 0.68, 0.68))
    if p.beard > 0:
        _paint_beard(p, paint)
    _paint_mouth(p, paint)
    nostril = bump(side, y, (0.075 * p.nose_width, _nose_base(p) - 0.012), 0.034, 0.02)
    paint.blend(np.clip(1.3 * nostril, 0, 0.85), scaled(p.skin, 0.28, 0.2, 0.2))
    _paint_eyes(p, paint)
    _paint_brows(p, paint)


def scaled(colour: Colour, red: float, green: float, blue: float) -> Colour:
    """The colour with every channel multiplied by its own factor, kept below 1."""
    return min(colour[0] * red, 1.0), min(colour[1] * green, 1.0), min(colour[2] * blue, 1.0)


def _paint_beard(p: Person, paint: Paint) -> None:
    """Stubble or beard on jaw, chin and upper lip, from the ears down."""
    side, y = np.abs(paint.x), paint.y
    edge = -0.47 + 0.75 * np.clip(side - 0.33, 0, None) ** 1.3
    jaw = smooth(edge - y, 0.0, 0.15)
    lip = bump(side, y, (0.0, _MOUTH_Y + 0.135), 0.24, 0.045)
    bare = bump(side, y, (0, _MOUTH_Y - 0.01), 0.26, 0.085)
    weight = np.clip(np.maximum(jaw, 1.2 * lip) - 0.9 * bare, 0, 1)
    paint.blend(0.85 * p.beard**0.6 * weight, scaled(p.hair, 0.85, 0.85, 0.85), gloss=0.02)


def _paint_mouth(p: Person, paint: Paint) -> None:
    """Lips with a Cupid's bow and the dark line between them."""
    x, y = paint.x, paint.y - _MOUTH_Y
    u = np.abs(x) / (0.245 * p.mouth_width)
    taper = np.clip(1 - u**2, 0, 1)
    upper = 0.085 * p.lip_fullness**0.7 * taper**0.75 - 0.016 * np.exp(-((x / 0.04) ** 2))
    lower = 0.11 * p.lip_fullness**0.8 * taper**0.6
    lips = smooth(y, upper + 0.012, upper - 0.012) * smooth(y, -lower - 0.014, -lower + 0.014) * (u < 1)
    paint.blend(0.9 * lips, p.lips, gloss=0.16)
    line = np.exp(-((y / 0.014) ** 2)) * smooth(u, 1.12, 0.85)
    paint.blend(0.8 * line, scaled(p.lips, 0.35, 0.25, 0.25), gloss=0.0)


def _paint_eyes(p: Person, paint: Paint) -> None:
    """White, iris, pupil and catch-light inside an almond, framed by lashes and a lid crease."""
    side = np.abs(paint.x)
    u = (side - _EYE_X * p.eye_distance) / (0.148 * p.eye_size**0.6)
    y = paint.y - _EYE_Y - 0.25 * p.eye_tilt * 0.148 * u
    dome = np.clip(1 - u**2, 0, 1)
    upper, lower = 0.074 * p.eye_size * dome**0.6, -0.05 * p.eye_size * dome**0.75
    soft = 0.010
    inside = smooth(y, upper + soft, upper - soft) * smooth(y, lower - soft, lower + soft) * (np.abs(u) < 1)
    paint.blend(0.55 * np.exp(-(((y - upper - 0.035) / 0.012) ** 2)) * dome, scaled(p.skin, 0.5, 0.42, 0.42))
    paint.blend(inside, _WHITE, gloss=0.05)
    radius = np.hypot(side - _EYE_X * p.eye_distance, paint.y - _EYE_Y - 0.012) / (0.068 * (0.6 + 0.4 * p.eye_size))
    paint.blend(inside * smooth(radius, 1.08, 0.92), scaled(p.iris, 0.55, 0.55, 0.55), gloss=0.03)
    paint.blend(inside * smooth(radius, 0.92, 0.7), scaled(p.iris, 1.25, 1.25, 1.25))
    paint.blend(inside * smooth(radius, 0.52, 0.38), _BLACK)
    glint = np.hypot(paint.x - np.sign(paint.x) * _EYE_X * p.eye_distance + 0.022, paint.y - _EYE_Y - 0.035)
    paint.blend(inside * smooth(glint, 0.026, 0.014), (1.0, 1.0, 1.0))
    open_eye = np.abs(u) < 1.08
    lash = np.exp(-(((y - upper) / 0.014) ** 2)) * open_eye + 0.35 * np.exp(-(((y - lower) / 0.010) ** 2)) * open_eye
    paint.blend(np.clip(0.95 * lash, 0, 0.95), scaled(p.hair, 0.3, 0.26, 0.26), gloss=0.0)


def _paint_brows(p: Person, paint: Paint) -> None:
    """Arched strokes in a darker shade of the hair, thinner towards the temples."""
    u = (np.abs(paint.x) - 0.31 * p.eye_distance) / 0.19
    arch = _BROW_Y + p.brow_height + 0.2 * p.brow_tilt * u - 0.035 * u**2
    thick = 0.036 * p.brow_thickness * (1.1 - 0.45 * np.clip(u, -1, 1))
    stroke = np.exp(-(((paint.y - arch) / thick) ** 4)) * smooth(np.abs(u), 1.12, 0.82)
    paint.blend(0.9 * stroke, scaled(p.hair, 0.66, 0.62, 0.62), gloss=0.0)
