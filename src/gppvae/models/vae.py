"""The autoencoder half: encoder, decoder and likelihood."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gppvae.likelihoods import Likelihood

LOGVAR_RANGE = (-15.0, 10.0)


class Autoencoder(nn.Module):
    """y -> q(z | y) and z -> p(y | z).

    Args:
        encoder: module, y -> (mean, logvar), each (B, L). One with the attribute `wants_mask = True` is called with
            (y, mask); the mask is True where a value was observed, and has the shape of y.
        decoder: module, z -> output of the samples' shape, or (B, k, *shape) for a likelihood that asks for k numbers
            per value.
        likelihood: what the output means.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.encoder, self.decoder, self.likelihood = encoder, decoder, likelihood

    def encode(self, y: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(z | y), (B, L) each."""
        mean, logvar = self.encode_log(y, mask)
        return mean, logvar.exp()

    def encode_log(self, y: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z | y), (B, L) each; the latter is kept where exp() is safe."""
        seen = self.likelihood.encoder_input(y)
        inputs = [seen if mask is None else torch.where(mask, seen, torch.zeros_like(seen))]
        if getattr(self.encoder, "wants_mask", False):
            inputs.append(torch.ones_like(y, dtype=torch.bool) if mask is None else mask)
        mean, logvar = self.encoder(*inputs)
        return mean, logvar.clamp(*LOGVAR_RANGE)

    def decode(self, z: Tensor) -> Tensor:
        """The decoder's output at latents of any type and device."""
        like = next(self.decoder.parameters(), z)
        return self.decoder(z.to(like.device).to(like.dtype))

    def reconstruct(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """E[y | z] at the encoder's mean."""
        return self.likelihood.mean(self.decode(self.encode(y, mask)[0]))
