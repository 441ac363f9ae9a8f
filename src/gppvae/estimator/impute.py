"""Imputation of missing values of samples, given their rows and observed values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gppvae.data.arrays import Samples, shape_out, to_input_layout
from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows
from gppvae.estimator.display import prediction_html, prediction_text
from gppvae.estimator.outputs import Folder, Outputs
from gppvae.estimator.prediction import central_interval
from gppvae.inference.observation_weight import Trust, choose_trust, hide_as_elsewhere, hide_sides
from gppvae.inference.row_latents import LEAST_VARIANCE, STEPS, Observed, RowLatents
from gppvae.inference.value_noise import MAX_VALUES, noise_covariance, rows_enough
from gppvae.likelihoods import Likelihood
from gppvae.models.curvature import jacobian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import latents_at
from gppvae.models.remainders import Remainders
from gppvae.prior.posterior import LatentPosterior

JACOBIAN_BYTES = 64 << 20  # of the decoder's Jacobians, over the rows of a batch
ROWS_AT_ONCE = 256
# Rows and values used to choose the trust by hiding observed values; limit on the entries of their Jacobians.
TRIAL_ROWS, LEAST_TRIAL_ROWS, TRIAL_VALUES, TRIAL_ENTRIES = 32, 4, 1024, 10_000_000
FIT_ENTRIES = 1_000_000  # the same limit during fit(); with larger samples, impute() chooses the trust


@dataclass(frozen=True)
class Imputation:
    """Samples with missing values filled in, in the shape and order of axes of the input.

    Attributes:
        mean: (N, ...), observed values unchanged.  std: 0 where observed.
        draws: (n_samples, N, ...), observed values unchanged; None without draws.
        least_value, most_value: smallest and largest possible value of a sample, where intervals end.
    """

    mean: np.ndarray
    std: np.ndarray
    draws: np.ndarray | None
    least_value: float = -math.inf
    most_value: float = math.inf

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval at a level, for every value; an observed value is both ends.

        With `include_noise`, as by default, it contains about that share of the missing values.
        """
        # Normal: the widths of `Prediction` are those of errors whose size is not known from values beside them.
        return central_interval(self.mean, self.std, level, (self.least_value, self.most_value))

    def __repr__(self) -> str:
        return prediction_text(self)

    def _repr_html_(self) -> str:
        return prediction_html(self)


@dataclass(frozen=True)
class Trial:
    """Samples with some observed values hidden.

    Attributes:
        row: numbers of the samples, (B,).  visible: batch without the hidden values.  y: with them.
        hidden: mask of the hidden values, (B, *shape) bool.
    """

    row: Tensor
    visible: Batch
    y: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Imputer:
    """Imputation with a fitted model.

    Attributes:
        model, weights: fitted.  likelihood: of values, with measured noise.
        remainders: errors of added objects, which are carried over to their other rows.
        noise: covariance of the noise of the values, (K, K), or None.
        default_trust: trust in observed values if it cannot be chosen on the samples to impute.
    """

    model: GPPriorVAE
    weights: LatentPosterior
    likelihood: Likelihood
    remainders: Remainders
    noise: Tensor | None
    default_trust: Trust

    def rows_at_once(self, shape: tuple[int, ...]) -> int:
        """Rows whose Jacobians fit into JACOBIAN_BYTES."""
        per_row = 4 * self.model.prior.n_latents * int(np.prod(shape))
        return max(1, min(ROWS_AT_ONCE, JACOBIAN_BYTES // per_row))

    @torch.no_grad()
    def latents(self, batch: Batch, weight: float = 1.0, steps: int = STEPS) -> RowLatents:
        """Posterior of the latents of a batch, given the GP's prediction and the observed values."""
        model = self.model
        prior = latents_at(model, self.weights, batch.rows)
        assert batch.mask is not None, "samples to impute have masks"
        known = Observed(batch.y, batch.mask, model.autoencoder.sizes(batch), prior.mean, prior.var + prior.noise)
        kriged = self.remainders.at(model.prior, batch.rows, tuple(batch.y.shape[1:]))
        if kriged is not None:
            carried, var = kriged[0].to(batch.y), kriged[1].to(prior.mean)
            known = replace(known, carried=carried, unsure=var / self._noise_size(prior.mean))
        encoded = model.prior.to_gp(model.autoencoder.encode(batch.y, batch.mask)[0])
        return RowLatents(model.autoencoder, self.likelihood, known, self.noise, (encoded,), weight, steps)

    def _noise_size(self, z: Tensor) -> Tensor:
        """Variance of the noise, in units, averaged over the values of samples with latents z, (B,) or for all rows."""
        if self.noise is not None:
            var = self.noise.diagonal() / self.likelihood.unit.to(self.noise).square()  # (K,)
            return var.mean()
        var = self.likelihood.variance(self.model.autoencoder.decode(z)) / self.likelihood.unit.square()  # (B, *shape)
        return var.flatten(1).mean(1).to(z).clamp_min(LEAST_VARIANCE)

    @torch.no_grad()
    def predicted(self, batch: Batch) -> Tensor:
        """Mean of the samples by the GP's prediction alone, with the errors carried over."""
        z = latents_at(self.model, self.weights, batch.rows).mean
        mean = self.likelihood.mean(self.model.autoencoder.decode(z, self.model.autoencoder.sizes(batch)))
        kriged = self.remainders.at(self.model.prior, batch.rows, tuple(batch.y.shape[1:]))
        return mean if kriged is None else mean + kriged[0].to(mean)

    @torch.no_grad()
    def trust(self, epoch: Epoch, generator: torch.Generator, sides: bool, most: int = TRIAL_ENTRIES) -> Trust | None:
        """Trust in observed values, chosen on some of these samples; None if there are too few.

        Args:
            sides: hide one side of each sample; otherwise the values that another sample misses.
            most: entries of Jacobians that may be computed.
        """
        if self.noise is not None:  # the covariance of errors is known
            return Trust()
        n_numbers = self.model.prior.n_latents * int(np.prod(epoch.samples.shape))
        n_rows = min(TRIAL_ROWS, epoch.n_rows, most // n_numbers)
        if n_rows < LEAST_TRIAL_ROWS and n_rows < max(epoch.n_rows, 1):
            return None
        picked = torch.linspace(0, epoch.n_rows - 1, n_rows).round().long().unique()
        y, mask = epoch.samples.read(picked)
        mask = torch.ones_like(y, dtype=torch.bool) if mask is None else mask
        columns = torch.randperm(y[0].numel(), generator=generator)[:TRIAL_VALUES].to(epoch.device)
        trials: list[Trial] = []
        for shift in range(1, 1 + max(1, TRIAL_ROWS // len(picked))):  # with few samples, hide several times
            hidden = hide_sides(mask, generator) if sides else hide_as_elsewhere(mask, shift)
            if hidden is not None:
                trials += self._trials(epoch, picked, y, mask, hidden)
        found = choose_trust(
            [self.latents(t.visible, steps=0).linearised(t.row, t.y, t.hidden, columns) for t in trials]
        )
        # Chosen for a linearised decoder, so a weight that does not reduce the error of the decoder itself is dropped.
        return found if found is None or self._helps(found, trials) else replace(found, weight=0.0)

    def _trials(self, epoch: Epoch, picked: Tensor, y: Tensor, mask: Tensor, hidden: Tensor) -> Iterator[Trial]:
        """Trials of the picked rows, a few rows at a time."""
        for at in torch.arange(len(picked)).split(self.rows_at_once(epoch.samples.shape)):
            seen, own, device = (mask & ~hidden)[at], picked[at], epoch.device
            rows = epoch.rows[own.to(epoch.rows.device)]
            visible = Batch((y[at] * seen).to(device), seen.to(device), rows, own, 0, len(own))
            yield Trial(at, visible, y[at].to(device), hidden[at].to(device))

    def _helps(self, trust: Trust, trials: list[Trial]) -> bool:
        """Whether imputation predicts the hidden values better than the GP alone."""
        if trust.weight == 0.0:
            return True
        unit, difference = self.likelihood.unit, 0.0
        for t in trials:
            imputed, predicted = self.latents(t.visible, trust.weight).mean(), self.predicted(t.visible)
            excess = ((imputed - t.y) / unit).square() - ((predicted - t.y) / unit).square()
            difference += float((excess * t.hidden).sum())
        return difference < 0.0

    def run(
        self, data: Samples, rows: Rows, n_samples: int, include_noise: bool, generator: torch.Generator, out: Folder
    ) -> Imputation:
        """Impute all samples; `out` is a folder for mean.npy, std.npy and draws.npy."""
        device = next(self.model.autoencoder.parameters()).device
        epoch = Epoch(data, rows, self.rows_at_once(data.shape), None, device)
        shape = shape_out(len(data), data.shape, data.layout_in)
        of_draws = ("draws",) if n_samples else (), (shape[0], n_samples, *shape[1:])
        with Outputs(out, ("mean", "std"), shape) as arrays, Outputs(out, *of_draws) as drawn:
            trust = self.trust(epoch, generator, sides=False) or self.default_trust
            # Draws of counts are not scaled, so that they stay counts.
            spread = trust.spread if self.likelihood.additive_noise else 1.0
            for batch in epoch:
                mask = batch.mask
                assert mask is not None
                latents = self.latents(batch, trust.weight)
                found = latents.moments()
                std = spread * (found.var + found.noise if include_noise else found.var).sqrt()
                parts = {"mean": torch.where(mask, batch.y, found.mean), "std": torch.where(mask, 0.0, std)}
                arrays.put(**{name: to_input_layout(part, data.layout_in) for name, part in parts.items()})
                if n_samples:
                    draws = [latents.draw(generator, include_noise) for _ in range(n_samples)]
                    stretched = (
                        [found.mean + spread * (draw - found.mean) for draw in draws] if spread != 1.0 else draws
                    )
                    kept = [to_input_layout(torch.where(mask, batch.y, draw), data.layout_in) for draw in stretched]
                    drawn.put(draws=torch.stack(kept, dim=1))  # (B, n_samples, ...)
        draws_first = np.moveaxis(drawn["draws"], 1, 0) if n_samples else None
        values = self.likelihood
        return Imputation(arrays["mean"], arrays["std"], draws_first, values.least_value, values.most_value)


@torch.no_grad()
def learn_value_noise(model: GPPriorVAE, weights: LatentPosterior, epoch: Epoch, held_out: bool) -> Tensor | None:
    """Covariance of the noise of values, (K, K), in their unit, from prediction errors; None for images and counts.

    Args:
        epoch: samples with coded rows.
        held_out: whether they were not trained on, so that their latents are uncertain.
    """
    autoencoder, shape = model.autoencoder, epoch.samples.shape
    likelihood = autoencoder.likelihood.values
    if not likelihood.additive_noise or len(shape) != 1 or not 1 < shape[0] <= MAX_VALUES:
        return None
    n = rows_enough(epoch.n_rows, shape[0])
    picked = torch.linspace(0, epoch.n_rows - 1, n).round().long().unique()
    y, mask = epoch.samples.read(picked)
    rows = epoch.rows[picked.to(epoch.rows.device)]
    latents = latents_at(model, weights, rows)
    z = latents.mean
    gp, unit = model.prior.to_gp, model.prior.to_gp(likelihood.unit)
    errors = gp(y.to(epoch.device) - likelihood.mean(autoencoder.decode(z))) / unit  # (n, K)
    seen = torch.ones_like(errors, dtype=torch.bool) if mask is None else mask.to(errors.device)
    jacobians = gp(jacobian(lambda at: likelihood.mean(autoencoder.decode(at)), autoencoder.for_decoder(z))) / unit
    var = latents.var + latents.noise if held_out else torch.zeros_like(latents.var)
    found = noise_covariance(errors, seen, jacobians, var)
    # Back to the unit of the data, one unit per value or one for all.
    return found * unit * unit.unsqueeze(1) if unit.ndim else found * unit.square()
