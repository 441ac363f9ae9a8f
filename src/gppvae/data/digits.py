"""The first 500 handwritten threes of MNIST's training set, shipped with the package."""

from __future__ import annotations

from importlib import resources

import numpy as np
from PIL import Image

SHEET, PER_ROW, SIZE = "threes.png", 25, 28
N_THREES = 500


def load_threes() -> np.ndarray:
    """Return the 500 handwritten threes in the package; nothing is downloaded.

    They are stored in one image, `threes.png`, 25 per row. MNIST is by Y. LeCun and C. Cortes (CC BY-SA 3.0, see
    NOTICE).

    Returns:
        Images (500, 28, 28), float64 in [0, 1], in MNIST's order.

    Example:
        >>> from gppvae.data.digits import load_threes
        >>> threes = load_threes()
        >>> threes.shape, float(threes.min()), float(threes.max())
        ((500, 28, 28), 0.0, 1.0)
    """
    with (resources.files("gppvae.data") / SHEET).open("rb") as file, Image.open(file) as picture:
        sheet = np.asarray(picture)  # (20 * 28, 25 * 28)
    rows = sheet.reshape(-1, SIZE, PER_ROW, SIZE).swapaxes(1, 2)  # (20, 25, 28, 28)
    return rows.reshape(N_THREES, SIZE, SIZE) / 255.0
