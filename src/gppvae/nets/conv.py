"""Convolutional networks of any width; two of these are the paper's.

MNIST (Figure S1): three stages of one 3x3 convolution with 8 channels. Faces (Figure S2): five stages of two 3x3
convolutions with 32 channels. ELU between convolutions, none after the last.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

ImageShape = tuple[int, int, int]
ELU_GAIN = 1.245  # 1 / sqrt(E elu(x)^2) for x ~ N(0, 1)


def channels_last(layers: nn.Sequential) -> None:
    """Keep the weights of convolutions in channels-last memory, which halves their time on CPUs."""
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)


def in_channels_last(maps: Tensor) -> Tensor:
    """The same maps in channels-last memory, (B, C, height, width).

    With one channel both formats are the same memory, and torch takes such images for channels-first: the output of the
    first convolution would be channels-first too, and the next layer slow. Explicit strides avoid it.
    """
    _, channels, height, width = maps.shape
    if channels == 1:
        return maps.contiguous().as_strided(maps.shape, (height * width, 1, width, 1))
    return maps.contiguous(memory_format=torch.channels_last)


def scale_for_depth(layers: nn.Sequential, generator: torch.Generator | None = None) -> None:
    """Draw the weights of convolutions so that signals keep their variance through any number of ELU layers.

        w ~ N(0, ELU_GAIN^2 / fan_in),   biases 0
    With torch's default every layer shrinks the signal. After ten layers little is left, and the first thousands of
    steps are spent on larger weights.
    """
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            fan_in = layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]
            nn.init.normal_(layer.weight, std=ELU_GAIN / math.sqrt(fan_in), generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class UpsampledConv2d(nn.Conv2d):
    """Nearest-neighbour up-sampling by 2 and a 3x3 convolution, fused.

    The convolution of the large map at each of the four pixels that one small pixel becomes is a 3x3 convolution of the
    small map, with sums of the nine weights. So one convolution of the small map with four times as many outputs gives
    the same result, faster for few outputs.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, 3, padding=1)
        # Along one axis, (pixel, neighbour, weight): 1 where the first or second of the two pixels reads neighbour
        # -1, 0 or 1 of the small map with this weight.
        seen = torch.zeros(2, 3, 3)
        for pixel in range(2):
            for weight in range(3):
                seen[pixel, (pixel + weight - 1) // 2 + 1, weight] = 1.0
        sums = torch.einsum("api,bqj->ijabpq", seen, seen).reshape(9, 36)  # 9 weights -> 4 pixels x 9 neighbours
        self.sums: Tensor
        self.register_buffer("sums", sums, persistent=False)

    def forward(self, maps: Tensor) -> Tensor:
        n_out, n_in = self.weight.shape[:2]
        # (n_out, n_in, 4, 3, 3) -> (4 n_out, n_in, 3, 3): the channel order that pixel_shuffle expects
        weight = (self.weight.reshape(-1, 9) @ self.sums).view(n_out, n_in, 4, 3, 3).transpose(1, 2).flatten(0, 1)
        bias = None if self.bias is None else self.bias.repeat_interleave(4)
        weight = weight.contiguous(memory_format=torch.channels_last)
        return nn.functional.pixel_shuffle(nn.functional.conv2d(maps, weight, bias, padding=1), 2)


class ConvEncoder(nn.Module):
    """Image to the mean and log-variance of q(z): each stage ends in a convolution of stride 2.

    Args:
        shape: (channels, height, width) of the images.
        latent_dim: L.
        channels: of each stage.
        convs_per_stage: convolutions in a stage, the last one strided.
    """

    def __init__(
        self,
        shape: ImageShape,
        latent_dim: int,
        channels: tuple[int, ...] = (8, 8, 8),
        convs_per_stage: int = 1,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        previous, (height, width) = shape[0], shape[1:]
        for width_out in channels:
            for number in range(convs_per_stage):
                stride = 2 if number == convs_per_stage - 1 else 1
                layers += [nn.Conv2d(previous, width_out, 3, stride=stride, padding=1), nn.ELU()]
                previous = width_out
            height, width = (height + 1) // 2, (width + 1) // 2  # stride 2 with padding 1 rounds up
        self.convolutions = nn.Sequential(*layers)
        self.dense = nn.Linear(previous * height * width, 2 * latent_dim)
        channels_last(self.convolutions)

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.convolutions(in_channels_last(y))
        mean, logvar = self.dense(maps.flatten(1)).chunk(2, dim=1)  # (B, 2 L) -> (B, L) each
        return mean, logvar


class ConvDecoder(nn.Module):
    """Latent to image: dense to a small grid, then per stage up-sampling by 2 and 3x3 convolutions.

    A 28 x 28 image grows 4, 8, 14, 28: the second-to-last stage has no padding (Figure S1). Other sizes that are not
    multiples of the grid are cropped at the end.

    Args:
        shape: (channels, height, width) of the images.
        latent_dim: L.
        channels: of each stage, in the order of the encoder; the decoder uses them in reverse.
        convs_per_stage: convolutions in a stage.
    """

    def __init__(
        self,
        shape: ImageShape,
        latent_dim: int,
        channels: tuple[int, ...] = (8, 8, 8),
        convs_per_stage: int = 1,
    ) -> None:
        super().__init__()
        stages = len(channels)
        self.shape = shape
        grid = [-(-size // 2**stages) for size in shape[1:]]  # rounded up
        overshoot = [start * 2**stages - size for start, size in zip(grid, shape[1:], strict=True)]
        trimmed = stages - 2 if overshoot == [4, 4] and stages >= 2 else None  # stage without padding: 16 -> 14
        widths = channels[::-1]
        self.dense = nn.Linear(latent_dim, widths[0] * grid[0] * grid[1])
        self.grid = (widths[0], grid[0], grid[1])
        layers: list[nn.Module] = []
        previous = widths[0]
        for stage in range(stages):
            layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
            for number in range(convs_per_stage):
                last = stage == stages - 1 and number == convs_per_stage - 1
                width_out = shape[0] if last else widths[min(stage + 1, stages - 1)]
                if last and number == 0 and stage not in (0, trimmed):
                    layers[-1] = nn.Identity()  # in place of Upsample: model files number the layers
                    layers.append(UpsampledConv2d(previous, width_out))
                else:
                    padding = 0 if stage == trimmed and number == 0 else 1
                    layers.append(nn.Conv2d(previous, width_out, 3, padding=padding))
                previous = width_out
                if not last:
                    layers.append(nn.ELU())
        self.convolutions = nn.Sequential(*layers)
        channels_last(self.convolutions)

    def forward(self, z: Tensor) -> Tensor:
        grid = self.dense(z).unflatten(1, self.grid)  # (B, C, height, width) of the grid
        image = self.convolutions(in_channels_last(grid))
        return torch.narrow(torch.narrow(image, 2, 0, self.shape[1]), 3, 0, self.shape[2])
