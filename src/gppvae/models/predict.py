"""Prediction: rows -> features -> q(f) -> decoder -> samples, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gppvae.data.batches import Epoch
from gppvae.data.table import Rows
from gppvae.kernels.columns import drawn_vectors, learned_by_column
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import vector_variance
from gppvae.prior.posterior import WeightPosterior

PREDICT_ROWS = 256


@dataclass(frozen=True)
class Latents:
    """Posterior of the latents at rows: f ~ N(mean, var), z = f + noise of variance `noise`.

    Attributes:
        V: features (N, H).  mean: (N, L).  var: of f, (N, L) or (N, 1), with that of vectors of added ids.
        noise: alpha + residual, (N, 1).
    """

    V: Tensor
    mean: Tensor
    var: Tensor
    noise: Tensor


def latents_at(model: GPPriorVAE, weights: WeightPosterior, rows: Rows) -> Latents:
    """Where the GP puts the latents of rows. Far from the data var + noise is the prior's variance."""
    V = model.features(rows).dense()
    noise = (model.alpha + model.kernel.residual(rows)).reshape(-1, 1)
    var = weights.var_at(V)
    for leaves in learned_by_column(model.kernel).values():
        if leaves[0].n_added:
            var = var + vector_variance(model, weights, rows, leaves)
    return Latents(V, weights.mean_at(V), var, noise)


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
    model: GPPriorVAE, draws: list[Tensor], rows: Rows, generator: torch.Generator, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each draw of B, the mean and variance of p(y | z) at rows, z with its own noise.

    The same draws at all rows make each a coherent function over the whole table; `seed` is that of the
    vectors of added ids, which must be the same for every chunk of a table.
    """
    V = model.features(rows).dense()
    noise_std = (model.alpha + model.kernel.residual(rows)).sqrt().reshape(-1, 1)
    added = any(leaves[0].n_added for leaves in learned_by_column(model.kernel).values())
    autoencoder = model.autoencoder
    of_vectors = torch.Generator().manual_seed(seed)
    for B in draws:
        if added:
            with drawn_vectors(model.kernel, of_vectors):
                V = model.features(rows).dense()
        eps = torch.randn(len(rows), B.shape[1], generator=generator, dtype=torch.float64).to(B.device)
        out = autoencoder.decode(_for_network(model, V @ B + noise_std * eps))
        yield autoencoder.likelihood.mean(out), autoencoder.likelihood.variance(out)


@torch.no_grad()
def predictive_bound(model: GPPriorVAE, weights: WeightPosterior, epoch: Epoch) -> float:
    """Mean over samples of E_q log p(y | z) - KL(q(z | y) || p(z | row, training data)), in nats."""
    autoencoder, total = model.autoencoder, 0.0
    for batch in epoch:
        mean, var = autoencoder.encode(batch.y)
        z = mean + var.sqrt() * batch.noise(mean.shape[1])
        nll = autoencoder.likelihood.nll(batch.y, autoencoder.decode(z), batch.mask).sum()
        latents = latents_at(model, weights, batch.rows)
        mean, var, p_var = model.to_gp(mean), model.to_gp(var), latents.var + latents.noise
        kl = 0.5 * ((var + (mean - latents.mean).square()) / p_var - 1.0 + p_var.log() - var.log()).sum()
        total -= float(nll) + float(kl)
    return total / epoch.n_rows


def _for_network(model: GPPriorVAE, z: Tensor) -> Tensor:
    like = next(model.autoencoder.decoder.parameters(), z)
    return z.to(like.dtype).to(like.device)
