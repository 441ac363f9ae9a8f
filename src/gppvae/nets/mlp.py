"""Fully connected networks for samples that are vectors."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn


class MLPEncoder(nn.Module):
    """Vector to the mean and log-variance of q(z).

    Args:
        shape: of one sample; it is flattened.
        latent_dim: L.
        hidden: widths of the hidden layers.
    """

    def __init__(self, shape: tuple[int, ...], latent_dim: int, hidden: tuple[int, ...] = (128, 128)) -> None:
        super().__init__()
        self.layers = _stack((math.prod(shape), *hidden, 2 * latent_dim))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, logvar = self.layers(y.flatten(1)).chunk(2, dim=1)
        return mean, logvar


class MLPDecoder(nn.Module):
    """Latent to vector, in the shape of one sample; `hidden` is in the order of the encoder and used in reverse."""

    def __init__(self, shape: tuple[int, ...], latent_dim: int, hidden: tuple[int, ...] = (128, 128)) -> None:
        super().__init__()
        self.shape = shape
        self.layers = _stack((latent_dim, *hidden[::-1], math.prod(shape)))

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z).unflatten(1, self.shape)


def _stack(widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        layers += [nn.ELU()] if number else []
        layers.append(nn.Linear(n_in, n_out))
    return nn.Sequential(*layers)


class LinearPlusEncoder(nn.Module):
    """(mean, logvar) of q(z) = W y + b + mlp(y), where the last layer of mlp starts at zero.

    Args:
        shape: of one sample; it is flattened.  latent_dim: L.  hidden: widths of the hidden layers.
    """

    def __init__(self, shape: tuple[int, ...], latent_dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(shape), 2 * latent_dim)
        self.layers = _stack((math.prod(shape), *hidden, 2 * latent_dim))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        flat = y.flatten(1)
        mean, logvar = (self.linear(flat) + self.layers(flat)).chunk(2, dim=1)  # (B, 2 L) -> (B, L) each
        return mean, logvar


class LinearPlusDecoder(nn.Module):
    """out = W z + b + mlp(z), where the last layer of mlp starts at zero.

    Args:
        shape: of one sample.  latent_dim: L.  hidden: widths of the hidden layers.
    """

    def __init__(self, shape: tuple[int, ...], latent_dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.linear = nn.Linear(latent_dim, math.prod(shape))
        self.layers = _stack((latent_dim, *hidden, math.prod(shape)))

    def forward(self, z: Tensor) -> Tensor:
        return (self.linear(z) + self.layers(z)).unflatten(1, self.shape)


@torch.no_grad()
def silence(layers: nn.Sequential) -> None:
    """Set the last layer to zero, so that the output is zero at the start."""
    last = layers[-1]
    assert isinstance(last, nn.Linear)
    last.weight.zero_()
    last.bias.zero_()
