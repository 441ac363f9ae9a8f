"""GP posterior coding: encoder outputs are pseudo-observations, the decoder sees the GP's posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import GPArguments, LossTerms, draw_latents, recon_nll, sum_over, sum_statistics
from gppvae.inference.running import RunningInference
from gppvae.kernels.features import Features
from gppvae.prior.lowrank import assemble
from gppvae.prior.posterior import SharedCovariance, WeightPosterior, condition
from gppvae.prior.pseudo import Conditioned, condition_on_pseudo, posterior_at, pseudo_sums
from gppvae.prior.statistics import Statistics, inner


class PosteriorCoding(RunningInference[Conditioned]):
    """q(B) = posterior given pseudo-observations mu_n of f(row_n) with noise d_n from the encoder.

    The noise of a sample is the geometric mean of the encoder's variances, so that all latent dimensions
    share one covariance. Training and prediction then use the same path, row -> q(f) -> decoder; the bound is
    E log p(y | z) - KL(q(B) || N(0, I)), z = f + eta. A row acts on the f of every other: what these want of it is
    summed over all rows and kept like the sums of q(B), not estimated from the few that share its batch.
    Source: Pearce 2019; Jazbec et al. 2021.

    Cost: one plain VAE epoch plus O(N H (H + L)), and a few H^3; one more such epoch before the first.
    """

    name = "posterior"

    def start(self, epoch: Epoch, weights: WeightPosterior | None) -> None:
        if not self.running.empty:  # a resumed run has them from the checkpoint
            return
        at_start = self.weights(epoch)

        def part(batch: Batch) -> Statistics:
            features, mean, _, noise = self._pseudo_observations(batch)
            with torch.enable_grad():
                recon, f, var = self._reconstruction(batch, features, at_start)
            return pseudo_sums(features, mean, noise, *torch.autograd.grad(recon, (f, var)))

        self.running.set(sum_over(epoch, part))

    def condition(self, totals: Statistics, features: Features) -> Conditioned:
        return condition_on_pseudo(totals, features.tables, features.sizes)

    def batch_loss(self, batch: Batch, given: Conditioned, epoch: Epoch) -> tuple[LossTerms, Statistics]:
        model, n, n_rows = self.model, batch.total, epoch.n_rows
        features, mean, _, noise = self._pseudo_observations(batch)
        recon, f, var = self._reconstruction(batch, features, given.weights)
        penalty = model.kernel.neg_log_prior() * batch.share
        of_all = (given.tables_share(features.tables) * batch.share + penalty) / n_rows
        through_sums = inner(given.pull, features, mean, None, noise) / n + of_all
        (recon / n + through_sums.to(recon.device, recon.dtype)).backward()
        assert f.grad is not None and var.grad is not None
        with torch.no_grad():
            part = pseudo_sums(features, mean, noise, f.grad * n, var.grad * n)
        return LossTerms.without_encoder(recon, given.weights.kl() * batch.share, penalty, n, n_rows), part

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> SharedCovariance:
        features = self.model.features(epoch.rows[:1])
        return condition(assemble(sum_statistics(epoch, self._pseudo_observations), features.tables, features.sizes))

    def _pseudo_observations(self, batch: Batch) -> GPArguments:
        mean, var = self.model.autoencoder.encode(batch.y)
        noise = self.model.to_gp(var).log().mean(1).exp() + self._residual(batch)
        return self.model.features(batch.rows), self.model.to_gp(mean), None, noise

    def _residual(self, batch: Batch) -> Tensor | float:
        kernel = self.model.kernel
        return 0.0 if kernel.carries_training_variance else kernel.residual(batch.rows)

    def _reconstruction(
        self, batch: Batch, features: Features, weights: SharedCovariance
    ) -> tuple[Tensor, Tensor, Tensor]:
        """-log p(y | z) at z ~ q(f) + noise, summed over the batch; mean and variance of f, which keep gradients."""
        f, var = posterior_at(weights, features.dense())
        for moment in (f, var):
            moment.requires_grad_().retain_grad()
        z = draw_latents(f, var + self.model.noise(batch.rows).reshape(-1, 1), batch)
        return recon_nll(self.model.autoencoder, batch, z), f, var
