"""Exponential moving average of parameters, with a decay that starts low so that initial values count little."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningAverage:
    """After step k, a <- d_k a + (1 - d_k) p with d_k = min(decay, (1 + k) / (10 + k))."""

    def __init__(self, parameters: list[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.steps = parameters, decay, 0
        self.values = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self.decay, (1.0 + self.steps) / (10.0 + self.steps))
        self.steps += 1
        for value, parameter in zip(self.values, self.parameters, strict=True):
            value.lerp_(parameter.detach(), 1.0 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the averages and the current values."""
        for value, parameter in zip(self.values, self.parameters, strict=True):
            current = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(current)

    def state(self) -> dict[str, Tensor]:
        values = {f"value{k}": value for k, value in enumerate(self.values)}
        return values | {"steps": torch.tensor(self.steps)}

    def load(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        self.values = [state[f"value{k}"].clone() for k in range(len(self.values))]
