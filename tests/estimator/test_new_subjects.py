"""Subjects added to a fitted estimator whose kernel has Categorical(id): learned from a few visits, kept, harmless."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from gppvae import GPPVAE
from gppvae.cli import app
from gppvae.data.header import MismatchError
from gppvae.inference.update import WeightUpdate
from gppvae.models.objects import id_columns
from gppvae.prior.posterior import RotatedBlocks

KERNEL = "RBF(age, lengthscale=15) + Categorical(id) * RBF(age, lengthscale=15)"
MIXTURE = "RBF(age) + Learned(id, 2) + Categorical(id) * RBF(age)"
GROUPS = [(KERNEL, 2), ("RBF(age)", 1), (None, 1)]
VISITS, NEW, GIVEN = 6, 4, 4  # of the visits of each new subject so many are given
K = 6


def data(n_subjects: int) -> tuple[np.ndarray, pd.DataFrame]:
    """Courses that all share, one of each subject, and samples that bend; the last subjects are the new ones."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(n_subjects), VISITS)
    age = rng.uniform(20.0, 60.0, len(ids)).round()
    level, slope = rng.normal(size=(2, n_subjects))
    z = np.stack([np.sin(age / 9.0) + level[ids], slope[ids] * np.cos(age / 15.0)], axis=1)
    y = np.tanh(0.7 * z @ rng.normal(size=(2, K))) + 0.5 * z @ rng.normal(size=(2, K))
    return (y + 0.05 * rng.normal(size=y.shape)).astype(np.float32), pd.DataFrame({"id": ids, "age": age})


def fit(kernel: Any = KERNEL, n_subjects: int = 24, **settings: Any) -> GPPVAE:
    samples, table = data(n_subjects)
    known = (table["id"] < n_subjects - NEW).to_numpy()
    usual = {"latent_dim": None if isinstance(kernel, list) else 3, "network": "mlp", "width": 16, "batch_size": 16}
    usual |= {"inference": "global", "epochs": 60, "lr": 3e-3, "prior_lr": 2e-2, "pixel_var": 0.02}
    return GPPVAE(kernel, **(usual | settings)).fit(samples[known], table[known], progress=False)


def visits(n_subjects: int = 24, n: int = GIVEN) -> tuple[np.ndarray, pd.DataFrame, np.ndarray, pd.DataFrame]:
    """Samples and rows of the new subjects that are given, and those that are asked for."""
    samples, table = data(n_subjects)
    new = (table["id"] >= n_subjects - NEW).to_numpy()
    given = new & (np.arange(len(table)) % VISITS < n)
    asked = new & (np.arange(len(table)) % VISITS >= GIVEN)
    return samples[given], table[given], samples[asked], table[asked]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("subjects")
    fit().save(folder)
    return folder


@pytest.fixture
def model(saved: Path) -> GPPVAE:
    return GPPVAE.load(saved)


def error(model: GPPVAE, samples: np.ndarray, table: pd.DataFrame) -> float:
    return float(np.mean((model.predict(table).mean - samples) ** 2))


def test_a_new_subject_is_predicted_at_other_ages_better_than_by_its_prior(model: GPPVAE) -> None:
    samples, table, later, asked = visits()
    before, (_, spread) = error(model, later, asked), model.predict_latent(asked)
    assert model.add_objects(samples, table) == ["20", "21", "22", "23"]
    assert error(model, later, asked) < 0.3 * before
    assert (model.predict_latent(asked)[1] < spread).all()
    far = model.predict_latent({"id": [20, 0], "age": [500.0, 500.0]})[1]
    np.testing.assert_allclose(far[0], far[1], rtol=1e-6)  # nothing is known of anybody there
    whole = model.predict(asked, n_samples=20, include_noise=True)
    assert np.isfinite(whole.mean).all() and whole.std is not None and (whole.std > 0).all()


def test_more_visits_say_more(model: GPPVAE) -> None:
    errors, variances = [], []
    for n in (1, 2, GIVEN):
        samples, table, later, asked = visits(n=n)
        model.add_objects(samples, table)  # in place of what was known of them
        errors.append(error(model, later, asked))
        variances.append(model.predict_latent(asked)[1].mean())
    assert errors[2] < errors[0] and sorted(variances, reverse=True) == variances


def test_blocks_of_many_subjects() -> None:
    samples, table, later, asked = visits(200)
    model = fit(n_subjects=200, epochs=12)
    assert isinstance(model.posterior_.parts[0], RotatedBlocks)
    before, known = error(model, later, asked), model.predict(data(200)[1].iloc[:50]).mean
    model.add_objects(samples, table)
    assert error(model, later, asked) < 0.5 * before
    now = model.predict(data(200)[1].iloc[:50]).mean
    assert np.abs(now - known).mean() < 0.05 * known.std()  # the others hear of it through what all share


@pytest.mark.parametrize("kernel", [MIXTURE, GROUPS], ids=["mixture", "groups"])
def test_vectors_beside_blocks_and_groups_of_latents(kernel: Any, tmp_path: Path) -> None:
    model = fit(kernel)
    samples, table, later, asked = visits()
    model.add_objects(samples, table)
    mean = np.mean((data(24)[0][:120].mean(0) - later) ** 2)
    assert error(model, later, asked) < 0.5 * mean
    model.add_objects(samples[:GIVEN], table[:GIVEN])
    assert all(column.levels[20:] == ["21", "22", "23", "20"] for column in id_columns(model.prior_))
    model.save(tmp_path)
    again = GPPVAE.load(tmp_path)
    for each in (model, again):
        each.add_objects(samples[-2 * GIVEN :], table[-2 * GIVEN :])
        each.update(later[:1], asked[:1])
    np.testing.assert_array_equal(again.predict(asked).mean, model.predict(asked).mean)


@pytest.mark.parametrize("n_subjects", [24, 200], ids=["dense", "blocks"])
def test_saving_keeps_added_subjects(n_subjects: int, tmp_path: Path) -> None:
    model = fit(n_subjects=n_subjects, epochs=2)
    samples, table, later, asked = visits(n_subjects)
    model.add_objects(samples, table)
    model.save(tmp_path)
    again = GPPVAE.load(tmp_path)
    for _ in range(2):
        one, two = (each.predict(asked, n_samples=8, include_noise=True) for each in (model, again))
        np.testing.assert_array_equal(one.mean, two.mean)
        np.testing.assert_array_equal(one.std, two.std)
        np.testing.assert_array_equal(*(each.predict_latent(asked)[1] for each in (model, again)))
        for each in (model, again):  # and both can be added to as before
            assert each.add_objects(later, asked) == [str(p) for p in range(n_subjects - NEW, n_subjects)]
    assert set(again.remainders_.taken) == set(model.remainders_.taken)


def test_errors_of_added_subjects_follow_what_later_ones_say_of_all() -> None:
    """New ids change the weights that all share, and so the predictions at the samples of those added before."""
    model = fit(MIXTURE)
    samples, table, _, _ = visits()
    model.add_objects(samples[:GIVEN], table[:GIVEN])
    predicted = model.predict(table[:GIVEN]).mean
    model.add_objects(samples[GIVEN:] + 1.0, table[GIVEN:])
    kept = model.remainders_.kept.copy()
    assert len(kept) == NEW
    model.remainders_.kept.clear()
    now = model.predict(table[:GIVEN]).mean
    assert np.abs(now - predicted).max() > 1e-3
    np.testing.assert_allclose(kept["id", "20"].errors, samples[:GIVEN] - now, atol=1e-5)


def test_adding_again_the_same_samples_changes_nothing(model: GPPVAE) -> None:
    samples, table, _, asked = visits()
    model.add_objects(samples, table, steps=40)
    first = model.predict_latent(asked)
    model.add_objects(samples, table, steps=40)
    second = model.predict_latent(asked)
    np.testing.assert_allclose(second[0], first[0], atol=2e-3)
    np.testing.assert_allclose(second[1], first[1], rtol=2e-2)


def test_values_that_are_missing_say_nothing() -> None:
    masked = fit(missing="mask", epochs=30)
    samples, table, _, asked = visits()
    holes = samples.copy()
    holes[:, ::2] = np.nan
    masked.add_objects(holes, table)
    few = masked.predict_latent(asked)[1].mean()
    masked.add_objects(samples, table)
    assert masked.predict_latent(asked)[1].mean() < few


def tensors(model: GPPVAE) -> dict[str, torch.Tensor]:
    return {**model.model_.state_dict(), **{f"q.{k}": v for k, v in model.posterior_.tensors().items()}}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_stop_on_the_way_changes_nothing(
    model: GPPVAE, stop: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, table, later, asked = visits()
    model.add_objects(samples, table)
    before, levels = tensors(model), [list(c.levels) for c in id_columns(model.prior_)]
    answers = model.predict(asked).mean

    def run(self: object, steps: int) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(WeightUpdate, "run", run)
        with pytest.raises(stop):
            model.add_objects(later, asked)
    assert [list(c.levels) for c in id_columns(model.prior_)] == levels
    assert all(torch.equal(value, before[name]) for name, value in tensors(model).items())
    np.testing.assert_array_equal(model.predict(asked).mean, answers)
    assert model.add_objects(later, asked)


@pytest.mark.parametrize(
    ("kernel", "ids", "message"),
    [
        (KERNEL, ["0", "n"], "only new ids in column 'id', got '0' from training; remove those rows"),
        (KERNEL, ["0", "1"], r"Learned or Categorical column \(the kernel has 'id'\), got only ids from training"),
        ("RBF(age)", ["n", "n"], "with a Learned or a Categorical column, got none; only these"),
        (f"{KERNEL} + FreeForm(id)", ["n", "n"], "FreeForm.'id'. cannot take new ids, only Learned and Categorical"),
        ("Categorical(id) + Categorical(age)", ["n", "n"], "of several Categorical columns only the one with the most"),
    ],
)
def test_what_cannot_be_added_is_told(kernel: str, ids: list[str], message: str) -> None:
    model = fit(kernel, epochs=1)
    before = tensors(model)
    with pytest.raises(ValueError, match=message):
        model.add_objects(data(24)[0][:2], {"id": ids, "age": [30.0, 40.0]})
    assert all(torch.equal(value, before[name]) for name, value in tensors(model).items())


def test_the_command(saved: Path, tmp_path: Path) -> None:
    samples, table, _, asked = visits()
    np.save(tmp_path / "new.npy", samples)
    table.to_csv(tmp_path / "new.csv", index=False)
    words = ["add-objects", saved, tmp_path / "new.csv", "--data", tmp_path / "new.npy", "--out", tmp_path / "more"]
    found = CliRunner().invoke(app, [*map(str, words), "--quiet"])
    assert found.exit_code == 0, found.output
    model = GPPVAE.load(saved)
    model.add_objects(samples, table)
    np.testing.assert_array_equal(GPPVAE.load(tmp_path / "more").predict(asked).mean, model.predict(asked).mean)


@pytest.mark.parametrize("wrong", ["added", "column", "ids"])
def test_a_file_with_wrong_rows_is_refused(model: GPPVAE, wrong: str, tmp_path: Path) -> None:
    samples, table, *_ = visits()
    model.add_objects(samples, table)
    if wrong == "added":
        for column in id_columns(model.prior_):
            column.own[0].n_added = 24
    taken = model.remainders_.taken
    if wrong == "column":
        taken["age", "20"] = taken.pop(("id", "20"))
    if wrong == "ids":
        taken["id", "20"][0].__dict__["ids"] = ("nobody",) * GIVEN
    model.save(tmp_path)
    with pytest.raises((ValueError, MismatchError), match=r"model\.safetensors"):
        GPPVAE.load(tmp_path)
