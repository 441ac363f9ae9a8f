"""Two modules that must compute the same."""

import torch
from torch import Tensor, nn


def assert_alike(one: nn.Module, other: nn.Module, x: Tensor, shape: tuple[int, ...]) -> None:
    """Values of this shape, and gradients with respect to x and all parameters, are equal."""
    found = []
    for module in (one, other):
        y = module(x.requires_grad_())
        assert y.shape == shape
        found.append([y, *torch.autograd.grad(y.sin().sum(), [x, *module.parameters()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
