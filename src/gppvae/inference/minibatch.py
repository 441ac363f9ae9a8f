"""Mini-batch inference: a bound that is a sum over samples, so every batch gives a step."""

from __future__ import annotations

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import LossTerms, gp_arguments, neg_entropy, recon_nll, reparametrise, sum_statistics
from gppvae.inference.running import RunningInference
from gppvae.prior.bound import row_nll
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import SharedCovariance, WeightPosterior, condition
from gppvae.prior.statistics import Statistics, posterior_statistics


class Minibatch(RunningInference[SharedCovariance]):
    """Steps per batch on the factorised bound; q(B) in closed form from running statistics.

    The statistics in use are those of the batches seen in this epoch plus the unseen share of the last
    epoch's; q(B) is conditioned on them several times per epoch. The bound holds for any q(B), so a stale one
    costs tightness, never validity. Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

    Cost: one plain VAE epoch plus O(N H (H + L)) and a few H^3.
    """

    name = "minibatch"

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        if self.running.empty:  # a resumed run has them from the checkpoint
            encode = self.model.autoencoder.encode
            self.running.set(
                sum_statistics(epoch, lambda batch: gp_arguments(self.model, batch, encode(batch.y)[0], None))
            )

    def condition(self, totals: Statistics, tables: list[Tensor], sizes: list[int]) -> SharedCovariance:
        return condition(assemble(totals, tables, sizes))

    def batch_loss(self, batch: Batch, given: SharedCovariance, epoch: Epoch) -> tuple[LossTerms, Statistics]:
        model, n, n_rows = self.model, batch.total, epoch.n_rows
        mean, var = model.autoencoder.encode(batch.y)
        recon = recon_nll(model.autoencoder, batch, reparametrise(mean, var, batch))
        entropy = neg_entropy(var)
        features, mean64, var64, noise = gp_arguments(model, batch, mean, var)
        assert var64 is not None
        rows = row_nll(features.dense(), mean64, var64, noise, given).sum()
        penalty = model.kernel.neg_log_prior() * batch.share
        loss = (recon + entropy) / n + (rows / n + penalty / n_rows).to(recon.device, recon.dtype)
        loss.backward()
        with torch.no_grad():
            part = posterior_statistics(features, mean64, noise)
        gp = (rows + given.kl() * (len(batch) / n_rows)).detach()
        share = penalty.detach() * (n / n_rows)
        return LossTerms(recon.detach(), gp, entropy.detach(), share, n=n), part
