"""What a fit measures once it is trained: noise, calibration, posterior variances, what impute() and new ids need."""

from __future__ import annotations

import abc
import contextlib
import copy
import logging
import math
from collections.abc import Iterator
from dataclasses import replace
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
from gppvae.estimator.comparison import Comparison, compare
from gppvae.estimator.impute import TRIED_IN_FIT, Imputer, learn_value_noise
from gppvae.estimator.prediction import Calibration, Prediction, calibrate
from gppvae.estimator.saving import check_value_noise
from gppvae.estimator.validation import same_length, squared_errors
from gppvae.inference.observation_weight import Trust
from gppvae.inference.value_noise import rows_enough, rows_per_pair
from gppvae.likelihoods import PIXEL_VARS, Gaussian, Likelihood, ScaledGaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.laplace import laplace_posterior
from gppvae.models.objects import learned_by_column
from gppvae.models.predict import decode_mean, latents_at, relative_std, row_chunks
from gppvae.models.remainders import Remainders, ResidualCovariance, directions, measure, rows_to_compare
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior
from gppvae.training.distributed import current_world
from gppvae.training.folder import CHECKPOINT, RunFolder

CALIBRATION_ROWS, CALIBRATION_VALUES = 512, 2**21
ENOUGH_PER_VALUE = 4  # held-out rows that show a pair, over values, from which the covariance of errors is taken

log = logging.getLogger("gppvae")


@contextlib.contextmanager
def releasing(folder: RunFolder | None) -> Iterator[None]:
    """Release the run folder on failure, so that the same process can try again."""
    try:
        yield
    except BaseException:
        if folder is not None:
            folder.release()
        raise


class Measuring(Estimator):
    """The part of GPPVAE that measures a trained model."""

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
    def _measured(
        self, judge: tuple[Samples, Table], training: tuple[Samples, Table], held_out: bool
    ) -> dict[str, Any]:
        """Noise, calibration, what impute() needs, and a comparison with simple answers, as JSON values.

        Args:
            judge: rows with known answers.  training: those that the model was trained on.
            held_out: whether `judge` are others.
        """
        model, posterior = self._fitted
        self.calibration_ = None
        self.remainders_ = Remainders()
        epoch = self._epoch_of(*judge)
        errors, counts = squared_errors(epoch, lambda batch: decode_mean(model, posterior, batch.rows))
        noise = errors / counts.clamp_min(1.0)
        if model.autoencoder.likelihood.learns_noise:
            model.autoencoder.likelihood.learn_noise(noise)
        self.posterior_ = self._laplace(training[0], self.prior_.code(training[1]))
        self.calibration_ = self._calibration(*judge, trained_on=not held_out)
        enough = held_out and self._can_learn_to_impute(judge[0])
        self._learn_to_impute(epoch if enough else self._epoch_of(*training), enough)
        return {
            "errors": noise.tolist(),
            "calibration": None if self.calibration_ is None else self.calibration_.to_json(),
            "value_noise": None if self.value_noise_ is None else self.value_noise_.tolist(),
            "trust": self.trust_.to_json(),
            "comparison": compare(self, training, judge).to_json() if held_out else None,
        }

    def _epoch_of(self, samples: Samples, table: Table) -> Epoch:
        return self._epoch(samples, self.prior_.code(table), current_world())

    def _take(self, measured: dict[str, Any], folder: RunFolder | None) -> None:
        """Take over what was measured, which a checkpoint may have carried."""
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

    def _can_learn_to_impute(self, held_out: Samples) -> bool:
        """Whether enough held-out rows show pairs of values to tell how errors go together."""
        if len(self.shape_) > 1:
            return len(held_out) >= ENOUGH_PER_VALUE
        y, mask = held_out.read(torch.arange(rows_enough(len(held_out), self.shape_[0])))
        pairs = float(len(y)) if mask is None or self.shape_[0] == 1 else rows_per_pair(mask)
        return pairs >= ENOUGH_PER_VALUE * self.shape_[0]

    def _learn_to_impute(self, epoch: Epoch, held_out: bool) -> None:
        """What impute() needs to know, from held-out rows or from training rows."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 4))
        try:
            self.value_noise_ = learn_value_noise(*self._fitted, epoch, held_out)
            self.trust_ = self._imputer(Trust()).trust(epoch, generator, sides=True, most=TRIED_IN_FIT) or Trust()
        except torch.linalg.LinAlgError as error:  # a fit that took hours is kept
            self.value_noise_, self.trust_ = None, Trust()
            log.warning("impute() knows no covariance of errors, since it is not finite (%s)", reason(error))

    def _imputer(self, usual: Trust) -> Imputer:
        return Imputer(*self._fitted, self._measured_noise(), self.value_noise_, usual)

    def _laplace(self, data: Samples, rows: Rows) -> LatentPosterior:
        """q(B) with the means that were trained, and variances from what the training rows say through the decoder."""
        try:
            return laplace_posterior(*self._fitted, self._epoch(data, rows, current_world()))
        except torch.linalg.LinAlgError as error:  # a fit that took hours is kept
            log.warning("variances are those of training, since sites are not finite (%s)", reason(error))
            return self.posterior_

    @torch.no_grad()
    def _resemblance(self, data: Samples, rows: Rows) -> Remainders:
        """How samples of one object resemble each other, for those that are added later."""
        found, prior = Remainders(), self.prior_
        for column, picked in rows_to_compare(prior, rows).items():
            y, mask = data.read(picked.cpu())
            seen = torch.ones_like(y) if mask is None else mask.to(y)
            mean = (y * seen).sum(0) / seen.sum(0).clamp_min(1.0)
            predicted = torch.cat([decode_mean(*self._fitted, chunk).cpu() for chunk in row_chunks(rows[picked])])
            parts = [((y - of) * seen / torch.from_numpy(self._unit())).flatten(1) for of in (mean, predicted)]
            of_deviations, of_errors = (measure(prior, column, rows[picked], part) for part in parts)
            found.resembling[column] = ResidualCovariance(of_deviations, of_errors, directions(parts[0]))
        return found

    def calibrate(self, samples: Any, table: Any, n_samples: int = 32) -> None:
        """Measure the size of errors as a function of the spread of draws, for `include_noise`.

        Give held-out rows, like those to be predicted: errors at training rows are smaller. At most 512 rows are used.
        Only the Gaussian likelihood is calibrated; others model their own noise.
        """
        found = self._calibration(samples, table, n_samples)
        self.calibration_ = self.calibration_ if found is None else found

    def _calibration(
        self, samples: Any, table: Any, n_samples: int = 32, trained_on: bool = False
    ) -> Calibration | None:
        """Errors at rows by the spread of draws; None for likelihoods that model their own noise."""
        if not self._autoencoder.likelihood.values.additive_noise:
            return None
        data, rows_table = samples if isinstance(samples, Samples) else self._samples(samples), Table(table)
        same_length(data, rows_table)
        most = max(32, min(CALIBRATION_ROWS, CALIBRATION_VALUES // math.prod(data.shape)))
        picked = np.arange(0, len(data), -(-max(len(data), 1) // most))
        y, mask = data.read(torch.from_numpy(picked))
        asked = rows_table.take(picked)
        found, rows = self.predict(asked, n_samples), self.prior_.code(asked)
        assert found.std is not None
        first = Prediction(*(from_input_layout(part, self.layout_) for part in (found.mean, found.std)))
        unknown = np.concatenate([relative_std(*self._fitted, chunk) for chunk in row_chunks(rows)])
        return replace(calibrate(y, mask, first, self._unit(), unknown), trained_on=trained_on)

    @torch.no_grad()
    def _keep_remainders(self, data: Samples, table: Table, ids: list[str]) -> None:
        """Keep the errors of predictions at samples of added ids, to carry them over to their other rows."""
        if not self._autoencoder.likelihood.values.additive_noise:
            return
        prior, rows, errors = self.prior_, self.prior_.code(table), []
        for batch in self._epoch(data, rows):
            error = batch.y - decode_mean(*self._fitted, batch.rows)
            errors.append((error if batch.mask is None else torch.where(batch.mask, error, 0.0)).cpu())
        for column, leaves in learned_by_column(prior).items():
            if set(ids) <= set(leaves[0].levels[leaves[0].n_trained :]):
                unit = torch.from_numpy(self._unit())
                self.remainders_.keep(prior, column, ids, rows, torch.cat(errors), unit)

    def _unit(self) -> np.ndarray:
        """Size of a value that counts as one, broadcastable to a sample."""
        return self._autoencoder.likelihood.unit.cpu().numpy()

    def _object_noise(self) -> Likelihood:
        """The likelihood of values with noise as large as new objects differ by.

        A decoder misses a new object in whole regions, so its errors are no independent evidence: their variance is
        multiplied by the size of a sample over the number of directions in which samples vary.
        """
        return self._measured_noise(
            1.0 / min((own.directions for own in self.remainders_.resembling.values()), default=1.0)
        )

    def _measured_noise(self, times: float = 1.0) -> Likelihood:
        """The likelihood of values with its noise as measured, which is what new samples differ by, so many times."""
        likelihood = copy.deepcopy(self._autoencoder.likelihood.values)
        if isinstance(likelihood, ScaledGaussian):
            likelihood.var.mul_(times)
        elif isinstance(likelihood, Gaussian):
            var = float(likelihood.pixel_var.detach()) if self.calibration_ is None else self.calibration_.error_var
            return Gaussian(min(max(times * var, PIXEL_VARS[0]), PIXEL_VARS[1])).to(self._torch_device())
        return likelihood

    @torch.no_grad()
    def _probe(
        self, model: GPPriorVAE, rows: Rows, y: Tensor, mask: Tensor | None, weights: LatentPosterior | None
    ) -> list[Tensor] | None:
        if weights is None:
            return None
        z = latents_at(model, weights, rows)
        return [*weights.tensors().values(), z.var + z.noise, decode_mean(model, weights, rows)]
