"""A decoder that up-samples by pixel shuffling: most of its work is on small grids, where it is cheap."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gppvae.nets.conv import ImageShape, channels_last, in_channels_last


class ShuffleDecoder(nn.Module):
    """Latent to image: dense to a quarter-size grid, convolution and shuffle to half, the same to full size.

    Args:
        shape: (channels, height, width) of the images; sizes that are not multiples of 4 are cropped.
        latent_dim: L.
        width: channels of every grid.
    """

    def __init__(self, shape: ImageShape, latent_dim: int, width: int = 32) -> None:
        super().__init__()
        self.shape = shape
        self.grid = (width, -(-shape[1] // 4), -(-shape[2] // 4))
        self.dense = nn.Linear(latent_dim, width * self.grid[1] * self.grid[2])
        self.convolutions = nn.Sequential(
            nn.SiLU(),
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 4 * shape[0], 3, padding=1),
            nn.PixelShuffle(2),
        )
        channels_last(self.convolutions)

    def forward(self, z: Tensor) -> Tensor:
        image = self.convolutions(in_channels_last(self.dense(z).unflatten(1, self.grid)))
        return torch.narrow(torch.narrow(image, 2, 0, self.shape[1]), 3, 0, self.shape[2])
