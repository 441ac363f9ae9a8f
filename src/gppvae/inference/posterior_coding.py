"""GP posterior coding: encoder outputs are pseudo-observations, the decoder sees the GP's posterior."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.data.world import ALONE, World
from gppvae.inference.base import (
    GPArguments,
    GPInference,
    LossTerms,
    draw_latents,
    recon_nll,
    sum_statistics,
)
from gppvae.inference.running import RunningStatistics
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import WeightPosterior, condition
from gppvae.prior.pseudo import Observed, condition_at
from gppvae.prior.statistics import Statistics, statistics


class PosteriorCoding(GPInference):
    """q(B) = posterior given pseudo-observations mu_n of f(row_n) with noise d_n from the encoder.

    The noise of a sample is the geometric mean of the encoder's variances, so that all latent dimensions
    share one covariance and a step costs one Cholesky factor. Training and prediction then use the same
    path, row -> q(f) -> decoder; the bound is E log p(y | z) - KL(q(B) || N(0, I)), z = f + eta. Sums over
    rows outside the batch are those of their last visit. Source: Pearce 2019; Jazbec et al. 2021.

    Cost: one plain VAE epoch plus O(H^3 + H^2 L) per batch.
    """

    name = "posterior"

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.running = RunningStatistics(model.latent_dim)

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        if self.running.empty:  # a resumed run has them from the checkpoint
            self.running.set(sum_statistics(epoch, self._pseudo_observations))

    def _pseudo_observations(self, batch: Batch) -> GPArguments:
        mean, var = self.model.autoencoder.encode(batch.y)
        noise = self.model.to_gp(var).log().mean(1).exp() + self._residual(batch)
        return self.model.features(batch.rows), self.model.to_gp(mean), None, noise

    def _residual(self, batch: Batch) -> Tensor | float:
        kernel = self.model.kernel
        return 0.0 if kernel.carries_training_variance else kernel.residual(batch.rows)

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        for batch in epoch:
            terms, part = self._batch_loss(batch, self.running.current(), epoch.n_rows, epoch.world)
            self.running.add(part)
            yield terms
        self.running.end_epoch()

    def _batch_loss(
        self, batch: Batch, running: Statistics, n_rows: int, world: World = ALONE
    ) -> tuple[LossTerms, Statistics]:
        model, n = self.model, batch.total
        arguments = self._pseudo_observations(batch)
        features, mean, _, noise = arguments
        with torch.no_grad():
            part = statistics(*arguments)
            world.sum_(part.tensors())
        V = features.dense()
        # Tables have their gradient from the sums over all rows; those of the batch must not add theirs.
        own = Observed(V if not features.tables else features.held_tables().dense(), mean, noise, n_rows / n)
        f, var, kl = condition_at(assemble(running, features.tables, features.sizes), V, own, world.sum_)
        z = draw_latents(f, var + model.noise(batch.rows).reshape(-1, 1), batch)
        recon = recon_nll(model.autoencoder, batch, z)
        kl, penalty = kl * batch.share, model.kernel.neg_log_prior() * batch.share
        (recon / n + ((kl + penalty) / n_rows).to(recon.device, recon.dtype)).backward()
        return LossTerms.without_encoder(recon, kl, penalty, n, n_rows), part

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> WeightPosterior:
        features = self.model.features(epoch.rows[:1])
        return condition(assemble(sum_statistics(epoch, self._pseudo_observations), features.tables, features.sizes))
