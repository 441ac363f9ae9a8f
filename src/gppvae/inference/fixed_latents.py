"""Kernel and latent noise only, the networks fixed: latents are encoded once and kept."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Epoch
from gppvae.data.table import Rows
from gppvae.inference.base import GPArguments, GPInference, LossTerms, back_propagate, known_of_rows, neg_entropy
from gppvae.inference.exact import pull_back
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import WeightPosterior
from gppvae.prior.statistics import StatisticsSum, statistics

CHUNK_ROWS = 8192


class FixedLatents(GPInference):
    """Exact gradient of the expected GP term with respect to the prior's parameters, one step per epoch.

    No network runs after the first pass, so an epoch costs O(N M (2M + L) + H^3). Memory: the encoder
    outputs of the rows that this process sees, 2 N L numbers in all; no other inference keeps latents.
    """

    name = "fixed"
    sweeps = 0

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self._encoded: tuple[Rows, Tensor, Tensor] | None = None

    @torch.no_grad()
    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        encoded = [(batch.index, *self.model.autoencoder.encode(batch.y)) for batch in epoch]
        index, order = torch.cat([index for index, _, _ in encoded]).sort()
        mean = torch.cat([self.model.to_gp(mean) for _, mean, _ in encoded])
        var = torch.cat([self.model.to_gp(var) for _, _, var in encoded])
        rows = epoch.rows[index.to(epoch.rows.device)]
        self._encoded = rows, mean[order.to(mean.device)], var[order.to(mean.device)]

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        assert self._encoded is not None, "start() comes before steps()"
        _, mean, var = self._encoded
        # One chunk at least: a process without rows still takes part in every sum.
        chunks = [slice(start, start + CHUNK_ROWS) for start in range(0, max(len(mean), 1), CHUNK_ROWS)]
        totals = StatisticsSum()
        with torch.no_grad():
            for chunk in chunks:
                totals.add(statistics(*self._arguments(chunk)))
        epoch.world.sum_(totals.value.tensors())
        gp_value, penalty, pull = pull_back(self.model, totals.value, epoch)
        for chunk in chunks:
            back_propagate(*known_of_rows(pull, self._arguments(chunk)))
        yield LossTerms(mean.new_zeros(()), gp_value, neg_entropy(var), penalty, n=epoch.n_rows)

    def _arguments(self, chunk: slice) -> GPArguments:
        assert self._encoded is not None
        rows, mean, var = self._encoded
        return self.model.features(rows[chunk]), mean[chunk], var[chunk], self.model.noise(rows[chunk])
