"""The question of one comparison: what is trained on, what is asked, and which columns say what a picture shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gppvae.data.image_set import ImageSet
from gppvae.data.table import Table

MIRRORED = "mirrored"  # column that tells mirror images ("yes") from others


@dataclass(frozen=True, eq=False)
class Task:
    """Data of one comparison.

    Attributes:
        experiment: its name in results.  facts: what the results say about the data.
        train: to fit to.  valid: images whose bound chooses the trade-off.
        given, asked: the test's question put to validation data: views to look at, views to predict.
        shown: views of the test's objects that methods may look at; the training images unless the objects are new.
        test: views to predict.
        object, view: columns of objects and views.  angle: column of numbers in whose order views lie.
        period: of the angle, or None for views on a line.
        views: label and angle of every view, in the order of figures.
        stop_on: what early stopping looks at; None where every phase has its length.
        new_objects: whether the test's objects are unknown from training.
        mirrored: the training images and their mirror images, told apart by a column; None where views have none.
    """

    experiment: str
    train: ImageSet
    valid: ImageSet
    given: ImageSet
    asked: ImageSet
    shown: ImageSet
    test: ImageSet
    object: str
    view: str
    angle: str
    period: float | None
    views: dict[str, float]
    facts: dict[str, Any] = field(default_factory=dict)
    stop_on: ImageSet | None = None
    new_objects: bool = False
    mirrored: ImageSet | None = None

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.test.images.shape[1:]

    def pictures(self, predicted: np.ndarray) -> np.ndarray:
        """What networks predict, (n, channels, height, width), in the shape of the images."""
        return predicted.reshape(len(predicted), *self.image_shape)

    def objects(self, part: ImageSet) -> np.ndarray:
        return Table(part.table).ids(self.object)

    def angles(self, part: ImageSet) -> np.ndarray:
        return Table(part.table).numeric((self.angle,))[:, 0]
