"""Prediction: rows -> features -> q(f) -> decoder -> samples, in batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Epoch
from gppvae.data.table import Rows
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import added_vectors_drawn, vector_variance
from gppvae.prior.latents import Latents
from gppvae.prior.posterior import LatentPosterior

PREDICT_ROWS = 256


def latents_at(model: GPPriorVAE, weights: LatentPosterior, rows: Rows) -> Latents:
    """Posterior of the latents at rows, including the uncertainty of added objects' vectors."""
    latents = model.prior.at(rows, weights)
    return dataclasses.replace(latents, var=latents.var + vector_variance(model.prior, weights, rows))


def row_chunks(rows: Rows) -> Iterator[Rows]:
    """Rows a few at a time, in order."""
    for start in range(0, len(rows), PREDICT_ROWS):
        yield rows[start : start + PREDICT_ROWS]


def decode_mean(model: GPPriorVAE, weights: LatentPosterior, rows: Rows) -> Tensor:
    """The decoder at the posterior mean of z, (N, *shape)."""
    autoencoder, means = model.autoencoder, [part.mean for part in weights.parts]
    return autoencoder.likelihood.mean(autoencoder.decode(model.prior.functions_at(rows, means)))


def decode_draws(
    model: GPPriorVAE, draws: list[list[Tensor]], rows: Rows, generator: torch.Generator, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each draw of B, the mean and variance of p(y | z) at rows, z with its own noise.

    The same draws at all rows make each a coherent function over the whole table.

    Args:
        draws: of B, one tensor per group of latents each.  generator: of the noise at the rows.
        seed: of the vectors of added ids and the weights of new ones; the same for every chunk of a table.
    """
    prior, autoencoder = model.prior, model.autoencoder
    noise_std = prior.noise_at(rows).sqrt()
    of_vectors = torch.Generator().manual_seed(seed)
    for B in draws:
        with added_vectors_drawn(prior, of_vectors):
            f = prior.functions_at(rows, B, of_vectors)
        eps = torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f.device)
        out = autoencoder.decode(f + noise_std * eps)
        yield autoencoder.likelihood.mean(out), autoencoder.likelihood.variance(out)


@torch.no_grad()
def predictive_bound(model: GPPriorVAE, weights: LatentPosterior, epoch: Epoch) -> float:
    """Mean over samples of E_q log p(y | z) - KL(q(z | y) || p(z | row, training data)), in nats."""
    autoencoder, to_gp, total = model.autoencoder, model.prior.to_gp, 0.0
    for batch in epoch:
        mean, var = autoencoder.encode(batch.y, batch.mask)
        z = mean + var.sqrt() * batch.noise(mean.shape[1])
        nll = autoencoder.likelihood.nll(batch.y, autoencoder.decode(z), batch.mask).sum()
        latents = latents_at(model, weights, batch.rows)
        mean, var, p_var = to_gp(mean), to_gp(var), latents.var + latents.noise
        kl = 0.5 * ((var + (mean - latents.mean).square()) / p_var - 1.0 + p_var.log() - var.log()).sum()
        total -= float(nll) + float(kl)
    return total / epoch.n_rows
