"""Continuous factors that make one rendered head a person.

Every factor is a number (or a short colour vector), so identities fill a continuous space: two people never
differ by a hidden switch only. Lengths are in head units (about 10 cm; chin to crown is 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, float, float]

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
