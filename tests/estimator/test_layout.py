"""What comes out has the shape and the order of axes of what went in, in memory and in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gppvae import GPPVAE, VAE
from gppvae.data.arrays import from_input_layout, to_input_layout
from gppvae.report.images import to_uint8
from gppvae.report.predictions import write_answers
from gppvae.report.run import write_report
from tiny import KERNEL, spots

SMALL = {"latent_dim": 2, "network": "mlp", "width": 8, "batch_size": 16}
N = 20


def colours(images: np.ndarray) -> np.ndarray:
    """(N, h, w) as three channels that differ, first."""
    return np.stack([images, 0.5 * images, images[:, ::-1]], axis=1)


CASES: dict[str, tuple[Any, dict[str, str]]] = {
    "vector": (lambda y: y.reshape(len(y), -1), {}),
    "grey": (lambda y: y, {}),
    "one": (lambda y: y[:, None], {}),
    "first": (colours, {}),
    "last": (lambda y: np.moveaxis(colours(y), 1, -1), {"channels": "last"}),
    "one last": (lambda y: y[..., None], {"channels": "last"}),
}


@pytest.fixture(scope="module", params=CASES)
def fitted(request: pytest.FixtureRequest) -> tuple[GPPVAE, np.ndarray, Any]:
    change, options = CASES[request.param]
    images, table = spots(4, 5)
    model = GPPVAE(KERNEL, epochs=3, warmup_epochs=1, gp_epochs=1, **SMALL, **options)
    return model.fit(change(images), table, progress=False), change(images), table


def test_answers_have_the_shape_of_the_samples(fitted: tuple[GPPVAE, np.ndarray, Any], tmp_path: Path) -> None:
    model, samples, table = fitted
    drawn = model.predict(table, n_samples=3)
    assert drawn.mean.shape == drawn.std.shape == samples.shape
    assert model.predict(table).mean.shape == model.reconstruct(samples).shape == samples.shape
    assert model.sample(table, n_samples=2).shape == (2, *samples.shape)
    assert model.predict(table.iloc[:0]).mean.shape == (0, *samples.shape[1:])
    model.predict(table, n_samples=3, out=tmp_path / "predicted")
    model.reconstruct(samples, out=tmp_path / "decoded")
    np.testing.assert_array_equal(np.load(tmp_path / "predicted" / "mean.npy"), drawn.mean)
    np.testing.assert_array_equal(np.load(tmp_path / "predicted" / "std.npy"), drawn.std)
    np.testing.assert_array_equal(np.load(tmp_path / "decoded" / "mean.npy"), model.reconstruct(samples))


def test_axes_are_in_the_order_of_the_samples(fitted: tuple[GPPVAE, np.ndarray, Any]) -> None:
    """A fit long enough to tell channels from rows: the error would be that of other pixels."""
    model, samples, table = fitted
    apart = np.mean(np.square(samples - samples.mean(0)))
    long = GPPVAE(model.kernel, epochs=150, warmup_epochs=0, gp_epochs=0, lr=1e-2, **SMALL, channels=model.channels)
    long.fit(samples, table, progress=False)
    assert np.mean(np.square(long.predict(table).mean - samples)) < 0.7 * apart


def test_a_saved_model_knows_the_layout(fitted: tuple[GPPVAE, np.ndarray, Any], tmp_path: Path) -> None:
    model, _, table = fitted
    model.save(tmp_path)
    np.testing.assert_array_equal(GPPVAE.load(tmp_path).predict(table).mean, model.predict(table).mean)


def test_report_and_pictures_take_every_layout(fitted: tuple[GPPVAE, np.ndarray, Any], tmp_path: Path) -> None:
    model, samples, table = fitted
    model.save(tmp_path / "run")
    write_report(tmp_path / "run", model, train=(samples, table), test=(samples, table))
    ask = lambda work: model.predict(table, out=work)  # noqa: E731
    names = write_answers(tmp_path / "out", ask, model, None, None)
    assert ("images" in names) == (samples.ndim > 2)


@pytest.mark.parametrize("case", CASES)
def test_a_vae_gives_what_it_got(case: str, tmp_path: Path) -> None:
    change, options = CASES[case]
    samples = change(spots(4, 5)[0])
    model = VAE(epochs=1, **SMALL, **options).fit(samples, progress=False)
    model.save(tmp_path)
    for vae in (model, VAE.load(tmp_path)):
        assert vae.reconstruct(samples).shape == samples.shape
        assert vae.sample(7).shape == (7, *samples.shape[1:])


def test_reconstructions_follow_the_samples_given_and_not_those_of_training() -> None:
    images, _ = spots(4, 5)
    model = VAE(epochs=1, **SMALL).fit(images, progress=False)
    assert model.reconstruct(images[:, None]).shape == (N, 1, 8, 8)


@pytest.mark.parametrize("layout", ["vector", "grey", "first", "last"])
def test_layouts_there_and_back(layout: str, rng: np.random.Generator) -> None:
    array = rng.normal(size=(2, 3, 1 if layout == "grey" else 5, 4, 6))
    np.testing.assert_array_equal(from_input_layout(to_input_layout(array, layout), layout), array)


def test_noise_needs_draws(tmp_path: Path) -> None:
    images, table = spots(4, 5)
    model = GPPVAE(KERNEL, epochs=1, warmup_epochs=0, gp_epochs=0, **SMALL).fit(images, table, progress=False)
    with pytest.raises(ValueError, match=r"include_noise needs draws.*n_samples=0; use for example n_samples=64"):
        model.predict(table, include_noise=True)


def test_pixels_of_sixteen_bits_are_shown_and_compared_as_such() -> None:
    from gppvae.data.image_set import unit_pixels

    deep = np.array([0, 257, 65535], dtype=np.uint16)
    np.testing.assert_array_equal(to_uint8(deep), [0, 1, 255])
    np.testing.assert_allclose(unit_pixels(deep, deep.dtype), [0.0, 257 / 65535, 1.0], rtol=1e-6)
