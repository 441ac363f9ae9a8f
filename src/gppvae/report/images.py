"""Samples as pictures: axis order, grey levels, contact sheets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether samples of this shape, (channels, height, width) or (values,), can be shown as pictures."""
    return len(shape) == 3


def to_pictures(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., channels, height, width) as (..., height, width, 3) for three channels, else grey by their mean."""
    array = np.asarray(samples, dtype=np.float64)
    return np.moveaxis(array, -3, -1) if array.shape[-3] == 3 else array.mean(axis=-3)


def shade_range(samples: NDArray[np.float64]) -> tuple[float, float]:
    """Values shown as black and white: 0 and 1 if they suit the data, else about the minimum and maximum."""
    finite = np.asarray(samples)[np.isfinite(samples)]
    if finite.size == 0:
        return 0.0, 1.0
    low, high = float(np.quantile(finite, 0.001)), float(np.quantile(finite, 0.999))
    if low >= -0.5 and 0.2 <= high <= 1.5:  # with a margin, since spline interpolation overshoots at edges
        return 0.0, 1.0
    return (low, high) if high > low else (low, low + 1.0)


def contact_sheet(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """All pictures (n, h, w[, 3]) on one roughly square white sheet, row by row."""
    n, height, width = pictures.shape[:3]
    gap, columns = 2, max(1, round((n * height / width) ** 0.5))
    rows = -(-n // columns)
    size = (rows * (height + gap) - gap, columns * (width + gap) - gap, *pictures.shape[3:])
    sheet = np.full(size, 255, dtype=np.uint8)
    for number, picture in enumerate(pictures):
        top, left = (number // columns) * (height + gap), (number % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    return sheet


def check_images(images: ArrayLike, leading: int, name: str) -> NDArray[Any]:
    """The array, if it has `leading` axes followed by (h, w) or (h, w, 3); else ValueError."""
    array = np.asarray(images)
    colour = array.ndim == leading + 3 and array.shape[-1] == 3
    if array.size == 0 or not (array.ndim == leading + 2 or colour):
        lead = "n, " * leading
        raise ValueError(f"{name} must have shape ({lead}h, w) or ({lead}h, w, 3), got {array.shape}")
    return array


def to_uint8(images: ArrayLike, vmin: float | None = None, vmax: float | None = None) -> NDArray[np.uint8]:
    """Map [vmin, vmax] to 0..255 and clip; NaN becomes 0.

    By default vmin is 0 and vmax the white of the type: 65535 for 16 bits, 255 for other integers, 1 for floats.
    """
    array = np.asarray(images)
    default = 65535.0 if array.dtype == np.uint16 else 255.0 if array.dtype.kind in "iu" else 1.0
    low, high = 0.0 if vmin is None else vmin, default if vmax is None else vmax
    if not high > low:
        raise ValueError(f"vmax must be greater than vmin, got vmin={low} and vmax={high}")
    scaled = np.clip((array.astype(np.float64) - low) / (high - low), 0.0, 1.0)
    return np.rint(255.0 * np.nan_to_num(scaled)).astype(np.uint8)
