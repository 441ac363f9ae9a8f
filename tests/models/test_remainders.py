"""What samples of an added object differ by from the prediction: kriging by dense algebra, and what it is worth."""

import copy
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import lsq_linear

from gppvae import GPPVAE
from gppvae.data.table import Table
from gppvae.inference.observation_weight import Trust
from gppvae.kernels import FreeForm, Learned
from gppvae.kernels.parse import parse_kernel
from gppvae.models.remainders import (
    Covariogram,
    Remainders,
    ResidualCovariance,
    columns_of,
    directions,
    measure,
    rows_to_compare,
)
from gppvae.prior.latent_prior import LatentPrior

N_OBJECTS, N_POSES, K = 6, 4, 5


def bound_prior() -> tuple[LatentPrior, dict]:
    table = {"person": np.repeat(list("abcdef"), N_POSES), "pose": np.tile(range(N_POSES), N_OBJECTS)}
    prior = LatentPrior([(Learned("person", 2) * FreeForm("pose"), 2), (None, 1)])
    prior.bind(Table(table), torch.Generator().manual_seed(0))
    return prior, table


def correlations(prior: LatentPrior) -> np.ndarray:
    """Of the poses, by the free-form covariance itself, (Q, Q)."""
    kernel = prior.leaves()[1]
    W = kernel.factor(torch.arange(len(kernel.levels))).detach().numpy()
    cov = W @ W.T
    return cov / np.sqrt(np.outer(np.diag(cov), np.diag(cov)))


def shared(kappa: np.ndarray, weights: tuple[float, ...]) -> np.ndarray:
    return weights[0] + weights[1] * kappa + weights[2] * np.maximum(kappa, 0.0) ** 16


def test_what_samples_of_one_object_share_is_measured() -> None:
    """Deviations drawn from the covariance that is to be found, independent between objects."""
    prior, table = bound_prior()
    rng, rows, n_values = np.random.default_rng(0), prior.code(Table(table)), 4000
    want = (0.3, 0.4, 0.1)
    C = shared(correlations(prior), want) + 0.2 * np.eye(N_POSES)
    root = np.linalg.cholesky(2.5 * C)
    d = np.concatenate([root @ rng.normal(size=(N_POSES, n_values)) for _ in range(N_OBJECTS)])
    found = measure(prior, "person", rows, torch.from_numpy(d))
    assert found.var == pytest.approx(2.5, rel=0.03)
    apart = correlations(prior)[np.triu_indices(N_POSES, 1)]
    np.testing.assert_allclose(shared(apart, found.weights), shared(apart, want), atol=0.03)
    noise = measure(prior, "person", rows, torch.from_numpy(rng.normal(size=d.shape)))
    assert sum(noise.weights) < 0.03


def test_directions_of_variation_are_counted() -> None:
    rng = np.random.default_rng(0)
    assert directions(torch.from_numpy(rng.normal(size=(300, 40)))) > 0.95
    few = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 40))
    assert 2.0 / 40 < directions(torch.from_numpy(few)) < 5.0 / 40


def test_a_few_rows_of_each_object_are_compared() -> None:
    prior, table = bound_prior()
    picked = rows_to_compare(prior, prior.code(Table(table)))["person"]
    assert sorted(picked.tolist()) == list(range(N_OBJECTS * N_POSES))


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_errors_are_carried_over_by_kriging(size: float) -> None:
    """c'C^-1 e by dense solves. Small errors share what training errors do, larger ones what deviations do, corrected
    by what the given pair of samples shares."""
    prior, _ = bound_prior()
    leaf = prior.leaves()[0]
    leaf.add_levels(["new"], torch.ones(1, 2).double(), torch.zeros(1, 2, 2).double())
    resemblance = ResidualCovariance(Covariogram(9.0, (0.5, 0.3, 0.1)), Covariogram(1.0, (0.1, 0.2, 0.0)))
    kept = Remainders({"person": resemblance})
    given, asked = (
        prior.code(Table({"person": ["new"] * 2, "pose": [0, 2]})),
        Table({"person": ["new", "new", "new", "a"], "pose": [0, 1, 3, 1]}),
    )
    e = np.random.default_rng(1).normal(size=(2, K))
    e *= size / np.sqrt(np.mean(e**2))
    unit = np.full(K, 2.0)
    kept.keep(prior, "person", ["new"], given, torch.from_numpy(2.0 * e), torch.from_numpy(unit))
    found = kept.at(prior, prior.code(asked), (K,))
    assert found is not None
    usual = min(size**2, 1.0)
    kappa = correlations(prior)
    expected = (usual * np.array([0.1, 0.2, 0.0]) + (size**2 - usual) * np.array([0.5, 0.3, 0.1])) / size**2
    between = np.array([1.0, kappa[0, 2], max(kappa[0, 2], 0.0) ** 16])
    weak = np.eye(3) / (0.4 * np.sqrt(K))  # prior of the weights: standard deviation 0.4, K independent values
    sides = np.vstack([between, weak]), np.concatenate([[e[0] @ e[1] / K / size**2], weak @ expected])
    weights = lsq_linear(*sides, bounds=(0.0, np.inf), method="bvls", tol=1e-14).x
    h = size**2 * shared(kappa, weights / max(weights.sum(), 1.0))
    C = h[np.ix_([0, 2], [0, 2])]
    np.fill_diagonal(C, size**2)
    for n, pose in enumerate((0, 1, 3)):
        c = h[pose, [0, 2]]
        np.testing.assert_allclose(found[0][n], 2.0 * c @ np.linalg.solve(C, e), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[1][n], h[0, 0] - c @ np.linalg.solve(C, c), rtol=1e-6)
    assert not found[0][3].any() and found[1][3] == 0.0
    of_model = prior, prior.before_data()
    again = Remainders.from_saved(kept.to_json(), kept.tensors(), (K,), *of_model)
    assert torch.equal(again.at(prior, prior.code(asked), (K,))[0], found[0])
    with pytest.raises(ValueError, match="of the samples' shape"):
        Remainders.from_saved(kept.to_json(), kept.tensors(), (K + 1,), *of_model)


def test_coded_rows_become_a_table_that_is_coded_alike() -> None:
    """With dates, ids that are numbers and dates, and numbers that are missing where nothing reads them."""
    kernel = "Learned(person, 2) * RBF(day) + Linear(sick) * RBF(onset) + Categorical(week) * RBF(week)"
    kernel += " + Categorical(day)"
    sick = np.tile([0.0, 1.0], 4)
    table = {
        "person": list("aabbccdd"), "day": pd.date_range("2020-01-31", periods=8, freq="36h"), "sick": sick,
        "onset": np.where(sick == 1.0, np.arange(8) / 7.0, np.nan), "week": np.arange(8) // 2 + 0.5,
    }  # fmt: skip
    prior = LatentPrior([(parse_kernel(kernel), 2)])
    prior.bind(Table(table), torch.Generator().manual_seed(0))
    prior.leaves()[0].add_levels(["new"], torch.ones(1, 2).double(), torch.zeros(1, 2, 2).double())
    rows = prior.code(Table(table | {"person": ["new", *"abbccdd"]}))
    again = prior.code(Table(json.loads(json.dumps(columns_of(prior, rows)))))
    assert rows.columns.keys() == again.columns.keys()
    for key, column in rows.columns.items():
        assert torch.equal(column.by_row, again.columns[key].by_row), key


@pytest.mark.parametrize(("n_directions", "learned"), [(2000, True), (1, False)])
def test_given_samples_tell_how_alike_errors_are_as_far_as_their_values_are_independent(
    n_directions: int, learned: bool
) -> None:
    """Errors that are alike at all views, where training samples were not."""
    prior, _ = bound_prior()
    kappa, rng = torch.from_numpy(correlations(prior)), np.random.default_rng(0)
    found = ResidualCovariance(Covariogram(1.0, (0.1, 0.1, 0.1)), Covariogram(), n_directions / 2000)
    root = np.linalg.cholesky(0.8 * np.ones((N_POSES, N_POSES)) + 0.2 * np.eye(N_POSES))
    var, *weights = found.shared(torch.from_numpy(root @ rng.normal(size=(N_POSES, 2000))), kappa).tolist()
    apart = shared(correlations(prior)[np.triu_indices(N_POSES, 1)], np.array(weights) / var)
    assert (np.abs(apart - 0.8).max() < 0.1) == learned
    alone = found.shared(torch.from_numpy(rng.normal(size=(1, 2000))), kappa[:1, :1])
    np.testing.assert_allclose(alone[1:] / alone[0], 0.1, rtol=1e-9)  # one sample says nothing of pairs


# -- objects unlike those of training


def given_and_asked(model: GPPVAE, every: float = 90.0) -> tuple[GPPVAE, np.ndarray, pd.DataFrame]:
    """A copy of the model with objects added from some views, and samples and rows of the others."""
    model, (images, table) = copy.deepcopy(model), turning(6, 1)
    given = table["angle"].to_numpy() % every == 0.0
    model.add_objects(images[given], table[given])
    return model, images[~given], table[~given]


def turning(n_objects: int, seed: int, n_views: int = 16) -> tuple[np.ndarray, pd.DataFrame]:
    """Images of 8 x 8 of objects with a texture of their own, part of which turns: no few of them span the others."""
    rng = np.random.default_rng(seed)
    ys, xs = np.mgrid[:8, :8] - 3.5
    images, rows = [], []
    for p in range(n_objects):
        own, moves = rng.normal(size=(2, 3, 8, 8)) @ np.exp(-0.5 * (np.arange(8)[:, None] - np.arange(8)) ** 2)
        for angle in np.arange(n_views) * 360.0 / n_views:
            a = np.deg2rad(angle)
            blob = np.exp(-((xs - 2.5 * np.cos(a)) ** 2 + (ys - 2.5 * np.sin(a)) ** 2) / 4.0)
            images.append(0.3 * own[0] + 0.3 * np.cos(a) * moves[0] + 0.3 * np.sin(a) * moves[1] + 2.0 * blob)
            rows.append((f"{seed}-{p}", angle))
    return np.array(images, dtype=np.float32), pd.DataFrame(rows, columns=["object", "angle"])


@pytest.fixture(scope="module")
def model() -> GPPVAE:
    settings = {"latent_dim": 6, "network": "mlp", "width": 64, "pixel_var": 0.05, "epochs": 40, "lr": 3e-3}
    kernel = "Learned(object, 4) * Periodic(angle, 360)"
    return GPPVAE(kernel, batch_size=32, **settings).fit(*turning(10, 0), progress=False)


def test_further_views_by_update_are_about_as_good_as_all_views_at_once(model: GPPVAE, tmp_path: Path) -> None:
    images, table = turning(6, 1)
    angle = table["angle"].to_numpy()
    first, every = angle % 180.0 == 0.0, angle % 45.0 == 0.0
    more = every & ~first
    at_once, updated = copy.deepcopy(model), copy.deepcopy(model)
    at_once.add_objects(images[every], table[every])
    updated.add_objects(images[first], table[first])
    updated.save(tmp_path)

    def error(of: GPPVAE) -> float:
        return float(np.mean((of.predict(table[~every]).mean - images[~every]) ** 2))

    before = error(updated)
    updated.update(images[more], table[more])
    assert error(at_once) < 0.1 * before
    assert error(updated) < 1.2 * error(at_once)
    again = GPPVAE.load(tmp_path)  # the rows given before are in the file
    again.update(images[more], table[more])
    np.testing.assert_array_equal(again.predict(table).mean, updated.predict(table).mean)


def test_after_an_update_stored_errors_are_those_of_the_new_predictions(model: GPPVAE) -> None:
    """Of all samples given, the old ones too, and of objects that got none; values not observed have none."""
    model = copy.deepcopy(model)
    images, table = turning(3, 1)
    given, more = np.array([0, 4, 16, 20, 24]), np.array([2, 18, 35])
    images[4, 2, :] = np.nan
    images[18, 3, :] = np.nan
    model.missing = "mask"
    first = np.isin(np.arange(48), given)
    model.add_objects(images[first], table[first])
    model.add_objects(images[35:36], table[35:36])
    known, known_table = turning(10, 0)
    model.update(np.concatenate([images[more[:2]], known[:1]]), pd.concat([table.iloc[more[:2]], known_table[:1]]))
    alone = copy.deepcopy(model)
    alone.remainders_.kept.clear()
    for name, own in (("1-0", [0, 4, 2]), ("1-1", [16, 20, 24, 18]), ("1-2", [35])):
        errors = np.nan_to_num(images[own] - alone.predict(table.iloc[own]).mean)
        kept = model.remainders_.kept["object", name]
        np.testing.assert_allclose(kept.errors[:, 0], errors, atol=1e-5)
        assert len(kept.inverse) == len(own)


def test_files_without_the_rows_of_added_objects_are_read(model: GPPVAE) -> None:
    """Models that were saved before hold C^-1 e in place of e; update then leaves their errors as they are."""
    model = copy.deepcopy(model)
    images, table = turning(1, 1)
    model.add_objects(images[:2], table[:2])
    saved, tensors = model.remainders_.to_json(), model.remainders_.tensors()
    predicted, errors = model.predict(table).mean, tensors.pop("0.errors")
    del saved["rows"]
    tensors["0.coefficients"] = torch.einsum("ij,jckl->ickl", tensors["0.inverse"], errors.double()).float()
    model.remainders_ = Remainders.from_saved(saved, tensors, (1, 8, 8), model.prior_, model.posterior_)
    np.testing.assert_allclose(model.predict(table).mean, predicted, atol=1e-5)
    read = model.remainders_.kept["object", "1-0"].errors
    model.update(images[4:6], table[4:6])
    assert torch.equal(model.remainders_.kept["object", "1-0"].errors, read)
    assert np.abs(model.predict(table).mean - predicted).max() > 1e-6


def test_what_is_imputed_at_an_added_object_has_its_errors(model: GPPVAE) -> None:
    model, images, table = given_and_asked(model, every=180.0)
    missing = np.random.default_rng(0).random(images.shape) < 0.5
    gaps = np.where(missing, np.float32(np.nan), images)
    found = model.impute(gaps, table)
    alone = copy.deepcopy(model)
    alone.remainders_.kept.clear()
    without = alone.impute(gaps, table)

    def error(mean: np.ndarray) -> float:
        return float(np.mean((mean - images)[missing] ** 2))

    assert error(found.mean) < 0.8 * error(without.mean)
    assert error(found.mean) < error(model.predict(table).mean)
    distance = ((images - found.mean) / np.where(missing, found.std, 1.0))[missing]
    assert 0.7 < np.sqrt(np.mean(distance**2)) < 1.4


def test_with_nothing_observed_an_added_object_is_imputed_as_it_is_predicted(model: GPPVAE) -> None:
    model, images, table = given_and_asked(model)
    rows = pd.concat([table, turning(2, 0)[1]])
    nothing = np.full((len(rows), 8, 8), np.nan)
    nothing[0, 0, 0] = images[0, 0, 0]  # there must be some value
    model.trust_ = Trust()
    found = model.impute(nothing, rows, n_samples=500, include_noise=False, seed=1)
    np.testing.assert_allclose(found.mean[1:], model.predict(rows).mean[1:], atol=1e-4)
    said = model.predict(rows, 500, seed=1)  # draws through the curved decoder
    size = [np.sqrt(np.mean(std**2, axis=(1, 2))) for std in (found.std, said.std, found.draws.std(0))]
    added = np.arange(len(rows)) < len(table)
    np.testing.assert_allclose(size[0][added], size[1][added], rtol=0.25)
    np.testing.assert_allclose(size[2][added], size[1][added], rtol=0.1)
    alone = copy.deepcopy(model)
    alone.remainders_.kept.clear()
    bare = alone.impute(nothing, rows, n_samples=500, include_noise=False, seed=1)
    np.testing.assert_array_equal(bare.mean[~added], found.mean[~added])
    np.testing.assert_array_equal(bare.std[~added], found.std[~added])


def test_the_score_of_an_added_object_has_its_errors_in_the_mean(model: GPPVAE) -> None:
    """It is that of the samples without these errors: a shift does not change a density."""
    model, images, table = given_and_asked(model)
    alone = copy.deepcopy(model)
    alone.remainders_.kept.clear()
    errors = model.predict(table).mean - alone.predict(table).mean
    assert model.score(images, table) == pytest.approx(alone.score(images - errors, table), rel=1e-5)
    assert model.score(images, table) > alone.score(images, table) + 10.0
    assert model.score(*turning(2, 0)) == alone.score(*turning(2, 0))


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("include_noise", [True, False])
def test_draws_at_added_objects_scatter_as_the_prediction_says(
    model: GPPVAE, include_noise: bool, measured: bool
) -> None:
    model = copy.deepcopy(model)
    if not measured:
        model.calibration_ = None
    images, table = turning(2, 1)
    given = table["angle"].to_numpy() % 180.0 == 0.0
    model.add_objects(images[given], table[given])
    rows = pd.concat([table[~given], turning(2, 0)[1]])
    said = model.predict(rows, 800, include_noise=include_noise, seed=3)
    drawn = model.sample(rows, 800, include_noise=include_noise, seed=4)
    size = [np.sqrt(np.mean(std**2, axis=(1, 2))) for std in (drawn.std(0), said.std)]
    np.testing.assert_allclose(size[0], size[1], rtol=0.1)
    np.testing.assert_allclose(drawn.mean(0), said.mean, atol=0.2 * said.std.max())
    alone = copy.deepcopy(model)
    alone.remainders_.kept.clear()
    without = alone.predict(rows, 800, include_noise=include_noise, seed=3)
    assert np.mean(said.std[:28] ** 2) > 1.05 * np.mean(without.std[:28] ** 2)  # what kriging leaves is part of it
    np.testing.assert_array_equal(alone.sample(rows[28:], 3, seed=4), model.sample(rows[28:], 3, seed=4))


def test_a_draw_of_what_is_left_is_one_pattern_per_object(model: GPPVAE) -> None:
    """The same at rows of one object up to a factor, however rows are cut; and another one for another object."""
    model = copy.deepcopy(model)
    images, table = turning(2, 1)
    model.add_objects(images[[0, 16]], table.iloc[[0, 16]])
    rows = model.prior_.code(Table(table))
    kriged = model.remainders_.at(model.prior_, rows, (1, 8, 8))
    assert kriged is not None
    draws = [model.remainders_.draw(model.prior_, rows, (1, 8, 8), seed) for seed in range(2000)]
    std = torch.stack(draws).std(0)
    torch.testing.assert_close(std, kriged[1].sqrt().float().reshape(-1, 1, 1, 1).expand_as(std), rtol=0.1, atol=1e-3)
    one = draws[0].flatten(1)
    alike = torch.corrcoef(one[[3, 7, 19]])
    assert alike[0, 1] > 0.999 and alike[0, 2].abs() < 0.5
    torch.testing.assert_close(model.remainders_.draw(model.prior_, rows[5:9], (1, 8, 8), 0), draws[0][5:9])


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_new_objects_are_no_worse_than_copies_and_means(model: GPPVAE, k: int) -> None:
    """Over several new objects: the nearest sample along the views, the mean image of the view, and the mean image."""
    images, table = turning(6, 1)
    angle, known, known_table = table["angle"].to_numpy(), *turning(10, 0)
    given = angle % (360.0 / k) == 0.0
    model.add_objects(images[given], table[given])
    found = model.predict(table[~given]).mean
    errors: dict[str, list[float]] = {"model": [], "nearest": [], "view": [], "mean": []}
    for n, image in zip(np.flatnonzero(~given), found, strict=True):
        own = np.flatnonzero(given & (table["object"] == table["object"][n]).to_numpy())
        turn = np.abs((angle[own] - angle[n] + 180.0) % 360.0 - 180.0)
        answers = {
            "model": image,
            "nearest": images[own[np.argmin(turn)]],
            "view": known[(known_table["angle"] == angle[n]).to_numpy()].mean(0),
            "mean": known.mean(0),
        }
        for name, answer in answers.items():
            errors[name].append(float(np.mean((answer - images[n]) ** 2)))
    means = {name: float(np.mean(values)) for name, values in errors.items()}
    assert means["model"] < min(means["nearest"], means["view"], means["mean"]), means
