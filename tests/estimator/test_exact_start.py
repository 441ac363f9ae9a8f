"""Networks that start at the exact linear model leave it only as far as that helps at rows held out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gppvae import GPPVAE, Callback
from gppvae.estimator import gppvae as estimator

RNG = np.random.default_rng(4)
TIME = np.sort(RNG.uniform(0.0, 10.0, 120))
ROOT = np.linalg.cholesky(np.exp(-np.square(TIME[:, None] - TIME) / 2) + 1e-8 * np.eye(120))
TABLE = {"time": TIME}


def measured(noise: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """As many mixtures of two functions of time as there are noises, with and without noise."""
    stream = np.random.default_rng(5)
    truth = ROOT @ stream.normal(size=(120, 2)) @ stream.normal(size=(2, len(noise)))
    return (truth + np.array(noise) * stream.normal(size=truth.shape)).astype(np.float32), truth


def validator_that_says(errors: Sequence[float]) -> Callable[..., Any]:
    left = list(errors)
    return lambda *_: lambda inference, epoch: {"valid_mse_prediction": left.pop(0)}


def epochs_of(model: GPPVAE, phase: str) -> int:
    return sum(row["phase"] == phase for row in model.history_)


@pytest.mark.parametrize(
    ("errors", "epochs"),
    [
        ([1.0, 0.99, 0.98, 0.985], 0),  # too little to leave the start for
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


def test_epochs_that_were_given_are_trained() -> None:
    model = GPPVAE("RBF(time)", epochs=3).fit(measured([0.1] * 4)[0], TABLE, progress=False)
    assert epochs_of(model, "leave_out") == 3


def test_noisy_components_do_not_blur_the_strong_ones() -> None:
    """Two strong functions beside values that are nearly all noise: what these need must not smooth the others."""
    y, truth = measured([0.02] * 6)
    stream = np.random.default_rng(6)
    weak = 0.4 * ROOT @ stream.normal(size=(120, 6)) + stream.normal(size=(120, 6))
    both, left_out = np.concatenate([y, weak.astype(np.float32)], axis=1), np.arange(120) % 4 == 1
    model = GPPVAE("RBF(time)").fit(both[~left_out], {"time": TIME[~left_out]}, progress=False)
    error = np.square(model.predict({"time": TIME[left_out]}).mean[:, :6] - truth[left_out]).mean()
    assert error < 0.01 * truth.var()
