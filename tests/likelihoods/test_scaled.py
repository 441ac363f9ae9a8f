"""The standardising Gaussian: its density, what it learns of the samples, and that units do not matter."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from gppvae import GPPVAE
from gppvae.data.arrays import Samples
from gppvae.likelihoods import ScaledGaussian
from tiny import KERNEL, spots


def of_vectors() -> ScaledGaussian:
    likelihood = ScaledGaussian()
    likelihood.adapt((3,))
    likelihood.measure(torch.tensor([1.0, -2.0, 1000.0]), torch.tensor([0.5, 3.0, 0.0]))
    likelihood.learn_noise(torch.tensor([0.1, 0.9, 0.25]))
    return likelihood


def test_the_density_is_that_of_a_normal_in_the_unit_of_the_samples() -> None:
    likelihood, (shift, spread) = of_vectors(), (np.array([1.0, -2.0, 1000.0]), np.array([0.5, 3.0, 1.0]))
    y = np.array([[1.2, -5.0, 1000.5], [0.7, 2.0, 999.0]])
    out = np.array([[0.3, -0.4, 0.2], [1.0, 0.0, -0.7]])
    mask = np.array([[True, True, False], [True, False, True]])
    for seen in (np.ones_like(mask), mask):
        expected = []
        for row in range(2):
            total = 0.0
            for k in range(3):
                var = [0.1, 0.9, 0.25][k]
                error = y[row, k] - (shift[k] + spread[k] * out[row, k])
                total += seen[row, k] * 0.5 * (error**2 / var + math.log(2.0 * math.pi * var))
            expected.append(total)
        given = torch.tensor(seen) if not seen.all() else None
        got = likelihood.double().nll(torch.tensor(y), torch.tensor(out), given)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_the_density_of_images_is_that_of_normals_per_channel(
    rng: np.random.Generator, memory: torch.memory_format
) -> None:
    likelihood = ScaledGaussian()
    likelihood.adapt((2, 3, 4))
    likelihood.measure(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]))
    likelihood.learn_noise(torch.tensor([0.1, 0.9]))
    y, out = rng.normal(size=(5, 2, 3, 4)), rng.normal(size=(5, 2, 3, 4))
    expected = np.zeros(5)
    for channel, (shift, spread, var) in enumerate([(1.0, 0.5, 0.1), (-2.0, 3.0, 0.9)]):
        error = y[:, channel] - (shift + 4.0 * spread * out[:, channel])  # networks for images draw quarters
        expected += 0.5 * (error**2 / var + math.log(2.0 * math.pi * var)).sum((1, 2))
    drawn = torch.tensor(out).contiguous(memory_format=memory)
    for mask in (None, torch.ones(5, 2, 3, 4, dtype=torch.bool)):
        got = likelihood.double().nll(torch.tensor(y), drawn, mask)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)


def test_noise_is_kept_between_its_limits_and_a_constant_value_has_spread_one() -> None:
    likelihood = of_vectors()
    assert likelihood.spread.tolist() == [0.5, 3.0, 1.0]
    likelihood.learn_noise(torch.tensor([0.0, 1e9, 0.25]))
    torch.testing.assert_close(likelihood.variance(torch.zeros(1, 3)), torch.tensor([[0.25e-4, 36.0, 0.25]]))


@pytest.mark.parametrize("var", [0.0, -1.0, 5.0, math.nan])
def test_noise_that_cannot_be_is_refused(var: float) -> None:
    with pytest.raises(ValueError, match=r"var must be between 0.0001 and 4"):
        ScaledGaussian(var)


@pytest.mark.parametrize("shape", [(40, 5), (40, 2, 6, 7)])
def test_moments_are_per_channel_or_value_and_leave_missing_values_out(
    rng: np.random.Generator, shape: tuple[int, ...]
) -> None:
    data = (1000.0 + rng.normal(size=shape)).astype(np.float32)
    data[rng.random(shape) < 0.2] = np.nan
    mean, std = Samples(data, missing="mask").moments()
    for channel in range(shape[1]):
        seen = data[:, channel][np.isfinite(data[:, channel])].astype(np.float64)
        assert float(mean[channel]) == pytest.approx(seen.mean(), abs=1e-6)
        assert float(std[channel]) == pytest.approx(seen.std(), rel=1e-6)


SETTINGS = {"latent_dim": 3, "network": "mlp", "width": 16, "batch_size": 16, "pixel_var": None, "epochs": 8}


@pytest.mark.parametrize("inference", ["global", "leave_out"])
@pytest.mark.parametrize(("factor", "offset"), [(255.0, 0.0), (1.0, 1000.0), (0.001, 0.0), (50.0, 1000.0)])
def test_predictions_do_not_depend_on_the_unit(inference: str, factor: float, offset: float) -> None:
    images, table = spots(4, 6)
    plain = GPPVAE(KERNEL, inference=inference, **SETTINGS).fit(images, table, progress=False)
    changed = GPPVAE(KERNEL, inference=inference, **SETTINGS).fit(factor * images + offset, table, progress=False)
    expected, got = (model.predict(table, 8) for model in (plain, changed))
    # Rounding of the samples to float32 is all that differs: 6e-5 where they are near 1000.
    allowed = 1e-3 if offset else 1e-4
    np.testing.assert_allclose((got.mean - offset) / factor, expected.mean, atol=allowed * images.std())
    np.testing.assert_allclose(got.std / factor, expected.std, atol=allowed * images.std())
    # Errors are measured in bins of the spread, in which a value may change its bin.
    expected, got = (model.predict(table, 8, include_noise=True) for model in (plain, changed))
    np.testing.assert_allclose(got.std / factor, expected.std, rtol=0.05)


def test_the_noise_is_the_error_at_validation_rows_and_survives_saving(tmp_path: Path) -> None:
    images, table = spots(4, 12)
    values = np.stack([images[:, 2, 2], 100.0 * images[:, 4, 4], images[:, 5, 1] - 7.0], axis=1)
    train, valid = np.arange(48) % 4 > 0, np.arange(48) % 4 == 0
    model = GPPVAE(KERNEL, inference="global", **SETTINGS)
    model.fit(values[train], table[train], validation=(values[valid], table[valid]), progress=False)
    errors = np.square(model.predict(table[valid]).mean - values[valid]).mean(axis=0)
    likelihood = model.model_.autoencoder.likelihood
    np.testing.assert_allclose(likelihood.variance(torch.zeros(1, 3))[0].numpy(), errors, rtol=1e-4)
    model.save(tmp_path / "model")
    loaded = GPPVAE.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(table).mean, model.predict(table).mean)
    assert loaded.score(values, table) == pytest.approx(model.score(values, table))
