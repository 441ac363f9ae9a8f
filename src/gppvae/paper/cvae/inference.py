"""The bound of the conditional VAE: z ~ N(0, I), encoder and decoder told the condition of each row."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gppvae.data.batches import Epoch
from gppvae.inference.base import LossTerms, draw, neg_entropy, standard_normal_nll
from gppvae.inference.independent import Independent
from gppvae.models.vae import Autoencoder
from gppvae.paper.cvae.model import conditions_of, decode_given, encode_given


class Conditional(Independent):
    """E_q[-log p(y | z, w)] + KL(q(z | y, w) || N(0, I)), mini-batches. Source: Sohn et al. 2015.

    Rows carry the conditions (`condition_rows`). Cost: one pass, a step per batch.
    """

    name = "cvae"

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        autoencoder = self.model.autoencoder
        for batch in epoch:
            condition = conditions_of(batch.rows, batch.y)
            mean, var = encode_given(autoencoder, batch.y, condition)
            out = decode_given(autoencoder, draw(mean, var, batch), condition)
            terms = LossTerms(
                recon_nll=autoencoder.likelihood.nll(batch.y, out, batch.mask).sum(),
                gp_nll=standard_normal_nll(mean, var),
                neg_entropy=neg_entropy(var),
                penalty=mean.new_zeros(()),
                n=batch.total,
            )
            terms.backward()
            yield terms


@torch.no_grad()
def conditional_elbo(model: Autoencoder, epoch: Epoch) -> float:
    """Mean bound per sample in nats, given the condition that each row carries."""
    total = torch.zeros(1, dtype=torch.float64)
    for batch in epoch:
        condition = conditions_of(batch.rows, batch.y)
        mean, var = encode_given(model, batch.y, condition)
        z = mean + var.sqrt() * batch.noise(mean.shape[1])
        nll = model.likelihood.nll(batch.y, decode_given(model, z, condition), batch.mask).sum()
        kl = 0.5 * (mean.square() + var - 1.0 - var.log()).sum()
        total -= float(nll + kl)
    epoch.world.sum_([total])
    return float(total) / epoch.n_rows
