"""The perceptual likelihood: against features in loops, with a network that nothing changes."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from gppvae.likelihoods import VGG19, Bernoulli, Gaussian, Perceptual, Poisson, make_likelihood
from gppvae.likelihoods.features import FrozenFeatures
from likelihoods.feature_networks import Eyes, eyes, eyes_features, write_vgg

LAYERS = {"second": 3.0, "first": 0.25}
SHAPE = (3, 1, 6, 7)


def pair(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Samples and decoder outputs."""
    return rng.random(SHAPE), rng.random(SHAPE)


def feature_term(network: Eyes, one: np.ndarray, two: np.ndarray, layers: Mapping[str, float] = LAYERS) -> float:
    """Of one sample, in loops: sum_l weight_l K / (2 F_l) sum_f (difference)^2."""
    a, b, total = eyes_features(network, one), eyes_features(network, two), 0.0
    for name, weight in layers.items():
        squares = 0.0
        for x, y in zip(a[name].ravel(), b[name].ravel(), strict=True):
            squares += (x - y) ** 2
        total += weight * one.size * squares / (2.0 * a[name].size)
    return total


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)


def test_nll_adds_feature_distances_to_that_of_the_pixels(rng: np.random.Generator) -> None:
    y, out = pair(rng)
    network = eyes()
    nll = Perceptual(network, LAYERS, Gaussian(0.3)).double().nll(tensor(y), tensor(out))
    for n in range(len(y)):
        pixels = -stats.norm(out[n], np.sqrt(0.3)).logpdf(y[n]).sum()
        assert nll[n].item() == pytest.approx(pixels + feature_term(network, y[n], out[n]), rel=1e-6)


def test_features_are_of_the_mean_whatever_the_pixels(rng: np.random.Generator) -> None:
    y, out = (rng.random(SHAPE) > 0.5).astype(float), rng.normal(size=SHAPE)
    network = eyes()
    nll = Perceptual(network, LAYERS, "bernoulli").double().nll(tensor(y), tensor(out))
    for n in range(len(y)):
        p = 1.0 / (1.0 + np.exp(-out[n]))
        assert nll[n].item() == pytest.approx(
            -stats.bernoulli(p).logpmf(y[n]).sum() + feature_term(network, y[n], p), rel=1e-6
        )


def test_pixels_that_were_not_observed_are_seen_as_decoded(rng: np.random.Generator) -> None:
    y, out = pair(rng)
    mask = rng.random(SHAPE) < 0.6
    mask[0] = False
    network = eyes()
    likelihood = Perceptual(network, LAYERS, Gaussian(0.3)).double()
    nll = likelihood.nll(tensor(y), tensor(out), tensor(mask))
    assert nll[0].item() == 0.0
    for n in range(1, len(y)):
        pixels = -(stats.norm(out[n], np.sqrt(0.3)).logpdf(y[n]) * mask[n]).sum()
        seen = np.where(mask[n], y[n], out[n])
        assert nll[n].item() == pytest.approx(pixels + feature_term(network, seen, out[n]), rel=1e-6)
    other = np.where(mask, y, 7.0)
    torch.testing.assert_close(likelihood.nll(tensor(other), tensor(out), tensor(mask)), nll, rtol=0, atol=0)
    whole = torch.ones(SHAPE, dtype=torch.bool)
    torch.testing.assert_close(likelihood.nll(tensor(y), tensor(out), whole), likelihood.nll(tensor(y), tensor(out)))


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_by_differences(rng: np.random.Generator, masked: bool) -> None:
    network = eyes()
    network.bend = nn.Softplus()  # differences do not straddle a kink
    y, out = (tensor(rng.random((2, 1, 4, 5))) for _ in range(2))
    mask = tensor(rng.random((2, 1, 4, 5)) < 0.7) if masked else None
    likelihood = Perceptual(network, LAYERS, Gaussian(0.1)).double()
    assert torch.autograd.gradcheck(lambda o: likelihood.nll(y, o, mask), [out.requires_grad_()])


def test_weight_zero_is_the_likelihood_of_the_pixels(rng: np.random.Generator) -> None:
    y, out = map(tensor, pair(rng))
    pixels = Gaussian(0.2).double()
    nothing = Perceptual(eyes(), {"first": 0.0}, pixels).double()
    torch.testing.assert_close(nothing.nll(y, out), pixels.nll(y, out))


# -- frozen


def test_the_network_is_a_copy_that_is_neither_trained_nor_saved() -> None:
    network = eyes()
    likelihood = Perceptual(network, LAYERS)
    assert network.training and all(p.requires_grad for p in network.parameters())
    assert [name for name, _ in likelihood.named_parameters()] == ["pixels.log_pixel_var"]
    assert list(likelihood.state_dict()) == ["pixels.log_pixel_var"]
    before = likelihood.nll(torch.ones(1, 1, 6, 6), torch.zeros(1, 1, 6, 6))
    with torch.no_grad():
        network.first.weight.zero_()
    likelihood.train()
    torch.testing.assert_close(likelihood.nll(torch.ones(1, 1, 6, 6), torch.zeros(1, 1, 6, 6)), before, rtol=0, atol=0)


def test_back_propagation_leaves_the_network_as_it_was() -> None:
    features = FrozenFeatures(eyes(), ["second"])
    before = copy.deepcopy(features.network.state_dict())
    x = torch.rand(2, 1, 6, 6, requires_grad=True)
    features(x)[0].square().sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    assert all(p.grad is None for p in features.network.parameters())
    for name, value in features.network.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_the_network_runs_no_further_than_asked_and_keeps_no_hooks() -> None:
    features = FrozenFeatures(eyes(), ["second", "first"])
    features(torch.rand(2, 1, 6, 6))
    assert features.network.runs_to_the_end == 0
    assert not any(module._forward_hooks for module in features.network.modules())


def test_moves_take_the_network_along() -> None:
    likelihood = Perceptual(eyes(), LAYERS)
    assert likelihood.nll(torch.rand(1, 1, 6, 6), torch.rand(1, 1, 6, 6)).dtype == torch.float32
    nll = likelihood.double().nll(torch.rand(1, 1, 6, 6).double(), torch.rand(1, 1, 6, 6).double())
    assert nll.dtype == torch.float64


def test_noise_and_mean_are_those_of_the_pixels(rng: np.random.Generator) -> None:
    out = tensor(rng.normal(size=SHAPE))
    for pixels in (Gaussian(0.2), Bernoulli()):
        likelihood = Perceptual(eyes(), LAYERS, pixels)
        assert likelihood.values is pixels and pixels.values is pixels
        torch.testing.assert_close(likelihood.mean(out), pixels.mean(out))
        torch.testing.assert_close(likelihood.variance(out), pixels.variance(out))
        torch.testing.assert_close(likelihood.encoder_input(out.exp()), pixels.encoder_input(out.exp()))
    with pytest.raises(ValueError, match="bernoulli likelihood needs values in"):
        Perceptual(eyes(), LAYERS, "bernoulli").check(0.0, 2.0, False)


# -- settings


def test_config_is_json_and_names_the_network_by_its_weights() -> None:
    config = json.loads(json.dumps(Perceptual(eyes(), LAYERS, Gaussian(0.25)).config()))
    assert config["layers"] == LAYERS and list(config["layers"]) == ["second", "first"]
    assert config["pixels"] == {"name": "gaussian", "pixel_var": pytest.approx(0.25), "learn": False}
    assert config["network"]["module"] == "Eyes"
    assert config == json.loads(json.dumps(Perceptual(eyes(), LAYERS, Gaussian(0.25)).config()))
    assert config["network"] != Perceptual(eyes(seed=4), LAYERS).config()["network"]


def test_without_the_network_a_likelihood_still_says_mean_and_noise() -> None:
    again = make_likelihood(Perceptual(eyes(), LAYERS, Gaussian(0.25)).config())
    assert again.variance(torch.zeros(2)).tolist() == pytest.approx([0.25, 0.25])
    for ask in (lambda: again.nll(torch.zeros(1, 1, 6, 6), torch.zeros(1, 1, 6, 6)), lambda: again.ready((1, 6, 6))):
        with pytest.raises(ValueError, match=r"got only its name Eyes; pass likelihood=Perceptual\(network"):
            ask()


def test_vgg_is_read_from_its_file_again(tmp_path: Path, rng: np.random.Generator) -> None:
    file = write_vgg(tmp_path)
    likelihood = Perceptual(VGG19(file), {"relu1_2": 1.0, "relu3_1": 0.5})
    config = json.loads(json.dumps(likelihood.config()))
    y, out = (torch.from_numpy(rng.random((2, 3, 16, 16))).float() for _ in range(2))
    again = make_likelihood(config)
    torch.testing.assert_close(again.nll(y, out), likelihood.nll(y, out), rtol=0, atol=0)
    assert json.loads(json.dumps(again.config())) == config
    write_vgg(tmp_path, seed=1)
    with pytest.raises(ValueError, match="holds other weights than those the model was trained with"):
        make_likelihood(config).ready((3, 16, 16))
    file.unlink()
    with pytest.raises(FileNotFoundError, match="found no file"):
        make_likelihood(config).ready((3, 16, 16))


# -- what cannot work is said in one sentence


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


class Odd(nn.Module):
    """A layer that is never used, and one that returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.pair, self.conv = nn.ReLU(), Pair(), nn.Conv2d(1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.pair(x)[0])


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ({}, "at least one layer with its weight, got {}"),
        (["first"], "at least one layer"),
        ({"third": 1.0}, "has no layer 'third'; choose among first, norm, bend, drop, second, end"),
        ({"": 1.0}, "has no layer ''"),
        ({"first": -1.0}, "weight of layer 'first' must be a number of at least 0, got -1"),
        ({"first": float("nan")}, "got nan"),
    ],
)
def test_wrong_layers_are_refused(layers: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Perceptual(eyes(), layers)


def test_counts_cannot_be_pixels() -> None:
    """Their sizes and starting rates would be left out, and a saved model could not be loaded."""
    with pytest.raises(ValueError, match="pixels must not be counts, got poisson; give a likelihood without sizes"):
        Perceptual(nn.Sequential(nn.Linear(4, 3)), {"0": 1.0}, Poisson())


def test_wrong_networks_are_refused() -> None:
    with pytest.raises(TypeError, match="network must be a torch module, got str"):
        Perceptual("vgg19.pth", {"relu1_1": 1.0})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the perceptual likelihood was given no arguments"):
        make_likelihood("perceptual")
    with pytest.raises(ValueError, match="likelihood must be one of gaussian, bernoulli, scaled_gaussian, got 'perc"):
        Perceptual(eyes(), LAYERS, "perceptual")
    with pytest.raises(ValueError, match="likelihood of their own, got a perceptual one; name all layers in one"):
        Perceptual(eyes(), LAYERS, Perceptual(eyes(), LAYERS))
    with pytest.raises(ValueError, match="does not use its layer 'idle'"):
        Perceptual(Odd(), {"conv": 1.0, "idle": 1.0}).ready((1, 6, 6))
    with pytest.raises(TypeError, match="layer 'pair' of the feature network must return a tensor, got tuple"):
        Perceptual(Odd(), {"pair": 1.0}).ready((1, 6, 6))
    with pytest.raises(ValueError, match=r"cannot take samples of shape \(3, 6, 6\) \(.*\); use one made for them"):
        Perceptual(eyes(), LAYERS).ready((3, 6, 6))


def test_images_out_of_vgg_s_range_or_too_small_are_refused(tmp_path: Path) -> None:
    likelihood = Perceptual(VGG19(write_vgg(tmp_path)), {"relu1_1": 1.0, "relu5_1": 1.0})
    likelihood.check(-0.3, 1.3, False)
    with pytest.raises(ValueError, match=r"VGG19 takes images in \[0, 1\], got values in \[0, 255\]; rescale"):
        likelihood.check(0.0, 255.0, True)
    likelihood.ready((1, 16, 16))
    with pytest.raises(ValueError, match=r"cannot take samples of shape \(1, 8, 8\)"):
        likelihood.ready((1, 8, 8))
