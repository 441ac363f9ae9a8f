"""Rotated digits, the split of later papers, with one angle held out."""

from __future__ import annotations

from pathlib import Path

from gppvae.bench.task import MSE, Question, Target, Task, errors_of
from gppvae.estimator.simple_answers import copy_nearest_view, mean_image, mean_of_nearest_view
from gppvae.paper.rotated_mnist.data import OBJECT, PERIOD, VIEW, published_split

KERNEL = "Learned(digit) * Periodic(angle, 360)"
TARGET = 0.0060


def rotated_digits(data: Path) -> Task:
    """Threes at fifteen angles, asked for at the sixteenth."""
    split = published_split(data / "mnist")
    train, test = split.train, split.test
    answers = {
        "nearest": copy_nearest_view(train.images, train.table, test.table, OBJECT, VIEW, PERIOD),
        "mean of the view": mean_of_nearest_view(train.images, train.table, test.table, VIEW, PERIOD),
        "mean": mean_image(train.images, len(test.table)),
    }
    asked = test.table[[OBJECT, VIEW]].to_dict("list")
    question = Question("digits", asked, test.images, errors_of(MSE, test.images, answers), Target(TARGET))
    about = "rotated MNIST, published split, 28 x 28 grey, the held-out angle asked"
    return Task("digits", KERNEL, train.images, train.table[[OBJECT, VIEW]].to_dict("list"), [question], about)
