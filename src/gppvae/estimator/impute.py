"""impute: what is missing in samples, given their rows and what was observed of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gppvae.data.arrays import Samples, to_input_layout
from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows
from gppvae.estimator.outputs import Folder, Outputs
from gppvae.inference.row_latents import Observed, RowLatents, slopes_of
from gppvae.inference.value_noise import MAX_VALUES, noise_covariance, rows_enough
from gppvae.likelihoods import Gaussian, Likelihood, ScaledGaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import latents_at
from gppvae.prior.posterior import LatentPosterior

SLOPE_BYTES = 64 << 20  # of the slopes of all values with respect to all latents, for the rows at work
ROWS_AT_ONCE = 256


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


@dataclass(frozen=True)
class Imputer:
    """A fitted model as imputation needs it.

    Attributes:
        model, weights: fitted.  likelihood: of values, with measured noise.
        noise: covariance of the values' noise, (K, K), or None.
    """

    model: GPPriorVAE
    weights: LatentPosterior
    likelihood: Likelihood
    noise: Tensor | None

    def rows_at_once(self, shape: tuple[int, ...]) -> int:
        """Rows whose slopes fit the memory meant for them."""
        per_row = 4 * self.model.prior.n_latents * int(np.prod(shape))
        return max(1, min(ROWS_AT_ONCE, SLOPE_BYTES // per_row))

    @torch.no_grad()
    def latents(self, batch: Batch) -> RowLatents:
        """Posterior of the latents of a batch, from the GP's prediction and what was observed."""
        model = self.model
        prior = latents_at(model, self.weights, batch.rows)
        mask = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
        known = Observed(batch.y, mask, model.autoencoder.sizes(batch), prior.mean, prior.var + prior.noise)
        encoded = model.prior.to_gp(model.autoencoder.encode(batch.y, batch.mask)[0])
        return RowLatents(model.autoencoder, self.likelihood, known, self.noise, (encoded,))

    def run(
        self, data: Samples, rows: Rows, n_samples: int, include_noise: bool, generator: torch.Generator, out: Folder
    ) -> Imputation:
        """Impute all samples; `out` is a folder for mean.npy, std.npy and draws.npy."""
        device = next(self.model.autoencoder.parameters()).device
        epoch = Epoch(data, rows, self.rows_at_once(data.shape), None, device)
        shape = (len(data), *to_input_layout(np.empty((0, *data.shape)), data.layout_in).shape[1:])
        with Outputs(out, ("mean", "std"), shape) as arrays, self._draws_out(out, n_samples, shape) as drawn:
            for batch in epoch:
                mask = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
                latents = self.latents(batch)
                found = latents.moments()
                var = found.var + found.noise if include_noise else found.var
                parts = {"mean": torch.where(mask, batch.y, found.mean), "std": torch.where(mask, 0.0, var.sqrt())}
                arrays.put(**{name: to_input_layout(part, data.layout_in) for name, part in parts.items()})
                if n_samples:
                    draws = [latents.draw(generator, include_noise) for _ in range(n_samples)]
                    kept = [to_input_layout(torch.where(mask, batch.y, draw), data.layout_in) for draw in draws]
                    drawn.put(draws=torch.stack(kept, dim=1))
        draws_first = np.moveaxis(drawn["draws"], 1, 0) if n_samples else None
        return Imputation(arrays["mean"], arrays["std"], draws_first)

    @staticmethod
    def _draws_out(out: Folder, n_samples: int, shape: tuple[int, ...]) -> Outputs:
        names = ("draws",) if n_samples else ()
        return Outputs(None if out is None else Path(out), names, (shape[0], n_samples, *shape[1:]))


@torch.no_grad()
def learn_value_noise(
    model: GPPriorVAE, weights: LatentPosterior, epoch: Epoch, held_out: bool
) -> Tensor | None:
    """Covariance of the noise of values (K, K), in their unit, from errors of predictions; None for images and counts.

    Args:
        epoch: samples with coded rows.  held_out: whether the model has not seen them: their latents are uncertain.
    """
    autoencoder, shape = model.autoencoder, epoch.samples.shape
    likelihood = autoencoder.likelihood.values
    gaussian = isinstance(likelihood, (Gaussian, ScaledGaussian))
    if not gaussian or len(shape) != 1 or not 1 < shape[0] <= MAX_VALUES:
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
    slopes = gp(slopes_of(lambda at: likelihood.mean(autoencoder.decode(at)), z, autoencoder)) / unit
    var = latents.var + latents.noise if held_out else torch.zeros_like(latents.var)
    found = noise_covariance(errors, seen, slopes, var)
    return found * unit * unit.unsqueeze(1) if unit.ndim else found * unit.square()
