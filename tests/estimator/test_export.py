"""The exported decoder gives the picture that the model gives, without the package's own code."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from gppvae import GPPVAE, VAE
from gppvae.estimator import export
from tiny import spots

NETWORKS = {"mlp": "mlp", "wide": "wide"}


def make(network: str, channels: int, members: int = 1) -> VAE:
    images, _ = spots(2, 4)
    grey = np.kron(images, np.ones((2, 2), dtype=np.float32))  # (8, 16, 16)
    samples = grey if channels == 1 else np.stack([grey] * 3, axis=-1)
    order = "first" if channels == 1 else "last"
    settings = {"network": network, "width": 8, "members": members, "epochs": 1, "batch_size": 8, "channels": order}
    return VAE(3, **settings).fit(samples, progress=False)


@pytest.fixture(scope="module", params=[("mlp", 1), ("wide", 3), ("wide", 1, 2)], ids=str)
def model(request: pytest.FixtureRequest) -> VAE:
    return make(*request.param)


@pytest.fixture(scope="module")
def latents() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def decoded(model: VAE, z: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        mean = model.model_.autoencoder.likelihood.mean(model.model_.autoencoder.decode(torch.from_numpy(z))).numpy()
    return {"grey": lambda: mean[:, 0], "last": lambda: np.moveaxis(mean, 1, -1)}[model.layout_]()


def test_the_torch_graph_gives_the_same_picture(model: VAE, latents: np.ndarray) -> None:
    saved = io.BytesIO()
    torch.export.save(model.export_decoder(), saved)
    saved.seek(0)
    graph = torch.export.load(saved).module()
    for n in (1, 5):
        found = graph(torch.from_numpy(latents[:n])).numpy()
        np.testing.assert_allclose(found, decoded(model, latents[:n]), rtol=1e-4, atol=1e-5)


def test_the_onnx_file_gives_the_same_picture(model: VAE, latents: np.ndarray, tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed; pip install 'gppvae[onnx]'")
    import onnxruntime

    path = model.to_onnx(tmp_path / "decoder.onnx")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    assert [entry.name for entry in (*session.get_inputs(), *session.get_outputs())] == ["z", "mean"]
    for n in (1, 5):
        (found,) = session.run(["mean"], {"z": latents[:n]})
        np.testing.assert_allclose(found, decoded(model, latents[:n]), rtol=1e-4, atol=1e-4)


def test_latents_of_rows_give_predictions(tmp_path: Path) -> None:
    images, table = spots(2, 6)
    model = GPPVAE("Learned(spot, 2) * Periodic(angle, 360)", 2, network="mlp", epochs=2, batch_size=8, pixel_var=None)
    model.fit(images, table, progress=False)
    mean, _ = model.predict_latent(table)
    found = model.export_decoder().module()(torch.from_numpy(mean.astype(np.float32))).numpy()
    np.testing.assert_allclose(found, model.predict(table).mean, rtol=1e-4, atol=1e-5)


def test_what_onnx_needs_is_named(model: VAE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "ONNX_NEEDS", ("onnx", "no_such_package"))
    with pytest.raises(ValueError, match=r"no_such_package, which is not installed; pip install 'gppvae\[onnx\]'"):
        model.to_onnx(tmp_path / "decoder.onnx")
    assert not list(tmp_path.iterdir())
