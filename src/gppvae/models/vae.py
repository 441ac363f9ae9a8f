"""The autoencoder half: encoder, decoder and likelihood."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from gppvae.data.batches import Batch
from gppvae.data.sizes import sizes_in
from gppvae.likelihoods import Likelihood

LOGVAR_RANGE = (-15.0, 10.0)


class Autoencoder(nn.Module):
    """y -> q(z | y) and z -> p(y | z).

    Args:
        encoder: module, y -> (mean, logvar), each (B, L). One with the attribute `wants_mask = True` is called with
            (y, mask); the mask is True where a value was observed, and has the shape of y.
        decoder: module, z -> (B, *shape), or (B, k, *shape) for a likelihood with k numbers per value.
        likelihood: p(y | decoder output).
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.encoder, self.decoder, self.likelihood = encoder, decoder, likelihood
        self.size: Tensor | None = None  # of the samples to decode, (B,), set by `with_sizes_of`

    def encode(self, y: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(z | y), (B, L) each."""
        mean, logvar = self.encode_log(y, mask)
        return mean, logvar.exp()

    def encode_log(self, y: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z | y), (B, L) each; the latter is clamped to where exp() is safe."""
        seen = self.likelihood.encoder_input(y) if mask is None else self.likelihood.masked_input(y, mask)
        inputs = [seen if mask is None else torch.where(mask, seen, torch.zeros_like(seen))]
        if getattr(self.encoder, "wants_mask", False):
            inputs.append(torch.ones_like(y, dtype=torch.bool) if mask is None else mask)
        mean, logvar = self.encoder(*inputs)
        return mean, logvar.clamp(*LOGVAR_RANGE)

    def decode(self, z: Tensor, size: Tensor | None = None) -> Tensor:
        """The decoder's output at latents of any type and device, for samples of these sizes, (B,), or of typical size.

        Latents may be several per sample, (n B, L), one copy of the batch after the other; sizes are repeated.
        """
        size = self.size if size is None else size
        if size is not None and len(size) != len(z):
            size = size.repeat(len(z) // len(size))  # (B,) -> (n B,)
        return self.likelihood.sized(self.decoder(self.for_decoder(z)), size)

    def for_decoder(self, z: Tensor) -> Tensor:
        """Latents in the type and on the device of the decoder."""
        like = next(self.decoder.parameters(), z)
        return z.to(like.device).to(like.dtype)

    def with_sizes_of(self, batch: Batch) -> Autoencoder:
        """The same networks, decoding the samples of this batch at their own sizes."""
        other = copy.copy(self)
        other.size = self.sizes(batch)
        return other

    def sizes(self, batch: Batch) -> Tensor | None:
        """Sizes of the samples of a batch, (B,); None where the likelihood has none."""
        return self.likelihood.sizes(batch.y, batch.mask, sizes_in(batch.rows))

    def nll(self, batch: Batch, z: Tensor) -> Tensor:
        """-log p(y | z) of each sample of a batch, (B,)."""
        return self.likelihood.nll(batch.y, self.decode(z, self.sizes(batch)), batch.mask)

    def training_nll(self, batch: Batch, z: Tensor) -> Tensor:
        """-log p(y | z) of each sample in training, (B,); in an ensemble the sum over members.

        Each member decodes its own latents, as if it were a model by itself: sum_k -log p(y | g_k(z_k)).
        """
        each = getattr(self.decoder, "each", None)
        if each is None:
            return self.nll(batch, z)
        sizes, own = self.sizes(batch), each(self.for_decoder(z))
        parts = [self.likelihood.nll(batch.y, self.likelihood.sized(out, sizes), batch.mask) for out in own]
        return torch.stack(parts).sum(0)  # (members, B) -> (B,)

    def reconstruct(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """E[y | z] at the encoder's mean, (B, *shape)."""
        size = self.likelihood.sizes(y, mask, None)
        return self.likelihood.mean(self.decode(self.encode(y, mask)[0], size))
