"""A perceptual likelihood: a Gaussian on features of a frozen network, times a likelihood of the pixels."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gppvae.data.digest import digest
from gppvae.likelihoods.counts import Counts
from gppvae.likelihoods.features import FrozenFeatures
from gppvae.likelihoods.scaled import ScaledGaussian
from gppvae.likelihoods.values import VALUES, Gaussian, Likelihood, Mask, make
from gppvae.likelihoods.vgg import VGG19

DEFAULT_LAYERS = {"relu1_1": 1.0, "relu2_1": 1.0, "relu3_1": 1.0}  # "VAE-123" of Hou et al. 2017
VGG_RANGE = (-1.0, 2.0)  # generous: splines overshoot, but bytes from 0 to 255 are a mistake


class Perceptual(Likelihood):
    """p(pixels) times a Gaussian on features phi_l of a frozen network, for each chosen layer l.

        nll = nll of the pixels + sum_l weight_l K / 2 mean_f (phi_lf(y) - phi_lf(E[y]))^2

    with K values in a sample. The mean over features makes weights comparable between layers, the factor K between
    features and pixels: with a weight of 1 / pixel_var, the squared error of a feature counts as much as that of a
    pixel. Constants of the feature terms are left out, so that a weight of 0 gives the pixels' likelihood. Missing
    pixels are replaced by E[y]. Source: Hou et al. 2017; docs/likelihoods.md.

    Args:
        network: any module that takes samples, copied and never trained; or its description from `config`.
        layers: weight by name of layer, as in `network.named_modules()`.
        pixels: likelihood of the pixels; it alone determines the noise of predictions.
    Cost: the network forwards twice and backwards once per step, up to its last chosen layer.
    """

    name = "perceptual"

    def __init__(
        self,
        network: nn.Module | dict[str, Any],
        layers: Mapping[str, float],
        pixels: str | dict[str, Any] | Likelihood = "gaussian",
    ) -> None:
        super().__init__()
        if isinstance(pixels, Perceptual):
            raise ValueError("pixels must have a likelihood of their own, got a perceptual one; name all layers in one")
        self.pixels = make(pixels, VALUES | {ScaledGaussian.name: ScaledGaussian})
        if isinstance(self.pixels, Counts):
            raise ValueError(f"pixels must not be counts, got {self.pixels.name}; give a likelihood without sizes")
        self.numbers_per_value, self.learns_noise = self.pixels.numbers_per_value, self.pixels.learns_noise
        self.layers = _checked_layers(layers)
        self._features: FrozenFeatures | None = None
        self._device = torch.device("cpu")
        if isinstance(network, nn.Module):
            self._features = FrozenFeatures(network, list(self.layers))
            self._network = _described(network)
        elif isinstance(network, dict):
            self._network = network
        else:
            raise TypeError(f"network must be a torch module, got {type(network).__name__}; pass for example a VGG19")

    def nll(self, y: Tensor, out: Tensor, mask: Mask = None) -> Tensor:
        features, mean = self._frozen(), self.pixels.mean(out)
        seen = y if mask is None else torch.where(mask, y, mean)  # no error at missing pixels
        nll, n_values = self.pixels.nll(y, out, mask), math.prod(y.shape[1:])  # (B,), K
        for weight, true, decoded in zip(self.layers.values(), features(seen), features(mean), strict=True):
            nll = nll + 0.5 * weight * n_values * (true - decoded).square().flatten(1).mean(1)  # (B,)
        return nll

    def mean(self, out: Tensor) -> Tensor:
        return self.pixels.mean(out)

    def variance(self, out: Tensor) -> Tensor:
        return self.pixels.variance(out)

    def encoder_input(self, y: Tensor) -> Tensor:
        return self.pixels.encoder_input(y)

    @property
    def unit(self) -> Tensor:
        return self.pixels.unit

    @property
    def values(self) -> Likelihood:
        return self.pixels

    def adapt(self, shape: tuple[int, ...]) -> None:
        self.pixels.adapt(shape)

    def measure(self, mean: Tensor, std: Tensor) -> None:
        self.pixels.measure(mean, std)

    def learn_noise(self, squared_error: Tensor) -> None:
        self.pixels.learn_noise(squared_error)

    def check(self, lowest: float, highest: float, integers: bool) -> None:
        self.pixels.check(lowest, highest, integers)
        if "vgg19" in self._network and (lowest < VGG_RANGE[0] or highest > VGG_RANGE[1]):
            raise ValueError(
                f"VGG19 takes images in [0, 1], got values in [{lowest:g}, {highest:g}]; rescale them with scale="
            )

    def ready(self, shape: tuple[int, ...]) -> None:
        self._frozen().try_on(shape)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "network": self._network, "layers": self.layers, "pixels": self.pixels.config()}

    def _frozen(self) -> FrozenFeatures:
        """The network; one that is only described is loaded on first use, since predictions do not need it."""
        if self._features is None:
            file, known = self._network.get("vgg19"), self._network.get("sha256")
            if file is None:
                raise ValueError(
                    f"expected the feature network of the perceptual likelihood, got only its name "
                    f"{self._network.get('module')}; pass likelihood=Perceptual(network, ...) to load() or resume()"
                )
            network = VGG19(file)
            if known not in (None, _described(network)["sha256"]):
                raise ValueError(f"{file} holds other weights than those the model was trained with; restore it")
            self._features = FrozenFeatures(network.to(self._device), list(self.layers))
        return self._features

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Perceptual:
        """Move the network too, which is not registered with nn.Module."""
        super()._apply(fn, recurse)
        self._device = fn(torch.zeros(())).device
        if self._features is not None:
            self._features.network._apply(fn)
        return self


def perceptual_from_file(
    kind: str | None, weights: str | os.PathLike[str] | None, layers: str | None, pixel_var: float | None
) -> Perceptual:
    """The perceptual likelihood as the command line describes it: VGG19, and pixels with Gaussian noise.

    Args:
        kind: name of the likelihood.  weights: VGG19's file.
        layers: names with weights, "relu1_1=1,relu2_1=0.5"; without a weight it is 1. By default those of Hou et al.
        pixel_var: of the pixels, or None for the default.
    """
    if kind != Perceptual.name:
        raise ValueError(
            f"feature weights and layers belong to the perceptual likelihood, got {kind}; use that likelihood"
        )
    if weights is None:
        raise ValueError("the perceptual likelihood needs the file of VGG19's weights, got none; name it")
    chosen = DEFAULT_LAYERS if layers is None else dict(_layer(word) for word in layers.split(","))
    return Perceptual(VGG19(weights), chosen, Gaussian() if pixel_var is None else Gaussian(pixel_var))


def _layer(word: str) -> tuple[str, float]:
    name, _, weight = word.strip().partition("=")
    try:
        return name.strip(), float(weight or 1.0)
    except ValueError:
        raise ValueError(f"expected layers such as relu1_1=1,relu2_1=0.5, got {word.strip()!r}; correct it") from None


def _described(network: nn.Module) -> dict[str, Any]:
    """How a saved model describes the network: where to find it, and a checksum of its weights."""
    found: dict[str, Any] = {"module": type(network).__name__}
    if isinstance(network, VGG19):
        found["vgg19"] = str(network.file)
    return found | {"sha256": digest({name: value.detach().cpu() for name, value in network.state_dict().items()})}


def _checked_layers(layers: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(layers, Mapping) or not layers:
        raise ValueError(f"layers must name at least one layer with its weight, got {layers!r}; use {{'relu1_1': 1.0}}")
    for name, weight in layers.items():
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"the weight of layer {name!r} must be a number of at least 0, got {weight}")
    return {str(name): float(weight) for name, weight in layers.items()}
