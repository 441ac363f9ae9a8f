"""Networks by name, and the check that a pair the user brings fits the data."""

from __future__ import annotations

import torch
from torch import nn

from gppvae.nets.conv import ConvDecoder, ConvEncoder, scale_for_depth
from gppvae.nets.mlp import MLPDecoder, MLPEncoder
from gppvae.nets.shuffle import ShuffleDecoder

NETWORKS = ("auto", "conv", "wide", "faces", "mlp")


def build_networks(
    name: str, shape: tuple[int, ...], latent_dim: int, width: int | None = None
) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder for samples of `shape`.

    Args:
        name: "conv" is the paper's MNIST network, "wide" a stronger one that up-samples by pixel shuffling,
            "faces" the paper's face network, "mlp" fully connected, "auto" conv for images and mlp for vectors.
        shape: of one sample, (channels, height, width) or (values,).
        latent_dim: L.
        width: channels (or hidden units) of every layer; by default 8 for conv, 32 for wide and faces, 128 for mlp.
    """
    if name not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {name!r}; auto chooses by the data")
    if name == "auto":
        name = "conv" if len(shape) == 3 else "mlp"
    if name == "mlp":
        hidden = (width or 128,) * 2
        return MLPEncoder(shape, latent_dim, hidden), MLPDecoder(shape, latent_dim, hidden)
    if len(shape) != 3:
        raise ValueError(
            f"the {name!r} network needs images (samples, channels, height, width), got samples of shape {shape}; "
            "use network='mlp' for vectors"
        )
    image = (shape[0], shape[1], shape[2])
    if min(image[1:]) < 8:
        raise ValueError(f"the {name!r} network needs images of 8 x 8 or more, got {image[1:]}; use network='mlp'")
    if name == "faces":
        channels = (width or 32,) * 5
        encoder, decoder = ConvEncoder(image, latent_dim, channels, 2), ConvDecoder(image, latent_dim, channels, 2)
        for network in (encoder, decoder):
            scale_for_depth(network.convolutions)
        return encoder, decoder
    if name == "wide":
        return ConvEncoder(image, latent_dim, (width or 32,) * 3), ShuffleDecoder(image, latent_dim, width or 32)
    return ConvEncoder(image, latent_dim, (width or 8,) * 3), ConvDecoder(image, latent_dim, (width or 8,) * 3)


def check_networks(encoder: nn.Module, decoder: nn.Module, shape: tuple[int, ...], latent_dim: int) -> None:
    """Try both networks on two zero samples; a wrong shape is an error that says which and what came."""
    device = next((p.device for p in encoder.parameters()), torch.device("cpu"))
    with torch.no_grad():
        encoded = encoder(torch.zeros(2, *shape, device=device))
        if not (isinstance(encoded, tuple) and len(encoded) == 2):
            raise TypeError(f"the encoder must return (mean, logvar), got {type(encoded).__name__}; return two tensors")
        for name, part in zip(("mean", "logvar"), encoded, strict=True):
            if tuple(part.shape) != (2, latent_dim):
                raise ValueError(
                    f"the encoder's {name} must have shape (batch, {latent_dim}), got {tuple(part.shape)}; "
                    "match latent_dim"
                )
        decoded = decoder(torch.zeros(2, latent_dim, device=device))
        if tuple(decoded.shape) != (2, *shape):
            raise ValueError(
                f"the decoder must return samples of shape (batch, {', '.join(map(str, shape))}), "
                f"got {tuple(decoded.shape)}; match the data"
            )
