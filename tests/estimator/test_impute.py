"""Missing values: encoders know of them, the log tells of them, impute() fills them in."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from gppvae import GPPVAE, VAE
from gppvae.estimator.impute import Imputation
from tiny import KERNEL, spots

QUICK = {"latent_dim": 4, "network": "mlp", "width": 32, "missing": "mask", "seed": 0}


def with_gaps(images: np.ndarray, share: float = 0.3, seed: int = 0) -> np.ndarray:
    gaps = np.random.default_rng(seed).random(images.shape) < share
    return np.where(gaps, np.float32(np.nan), images)


def parts() -> tuple[np.ndarray, pd.DataFrame, np.ndarray, pd.DataFrame]:
    """Images and table to train on, and those at two angles that are not."""
    images, table = spots(8, 12)
    new = table["angle"].isin([90.0, 210.0]).to_numpy()
    return images[~new], table[~new].reset_index(drop=True), images[new], table[new].reset_index(drop=True)


@pytest.fixture(scope="module")
def fitted() -> GPPVAE:
    images, table, _, _ = parts()
    return GPPVAE(KERNEL, epochs=60, lr=3e-3, **QUICK).fit(with_gaps(images), table, progress=False)


@pytest.fixture(scope="module")
def waves() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Vectors of six values over time; the last three have errors that the first three share, in part."""
    rng = np.random.default_rng(0)
    time = np.linspace(0.0, 12.0, 240)
    shared = rng.normal(size=(240, 3))
    errors = np.concatenate([shared, 0.9 * shared + 0.3 * rng.normal(size=(240, 3))], axis=1)
    samples = np.sin(time)[:, None] * np.linspace(0.5, 1.5, 6) + 0.5 * errors
    return samples.astype(np.float32), {"time": time}


@pytest.fixture(scope="module")
def of_waves(waves: tuple[np.ndarray, dict[str, np.ndarray]]) -> GPPVAE:
    samples, table = waves
    train = np.arange(240) % 4 != 0
    settings = {"inference": "global", "network": "mlp", "width": 16, "epochs": 30, "lr": 3e-3, "seed": 0}
    model = GPPVAE("RBF(time)", 2, pixel_var=None, **settings)
    return model.fit(samples[train], {"time": table["time"][train]}, progress=False)


def errors_at_gaps(truth: np.ndarray, gaps: np.ndarray, *answers: np.ndarray) -> list[float]:
    return [float(np.square(answer - truth)[gaps].mean()) for answer in answers]


# -- the encoder


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_the_encoder_tells_a_missing_value_from_zero(network: str) -> None:
    images, table = spots(2, 4)
    images[:, 0, 0] = 0.0
    model = GPPVAE(KERNEL, 2, network=network, width=4, missing="mask", epochs=1)
    model.fit(with_gaps(images), table, progress=False)
    missing = images.copy()
    missing[:, 0, 0] = np.nan
    assert np.abs(model.encode(images) - model.encode(missing)).max() > 1e-6
    missing[:, 1, 1], images[:, 1, 1] = np.nan, 7.0
    other = images.copy()
    other[:, 1, 1] = np.nan
    other[:, 0, 0] = np.nan
    np.testing.assert_array_equal(model.encode(missing), model.encode(other))  # what hides below a gap does not matter


def test_without_missing_values_the_encoder_is_the_plain_one() -> None:
    images, table = spots(2, 4)
    models = [GPPVAE(KERNEL, 2, network="mlp", epochs=1, missing=missing) for missing in ("error", "mask")]
    sizes = [
        {name: value.shape for name, value in model.fit(images, table, progress=False).model_.state_dict().items()}
        for model in models
    ]
    assert sizes[0] == sizes[1]


def test_a_plain_vae_knows_of_missing_values_too(tmp_path: Path) -> None:
    images, _ = spots(2, 4)
    gaps = with_gaps(images)
    model = VAE(2, network="mlp", width=4, missing="mask", epochs=1).fit(gaps, progress=False)
    assert np.abs(model.encode(gaps) - model.encode(np.nan_to_num(gaps))).max() > 1e-6
    model.save(tmp_path / "vae")
    np.testing.assert_array_equal(VAE.load(tmp_path / "vae").encode(gaps), model.encode(gaps))


# -- the log


def test_missing_values_are_counted_and_lost_ones_told(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(10, 4)).astype(np.float32)
    samples[:, 2] = np.nan
    samples[[3, 7]] = np.nan
    samples[0, 0] = np.nan
    with caplog.at_level(logging.INFO, logger="gppvae"):
        GPPVAE("RBF(time)", 2, width=4, epochs=1, missing="mask").fit(
            samples, {"time": np.arange(10.0)}, progress=False
        )
    told = [record.getMessage() for record in caplog.records]
    assert "17 of 40 values are missing (42.5%); the encoder sees which" in told
    assert "1 value is missing in every sample (number 2); predictions there mean nothing" in told
    assert "2 samples have no observed value (the first is number 3)" in told


def test_a_named_value_that_is_missing_everywhere_is_told_by_name(caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"gene_a": np.arange(10.0), "gene_b": np.nan})
    GPPVAE("RBF(time)", 2, width=4, epochs=1, missing="mask").fit(frame, {"time": np.arange(10.0)}, progress=False)
    told = [record.getMessage() for record in caplog.records]
    assert "1 value is missing in every sample ('gene_b'); predictions there mean nothing" in told


@pytest.mark.parametrize("channels", ["first", "last"])
def test_a_channel_that_is_missing_everywhere_is_found_in_either_order(
    channels: str, caplog: pytest.LogCaptureFixture
) -> None:
    images = np.random.default_rng(0).random((6, 3, 8, 8)).astype(np.float32)
    images[:, 1] = np.nan
    given = images if channels == "first" else np.moveaxis(images, 1, -1)
    VAE(2, network="mlp", width=4, missing="mask", channels=channels, epochs=1).fit(given, progress=False)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "1 channel is missing in every sample (number 1); predictions there mean nothing"
    ]


# -- impute


def check_form(found: Imputation, samples: np.ndarray, n_draws: int) -> None:
    gaps = np.isnan(samples)
    assert found.mean.shape == found.std.shape == samples.shape and np.isfinite(found.mean).all()
    np.testing.assert_array_equal(found.mean[~gaps], samples[~gaps])
    assert (found.std[~gaps] == 0.0).all() and (found.std[gaps] > 0.0).all()
    assert found.draws is not None and found.draws.shape == (n_draws, *samples.shape)
    np.testing.assert_array_equal(found.draws[:, ~gaps], np.broadcast_to(samples[~gaps], (n_draws, (~gaps).sum())))
    spread = found.draws.std(0, ddof=1)[gaps] / found.std[gaps]
    assert 0.8 < np.sqrt(np.mean(spread**2)) < 1.25


@pytest.mark.parametrize("what", ["training", "new"])
def test_images_are_filled_no_worse_than_by_row_or_by_sample_alone(fitted: GPPVAE, what: str) -> None:
    images, table, new, new_table = parts()
    truth, rows = (images, table) if what == "training" else (new, new_table)
    errors = []
    for seed in range(3):
        gaps = with_gaps(truth, 0.4, seed=seed)
        found = fitted.impute(gaps, rows, n_samples=64 if seed == 0 else 0)
        if seed == 0:
            check_form(found, gaps, 64)
        answers = found.mean, fitted.predict(rows).mean, fitted.reconstruct(gaps)
        errors.append(errors_at_gaps(truth, np.isnan(gaps), *answers))
    imputed, predicted, reconstructed = np.mean(errors, axis=0)
    assert imputed <= 1.02 * min(predicted, reconstructed)


def test_intervals_hold_their_share_of_missing_values_and_are_points_where_observed(
    of_waves: GPPVAE, waves: tuple[np.ndarray, dict[str, np.ndarray]]
) -> None:
    samples, table = waves
    new = np.arange(0, 240, 4)
    truth, rows = samples[new], {"time": table["time"][new]}
    missing = np.zeros(truth.shape, dtype=bool)
    missing[:, 3:] = True
    found = of_waves.impute(np.where(missing, np.nan, truth), rows)
    for level in (0.5, 0.9):
        low, high = found.interval(level)
        np.testing.assert_array_equal(low[~missing], truth[~missing])
        np.testing.assert_array_equal(high[~missing], truth[~missing])
        width = stats.norm.ppf(0.5 + level / 2) * found.std
        np.testing.assert_allclose(high - found.mean, width, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.mean - low, width, rtol=1e-4, atol=1e-6)
        assert np.mean((low <= truth) & (truth <= high), where=missing) == pytest.approx(level, abs=0.1)
    with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
        found.interval(90)


def test_intervals_of_missing_probabilities_end_at_zero_and_one() -> None:
    images, table, new, new_table = parts()
    images, new = (np.clip(part, 0.0, 1.0) for part in (images, new))
    model = GPPVAE(KERNEL, likelihood="bernoulli", epochs=3, **QUICK).fit(images, table, progress=False)
    found = model.impute(with_gaps(new), new_table)
    assert (found.mean + 1.96 * found.std).max() > 1.0 and (found.mean - 1.96 * found.std).min() < 0.0
    low, high = found.interval(0.95)
    assert low.min() == 0.0 and high.max() == 1.0


def test_the_same_side_missing_everywhere_is_no_worse_than_the_prediction(fitted: GPPVAE) -> None:
    _, _, truth, rows = parts()
    gaps = truth.copy()
    gaps[:, :, :5] = np.nan
    answers = fitted.impute(gaps, rows).mean, fitted.predict(rows).mean
    imputed, predicted = errors_at_gaps(truth, np.isnan(gaps), *answers)
    assert imputed <= 1.03 * predicted


def test_errors_that_values_share_are_used(of_waves: GPPVAE, waves: tuple[np.ndarray, dict[str, np.ndarray]]) -> None:
    samples, table = waves
    new = np.arange(0, 240, 4)
    truth, rows = samples[new], {"time": table["time"][new]}
    gaps = truth.copy()
    gaps[:, 3:] = np.nan
    found = of_waves.impute(gaps, rows, n_samples=64)  # fitted with missing="error"
    check_form(found, gaps, 64)
    answers = found.mean, of_waves.predict(rows).mean
    imputed, predicted = errors_at_gaps(truth, np.isnan(gaps), *answers)
    assert imputed < 0.3 * predicted  # by the true covariance 0.1, with the sine known
    distance = (truth - found.mean)[:, 3:] / found.std[:, 3:]
    assert 0.8 < np.sqrt(np.mean(distance**2)) < 1.3
    bare = of_waves.impute(gaps, rows, include_noise=False)
    assert (bare.std[:, 3:] < found.std[:, 3:]).all()


def test_errors_that_values_share_are_learned_from_training_where_held_out_rows_show_no_pairs(
    waves: tuple[np.ndarray, dict[str, np.ndarray]],
) -> None:
    samples, table = waves
    rows = {name: np.arange(240) % 8 == place for name, place in (("validated", 4), ("new", 0))}
    train = ~(rows["validated"] | rows["new"])
    of = {name: {"time": table["time"][own]} for name, own in (rows | {"train": train}).items()}
    single = np.where(np.arange(6) == np.arange(30)[:, None] % 6, samples[rows["validated"]], np.nan)
    settings = {"inference": "global", "network": "mlp", "width": 16, "epochs": 30, "lr": 3e-3, "seed": 0}
    model = GPPVAE("RBF(time)", 2, pixel_var=None, missing="mask", **settings)
    model.fit(samples[train], of["train"], validation=(single, of["validated"]), progress=False)
    gaps = samples[rows["new"]].copy()
    gaps[:, 3:] = np.nan
    answers = model.impute(gaps, of["new"]).mean, model.predict(of["new"]).mean
    imputed, predicted = errors_at_gaps(samples[rows["new"]], np.isnan(gaps), *answers)
    assert imputed < 0.2 * predicted  # without: 0.34


def test_a_saved_model_imputes_the_same_and_files_hold_it(
    of_waves: GPPVAE, fitted: GPPVAE, waves: tuple[np.ndarray, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    images, table, _, _ = parts()
    for number, (model, samples, rows) in enumerate([(of_waves, *waves), (fitted, images, table)]):
        model.save(tmp_path / f"run{number}")
        gaps = with_gaps(samples)
        want = model.impute(gaps, rows, n_samples=2)
        found = GPPVAE.load(tmp_path / f"run{number}").impute(gaps, rows, n_samples=2, out=tmp_path / f"out{number}")
        for name in ("mean", "std", "draws"):
            np.testing.assert_array_equal(getattr(found, name), getattr(want, name))
            assert (tmp_path / f"out{number}" / f"{name}.npy").exists()
        assert model.impute(gaps, rows, n_samples=1, seed=5).draws is not None


def test_a_damaged_covariance_is_refused(of_waves: GPPVAE, tmp_path: Path) -> None:
    before = of_waves.value_noise_
    assert before is not None
    of_waves.value_noise_ = -before
    of_waves.save(tmp_path / "run")
    of_waves.value_noise_ = before
    with pytest.raises(ValueError, match=r"damaged.*covariance of the noise of values is not positive definite"):
        GPPVAE.load(tmp_path / "run")


def test_rows_and_samples_must_match(fitted: GPPVAE) -> None:
    images, table, _, _ = parts()
    with pytest.raises(ValueError, match="expected one table row per sample, got 3 samples and 80 rows"):
        fitted.impute(images[:3], table)
    with pytest.raises(ValueError, match="n_samples must be a whole number of at least 0, got -1"):
        fitted.impute(images, table, n_samples=-1)


def test_slopes_of_few_rows_at_a_time_give_the_same(fitted: GPPVAE, monkeypatch: pytest.MonkeyPatch) -> None:
    images, table, _, _ = parts()
    gaps = with_gaps(images)
    want = fitted.impute(gaps, table)
    monkeypatch.setattr("gppvae.estimator.impute.ROWS_AT_ONCE", 7)
    torch.testing.assert_close(
        torch.from_numpy(fitted.impute(gaps, table).mean), torch.from_numpy(want.mean), atol=1e-5, rtol=0
    )
