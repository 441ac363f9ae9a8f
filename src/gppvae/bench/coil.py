"""COIL-20: twenty objects on a turntable, asked for half-way between the views, and objects never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from gppvae.bench.task import MSE, Columns, Question, Target, Task, errors_of
from gppvae.estimator.simple_answers import copy_nearest_view, mean_image, mean_of_nearest_view

KERNEL = "Learned(object) * Periodic(angle, 360)"
OBJECTS, VIEWS, STEP, SIZE = 20, 72, 5, 64  # views are STEP degrees apart
TARGETS = {20: 0.85, 40: 0.80}
NEW_OBJECTS, NEW_SPACING, GIVEN = (5, 10, 15, 20), 20, (1, 2, 4, 8)
Views = tuple[np.ndarray, Columns]


@lru_cache(maxsize=1)
def images(folder: Path) -> np.ndarray:
    """All pictures, (20, 72, 64, 64), grey in [0, 1]; each pixel is the mean of 2 x 2."""

    def one(number: int, view: int) -> np.ndarray:
        with Image.open(folder / f"obj{number}__{view}.png") as picture:
            return np.asarray(picture.convert("L").resize((SIZE, SIZE), Image.Resampling.BOX), np.float32) / 255

    return np.stack([np.stack([one(number, view) for view in range(VIEWS)]) for number in range(1, OBJECTS + 1)])


def views_of(pictures: np.ndarray, objects: Sequence[int], views: Sequence[int]) -> Views:
    """Samples and table of some views (numbers from 0) of some objects (numbers from 1)."""
    pairs = [(number, view) for number in objects for view in views]
    table = {"object": [str(number) for number, _ in pairs], "angle": [float(STEP * view) for _, view in pairs]}
    return np.stack([pictures[number - 1, view] for number, view in pairs]), table


def interpolation(data: Path, spacing: int) -> Task:
    """Views every `spacing` degrees are trained on, those half-way are asked for."""
    pictures = images(data / "coil20")
    everyone, every = range(1, OBJECTS + 1), spacing // STEP
    samples, table = views_of(pictures, everyone, range(0, VIEWS, every))
    truth, asked = views_of(pictures, everyone, range(every // 2, VIEWS, every))
    # Training and asked rows have the same order, so the neighbours are this row's and the object's next.
    rings = samples.reshape(OBJECTS, -1, SIZE, SIZE)
    answers = {
        "blend": ((rings + np.roll(rings, -1, axis=1)) / 2).reshape(truth.shape),
        "nearest": copy_nearest_view(samples, table, asked, "object", "angle", 360.0),
        "mean of the object": np.repeat(rings.mean(axis=1), rings.shape[1], axis=0),
    }
    name = f"coil20-{spacing}"
    question = Question(name, asked, truth, errors_of(MSE, truth, answers), Target(TARGETS[spacing], ("blend",)))
    about = f"COIL-20, 64 x 64 grey, views every {spacing} degrees, half-way angles asked"
    return Task(name, KERNEL, samples, table, [question], about)


def new_objects(data: Path) -> Task:
    """Four objects are left out of training and added from k views; their other views are asked for."""
    pictures, every = images(data / "coil20"), NEW_SPACING // STEP
    grid = list(range(0, VIEWS, every))
    known = [number for number in range(1, OBJECTS + 1) if number not in NEW_OBJECTS]
    samples, table = views_of(pictures, known, grid)
    questions = []
    for k in GIVEN:
        chosen = [grid[i * len(grid) // k] for i in range(k)]
        given = views_of(pictures, NEW_OBJECTS, chosen)
        truth, asked = views_of(pictures, NEW_OBJECTS, [view for view in grid if view not in chosen])
        answers = {
            "nearest": copy_nearest_view(*given, asked, "object", "angle", 360.0),
            "mean": mean_image(samples, len(truth)),
            "mean of the view": mean_of_nearest_view(samples, table, asked, "angle", 360.0),
        }
        questions.append(
            Question(
                f"coil20-new, {k} given", asked, truth, errors_of(MSE, truth, answers),
                Target(1.0, ("nearest", "mean")), new=given,
            )
        )  # fmt: skip
    about = f"COIL-20 without four objects, views every {NEW_SPACING} degrees; those four added from a few views each"
    return Task("coil20-new", KERNEL, samples, table, questions, about)
