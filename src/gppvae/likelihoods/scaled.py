"""Gaussian noise for samples in any unit: standardised inside, with noise measured per channel or value."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from gppvae.likelihoods.values import Likelihood, Mask, masked_sum

LEAST_VAR, MOST_VAR = 1e-4, 4.0  # limits of the noise variance, relative to the variance of the samples
IMAGE_GAIN = 4.0  # of images: the decoder's output then varies by about 0.25, as pixels in [0, 1] do


class ScaledGaussian(Likelihood):
    """Gaussian noise relative to the variance of the samples, per channel of images and per value of vectors.

        y ~ N(shift + gain spread out, spread^2 var)

    Shift and spread are the mean and standard deviation of the training samples, so that results do not depend on
    their unit. In training `var` is fixed, which sets the trade-off between reconstruction and prior. Afterwards it is
    the mean squared error of predictions, at held-out rows if there are any, since training errors are too small.

    Args:
        var: noise variance in training, relative to the variance of the samples.
    """

    name = "scaled_gaussian"
    additive_noise = learns_noise = True

    def __init__(self, var: float = 0.1) -> None:
        super().__init__()
        if not LEAST_VAR <= var <= MOST_VAR:
            raise ValueError(f"var must be between {LEAST_VAR:g} and {MOST_VAR:g}, got {var}; use for example 0.1")
        self.start_var, self.gain = var, 1.0
        self.shift: Tensor
        self.spread: Tensor
        self.var: Tensor
        for name in ("shift", "spread", "var"):
            self.register_buffer(name, torch.zeros(0))

    def adapt(self, shape: tuple[int, ...]) -> None:
        size = (shape[0], *(1 for _ in shape[1:]))  # (C, 1, 1) or (K,)
        self.gain = IMAGE_GAIN if len(shape) == 3 else 1.0
        self.shift, self.spread = torch.zeros(size), torch.ones(size)
        self.var = torch.full(size, self.start_var)

    def measure(self, mean: Tensor, std: Tensor) -> None:
        self.shift.copy_(mean.reshape(self.shift.shape))
        self.spread.copy_(torch.where(std > 0.0, std, torch.ones_like(std)).reshape(self.spread.shape))  # 1 if constant

    def learn_noise(self, squared_error: Tensor) -> None:
        relative = squared_error.to(self.var).reshape(self.var.shape) / self.spread.square()  # (C, 1, 1) or (K,)
        self.var.copy_(relative.clamp(LEAST_VAR, MOST_VAR))

    def nll(self, y: Tensor, out: Tensor, mask: Mask = None) -> Tensor:
        squares = nn.functional.mse_loss(out, self.encoder_input(y), reduction="none")  # (B, *shape)
        scale = self.gain**2 / self.var  # (C, 1, 1) or (K,), as is log(2 pi Var y):
        constant = (2.0 * math.pi * self.var * self.spread.square()).log()
        if mask is not None:
            return 0.5 * masked_sum(scale * squares + constant, mask)
        # Summed over the pixels of a channel first: images are large, and terms per channel are few.
        n_pixels = math.prod(y.shape[2:])
        by_channel = squares.flatten(2).sum(2) if y.ndim > 2 else squares  # (B, C)
        return 0.5 * ((by_channel * scale.flatten()).sum(1) + n_pixels * constant.sum())

    def mean(self, out: Tensor) -> Tensor:
        return self.shift + self.gain * self.spread * out

    def variance(self, out: Tensor) -> Tensor:
        return (self.spread.square() * self.var).expand_as(out)  # (B, *shape)

    def encoder_input(self, y: Tensor) -> Tensor:
        return (y - self.shift) / (self.gain * self.spread)

    @property
    def unit(self) -> Tensor:
        return self.spread

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "var": self.start_var}
