"""The networks of a conditional VAE: those of the plain one, told the condition at two places each.

Figure S1 of the paper: the encoder gets the condition as further channels of its input and once more before its
dense layer; the decoder gets it beside the latent and once more as further channels before its first convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gppvae.nets.build import build_networks
from gppvae.nets.conv import ConvDecoder, ConvEncoder, channels_last, in_channels_last
from gppvae.nets.shuffle import ShuffledConv2d, ShuffleDecoder


def planes(condition: Tensor, height: int, width: int) -> Tensor:
    """Every entry of a condition (B, C) as an image that holds it everywhere, (B, C, height, width)."""
    return condition[:, :, None, None].expand(-1, -1, height, width)


class ConditionalEncoder(nn.Module):
    """Image with the condition as its last channels -> mean and log-variance of q(z).

    Args:
        encoder: built for images with that many more channels; its convolutions are used.
        n_conditions: C.
    """

    def __init__(self, encoder: ConvEncoder, n_conditions: int) -> None:
        super().__init__()
        self.n_conditions = n_conditions
        self.convolutions = encoder.convolutions
        self.dense = nn.Linear(encoder.dense.in_features + n_conditions, encoder.dense.out_features)

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        condition = y[:, -self.n_conditions :, 0, 0]
        maps = self.convolutions(in_channels_last(y))
        mean, logvar = self.dense(torch.cat([maps.flatten(1), condition], 1)).chunk(2, dim=1)
        return mean, logvar


class ConditionalDecoder(nn.Module):
    """Latent with the condition as its last entries -> image.

    Args:
        decoder: built for that many more latents; its dense layer and convolutions are used.
        n_conditions: C.
    """

    def __init__(self, decoder: ConvDecoder | ShuffleDecoder, n_conditions: int) -> None:
        super().__init__()
        self.n_conditions, self.grid, self.shape = n_conditions, decoder.grid, decoder.shape
        self.dense = decoder.dense
        self.activation = nn.ELU() if isinstance(decoder, ConvDecoder) else nn.Identity()
        self.convolutions = _with_more_inputs(decoder.convolutions, n_conditions)
        channels_last(self.convolutions)

    def forward(self, z: Tensor) -> Tensor:
        grid = self.activation(self.dense(z)).unflatten(1, self.grid)
        told = torch.cat([grid, planes(z[:, -self.n_conditions :], self.grid[1], self.grid[2])], dim=1)
        image = self.convolutions(in_channels_last(told))
        return torch.narrow(torch.narrow(image, 2, 0, self.shape[1]), 3, 0, self.shape[2])


def conditional_networks(
    name: str, shape: tuple[int, ...], latent_dim: int, n_conditions: int, width: int | None = None
) -> tuple[ConditionalEncoder, ConditionalDecoder]:
    """Conditional encoder and decoder; `name` and `width` as in `build_networks`, convolutional ones only."""
    if len(shape) != 3:
        raise ValueError(f"a conditional VAE needs images (channels, height, width), got samples of shape {shape}")
    encoder, _ = build_networks(name, (shape[0] + n_conditions, shape[1], shape[2]), latent_dim, width)
    _, decoder = build_networks(name, shape, latent_dim + n_conditions, width)
    if not (isinstance(encoder, ConvEncoder) and isinstance(decoder, (ConvDecoder, ShuffleDecoder))):
        raise ValueError(f"a conditional VAE needs a convolutional network, got {name!r}; use for example 'conv'")
    return ConditionalEncoder(encoder, n_conditions), ConditionalDecoder(decoder, n_conditions)


def _with_more_inputs(layers: nn.Sequential, more: int) -> nn.Sequential:
    """The same layers, the first convolution taking `more` further channels."""
    changed = list(layers)
    number, first = next((i, layer) for i, layer in enumerate(changed) if isinstance(layer, nn.Conv2d))
    assert isinstance(first.padding, tuple)
    if isinstance(first, ShuffledConv2d):
        changed[number] = ShuffledConv2d(first.in_channels + more, first.out_channels // 4)
    else:
        changed[number] = nn.Conv2d(first.in_channels + more, first.out_channels, 3, padding=first.padding[0])
    return nn.Sequential(*changed)
