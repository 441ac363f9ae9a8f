"""What follows a training: variances, how samples of one object resemble each other, noise of new samples."""

from __future__ import annotations

import copy
import logging
import math

import numpy as np
import torch
from torch import Tensor

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Rows
from gppvae.estimator.prediction import Calibration
from gppvae.estimator.validation import squared_errors
from gppvae.likelihoods import PIXEL_VARS, Gaussian, Likelihood, ScaledGaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.laplace import laplace_posterior
from gppvae.models.objects import learned_by_column
from gppvae.models.predict import decode_mean, row_chunks
from gppvae.models.remainders import Remainders, Resemblance, directions, measure, rows_to_compare
from gppvae.prior.posterior import LatentPosterior

log = logging.getLogger("gppvae")
CALIBRATION_ROWS, CALIBRATION_VALUES = 512, 2**21
Fitted = tuple[GPPriorVAE, LatentPosterior]


@torch.no_grad()
def learn_noise(fitted: Fitted, epoch: Epoch) -> None:
    """Take the noise of new samples from the errors at these rows, if the likelihood asks for it."""
    likelihood = fitted[0].autoencoder.likelihood
    if likelihood.learns_noise:
        errors, counts = squared_errors(epoch, lambda batch: decode_mean(*fitted, batch.rows))
        likelihood.learn_noise(errors / counts.clamp_min(1.0))


def trusted_posterior(fitted: Fitted, epoch: Epoch) -> LatentPosterior:
    """q(B) with the means that were trained, and variances from what the training rows say through the decoder."""
    try:
        return laplace_posterior(*fitted, epoch)
    except torch.linalg.LinAlgError as error:  # a fit that took hours is kept
        reason = " ".join(str(error).split())
        log.warning("variances are those of training, since the algebra of measured ones failed (%s)", reason)
        return fitted[1]


@torch.no_grad()
def resemblance(fitted: Fitted, data: Samples, rows: Rows, unit: Tensor) -> Remainders:
    """How samples of one object resemble each other, for those that are added later."""
    found, prior = Remainders(), fitted[0].prior
    for column, picked in rows_to_compare(prior, rows).items():
        y, mask = data.read(picked.cpu())
        seen = torch.ones_like(y) if mask is None else mask.to(y)
        mean = (y * seen).sum(0) / seen.sum(0).clamp_min(1.0)
        predicted = torch.cat([decode_mean(*fitted, chunk).cpu() for chunk in row_chunks(rows[picked])])
        parts = [((y - of) * seen / unit).flatten(1) for of in (mean, predicted)]
        of_deviations, of_errors = (measure(prior, column, rows[picked], part) for part in parts)
        found.resembling[column] = Resemblance(of_deviations, of_errors, directions(parts[0]))
    return found


@torch.no_grad()
def keep_remainders(remainders: Remainders, fitted: Fitted, epoch: Epoch, ids: list[str], unit: Tensor) -> None:
    """Keep what samples of added ids differ by from their prediction, to carry it over to their other rows."""
    model, errors = fitted[0], []
    if not isinstance(model.autoencoder.likelihood.values, (Gaussian, ScaledGaussian)):
        return
    for batch in epoch:
        error = batch.y - decode_mean(*fitted, batch.rows)
        errors.append((error if batch.mask is None else torch.where(batch.mask, error, 0.0)).cpu())
    for column, leaves in learned_by_column(model.prior).items():
        if set(ids) <= set(leaves[0].levels[leaves[0].n_trained :]):
            remainders.keep(model.prior, column, ids, epoch.rows, torch.cat(errors), unit)


def rows_to_calibrate(likelihood: Likelihood, n: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """Which of n samples errors are measured at; None for likelihoods that know their noise."""
    if not isinstance(likelihood.values, (Gaussian, ScaledGaussian)):
        return None
    most = max(32, min(CALIBRATION_ROWS, CALIBRATION_VALUES // math.prod(shape)))
    return np.arange(0, n, -(-max(n, 1) // most))


def measured_noise(
    likelihood: Likelihood, calibration: Calibration | None, device: torch.device, times: float = 1.0
) -> Likelihood:
    """The likelihood of values with its noise as measured, which is what new samples differ by, so many times."""
    values = copy.deepcopy(likelihood.values)
    if isinstance(values, ScaledGaussian):
        values.var.mul_(times)
    elif isinstance(values, Gaussian):
        var = float(values.pixel_var.detach()) if calibration is None else calibration.error_var
        return Gaussian(min(max(times * var, PIXEL_VARS[0]), PIXEL_VARS[1])).to(device)
    return values


def dependence(remainders: Remainders) -> float:
    """What the noise of new objects is multiplied by.

    A decoder misses a new object in whole regions, so its errors are no independent evidence: the factor is the size of
    a sample over the number of directions in which samples vary.
    """
    return 1.0 / min((own.directions for own in remainders.resembling.values()), default=1.0)
