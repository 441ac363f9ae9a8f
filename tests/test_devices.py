"""Nothing is made on the wrong device: a device that does not mix with the CPU gives the numbers of the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fake_device import WrongDeviceError, fake_device
from gppvae import GPPVAE, RBF, VAE, Learned
from gppvae.inference import INFERENCES
from gppvae.prior.latent_prior import LatentGroup
from gppvae.training.loop import Trainer
from stops import Stop
from tiny import KERNEL, spots

SMALL: dict[str, Any] = {
    "latent_dim": 2, "network": "mlp", "width": 8, "epochs": 1, "warmup_epochs": 1, "gp_epochs": 1, "batch_size": 8,
}  # fmt: skip
MIXTURE = "RBF(angle) + Learned(spot, 2) + Categorical(spot) * RBF(angle)"
KERNELS: dict[str, Any] = {
    "ids": "2.0 * FreeForm(spot) + Categorical(spot) * Linear(angle) + Constant()",
    "numbers": "Matern(angle, max_inducing=4) + RationalQuadratic(angle) * Learned(spot, 2)",
    "series": "RBF(angle, basis='hilbert', max_inducing=6) + Periodic(angle, 360, basis='fourier')",
    "groups": [("Learned(spot, 2) * RBF(angle)", 2), (None, 1)],
}


def data(likelihood: str = "gaussian", missing: bool = False) -> tuple[np.ndarray, pd.DataFrame]:
    images, table = spots(3, 4)
    if likelihood == "negative_binomial":
        images = np.round(9.0 * images)
    if missing:
        images = images.copy()
        images[::3, :2] = np.nan
    return images, table


def answers(model: GPPVAE, images: np.ndarray, table: pd.DataFrame) -> dict[str, Any]:
    """Everything that can be asked of a fitted model."""
    drawn = model.predict(table, n_samples=2, include_noise=True)
    return {
        "predict": model.predict(table).mean,
        "drawn": drawn.mean,
        "std": drawn.std,
        "encode": model.encode(images),
        "reconstruct": model.reconstruct(images),
        "sample": model.sample(table.iloc[:3], 2, seed=1),
    }


def fitted(device: str, kernel: Any, images: np.ndarray, table: pd.DataFrame, **settings: Any) -> dict[str, Any]:
    model = GPPVAE(kernel, device=device, **(SMALL | settings)).fit(images, table, progress=False)
    return answers(model, images, table)


def check_runs(kernel: Any, **settings: Any) -> None:
    """A fit and all answers, with nothing made elsewhere."""
    images, table = data(settings.get("likelihood", "gaussian"), "missing" in settings)
    with fake_device() as device:
        for name, answer in fitted(device, kernel, images, table, **settings).items():
            assert np.isfinite(answer).all(), name


def check_same(kernel: Any, **settings: Any) -> None:
    images, table = data(settings.get("likelihood", "gaussian"), "missing" in settings)
    with fake_device() as device:
        found, on_cpu = (fitted(name, kernel, images, table, **settings) for name in (device, "cpu"))
    for name, expected in on_cpu.items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


@pytest.mark.parametrize("inference", [name for name, kind in INFERENCES.items() if kind.conditions])
def test_every_inference(inference: str) -> None:
    check_same(KERNEL, inference=inference)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kind_of_kernel(kernel: str) -> None:
    latents = None if kernel == "groups" else 2
    check_runs(KERNELS[kernel], inference="minibatch", latent_dim=latents)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "negative_binomial"])
def test_every_likelihood_and_missing_values(likelihood: str) -> None:
    masked = {"missing": "mask"} if likelihood == "gaussian" else {}
    check_runs(KERNEL, likelihood=likelihood, inference="global", **masked)


@pytest.mark.parametrize("network", ["conv", "wide"])
def test_convolutions_and_measured_noise(network: str) -> None:
    check_runs(KERNEL, network=network, width=None, pixel_var=None, inference="minibatch", epochs=1)


def test_files_new_objects_and_the_plain_vae(tmp_path: Path) -> None:
    images, table = data()
    new = table.iloc[:4].assign(spot="new")
    found = {}
    for name in ("cpu", "other"):
        with fake_device() as other:
            device = other if name == "other" else "cpu"
            model = GPPVAE(KERNEL, device=device, inference="global", **SMALL)
            model.fit(images, table, validation=(images, table), out=tmp_path / name, progress=False)
            loaded = GPPVAE.load(tmp_path / name, device=device)
            loaded.add_objects(images[:4], new)
            vae = VAE(2, network="mlp", width=8, epochs=1, device=device).fit(images, progress=False)
            found[name] = [loaded.predict(new, 2).std, vae.reconstruct(images), vae.sample(2, seed=0)]
            found[name].append(loaded.score(images, table))
            loaded.save(tmp_path / f"{name} again")
            again = GPPVAE.load(tmp_path / f"{name} again", device=device)
            assert again.remainders_.kept
            found[name] += [again.predict(new).mean, again.sample(new, 2, include_noise=True)]
    for one, other_value in zip(found["cpu"], found["other"], strict=True):
        np.testing.assert_array_equal(one, other_value)


@pytest.mark.parametrize("least", [0, 10**6], ids=["blocks", "dense"])
def test_new_subjects(least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LatentGroup, "least_in_blocks", least)
    images, table = data()
    new, found = table.iloc[:4].assign(spot="new"), {}
    for name in ("cpu", "other"):
        with fake_device() as other:
            device = other if name == "other" else "cpu"
            model = GPPVAE(MIXTURE, device=device, inference="global", **SMALL)
            model.fit(images, table, progress=False).save(tmp_path / name)
            loaded = GPPVAE.load(tmp_path / name, device=device)
            loaded.add_objects(images[:4], new)
            loaded.add_objects(images[2:4], new.iloc[2:])
            loaded.update(images[:1], new.iloc[:1])
            found[name] = loaded.predict(new, 2).std
    np.testing.assert_array_equal(found["cpu"], found["other"])


def test_a_run_that_was_stopped_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, table = data()
    write = Trainer.checkpoint

    def stop(self: Trainer, state: Any, meta: dict[str, Any], due: bool) -> None:
        write(self, state, meta, True)
        if (meta["phase"], meta["epoch"]) == (2, 1):
            raise Stop

    def fit(device: str, out: Path | None) -> np.ndarray:
        model = GPPVAE(KERNEL, device=device, inference="posterior", **(SMALL | {"warmup_epochs": 2, "epochs": 2}))
        return model.fit(images, table, out=out, progress=False).predict(table).mean

    with fake_device() as device:
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "checkpoint", stop)
            with pytest.raises(Stop):
                fit(device, tmp_path)
        found, expected = fit(device, tmp_path), fit("cpu", None)
    np.testing.assert_array_equal(found, expected)


class Careless(RBF):
    """Makes a tensor without saying where."""

    def factor(self, values: torch.Tensor) -> torch.Tensor:
        return super().factor(values) * torch.ones(len(values), 1, dtype=torch.float64)


def test_a_tensor_on_the_wrong_device_is_found() -> None:
    images, table = data()
    with fake_device() as device, pytest.raises(WrongDeviceError, match="of both devices"):
        fitted(device, Learned("spot", 2) * Careless("angle"), images, table, inference="minibatch")
    with fake_device() as device, pytest.raises(WrongDeviceError, match="without moving them"):
        torch.zeros(2, device=device).numpy()
