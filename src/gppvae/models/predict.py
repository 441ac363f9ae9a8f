"""Prediction: rows -> features -> q(f) -> decoder -> samples, a few rows at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch, derive_seed
from gppvae.data.progress import rows_done
from gppvae.data.sizes import sizes_in
from gppvae.data.table import Rows
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import vector_variance, vectors_drawn
from gppvae.models.refine import Normal, RowFit, normal_at
from gppvae.models.remainders import Remainders
from gppvae.models.vae import Autoencoder
from gppvae.prior.latents import Latents
from gppvae.prior.posterior import LatentPosterior

PREDICT_ROWS = 256
DECODE_ROWS = 64  # of these that a CPU decodes at once: the maps of more hardly fit into its cache


def latents_at(model: GPPriorVAE, weights: LatentPosterior, rows: Rows) -> Latents:
    """Posterior of the latents at rows, with the uncertainty of the objects' vectors in its variance."""
    latents = model.prior.at(rows, weights)
    return dataclasses.replace(latents, var=latents.var + vector_variance(model.prior, weights, rows))


@torch.no_grad()
def relative_std(model: GPPriorVAE, weights: LatentPosterior, rows: Rows) -> np.ndarray:
    """Posterior over prior standard deviation of the latents of each row, averaged over latents, (N,)."""
    features = model.prior.features_at(rows, training=False)
    now, before = features.at(weights), features.at(model.prior.before_data())
    var = now.var + now.noise + vector_variance(model.prior, weights, rows)  # (N, L)
    share: np.ndarray = (var.mean(1) / (before.var + before.noise).mean(1)).sqrt().cpu().numpy()
    return share


def row_chunks(rows: Rows) -> Iterator[Rows]:
    """Rows a few at a time, in order."""
    for start in range(0, len(rows), PREDICT_ROWS):
        yield rows[start : start + PREDICT_ROWS]
        rows_done(min(start + PREDICT_ROWS, len(rows)), len(rows))


def decode_mean(model: GPPriorVAE, weights: LatentPosterior, rows: Rows, sizes: Tensor | None = None) -> Tensor:
    """E[y | z] at the posterior mean of z, (N, *shape).

    Args:
        sizes: of the samples, (N,); by default those in the rows, else the typical size.
    """
    autoencoder, z = model.autoencoder, model.prior.functions_at(rows, weights.means)
    return autoencoder.likelihood.mean(decoded(autoencoder, z, sizes_in(rows) if sizes is None else sizes))


def decoded(autoencoder: Autoencoder, z: Tensor, sizes: Tensor | None) -> Tensor:
    """The decoder's output at latents of rows, (N, ...), on a CPU a few rows at a time.

    Args:
        z: (N, L).  sizes: of the samples, (N,), or None where they have none.
    """
    z = autoencoder.for_decoder(z)
    if z.device.type != "cpu" or len(z) <= DECODE_ROWS:
        return autoencoder.decode(z, sizes)
    parts = z.split(DECODE_ROWS)
    own = [None] * len(parts) if sizes is None else sizes.split(DECODE_ROWS)
    return torch.cat([autoencoder.decode(part, size) for part, size in zip(parts, own, strict=True)])


def decode_draws(
    model: GPPriorVAE, draws: list[list[Tensor]], rows: Rows, generator: torch.Generator, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each draw of B, the mean and variance of p(y | z) at rows, with z = B'v + eta.

    The same draws of B at all rows make each draw one function over the whole table.

    Args:
        draws: of B, one tensor per group of latents each.  generator: of eta.
        seed: of the vectors of ids and the weights of new ids; the same for every chunk of a table.
    """
    prior, autoencoder = model.prior, model.autoencoder
    noise_std = prior.noise_at(rows).sqrt()  # (N, L)
    of_vectors = torch.Generator().manual_seed(seed)
    for B in draws:
        with vectors_drawn(prior, of_vectors):
            f = prior.functions_at(rows, B, of_vectors)
        eps = torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f.device)
        out = decoded(autoencoder, f + noise_std * eps, sizes_in(rows))
        yield autoencoder.likelihood.mean(out), autoencoder.likelihood.variance(out)


@torch.no_grad()
def predictive_bound(
    model: GPPriorVAE, weights: LatentPosterior, epoch: Epoch, remainders: Remainders | None = None
) -> float:
    """Mean over samples of E_q log p(y | z) - KL(q(z | y) || p(z | row, training data)), in nats.

    Each row has the best of three q: the encoder's, p(z | row) itself, and a Laplace approximation. One set of draws
    chooses q and another evaluates the bound, so that the choice does not bias it.

    Errors carried over to rows of added objects are subtracted from the samples: a shift does not change a density.
    """
    total = 0.0
    for batch in epoch:
        kriged = None if remainders is None else remainders.at(model.prior, batch.rows, tuple(batch.y.shape[1:]))
        if kriged is not None:
            y = batch.y - kriged[0].to(batch.y)
            batch = dataclasses.replace(batch, y=y if batch.mask is None else torch.where(batch.mask, y, 0.0))
        fit = RowFit(model, batch, normal_at(model, weights, batch.rows))
        of_choice, of_value = (derive_seed(batch.seed, part) for part in (1, 2))
        q = fit.posterior()
        chosen, value = fit.bound(q, of_choice, narrow=True)[0], fit.bound(q, of_value, narrow=True)[0]
        for q, narrow in ((fit.before, False), (fit.encoded, True)):
            tried, error = fit.bound(q, of_choice, narrow)
            better = (tried - 3.0 * error > chosen) | chosen.isnan()  # by more than the Monte Carlo error, (B,)
            chosen = torch.where(better, tried, chosen)
            if better.any():
                value = torch.where(better, fit.bound(q, of_value, narrow)[0], value)
        total += float(value.sum())
    return total / epoch.n_rows


@torch.no_grad()
def refined_reconstruction(model: GPPriorVAE, batch: Batch, before: Normal) -> Tensor:
    """E[y | z] at the latents of highest likelihood that `RowFit` finds for each sample, (B, *shape)."""
    autoencoder = model.autoencoder.with_sizes_of(batch)
    return autoencoder.likelihood.mean(autoencoder.decode(RowFit(model, batch, before).best()))
