"""The plain VAE: z ~ N(0, I), mini-batches. Also the warm-up of a GPPVAE."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from gppvae.data.batches import Batch, Epoch
from gppvae.inference.base import Inference, LossTerms, neg_entropy, recon_nll, reparametrise
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.prior.posterior import WeightPosterior


class Independent(Inference):
    """E_q[-log N(z; 0, I)] = 1/2 sum (mu^2 + s2 + log 2 pi). Cost: one pass, a step per batch."""

    name = "vae"

    def __init__(self, model: GPPriorVAE | Autoencoder) -> None:
        super().__init__()
        self._autoencoder = (model.autoencoder if isinstance(model, GPPriorVAE) else model,)

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        for batch in epoch:
            mean, var, recon = self._through(batch)
            prior = 0.5 * ((mean.square() + var).sum() + mean.numel() * math.log(2.0 * math.pi))
            entropy = neg_entropy(var)
            ((recon + prior + entropy) / batch.total).backward()
            terms = recon.detach(), prior.detach(), entropy.detach(), recon.new_zeros(())
            yield LossTerms(*terms, n=batch.total)

    def _through(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of q(z) and -log p(y | z) of a batch."""
        autoencoder = self._autoencoder[0]
        mean, var = autoencoder.encode(batch.y)
        return mean, var, recon_nll(autoencoder, batch, reparametrise(mean, var, batch))

    def weights(self, epoch: Epoch) -> WeightPosterior | None:
        return None
