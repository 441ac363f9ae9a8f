"""The estimators on a problem of 60 small images, for every way to fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import gppvae.prior.layout
from gppvae import GPPVAE, RBF, VAE, Callback, Learned, Periodic, Phase
from gppvae.estimator.base import NotFittedError
from gppvae.estimator.settings import settings_of
from tiny import KERNEL, SIZE, held_out, spots

INFERENCES = ("exact", "minibatch", "posterior", "global", "leave_out")
SMALL: dict[str, Any] = {"latent_dim": 3, "network": "mlp", "batch_size": 16, "pixel_var": 0.02}
LENGTHS: dict[str, dict[str, Any]] = {
    "exact": {"warmup_epochs": 40, "gp_epochs": 100, "epochs": 40, "lr": 3e-3},
    "minibatch": {"warmup_epochs": 40, "gp_epochs": 100, "epochs": 40, "lr": 3e-3},
    "posterior": {"warmup_epochs": 40, "gp_epochs": 100, "epochs": 40, "lr": 3e-3},
    "global": {"epochs": 100, "lr": 3e-3, "prior_lr": 3e-2},
    "leave_out": {"epochs": 80, "lr": 3e-3, "prior_lr": 3e-2},
}


def make(inference: str = "global", **settings: Any) -> GPPVAE:
    return GPPVAE(KERNEL, **(SMALL | {"inference": inference} | LENGTHS[inference] | settings))


@pytest.fixture(scope="module", params=INFERENCES)
def fitted(request: pytest.FixtureRequest) -> GPPVAE:
    images, table, _, _ = held_out()
    return make(request.param).fit(images, table, progress=False)


@pytest.fixture(scope="module")
def quick() -> GPPVAE:
    images, table, _, _ = held_out()
    return make("global").fit(images, table, progress=False)


# -- fit, predict, encode, reconstruct, score


def test_it_predicts_an_angle_it_never_saw(fitted: GPPVAE) -> None:
    images, _, wanted_images, wanted = held_out()
    found = fitted.predict(wanted)
    assert found.mean.shape == (5, SIZE, SIZE) and found.std is None
    error = np.mean((found.mean - wanted_images) ** 2)
    assert error < 0.5 * np.mean((images.mean(0) - wanted_images) ** 2)


@pytest.mark.parametrize("kernel", [KERNEL, "Periodic(angle, 360) * Learned(spot, 3)"])
@pytest.mark.parametrize(("n_objects", "n_views", "split"), [(5, 12, "spot (id)"), (12, 8, "angle")])
def test_it_predicts_training_rows_whichever_column_is_kept_apart(
    monkeypatch: pytest.MonkeyPatch, kernel: str, n_objects: int, n_views: int, split: str
) -> None:
    monkeypatch.setattr(gppvae.prior.layout, "SMALL_PRODUCT", 0.0)  # else a kernel this small is not split
    images, table = spots(n_objects, n_views)
    settings = SMALL | {"inference": "global", "epochs": 60, "lr": 3e-3, "prior_lr": 3e-2}
    model = GPPVAE(kernel, **settings).fit(images, table, progress=False)
    assert model.prior_.groups[0].layout.split == split
    assert np.mean((model.predict(table).mean - images) ** 2) < 0.3 * images.var(0).mean()


def test_it_encodes_and_reconstructs(fitted: GPPVAE) -> None:
    images, _, _, _ = held_out()
    mean, std = fitted.encode(images, return_std=True)
    assert mean.shape == std.shape == (55, 3)
    assert (std > 0).all()
    np.testing.assert_array_equal(fitted.encode(images), mean)
    error = np.mean((fitted.reconstruct(images) - images) ** 2)
    assert error < 0.5 * images.var()


def test_the_score_prefers_the_right_rows(fitted: GPPVAE) -> None:
    images, table, _, _ = held_out()
    turned = table.assign(angle=(table["angle"] + 180.0) % 360.0)
    right, wrong = fitted.score(images, table), fitted.score(images, turned)
    assert np.isfinite(right)
    assert right > wrong


def test_a_saved_model_answers_the_same(fitted: GPPVAE, tmp_path: Path) -> None:
    images, table, _, wanted = held_out()
    fitted.save(tmp_path / "model")
    loaded = GPPVAE.load(tmp_path / "model")
    assert settings_of(loaded) == settings_of(fitted) and loaded.resolved_ == fitted.resolved_
    assert loaded.history_ == fitted.history_
    np.testing.assert_array_equal(loaded.predict(wanted).mean, fitted.predict(wanted).mean)
    ours, theirs = (m.predict(wanted, n_samples=3, include_noise=True) for m in (loaded, fitted))
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(ours.std, theirs.std)
    np.testing.assert_array_equal(loaded.encode(images), fitted.encode(images))
    assert loaded.score(images, table) == fitted.score(images, table)


def test_moments_of_predictions_are_those_of_samples(fitted: GPPVAE) -> None:
    wanted = {"spot": ["s0", "s3"], "angle": [90.0, 10.0]}
    n = 1600  # values of a draw move together, so its spread is known as well as that of few values
    predicted, drawn = fitted.predict(wanted, n_samples=n, seed=1), fitted.sample(wanted, n_samples=n, seed=2)
    assert drawn.shape == (n, 2, SIZE, SIZE)
    assert predicted.std is not None
    standard_error = np.sqrt((predicted.std**2 + drawn.var(0)) / n)
    assert (np.abs(predicted.mean - drawn.mean(0)) < 5.5 * standard_error + 1e-5).all()
    ratio = drawn.std(0, ddof=1) / predicted.std
    assert np.abs(np.median(ratio) - 1.0) < 0.06
    np.testing.assert_array_equal(predicted.mean, fitted.predict(wanted, n_samples=n, seed=1).mean)
    assert not np.array_equal(predicted.mean, fitted.predict(wanted, n_samples=n, seed=3).mean)


def test_noise_widens_the_std_and_leaves_the_mean(fitted: GPPVAE) -> None:
    _, _, _, wanted = held_out()
    plain, noisy = (fitted.predict(wanted, n_samples=8, include_noise=flag) for flag in (False, True))
    assert plain.std is not None and noisy.std is not None
    np.testing.assert_array_equal(plain.mean, noisy.mean)
    assert (noisy.std >= plain.std).all()
    measured, fitted.calibration_ = fitted.calibration_, None  # errors may be smaller than the noise that was given
    given = fitted.predict(wanted, n_samples=8, include_noise=True)
    fitted.calibration_ = measured
    np.testing.assert_allclose(given.std, np.sqrt(plain.std**2 + 0.02), rtol=1e-3)


# -- the prior


def dense_prior_variance(model: GPPVAE, table: pd.DataFrame) -> np.ndarray:
    """k(row, row) + alpha, written out for Learned * (stationary of unit variance)."""
    leaf = model.kernel_.leaves()[0]  # type: ignore[union-attr]
    vectors = dict(zip(leaf.levels, leaf.vectors().detach().numpy(), strict=True))  # type: ignore[attr-defined]
    alpha = float(model.prior_.groups[0].alpha.detach())  # type: ignore[union-attr]
    return np.array([vectors[str(name)] @ vectors[str(name)] + alpha for name in table["spot"]])


@pytest.mark.parametrize("inference", INFERENCES)
def test_far_from_the_data_predictions_fall_back_to_the_prior(inference: str) -> None:
    images, table = spots()
    lengths = {"epochs": 5} | ({} if inference == "global" else {"warmup_epochs": 5, "gp_epochs": 5})
    kernel = Learned("spot", 3) * RBF("angle", lengthscale=60.0)
    model = GPPVAE(kernel, **(SMALL | {"inference": inference} | lengths)).fit(images, table, progress=False)
    far = pd.DataFrame({"spot": ["s1", "s4"], "angle": [1e5, -3e4]})
    mean, var = model.predict_latent(far)
    np.testing.assert_allclose(mean, 0.0, atol=1e-8)
    np.testing.assert_allclose(var, np.repeat(dense_prior_variance(model, far)[:, None], 3, axis=1), rtol=1e-6)
    near_var = model.predict_latent(table)[1]
    assert (near_var < dense_prior_variance(model, table)[:, None] * (1 + 1e-9)).all()


def test_samples_of_the_prior_know_no_data(quick: GPPVAE) -> None:
    _, _, wanted_images, wanted = held_out()
    prior = quick.sample(wanted, n_samples=300, prior=True, seed=0)
    posterior = quick.sample(wanted, n_samples=300, seed=0)
    assert prior.shape == posterior.shape == (300, 5, SIZE, SIZE)
    prior_error = np.mean((prior.mean(0) - wanted_images) ** 2)
    assert np.mean((posterior.mean(0) - wanted_images) ** 2) < 0.5 * prior_error
    assert prior.std(0).mean() > 2.0 * posterior.std(0).mean()


def test_one_sample_is_one_function_over_the_rows(quick: GPPVAE) -> None:
    twice = {"spot": ["s2", "s2"], "angle": [40.0, 40.0 + 360.0]}
    drawn = quick.sample(twice, n_samples=50, prior=True, seed=4)
    same_row = np.mean((drawn[:, 0] - drawn[:, 1]) ** 2)
    other_draw = np.mean((drawn[:-1, 0] - drawn[1:, 0]) ** 2)
    assert same_row < 0.2 * other_draw


# -- what goes in


def test_tables_may_be_frames_or_dicts_and_ids_of_any_type() -> None:
    images, table, _, wanted = held_out()
    settings = {"epochs": 3}
    frame = make(**settings).fit(images, table, progress=False).predict(wanted).mean
    columns = {name: table[name].tolist() for name in table}
    as_dict = make(**settings).fit(images, columns, progress=False)
    np.testing.assert_array_equal(as_dict.predict({n: wanted[n].to_numpy() for n in wanted}).mean, frame)
    numbers = table.assign(spot=table["spot"].str[1:].astype(int))
    by_number = make(**settings).fit(images, numbers, progress=False)
    wanted_floats = wanted.assign(spot=wanted["spot"].str[1:].astype(float))
    np.testing.assert_array_equal(by_number.predict(wanted_floats).mean, frame)


def test_bytes_with_channels_last_are_scaled_and_turned() -> None:
    images, table, _, wanted = held_out()
    grey = np.round(images * 255).astype(np.uint8)
    colour = np.stack([grey, grey // 2, 255 - grey], axis=-1)  # (N, 8, 8, 3)
    model = make(epochs=3, channels="last").fit(colour, table, progress=False)
    first = np.moveaxis(colour.astype(np.float32) / 255, -1, 1)
    expected = make(epochs=3).fit(first, table, progress=False).predict(wanted).mean
    assert model.shape_ == (3, SIZE, SIZE)
    np.testing.assert_allclose(model.predict(wanted).mean, np.moveaxis(expected, 1, -1), atol=1e-4)
    np.testing.assert_allclose(model.encode(colour), model.encode(colour[:]), atol=0)


def test_a_memory_map_gives_what_the_array_gives(tmp_path: Path) -> None:
    images, table, _, wanted = held_out()
    np.save(tmp_path / "a.npy", images)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    from_map = make(epochs=3).fit(mapped, table, progress=False).predict(wanted).mean
    np.testing.assert_array_equal(from_map, make(epochs=3).fit(images, table, progress=False).predict(wanted).mean)


def test_a_tensor_and_a_list_are_arrays_too() -> None:
    images, table, _, wanted = held_out()
    flat = images.reshape(len(images), -1)
    expected = make(epochs=2).fit(flat, table, progress=False).predict(wanted).mean
    assert expected.shape == (5, 64)
    for other in (torch.from_numpy(flat), flat.tolist()):
        np.testing.assert_array_equal(make(epochs=2).fit(other, table, progress=False).predict(wanted).mean, expected)


def test_missing_values_are_not_observed() -> None:
    images, table, wanted_images, wanted = held_out()
    holes = images.copy()
    holes[np.random.default_rng(0).random(holes.shape) < 0.3] = np.nan
    with pytest.raises(ValueError, match="missing='mask'"):
        make(epochs=2).fit(holes, table, progress=False)
    model = make(missing="mask").fit(holes, table, progress=False)
    error = np.mean((model.predict(wanted).mean - wanted_images) ** 2)
    assert error < 0.5 * np.mean((images.mean(0) - wanted_images) ** 2)


def test_the_kernel_as_an_expression_is_the_kernel_as_text() -> None:
    images, table, _, wanted = held_out()
    kernel = Learned("spot", dim=3) * Periodic("angle", period=360)
    settings = SMALL | {"inference": "global"} | LENGTHS["global"] | {"epochs": 3}
    ours = GPPVAE(kernel, **settings).fit(images, table, progress=False).predict(wanted).mean
    np.testing.assert_array_equal(ours, make(epochs=3).fit(images, table, progress=False).predict(wanted).mean)


def test_phases_replace_the_plan() -> None:
    images, table, _, _ = held_out()
    phases = [Phase("mine", "vae", 2, {"encoder": 1e-3, "decoder": 1e-3}), Phase("gp", "fixed", 1, {"prior": 1e-2})]
    model = make(phases=phases).fit(images, table, progress=False)
    assert [(row["phase"], row["epoch"]) for row in model.history_] == [("mine", 1), ("mine", 2), ("gp", 1)]


def test_validation_is_logged_and_not_trained_on() -> None:
    images, table, wanted_images, wanted = held_out()
    plain = make(epochs=6).fit(images, table, progress=False)
    model = make(epochs=6, validate_every=2).fit(images, table, validation=(wanted_images, wanted), progress=False)
    logged = [row["valid_mse_prediction"] for row in model.history_ if "valid_mse_prediction" in row]
    assert len(logged) == 3
    error = np.mean((model.predict(wanted).mean - wanted_images) ** 2)
    assert logged[-1] == pytest.approx(error, rel=1e-4)
    np.testing.assert_array_equal(model.predict(wanted).mean, plain.predict(wanted).mean)


# -- own networks


class OwnEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE * SIZE, 4)

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(y.flatten(1))
        return out[:, :2], out[:, 2:]


class OwnDecoder(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, SIZE * SIZE))

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z).unflatten(1, (1, SIZE, SIZE))


def test_own_networks_are_used_and_needed_to_load(tmp_path: Path) -> None:
    images, table, _, wanted = held_out()
    own = {"encoder": OwnEncoder(), "decoder": OwnDecoder()}
    model = make(latent_dim=2, epochs=3, **own).fit(images, table, progress=False)
    fitted = model.model_.autoencoder.decoder
    assert isinstance(fitted, OwnDecoder) and fitted is not own["decoder"]  # the one given stays as it was
    model.save(tmp_path)
    with pytest.raises(ValueError, match="pass encoder= and decoder="):
        GPPVAE.load(tmp_path)
    loaded = GPPVAE.load(tmp_path, encoder=OwnEncoder(), decoder=OwnDecoder())
    np.testing.assert_array_equal(loaded.predict(wanted).mean, model.predict(wanted).mean)
    with pytest.raises(ValueError, match="the networks do not fit the weights"):
        GPPVAE.load(tmp_path, encoder=OwnEncoder(), decoder=OwnDecoder(hidden=9))


def test_networks_that_do_not_fit_are_told_before_training() -> None:
    images, table, _, _ = held_out()
    with pytest.raises(ValueError, match=r"mean must have shape \(batch, 3\), got \(2, 2\)"):
        make(encoder=OwnEncoder(), decoder=OwnDecoder()).fit(images, table, progress=False)
    with pytest.raises(ValueError, match="only one of them"):
        make(encoder=OwnEncoder()).fit(images, table, progress=False)


# -- what is refused


def test_questions_before_fit_are_refused() -> None:
    for ask in (lambda m: m.predict({"spot": ["s0"], "angle": [0.0]}), lambda m: m.encode(spots()[0])):
        with pytest.raises(NotFittedError, match=r"call fit\(\) or load\(\) first"):
            ask(make())
    with pytest.raises(NotFittedError):
        VAE().encode(spots()[0])


def test_unknown_ids_and_other_shapes_are_refused(quick: GPPVAE) -> None:
    with pytest.raises(ValueError, match=r"known from training \(5 of them\), got 's9'; .*add_objects"):
        quick.predict({"spot": ["s9"], "angle": [0.0]})
    with pytest.raises(ValueError, match=r"shape \(1, 8, 8\) as in training, got \(1, 9, 9\)"):
        quick.encode(np.zeros((2, 9, 9)))
    with pytest.raises(ValueError, match="n_samples must be a whole number of at least 0, got -1"):
        quick.predict({"spot": ["s0"], "angle": [0.0]}, n_samples=-1)
    with pytest.raises(ValueError, match="expected 0 draws or at least 2, since one has no std, got n_samples=1"):
        quick.predict({"spot": ["s0"], "angle": [0.0]}, n_samples=1)


def test_no_rows_give_no_predictions(quick: GPPVAE) -> None:
    nothing = {"spot": np.array([], dtype=str), "angle": np.array([])}
    assert quick.predict(nothing).mean.shape == (0, SIZE, SIZE)
    assert quick.sample(nothing, n_samples=2).shape == (2, 0, SIZE, SIZE)


# -- the plain VAE


def test_the_vae_learns_saves_and_samples(tmp_path: Path) -> None:
    images, _ = spots()
    model = VAE(3, network="mlp", epochs=60, batch_size=16, pixel_var=0.02)
    model.fit(images, validation=images[:8], out=tmp_path, progress=False)
    assert np.mean((model.reconstruct(images) - images) ** 2) < 0.5 * images.var()
    loaded = VAE.load(tmp_path)
    np.testing.assert_array_equal(loaded.encode(images), model.encode(images))
    assert loaded.score(images) == model.score(images)
    assert loaded.score(images) > VAE(3, network="mlp", epochs=0).fit(images, progress=False).score(images)
    np.testing.assert_array_equal(loaded.sample(4, seed=1), model.sample(4, seed=1))
    assert model.sample(4).shape == (4, SIZE, SIZE)
    with pytest.raises(ValueError, match=r"expected a gppvae model in .*, got a vae model"):
        GPPVAE.load(tmp_path)


def test_a_vae_ends_with_the_average_of_its_weights(tmp_path: Path) -> None:
    images, _, _, _ = held_out()

    def weights(**settings: Any) -> dict[str, Tensor]:
        model = VAE(3, network="mlp", epochs=1, batch_size=len(images), **settings)
        model.fit(images, progress=False).save(tmp_path / "vae")
        return VAE.load(tmp_path / "vae")._autoencoder.state_dict()

    # One step: the average is what the first step's decay of 1 / 10 leaves of the start.
    start = VAE(3, network="mlp", epochs=0).fit(images, progress=False)._autoencoder.state_dict()
    last, averaged = weights(), weights(average=0.9)
    for name, value in averaged.items():
        torch.testing.assert_close(value, 0.1 * start[name] + 0.9 * last[name])
    assert not torch.equal(averaged["decoder.layers.0.weight"], last["decoder.layers.0.weight"])


class StopsInLast(Callback):
    """Ctrl-C in the first epoch of the last phase, when the trial with held-out rows is over."""

    def on_epoch(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        if phase in ("leave_out", "vae"):
            raise KeyboardInterrupt


def test_a_fit_that_was_stopped_leaves_no_half_model() -> None:
    images, table = spots()
    model = GPPVAE(KERNEL, 3, network="mlp", width=8, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(images, table, progress=False, callbacks=[StopsInLast()])
    assert repr(model) == repr(GPPVAE(KERNEL, 3, network="mlp", width=8, epochs=2))
    with pytest.raises(NotFittedError):
        model.predict(table)
    with pytest.raises(NotFittedError):
        model.save("never")


def test_a_fit_that_fails_leaves_the_earlier_one_as_it_was(tmp_path: Path) -> None:
    images, table = spots()
    model = GPPVAE(KERNEL, 3, network="mlp", width=8, epochs=2).fit(images, table, progress=False)
    vae = VAE(2, network="mlp", width=8, epochs=1).fit(images, progress=False)
    shown, mean, codes = repr(model), model.predict(table).mean, vae.encode(images)
    with pytest.raises(ValueError, match="must be numeric"):
        model.fit(images[:, :4], table.assign(angle="x"), progress=False)
    with pytest.raises(KeyboardInterrupt):
        model.fit(2.0 * images, table, progress=False, callbacks=[StopsInLast()])
    with pytest.raises(KeyboardInterrupt):
        vae.fit(images[:, :4], progress=False, callbacks=[StopsInLast()])
    assert repr(model) == shown
    np.testing.assert_array_equal(model.predict(table).mean, mean)
    np.testing.assert_array_equal(vae.encode(images), codes)
    model.save(tmp_path)
    np.testing.assert_array_equal(GPPVAE.load(tmp_path).predict(table).mean, mean)
