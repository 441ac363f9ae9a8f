"""Measurements at the end of a fit: noise, calibration, posterior variances, statistics for impute() and new ids."""

from __future__ import annotations

import abc
import contextlib
import copy
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gppvae.data.arrays import Samples, from_input_layout
from gppvae.data.batches import Epoch, derive_seed
from gppvae.data.header import checked_content
from gppvae.data.table import Rows, Table
from gppvae.data.words import reason
from gppvae.estimator.base import Estimator
from gppvae.estimator.calibration import Calibration, calibrate
from gppvae.estimator.checks import whole
from gppvae.estimator.comparison import Comparison, compare
from gppvae.estimator.impute import FIT_ENTRIES, Imputer, learn_value_noise
from gppvae.estimator.prediction import Prediction
from gppvae.estimator.saving import check_value_noise
from gppvae.estimator.validation import same_length, squared_errors
from gppvae.inference.observation_weight import Trust
from gppvae.inference.value_noise import rows_enough, rows_per_pair
from gppvae.likelihoods import PIXEL_VARS, Gaussian, Likelihood, ScaledGaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.laplace import laplace_posterior
from gppvae.models.predict import decode_mean, latents_at, relative_std, row_chunks
from gppvae.models.remainders import Remainders, ResidualCovariance, directions, measure, rows_to_compare
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior
from gppvae.training.distributed import current_world
from gppvae.training.folder import CHECKPOINT, RunFolder

CALIBRATION_ROWS, CALIBRATION_VALUES = 512, 2**21
LEAST_ROWS_PER_VALUE = 4  # held-out rows per value that are enough to estimate the covariance of errors

log = logging.getLogger("gppvae")


@contextlib.contextmanager
def releasing(folder: RunFolder | None) -> Iterator[None]:
    """Release the run folder if the block fails, so that the same process can try again."""
    try:
        yield
    except BaseException:
        if folder is not None:
            folder.release()
        raise


def mean_errors(errors: Tensor, counts: Tensor, unit: Tensor) -> Tensor:
    """Mean squared error of each channel or value, (C,).

    A value that no row observed would have no error at all. It has the mean error of the others, in units.

    Args:
        errors, counts: sums of squares and numbers of observed values, (C,) each.  unit: of the values, (C,) or (1,).
    """
    found, seen = errors / counts.clamp_min(1.0), counts > 0.0
    return found if seen.all() else torch.where(seen, found, (found / unit.square())[seen].mean() * unit.square())


class Measuring(Estimator):
    """Measurements of a trained GPPVAE."""

    posterior_: LatentPosterior
    calibration_: Calibration | None
    comparison_: Comparison | None
    remainders_: Remainders
    value_noise_: Tensor | None
    trust_: Trust

    @property
    def _fitted(self) -> tuple[GPPriorVAE, LatentPosterior]:
        """Networks and prior, and q(B)."""
        return self._fitted_model, self.posterior_

    @property
    def prior_(self) -> LatentPrior:
        """The fitted prior: kernels and latent noise of every group of latents."""
        return self._fitted_model.prior

    @abc.abstractmethod
    def predict(
        self, table: Any, n_samples: int = 0, include_noise: bool = False, seed: int | None = None, out: Any = None
    ) -> Prediction:
        """Predict samples at rows."""

    @torch.no_grad()
    def _evaluate(
        self, evaluation: tuple[Samples, Table], training: tuple[Samples, Table], held_out: bool
    ) -> dict[str, Any]:
        """Measure noise, calibration, statistics for impute(), and errors beside the simple answers; JSON values.

        Args:
            evaluation: samples and rows to measure errors at.  training: those that the model was trained on.
            held_out: whether the model was not trained on `evaluation`.
        """
        model, posterior = self._fitted
        self.calibration_ = None
        self.remainders_ = Remainders()
        epoch = self._epoch_of(*evaluation)
        errors, counts = squared_errors(epoch, lambda batch: decode_mean(model, posterior, batch.rows))
        noise = mean_errors(errors, counts, torch.from_numpy(self._unit()).double().flatten())
        if model.autoencoder.likelihood.learns_noise:
            model.autoencoder.likelihood.learn_noise(noise)
        self.posterior_ = self._laplace(training[0], self.prior_.code(training[1]))
        self.calibration_ = self._calibration(*evaluation, trained_on=not held_out)
        enough = held_out and self._enough_for_imputation(evaluation[0])
        self._prepare_imputation(epoch if enough else self._epoch_of(*training), enough)
        return {
            "errors": noise.tolist(),
            "calibration": None if self.calibration_ is None else self.calibration_.to_json(),
            "value_noise": None if self.value_noise_ is None else self.value_noise_.tolist(),
            "trust": self.trust_.to_json(),
            "comparison": compare(self, training, evaluation).to_json() if held_out else None,
        }

    def _epoch_of(self, samples: Samples, table: Table) -> Epoch:
        return self._epoch(samples, self.prior_.code(table), current_world())

    def _apply_measured(self, measured: dict[str, Any], folder: RunFolder | None) -> None:
        """Set what was measured, by this process or by an earlier one that wrote it to the checkpoint."""
        with contextlib.nullcontext() if folder is None else checked_content(folder.path / CHECKPOINT):
            noise = measured["value_noise"]
            found = None if noise is None else torch.tensor(noise, dtype=torch.float64, device=self._gp_device())
            self._restore_measured(measured, found)
            likelihood = self._autoencoder.likelihood
            if likelihood.learns_noise:
                likelihood.learn_noise(torch.tensor(measured["errors"], dtype=torch.float64))

    def _restore_measured(self, saved: dict[str, Any], value_noise: Tensor | None) -> None:
        """Set what was measured from the JSON values of a checkpoint or model file."""
        calibration, comparison = saved["calibration"], saved["comparison"]
        self.calibration_ = None if calibration is None else Calibration.from_json(calibration)
        self.comparison_ = None if comparison is None else Comparison.from_json(comparison)
        self.value_noise_ = check_value_noise(value_noise, self.shape_)
        self.trust_ = Trust.from_json(saved["trust"])

    def _enough_for_imputation(self, held_out: Samples) -> bool:
        """Whether there are enough held-out rows to estimate the covariance of errors."""
        if len(self.shape_) > 1:
            return len(held_out) >= LEAST_ROWS_PER_VALUE
        y, mask = held_out.read(torch.arange(rows_enough(len(held_out), self.shape_[0])))
        pairs = float(len(y)) if mask is None or self.shape_[0] == 1 else rows_per_pair(mask)
        return pairs >= LEAST_ROWS_PER_VALUE * self.shape_[0]

    def _prepare_imputation(self, epoch: Epoch, held_out: bool) -> None:
        """Estimate the covariance of the noise and the trust in observed values for impute()."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 4))
        try:
            self.value_noise_ = learn_value_noise(*self._fitted, epoch, held_out)
            self.trust_ = self._imputer(Trust()).trust(epoch, generator, sides=True, most=FIT_ENTRIES) or Trust()
        except torch.linalg.LinAlgError as error:  # a fit that took hours is kept
            self.value_noise_, self.trust_ = None, Trust()
            log.warning("impute() uses no covariance of errors, since it is not finite (%s)", reason(error))

    def _imputer(self, usual: Trust) -> Imputer:
        return Imputer(*self._fitted, self._measured_likelihood(), self.remainders_, self.value_noise_, usual)

    def _laplace(self, data: Samples, rows: Rows) -> LatentPosterior:
        """q(B) with the trained means, and variances from the curvature of the likelihood at the training rows."""
        try:
            return laplace_posterior(*self._fitted, self._epoch(data, rows, current_world()))
        except torch.linalg.LinAlgError as error:  # a fit that took hours is kept
            log.warning("variances are those of training, since sites are not finite (%s)", reason(error))
            return self.posterior_

    @torch.no_grad()
    def _residual_covariances(self, data: Samples, rows: Rows) -> Remainders:
        """Covariance of samples of one object around the mean and around the prediction, for objects added later."""
        found, prior = Remainders(), self.prior_
        for column, picked in rows_to_compare(prior, rows).items():
            y, mask = data.read(picked.cpu())
            seen = torch.ones_like(y) if mask is None else mask.to(y)
            mean = (y * seen).sum(0) / seen.sum(0).clamp_min(1.0)  # (*shape)
            predicted = torch.cat([decode_mean(*self._fitted, chunk).cpu() for chunk in row_chunks(rows[picked])])
            unit = torch.from_numpy(self._unit())
            parts = [((y - centre) * seen / unit).flatten(1) for centre in (mean, predicted)]  # (n, K) each
            of_deviations, of_errors = (measure(prior, column, rows[picked], part) for part in parts)
            found.resembling[column] = ResidualCovariance(of_deviations, of_errors, directions(parts[0]))
        return found

    def calibrate(self, samples: Any, table: Any, n_samples: int = 32) -> None:
        """Measure the size of errors and the shape of their distribution, for `include_noise` and `interval`.

        Give rows that were not trained on and resemble the rows to predict: errors at training rows are smaller. At
        most 512 rows are used. Only Gaussian likelihoods are calibrated; others model their own noise.

        Args:
            samples: of these rows.  table: their rows.  n_samples: draws whose spread is compared with the errors.
        """
        whole("n_samples", n_samples, 2)
        data = self._samples(samples)
        data.check()
        found = self._calibration(data, Table(table), n_samples)
        self.calibration_ = self.calibration_ if found is None else found

    def _calibration(
        self, data: Samples, table: Table, n_samples: int = 32, trained_on: bool = False
    ) -> Calibration | None:
        """Size of errors by the spread of draws; None for likelihoods that model their own noise."""
        if not self._autoencoder.likelihood.values.additive_noise:
            return None
        same_length(data, table)
        most = max(32, min(CALIBRATION_ROWS, CALIBRATION_VALUES // math.prod(data.shape)))
        picked = np.arange(0, len(data), -(-max(len(data), 1) // most))
        y, mask = data.read(torch.from_numpy(picked))
        picked_rows = table.take(picked)
        found, rows = self.predict(picked_rows, n_samples), self.prior_.code(picked_rows)
        assert found.std is not None
        mean, std = (from_input_layout(part, self.layout_) for part in (found.mean, found.std))
        uncertainty = np.concatenate([relative_std(*self._fitted, chunk) for chunk in row_chunks(rows)])  # (n,)
        return calibrate(y, mask, Prediction(mean, std), self._unit(), uncertainty, trained_on)

    def _unit(self) -> np.ndarray:
        """Unit of each value, broadcastable to a sample."""
        return self._autoencoder.likelihood.unit.cpu().numpy()

    def _measured_likelihood(self, factor: float = 1.0) -> Likelihood:
        """The likelihood of values with its noise variance as measured, multiplied by `factor`."""
        likelihood = copy.deepcopy(self._autoencoder.likelihood.values)
        if isinstance(likelihood, ScaledGaussian):
            likelihood.var.mul_(factor)
        elif isinstance(likelihood, Gaussian):
            var = float(likelihood.pixel_var.detach()) if self.calibration_ is None else self.calibration_.error_var
            return Gaussian(min(max(factor * var, PIXEL_VARS[0]), PIXEL_VARS[1])).to(self._torch_device())
        return likelihood

    @torch.no_grad()
    def _probe(
        self, model: GPPriorVAE, rows: Rows, y: Tensor, mask: Tensor | None, weights: LatentPosterior | None
    ) -> list[Tensor] | None:
        if weights is None:
            return None
        z = latents_at(model, weights, rows)
        return [*weights.tensors().values(), z.var + z.noise, decode_mean(model, weights, rows)]
