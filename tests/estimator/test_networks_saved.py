"""A model with a network by name is saved and loaded whole, whatever was left open when it was fitted."""

from pathlib import Path

import numpy as np
import pytest

from gppvae import GPPVAE, VAE, Learned, Periodic, Phase

IMAGES = np.random.default_rng(0).uniform(size=(24, 16, 16))
TABLE = {"object": np.repeat(np.arange(4), 6), "angle": np.tile(np.arange(6) * 60.0, 4)}
ONE_EPOCH = Phase("short", "minibatch", 1, dict.fromkeys(("encoder", "decoder", "prior", "noise"), 1e-3))


@pytest.mark.parametrize("network", ["auto", "image", "conv", "wide", "faces", "mlp", "vector"])
@pytest.mark.parametrize("width", [None, 8, 32, 48])
def test_a_loaded_model_has_the_network_that_was_trained(tmp_path: Path, network: str, width: int | None) -> None:
    samples = IMAGES if network not in ("vector", "mlp") else IMAGES[:, 0]
    model = GPPVAE("Learned(object, 2) * Periodic(angle, 360)", 2, network=network, width=width, phases=[ONE_EPOCH])
    model.fit(samples, TABLE, progress=False).save(tmp_path)
    again = GPPVAE.load(tmp_path)
    np.testing.assert_array_equal(again.predict(TABLE).mean, model.predict(TABLE).mean)
    np.testing.assert_array_equal(again.encode(samples), model.encode(samples))


def test_a_vae_too(tmp_path: Path) -> None:
    model = VAE(2, network="image", epochs=1).fit(IMAGES, progress=False)
    model.save(tmp_path)
    np.testing.assert_array_equal(VAE.load(tmp_path).encode(IMAGES), model.encode(IMAGES))


def test_many_images_by_default(tmp_path: Path) -> None:
    # Beyond a thousand images, those held out not counted, the default is one network whose width is left open too.
    table = {"object": np.repeat(np.arange(110), 10), "angle": np.tile(np.arange(10) * 36.0, 110)}
    images = np.random.default_rng(1).uniform(size=(1100, 8, 8)).astype(np.float32)
    model = GPPVAE("Learned(object) * Periodic(angle, 360)", epochs=1).fit(images, table, progress=False)
    assert model.resolved_["members"] == 1
    model.save(tmp_path)
    rows = {name: column[:3] for name, column in table.items()}
    np.testing.assert_array_equal(GPPVAE.load(tmp_path).predict(rows).mean, model.predict(rows).mean)


def test_a_kernel_that_reads_no_column(tmp_path: Path) -> None:
    model = GPPVAE("2.0 * Constant()", 2, phases=[ONE_EPOCH]).fit(IMAGES[:, 0], TABLE, progress=False)
    model.save(tmp_path)
    np.testing.assert_array_equal(GPPVAE.load(tmp_path).predict(TABLE).mean, model.predict(TABLE).mean)


def test_vectors_that_a_kernel_uses_twice_are_still_one_after_loading(tmp_path: Path) -> None:
    who = Learned("object", 2)
    model = GPPVAE(who + who * Periodic("angle", period=360.0), 3, phases=[ONE_EPOCH])
    model.fit(IMAGES[:, 0], TABLE, progress=False).save(tmp_path)
    again = GPPVAE.load(tmp_path)
    mine, loaded = model.predict(TABLE, n_samples=3), again.predict(TABLE, n_samples=3)
    np.testing.assert_array_equal(loaded.mean, mine.mean)
    np.testing.assert_array_equal(loaded.std, mine.std)
    first, second = (term.leaves[0] for term in again.kernel_.terms())
    assert first is second
    again.save(tmp_path / "again")
    np.testing.assert_array_equal(GPPVAE.load(tmp_path / "again").predict(TABLE, n_samples=3).mean, mine.mean)
