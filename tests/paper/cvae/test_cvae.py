"""The conditional VAE: what its networks are told, its loss against the plain VAE's, the latent of an object."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Column, Rows, Table
from gppvae.inference import Independent
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.build import build_networks
from gppvae.paper.cvae import CVAE
from gppvae.paper.cvae.inference import Conditional
from gppvae.paper.cvae.model import (
    CONDITION,
    condition_rows,
    conditions_of,
    decode_given,
    encode_given,
    object_latents,
    view_conditions,
)
from gppvae.paper.cvae.networks import conditional_networks, planes
from gppvae.prior.latent_prior import LatentPrior
from tiny import spots

SHAPE = (1, 12, 12)


def conditional_autoencoder(name: str = "conv", n_conditions: int = 2) -> Autoencoder:
    return Autoencoder(*conditional_networks(name, SHAPE, 3, n_conditions), Gaussian(0.1))


def test_angles_become_sine_and_cosine() -> None:
    table = Table({"angle": [0.0, 90.0, 157.5, 360.0]})
    expected = [[math.sin(math.radians(a)), math.cos(math.radians(a))] for a in (0.0, 90.0, 157.5, 360.0)]
    np.testing.assert_allclose(view_conditions(table, "angle", 360.0), expected, atol=1e-12)


def test_named_views_become_one_hot() -> None:
    table = Table({"pose": ["left", "front", "left"]})
    expected = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert view_conditions(table, "pose", None, ["front", "left", "right"]).tolist() == expected
    with pytest.raises(ValueError, match="column 'pose' must hold views known from training, got 'left'"):
        view_conditions(table, "pose", None, ["front"])


def test_rows_carry_conditions_through_slicing() -> None:
    conditions = np.array([[0.5, 1.0], [0.0, -1.0], [0.5, 1.0]])
    rows = condition_rows(conditions)
    picked = rows[torch.tensor([2, 1])]
    assert conditions_of(picked, torch.zeros(1)).tolist() == [[0.5, 1.0], [0.0, -1.0]]


@pytest.mark.parametrize("name", ["conv", "wide"])
def test_networks_hear_the_condition_at_both_places(name: str) -> None:
    """Figure S1: input channels and dense layer of the encoder, latent and first convolution of the decoder."""
    encoder, decoder = conditional_networks(name, SHAPE, 3, 2)
    plain_encoder, plain_decoder = build_networks(name, SHAPE, 3)
    first = next(layer for layer in encoder.convolutions if isinstance(layer, torch.nn.Conv2d))
    assert first.in_channels == 1 + 2
    assert encoder.dense.in_features == plain_encoder.dense.in_features + 2
    assert decoder.dense.in_features == 3 + 2
    inputs = [
        next(m for m in d.convolutions if isinstance(m, torch.nn.Conv2d)).in_channels for d in (decoder, plain_decoder)
    ]
    assert inputs[0] == inputs[1] + 2
    assert decoder(torch.zeros(4, 5)).shape == (4, *SHAPE)


@pytest.mark.parametrize("place", ["dense", "convolutions"])
def test_each_place_alone_changes_the_output(place: str) -> None:
    """With the other place's weights on the condition at zero, the condition is still heard."""
    model = conditional_autoencoder()
    with torch.no_grad():
        if place == "dense":
            model.encoder.convolutions[0].weight[:, 1:] = 0.0
            next(m for m in model.decoder.convolutions if isinstance(m, torch.nn.Conv2d)).weight[:, -2:] = 0.0
        else:
            model.encoder.dense.weight[:, -2:] = 0.0
            model.decoder.dense.weight[:, -2:] = 0.0
    y, z = torch.rand(2, *SHAPE), torch.zeros(2, 3)
    one, other = torch.tensor([[0.0, 1.0]]).expand(2, 2), torch.tensor([[1.0, 0.0]]).expand(2, 2)
    assert not torch.allclose(encode_given(model, y, one)[0], encode_given(model, y, other)[0])
    assert not torch.allclose(decode_given(model, z, one), decode_given(model, z, other))


def test_planes_are_constant_images() -> None:
    images = planes(torch.tensor([[1.0, 2.0]]), 2, 3)
    assert images.tolist() == [[[[1.0] * 3] * 2, [[2.0] * 3] * 2]]


def test_networks_need_images() -> None:
    with pytest.raises(ValueError, match=r"needs images \(channels, height, width\), got samples of shape \(7,\)"):
        conditional_networks("conv", (7,), 3, 2)
    with pytest.raises(ValueError, match="needs a convolutional network, got 'mlp'"):
        conditional_networks("mlp", SHAPE, 3, 2)


def test_without_conditions_it_is_the_plain_vae() -> None:
    """Loss and gradients of the same autoencoder under both inferences, where a condition has no entries."""
    model = GPPriorVAE(Autoencoder(*build_networks("conv", SHAPE, 3), Gaussian(0.1)), LatentPrior([(None, 3)]))
    samples = Samples(np.random.default_rng(0).random((10, 12, 12), dtype=np.float32))
    nothing = Column(torch.zeros(10, dtype=torch.int64), torch.zeros(1, 0))
    epoch = Epoch(samples, Rows({CONDITION: nothing}, 10), 4, 5, torch.device("cpu"))
    found = []
    for inference in (Independent(model), Conditional(model)):
        model.zero_grad()
        totals = [float(sum(terms.named().values())) for terms in inference.steps(epoch)]
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        found.append((totals, gradients))
        assert inference.weights(epoch) is None
    assert found[0][0] == pytest.approx(found[1][0])
    for a, b in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(a, b)


def test_object_latent_is_the_mean_over_its_views() -> None:
    mean = np.array([[1.0, 0.0], [3.0, 2.0], [10.0, 10.0]])
    var = np.array([[0.2, 0.4], [0.6, 0.8], [1.0, 1.0]])
    objects = np.array(["a", "a", "b"])
    centre, spread = object_latents(mean, var, objects, np.array(["b", "a"]))
    assert centre.tolist() == [[10.0, 10.0], [2.0, 1.0]]
    np.testing.assert_allclose(spread, [[1.0, 1.0], [0.8 / 4, 1.2 / 4]])
    with pytest.raises(ValueError, match="got none of 'c'"):
        object_latents(mean, var, objects, np.array(["c"]))


def test_fit_lowers_the_loss_and_survives_saving(tmp_path: Path) -> None:
    images, table = spots()
    model = CVAE("angle", 360.0, 3, network="conv", pixel_var=0.05, epochs=40, batch_size=8, seed=3)
    model.fit(images, table, out=tmp_path / "run", progress=False)
    assert model.history_[-1]["loss"] < model.history_[0]["loss"] - 10.0
    mean, var = model.encode_views(images, table)
    assert mean.shape == var.shape == (len(images), 3) and (var > 0).all()
    guess = model.decode_views(mean, table)
    assert np.square(guess[:, 0] - images).mean() < 0.5 * np.square(images.mean(0) - images).mean()
    loaded = CVAE.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.decode_views(mean, table), guess)
    assert loaded.get_params() == model.get_params()


def test_views_by_name_are_one_hot_in_the_estimator() -> None:
    images, table = spots()
    named = {"spot": table["spot"], "view": [f"v{int(angle)}" for angle in table["angle"]]}
    model = CVAE("view", None, 2, epochs=1, seed=0).fit(images, named, progress=False)
    assert model.views_ == sorted(set(named["view"]))
    assert model._autoencoder.decoder.dense.in_features == 2 + table["angle"].nunique()


def test_early_stopping_keeps_the_state_with_the_best_bound(tmp_path: Path) -> None:
    images, table = spots()
    held = images[:6], table.iloc[:6]
    model = CVAE("angle", 360.0, 3, epochs=40, lr=0.1, batch_size=16, patience=1, validate_every=1, seed=0)
    model.fit(images[6:], table.iloc[6:], validation=held, out=tmp_path, progress=False)
    bounds = [row["valid_nelbo"] for row in model.history_]
    assert len(bounds) < 40  # such a rate makes the bound worse sooner or later
    assert int(np.argmin(bounds)) == len(bounds) - 3
    batch = next(
        iter(Epoch(Samples(held[0]), condition_rows(model._conditions(Table(held[1]))), 16, None, torch.device("cpu")))
    )
    again = CVAE.load(tmp_path)
    mean, var = again.encode_views(*held)
    z = mean + np.sqrt(var) * batch.noise(3).numpy()
    guess = again.decode_views(z, held[1])
    total = 0.0
    for n in range(6):
        total += 0.5 * float(((images[n] - guess[n, 0]) ** 2).sum()) / 0.01
        total += 0.5 * images[n].size * math.log(2.0 * math.pi * 0.01)
        total += 0.5 * sum(float(mean[n, k] ** 2 + var[n, k] - 1.0 - math.log(var[n, k])) for k in range(3))
    assert total / 6 == pytest.approx(min(bounds), rel=1e-4)
    assert again.get_params()["patience"] == 1


def test_unfitted_says_so() -> None:
    with pytest.raises(ValueError, match="this CVAE is not fitted yet"):
        CVAE("angle", 360.0).decode_views(np.zeros((1, 16)), {"angle": [0.0]})
