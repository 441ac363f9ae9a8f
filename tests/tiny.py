"""A problem so small that an epoch takes milliseconds: a bright spot on a circle, seen from several angles."""

import numpy as np
import pandas as pd

KERNEL = "Learned(spot, 3) * Periodic(angle, 360)"
SIZE = 8


def spots(n_objects: int = 5, n_views: int = 12) -> tuple[np.ndarray, pd.DataFrame]:
    """Images (N, 8, 8) float32 in [0, 1] and their table: `spot` is an id, `angle` in degrees.

    Spot p circles at a radius and with a size of its own.
    """
    ys, xs = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    images, rows = [], []
    for p in range(n_objects):
        radius, width = 1.0 + 1.8 * p / max(1, n_objects - 1), 1.3 + 0.2 * (p % 3)
        for q in range(n_views):
            angle = 360.0 * q / n_views
            x0, y0 = radius * np.cos(np.deg2rad(angle)), radius * np.sin(np.deg2rad(angle))
            images.append(np.exp(-((xs - x0) ** 2 + (ys - y0) ** 2) / (2 * width**2)))
            rows.append((f"s{p}", angle))
    return np.array(images, dtype=np.float32), pd.DataFrame(rows, columns=["spot", "angle"])


def held_out(view: float = 90.0) -> tuple[np.ndarray, pd.DataFrame, np.ndarray, pd.DataFrame]:
    """Images and table to train on, and those at one angle that nobody saw."""
    images, table = spots()
    test = (table["angle"] == view).to_numpy()
    return images[~test], table[~test].reset_index(drop=True), images[test], table[test].reset_index(drop=True)
