"""Handwritten threes at evenly spaced angles, one angle held out.

The split follows Casale et al. 2018, Sec. "Rotated MNIST": 10% of the digits are for validation, one angle is the test
set, and a quarter of the remaining images is removed at random.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import ndimage

from gppvae.data.digits import load_threes
from gppvae.data.image_set import ImageSet


@dataclass(frozen=True, eq=False)
class RotatedDigits:
    """A split data set of rotated digits.

    Images are (n, 28, 28); in the tables, `digit` is the number of the handwritten three and `angle` its rotation in
    degrees.

    Attributes:
        name: of the split.
        train: views of the first 90% of the digits, without the held-out angle.
        valid: all views of the last 10% of the digits, digit by digit.
        test: digits of the training part at the held-out angle; each has at least one training view.
        angles: all angles in degrees, including the held-out one.
        held_out_angle: the angle of the test images.
    """

    name: str
    train: ImageSet
    valid: ImageSet
    test: ImageSet
    angles: tuple[float, ...]
    held_out_angle: float


def small_split(
    n_digits: int,
    n_angles: int,
    seed: int = 0,
    held_out_angle: float | None = None,
    dtype: npt.DTypeLike = np.float32,
) -> RotatedDigits:
    """Draw a small data set from the threes in the package.

    Args:
        n_digits: number of threes, 10 to 500.
        n_angles: number of evenly spaced angles from 0 degrees, at least 2.
        seed: of the choice of digits, held-out angle and removed images. Giving `held_out_angle` does not change the
            other draws.
        held_out_angle: one of the angles, in degrees; None draws one.
        dtype: of the images.

    Example:
        >>> from gppvae.data.rotated_digits import small_split
        >>> digits = small_split(n_digits=10, n_angles=4, held_out_angle=90.0)
        >>> sorted(set(digits.train.table["angle"])), digits.test.images.shape[1:]
        ([0.0, 180.0, 270.0], (28, 28))
    """
    name = f"small-{n_digits}x{n_angles}-seed{seed}"
    return draw_split(name, load_threes(), n_digits, n_angles, seed, held_out_angle, dtype)


def rotate(images: npt.ArrayLike, angles: Sequence[float]) -> np.ndarray:
    """Rotate every image by every angle about its centre, with cubic splines.

    The splines overshoot by about a quarter at sharp edges; the values are not clipped, as in the published data.

    Args:
        images: (P, height, width).
        angles: Q angles in degrees.

    Returns:
        Views (P, Q, height, width), float64.
    """
    stack = np.asarray(images, dtype=np.float64)
    if stack.ndim != 3:
        raise ValueError(f"images must have shape (number, height, width), got {stack.shape}")
    views = np.empty((len(stack), len(angles), *stack.shape[1:]))
    for q, angle in enumerate(angles):
        views[:, q] = ndimage.rotate(stack, angle, axes=(1, 2), reshape=False)
    return views


def draw_split(
    name: str,
    pool: np.ndarray,
    n_digits: int,
    n_angles: int,
    seed: int,
    held_out_angle: float | None,
    dtype: npt.DTypeLike,
) -> RotatedDigits:
    """Draw digits from a pool (n, 28, 28), rotate them and split the views.

    The published split depends on the order of the draws and on Python's `random`: change neither.
    """
    _check_sizes(n_digits, n_angles, len(pool))
    stream = random.Random(_checked_seed(seed))
    angles = tuple(360.0 * q / n_angles for q in range(n_angles))
    picked = stream.sample(range(len(pool)), n_digits)
    drawn_angle = stream.sample(range(n_angles), 1)[0]
    held_out = drawn_angle if held_out_angle is None else _angle_index(held_out_angle, angles)

    n_known = n_digits - n_digits // 10  # digits outside the validation set
    cells = [(p, q) for p in range(n_known) for q in range(n_angles) if q != held_out]
    train = [cells[i] for i in stream.sample(range(len(cells)), 3 * len(cells) // 4)]
    # In a small data set a digit can lose all its training views; it could not be predicted.
    seen = sorted({p for p, _ in train})
    test = [(p, held_out) for p in stream.sample(seen, 3 * n_known // 4)]
    valid = [(p, q) for p in range(n_known, n_digits) for q in range(n_angles)]

    views = rotate(pool[picked], angles)  # (P, Q, 28, 28)
    return RotatedDigits(
        name=name,
        train=_gathered(views, train, angles, dtype),
        valid=_gathered(views, valid, angles, dtype),
        test=_gathered(views, test, angles, dtype),
        angles=angles,
        held_out_angle=angles[held_out],
    )


def _gathered(
    views: np.ndarray, rows: Sequence[tuple[int, int]], angles: Sequence[float], dtype: npt.DTypeLike
) -> ImageSet:
    """The views at (digit, index of the angle), one per row."""
    p, q = np.array(rows).T
    table = pd.DataFrame({"digit": p.astype(np.int64), "angle": np.asarray(angles)[q]})
    return ImageSet(views[p, q].astype(dtype), table)


def _check_sizes(n_digits: int, n_angles: int, n_available: int) -> None:
    """Reject sizes that leave a part empty or need more digits than available."""
    if not 10 <= n_digits <= n_available:
        raise ValueError(f"n_digits must be from 10 to {n_available} for this source, got {n_digits}")
    if n_angles < 2:
        raise ValueError(f"n_angles must be at least 2 (one is held out), got {n_angles}")


def _checked_seed(seed: int) -> int:
    """Reject seeds that Python accepts silently: None seeds from the clock, and -1 is the same as 1."""
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed must be a whole number, got {seed!r}") from None
    if number < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return number


def _angle_index(angle: float, angles: Sequence[float]) -> int:
    """Index of the given angle."""
    nearest = int(np.argmin(np.abs(np.asarray(angles) - angle)))
    if not np.isclose(angles[nearest], angle, rtol=0, atol=1e-9):
        listed = ", ".join(f"{a:g}" for a in angles)
        raise ValueError(f"held_out_angle must be one of {listed}, got {angle:g}")
    return nearest
