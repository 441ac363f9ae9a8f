"""GP posterior coding: encoder outputs are pseudo-observations, the decoder sees the GP's posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import GPArguments, LossTerms, draw_latents, recon_nll, sum_statistics
from gppvae.inference.running import RunningInference
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import SharedCovariance, WeightPosterior, condition
from gppvae.prior.pseudo import Observed, posterior_at
from gppvae.prior.statistics import Statistics, posterior_statistics


class PosteriorCoding(RunningInference):
    """q(B) = posterior given pseudo-observations mu_n of f(row_n) with noise d_n from the encoder.

    The noise of a sample is the geometric mean of the encoder's variances, so that all latent dimensions
    share one covariance. Training and prediction then use the same path, row -> q(f) -> decoder; the bound is
    E log p(y | z) - KL(q(B) || N(0, I)), z = f + eta. Its value is that at the q(B) conditioned on last, several
    times per epoch; its gradient is taken as if the batch's rows had changed that q(B).
    Source: Pearce 2019; Jazbec et al. 2021.

    Cost: one plain VAE epoch plus O(N H (H + L)), and a few H^3.
    """

    name = "posterior"

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

    def batch_loss(
        self, batch: Batch, totals: Statistics, weights: SharedCovariance, epoch: Epoch
    ) -> tuple[LossTerms, Statistics]:
        model, n, n_rows = self.model, batch.total, epoch.n_rows
        features, mean, _, noise = self._pseudo_observations(batch)
        W = V = features.dense()
        full = None
        if features.tables:
            # Tables have their gradient from the sums over all rows; the rows of the batch must not add theirs.
            W, full = features.held_tables().dense(), assemble(totals, features.tables, features.sizes)
        own = Observed(W, mean, noise, n_rows / n)
        f, var, kl = posterior_at(weights, V, own, full, epoch.world.sum_)
        z = draw_latents(f, var + model.noise(batch.rows).reshape(-1, 1), batch)
        recon = recon_nll(model.autoencoder, batch, z)
        kl, penalty = kl * batch.share, model.kernel.neg_log_prior() * batch.share
        (recon / n + ((kl + penalty) / n_rows).to(recon.device, recon.dtype)).backward()
        with torch.no_grad():
            part = posterior_statistics(features, mean, noise)
        return LossTerms.without_encoder(recon, kl, penalty, n, n_rows), part

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> WeightPosterior:
        features = self.model.features(epoch.rows[:1])
        return condition(assemble(sum_statistics(epoch, self._pseudo_observations), features.tables, features.sizes))
