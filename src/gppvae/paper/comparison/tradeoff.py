"""Choosing the trade-off between reconstruction and prior, as the paper's supplement does (Figures S3 and S4).

One parameter decides it: the pixel variance sigma_y^2, or lambda = 2 L sigma_y^2 / K. All methods share the value
at which a plain VAE has the highest validation bound; CVAE-opt and LIVAE-opt take the value at which they predict
what is asked about validation data best. A grid whose best value lies at its edge is widened there, so that no method
loses by the range that was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gppvae.data.image_set import ImageSet
from gppvae.estimator import VAE
from gppvae.paper.comparison.task import Task
from gppvae.paper.comparison.workshop import Workshop, decoded, encoded
from gppvae.paper.cvae.estimator import CVAE
from gppvae.paper.cvae.model import object_latents
from gppvae.paper.evaluation import mse_per_sample
from gppvae.paper.livae import interpolate_latents
from gppvae.paper.statistics import standard_error

SELECTION_SEED = 0


@dataclass(frozen=True)
class Choice:
    """A curve over the grid and the value it chose.

    Attributes:
        grid: pixel variances that were tried, in order.
        values: validation bound (nats per image) or validation error at each.
        errors: standard errors of these over images.  chosen: pixel variance.
    """

    grid: list[float]
    values: list[float]
    errors: list[float]
    chosen: float

    @property
    def inside(self) -> bool:
        """Whether values on both sides of the chosen one were tried."""
        return self.chosen not in (self.grid[0], self.grid[-1])

    def facts(self) -> dict[str, Any]:
        found = {"grid": self.grid, "values": self.values, "standard_errors": self.errors}
        return found | {"chosen": self.chosen, "inside": self.inside}


def validation_bounds(model: VAE, images: np.ndarray, seed: int = 0) -> np.ndarray:
    """The VAE's bound for each validation image in nats, sigma_y^2 as the validation images themselves estimate it.

    ELBO_n = -K/2 log(2 pi s2) - |y_n - g(z_n)|^2 / (2 s2) - KL_n, with s2 the mean squared error over all
    images and pixels at one draw of z. Source: supplement, "Selection of lambda" (which leaves out 1/K).
    """
    mean, std = model.encode(images, return_std=True)
    assert isinstance(mean, np.ndarray)
    z = mean + std * np.random.default_rng(seed).standard_normal(mean.shape)
    squares = (
        np.square(decoded(model, z).reshape(images.shape) - images)
        .reshape(len(images), -1)
        .sum(axis=1, dtype=np.float64)
    )
    n_pixels = images[0].size
    pixel_var = squares.mean() / n_pixels
    kl = 0.5 * (mean**2 + std**2 - 1.0 - 2.0 * np.log(std)).sum(axis=1, dtype=np.float64)
    return -0.5 * n_pixels * math.log(2.0 * math.pi * pixel_var) - 0.5 * squares / pixel_var - kl


def cvae_latents(model: CVAE, task: Task, given: ImageSet, asked: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the latent of each asked row's object, from all its given views."""
    mean, var = model.encode_views(given.images, given.table)
    return object_latents(mean, var, task.objects(given), task.objects(asked))


def livae_latents(model: VAE, task: Task, given: ImageSet, asked: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the latent at each asked row, between its object's two nearest given views."""
    latents = encoded(model, given)
    there, here = (task.objects(given), task.angles(given)), (task.objects(asked), task.angles(asked))
    return interpolate_latents(*latents, *there, *here, task.period)


def select_shared(work: Workshop) -> Choice:
    """The value for all methods: highest validation bound of the VAE (Figure S3)."""
    images = work.task.valid.pixels()
    return _choose(
        work, lambda value: validation_bounds(work.selection_vae(SELECTION_SEED, value), images), highest=True
    )


def select_livae(work: Workshop) -> Choice:
    """The value at which interpolation predicts validation images best (Figures S4 and S5)."""
    task = work.task

    def errors(value: float) -> np.ndarray:
        model = work.selection_vae(SELECTION_SEED, value)
        guess = decoded(model, livae_latents(model, task, task.given, task.asked)[0])
        return mse_per_sample(task.asked.pixels(), guess)

    return _choose(work, errors, highest=False)


def select_cvae(work: Workshop) -> Choice:
    """The value at which the CVAE predicts validation images best (Figures S4 and S5)."""
    task = work.task

    def errors(value: float) -> np.ndarray:
        model = work.cvae(SELECTION_SEED, value, work.setup.select_epochs)
        guess = model.decode_views(cvae_latents(model, task, task.given, task.asked)[0], task.asked.table)
        return mse_per_sample(task.asked.pixels(), guess)

    return _choose(work, errors, highest=False)


def _choose(work: Workshop, per_image: Callable[[float], np.ndarray], highest: bool) -> Choice:
    """The best value of the grid, which grows beyond its edges while the best lies there."""
    return widened(work.setup.grid, per_image, highest, work.setup.most_values)


def widened(grid: Sequence[float], per_image: Callable[[float], np.ndarray], highest: bool, most_values: int) -> Choice:
    """Scores over a grid of at least two values, one more value at a time at an edge that may be as good as the best.

    An edge is left when it is worse than the best by more than twice the standard error of the difference over images:
    a curve may fall again after a rise that is only noise.

    Args:
        grid: to start with, in rising order; steps beyond an edge are those of the grid there.
        per_image: score of every image at a value.  highest: is best.  most_values: of the grid, at which it ends.
    """
    values = list(grid)
    scores = {value: per_image(value) for value in values}
    while True:
        means = [float(scores[value].mean()) for value in values]
        best = int(np.argmax(means) if highest else np.argmin(means))
        worse = {edge: abs(means[edge] - means[best]) for edge in (0, -1)}
        doubt = {edge: 2.0 * standard_error(scores[values[edge]] - scores[values[best]]) for edge in (0, -1)}
        going = [edge for edge in (-1, 0) if values[edge] == values[best] or worse[edge] < doubt[edge]]
        if not going or len(values) >= most_values:
            return Choice(values, means, [standard_error(scores[value]) for value in values], values[best])
        more = values[-1] ** 2 / values[-2] if going[0] == -1 else values[0] ** 2 / values[1]
        more = float(f"{more:.6g}")
        scores[more] = per_image(more)
        values = [*values, more] if going[0] == -1 else [more, *values]
