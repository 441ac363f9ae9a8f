"""Rotated MNIST (Casale et al. 2018): 400 threes at 16 angles, one held out, split in the ways papers report on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gppvae.data.digits import load_threes
from gppvae.data.rotated_digits import RotatedDigits, draw_split
from gppvae.paper.comparison.task import Task
from gppvae.paper.mnist import load_mnist

SPLITS, SOURCES = ("paper", "published"), ("embedded", "mnist")
OBJECT, VIEW, PERIOD = "digit", "angle", 360.0
N_DIGITS, N_ANGLES = 400, 16
_LABEL = 3
_N_MNIST_THREES = 6131


def load_split(split: str, source: str = "embedded", mnist: str | Path | None = None) -> RotatedDigits:
    """The split by name.

    Args:
        split: "paper" draws one as the paper describes it, "published" is that of later papers (needs MNIST).
        source: of the threes of "paper": "embedded" (inside the package) or "mnist".  mnist: folder of the MNIST files.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}; paper is the default")
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {source!r}; embedded is the default")
    if split == "published":
        return published_split(mnist)
    return paper_split(seed=0, source="mnist" if source == "mnist" else "embedded", mnist_folder=mnist)


def published_split(mnist_folder: str | Path | None = None, dtype: npt.DTypeLike = np.float32) -> RotatedDigits:
    """Rebuild the split on which later papers report (SVGP-VAE, SGP-BAE), from the full MNIST.

    It is what `paper_split` draws from MNIST with seed 0, and the tests pin it by checksum. The held-out
    angle is 157.5 degrees.

    Args:
        mnist_folder: see `gppvae.paper.mnist.find_mnist`.
        dtype: of the images.
    """
    threes = _mnist_threes(mnist_folder)
    return draw_split("published", threes, N_DIGITS, N_ANGLES, seed=0, held_out_angle=None, dtype=dtype)


def paper_split(
    seed: int = 0,
    source: Literal["embedded", "mnist"] = "embedded",
    mnist_folder: str | Path | None = None,
    n_digits: int = N_DIGITS,
    dtype: npt.DTypeLike = np.float32,
) -> RotatedDigits:
    """Draw a split as the paper describes it: 4,050 training and 270 test images of 400 threes.

    Args:
        seed: decides the digits, the held-out angle and which images are removed.
        source: "embedded" (500 threes inside the package, no download) or "mnist" (all 6,131).
        mnist_folder: for source "mnist", see `gppvae.paper.mnist.find_mnist`.
        n_digits: how many threes to draw.
        dtype: of the images.
    """
    if source not in SOURCES:
        raise ValueError(f'source must be "embedded" or "mnist", got {source!r}')
    threes = load_threes() if source == "embedded" else _mnist_threes(mnist_folder)
    name = f"paper-{source}-{n_digits}x{N_ANGLES}-seed{seed}"
    return draw_split(name, threes, n_digits, N_ANGLES, seed, held_out_angle=None, dtype=dtype)


def _mnist_threes(folder: str | Path | None) -> np.ndarray:
    """Return all threes of the MNIST training half, float64 in [0, 1]."""
    images, labels = load_mnist(folder, "train")
    threes: np.ndarray = images[labels == _LABEL] / 255.0
    if len(threes) != _N_MNIST_THREES:
        raise ValueError(
            f"the MNIST training files should hold {_N_MNIST_THREES} threes, got {len(threes)}; "
            "download them again with gppvae.paper.mnist.download_mnist()"
        )
    return threes


def data_facts(digits: RotatedDigits) -> dict[str, Any]:
    """What the results say about the data."""
    return {
        "name": digits.name,
        "train": len(digits.train.table),
        "validation": len(digits.valid.table),
        "test": len(digits.test.table),
        "angles": len(digits.angles),
        "held_out_angle": digits.held_out_angle,
    }


def task(digits: RotatedDigits) -> Task:
    """The comparison's question about these digits: every one at the held-out angle.

    Validation digits, which have all angles, are asked for at the held-out one, given their other views.
    """
    train, valid = digits.train, digits.valid
    wanted = np.isclose(valid.table[VIEW].to_numpy(), digits.held_out_angle)
    given, asked = valid.take(~wanted), valid.take(wanted)
    return Task(
        "rotated_mnist", train, valid, given, asked, shown=train, test=digits.test, object=OBJECT, view=VIEW,
        angle=VIEW, period=PERIOD, views={f"{angle:g}": angle for angle in digits.angles}, facts=data_facts(digits),
    )  # fmt: skip
