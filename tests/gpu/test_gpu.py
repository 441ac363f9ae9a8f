"""Fits and answers on a real GPU against those of the CPU: `make gpu`, or `pytest -m gpu`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gppvae import GPPVAE, VAE
from gppvae.inference import INFERENCES
from tiny import KERNEL, spots

GPU = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPU is None, reason="PyTorch finds no GPU")]
SMALL: dict[str, Any] = {
    "latent_dim": 2, "width": 8, "epochs": 3, "warmup_epochs": 2, "gp_epochs": 2, "batch_size": 8,
}  # fmt: skip
CLOSE = {"rtol": 0.0, "atol": 5e-3}  # float32 in other orders, over a few epochs
KERNELS: dict[str, Any] = {
    "ids": "2.0 * FreeForm(spot) + Categorical(spot) * Linear(angle) + Constant()",
    "numbers": "Matern(angle, max_inducing=4) + RationalQuadratic(angle) * Learned(spot, 2)",
    "series": "RBF(angle, basis='hilbert', max_inducing=6) + Periodic(angle, 360, basis='fourier')",
    "groups": [("Learned(spot, 2) * RBF(angle)", 2), (None, 1)],
}


def fitted(device: str | None, kernel: Any = KERNEL, out: Path | None = None, **settings: Any) -> GPPVAE:
    images, table = spots(4, 6)
    return GPPVAE(kernel, device=device, **(SMALL | settings)).fit(images, table, out=out, progress=False)


def check_same(kernel: Any = KERNEL, **settings: Any) -> None:
    images, table = spots(4, 6)
    one, other = (fitted(device, kernel, **settings) for device in (str(GPU), "cpu"))
    assert next(one.model_.autoencoder.parameters()).device.type == str(GPU)
    np.testing.assert_allclose(one.predict(table).mean, other.predict(table).mean, **CLOSE)
    np.testing.assert_allclose(one.predict(table, 4, seed=1).std, other.predict(table, 4, seed=1).std, **CLOSE)
    np.testing.assert_allclose(one.reconstruct(images), other.reconstruct(images), **CLOSE)


@pytest.mark.parametrize("inference", [name for name, kind in INFERENCES.items() if kind.conditions])
def test_every_inference(inference: str) -> None:
    check_same(network="mlp", inference=inference)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kind_of_kernel(kernel: str) -> None:
    check_same(KERNELS[kernel], network="mlp", inference="minibatch", latent_dim=None if kernel == "groups" else 2)


@pytest.mark.parametrize("network", ["conv", "wide"])
def test_convolutions(network: str) -> None:
    check_same(network=network, width=None, inference="minibatch")


def test_new_objects() -> None:
    images, table = spots(4, 6)
    new = table.iloc[:4].assign(spot="new")
    found = []
    for device in (str(GPU), "cpu"):
        model = fitted(device, network="mlp", inference="global")
        model.add_objects(images[:4], new)
        found.append(model.predict(new, 8, seed=0).mean)
    np.testing.assert_allclose(*found, **CLOSE)


def test_files_are_read_on_either_device(tmp_path: Path) -> None:
    table = spots(4, 6)[1]
    model = fitted(str(GPU), out=tmp_path, network="mlp", inference="posterior")
    expected = model.predict(table).mean
    for device in (str(GPU), "cpu"):
        np.testing.assert_allclose(GPPVAE.load(tmp_path, device=device).predict(table).mean, expected, atol=1e-4)


def test_the_same_fit_twice_is_the_same_model() -> None:
    table = spots(4, 6)[1]
    one, two = (fitted(str(GPU), network="mlp", inference="global").predict(table).mean for _ in range(2))
    np.testing.assert_allclose(one, two, rtol=0.0, atol=1e-5)


def test_the_plain_vae() -> None:
    images = spots(4, 6)[0]
    one, two = (
        VAE(2, network="conv", epochs=2, device=device).fit(images, progress=False).reconstruct(images)
        for device in (str(GPU), "cpu")
    )
    np.testing.assert_allclose(one, two, **CLOSE)
