"""Networks that start at the exact linear model leave it only as far as that helps at rows held out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from gppvae import GPPVAE, Callback
from gppvae.estimator import gppvae as estimator
from gppvae.training.validated import Validated, clearly_less

RNG = np.random.default_rng(4)
TIME = np.sort(RNG.uniform(0.0, 10.0, 120))
ROOT = np.linalg.cholesky(np.exp(-np.square(TIME[:, None] - TIME) / 2) + 1e-8 * np.eye(120))
TABLE = {"time": TIME}


def measured(noise: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """As many mixtures of two functions of time as there are noises, with and without noise."""
    stream = np.random.default_rng(5)
    truth = ROOT @ stream.normal(size=(120, 2)) @ stream.normal(size=(2, len(noise)))
    return (truth + np.array(noise) * stream.normal(size=truth.shape)).astype(np.float32), truth


def validator_that_says(errors: Sequence[float], asked: int = 0) -> Callable[..., Any]:
    """Mean errors of 16 rows that differ; gains differ between rows by a tenth of the error at the start."""
    left, rows = list(errors[asked:]), np.tile([-0.1, 0.1], 8)

    def validated(*_: object) -> Validated:
        mean = left.pop(0)
        return Validated({"valid_mse_prediction": mean}, torch.from_numpy(mean + (mean != errors[0]) * rows))

    return lambda *_: validated


def epochs_of(model: GPPVAE, phase: str) -> int:
    return sum(row["phase"] == phase for row in model.history_)


@pytest.mark.parametrize(
    ("errors", "epochs"),
    [
        (
            [1.0, 0.99, 0.98, 0.985],
            0,
        ),  # less than the standard error, 0.1 / sqrt(15): too little to leave the start for
        ([1.0, 0.97, 0.98, 0.985], 1),
        ([1.0, 0.9, 0.8, 0.85], 2),
        ([1.0, 2.0, 3.0, 0.5], 3),
    ],
)
def test_the_last_phase_goes_on_as_long_as_helped(
    errors: list[float], epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimator, "validator", validator_that_says(errors + 100 * [9.0]))
    model = GPPVAE("RBF(time)").fit(measured([0.1] * 4)[0], TABLE, progress=False)
    tried, last = model.resolved_["phases"]
    assert tried["held_out"] and last["restart"] and last["until_best"] and tried["epochs"] == last["epochs"] > 3
    assert epochs_of(model, last["name"]) == epochs


def test_errors_are_clearly_less_by_the_paired_standard_error() -> None:
    """Errors of rows differ a lot but all shrink by about as much, which the two means alone do not show."""
    rng = np.random.default_rng(0)
    before, noise = rng.gamma(1.0, size=30), rng.normal(size=30)
    noise -= noise.mean()
    noise /= np.sqrt(sum(x**2 for x in noise) / 29 / 30)  # so that its standard error is 1
    for gain, clear in ((1.1, True), (0.9, False), (-2.0, False)):
        after = before - 0.01 * (gain + noise)
        assert clearly_less(torch.from_numpy(after), torch.from_numpy(before)) is clear
    assert not clearly_less(torch.tensor([0.1]), torch.tensor([1.0]))  # one row alone


def test_no_unit_decides_how_long_networks_are_trained() -> None:
    """Two values, one in another unit: the same epochs, and the same predictions up to the unit."""
    unit = 1e4
    y = measured([0.3, 0.1])[0]
    y = np.stack([np.exp(y[:, 0]), np.sin(2 * y[:, 1])], axis=1)
    models = [GPPVAE("RBF(time)").fit(y * np.float32([1.0, scale]), TABLE, progress=False) for scale in (1.0, unit)]
    epochs = [[row["phase"] for row in model.history_] for model in models]
    assert epochs[0] == epochs[1]
    expected = models[0].predict(TABLE).mean * [1.0, unit]
    np.testing.assert_allclose(models[1].predict(TABLE).mean, expected, rtol=1e-3, atol=1e-3 * expected.std(0).min())


def test_a_stopped_fit_still_knows_how_long_helped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors, y = [1.0, 0.9, 0.8, 0.7] + 100 * [9.0], measured([0.1] * 4)[0]

    class Second(Callback):
        def on_epoch(self, phase: str, step: int, metrics: dict[str, float]) -> None:
            if phase == "leave_out":
                raise KeyboardInterrupt

    monkeypatch.setattr(estimator, "validator", validator_that_says(errors))
    whole = GPPVAE("RBF(time)").fit(y, TABLE, progress=False)
    monkeypatch.setattr(estimator, "validator", validator_that_says(errors))
    with pytest.raises(KeyboardInterrupt):
        GPPVAE("RBF(time)").fit(y, TABLE, out=tmp_path, progress=False, callbacks=[Second()])
    again = GPPVAE("RBF(time)").fit(y, TABLE, out=tmp_path, progress=False)
    assert epochs_of(again, "leave_out") == epochs_of(whole, "leave_out") == 3
    np.testing.assert_array_equal(again.predict(TABLE).mean, whole.predict(TABLE).mean)


def test_a_fit_stopped_while_it_is_tried_still_compares_with_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, y = [1.0, 0.995, 0.99, 0.985] + 100 * [9.0], measured([0.1] * 4)[0]  # never clearly less

    class Second(Callback):
        def on_epoch(self, phase: str, step: int, metrics: dict[str, float]) -> None:
            if step == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(estimator, "validator", validator_that_says(errors))
    with pytest.raises(KeyboardInterrupt):
        GPPVAE("RBF(time)").fit(y, TABLE, out=tmp_path, progress=False, callbacks=[Second()])
    monkeypatch.setattr(estimator, "validator", validator_that_says(errors, asked=2))  # after the start and one epoch
    again = GPPVAE("RBF(time)").fit(y, TABLE, out=tmp_path, progress=False)
    assert epochs_of(again, "tried") > 2 and epochs_of(again, "leave_out") == 0


def test_epochs_that_were_given_are_trained() -> None:
    model = GPPVAE("RBF(time)", epochs=3).fit(measured([0.1] * 4)[0], TABLE, progress=False)
    assert epochs_of(model, "leave_out") == 3


@pytest.mark.parametrize("picture", [False, True])
def test_samples_without_a_value_do_not_count_in_the_start(picture: bool) -> None:
    """Length scale and noise are those of the observed rows; rows without a value were taken for the mean sample."""
    y = np.tile(measured([0.1] * 4)[0][:, :, None], 16).reshape(120, 8, 8) if picture else measured([0.1] * 4)[0]
    gone = np.random.default_rng(0).random(120) < 0.6
    holes = np.where(gone.reshape(120, *(1 for _ in y.shape[1:])), np.nan, y)
    fits = {
        name: GPPVAE("RBF(time)", missing="mask", epochs=0, hold_out=0.0, members=1).fit(samples, rows, progress=False)
        for name, samples, rows in (("holes", holes, TABLE), ("seen", y[~gone], {"time": TIME[~gone]}))
    }
    lengths, noise = (
        {name: float(of(model)) for name, model in fits.items()}
        for of in (
            lambda model: model.kernel_.leaves()[0].base.lengthscale.detach(),
            lambda model: model.prior_.groups[0].alpha.detach(),
        )
    )
    assert lengths["holes"] == pytest.approx(lengths["seen"], rel=1e-3)
    assert noise["holes"] == pytest.approx(noise["seen"], rel=1e-3)


def test_noisy_components_do_not_blur_the_strong_ones() -> None:
    """Two strong functions beside values that are nearly all noise: what these need must not smooth the others."""
    y, truth = measured([0.02] * 6)
    stream = np.random.default_rng(6)
    weak = 0.4 * ROOT @ stream.normal(size=(120, 6)) + stream.normal(size=(120, 6))
    both, left_out = np.concatenate([y, weak.astype(np.float32)], axis=1), np.arange(120) % 4 == 1
    model = GPPVAE("RBF(time)").fit(both[~left_out], {"time": TIME[~left_out]}, progress=False)
    error = np.square(model.predict({"time": TIME[left_out]}).mean[:, :6] - truth[left_out]).mean()
    assert error < 0.01 * truth.var()


def test_curves_with_little_noise_are_followed_as_by_a_dense_gp() -> None:
    """A smooth curve per subject, measured to a hundredth, against a dense GP with the true kernel."""
    rng = np.random.default_rng(7)
    who, time = np.repeat(np.arange(30), 8), np.tile(np.arange(8.0), 30)
    gram = (who[:, None] == who) * np.exp(-np.square(time[:, None] - time) / (2 * 2.5**2))
    y = (np.linalg.cholesky(gram + 1e-10 * np.eye(240)) @ rng.normal(size=240) + 0.01 * rng.normal(size=240))[:, None]
    held = (np.arange(240) * 5) % 8 == 3
    dense = gram[held][:, ~held] @ np.linalg.solve(gram[~held][:, ~held] + 1e-4 * np.eye((~held).sum()), y[~held])
    table = pd.DataFrame({"who": who, "time": time})
    model = GPPVAE("Categorical(who) * RBF(time)").fit(y[~held], table[~held], progress=False)
    assert np.square(model.predict(table[held]).mean - dense).mean() < 0.004
