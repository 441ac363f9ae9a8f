"""Kernel and latent noise only, the networks fixed: latents are encoded once and kept."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Epoch
from gppvae.inference.base import GPArguments, GPInference, LossTerms, neg_entropy
from gppvae.inference.exact import pull_back
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import WeightPosterior
from gppvae.prior.statistics import inner, statistics

CHUNK_ROWS = 8192


class FixedLatents(GPInference):
    """Exact gradient of the expected GP term with respect to the prior's parameters, one step per epoch.

    No network runs after the first pass, so an epoch costs O(N M (2M + L) + H^3). Memory: the encoder
    outputs, 2 N L numbers.
    """

    name = "fixed"
    sweeps = 0

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self._latents: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        encoded = [(batch.index, *self.model.autoencoder.encode(batch.y)) for batch in epoch]
        order = torch.cat([index for index, _, _ in encoded]).argsort()
        mean = torch.cat([self.model.to_gp(mean) for _, mean, _ in encoded])
        var = torch.cat([self.model.to_gp(var) for _, _, var in encoded])
        self._latents = mean[order.to(mean.device)], var[order.to(mean.device)]

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        assert self._latents is not None, "start() comes before steps()"
        mean, var = self._latents
        chunks = [slice(start, start + CHUNK_ROWS) for start in range(0, epoch.n_rows, CHUNK_ROWS)]
        with torch.no_grad():
            parts = [statistics(*self._arguments(epoch, chunk)) for chunk in chunks]
            totals = sum(parts[1:], start=parts[0])
        gp_value, penalty, pull = pull_back(self.model, totals, epoch)
        for chunk in chunks:
            inner(pull, *self._arguments(epoch, chunk)).backward()
        yield LossTerms(mean.new_zeros(()), gp_value, neg_entropy(var), penalty, n=epoch.n_rows)

    def _arguments(self, epoch: Epoch, chunk: slice) -> GPArguments:
        assert self._latents is not None
        rows = epoch.rows[chunk]
        return (
            self.model.features(rows),
            self._latents[0][chunk],
            self._latents[1][chunk],
            self.model.noise(rows),
        )
