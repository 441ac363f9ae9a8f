"""Results that are written as they are made: the same numbers as in memory, whole files or none."""

from pathlib import Path

import numpy as np
import pytest

from gppvae import GPPVAE
from gppvae.estimator.outputs import Outputs
from gppvae.models import predict


@pytest.fixture(scope="module")
def fitted() -> tuple[GPPVAE, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    table = {"object": rng.integers(0, 4, 40), "time": rng.normal(size=40)}
    samples = rng.random((40, 5)).astype(np.float32)
    model = GPPVAE(
        "Learned(object, 2) * RBF(time)", 3, network="mlp", width=8, epochs=1, warmup_epochs=1, gp_epochs=1,
        batch_size=16, device="cpu",
    )  # fmt: skip
    return model.fit(samples, table, progress=False), samples, table


def test_encodings_in_files_are_those_in_memory(fitted: tuple, tmp_path: Path) -> None:
    model, samples, _ = fitted
    mean, std = model.encode(samples, return_std=True)
    stored_mean, _ = model.encode(samples, return_std=True, out=tmp_path / "encoded")
    assert isinstance(stored_mean, np.memmap) and mean.dtype == stored_mean.dtype == np.float32
    np.testing.assert_array_equal(stored_mean, mean)
    np.testing.assert_array_equal(np.load(tmp_path / "encoded" / "std.npy"), std)
    assert sorted(path.name for path in (tmp_path / "encoded").iterdir()) == ["mean.npy", "std.npy"]
    np.testing.assert_array_equal(model.reconstruct(samples), model.reconstruct(samples, out=tmp_path / "again"))


@pytest.mark.parametrize(("n_samples", "include_noise"), [(0, False), (3, False), (3, True)])
def test_predictions_in_files_are_those_in_memory(
    fitted: tuple, n_samples: int, include_noise: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, table = fitted
    monkeypatch.setattr(predict, "PREDICT_ROWS", 7)
    kept = model.predict(table, n_samples, include_noise)
    stored = model.predict(table, n_samples, include_noise, out=tmp_path / "out")
    np.testing.assert_array_equal(stored.mean, kept.mean)
    if n_samples:
        np.testing.assert_array_equal(stored.std, kept.std)
    assert (tmp_path / "out" / "std.npy").exists() == bool(n_samples)


def test_latents_do_not_depend_on_the_chunks(fitted: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, table = fitted
    mean, var = model.predict_latent(table)
    assert mean.shape == var.shape == (40, 3) and mean.dtype == np.float64
    monkeypatch.setattr(predict, "PREDICT_ROWS", 7)
    # Features come from a Cholesky factor of K_uu with a jitter of 1e-8: it magnifies rounding up to 1e8 times.
    for whole, chunked in zip((mean, var), model.predict_latent(table), strict=True):
        np.testing.assert_allclose(chunked, whole, rtol=1e-9)


def test_files_that_exist_are_kept(fitted: tuple, tmp_path: Path) -> None:
    model, samples, _ = fitted
    np.save(tmp_path / "mean.npy", np.zeros(3))
    with pytest.raises(FileExistsError, match=r"already holds mean\.npy; choose another folder"):
        model.encode(samples, out=tmp_path)
    assert np.load(tmp_path / "mean.npy").shape == (3,)


def test_nothing_is_left_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="stop"), Outputs(tmp_path, ("mean",), (4, 2)) as arrays:
        arrays.put(mean=np.zeros((2, 2)))
        raise KeyError("stop")
    assert list(tmp_path.iterdir()) == []
