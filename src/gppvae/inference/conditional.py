"""The conditional VAE: z ~ N(0, I), encoder and decoder told the condition of each row."""

from __future__ import annotations

from torch import Tensor

from gppvae.data.batches import Batch
from gppvae.inference.base import reparametrise
from gppvae.inference.independent import Independent
from gppvae.models.cvae import conditions_of, decode_given, encode_given


class Conditional(Independent):
    """E_q[-log p(y | z, w)] + KL(q(z | y, w) || N(0, I)), mini-batches. Source: Sohn et al. 2015.

    Rows carry the conditions; without any it is the plain VAE. Cost: one pass, a step per batch.
    """

    name = "cvae"

    def _through(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        autoencoder, condition = self._autoencoder[0], conditions_of(batch.rows, batch.y)
        mean, var = encode_given(autoencoder, batch.y, condition)
        out = decode_given(autoencoder, reparametrise(mean, var, batch), condition)
        return mean, var, autoencoder.likelihood.nll(batch.y, out, batch.mask).sum()
