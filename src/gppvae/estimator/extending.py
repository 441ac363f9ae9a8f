"""A fitted GPPVAE that learns new ids, and further samples of known ones, without training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gppvae.data.arrays import Samples
from gppvae.data.table import Table
from gppvae.estimator.checks import readable_algebra, whole
from gppvae.estimator.measuring import Measuring
from gppvae.estimator.new_objects import NewSamples, add_objects, ids_restored_on_error, update
from gppvae.likelihoods import Likelihood
from gppvae.models.objects import id_columns, learned_by_column
from gppvae.models.predict import decode_mean, row_chunks


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
            with self._errors_following() if self._has_blocks else contextlib.nullcontext():
                column, ids, self.posterior_ = add_objects(self._fitted, new, self.remainders_, steps)
            self._keep_errors(data, Table(table), column, ids)
        return ids

    @readable_algebra()
    def update(self, samples: Any, table: Any, steps: int = 5) -> None:
        """Condition on further samples of known ids, at any rows, without training.

        The weights q(B) and the vectors of the ids in the table are conditioned on the samples through the decoder;
        networks, kernel and noise do not change. For new ids use add_objects(). Give each sample once.

        Errors at samples of added objects are kept beside those of before, which are computed again from the new
        predictions. Objects from files of earlier versions keep their errors as they were: add these again.

        Args:
            samples: not used before.  table: their rows.
            steps: Gauss-Newton steps through the decoder.
        """
        whole("steps", steps, 1)
        data = self._samples(samples)
        likelihood = self._autoencoder.likelihood
        likelihood.check(*data.check(), data.integers)
        rows = Table(table)
        with self._unchanged_on_error():
            with self._errors_following():
                self.posterior_ = update(self._fitted, data, rows, likelihood.values, self._rows_per_batch, steps)
            self._keep_further_errors(data, rows)

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

    @property
    def _has_blocks(self) -> bool:
        """Whether new ids have weights of their own, so that adding them changes q(B)."""
        return any(column.own for column in id_columns(self.prior_))

    @contextlib.contextmanager
    def _errors_following(self) -> Iterator[None]:
        """After a block that changes q(B), and vectors of ids, store the errors of added objects again."""
        given, before = self.remainders_.given(), self.posterior_
        predicted = {column: self._predicted(rows) for column, rows in given.items()}
        yield
        if self.posterior_ is not before:
            for column, rows in given.items():
                change = predicted[column] - self._predicted(rows)
                self.remainders_.follow_predictions(column, change, torch.from_numpy(self._unit()))

    @torch.no_grad()
    def _predicted(self, rows: dict[str, list[Any]]) -> Tensor:
        """The decoder at the mean of the latents of rows, without errors carried over, (N, *shape)."""
        coded = self.prior_.code(Table(rows))
        return torch.cat([decode_mean(*self._fitted, chunk).cpu() for chunk in row_chunks(coded)])

    def _keep_further_errors(self, data: Samples, table: Table) -> None:
        """Store the errors at further samples of added ids; a row counts for the first column with such an id."""
        left = np.ones(len(table), dtype=bool)
        for column, leaves in learned_by_column(self.prior_).items():
            added, ids = leaves[0].levels[leaves[0].n_trained :], table.ids(column)
            own = left & np.isin(ids, added)
            left &= ~own
            if own.any():
                index = np.flatnonzero(own)
                names = sorted(set(ids[own].tolist()))
                self._keep_errors(data.part(index), table.take(index), column, names, further=True)

    @torch.no_grad()
    def _keep_errors(self, data: Samples, table: Table, column: str, ids: list[str], further: bool = False) -> None:
        """Store the prediction errors at samples of ids added to a column, for kriging at their other rows.

        Args:
            further: keep those stored before, too.
        """
        if not self._autoencoder.likelihood.values.additive_noise or column not in learned_by_column(self.prior_):
            return
        prior, rows, errors = self.prior_, self.prior_.code(table), []
        for batch in self._epoch(data, rows):
            error = batch.y - decode_mean(*self._fitted, batch.rows)
            errors.append((error if batch.mask is None else torch.where(batch.mask, error, 0.0)).cpu())
        unit = torch.from_numpy(self._unit())
        self.remainders_.keep(prior, column, ids, rows, torch.cat(errors), unit, further)
