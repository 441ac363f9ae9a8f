"""A decoder that up-samples by pixel shuffling: most of the computation is on small grids, where it is cheap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gppvae.nets.conv import ImageShape, channels_last, in_channels_last


class ShuffledConv2d(nn.Conv2d):
    """A 3x3 convolution and a pixel shuffle by 2, as `nn.Conv2d` and `nn.PixelShuffle` compute them.

    A shuffle turns four successive channels into four pixels of one channel, which in channels-last memory moves every
    number by itself. Here the convolution computes its outputs pixel by pixel, so that rows of numbers are moved.
    The weights are stored in the usual order.

    Args:
        channels_in: of the small maps.  channels_out: of the maps of twice the size.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, 4 * channels_out, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        n_out, n_in = self.out_channels // 4, self.in_channels
        # (4 C, in, 3, 3), channel by channel, to the same shape pixel by pixel, in channels-last memory throughout.
        weight = self.weight.permute(0, 2, 3, 1).reshape(n_out, 4, 3, 3, n_in).transpose(0, 1)
        weight = weight.reshape(4 * n_out, 3, 3, n_in).permute(0, 3, 1, 2)
        bias = None if self.bias is None else self.bias.view(n_out, 4).T.flatten()
        pixels = nn.functional.conv2d(maps, weight, bias, padding=1).permute(0, 2, 3, 1)  # (B, h, w, 4 C)
        upper, lower = pixels.chunk(2, dim=3)  # two pixels of the upper row, and two of the lower, (B, h, w, 2 C)
        rows = torch.stack((upper, lower), dim=2)  # (B, h, 2, w, 2 C)
        batch, height, width = pixels.shape[:3]
        return rows.reshape(batch, 2 * height, 2 * width, n_out).permute(0, 3, 1, 2)


class Residual(nn.Module):
    """x + conv(silu(conv(silu(x)))). The last convolution starts at zero, so that the block starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.start_as_identity()

    @torch.no_grad()
    def start_as_identity(self) -> None:
        """Set the last convolution to zero."""
        for parameter in self.layers[-1].parameters():
            parameter.zero_()

    def forward(self, maps: Tensor) -> Tensor:
        more: Tensor = self.layers(maps)
        return maps + more


class ShuffleDecoder(nn.Module):
    """Latent to image: dense to a small grid, then a convolution and a shuffle per doubling; one more before the last.

    Args:
        shape: (channels, height, width) of the images; sizes that are not multiples of the grid are cropped.
        latent_dim: L.
        width: channels of the grids.
        doublings: number of doublings of the grid; from the third on, each halves the number of channels.
        grid_width: channels of the smallest grid; `width` when None.
        blocks: residual blocks on the smallest grid, on the next, and so on.
    """

    def __init__(
        self,
        shape: ImageShape,
        latent_dim: int,
        width: int = 32,
        doublings: int = 2,
        grid_width: int | None = None,
        blocks: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.shape = shape
        grow = 2**doublings
        channels = [grid_width or width, width, *(max(8, width >> number) for number in range(1, doublings))]
        self.grid = (channels[0], -(-shape[1] // grow), -(-shape[2] // grow))
        self.dense = nn.Linear(latent_dim, channels[0] * self.grid[1] * self.grid[2])
        on_grid = [*blocks, *(0 for _ in range(doublings - len(blocks)))]
        layers: list[nn.Module] = []
        for number in range(doublings - 1):
            layers += [Residual(channels[number]) for _ in range(on_grid[number])]
            layers += [nn.SiLU(), ShuffledConv2d(channels[number], channels[number + 1])]
            layers.append(nn.Identity())  # saved models count layers
        last = channels[doublings - 1]
        layers += [Residual(last) for _ in range(on_grid[doublings - 1])]
        layers += [nn.SiLU(), nn.Conv2d(last, last, 3, padding=1)]
        layers += [nn.SiLU(), ShuffledConv2d(last, shape[0])]
        self.convolutions = nn.Sequential(*layers)
        channels_last(self.convolutions)

    def forward(self, z: Tensor) -> Tensor:
        image = self.convolutions(in_channels_last(self.dense(z).unflatten(1, self.grid)))  # at least as large as shape
        return torch.narrow(torch.narrow(image, 2, 0, self.shape[1]), 3, 0, self.shape[2])
