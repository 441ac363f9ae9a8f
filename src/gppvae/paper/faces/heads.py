"""Made-up turning heads: a stand-in for the face data that needs no download and has known factors.

Each person is drawn from continuous factors of shape and colour and rendered in nine poses, turned about
the vertical axis as in the Face-Place data: pose 30R shows the face turned to the left of the picture.

In this order: the images and their table, the factors that make a person, the face, the skull with ears and neck, the
hair, and the renderer. Lengths are in head units (about 10 cm; chin to crown is 2.2).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.progress import track
from scipy import ndimage
from scipy.interpolate import CubicSpline

from gppvae.paper.faces.faceplace import VIEWS

Colour = tuple[float, float, float]
FloatArray = NDArray[np.floating[Any]]

POSES: Mapping[str, float] = MappingProxyType(VIEWS)
"""Name and signed angle in degrees of every pose."""
_LIGHT = (-0.38, 0.52, 0.77)
"""Direction of the key light in camera axes (right, up, towards the camera): above, a little to the left."""


def make_heads(
    n_people: int, seed: int, size: int = 128, poses: Mapping[str, float] = POSES
) -> tuple[NDArray[np.uint8], pd.DataFrame]:
    """Images and table of the first people of a population, in memory.

    Args:
        n_people: number of people.  seed: which population.  size: pixels per side.  poses: name -> degrees.
    Returns:
        images (n_people * n_poses, size, size, 3) and their table (see `heads_table`), in the same order.
    """
    table = heads_table(n_people, poses)
    images = np.empty((len(table), size, size, 3), np.uint8)
    for i, views in enumerate(iter_heads(n_people, seed, size, poses)):
        images[i * len(poses) : (i + 1) * len(poses)] = views
    return images, table


def iter_heads(
    n_people: int, seed: int, size: int = 128, poses: Mapping[str, float] = POSES
) -> Iterator[NDArray[np.uint8]]:
    """The images of one person after the other, each (n_poses, size, size, 3).

    Person i depends on `seed` and i only, so a longer run starts with the people of a shorter one.
    """
    _check(n_people, size, poses)
    for i in range(n_people):
        surface = _person_surface(draw_person(seed, i), size)
        yield np.stack([_render(surface, angle, size, _LIGHT) for angle in poses.values()])


def heads_table(n_people: int, poses: Mapping[str, float] = POSES) -> pd.DataFrame:
    """One row per image: person ("p0007"), pose ("30L") and angle (-30.0 degrees)."""
    return pd.DataFrame(
        {
            "person": [f"p{i:04d}" for i in range(n_people) for _ in poses],
            "pose": list(poses) * n_people,
            "angle": np.tile(np.array(list(poses.values()), dtype=float), n_people),
        }
    )


def write_heads(
    path: str | os.PathLike[str],
    n_people: int,
    seed: int,
    size: int = 128,
    poses: Mapping[str, float] = POSES,
    progress: bool = True,
) -> pd.DataFrame:
    """Render straight into a .npy file, one person in memory at a time, and return the table of its rows.

    The file appears under its name only when it is complete; open it with `numpy.load(path, mmap_mode="r")`.
    """
    _check(n_people, size, poses)
    path = Path(path)
    table = heads_table(n_people, poses)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        out = np.lib.format.open_memmap(partial, "w+", np.uint8, (len(table), size, size, 3))
        people = iter_heads(n_people, seed, size, poses)
        for i, views in enumerate(track(people, "Rendering heads", total=n_people, disable=not progress)):
            out[i * len(poses) : (i + 1) * len(poses)] = views
        out.flush()
        del out
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return table


def _person_surface(person: Person, size: int) -> _Surface:
    """All surfaces of one person, sampled for pictures of `size` pixels from any angle."""
    skull, detail = _Skull(person), size / 128
    turn = np.linspace(-np.pi, np.pi, 300, dtype=np.float32)
    head = _head_surface(skull, (turn, _hair_end(person, turn)), detail)
    ears = _ear_surfaces(skull, _cover(person), detail)
    return _join([head, *ears, _neck_surface(person, detail), *_hair_surfaces(skull, detail)])


def render_person(
    person: Person, angle: float, size: int = 128, light: tuple[float, float, float] = _LIGHT
) -> NDArray[np.uint8]:
    """Picture of one person at any angle, (size, size, 3); positive angles are poses to the R side."""
    return _render(_person_surface(person, size), angle, size, light)


def _check(n_people: int, size: int, poses: Mapping[str, float]) -> None:
    if n_people < 1 or size < 8 or not poses:
        raise ValueError(
            f"heads need at least 1 person, 8 pixels and 1 pose, got n_people={n_people}, size={size}, "
            f"{len(poses)} poses; raise the one that is too small"
        )


# -- the person
#
# Every factor is a number (or a short colour vector), so identities fill a continuous space: two people never differ by
# a hidden switch only.

# Skin, hair and iris colours lie on smooth curves through these sRGB stops, from light to dark.
_SKIN = np.array([[246, 212, 190], [232, 188, 158], [208, 158, 122], [168, 116, 82], [120, 78, 54], [84, 54, 40]])
_HAIR = np.array([[214, 178, 118], [172, 112, 58], [130, 76, 44], [96, 62, 40], [58, 38, 28], [28, 23, 22]])
_GREY = np.array([186, 184, 182])
_IRIS = np.array([[96, 136, 166], [110, 138, 112], [132, 104, 58], [96, 62, 34], [58, 36, 22]])


@dataclass(frozen=True)
class Person:
    """The factors of one head; 1.0 or 0.0 is the average for every relative factor.

    Attributes:
        face_width, head_depth, head_height: relative size of the skull.
        jaw: relative width of the jaw.  chin: forward reach of the chin.  cheek: fullness of the cheeks.
        nose_length, nose_width, nose_height: relative size of the nose.  nose_hook: bump of the bridge.
        eye_distance, eye_size, eye_tilt, eye_depth: place and shape of the eyes.
        brow_thickness, brow_height, brow_tilt: the eyebrows.  mouth_width, lip_fullness: the mouth.
        ear_size: relative size of the ears.  neck_width: relative width of the neck.
        hair_length: 0 cropped, 0.35 chin-long, 1 below the shoulders.  hair_volume: thickness of the hair.
        hairline: height of the hair line.  fringe: 0 none, 1 down to the brows.  parting: its side, -1 to 1.
        curl: waviness of the hair.  bun: size of a knot at the back, 0 for none.  beard: 0 shaved, 1 full.
        skin, hair, iris, lips, clothes: sRGB colours in [0, 1].  collar: height of the neckline.
        texture: seed of the strand pattern.
    """

    face_width: float
    head_depth: float
    head_height: float
    jaw: float
    chin: float
    cheek: float
    nose_length: float
    nose_width: float
    nose_height: float
    nose_hook: float
    eye_distance: float
    eye_size: float
    eye_tilt: float
    eye_depth: float
    brow_thickness: float
    brow_height: float
    brow_tilt: float
    mouth_width: float
    lip_fullness: float
    ear_size: float
    neck_width: float
    hair_length: float
    hair_volume: float
    hairline: float
    fringe: float
    parting: float
    curl: float
    bun: float
    beard: float
    skin: Colour
    hair: Colour
    iris: Colour
    lips: Colour
    clothes: Colour
    collar: float
    texture: int


# Mean for the most feminine head, change towards the most masculine one, and standard deviation.
_SHAPE = {
    "face_width": (0.98, 0.04, 0.055),
    "head_depth": (1.0, 0.0, 0.045),
    "head_height": (1.0, 0.0, 0.04),
    "jaw": (0.92, 0.17, 0.09),
    "chin": (0.0, 0.02, 0.04),
    "cheek": (1.1, -0.3, 0.5),
    "nose_length": (0.98, 0.05, 0.08),
    "nose_width": (0.94, 0.14, 0.16),
    "nose_height": (0.95, 0.15, 0.19),
    "nose_hook": (0.0, 0.15, 0.35),
    "eye_distance": (1.0, 0.0, 0.06),
    "eye_size": (1.08, -0.12, 0.11),
    "eye_tilt": (0.04, 0.0, 0.1),
    "eye_depth": (0.9, 0.3, 0.22),
    "brow_thickness": (0.75, 0.6, 0.26),
    "brow_height": (0.02, -0.03, 0.02),
    "brow_tilt": (0.08, 0.0, 0.1),
    "mouth_width": (1.0, 0.0, 0.11),
    "lip_fullness": (1.12, -0.25, 0.26),
    "ear_size": (0.95, 0.1, 0.1),
    "neck_width": (0.88, 0.22, 0.06),
}


def draw_person(seed: int, index: int) -> Person:
    """Person number `index` of the population `seed`; it depends on these two numbers only."""
    rng = np.random.default_rng([seed, index])
    male = float(rng.beta(0.5, 0.5))  # most heads look clearly one way, all mixtures occur
    shape: dict[str, Any] = {
        name: float(mean + change * male + std * np.clip(rng.normal(), -2.2, 2.2))
        for name, (mean, change, std) in _SHAPE.items()
    }
    return Person(
        **shape,
        hair_length=_hair_length(rng, male),
        hair_volume=float(rng.uniform(0.3, 1.6)),
        hairline=float(rng.normal(0.0, 0.04) + 0.16 * male * rng.uniform() ** 3),
        fringe=float(rng.uniform() ** (1.2 + 1.2 * male)),
        parting=float(rng.uniform(-1, 1)),
        curl=float(rng.uniform() ** 1.8),
        bun=float(max(0.0, rng.normal(-0.4, 0.9)) * (1 - male)),
        beard=float(male * np.clip(rng.normal(0.15, 0.45), 0, 1)),
        **_colours(rng, male),
        collar=float(rng.uniform(-0.12, 0.12)),
        texture=int(rng.integers(2**31)),
    )


def _hair_length(rng: np.random.Generator, male: float) -> float:
    """Short for most male heads, anything for the others."""
    return float(np.clip(rng.beta(1.0 + 0.8 * (1 - male), 0.9 + 4 * male), 0, 1))


def _colours(rng: np.random.Generator, male: float) -> dict[str, Any]:
    """All colours of a person; darker skin goes with darker hair and eyes more often than not."""
    tone = float(rng.beta(1.0, 1.1))
    dark = float(np.clip(rng.beta(1.6, 1.2) * (1 - tone) + tone * rng.beta(6, 1), 0, 1))
    skin = _along(_SKIN, tone) * (1 + 0.03 * rng.normal(size=3) * np.array([0.4, 0.7, 1.0]))
    hair = _along(_HAIR, dark)
    grey = float(np.clip(rng.normal(-0.5, 0.5), 0, 0.9))
    hair = (1 - grey) * hair + grey * _GREY / 255
    iris = _along(_IRIS, float(np.clip(0.75 * dark + rng.normal(0.08, 0.25), 0, 1)))
    rouge = float(rng.uniform(0.1, 0.85) * (1 - 0.7 * male))
    natural = skin * np.array([0.88, 0.66, 0.64])
    lips = (1 - rouge) * natural + rouge * np.array([0.70, 0.20, 0.24]) * (0.55 + 0.45 * skin.max())
    clothes = _hsv(float(rng.uniform()), float(rng.uniform(0.1, 0.75)), float(rng.uniform(0.2, 0.85)))
    named = {"skin": skin, "hair": hair, "iris": iris, "lips": lips, "clothes": clothes}
    return {name: _as_colour(value) for name, value in named.items()}


def _along(stops: NDArray[np.int_], where: float) -> NDArray[np.float64]:
    """Colour at position `where` in [0, 1] of a chain of colour stops, scaled to [0, 1]."""
    ticks = np.linspace(0, 1, len(stops))
    return np.array([np.interp(where, ticks, stops[:, channel]) for channel in range(3)]) / 255


def _hsv(hue: float, saturation: float, value: float) -> NDArray[np.float64]:
    """sRGB colour of a hue, saturation and value, all in [0, 1]."""
    ramp = np.abs((hue * 6 + np.array([0.0, 4.0, 2.0])) % 6 - 3) - 1
    return value * (1 - saturation + saturation * np.clip(ramp, 0, 1))


def _as_colour(value: NDArray[np.float64]) -> Colour:
    red, green, blue = (float(v) for v in np.clip(value, 0, 1))
    return red, green, blue


# -- the face
#
# Relief and colours as functions of the position (x, y) seen from the front; x = 0 is the middle of the face, y = 0
# lies just below the eyes.

_EYE_Y, _BROW_Y, _NOSE_Y, _MOUTH_Y, _CHIN_Y = 0.04, 0.225, -0.37, -0.63, -0.93
_EYE_X = 0.305
_WHITE, _BLACK = (0.93, 0.92, 0.90), (0.03, 0.03, 0.035)


def _bump(x: FloatArray, y: FloatArray, at: tuple[float, float], wide: float, tall: float) -> FloatArray:
    """Gaussian hill of height 1 with the given centre and radii."""
    return np.exp(-(((x - at[0]) / wide) ** 2) - ((y - at[1]) / tall) ** 2)


def _smooth(x: FloatArray, low: float, high: float) -> FloatArray:
    """Cubic step from 0 at `low` to 1 at `high` (which may be the smaller one)."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def _relief(p: Person, x: FloatArray, y: FloatArray) -> FloatArray:
    """Forward displacement of the face: sockets, eyeballs, brows, cheeks, nose, mouth, chin."""
    side = np.abs(x)
    eye_x = _EYE_X * p.eye_distance
    out = -0.115 * p.eye_depth * _bump(side, y, (eye_x * 0.94, _EYE_Y + 0.01), 0.17, 0.105)
    out += 0.055 * _bump(side, y, (eye_x, _EYE_Y), 0.115, 0.075)
    out += 0.035 * p.eye_depth * _bump(side, y, (eye_x, _BROW_Y + 0.015), 0.26, 0.07)
    out += 0.045 * p.cheek * _bump(side, y, (0.42, -0.26), 0.2, 0.2)
    out -= 0.035 * _bump(side, y, (0.5, -0.62), 0.16, 0.2)
    out += _nose(p, x, y)
    out += 0.05 * _bump(x, y, (0, _MOUTH_Y), 0.30, 0.17)
    full, wide = 0.032 * p.lip_fullness, 0.17 * p.mouth_width
    out += full * _bump(side, y, (0.05, _MOUTH_Y + 0.055), wide, 0.042)
    out += 1.15 * full * _bump(x, y, (0, _MOUTH_Y - 0.065), wide, 0.048)
    out -= 0.03 * _bump(x, y, (0, _MOUTH_Y), 1.25 * wide, 0.018)
    out -= 0.045 * _bump(x, y, (0, _MOUTH_Y - 0.175), 0.2, 0.05)
    out += (0.055 + 0.6 * p.chin) * _bump(x, y, (0, _CHIN_Y), 0.2, 0.11)
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
    ends = _smooth(y, 0.30, 0.08) * _smooth(y, base - 0.065, base + 0.085)
    bridge = height * ends * np.exp(-(np.abs(x / wide) ** 2.2))
    wings = 0.105 * _bump(np.abs(x), y, (0.115 * p.nose_width, base + 0.035), 0.062, 0.06)
    return bridge + wings


@dataclass
class _Paint:
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


def _paint_face(p: Person, paint: _Paint) -> None:
    """Put cheeks, beard, mouth, nostrils, eyes and eyebrows on the skin, in this order."""
    side, y = np.abs(paint.x), paint.y
    paint.gloss += 0.05 * _bump(side, y, (0, _NOSE_Y + 0.08), 0.1, 0.12) + 0.03 * _bump(side, y, (0, 0.45), 0.3, 0.15)
    paint.blend(0.4 * _bump(side, y, (0.42, -0.27), 0.18, 0.15), _scaled(p.skin, 1.0, 0.82, 0.8))
    paint.blend(0.35 * _bump(side, y, (0.29 * p.eye_distance, _EYE_Y), 0.2, 0.12), _scaled(p.skin, 0.72, 0.68, 0.68))
    if p.beard > 0:
        _paint_beard(p, paint)
    _paint_mouth(p, paint)
    nostril = _bump(side, y, (0.075 * p.nose_width, _nose_base(p) - 0.012), 0.034, 0.02)
    paint.blend(np.clip(1.3 * nostril, 0, 0.85), _scaled(p.skin, 0.28, 0.2, 0.2))
    _paint_eyes(p, paint)
    _paint_brows(p, paint)


def _scaled(colour: Colour, red: float, green: float, blue: float) -> Colour:
    """The colour with every channel multiplied by its own factor, kept below 1."""
    return min(colour[0] * red, 1.0), min(colour[1] * green, 1.0), min(colour[2] * blue, 1.0)


def _paint_beard(p: Person, paint: _Paint) -> None:
    """Stubble or beard on jaw, chin and upper lip, from the ears down."""
    side, y = np.abs(paint.x), paint.y
    edge = -0.47 + 0.75 * np.clip(side - 0.33, 0, None) ** 1.3
    jaw = _smooth(edge - y, 0.0, 0.15)
    lip = _bump(side, y, (0.0, _MOUTH_Y + 0.135), 0.24, 0.045)
    bare = _bump(side, y, (0, _MOUTH_Y - 0.01), 0.26, 0.085)
    weight = np.clip(np.maximum(jaw, 1.2 * lip) - 0.9 * bare, 0, 1)
    paint.blend(0.85 * p.beard**0.6 * weight, _scaled(p.hair, 0.85, 0.85, 0.85), gloss=0.02)


def _paint_mouth(p: Person, paint: _Paint) -> None:
    """Lips with a Cupid's bow and the dark line between them."""
    x, y = paint.x, paint.y - _MOUTH_Y
    u = np.abs(x) / (0.245 * p.mouth_width)
    taper = np.clip(1 - u**2, 0, 1)
    upper = 0.085 * p.lip_fullness**0.7 * taper**0.75 - 0.016 * np.exp(-((x / 0.04) ** 2))
    lower = 0.11 * p.lip_fullness**0.8 * taper**0.6
    lips = _smooth(y, upper + 0.012, upper - 0.012) * _smooth(y, -lower - 0.014, -lower + 0.014) * (u < 1)
    paint.blend(0.9 * lips, p.lips, gloss=0.16)
    line = np.exp(-((y / 0.014) ** 2)) * _smooth(u, 1.12, 0.85)
    paint.blend(0.8 * line, _scaled(p.lips, 0.35, 0.25, 0.25), gloss=0.0)


def _paint_eyes(p: Person, paint: _Paint) -> None:
    """White, iris, pupil and catch-light inside an almond, framed by lashes and a lid crease."""
    side = np.abs(paint.x)
    u = (side - _EYE_X * p.eye_distance) / (0.148 * p.eye_size**0.6)
    y = paint.y - _EYE_Y - 0.25 * p.eye_tilt * 0.148 * u
    dome = np.clip(1 - u**2, 0, 1)
    upper, lower = 0.074 * p.eye_size * dome**0.6, -0.05 * p.eye_size * dome**0.75
    soft = 0.010
    inside = _smooth(y, upper + soft, upper - soft) * _smooth(y, lower - soft, lower + soft) * (np.abs(u) < 1)
    paint.blend(0.55 * np.exp(-(((y - upper - 0.035) / 0.012) ** 2)) * dome, _scaled(p.skin, 0.5, 0.42, 0.42))
    paint.blend(inside, _WHITE, gloss=0.05)
    radius = np.hypot(side - _EYE_X * p.eye_distance, paint.y - _EYE_Y - 0.012) / (0.068 * (0.6 + 0.4 * p.eye_size))
    paint.blend(inside * _smooth(radius, 1.08, 0.92), _scaled(p.iris, 0.55, 0.55, 0.55), gloss=0.03)
    paint.blend(inside * _smooth(radius, 0.92, 0.7), _scaled(p.iris, 1.25, 1.25, 1.25))
    paint.blend(inside * _smooth(radius, 0.52, 0.38), _BLACK)
    glint = np.hypot(paint.x - np.sign(paint.x) * _EYE_X * p.eye_distance + 0.022, paint.y - _EYE_Y - 0.035)
    paint.blend(inside * _smooth(glint, 0.026, 0.014), (1.0, 1.0, 1.0))
    open_eye = np.abs(u) < 1.08
    lash = np.exp(-(((y - upper) / 0.014) ** 2)) * open_eye + 0.35 * np.exp(-(((y - lower) / 0.010) ** 2)) * open_eye
    paint.blend(np.clip(0.95 * lash, 0, 0.95), _scaled(p.hair, 0.3, 0.26, 0.26), gloss=0.0)


def _paint_brows(p: Person, paint: _Paint) -> None:
    """Arched strokes in a darker shade of the hair, thinner towards the temples."""
    u = (np.abs(paint.x) - 0.31 * p.eye_distance) / 0.19
    arch = _BROW_Y + p.brow_height + 0.2 * p.brow_tilt * u - 0.035 * u**2
    thick = 0.036 * p.brow_thickness * (1.1 - 0.45 * np.clip(u, -1, 1))
    stroke = np.exp(-(((paint.y - arch) / thick) ** 4)) * _smooth(np.abs(u), 1.12, 0.82)
    paint.blend(0.9 * stroke, _scaled(p.hair, 0.66, 0.62, 0.62), gloss=0.0)


# -- skull, ears, neck and clothes
#
# The skull is a stack of horizontal rings. Ring y has a half-width, reaches forward to `front`, back to `back`,
# and is widest at the depth `mid`. The face is a relief on the front of the stack.

_CROWN, _CHIN = 1.15, -1.10

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
class _Skull:
    """Ring profile of a person's head, shared by the skin and by the hair that lies on it."""

    person: Person

    @cached_property
    def outline(self) -> tuple[FloatArray, FloatArray]:
        """Arc length from the crown and height of even steps down the outline of the head, both (4096,)."""
        y = _CROWN + (_CHIN - _CROWN) * (0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 4096)))
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
        half, front, mid, back = np.moveaxis(_AVERAGE(np.clip(y, _CHIN, _CROWN)), -1, 0)
        above = np.clip((y - 0.30) / (_CROWN - 0.30), 0, 1)
        below = np.clip((-0.86 - y) / (-0.86 - _CHIN), 0, 1)
        cap = np.maximum(1 - above**2.5, 0) ** 0.5 * np.maximum(1 - below**2.4, 0) ** 0.45
        low = 1 / (1 + np.exp((y + 0.52) / 0.09))  # 1 at the jaw, 0 above the mouth
        half = half * p.face_width * (1 + low * (p.jaw - 1)) * cap
        front = (front - mid) * cap + mid + p.chin * low
        back = (back - mid) * cap * p.head_depth + mid
        return np.stack([half, front, mid, back]).astype(np.float32)

    def lift(self, y: FloatArray) -> FloatArray:
        """Final height of a point of the stack: above the brows some skulls are taller."""
        return y + np.clip(y - 0.25, 0, None) * np.float32((self.person.head_height - 1) * 1.6)


def _around(ring: FloatArray, angle: FloatArray, extra: FloatArray | float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Points (x, z) of rings at angles from the front (0) to the back (pi), pushed outwards by `extra`."""
    half, front, mid, back = ring
    s, c = np.sin(angle), np.cos(angle)
    s, c = np.sign(s) * np.abs(s) ** 0.93, np.sign(c) * np.abs(c) ** 0.93
    reach = np.where(c > 0, front - mid, mid - back)
    return (half + extra) * s, mid + (reach + extra) * c


def _filled(colour: Colour, shape: tuple[int, ...]) -> FloatArray:
    """Grid of one colour, (3, rows, columns)."""
    return np.broadcast_to(np.array(colour, np.float32)[:, None, None], (3, *shape)).copy()


def _ticks(low: float, high: float, count: int, detail: float) -> FloatArray:
    """Even grid from low to high, `count` points at detail 1 (pictures of 128 pixels)."""
    return np.linspace(low, high, max(8, round(count * detail)), dtype=np.float32)


def _head_surface(skull: _Skull, hair_end: tuple[FloatArray, FloatArray], detail: float) -> _Surface:
    """Skull and face with eyes, brows, lips and beard.

    Args:
        skull: the head.  hair_end: angles and the heights where hair ends there; skin far above is left out.
        detail: sampling density.
    """
    p = skull.person
    arc, heights = skull.outline
    rows = np.interp(_ticks(0, 0.998 * float(arc[-1]), 270, detail), arc, heights).astype(np.float32)[:, None]
    u = _ticks(-1, 1, 420, detail)
    angle = np.pi * u - 0.38 * np.sin(np.pi * u)  # columns are denser on the face
    x, z = _around(skull.ring(rows), angle[None, :])
    y = np.broadcast_to(rows, x.shape)
    colour, gloss = _filled(p.skin, x.shape), np.full(x.shape, 0.06, np.float32)
    face = slice(*np.searchsorted(angle, [-1.65, 1.65]))
    low = slice(int(np.searchsorted(-rows[:, 0], -0.75)), None)  # nothing of the face is above the forehead
    reach = np.clip(np.cos(angle[face]) / 0.3 + 0.1, 0, 1)[None, :]
    z[low, face] += _relief(p, x[low, face], y[low, face]) * reach
    _paint_face(p, _Paint(x[low, face], y[low, face], colour[:, low, face], gloss[low, face], reach))
    keep = (y < np.interp(angle, *hair_end)[None, :] + 0.3) | ((np.abs(angle) < 1.9)[None, :] & (y < 0.7))
    return _sheet((x, skull.lift(y), z), colour, gloss, keep)


def _ear_surfaces(skull: _Skull, covered: float, detail: float) -> list[_Surface]:
    """Both ears: oval plates that stand off the head, with a raised rim and a dark hollow.

    Args:
        skull: the head.  covered: 0 for free ears, 1 for ears pressed flat under the hair.
        detail: sampling density.
    """
    p = skull.person
    if covered > 0.95:
        return []
    r = _ticks(0.02, 1, 44, detail)[:, None]
    turn = _ticks(np.pi, -np.pi, 150, detail)[None, :]
    up = r * np.sin(turn)
    forth = r * np.cos(turn) * (0.8 + 0.2 * np.sin(turn))
    rim = np.exp(-(((r - 0.84) / 0.12) ** 2)) * _smooth(forth, 0.75, 0.2)
    hollow = _bump(forth, up, (0.1, -0.08), 0.42, 0.45)
    groove = np.exp(-(((r - 0.62) / 0.1) ** 2)) * _smooth(up, -0.5, 0.2) * _smooth(forth, 0.5, 0.0)
    stand = 0.13 * _smooth(forth, 0.75, -0.7) + 0.045 * rim - 0.05 * hollow - 0.015 * groove
    stand *= (1 - covered) * (1 - 0.6 * _smooth(r, 0.9, 1.0))
    colour = _filled(_scaled(p.skin, 1.0, 0.93, 0.91), up.shape)
    colour *= 1 - 0.45 * np.clip(hollow + 0.6 * groove, 0, 1)
    half, _, mid, _ = skull.ring(np.array(-0.1))
    x = half - 0.02 + stand - 0.03 * _smooth(up, -0.3, -1.0)
    y = 0.25 * p.ear_size * up - 0.10
    z = mid - 0.10 + 0.155 * p.ear_size * (forth - 0.25 * up)
    flip = (slice(None), slice(None, None, -1))
    return [
        _sheet((x, y, z), colour, 0.05),
        _sheet((-x[flip], y[flip], z[flip]), colour[(slice(None), *flip)], 0.05),
    ]


def _neck_surface(p: Person, detail: float) -> _Surface:
    """Neck that widens into shoulders; below the neckline it has the colour of the clothes."""
    step = _ticks(0, 1, 170, detail)[:, None]
    y = -0.45 - 0.8 * step - 0.55 * step**4  # rows crowd where the shoulders flatten
    angle = _ticks(-np.pi, np.pi, 400, detail)[None, :]
    slope = _smooth(y, -1.12, -1.95)
    centre = -0.20 - 0.20 * _smooth(y, -0.5, -1.4)
    x = (0.42 * p.neck_width + 1.35 * slope**1.1) * np.sin(angle)
    z = (0.40 * p.neck_width + 0.30 * slope) * np.cos(angle)
    y = np.broadcast_to(y, x.shape)
    neckline = -1.34 + 0.6 * p.collar - 0.2 * _bump(x, z, (0, 0.6), 0.4, 0.5)
    cloth = _smooth(y - neckline, 0.012, -0.012)
    colour = _filled(_scaled(p.skin, 0.94, 0.91, 0.9), x.shape)
    colour += cloth * (np.array(p.clothes, np.float32)[:, None, None] - colour)
    colour *= 1 - 0.3 * np.exp(-(((y - neckline) / 0.02) ** 2))
    swell = 1 + 0.06 * cloth
    return _sheet((x * swell, y, centre + z * swell), colour, 0.03 * (1 - cloth))


# -- the hair
#
# A shell of strands over the skull that ends at a hair line and hangs down where it is long.

_PATTERN = (24, 512)  # rows and columns of the random strand pattern


def _cover(p: Person) -> float:
    """How far the hair hides the ears, 0 to 1."""
    return float(_smooth(np.array(p.hair_length), 0.2, 0.4))


def _hair_end(p: Person, angle: FloatArray) -> FloatArray:
    """Height at which the hair of each direction ends: 0 is the front, pi the back."""
    turn = np.abs(angle)
    hairline = 0.66 + p.hairline + 0.04 * np.cos(4 * angle) - 0.10 * _smooth(turn, 0.5, 1.1)
    lean = angle * np.sign(p.parting) * abs(p.parting) ** 0.5
    sweep = 1 - abs(p.parting) * (0.5 + 0.5 * np.tanh(3 * (lean - 0.25)))
    front = hairline - p.fringe * 0.36 * sweep * _smooth(turn, 1.15, 0.75)
    at = [1.0, 1.25, 1.42, 1.55, 1.75, 1.95, 2.3, np.pi]
    short = np.interp(turn, at, [0.5, 0.2, -0.12, -0.1, 0.14, -0.1, -0.5, -0.6])
    long = -0.30 - 1.25 * np.clip((p.hair_length - 0.25) / 0.75, 0, 1) + 0.15 * (1 - _smooth(turn, 1.1, 2.4))
    side = short + _cover(p) * (long - short)
    opening = 1.10 - 0.10 * _cover(p) * min(p.hair_volume, 1.2)
    return front + _smooth(turn, opening - 0.22, opening + 0.2) * (side - front)


def _hair_surfaces(skull: _Skull, detail: float) -> list[_Surface]:
    """The shell of hair, and the knot at the back if the person wears one."""
    p = skull.person
    angle = _columns(detail)[None, :]
    steps = _ticks(0.004, 1, 230 + round(90 * _cover(p)), detail)[:, None]
    fine, locks, blobs = _strands(p, steps[:, 0], angle[0])
    end = _hair_end(p, angle) + 0.012 * fine + (0.015 + 0.03 * p.curl) * locks
    hang = 0.05 - 0.6 * (1 - _cover(p))  # where it stops following the skull
    y, ring = _path(skull, end, steps, hang)
    fall = np.clip(hang - y, 0, None)
    waves = 0.08 * locks + (0.04 + 0.4 * p.curl) * blobs
    extra = _thickness(p, angle, y, end, waves)
    aside = angle + np.sign(angle) * _tuck(p, angle, y)
    x, z = _around(ring, aside, extra)
    inwards = (0.16 - 0.10 * p.hair_volume) * np.minimum(fall, 1.1) + 0.10 * _smooth(y - end, 0.2, 0.0) * (fall > 0)
    x = x * (1 - inwards)
    z = z - (z + 0.15) * (inwards + 0.12 * fall) * (z < -0.15)
    tone = np.clip(1 + 0.10 * fine + 0.06 * locks + (0.03 + 0.12 * p.curl) * blobs, 0.4, 1.6)
    high = skull.lift(y) + 0.5 * extra * _smooth(y, 0.5, 1.1)
    colour = _filled(p.hair, x.shape) * tone
    shell = _sheet((x, high, z), colour, 0.35, hair=True, two_sided=(fall > 0) | (y - end < 0.1))
    return [shell, *_knot(skull, detail)]


def _columns(detail: float) -> FloatArray:
    """Angles of the strands, denser beside the face, where the tuck spreads them."""
    turn = np.linspace(-np.pi, np.pi, 721)
    density = 1 + 1.6 * np.exp(-(((np.abs(turn) - 1.1) / 0.3) ** 2))
    share = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return np.interp(_ticks(0, 1, 580, detail), share / share[-1], turn).astype(np.float32)


def _path(skull: _Skull, end: FloatArray, steps: FloatArray, hang: float) -> tuple[FloatArray, FloatArray]:
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
    beside = _smooth(np.abs(angle), 0.8, 1.1) * _smooth(np.abs(angle), 2.2, 1.2) * _cover(p)
    cheek = _smooth(y, 0.65, 0.1) * (1 - 0.7 * _smooth(y, -0.3, -1.1))
    return 0.42 * (1 - 0.6 * min(p.hair_volume, 1.2)) * beside * cheek


def _thickness(p: Person, angle: FloatArray, y: FloatArray, end: FloatArray, waves: FloatArray) -> FloatArray:
    """Distance of the hair from the skull; it closes down to the skin along the edge of short hair."""
    covered = _cover(p)
    thick = 0.045 + 0.085 * p.hair_volume * (0.55 + 0.45 * covered)
    edge = np.clip((y - end) / 0.3, 0, 1) ** 0.6
    frontal = _smooth(np.abs(angle), 1.5, 0.9)
    closed = edge + (1 - edge) * (0.12 * frontal * p.fringe + 0.8 * covered * (1 - frontal))
    return ((thick * (1 + waves) - 0.02) * closed + 0.012).astype(np.float32)


def _knot(skull: _Skull, detail: float) -> list[_Surface]:
    """An oval knot behind the crown."""
    p = skull.person
    if p.bun <= 0:
        return []
    rows = _ticks(0.01, np.pi - 0.01, 90, detail)[:, None]
    angle = _ticks(-np.pi, np.pi, 160, detail)[None, :]
    radius = 0.08 + 0.18 * min(p.bun, 1.1)
    coil = np.sin(9 * angle + 5 * rows)
    x = radius * np.sin(rows) * np.sin(angle) * (1 + 0.04 * coil)
    y = 0.45 + 0.95 * radius * np.cos(rows) + 0 * angle
    z = -0.92 * p.head_depth - 0.5 * radius + radius * np.sin(rows) * np.cos(angle) * (1 + 0.04 * coil)
    colour = _filled(p.hair, x.shape) * (0.9 + 0.12 * coil)
    return [_sheet((x, skull.lift(y), z), colour, 0.3, hair=True)]


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
        return (1 - _smooth(gap, 0.0, 1.0)).astype(np.float32)

    rows, columns = coarse.shape
    return weights(at_row, rows, False) @ coarse @ weights(at_column, columns, True).T


# -- the renderer
#
# Z-buffered splatting of point-sampled surfaces, then shading of the visible points only. The meshes are sampled more
# densely than the pixel grid, so a surface is drawn by marking, for each pixel, the nearest point that falls into it;
# no triangle is ever set up. A view costs O(points + pixels).

_BACKGROUND = (0.955, 0.955, 0.96)

_SUPERSAMPLING = 2
_TOP, _BOTTOM = 1.50, -1.70  # head units shown
_INDEX_BITS = 32  # a z-buffer entry is depth above, point number below


@dataclass(frozen=True)
class _Surface:
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


def _join(surfaces: Sequence[_Surface]) -> _Surface:
    """One surface holding the points of all the given ones."""
    names = ("points", "normals", "strands", "colours", "gloss", "hair", "two_sided")
    return _Surface(**{name: np.concatenate([getattr(s, name) for s in surfaces], axis=-1) for name in names})


def _sheet(
    xyz: tuple[FloatArray, FloatArray, FloatArray],
    colours: FloatArray,
    gloss: FloatArray | float,
    keep: NDArray[np.bool_] | None = None,
    hair: bool = False,
    two_sided: NDArray[np.bool_] | bool = False,
) -> _Surface:
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
    return _Surface(
        take(points),
        normals,
        _unit(take(down)) if hair else np.zeros_like(normals),
        _linear(take(colours)),
        np.broadcast_to(np.asarray(gloss, np.float32), shape).reshape(-1)[chosen],
        np.full(len(chosen), hair),
        np.broadcast_to(np.asarray(two_sided, bool), shape).reshape(-1)[chosen],
    )


def _linear(colour: FloatArray) -> FloatArray:
    """Linear light of an sRGB colour (power 2.2)."""
    return np.maximum(colour, 0).astype(np.float32) ** np.float32(2.2)


def _render(surface: _Surface, angle: float, size: int, light: tuple[float, float, float]) -> NDArray[np.uint8]:
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
    canvas[:] = _linear(np.array(_BACKGROUND, np.float32))[:, None]
    canvas[:, inside] = shade
    pooled = _pool(canvas.reshape(3, fine, fine)).transpose(1, 2, 0)
    return np.rint(255 * np.clip(pooled, 0, 1) ** np.float32(1 / 2.2)).astype(np.uint8)


def _pool(fine: FloatArray) -> FloatArray:
    """Means of 2 x 2 pixels of (3, height, width)."""
    rows = fine[:, 0::2] + fine[:, 1::2]
    return (rows[:, :, 0::2] + rows[:, :, 1::2]) / _SUPERSAMPLING**2


def _visible(surface: _Surface, turn: FloatArray, fine: int) -> tuple[NDArray[np.int64], FloatArray]:
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


def _shade(surface: _Surface, seen: NDArray[np.int64], turn: FloatArray, light: FloatArray) -> FloatArray:
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
