"""Networks by name, and the check that given networks fit the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from gppvae.nets.conv import ConvDecoder, ConvEncoder, scale_for_depth
from gppvae.nets.masked import MaskedEncoder
from gppvae.nets.members import MemberDecoder, MemberEncoder, latents_of_members
from gppvae.nets.mlp import LinearPlusDecoder, LinearPlusEncoder, MLPDecoder, MLPEncoder, silence
from gppvae.nets.shuffle import Residual, ShuffleDecoder

NETWORKS = ("auto", "image", "vector", "conv", "wide", "faces", "mlp")
WIDTHS = {"image": 32, "vector": 128, "conv": 8, "wide": 32, "faces": 32, "mlp": 128}
LEAST_SIDE = 8  # smallest side of an image, in pixels, for three stages of stride 2
LARGEST_GRID = 16  # largest side of the grid from which the image network up-samples, in pixels
GRID_WIDTH = 64  # channels of the smallest grid of the image network from its default width on, at least
BLOCKS = (1, 1)  # residual blocks of the image network on its smallest grids


def choose_network(name: str, shape: tuple[int, ...], width: int | None = None) -> tuple[str, int]:
    """Name and width of the network; "auto" depends on the shape of the samples."""
    if name not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {name!r}; auto chooses by the data")
    if name == "auto":
        name = "image" if len(shape) == 3 and min(shape[1:]) >= LEAST_SIDE else "vector"
    return name, width or WIDTHS[name]


def build_networks(
    name: str,
    shape: tuple[int, ...],
    latent_dim: int,
    width: int | None = None,
    numbers_per_value: int = 1,
    generator: torch.Generator | None = None,
    masked: bool = False,
    members: int = 1,
    sizes: Sequence[int] | None = None,
) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder for samples of `shape`.

    Args:
        name: "image" up-samples from a small grid by pixel shuffling and grows with the image; "vector" is linear
            plus fully connected layers; "auto" is one of these. "conv" is the paper's MNIST network, "wide" a stronger
            one, "faces" the paper's face network, "mlp" fully connected.
        shape: of one sample, (channels, height, width) or (values,).
        latent_dim: L.
        width: channels (or hidden units) of every layer; by default 8 for conv, 32 for other images (64 on the smallest
            grid of image), 128 for vectors.
        numbers_per_value: k, numbers per value of a sample: the decoder returns (B, k, *shape), or (B, *shape) for one.
        generator: of the weights; torch's global one when None.
        masked: whether the mask of observed values is an input of the encoder.
        members: of an ensemble, networks side by side that share the latents (see nets/members.py).
        sizes: of the groups of latents; one group when None.
    """
    if members > 1:
        positions = latents_of_members(sizes or [latent_dim], members)
        made = [_pair(name, shape, len(own), width, numbers_per_value, generator, masked) for own in positions]
        encoder: nn.Module = MemberEncoder([encoder for encoder, _ in made], positions)
        decoder: nn.Module = MemberDecoder([decoder for _, decoder in made], positions)
    else:
        encoder, decoder = _pair(name, shape, latent_dim, width, numbers_per_value, generator, masked)
    return (MaskedEncoder(encoder) if masked else encoder), decoder


def _pair(
    name: str,
    shape: tuple[int, ...],
    latent_dim: int,
    width: int | None,
    numbers_per_value: int,
    generator: torch.Generator | None,
    masked: bool,
) -> tuple[nn.Module, nn.Module]:
    """One encoder and decoder with random weights; arguments as in `build_networks`."""
    name, width = choose_network(name, shape, width)
    out = (numbers_per_value * shape[0], *shape[1:])  # (k C, height, width) or (k K,)
    # The weights drawn here are replaced below; the fork restores torch's global generator.
    with torch.random.fork_rng(devices=[], enabled=generator is not None):
        encoder, decoder = _made(name, shape, out, latent_dim, width, masked)
    if generator is not None:
        for network in (encoder, decoder):
            draw_weights(network, generator)
    for network in (encoder, decoder):
        if isinstance(network, (LinearPlusEncoder, LinearPlusDecoder)):
            silence(network.layers)
    if isinstance(encoder, ConvEncoder) and isinstance(decoder, ConvDecoder) and name == "faces":
        scale_for_depth(encoder.convolutions, generator)
        scale_for_depth(decoder.convolutions, generator)
    if numbers_per_value > 1:
        split = nn.Unflatten(1, (numbers_per_value, shape[0]))  # (B, k C, ...) -> (B, k, C, ...)
        decoder = nn.Sequential(decoder, split)
    return encoder, decoder


def _made(
    name: str,
    shape: tuple[int, ...],
    out: tuple[int, ...],
    latent_dim: int,
    width: int,
    masked: bool,
) -> tuple[nn.Module, nn.Module]:
    seen = (2 * shape[0], *shape[1:]) if masked else shape  # values and mask, as MaskedEncoder concatenates them
    if name == "vector":
        return LinearPlusEncoder(seen, latent_dim, (width, width)), LinearPlusDecoder(out, latent_dim, (width, width))
    if name == "mlp":
        return MLPEncoder(seen, latent_dim, (width, width)), MLPDecoder(out, latent_dim, (width, width))
    if len(shape) != 3:
        raise ValueError(
            f"the {name!r} network needs images (samples, channels, height, width), got samples of shape {shape}; "
            "use network='vector' for vectors"
        )
    image, drawn = (seen[0], seen[1], seen[2]), (out[0], out[1], out[2])
    if min(image[1:]) < LEAST_SIDE:
        raise ValueError(f"the {name!r} network needs images of 8 x 8 or more, got {image[1:]}; use network='vector'")
    if name == "image":
        doublings = max(2, math.ceil(math.log2(max(image[1:]) / LARGEST_GRID)))  # from the grid to the image
        channels = (max(8, width // 2),) * (doublings - 2) + (width,) * 3
        grid_width = width if width < WIDTHS["image"] else max(width, GRID_WIDTH)
        decoder = ShuffleDecoder(drawn, latent_dim, width, doublings, grid_width, BLOCKS)
        return ConvEncoder(image, latent_dim, channels), decoder
    stages, convs = (5, 2) if name == "faces" else (3, 1)  # Figures S2 and S1 of the paper
    encoder = ConvEncoder(image, latent_dim, (width,) * stages, convs)
    if name == "wide":
        return encoder, ShuffleDecoder(drawn, latent_dim, width)
    return encoder, ConvDecoder(drawn, latent_dim, (width,) * stages, convs)


@torch.no_grad()
def draw_weights(network: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of linear and convolutional layers as torch does, U(-a, a) with a = 1 / sqrt(inputs)."""
    for layer in network.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            bound = 1.0 / math.sqrt(layer.weight[0].numel())
            for parameter in (layer.weight, layer.bias):
                if parameter is not None:  # drawn contiguously: numbers do not depend on the weights' memory format
                    parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
    for layer in network.modules():
        if isinstance(layer, Residual):
            layer.start_as_identity()


def check_networks(
    encoder: nn.Module, decoder: nn.Module, shape: tuple[int, ...], latent_dim: int, numbers_per_value: int = 1
) -> None:
    """Try both networks on two samples of zeros; an error names the wrong shape."""
    device = next((p.device for p in encoder.parameters()), torch.device("cpu"))
    samples = torch.zeros(2, *shape, device=device)
    out_shape = shape if numbers_per_value == 1 else (numbers_per_value, *shape)
    with torch.no_grad():
        wants_mask = getattr(encoder, "wants_mask", False)
        encoded = encoder(samples, torch.ones_like(samples, dtype=torch.bool)) if wants_mask else encoder(samples)
        if not (isinstance(encoded, tuple) and len(encoded) == 2):
            raise TypeError(f"the encoder must return (mean, logvar), got {type(encoded).__name__}; return two tensors")
        for name, part in zip(("mean", "logvar"), encoded, strict=True):
            if tuple(part.shape) != (2, latent_dim):
                raise ValueError(
                    f"the encoder's {name} must have shape (batch, {latent_dim}), got {tuple(part.shape)}; "
                    "match latent_dim"
                )
        decoded = decoder(torch.zeros(2, latent_dim, device=device))
        if tuple(decoded.shape) != (2, *out_shape):
            raise ValueError(
                f"the decoder must return tensors of shape (batch, {', '.join(map(str, out_shape))}), "
                f"got {tuple(decoded.shape)}; match the data"
            )
