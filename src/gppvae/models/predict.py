"""Prediction: rows -> features -> q(f) -> decoder -> samples, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.table import Rows
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import WeightPosterior

PREDICT_ROWS = 256


@dataclass(frozen=True)
class Latents:
    """Posterior of the latents at rows: f ~ N(mean, var), z = f + noise of variance `noise`.

    Attributes:
        V: features (N, H).  mean: (N, L).  var: of f, (N, L) or (N, 1).  noise: alpha + residual, (N, 1).
    """

    V: Tensor
    mean: Tensor
    var: Tensor
    noise: Tensor


def latents_at(model: GPPriorVAE, weights: WeightPosterior, rows: Rows) -> Latents:
    """Where the GP puts the latents of rows. Far from the data var + noise is the prior's variance."""
    V = model.kernel.features(rows).dense()
    noise = (model.alpha + model.kernel.residual(rows)).reshape(-1, 1)
    return Latents(V, weights.mean_at(V), weights.var_at(V), noise)


def row_chunks(rows: Rows) -> Iterator[tuple[slice, Rows]]:
    for start in range(0, len(rows), PREDICT_ROWS):
        chunk = slice(start, min(start + PREDICT_ROWS, len(rows)))
        yield chunk, rows[chunk]


def decode_mean(model: GPPriorVAE, weights: WeightPosterior, rows: Rows) -> Tensor:
    """The decoder at the posterior mean of z, (N, *shape)."""
    z = latents_at(model, weights, rows).mean
    autoencoder = model.autoencoder
    return autoencoder.likelihood.mean(autoencoder.decode(_for_network(model, z)))


def decode_draws(
    model: GPPriorVAE, draws: list[Tensor], weights: WeightPosterior, rows: Rows, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each draw of B, the mean and variance of p(y | z) at rows, z with its own noise.

    The same draws at all rows make each a coherent function over the whole table.
    """
    latents = latents_at(model, weights, rows)
    autoencoder = model.autoencoder
    for B in draws:
        eps = torch.randn(latents.mean.shape, generator=generator, dtype=torch.float64).to(B.device)
        out = autoencoder.decode(_for_network(model, latents.V @ B + latents.noise.sqrt() * eps))
        yield autoencoder.likelihood.mean(out), autoencoder.likelihood.variance(out)


def _for_network(model: GPPriorVAE, z: Tensor) -> Tensor:
    like = next(model.autoencoder.decoder.parameters(), z)
    return z.to(like.dtype).to(like.device)
