"""The autoencoder half: encoder, decoder and likelihood."""

from __future__ import annotations

from torch import Tensor, nn

from gppvae.likelihoods import Likelihood

LOGVAR_RANGE = (-15.0, 10.0)


class Autoencoder(nn.Module):
    """y -> q(z | y) and z -> p(y | z); with z ~ N(0, I) it is the plain VAE.

    Args:
        encoder: module, y -> (mean, logvar), each (B, L).
        decoder: module, z -> output of the samples' shape.
        likelihood: what the output means.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.encoder, self.decoder, self.likelihood = encoder, decoder, likelihood

    def encode(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(z | y), (B, L) each."""
        mean, logvar = self.encode_log(y)
        return mean, logvar.exp()

    def encode_log(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z | y), (B, L) each; the latter is kept where exp() is safe."""
        mean, logvar = self.encoder(self.likelihood.encoder_input(y))
        return mean, logvar.clamp(*LOGVAR_RANGE)

    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(z)
