"""A fitted GPPVAE that learns new ids, and further samples of known ones, without training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gppvae.data.arrays import Samples
from gppvae.data.table import Table
from gppvae.estimator.checks import readable_algebra, whole
from gppvae.estimator.measuring import Measuring
from gppvae.estimator.new_objects import NewSamples, add_objects, ids_restored_on_error, update
from gppvae.likelihoods import Likelihood
from gppvae.models.objects import learned_by_column
from gppvae.models.predict import decode_mean


class Extending(Measuring):
    """`add_objects` and `update` of GPPVAE: all or nothing, also where they are interrupted."""

    @readable_algebra()
    def add_objects(self, samples: Any, table: Any, steps: int = 30) -> list[str]:
        """Learn ids that were not in the training set from a few samples of each, so that predict() accepts them.

        Args:
            samples: of the new objects.  table: their rows; new ids in one Learned or Categorical column, all other
                columns as in training. An id that was added before is learned again.
            steps: maximum number of Gauss-Newton steps through the decoder; they stop when the loss hardly decreases.

        Returns:
            The ids that were added.
        """
        whole("steps", steps, 0)
        data = self._samples(samples)
        self._autoencoder.likelihood.check(*data.check(), data.integers)
        likelihoods = self._object_likelihood(), self._autoencoder.likelihood.values
        new = NewSamples(data, Table(table), *likelihoods, self._rows_per_batch)
        with self._unchanged_on_error():
            column, ids, self.posterior_ = add_objects(self._fitted, new, self.remainders_, steps)
            self._keep_remainders(data, Table(table), column, ids)
        return ids

    @readable_algebra()
    def update(self, samples: Any, table: Any, steps: int = 5) -> None:
        """Condition on further samples of known ids, at any rows, without training.

        The weights q(B) and the vectors of the ids in the table are conditioned on the samples through the decoder;
        networks, kernel and noise do not change. For new ids use add_objects(). Give each sample once.

        Args:
            samples: not used before.  table: their rows.
            steps: Gauss-Newton steps through the decoder.
        """
        whole("steps", steps, 1)
        data = self._samples(samples)
        likelihood = self._autoencoder.likelihood
        likelihood.check(*data.check(), data.integers)
        with self._unchanged_on_error():
            self.posterior_ = update(self._fitted, data, Table(table), likelihood.values, self._rows_per_batch, steps)

    @contextlib.contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """If the block fails, also by Ctrl-C, restore the ids, q(B) and the stored errors."""
        with self._restored_on_error(), ids_restored_on_error(self.prior_):
            self.remainders_ = self.remainders_.copy()
            yield

    def _object_likelihood(self) -> Likelihood:
        """The likelihood with the noise for fitting vectors of new objects.

        The decoder's errors at a new object are correlated over whole regions, so they are less evidence than as many
        independent ones: their variance is multiplied by the number of values over the effective number of directions.
        """
        least = min((found.directions for found in self.remainders_.resembling.values()), default=1.0)
        return self._measured_likelihood(1.0 / least)

    @torch.no_grad()
    def _keep_remainders(self, data: Samples, table: Table, column: str, ids: list[str]) -> None:
        """Store the prediction errors at samples of ids added to a column, for kriging at their other rows."""
        if not self._autoencoder.likelihood.values.additive_noise or column not in learned_by_column(self.prior_):
            return
        prior, rows, errors = self.prior_, self.prior_.code(table), []
        for batch in self._epoch(data, rows):
            error = batch.y - decode_mean(*self._fitted, batch.rows)
            errors.append((error if batch.mask is None else torch.where(batch.mask, error, 0.0)).cpu())
        self.remainders_.keep(prior, column, ids, rows, torch.cat(errors), torch.from_numpy(self._unit()))
