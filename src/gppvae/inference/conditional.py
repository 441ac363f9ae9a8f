"""The conditional VAE: z ~ N(0, I), encoder and decoder told the condition of each row."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gppvae.data.batches import Epoch
from gppvae.inference.base import Inference, LossTerms, neg_entropy, reparametrise
from gppvae.models.cvae import conditions_of, decode_given, encode_given
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.prior.posterior import WeightPosterior


class Conditional(Inference):
    """E_q[-log p(y | z, w)] + KL(q(z | y, w) || N(0, I)), mini-batches. Source: Sohn et al. 2015.

    Rows carry the conditions; without any it is the plain VAE. Cost: one pass, a step per batch.
    """

    name = "cvae"

    def __init__(self, model: GPPriorVAE | Autoencoder) -> None:
        super().__init__()
        self._autoencoder = (model.autoencoder if isinstance(model, GPPriorVAE) else model,)

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        autoencoder = self._autoencoder[0]
        for batch in epoch:
            condition = conditions_of(batch.rows, batch.y)
            mean, var = encode_given(autoencoder, batch.y, condition)
            out = decode_given(autoencoder, reparametrise(mean, var, batch), condition)
            recon = autoencoder.likelihood.nll(batch.y, out, batch.mask).sum()
            prior = 0.5 * ((mean.square() + var).sum() + mean.numel() * math.log(2.0 * math.pi))
            entropy = neg_entropy(var)
            ((recon + prior + entropy) / batch.total).backward()
            yield LossTerms(recon.detach(), prior.detach(), entropy.detach(), recon.new_zeros(()), n=batch.total)

    def weights(self, epoch: Epoch) -> WeightPosterior | None:
        return None
