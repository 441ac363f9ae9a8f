"""An encoder with the mask of observed values as a further input."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MaskedEncoder(nn.Module):
    """(y, mask) -> mean and log-variance of q(z | y).

    Args:
        encoder: of samples with twice the channels or values: those of the sample, with 0 for missing values, and the
            mask as 1 and 0.
    """

    wants_mask = True

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(torch.cat([y, mask.to(y)], dim=1))  # (B, 2 C, ...)
