"""Slopes in forward mode, one latent at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

# torch keeps the level of forward-mode derivatives for the whole process: threads must take turns.
_one_at_a_time = threading.Lock()


def slopes(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """d function(z) / d z row by row, values flattened: (B, L) -> (B, L, K), one pass per latent."""
    found = []
    for latent in range(z.shape[1]):
        direction = torch.zeros_like(z)
        direction[:, latent] = 1.0
        with _one_at_a_time:
            slope: Tensor = torch.func.jvp(function, (z,), (direction,))[1]
        found.append(slope.flatten(1))
    return torch.stack(found, dim=1)
