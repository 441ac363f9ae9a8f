"""Objects added to a fitted estimator: predictable, uncertain, replaceable, kept by save, and harmless to the rest."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from gppvae import GPPVAE
from gppvae.estimator import new_objects
from gppvae.kernels import Learned
from gppvae.models.objects import learned_by_column
from gppvae.models.remainders import Remainders
from tiny import KERNEL, SIZE, spots

SETTINGS: dict[str, Any] = {
    "latent_dim": 3, "network": "mlp", "batch_size": 16, "pixel_var": 0.005, "alpha": 1e-4, "inference": "global",
    "epochs": 80, "lr": 3e-3, "prior_lr": 3e-2,
}  # fmt: skip
NEW = "s7"  # of nine spots, trained on the other eight


def data() -> tuple[np.ndarray, pd.DataFrame]:
    images, table = spots(9, 12)
    return images, table.assign(place=np.where(np.arange(len(table)) % 2, "east", "west"))


def trained_rows(table: pd.DataFrame) -> np.ndarray:
    return (table["spot"] != NEW).to_numpy()


def fit(kernel: str = KERNEL, **settings: Any) -> GPPVAE:
    images, table = data()
    known = trained_rows(table)
    return GPPVAE(kernel, **(SETTINGS | settings)).fit(images[known], table[known], progress=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    fit().save(folder)
    return folder


@pytest.fixture
def model(saved: Path) -> GPPVAE:
    """A fitted model of its own for every test."""
    return GPPVAE.load(saved)


@pytest.fixture
def unsure(model: GPPVAE) -> GPPVAE:
    """The model as if its samples were noisy, so that one view says little about an object."""
    assert model.calibration_ is not None
    model.calibration_ = dataclasses.replace(model.calibration_, error_var=0.3)
    return model


def views(n: int) -> tuple[np.ndarray, pd.DataFrame]:
    """The first n of the new spot's views in an order that goes around the circle."""
    images, table = data()
    mine = np.flatnonzero(~trained_rows(table))[[0, 4, 8, 2, 6, 10, 1, 3, 5, 7, 9, 11][:n]]
    return images[mine], table.iloc[mine]


def state(model: GPPVAE) -> dict[str, Tensor]:
    assert model.model_ is not None and model.posterior_ is not None
    tensors = {**model.model_.state_dict(), **{f"q.{k}": v for k, v in model.posterior_.tensors().items()}}
    return {name: value.clone() for name, value in tensors.items()}


def leaves(model: GPPVAE) -> list[Learned]:
    assert model.model_ is not None
    return learned_by_column(model.prior_)["spot"]


def wanted(ids: list[str], angles: tuple[float, ...] = (30.0, 77.0, 210.0)) -> pd.DataFrame:
    return pd.DataFrame([(p, angle, "east") for p in ids for angle in angles], columns=["spot", "angle", "place"])


# -- what it is for


def test_a_new_object_is_predicted_at_views_it_was_not_given(model: GPPVAE) -> None:
    images, table = data()
    given_images, given = views(3)
    assert model.add_objects(given_images, given) == [NEW]
    mine = ~trained_rows(table) & ~table["angle"].isin(given["angle"]).to_numpy()
    found = model.predict(table[mine])
    error = np.mean((found.mean - images[mine]) ** 2)
    by_angle = [images[trained_rows(table) & (table["angle"] == a).to_numpy()].mean(0) for a in table["angle"][mine]]
    assert error < 0.5 * np.mean((np.array(by_angle) - images[mine]) ** 2)


def test_ids_of_any_type_and_several_objects_at_once(model: GPPVAE) -> None:
    images, table = spots(4, 12)
    named = table.assign(spot=table["spot"].map({"s0": 7, "s1": 11, "s2": 100, "s3": 3}))
    assert model.add_objects(images, named) == ["100", "11", "3", "7"]
    together = model.predict(named).mean
    for number in (3, 11):
        assert model.add_objects(images[named["spot"] == number], named[named["spot"] == number]) == [str(number)]
    np.testing.assert_allclose(model.predict(named.assign(spot=named["spot"].astype(float))).mean, together, atol=1e-4)


def test_views_never_seen_can_be_given_and_asked(model: GPPVAE) -> None:
    """A spot at angles between those of training is the same spot."""
    ys, xs = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2

    def spot(angle: float) -> np.ndarray:
        x0, y0 = 1.9 * np.cos(np.deg2rad(angle)), 1.9 * np.sin(np.deg2rad(angle))
        return np.exp(-((xs - x0) ** 2 + (ys - y0) ** 2) / (2 * 1.5**2)).astype(np.float32)

    angles = np.array([13.7, 100.1, 191.9, 285.3])
    model.add_objects(np.array([spot(a) for a in angles]), {"spot": ["x"] * 4, "angle": angles, "place": ["east"] * 4})
    asked = np.array([47.3, 141.2, 239.4 + 360.0, 331.8])
    found = model.predict({"spot": ["x"] * 4, "angle": asked, "place": ["east"] * 4}).mean
    truth = np.array([spot(a) for a in asked])
    assert np.mean((found - truth) ** 2) < 0.15 * np.mean((truth - truth.mean(0)) ** 2)


# -- uncertainty


def test_uncertainty_shrinks_as_views_are_added(unsure: GPPVAE) -> None:
    asked, before = wanted([NEW]), None
    for n in (1, 2, 4, 8, 12):
        unsure.add_objects(*views(n))
        (leaf,) = leaves(unsure)
        trace = float(leaf.added_root.square().sum())
        std = unsure.predict(asked, n_samples=200, seed=1).std
        variance = unsure.predict_latent(asked)[1]
        assert std is not None and (variance > 0).all()
        now = np.array([trace, variance.mean(), std.mean()])
        assert before is None or (now < before).all(), f"{n} views: {now}, before {before}"
        before = now


def test_latent_variance_has_that_of_the_vector(model: GPPVAE) -> None:
    """Var z = v'Sigma v + noise + A' Cov(x) A, with A by differences of predictions at moved vectors."""
    model.add_objects(*views(2))
    asked = wanted([NEW, "s0"])
    (leaf,) = leaves(model)
    with_x = model.predict_latent(asked)
    root, x = leaf.added_root.clone(), leaf.x.detach().clone()
    leaf.added_root.zero_()
    without = model.predict_latent(asked)
    np.testing.assert_array_equal(without[0], with_x[0])
    slopes = []
    for j in range(3):
        with torch.no_grad():
            leaf.x[-1, j] += 1.0
        slopes.append(model.predict_latent(asked)[0] - without[0])
        with torch.no_grad():
            leaf.x.copy_(x)
    A = np.stack(slopes, axis=1)  # (N, J, L)
    cov = (root[0] @ root[0].T).numpy()
    for n in range(len(asked)):
        for latent in range(3):
            a = A[n, :, latent]
            extra = with_x[1][n, latent] - without[1][n, latent]
            np.testing.assert_allclose(extra, a @ cov @ a if n < 3 else 0.0, rtol=1e-6, atol=1e-12)


def test_draws_vary_with_the_vector_and_only_for_added_objects(unsure: GPPVAE) -> None:
    asked = wanted([NEW, "s0", "s5"])
    before = unsure.predict(asked[3:], n_samples=300, seed=5)
    unsure.add_objects(*views(1))
    unsure.remainders_.kept.clear()  # the spread of the vector alone
    (leaf,) = leaves(unsure)
    uncertain = unsure.predict(asked, n_samples=300, seed=5).std
    leaf.added_root.mul_(1e-9)
    certain = unsure.predict(asked, n_samples=300, seed=5).std
    assert uncertain is not None and certain is not None and before.std is not None
    assert uncertain[:3].mean() > 1.5 * certain[:3].mean()
    np.testing.assert_allclose(uncertain[3:], certain[3:], rtol=0, atol=1e-6)
    assert uncertain[3:].mean() == pytest.approx(before.std.mean(), rel=0.1)


def test_draws_of_trained_objects_are_those_of_before(model: GPPVAE) -> None:
    asked = wanted(["s0", "s5"])
    before = model.predict(asked, n_samples=5, seed=5)
    model.add_objects(*views(2))
    after = model.predict(asked, n_samples=5, seed=5)
    np.testing.assert_array_equal(after.mean, before.mean)
    np.testing.assert_array_equal(after.std, before.std)


def test_one_draw_is_one_vector_however_many_rows(unsure: GPPVAE) -> None:
    """A draw is a whole function: in a long table its first and last rows show the same drawn object."""
    unsure.add_objects(*views(1))
    long = pd.DataFrame({"spot": NEW, "angle": 30.0, "place": "east"}, index=range(600))
    assert unsure.model_ is not None
    with torch.no_grad():
        unsure.prior_.groups[0].log_alpha.fill_(-60.0)  # no noise of the rows' own
    drawn = unsure.sample(long, n_samples=6)
    near, far = np.abs(drawn[:, 0] - drawn[:, 1]).max(), np.abs(drawn[:, 0] - drawn[:, 599]).max()
    assert np.abs(drawn[0, 0] - drawn[1, 0]).max() > 0.05
    assert near < 5e-3 and far < 5e-3


# -- what stays


def test_trained_parameters_stay_bit_for_bit(model: GPPVAE) -> None:
    before, asked = state(model), wanted(["s0", "s3"])
    predicted = model.predict(asked).mean
    model.add_objects(*views(4))
    after = state(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        kept = after[name][: len(value)] if name.endswith((".x", "added_root")) else after[name]
        assert torch.equal(kept, value), name
    assert [(leaf.n_added, leaf.levels[-1], len(leaf.levels)) for leaf in leaves(model)] == [(1, NEW, 9)]
    np.testing.assert_array_equal(model.predict(asked).mean, predicted)


def test_an_id_that_was_added_is_learned_anew(model: GPPVAE, saved: Path) -> None:
    model.add_objects(*views(1))
    model.add_objects(spots(2, 12)[0][12:], {"spot": ["other"] * 12, "angle": np.arange(12) * 30.0})
    other = model.predict(wanted(["other"])).mean
    first = model.predict(wanted([NEW])).mean
    assert model.add_objects(*views(6)) == [NEW]
    (leaf,) = leaves(model)
    assert leaf.levels[8:] == ["other", NEW] and leaf.n_added == 2 and leaf.x.shape == (10, 3)
    assert leaf.added_root.shape == (2, 3, 3)
    np.testing.assert_array_equal(model.predict(wanted(["other"])).mean, other)
    second = model.predict(wanted([NEW])).mean
    assert np.abs(second - first).max() > 1e-3
    fresh = GPPVAE.load(saved)
    fresh.add_objects(*views(6))
    np.testing.assert_array_equal(fresh.predict(wanted([NEW])).mean, second)


@pytest.mark.parametrize("kernel", [KERNEL, f"{KERNEL} + 0.5 * Learned(spot, 2)"])
def test_saving_keeps_added_objects(kernel: str, tmp_path: Path) -> None:
    model = fit(kernel, epochs=20)
    model.add_objects(*views(3))
    model.save(tmp_path)
    loaded, asked = GPPVAE.load(tmp_path), wanted([NEW, "s1"])
    np.testing.assert_array_equal(loaded.predict(asked).mean, model.predict(asked).mean)
    for noise in (False, True):
        ours = model.predict(asked, 20, include_noise=noise, seed=3)
        theirs = loaded.predict(asked, 20, include_noise=noise, seed=3)
        np.testing.assert_array_equal(theirs.mean, ours.mean)
        np.testing.assert_array_equal(theirs.std, ours.std)
    np.testing.assert_array_equal(loaded.predict_latent(asked)[1], model.predict_latent(asked)[1])
    assert [leaf.levels for leaf in leaves(loaded)] == [leaf.levels for leaf in leaves(model)]
    loaded.add_objects(*views(5))  # and can be added to as before
    model.add_objects(*views(5))
    np.testing.assert_array_equal(loaded.predict(asked).mean, model.predict(asked).mean)


# -- what is refused, and that nothing changes then


class Snapshot:
    """Everything add_objects may touch."""

    def __init__(self, model: GPPVAE) -> None:
        self.model, self.state, self.posterior = model, state(model), model.posterior_
        self.errors = {key: own.errors.clone() for key, own in model.remainders_.kept.items()}
        self.leaves = [(leaf, leaf.x, list(leaf.levels), leaf.n_added) for leaf in leaves(model)]

    def assert_unchanged(self) -> None:
        now = state(self.model)
        assert now.keys() == self.state.keys()
        assert all(torch.equal(now[name], value) for name, value in self.state.items())
        for leaf, x, levels, n_added in self.leaves:
            assert leaf.x is x and leaf.levels == levels and leaf.n_added == n_added
        errors = self.model.remainders_.kept
        assert self.model.posterior_ is self.posterior and errors.keys() == self.errors.keys()
        assert all(torch.equal(errors[key].errors, value) for key, value in self.errors.items())


def with_nan(images: np.ndarray) -> np.ndarray:
    images = images.copy()
    images[1, 2, 3] = np.nan
    return images


@pytest.mark.parametrize("added_before", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, t: (y, t.assign(spot="s2")), r"Learned or Categorical column .*'spot'.* got only ids from training"),
        (lambda y, t: (y, t.assign(spot=["s2", "n", "n", "n"])), "only new ids in column 'spot', got 's2'"),
        (lambda y, t: (y[:, :5], t), r"shape \(1, 8, 8\) as in training, got \(1, 5, 8\)"),
        (lambda y, t: (with_nan(y), t), "finite samples, got NaN or infinity in sample 1"),
        (lambda y, t: (y[:3], t), "one table row per sample, got 3 samples and 4 rows"),
        (lambda y, t: (y[:0], t[:0]), "at least one sample"),
        (lambda y, t: (y, t.drop(columns="angle")), "expected a column 'angle'"),
        (lambda y, t: (y, t.assign(angle=[0.0, 1.0, np.nan, 2.0])), "column 'angle' must be finite"),
        (lambda y, t: (y, t.assign(spot=["n", None, "n", "n"])), "column 'spot' must name an id in every row"),
    ],
)  # fmt: skip
def test_bad_input_is_told_and_changes_nothing(model: GPPVAE, change: Any, message: str, added_before: bool) -> None:
    if added_before:
        model.add_objects(*views(2))
    before = Snapshot(model)
    with pytest.raises(ValueError, match=message):
        model.add_objects(*change(*views(4)))
    before.assert_unchanged()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("Learned(spot, 3) * FreeForm(place)", "column 'place' must hold ids known from training .* got 'north'"),
        ("Learned(spot, 3) * Categorical(place)", "column 'place' must hold ids known from training .* got 'north'"),
        ("Learned(spot, 3, normalize=True) * Periodic(angle, 360)", "normalize=True.* cannot take new ids"),
        ("Learned(spot, 2) * Learned(spot, 3) * Periodic(angle, 360)", "at most one Learned.'spot'. per product"),
        ("Learned(spot, 3) * Periodic(angle, 360) + FreeForm(spot)", "'spot'"),
    ],
)
def test_kernels_that_cannot_take_new_ids_say_so(kernel: str, message: str) -> None:
    model = fit(kernel, epochs=1)
    assert model.model_ is not None
    found = learned_by_column(model.prior_).get("spot", [])
    before = state(model), [leaf.levels for leaf in found]
    images, table = views(4)
    with pytest.raises(ValueError, match=message):
        model.add_objects(images, table.assign(place="north"))
    assert all(torch.equal(value, before[0][name]) for name, value in state(model).items())
    assert [leaf.levels for leaf in found] == before[1]


def test_samples_that_the_likelihood_cannot_have_are_refused() -> None:
    model = fit(likelihood="bernoulli", epochs=1)
    before = Snapshot(model)
    images, table = views(4)
    with pytest.raises(ValueError, match=r"bernoulli likelihood needs values in \[0, 1\], got \[.*, 7\]"):
        model.add_objects(np.where(images == images.max(), 7.0, images), table)
    before.assert_unchanged()


def test_one_name_may_be_new_in_two_columns() -> None:
    """Errors at the samples of a person are kept when a place of the same name is added, and the other way round."""
    images, table = data()
    known = trained_rows(table)
    model = GPPVAE("Learned(spot, 2) * RBF(angle) + Learned(place, 2)", **(SETTINGS | {"epochs": 5}))
    model.fit(images[known], table[known], progress=False)
    person, place = table[~known].assign(spot="7"), table[:6].assign(place="7")
    model.add_objects(images[~known], person)
    at_person = model.remainders_.kept["spot", "7"].errors.clone()
    model.add_objects(images[:6], place)
    assert set(model.remainders_.kept) == {("spot", "7"), ("place", "7")}
    assert torch.equal(model.remainders_.kept["spot", "7"].errors, at_person)
    model.update(images[:1], table[:1].assign(spot="7", place="7"))
    assert [len(model.remainders_.kept[key].features) for key in (("spot", "7"), ("place", "7"))] == [13, 6]
    for rows in (person, place):
        drawn = model.predict(rows, 4, include_noise=True)
        assert np.isfinite(drawn.mean).all() and np.isfinite(drawn.std).all()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_stop_on_the_way_changes_nothing(
    model: GPPVAE, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    model.add_objects(*views(1))
    before = Snapshot(model)

    def run(self: object, steps: int) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(new_objects.ObjectFit, "run", run)
        with pytest.raises(stop):
            model.add_objects(*views(4))
    before.assert_unchanged()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_update_that_stops_where_errors_are_stored_changes_nothing(
    model: GPPVAE, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    images, given = views(3)
    model.add_objects(images[:1], given[:1])
    before, keep = Snapshot(model), Remainders.keep

    def stopped(self: Remainders, *args: Any) -> None:
        keep(self, *args)
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(Remainders, "keep", stopped)
        with pytest.raises(stop):
            model.update(images[1:], given[1:])
    before.assert_unchanged()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_stop_where_errors_are_stored_changes_nothing(
    model: GPPVAE, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException], late: bool
) -> None:
    model.add_objects(*views(1))
    before, keep = Snapshot(model), Remainders.keep

    def stopped(self: Remainders, *args: Any) -> None:
        if late:
            keep(self, *args)
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(Remainders, "keep", stopped)
        with pytest.raises(stop):
            model.add_objects(*views(4))
    before.assert_unchanged()


# -- other likelihoods, missing values, other encoders


def test_a_bernoulli_model_takes_new_objects() -> None:
    images, table = data()
    model = fit(likelihood="bernoulli", epochs=60)
    model.add_objects(*views(4))
    mine = ~trained_rows(table)
    found = model.predict(table[mine], n_samples=20)
    assert found.std is not None and found.mean.min() >= 0.0 and found.mean.max() <= 1.0
    noisy = model.predict(table[mine], n_samples=20, include_noise=True)
    assert noisy.std is not None and (noisy.mean + 2.0 * noisy.std).max() > 1.0
    low, high = noisy.interval(0.95)
    assert low.min() >= 0.0 and high.max() == 1.0
    assert np.mean((found.mean - images[mine]) ** 2) < 0.5 * images.var(0).mean()


def test_values_not_observed_do_not_count() -> None:
    model = fit(missing="mask", epochs=60)
    images, table = views(6)
    hidden = images.copy()
    hidden[:, :, 4:] = np.nan
    model.add_objects(hidden, table)
    traces = [float(leaves(model)[0].added_root.square().sum())]
    whole = model.predict(table).mean
    assert np.mean((whole - images) ** 2) < 0.5 * np.mean((images - images.mean(0)) ** 2)
    model.add_objects(images, table)
    traces.append(float(leaves(model)[0].added_root.square().sum()))
    assert traces[1] < traces[0]


def test_a_useless_encoder_only_makes_a_worse_start(model: GPPVAE) -> None:
    images, table = data()
    mine = ~trained_rows(table)
    assert model.model_ is not None
    with torch.no_grad():
        for parameter in model.model_.autoencoder.encoder.parameters():
            parameter.zero_()
    errors = []
    for steps in (0, 8):
        model.add_objects(*views(4), steps=steps)
        errors.append(np.mean((model.predict(table[mine]).mean - images[mine]) ** 2))
    assert errors[1] < 0.5 * errors[0]
