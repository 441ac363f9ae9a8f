"""An encoder that knows what is missing: the mask of observed values is part of its input."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MaskedEncoder(nn.Module):
    """(y, mask) -> mean and log-variance of q(z | y).

    Args:
        encoder: of samples with twice the channels or values: those of the sample, 0 where it was not observed, and
            1 or 0 for each of them, observed or not.
    """

    wants_mask = True

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(torch.cat([y, mask.to(y)], dim=1))


def with_mask(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the input of an encoder that sees the mask of samples of this shape."""
    return (2 * shape[0], *shape[1:])
