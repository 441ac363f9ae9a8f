"""impute: the missing values of samples, given their rows and observed values."""

from __future__ import annotations

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
from gppvae.inference.observation_weight import Trust, choose_trust, hide_as_elsewhere, hide_sides
from gppvae.inference.row_latents import STEPS, Observed, RowLatents
from gppvae.inference.value_noise import MAX_VALUES, noise_covariance, rows_enough
from gppvae.likelihoods import Likelihood
from gppvae.models.curvature import jacobian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import latents_at
from gppvae.prior.posterior import LatentPosterior

SLOPE_BYTES = 64 << 20  # of the slopes of all values with respect to all latents, for the rows at work
ROWS_AT_ONCE = 256
# Rows and values on which observed ones are hidden to see how far they can be trusted, and how many slopes at most.
TRIED_ROWS, LEAST_TRIED, TRIED_VALUES, TRIED_NUMBERS = 32, 4, 1024, 10_000_000
TRIED_IN_FIT = 1_000_000  # slopes at most while fitting; larger samples are tried when they are imputed


@dataclass(frozen=True)
class Imputation:
    """Samples with what was missing filled in, in the shape and order of axes in which they came.

    Attributes:
        mean: (N, ...), observed values as they were.  std: 0 where observed.
        draws: (n_samples, N, ...), observed values as they were; None without draws.
    """

    mean: np.ndarray
    std: np.ndarray
    draws: np.ndarray | None

    def __repr__(self) -> str:
        return prediction_text(self)

    def _repr_html_(self) -> str:
        return prediction_html(self)


@dataclass(frozen=True)
class Try:
    """Samples of which some observed values were hidden.

    Attributes:
        row: their numbers, (B,).  visible: without, y: with the hidden values.  hidden: which, (B, *shape) bool.
    """

    row: Tensor
    visible: Batch
    y: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Imputer:
    """A fitted model as imputation needs it.

    Attributes:
        model, weights: fitted.  likelihood: of values, with measured noise.
        noise: covariance of the values' noise, (K, K), or None.
        usual: how far observed values are to be trusted where the samples at hand cannot tell.
    """

    model: GPPriorVAE
    weights: LatentPosterior
    likelihood: Likelihood
    noise: Tensor | None
    usual: Trust

    def rows_at_once(self, shape: tuple[int, ...]) -> int:
        """Rows whose slopes fit the memory meant for them."""
        per_row = 4 * self.model.prior.n_latents * int(np.prod(shape))
        return max(1, min(ROWS_AT_ONCE, SLOPE_BYTES // per_row))

    @torch.no_grad()
    def latents(self, batch: Batch, weight: float = 1.0, steps: int = STEPS) -> RowLatents:
        """Posterior of the latents of a batch, from the GP's prediction and what was observed."""
        model = self.model
        prior = latents_at(model, self.weights, batch.rows)
        assert batch.mask is not None, "samples to impute are read with their masks"
        known = Observed(batch.y, batch.mask, model.autoencoder.sizes(batch), prior.mean, prior.var + prior.noise)
        encoded = model.prior.to_gp(model.autoencoder.encode(batch.y, batch.mask)[0])
        return RowLatents(model.autoencoder, self.likelihood, known, self.noise, (encoded,), weight, steps)

    @torch.no_grad()
    def predicted(self, batch: Batch) -> Tensor:
        """Mean of samples by the GP's prediction alone, whatever was observed."""
        z = latents_at(self.model, self.weights, batch.rows).mean
        return self.likelihood.mean(self.model.autoencoder.decode(z, self.model.autoencoder.sizes(batch)))

    @torch.no_grad()
    def trust(self, epoch: Epoch, generator: torch.Generator, sides: bool, most: int = TRIED_NUMBERS) -> Trust | None:
        """The weight of observed values, measured on some of these samples; None if they cannot tell.

        Args:
            sides: hide a side of each sample, else what another sample misses.  most: slopes that may be computed.
        """
        if self.noise is not None:  # how errors go together is known
            return Trust()
        n_numbers = self.model.prior.n_latents * int(np.prod(epoch.samples.shape))
        n_rows = min(TRIED_ROWS, epoch.n_rows, most // n_numbers)
        if n_rows < LEAST_TRIED and n_rows < max(epoch.n_rows, 1):
            return None
        picked = torch.linspace(0, epoch.n_rows - 1, n_rows).round().long().unique()
        y, mask = epoch.samples.read(picked)
        mask = torch.ones_like(y, dtype=torch.bool) if mask is None else mask
        columns = torch.randperm(y[0].numel(), generator=generator)[:TRIED_VALUES].to(epoch.device)
        tries: list[Try] = []
        for shift in range(1, 1 + max(1, TRIED_ROWS // len(picked))):  # few samples are tried several times
            hidden = hide_sides(mask, generator) if sides else hide_as_elsewhere(mask, shift)
            if hidden is not None:
                tries += self._tries(epoch, picked, y, mask, hidden)
        found = choose_trust(
            [self.latents(t.visible, steps=0).linearised(t.row, t.y, t.hidden, columns) for t in tries]
        )
        # The decoder is not linear: a weight that does not help there is dropped.
        return found if found is None or self._helps(found, tries) else replace(found, weight=0.0)

    def _tries(self, epoch: Epoch, picked: Tensor, y: Tensor, mask: Tensor, hidden: Tensor) -> Iterator[Try]:
        """The picked rows without what is hidden, a few at a time."""
        for at in torch.arange(len(picked)).split(self.rows_at_once(epoch.samples.shape)):
            seen, own, device = (mask & ~hidden)[at], picked[at], epoch.device
            rows = epoch.rows[own.to(epoch.rows.device)]
            visible = Batch((y[at] * seen).to(device), seen.to(device), rows, own, 0, len(own))
            yield Try(at, visible, y[at].to(device), hidden[at].to(device))

    def _helps(self, trust: Trust, tries: list[Try]) -> bool:
        """Whether hidden values are nearer to what is imputed than to what is predicted."""
        if trust.weight == 0.0:
            return True
        unit, difference = self.likelihood.unit, 0.0
        for t in tries:
            imputed, predicted = self.latents(t.visible, trust.weight).mean(), self.predicted(t.visible)
            apart = ((imputed - t.y) / unit).square() - ((predicted - t.y) / unit).square()
            difference += float((apart * t.hidden).sum())
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
            trust = self.trust(epoch, generator, sides=False) or self.usual
            # Scaled draws of counts would not be counts.
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
                    drawn.put(draws=torch.stack(kept, dim=1))
        draws_first = np.moveaxis(drawn["draws"], 1, 0) if n_samples else None
        return Imputation(arrays["mean"], arrays["std"], draws_first)


@torch.no_grad()
def learn_value_noise(model: GPPriorVAE, weights: LatentPosterior, epoch: Epoch, held_out: bool) -> Tensor | None:
    """Covariance of the noise of values (K, K), in their unit, from errors of predictions; None for images and counts.

    Args:
        epoch: samples with coded rows.  held_out: whether the model has not seen them: their latents are uncertain.
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
    errors = gp(y.to(epoch.device) - likelihood.mean(autoencoder.decode(z))) / unit
    seen = torch.ones_like(errors, dtype=torch.bool) if mask is None else mask.to(errors.device)
    steep = gp(jacobian(lambda at: likelihood.mean(autoencoder.decode(at)), autoencoder.for_decoder(z))) / unit
    var = latents.var + latents.noise if held_out else torch.zeros_like(latents.var)
    found = noise_covariance(errors, seen, steep, var)
    return found * unit * unit.unsqueeze(1) if unit.ndim else found * unit.square()
