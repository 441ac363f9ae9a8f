"""Mini-batch inference: a bound that is a sum over samples, so every batch gives a step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gppvae.data.batches import Epoch
from gppvae.inference.base import Inference, LossTerms, draw, neg_entropy, over_processes, recon_nll, sum_rows
from gppvae.inference.running import RunningSums, add
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import LatentPosterior
from gppvae.prior.statistics import Sums

REFRESHES_PER_EPOCH = 8


class Minibatch(Inference):
    """A step per batch on the factorised negative bound, with q(B) in closed form:

        sum_n [E_q(z|y) -log p(y_n | z_n) + E_q -log N(z_n; B'v_n, d_n) - H(q(z_n | y_n))] + KL(q(B) || N(0, I))

    q(B) is conditioned several times per epoch on running sums: over the batches seen in this epoch, plus the unseen
    share of the last epoch. The bound holds for any q(B); a stale one is only less tight.
    Source: Hensman et al. 2013; docs/math.md, "A bound that factorises".

    Cost: one plain VAE epoch plus O(N H (H + L)) and a few H^3.
    """

    name = "minibatch"

    def __init__(self, model: GPPriorVAE) -> None:
        super().__init__(model)
        self.running = RunningSums(model.prior)

    def start(self, epoch: Epoch, weights: LatentPosterior | None) -> None:
        if self.running.empty:  # a resumed run has them from the checkpoint
            prior, encode = self.model.prior, self.model.autoencoder.encode
            encoded = sum_rows(epoch, lambda batch: prior.statistics(batch.rows, encode(batch.y, batch.mask)[0]))
            self.running.set(encoded)

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        prior, autoencoder = self.model.prior, self.model.autoencoder
        refresh = max(1, epoch.n_batches // REFRESHES_PER_EPOCH)
        recent: Sums = []
        for number, batch in enumerate(epoch):
            if number % refresh == 0:
                recent = self._take_over(recent, epoch)
                with torch.no_grad():
                    q = prior.posterior(self.running.current())
                    kl = q.kl()
            batch_share = len(batch) / epoch.n_rows  # of the terms that are no sums over rows
            mean, var = autoencoder.encode(batch.y, batch.mask)  # (B, L) each
            row_nll = prior.at(batch.rows, q, training=True).expected_nll(prior.to_gp(mean), prior.to_gp(var))  # (B,)
            terms = LossTerms(
                recon_nll=recon_nll(autoencoder, batch, draw(mean, var, batch)),
                gp_nll=row_nll.sum() + batch_share * kl,
                neg_entropy=neg_entropy(var),
                penalty=batch_share * prior.neg_log_prior(),
                n=batch.total,
            )
            terms.backward()
            with torch.no_grad():
                recent = add(recent, prior.statistics(batch.rows, mean))
            yield terms
        self._take_over(recent, epoch)
        self.running.end_epoch()

    def _take_over(self, recent: Sums, epoch: Epoch) -> Sums:
        """Add the statistics of all processes since q(B) was last conditioned; returns a new empty list."""
        if recent:
            self.running.add(over_processes(recent, epoch.world))
        return []
