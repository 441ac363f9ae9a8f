"""A fit with many subjects: every inference, files, resumed runs, new subjects, and what does not fit into memory."""

import logging
from pathlib import Path

import numpy as np
import pytest

from gppvae import GPPVAE
from gppvae.data.table import Table
from gppvae.estimator import cost

P, VISITS = 300, 3
KERNEL = "RBF(age, max_inducing=3) + Categorical(id) * RBF(age, max_inducing=3)"


def data(n_ids: int = P, first: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(first)
    ids = np.repeat(np.arange(first, first + n_ids), VISITS)
    age = rng.integers(20, 30, len(ids)).astype(float)
    level = rng.normal(size=n_ids)[np.unique(ids, return_inverse=True)[1]]
    samples = np.stack([level, np.sin(age / 3.0), level * age / 25.0], axis=1)
    return (samples + 0.05 * rng.normal(size=samples.shape)).astype(np.float32), {"id": ids, "age": age}


def fitted(inference: str, **options: object) -> GPPVAE:
    samples, table = data()
    model = GPPVAE(
        KERNEL, inference=inference, latent_dim=2, width=8, epochs=2, warmup_epochs=1, gp_epochs=1, batch_size=256
    )
    return model.fit(samples, table, progress=False, **options)


@pytest.mark.parametrize("inference", ["exact", "minibatch", "posterior", "global", "leave_out"])
def test_every_inference_answers_and_survives_its_file(
    inference: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = fitted(inference)
    assert model.prior_.n_blocks == P
    _, table = data()
    wanted = {"id": [0, 5, "new", "new", "newer"], "age": [22.0, 25.0, 22.0, 22.0, 22.0]}
    mean, var = model.predict_latent(wanted)
    assert "2 ids of column 'id' were not in the training set" in caplog.text
    np.testing.assert_allclose(mean[2], mean[4])  # of a new subject only the age is known
    np.testing.assert_allclose(var[2], var[4])
    assert np.abs(mean[0] - mean[2]).max() > 0.0
    drawn = model.sample(wanted, n_samples=3)
    model.save(tmp_path)
    again = GPPVAE.load(tmp_path)
    np.testing.assert_array_equal(again.predict_latent(wanted)[1], var)
    np.testing.assert_array_equal(again.sample(wanted, n_samples=3), drawn)
    assert np.isfinite(again.predict(table, n_samples=2, include_noise=True).std).all()


def test_further_samples_of_known_subjects_update_the_model() -> None:
    model = fitted("global")
    samples, table = data()
    first = {"id": [0] * VISITS, "age": table["age"][:VISITS]}
    error = np.square(model.predict(first).mean - samples[:VISITS] - 0.5).mean()
    for _ in range(3):
        model.update(samples[:VISITS] + 0.5, first)
    assert np.square(model.predict(first).mean - samples[:VISITS] - 0.5).mean() < error
    with pytest.raises(ValueError, match="column 'id' must hold ids known from training"):
        model.update(samples[:1], {"id": ["new"], "age": [22.0]})


def test_the_cost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gppvae"):
        fitted("global")
    assert f"{P} ids with 3 features each beside 3 shared ones, about" in caplog.text


def test_more_ids_than_memory_allows_is_a_sentence_that_says_what_it_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost, "machine_memory", lambda: 2.0**16)
    with pytest.raises(
        ValueError,
        match=r"fits into the 6.1e-05 GiB .* got 300 ids with 3 features each .* about 0\.00\d+ GiB; use fewer",
    ):
        fitted("global")


def test_groups_of_latents_must_fit_into_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"id": np.arange(60) % 30, "age": np.linspace(0.0, 1.0, 60)}
    model = GPPVAE([("Categorical(id) * RBF(age)", 2)] * 3, inference="global", epochs=1, width=4)
    prior = model.fit(np.zeros((60, 4), np.float32), rows, progress=False).prior_
    one = cost._cost_of(prior.groups[0], prior.code(Table(rows))).bytes
    monkeypatch.setattr(cost, "machine_memory", lambda: 2.5 * one)
    with pytest.raises(ValueError, match=r"got 30 ids with .* in 3 groups of latents, which take about"):
        cost.log_cost(prior, prior.code(Table(rows)))
    monkeypatch.setattr(cost, "machine_memory", lambda: 3.5 * one)
    cost.log_cost(prior, prior.code(Table(rows)))


def test_memory_is_estimated_in_proportion_to_the_ids() -> None:
    one, ten = (cost.BlockCost(n, 8, 30, 16).bytes for n in (10_000, 100_000))
    assert 9.5 < ten / one < 10.5
    assert cost.machine_memory() > 2**28


def test_features_that_carry_too_little_after_training_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    table = {"x": rng.uniform(size=200), "y": rng.uniform(size=200)}
    model = GPPVAE("RBF(x, y, lengthscale=0.02, max_inducing=8)", epochs=1, latent_dim=1, width=4, inference="global")
    model.fit(rng.normal(size=(200, 2)), table, progress=False)
    assert "its 8 features carry" in caplog.text and "larger max_inducing (for example 32)" in caplog.text
