"""Slopes in forward mode, one direction at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

# torch keeps the level of forward-mode derivatives for the whole process: threads must take turns.
_one_at_a_time = threading.Lock()


def slope_along(function: Callable[[Tensor], Tensor], point: Tensor, direction: Tensor) -> Tensor:
    """d/dt function(point + t direction) at t = 0, of the shape of function(point)."""
    with _one_at_a_time:
        slope: Tensor = torch.func.jvp(function, (point,), (direction,))[1]
    return slope
