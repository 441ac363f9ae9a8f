"""Mini-batch inference: a bound that is a sum over samples, so every batch gives a step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import (
    GPInference,
    LossTerms,
    gp_arguments,
    neg_entropy,
    recon_nll,
    reparametrise,
    sum_statistics,
)
from gppvae.inference.running import RunningStatistics
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.bound import row_nll
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import SharedCovariance, WeightPosterior, condition
from gppvae.prior.statistics import Statistics, StatisticsSum, statistics

REFRESHES_PER_EPOCH = 8


class Minibatch(GPInference):
    """Steps per batch on the factorised bound; q(B) in closed form from running statistics.

    The statistics in use are those of the batches seen in this epoch plus the unseen share of the last
    epoch's; q(B) is conditioned on them several times per epoch. The bound holds for any q(B), so a stale one
    costs tightness, never validity. Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

    Cost: one plain VAE epoch plus O(N H (H + L)) and a few H^3.
    """

    name = "minibatch"

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.running = RunningStatistics(model.latent_dim)

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        if self.running.empty:  # a resumed run has them from the checkpoint
            encode = self.model.autoencoder.encode
            self.running.set(
                sum_statistics(epoch, lambda batch: gp_arguments(self.model, batch, encode(batch.y)[0], None))
            )

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        every = max(1, epoch.n_batches // REFRESHES_PER_EPOCH)
        recent = StatisticsSum()  # of this process, since q(B) was last conditioned
        for number, batch in enumerate(epoch):
            if number % every == 0 and number > 0:
                recent = self._take_over(recent, epoch)
            if number % every == 0:
                weights = self._condition(epoch)
            terms, part = self.batch_loss(batch, weights, epoch.n_rows)
            recent.add(part)
            yield terms
        self._take_over(recent, epoch)
        self.running.end_epoch()

    def _take_over(self, recent: StatisticsSum, epoch: Epoch) -> StatisticsSum:
        """Add what all processes saw since the last time; a new, empty sum."""
        epoch.world.sum_(recent.value.tensors())
        self.running.add(recent.value)
        return StatisticsSum()

    @torch.no_grad()
    def _condition(self, epoch: Epoch) -> SharedCovariance:
        features = self.model.features(epoch.rows[:1])
        return condition(assemble(self.running.current(), features.tables, features.sizes))

    def batch_loss(self, batch: Batch, weights: SharedCovariance, n_rows: int) -> tuple[LossTerms, Statistics]:
        """Back-propagate this batch's share of the bound at q(B) = `weights`; return its terms and statistics."""
        model, n = self.model, batch.total
        mean, var = model.autoencoder.encode(batch.y)
        recon = recon_nll(model.autoencoder, batch, reparametrise(mean, var, batch))
        entropy = neg_entropy(var)
        features, mean64, var64, noise = gp_arguments(model, batch, mean, var)
        assert var64 is not None
        rows = row_nll(features.dense(), mean64, var64, noise, weights).sum()
        penalty = model.kernel.neg_log_prior() * batch.share
        loss = (recon + entropy) / n + (rows / n + penalty / n_rows).to(recon.device, recon.dtype)
        loss.backward()
        with torch.no_grad():
            part = statistics(features, mean64, None, noise)
        gp = (rows + weights.kl() * (len(batch) / n_rows)).detach()
        share = penalty.detach() * (n / n_rows)
        return LossTerms(recon.detach(), gp, entropy.detach(), share, n=n), part
