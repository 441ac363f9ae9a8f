"""The plain VAE: z ~ N(0, I), mini-batches. Also the warm-up of a GPPVAE."""

from __future__ import annotations

from collections.abc import Iterator

from gppvae.data.batches import Epoch
from gppvae.inference.base import Inference, LossTerms, draw, neg_entropy, recon_nll, standard_normal_nll


class Independent(Inference):
    """The negative ELBO of a VAE, whatever prior the model has:

        sum_n E_q[-log p(y_n | z_n)] + KL(q(z_n | y_n) || N(0, I))

    Cost: one pass over the data, one step per batch.
    """

    name = "vae"
    conditions = False
    validated_by = "reconstruction"

    def steps(self, epoch: Epoch) -> Iterator[LossTerms]:
        autoencoder = self.model.autoencoder
        for batch in epoch:
            mean, var = autoencoder.encode(batch.y, batch.mask)
            terms = LossTerms(
                recon_nll=recon_nll(autoencoder, batch, draw(mean, var, batch)),
                gp_nll=standard_normal_nll(mean, var),
                neg_entropy=neg_entropy(var),
                penalty=mean.new_zeros(()),
                n=batch.total,
            )
            terms.backward()
            yield terms

    def weights(self, epoch: Epoch) -> None:
        return None
