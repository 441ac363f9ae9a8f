"""GP posterior coding: encoder outputs are pseudo-observations of f, and the decoder sees the GP posterior."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import (
    Inference,
    LossTerms,
    SlowGroups,
    draw,
    over_processes,
    recon_nll,
    sum_rows,
    with_unexplained,
)
from gppvae.inference.phase import Budget, Phase
from gppvae.inference.running import KeptSums, RunningSums, add
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import LatentPosterior
from gppvae.prior.statistics import Sums

BATCHES_PER_STEP = 4  # batches per step of encoder and prior, after which q(B) is conditioned again
ROWS_PER_STEP = 4  # largest number of per-id blocks per row seen before q(B) is conditioned again
KEPT = 0.3  # decay of the gradient sums of earlier rows, each time that q(B) is conditioned again


class PosteriorCoding(Inference):
    """q(B) = posterior given pseudo-observations mu_n of f_n with noise d_n from the encoder. The negative bound is

        sum_n E -log p(y_n | f_n + eta_n) + KL(q(B) || N(0, I)),   f_n = B'v_n,   B ~ q(B)

    Training and prediction use the same path, row -> q(f) -> decoder. Every pseudo-observation affects f at all rows.
    The gradient of the bound with respect to q(B) is estimated from the rows seen before q(B) was last conditioned,
    with exponential decay, since one batch alone is too noisy. An encoder that steps several times for one q(B)
    overshoots, so encoder and prior take one step per few batches, after which q(B) is conditioned again; the decoder
    steps with every batch.
    Source: Pearce 2019; Jazbec et al. 2021; docs/math.md, "Posterior coding in mini-batches".

    Cost: one plain VAE epoch plus O(N H (H + L)), and H^3 per four batches; one more such epoch before the first.
    """

    name = "posterior"
    identifies_noise = False

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.running = RunningSums(model.prior)
        self.wanted = KeptSums(model.prior)  # A and G; the name is a key of checkpoints

    @classmethod
    def phases(cls, budget: Budget) -> list[Phase]:
        # One step of the encoder stands for four batches, and half the rate works better. The gradients with respect to
        # q(B) are noisy estimates, so rates decay to zero.
        return [*budget.warm_up(), *budget.joint(cls, lr={"encoder": 0.5 * budget.lr}, decay="cosine")]

    def start(self, epoch: Epoch, weights: LatentPosterior | None) -> None:
        if not self.running.empty:  # a resumed run has them from the checkpoint
            return
        prior, at_start = self.model.prior, self.weights(epoch)

        def part(batch: Batch) -> Sums:
            mean, noise = self._pseudo_observations(batch)
            latents = prior.at(batch.rows, at_start, training=True)
            f, s = latents.mean.requires_grad_(), latents.var.clone().requires_grad_()  # (B, L) each
            with torch.enable_grad():
                z = with_unexplained(self.model, batch, f, s + latents.noise)
                recon = recon_nll(self.model.autoencoder, batch, draw(z.mean, z.var, batch))
            gradients = torch.autograd.grad(recon, [f, s])  # g and h of docs/math.md
            return prior.pseudo_statistics(batch.rows, mean, noise) + prior.gradient_statistics(batch.rows, *gradients)

        observed, gradient_sums = _halves(sum_rows(epoch, part))
        self.running.set(observed)
        self.wanted.set(gradient_sums)

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        prior, autoencoder = self.model.prior, self.model.autoencoder
        # Conditioning factors every block; doing so once per P / ROWS_PER_STEP rows keeps an epoch linear in N.
        enough = -(-prior.n_blocks // (ROWS_PER_STEP * epoch.batch_size))  # batches, rounded up
        per_step = min(max(BATCHES_PER_STEP, enough), epoch.n_batches)
        slow = SlowGroups(epoch.n_batches, per_step, "encoder", "prior", "noise")
        recent: Sums = []
        for batch in epoch:
            if slow.stepped:
                self._take_over(recent, epoch)
                recent, given = [], prior.condition_on_pseudo(self.running.current(), self.wanted.get())
                kl = torch.stack([q.kl for q in given]).sum()
            batch_share = len(batch) / epoch.n_rows
            mean, noise = self._pseudo_observations(batch)
            f, s = prior.at_pseudo(batch.rows, mean, noise, given, batch.total)  # (B, L) each
            f.retain_grad()  # g and h, for the gradient sums
            s.retain_grad()
            z = with_unexplained(self.model, batch, f, s + prior.noise_at(batch.rows, training=True))
            terms = LossTerms(
                recon_nll=recon_nll(autoencoder, batch, draw(z.mean, z.var, batch)),
                gp_nll=z.gp_nll + batch_share * kl,
                neg_entropy=z.neg_entropy,
                penalty=batch_share * prior.neg_log_prior(),
                n=batch.total,
            )
            terms.backward()
            recent = add(recent, self._sums(batch, mean, noise, f, s))
            yield slow.step(terms)
        self._take_over(recent, epoch)
        self.running.end_epoch()

    @torch.no_grad()
    def _sums(self, batch: Batch, mean: Tensor, noise: list[Tensor], f: Tensor, s: Tensor) -> Sums:
        """Sums over a batch of pseudo-observations, then of gradients with respect to f and s."""
        assert f.grad is not None and s.grad is not None
        prior, n = self.model.prior, batch.total
        observed = prior.pseudo_statistics(batch.rows, mean, noise)
        return observed + prior.gradient_statistics(batch.rows, n * f.grad, n * s.grad)  # .grad is per sample

    def _take_over(self, recent: Sums, epoch: Epoch) -> None:
        """Add the sums of all processes since q(B) was last conditioned."""
        if not recent:
            return
        observed, gradients = _halves(over_processes(recent, epoch.world))
        self.running.add(observed)
        n_rows = self.running.n_rows
        if self.wanted.n_rows < n_rows and gradients[0].sums[3] < n_rows:  # sums over all rows need no history
            gradients = add(gradients, self.wanted.get(), KEPT)
        self.wanted.set(gradients)

    @torch.no_grad()
    def weights(self, epoch: Epoch) -> LatentPosterior:
        prior = self.model.prior
        totals = sum_rows(epoch, lambda batch: prior.pseudo_statistics(batch.rows, *self._pseudo_observations(batch)))
        return prior.posterior(totals)

    def _pseudo_observations(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """mu (B, L), and the noise d, (B,) per group of latents."""
        mean, logvar = self.model.autoencoder.encode_log(batch.y, batch.mask)
        return self.model.prior.to_gp(mean), self.model.prior.pseudo_noise(logvar, batch.rows)


def _halves(sums: Sums) -> tuple[Sums, Sums]:
    """Sums of pseudo-observations and of gradients, which are concatenated so that one call sums both."""
    return sums[: len(sums) // 2], sums[len(sums) // 2 :]
