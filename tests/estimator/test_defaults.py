"""A fit that is told nothing but a kernel: any unit, rows held out, simple answers beside it."""

import logging
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gppvae import GPPVAE
from gppvae.data.arrays import Samples
from gppvae.data.table import Table
from gppvae.estimator.choices import choose_held_out
from gppvae.estimator.comparison import Comparison, simple_answers
from gppvae.estimator.kernel_summary import kernel_rows
from gppvae.likelihoods import Gaussian

RNG = np.random.default_rng(0)
TIME = np.tile(np.linspace(0.0, 3.0, 10), 6)
WHO = np.repeat([f"p{n}" for n in range(6)], 10)
TABLE = pd.DataFrame({"who": WHO, "time": TIME})
KERNEL = "RBF(time) + Learned(who)"


def values() -> np.ndarray:
    waves = np.stack([np.sin(TIME + k) for k in range(5)], axis=1)
    own = np.repeat(np.random.default_rng(1).normal(size=(6, 5)), 10, axis=0)
    return (waves + 0.5 * own + 0.05 * np.random.default_rng(2).normal(size=waves.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def fitted() -> GPPVAE:
    return GPPVAE(KERNEL, epochs=4).fit(values(), TABLE, progress=False)


@pytest.mark.parametrize(("factor", "shift"), [(255.0, 0.0), (1.0, 1000.0), (0.001, 0.0)])
def test_predictions_do_not_depend_on_the_unit(fitted: GPPVAE, factor: float, shift: float) -> None:
    other = GPPVAE(KERNEL, epochs=4).fit((factor * values() + shift).astype(np.float32), TABLE, progress=False)
    again = (other.predict(TABLE).mean - shift) / factor
    # A shift of 1000 leaves three digits fewer of the values themselves.
    np.testing.assert_allclose(again, fitted.predict(TABLE).mean, atol=2e-4 if shift == 0 else 5e-3)


def test_choices_are_logged_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gppvae"):
        model = GPPVAE(KERNEL, epochs=1).fit(values(), TABLE, progress=False)
    for words in ("vectors of 6 numbers for 6 ids", "latents for samples of shape 5", "leave_out inference for 48",
                  "1 epochs of 2 steps, batches of 32", "12 of 60 rows are held out", "length scale",
                  "error at 12 held-out rows"):  # fmt: skip
        assert words in caplog.text, words
    assert model.resolved_["kernel"][0][0] == "1.0 * RBF('time') + 1.0 * Learned('who', dim=6)"
    phases = model.resolved_["phases"]
    assert [phase["held_out"] for phase in phases] == [True, False] and phases[1]["restart"]


@pytest.mark.parametrize(
    ("likelihood", "inference"),
    [("gaussian", "leave_out"), (Gaussian(0.1), "leave_out"), ("negative_binomial", "global"), ("poisson", "global"),
     ("bernoulli", "global")],
)  # fmt: skip
def test_few_rows_are_left_out_in_turn_only_by_a_gaussian(likelihood: str | Gaussian, inference: str) -> None:
    y = (values() > 0.0).astype(np.float32)  # whatever the likelihood
    model = GPPVAE(KERNEL, likelihood=likelihood, epochs=1).fit(y, TABLE, progress=False)
    assert model.resolved_["phases"][0]["inference"] == inference


def test_rows_held_out_are_trained_on_in_the_end(fitted: GPPVAE) -> None:
    spoiled = values()
    spoiled[0] += 100.0  # whether row 0 is held out or not, the last phase must see it
    other = GPPVAE(KERNEL, epochs=4).fit(spoiled, TABLE, progress=False)
    assert np.abs(other.predict(TABLE).mean - fitted.predict(TABLE).mean).max() > 1.0


def test_a_stopped_fit_goes_on_with_what_was_measured(tmp_path: Path, fitted: GPPVAE) -> None:
    class Stop(Exception):
        pass

    from gppvae import Callback

    class Third(Callback):
        def on_epoch(self, phase: str, step: int, metrics: dict[str, float]) -> None:
            if phase == "leave_out" and step >= 5:
                raise Stop

    model = GPPVAE(KERNEL, epochs=4)
    with pytest.raises(Stop):
        model.fit(values(), TABLE, out=tmp_path, progress=False, callbacks=[Third()])
    again = GPPVAE(KERNEL, epochs=4).fit(values(), TABLE, out=tmp_path, progress=False)
    np.testing.assert_array_equal(again.predict(TABLE).mean, fitted.predict(TABLE).mean)
    assert again.comparison_ == fitted.comparison_ and again.comparison_ is not None
    loaded = GPPVAE.load(tmp_path)
    assert loaded.comparison_ == again.comparison_


def test_no_rows_are_held_out_of_few_or_when_validation_is_given() -> None:
    few = GPPVAE(KERNEL, epochs=1).fit(values()[:30], TABLE.iloc[:30], progress=False)
    assert few.comparison_ is None and len(few.resolved_["phases"]) == 1
    given = GPPVAE(KERNEL, epochs=1).fit(
        values()[::2], TABLE.iloc[::2], validation=(values()[1::2], TABLE.iloc[1::2]), progress=False
    )
    assert given.comparison_ is not None and given.comparison_.n_rows == 30


def test_a_share_that_cannot_be_held_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for share in (None, 0.0):
        GPPVAE(KERNEL, epochs=1, hold_out=share).fit(values()[:30], TABLE.iloc[:30], progress=False)
        assert "hold_out" not in caplog.text
    given = {"inference": "leave_out", "epochs": 1, "hold_out": 0.2}
    for kernel, table in ((KERNEL, TABLE.iloc[:30]), ("RBF(time) * Learned(who, 2)", TABLE.assign(who=range(60)))):
        caplog.clear()
        GPPVAE(kernel, **given).fit(values()[: len(table)], table, progress=False)
        assert "hold_out=0.2 has no effect: it needs 40 rows" in caplog.text
    caplog.clear()
    model = GPPVAE(KERNEL, **given).fit(values(), TABLE, progress=False)
    assert "hold_out" not in caplog.text and model.comparison_ is not None


def test_no_rows_are_held_out_that_observed_nothing() -> None:
    held = choose_held_out(Table(TABLE), ["who"], None, 0, (5,))
    y = values()
    y[held] = np.nan
    model = GPPVAE(KERNEL, epochs=2, missing="mask").fit(y, TABLE, progress=False)
    assert len(held) > 4 and not any(phase["held_out"] for phase in model.resolved_["phases"])
    y[held[0], 3] = 0.5
    model = GPPVAE(KERNEL, epochs=2, missing="mask").fit(y, TABLE, progress=False)
    assert any(phase["held_out"] for phase in model.resolved_["phases"])
    assert np.isfinite(model.predict(TABLE, n_samples=4, include_noise=True).std).all()


def test_length_scales_of_the_start_are_not_called_unlearned(fitted: GPPVAE) -> None:
    """They come from the data, before the epochs; only what the user fixed was not learned."""
    assert dict(kernel_rows(fitted))["RBF('time')"].endswith("(found before training, then fixed)")
    given = GPPVAE("RBF(time, lengthscale=2, fixed=True) + Learned(who)", epochs=1)
    rows = dict(kernel_rows(given.fit(values(), TABLE, progress=False)))
    assert next(words for part, words in rows.items() if part.startswith("RBF")).endswith("(fixed, not learned)")


def test_simple_answers_against_loops(fitted: GPPVAE) -> None:
    y, held = values(), np.arange(60) % 7 == 3
    train, wanted = TABLE[~held].reset_index(drop=True), TABLE[held].reset_index(drop=True)
    found = dict(simple_answers(fitted, (Samples(y[~held]), Table(train)), Table(wanted)))
    assert set(found) == {"mean", "mean of the who", "nearest sample", "linear in time"}
    for n, row in wanted.iterrows():
        own = train[train["who"] == row["who"]]
        times, mine = own["time"].to_numpy(), y[~held][own.index]
        np.testing.assert_allclose(found["mean"][n], y[~held].mean(0), rtol=1e-5)
        np.testing.assert_allclose(found["mean of the who"][n], mine.mean(0), rtol=1e-5)
        np.testing.assert_allclose(found["nearest sample"][n], mine[np.abs(times - row["time"]).argmin()], rtol=1e-6)
        line = [np.interp(row["time"], times, mine[:, k]) for k in range(5)]
        np.testing.assert_allclose(found["linear in time"][n], line, rtol=1e-5, atol=1e-6)


def test_memory_of_simple_answers_does_not_hold_all_pairs_of_rows(fitted: GPPVAE) -> None:
    n = 20_000
    rng = np.random.default_rng(0)
    table = Table({"who": rng.choice(WHO, n), "time": rng.normal(size=n)})
    samples, wanted = Samples(rng.normal(size=(n, 5)).astype(np.float32)), table.take(np.arange(256))
    tracemalloc.start()
    names = [name for name, _ in simple_answers(fitted, (samples, table), wanted)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert names == ["mean", "mean of the who", "nearest sample", "linear in time"]
    assert peak < 256 * n  # bytes


def test_a_value_that_an_answer_never_observed_is_the_mean() -> None:
    """Values far from zero, of which the nearest sample lacks one: that answer is the mean of the value, not zero."""
    y, held = values() + 100.0, np.arange(60) % 7 == 3
    y[~held, 2] = np.where(np.arange((~held).sum()) % 3 == 0, y[~held, 2], np.nan)
    model = GPPVAE(KERNEL, epochs=1, missing="mask").fit(y[~held], TABLE[~held], progress=False)
    training = Samples(y[~held], missing="mask"), Table(TABLE[~held])
    found = dict(simple_answers(model, training, Table(TABLE[held])))
    assert all(np.abs(answer - 100.0).max() < 20.0 for answer in found.values())
    nearest = found["nearest sample"][:, 2]
    assert np.isclose(nearest, np.nanmean(y[~held, 2]), rtol=1e-5).any()


def test_simple_answers_of_repeated_rows_and_of_two_id_columns() -> None:
    """Two samples at one place are averaged; of two id columns both count; a trend comes before a period."""
    table = {
        "who": ["a", "a", "a", "a", "b", "b"],
        "arm": ["u", "u", "u", "v", "u", "u"],
        "t": [0.0, 0.0, 4.0, 1.0, 1.0, 9.0],
    }
    y = np.array([1.0, 3.0, 10.0, 50.0, 70.0, 90.0], dtype=np.float32)[:, None] * np.ones((1, 2), dtype=np.float32)
    kernel = "Periodic(t, 4) + RBF(t) + Categorical(who) + Categorical(arm)"
    fitted = GPPVAE(kernel, 1, inference="minibatch", epochs=1).fit(y, table, progress=False)
    wanted = {"who": ["a", "a", "b", "b"], "arm": ["u", "u", "u", "v"], "t": [1.0, 0.0, 6.0, 1.0]}
    found = dict(simple_answers(fitted, (Samples(y), Table(table)), Table(wanted)))
    assert found["nearest sample"][:, 0].tolist() == [2.0, 2.0, 90.0, 70.0]  # nobody has b and v: b of any arm
    np.testing.assert_allclose(found["linear in t"][:, 0], [4.0, 2.0, 82.5, 70.0], rtol=1e-6)


@pytest.mark.parametrize("kernel", ["RBF(x) * RBF(y)", "RBF(x, y)", "RBF(y) * (RBF(x) + Constant())"])
def test_the_nearest_sample_on_a_map_is_near_in_both_columns(kernel: str) -> None:
    """However the map is written, and not a mean over all places with the same x."""
    x, y = (part.ravel().astype(float) for part in np.meshgrid(np.arange(6), np.arange(6)))
    samples = np.stack([10 * x + y, x * y], axis=1).astype(np.float32)
    fitted = GPPVAE(kernel, 1, inference="global", epochs=1).fit(samples, {"x": x, "y": y}, progress=False)
    wanted = {"x": [2.1, 4.8], "y": [4.9, 0.2]}
    found = dict(simple_answers(fitted, (Samples(samples), Table({"x": x, "y": y})), Table(wanted)))
    assert set(found) == {"mean", "nearest sample"}
    assert found["nearest sample"].tolist() == [[25.0, 10.0], [50.0, 0.0]]


def test_the_nearest_view_goes_around_the_circle_beside_a_height() -> None:
    angle, height = np.array([0.0, 350.0, 350.0, 180.0]), np.array([0.0, 0.0, 9.0, 0.0])
    samples = np.arange(4.0, dtype=np.float32)[:, None] * np.ones((1, 2), dtype=np.float32)
    table = {"angle": angle, "height": height}
    fitted = GPPVAE("Periodic(angle, 360) * RBF(height)", 1, inference="global", epochs=1)
    fitted.fit(samples, table, progress=False)
    wanted = {"angle": [353.0, 353.0], "height": [0.1, 8.0]}
    found = dict(simple_answers(fitted, (Samples(samples), Table(table)), Table(wanted)))
    assert found["nearest sample"][:, 0].tolist() == [1.0, 2.0]


def test_a_simple_answer_that_wins_tells_what_may_help(caplog: pytest.LogCaptureFixture) -> None:
    """A random walk is followed by a line between neighbours, and not by a wave of ten steps."""
    walk = np.cumsum(np.random.default_rng(3).normal(size=(200, 3)), axis=0)
    time = {"time": np.arange(200.0)}
    with caplog.at_level(logging.WARNING, "gppvae"):
        GPPVAE("RBF(time, lengthscale=30, fixed=True)", epochs=1).fit(walk, time, progress=False)
    assert "'linear in time' has a smaller error than the model; samples may change faster" in caplog.text


def test_a_fit_that_loses_says_so(caplog: pytest.LogCaptureFixture) -> None:
    errors = {"model": 0.5, "mean": 1.0, "nearest sample": 0.4}
    lost = Comparison(errors, 9)
    assert Comparison.from_json({"errors": errors, "n_rows": 9}) == lost == Comparison.from_json(lost.to_json())
    assert lost.loses and lost.best_simple == "nearest sample" and not Comparison(errors | {"model": 0.3}, 9).loses
    noise = RNG.normal(size=(60, 5)).astype(np.float32)
    with caplog.at_level(logging.WARNING, "gppvae"):
        GPPVAE("Learned(who)", epochs=40, lr=0.03).fit(noise, TABLE, progress=False)
    assert "has a smaller error than the model; train longer" in caplog.text


def test_a_failure_after_training_gives_the_folder_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("measured nothing")

    model = GPPVAE(KERNEL, epochs=1, hold_out=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(GPPVAE, "_laplace", fails)
        with pytest.raises(RuntimeError, match="measured nothing"):
            model.fit(values(), TABLE, out=tmp_path, progress=False)
    assert model.fit(values(), TABLE, out=tmp_path, progress=False).comparison_ is None


def test_vectors_of_learned_ids_are_trained_from_their_random_start() -> None:
    rng = np.random.default_rng(0)
    own, mix = rng.normal(size=(16, 4)), rng.normal(size=(4, 12))
    who, angle = rng.integers(0, 16, 300), rng.uniform(0.0, 360.0, 300)
    samples = np.tanh(0.7 * own[who] * np.sin(np.deg2rad(angle)[:, None] + np.arange(4))) @ mix
    table = pd.DataFrame({"who": [f"w{n}" for n in who], "angle": angle})
    kernel = "Learned(who, 4) * Periodic(angle, 360)"
    model = GPPVAE(kernel, latent_dim=6).fit(samples[:240], table[:240], progress=False)
    error = np.mean((model.predict(table[240:]).mean - samples[240:]) ** 2) / samples[240:].var()
    assert error < 0.1
