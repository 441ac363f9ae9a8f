"""Kernel and latent noise with fixed networks: every sample is encoded once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Epoch
from gppvae.data.table import Rows
from gppvae.inference.base import Inference, LossTerms, back_propagate, neg_entropy, over_processes
from gppvae.inference.exact import inner_product, pull_back
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import LatentPosterior
from gppvae.prior.statistics import StatisticsSum, Sums

CHUNK_ROWS = 8192


class FixedLatents(Inference):
    """E_q[-log p(Z)] with q(z | y) fixed: the exact gradient in the prior's parameters, one step per epoch.

    No network runs after the first pass. Memory: the encoder outputs of the rows of this process, 2 N L numbers over
    all processes. Cost: O(N M (2M + L) + H^3) per epoch.
    """

    name = "fixed"
    sweeps = 0
    validated_by = None

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self._encoded: tuple[Rows, Tensor, Tensor] | None = None

    @torch.no_grad()
    def start(self, epoch: Epoch, weights: LatentPosterior | None) -> None:
        prior, encode = self.model.prior, self.model.autoencoder.encode
        encoded = [(batch.index, *map(prior.to_gp, encode(batch.y, batch.mask))) for batch in epoch]
        index, order = torch.cat([index for index, _, _ in encoded]).sort()  # back to the order of the table, (n,)
        mean, var = (torch.cat([entry[k] for entry in encoded])[order.to(prior.device)] for k in (1, 2))
        self._encoded = epoch.rows[index.to(epoch.rows.device)], mean, var

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        assert self._encoded is not None, "start() comes before steps()"
        _, mean, var = self._encoded
        # At least one chunk: a process without rows must take part in the sum over processes.
        chunks = [slice(start, start + CHUNK_ROWS) for start in range(0, max(len(mean), 1), CHUNK_ROWS)]
        totals = StatisticsSum()
        with torch.no_grad():
            for chunk in chunks:
                totals.add(self._statistics(chunk))
        everywhere = over_processes(totals.value, epoch.world)
        gp_nll, penalty, by_sums = pull_back(self.model.prior, everywhere, epoch.n_rows, epoch.world)
        for chunk in chunks:
            back_propagate(inner_product(by_sums, self._statistics(chunk)))
        yield LossTerms(mean.new_zeros(()), gp_nll, neg_entropy(var), penalty, n=epoch.n_rows)

    def _statistics(self, chunk: slice) -> Sums:
        assert self._encoded is not None
        rows, mean, var = self._encoded
        return self.model.prior.statistics(rows[chunk], mean[chunk], var[chunk])
