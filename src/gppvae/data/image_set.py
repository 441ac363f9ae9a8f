"""Images with their table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A part of a data set.

    Attributes:
        images: (n, height, width) or (n, channels, height, width), floats or bytes.
        table: one row per image.
    """

    images: np.ndarray
    table: pd.DataFrame

    def pixels(self) -> np.ndarray:
        """The images as network input: 8 and 16 bits as float32 in [0, 1], floats unchanged."""
        return unit_pixels(self.images, self.images.dtype)

    def take(self, rows: np.ndarray) -> ImageSet:
        """A subset, by row numbers or by mask."""
        return ImageSet(self.images[rows], self.table.loc[self.table.index[rows]].reset_index(drop=True))


def unit_pixels(images: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    """Images with values of type `kind`, or averages of these, divided by the white of 8 or 16 bits."""
    if kind not in (np.uint8, np.uint16):
        return images
    return images.astype(np.float32) / np.float32(np.iinfo(kind).max)
